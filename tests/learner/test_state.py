import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from learner_samples import MODEL, settings

from metaagent_x.learner.state import (
    clip_by_global_norm,
    decayed,
    init_state,
    learning_rate,
    make_optimizer,
    state_shardings,
)
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
    low = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    for given in (params, low):
        state = init_state(given, make_optimizer(settings()), None)
        kept = jax.tree.map(np.asarray, given)
        assert {x.dtype for x in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
        jax.tree.map(lambda x: x.delete(), state)
        jax.tree.map(np.testing.assert_array_equal, given, kept)


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
