from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from learner_samples import MODEL, settings, trajectories

from metaagent_x.learner.checkpoint import Checkpoints
from metaagent_x.learner.packing import pack
from metaagent_x.learner.state import (
    TrainState,
    clip_by_global_norm,
    decayed,
    init_state,
    learning_rate,
    make_optimizer,
    state_shardings,
)
from metaagent_x.learner.step import Learner
from metaagent_x.model import hf, qwen3
from metaagent_x.model.sharding import make_mesh

ONE = {"w": jnp.ones(3), "layers": {"attn_norm": jnp.ones(2)}}


def run(optimizer, grads, params=ONE, times=1):
    state = optimizer.init(params)
    for _ in range(times):
        updates, state = optimizer.update(grads, state, params)
    return updates, state


@pytest.mark.fault("F065")
@pytest.mark.parametrize("warmup", [10, 4])
def test_warmup_counts_optimizer_updates(warmup) -> None:
    """axolotl-ai-cloud/axolotl#977. Linear 0 to 1: the second update uses 1 / warmup, and the count is then 2."""
    s = settings(learning_rate=1.0, warmup_steps=warmup, clip_norm=0.0)
    first, _ = run(make_optimizer(s), ONE)
    assert not first["w"].any()
    second, state = run(make_optimizer(s), ONE, times=2)
    np.testing.assert_allclose(second["w"], -1 / warmup, rtol=1e-4)  # Adam's direction is 1 for a constant gradient
    assert set(np.asarray(optax.tree_utils.tree_get_all_with_path(state, "count")[0][1]).ravel()) == {2}
    rates = [float(learning_rate(s)(i)) for i in (0, 1, warmup, 50)]
    np.testing.assert_allclose(rates, [0, 1 / warmup, 1, 1], rtol=1e-6)


def test_rate_falls_to_zero_if_told_how_many_updates() -> None:
    s = settings(learning_rate=2.0, warmup_steps=2)
    assert [round(float(learning_rate(s, 12)(i)), 4) for i in (0, 2, 7, 12)] == [0, 2, 1, 0]
    with pytest.raises(ValueError, match="warmup_steps=2 leaves nothing of total_updates=2"):
        learning_rate(s, 2)


@pytest.mark.fault("F064")
def test_leaves_without_decay_get_no_update_of_their_own() -> None:
    """google-deepmind/optax#477: a masked transform that passes values on moves "frozen" leaves by the gradient."""
    zero = jax.tree.map(jnp.zeros_like, ONE)
    updates, _ = run(make_optimizer(settings(learning_rate=0.5, weight_decay=0.1)), zero)
    np.testing.assert_allclose(updates["w"], -0.05, rtol=1e-6)
    assert not updates["layers"]["attn_norm"].any()
    assert decayed(ONE) == {"w": True, "layers": {"attn_norm": False}}
    assert decayed({"layers": {"q": 1, "q_bias": 1, "q_norm": 1}}) == {
        "layers": {"q": True, "q_bias": False, "q_norm": False}
    }


@pytest.mark.fault("F067")
@pytest.mark.parametrize(("limit", "norm"), [(1.0, 1.0), (2.0, 2.0), (9.0, 5**0.5), (0.0, 5**0.5)])
def test_gradients_are_clipped_by_their_common_norm(limit, norm) -> None:
    _, state = run(make_optimizer(settings(clip_norm=limit)), ONE)
    mu = optax.tree_utils.tree_get(state, "mu")
    assert float(optax.tree.norm(mu)) / 0.1 == pytest.approx(norm, rel=1e-5)


@pytest.mark.fault("F092")
def test_fresh_states_own_their_buffers(params) -> None:
    """jax-ml/jax#1733: a donated buffer shared with the reference policy is a deleted array, or follows the actor."""
    low, optimizer = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params), make_optimizer(settings())
    for given in (params, low):
        state = init_state(given, optimizer, state_shardings(MODEL, optimizer, None))
        kept = jax.tree.map(np.asarray, given)
        assert {x.dtype for x in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
        jax.tree.map(lambda x: x.delete(), state)
        jax.tree.map(np.testing.assert_array_equal, given, kept)


@pytest.mark.fault("F092")
@pytest.mark.parametrize("mesh", [(1, 1), (2, 4)])
def test_given_weights_survive_a_donation_wherever_they_lie(params, mesh) -> None:
    """Placing alone shares buffers: what is in place already, the first device's part of what goes to all of them."""
    optimizer = make_optimizer(settings())
    shardings = state_shardings(MODEL, optimizer, make_mesh(*mesh) if mesh != (1, 1) else None)
    overwrite = jax.jit(lambda s: jax.tree.map(lambda x: x * 0 + 7, s), donate_argnums=0, out_shardings=shardings)
    kept = jax.tree.map(np.array, params)
    for given in (params, jax.tree.map(np.array, params), jax.device_put(params, shardings.params)):
        state = init_state(given, optimizer, shardings)
        assert not buffers(given) & buffers(state)
        overwrite(state)
        jax.tree.map(np.testing.assert_array_equal, given, kept)


def buffers(tree) -> set[int]:
    """Where the arrays of a tree begin in memory."""
    return {
        address
        for x in jax.tree.leaves(tree)
        for address in (
            [x.ctypes.data]
            if isinstance(x, np.ndarray)
            else [part.data.unsafe_buffer_pointer() for part in x.addressable_shards]
        )
    }


def compiled(learner: Learner) -> list[int]:
    """How often each program was compiled."""
    return [program._cache_size() for program in (learner._score, learner._update, learner._supervised)]


def starts(learner: Learner, folder: Path, mesh) -> Iterator[TrainState]:
    """One state of each origin: drawn weights, weights of a folder, a checkpoint."""
    drawn = qwen3.init(MODEL, jax.random.key(0), mesh)
    hf.save(folder / "weights", MODEL, drawn, "float32")
    yield learner.init(drawn)
    yield learner.init(hf.load(folder / "weights", "float32", mesh)[1])
    saved = Checkpoints(folder / "c")
    saved.save(1, {"shared": learner.init(drawn)}, {})
    saved.wait()
    yield saved.restore(1, {"shared": learner.init(drawn)})[0]["shared"]


@pytest.mark.slow
def test_a_state_of_any_origin_needs_no_compilation_of_its_own(learner, params, tmp_path) -> None:
    """Weights of a folder are committed to their device, drawn ones not: such a state was compiled for once more."""
    batch = pack(trajectories(0), 16, rows_multiple=8)
    learner.update(learner.init(params), batch, learner.logprobs(params, batch))
    before = compiled(learner)
    for state in starts(learner, tmp_path, None):
        for _ in range(2):
            state, _ = learner.update(state, batch, learner.logprobs(state.params, batch))
    assert compiled(learner) == before


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(1, 1), (4, 2)])
def test_every_program_is_compiled_once_on_any_mesh(params, tmp_path, mesh) -> None:
    mesh = make_mesh(*mesh) if mesh != (1, 1) else None
    learner = Learner(MODEL, settings(micro_rows=1), mesh)
    batch = pack(trajectories(0), 16, rows_multiple=8)
    learner.logprobs(params, batch)  # of one device: what a reference may be
    for state in starts(learner, tmp_path, mesh):
        for _ in range(2):
            state, _ = learner.update(state, batch, learner.logprobs(state.params, batch))
            state, _ = learner.supervised_update(state, batch)
    assert compiled(learner) == [1, 1, 1]


def test_moments_live_beside_their_weights(params) -> None:
    mesh = make_mesh(2, 2)
    optimizer = make_optimizer(settings())
    state = init_state(params, optimizer, state_shardings(MODEL, optimizer, mesh))
    for name in ("mu", "nu"):
        moments = optax.tree_utils.tree_get(state.opt_state, name)
        jax.tree.map(lambda m, p: np.testing.assert_equal(m.sharding, p.sharding), moments, state.params)
    assert len(state.params["layers"]["q"].sharding.device_set) == 4
    assert not state.params["layers"]["q"].sharding.is_fully_replicated


def test_clipping_scales_to_the_norm_and_leaves_smaller_gradients_bitwise_alone():
    grads = {"a": jnp.asarray([3.0, 0.0]), "b": jnp.asarray([[4.0]])}
    for largest, factor in ((1.0, 0.2), (5.0, 1.0), (7.0, 1.0)):
        clipped, _ = clip_by_global_norm(largest).update(grads, optax.EmptyState())
        jax.tree.map(lambda got, g, f=factor: np.testing.assert_allclose(got, f * g, rtol=1e-6), clipped, grads)
        if factor == 1.0:
            jax.tree.map(np.testing.assert_array_equal, clipped, grads)


def test_clipping_takes_the_norm_of_a_caller_that_has_it():
    grads = {"a": jnp.asarray([3.0, 4.0])}
    clipped, _ = clip_by_global_norm(1.0).update(grads, optax.EmptyState(), norm=jnp.asarray(10.0))
    np.testing.assert_allclose(clipped["a"], [0.3, 0.4], rtol=1e-6)
    for limit in (0.0, 1.0):  # with and without a clip in the chain
        optimizer = make_optimizer(settings(clip_norm=limit))
        assert jax.tree.leaves(optimizer.update(grads, optimizer.init(grads), grads, norm=jnp.asarray(5.0))[0])
