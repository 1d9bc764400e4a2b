"""The same numbers on one device and on meshes of eight; refusals that name the way out."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaagent_x.model import attention, logprobs, qwen3, sharding
from metaagent_x.model.sharding import ShardingError

SLOW = pytest.mark.slow  # one compilation more each
QUICK = {"xla_backend_optimization_level": 0}  # these tests are about placement: compile fast


def batch(config, rows=8, length=20):
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, config.vocab_size, (rows, length)).astype(np.int32)
    segments = np.broadcast_to(np.arange(length) // 12 + 1, tokens.shape).astype(np.int32)
    positions = np.broadcast_to(np.arange(length) % 12, tokens.shape).astype(np.int32)
    return tokens, positions, segments


def loss(params, config, tokens, positions, segments):
    hidden = qwen3.forward(params, config, tokens, positions, segments)
    logp, entropy = logprobs.token_logprobs(params, config, hidden[:, :-1], tokens[:, 1:], chunk=32, with_entropy=True)
    return jnp.mean(0.1 * entropy - logp)


@pytest.fixture(scope="module")
def single(config):
    params = qwen3.init(config, jax.random.key(0))
    return params, *jax.jit(jax.value_and_grad(loss), static_argnums=1, compiler_options=QUICK)(
        params, config, *batch(config)
    )


@pytest.mark.parametrize(("fsdp", "tensor"), [pytest.param(8, 1, marks=SLOW), (4, 2), pytest.param(2, 4, marks=SLOW)])
def test_meshes_of_eight_equal_one_device(config, single, fsdp, tensor, monkeypatch):
    """With tensor 4 there are two key heads for four devices: they are kept whole."""
    if tensor == 2:  # one mesh runs the blockwise kernel and remat too
        monkeypatch.setitem(attention.KERNELS, "xla", functools.partial(attention.xla_attention, tile=8))
        config = dataclasses.replace(config, remat="block")
    params, want, want_grads = single
    mesh = sharding.make_mesh(fsdp, tensor)
    placed = jax.device_put(params, sharding.param_shardings(config, mesh))
    rows = jax.device_put(batch(config), sharding.batch_sharding(mesh))
    step = jax.jit(
        jax.value_and_grad(loss),
        static_argnums=1,
        compiler_options=QUICK,
        out_shardings=(sharding.replicated(mesh), sharding.param_shardings(config, mesh)),
    )
    with jax.set_mesh(mesh):
        got, grads = step(placed, config, *rows)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), grads, want_grads)
    assert grads["layers"]["k"].sharding.spec[2] == ("tensor" if tensor <= config.num_kv_heads else None)


@pytest.mark.fault("F088")
def test_initial_weights_do_not_depend_on_the_mesh(config, single):
    """The same key must give the same numbers wherever they lie (jax-ml/jax#40232)."""
    for fsdp, tensor in ((1, 2), (2, 4)):
        mesh = sharding.make_mesh(fsdp, tensor)
        params = qwen3.init(config, jax.random.key(0), mesh)
        jax.tree.map(np.testing.assert_array_equal, params, single[0])
        gate = params["layers"]["gate"]
        assert gate.addressable_shards[0].data.size == gate.size // (fsdp * tensor)


@pytest.mark.fault("F088")
def test_random_numbers_do_not_depend_on_the_mesh():
    draws = [
        np.asarray(jax.jit(lambda k: jax.random.normal(k, (496, 4)), out_shardings=sharding.batch_sharding(mesh))(key))
        for mesh in (sharding.make_mesh(n) for n in (1, 2, 8))
        for key in (jax.random.key(5),)
    ]
    for other in draws[1:]:
        np.testing.assert_array_equal(draws[0], other)


def test_big_arrays_are_split_and_norms_are_whole(config):
    shardings = sharding.param_shardings(dataclasses.replace(config, tie_embeddings=False), sharding.make_mesh(2, 2))
    specs = {
        jax.tree_util.keystr(p, simple=True, separator="."): tuple(s.spec)
        for p, s in jax.tree.leaves_with_path(shardings)
    }
    assert specs["embed"] == specs["head"] == ("tensor", "fsdp")
    assert specs["layers.q"] == (None, "fsdp", "tensor", None)
    assert specs["layers.o"] == (None, "tensor", None, "fsdp")
    assert specs["layers.down"] == (None, "tensor", "fsdp")
    assert specs["norm"] == (None,) and specs["layers.q_norm"] == (None, None)


@pytest.mark.parametrize(
    ("change", "fsdp", "tensor", "words"),
    [
        ({"hidden_size": 36}, 8, 1, "size 36.* 8 devices .*'fsdp'"),
        ({"vocab_size": 97}, 1, 2, "embed: axis 'vocab' has size 97"),
        ({"intermediate_size": 6}, 1, 4, "axis 'mlp'.* mesh.tensor as a divisor of 6"),
        ({"num_heads": 9, "num_kv_heads": 3}, 1, 4, "axis '(kv_)?heads'"),
        ({"num_heads": 12, "num_kv_heads": 3}, 1, 4, "axis 'kv_heads' has size 3"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(config, change, fsdp, tensor, words):
    with pytest.raises(ShardingError, match=words):
        sharding.param_shardings(dataclasses.replace(config, **change), sharding.make_mesh(fsdp, tensor))


def test_collisions_and_unknown_axes_are_refused():
    sizes = {"fsdp": 2, "tensor": 2}
    with pytest.raises(ShardingError, match=r"two of its axes .* lie on mesh axis 'tensor'"):
        sharding.partition_spec("w", (4, 4), ("heads", "mlp"), sizes)
    with pytest.raises(ShardingError, match="logical axis 'depth' is not in the table"):
        sharding.partition_spec("w", (4,), ("depth",), sizes)
    with pytest.raises(ShardingError, match="one axis per dimension"):
        sharding.partition_spec("w", (4, 4), ("mlp",), sizes)


def test_meshes_that_do_not_exist_are_refused():
    with pytest.raises(ShardingError, match="needs 16 devices, this run has 8"):
        sharding.make_mesh(4, 4)
    with pytest.raises(ShardingError, match="at least 1"):
        sharding.make_mesh(0, 1)
