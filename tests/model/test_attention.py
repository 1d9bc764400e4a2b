"""Attention kernels against a dense reference: outputs, gradients, packing, padding, memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaagent_x.model import attention as lib

QUICK = {"xla_backend_optimization_level": 0}  # these tests are about the algebra: compile fast


def dense(q, k, v, segment_ids, positions):
    """Everything at once, heads repeated, in the simplest words."""
    group = q.shape[2] // k.shape[2]
    k, v = jnp.repeat(k, group, axis=2), jnp.repeat(v, group, axis=2)
    scores = jnp.einsum("bqhd,bshd->bhqs", q, k) / np.sqrt(q.shape[-1])
    length = q.shape[1]
    seen = (segment_ids[:, :, None] == segment_ids[:, None]) & np.tril(np.ones((length, length), bool))
    return jnp.einsum("bhqs,bshd->bqhd", jax.nn.softmax(jnp.where(seen[:, None], scores, -jnp.inf), -1), v)


def inputs(length, lengths, heads=4, kv_heads=2, seed=0):
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(2, length, heads, 8)).astype("float32") * 2
    k, v = (rng.normal(size=(2, length, kv_heads, 8)).astype("float32") * 2 for _ in range(2))
    segments, positions = np.zeros((2, 2, length), np.int32)
    for r, row in enumerate(lengths):
        start = 0
        for i, n in enumerate(row):
            segments[r, start : start + n], positions[r, start : start + n] = i + 1, np.arange(n)
            start += n
    return (q, k, v), segments, positions


CASES = [
    (12, 512, [(12,), (5, 7)], 2),  # one tile
    (24, 8, [(10, 14), (8, 16)], 2),  # three whole tiles; a segment border inside a tile and at its edge
    (29, 8, [(11, 9), (1, 20)], 1),  # four tiles of 8 but for the last, padding
    (40, 8, [(40,), (3, 3)], 4),  # one long segment, almost only padding
]


@pytest.mark.parametrize(("length", "tile", "lengths", "kv_heads"), CASES)
def test_outputs_and_gradients_equal_the_dense_form(length, tile, lengths, kv_heads):
    arrays, segments, positions = inputs(length, lengths, kv_heads=kv_heads)
    real = segments > 0
    weights = np.random.default_rng(1).normal(size=arrays[0].shape).astype("float32") * real[..., None, None]

    def run(attend):
        def total(q, k, v):
            out = attend(q, k, v, segments, positions)
            return jnp.sum(out * weights), out

        (_, out), grads = jax.jit(jax.value_and_grad(total, (0, 1, 2), has_aux=True), compiler_options=QUICK)(*arrays)
        return np.where(real[..., None, None], out, 0), grads

    got, want = run(functools.partial(lib.xla_attention, tile=tile)), run(dense)
    np.testing.assert_allclose(got[0], want[0], atol=1e-5)
    for name, a, b in zip("qkv", got[1], want[1], strict=True):
        np.testing.assert_allclose(a, b, atol=3e-5, err_msg=f"gradient of {name}")


@pytest.mark.parametrize("tile", [8, 512])
def test_a_segment_never_sees_another_one(tile):
    """Not even a little: huge keys next door leave value and gradient bitwise alone."""
    (q, k, v), segments, positions = inputs(24, [(10, 14), (6, 6)])
    spoilt = np.where((segments == 1)[..., None, None], np.float32(1e4), k)

    @jax.jit
    @jax.value_and_grad
    def second(k):
        out = lib.xla_attention(q, k, v, segments, positions, tile=tile)
        return jnp.sum(jnp.where((segments == 2)[..., None, None], out, 0))

    (value, grad), (other, grad_spoilt) = second(k), second(spoilt)
    assert value == other
    np.testing.assert_array_equal(grad, grad_spoilt)
    assert not np.asarray(grad)[segments != 2].any()


@pytest.mark.parametrize("tile", [8, 512])
def test_padding_is_finite_forward_and_backward(tile):
    arrays, segments, positions = inputs(20, [(4,), ()])

    def total(*arrays):
        return jnp.sum(lib.xla_attention(*arrays, segments, positions, tile=tile) ** 2)

    out, grads = jax.jit(jax.value_and_grad(total, (0, 1, 2)), compiler_options=QUICK)(*arrays)
    assert all(np.isfinite(x).all() for x in (out, *grads))


@pytest.mark.parametrize("tile", [8, 512])
def test_softmax_is_float32_for_bfloat16_inputs(tile):
    """With large scores: the error stays that of rounding the output, not of rounding the scores."""
    (q, k, v), segments, positions = inputs(24, [(24,), (24,)], seed=4)
    low = [jnp.asarray(x, jnp.bfloat16) for x in (4 * q, k, v)]
    want = jax.jit(dense)(*(x.astype(jnp.float32) for x in low), segments, positions)
    got = jax.jit(functools.partial(lib.xla_attention, tile=tile))(*low, segments, positions)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(got.astype(jnp.float32), want, atol=0.03)


def test_memory_grows_with_the_length_not_with_its_square():
    def bytes_for(length):
        (q, k, v), segments, positions = inputs(length, [(length,), (length,)])
        step = jax.grad(lambda *a: jnp.sum(lib.xla_attention(*a, segments, positions, tile=64)), argnums=(0, 1, 2))
        return jax.jit(step).lower(q, k, v).compile().memory_analysis().temp_size_in_bytes

    small, large = bytes_for(512), bytes_for(2048)
    assert large < 5 * small, (small, large)


def test_bad_requests_are_named():
    (q, k, v), segments, positions = inputs(8, [(8,), (8,)])
    with pytest.raises(ValueError, match="'flash9'; choose one of xla"):
        lib.attention(q, k, v, segments, positions, kernel="flash9")
    with pytest.raises(ValueError, match="multiple of K"):
        lib.attention(q[:, :, :3], k, v, segments, positions)
    with pytest.raises(ValueError, match=r"segment_ids \(2, 7\)"):
        lib.attention(q, k, v, segments[:, :7], positions)
