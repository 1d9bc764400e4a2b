"""Attention within packed segments: one interface, kernels by name.

Every kernel gives the same outputs and gradients as `xla` (tested with two segments in a row).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

from metaagent_x.model.attention_cudnn import cudnn_attention
from metaagent_x.model.numerics import einsum

Kernel = Callable[[Array, Array, Array, Array, Array], Array]

BLOCK = 512  # queries and keys per tile of the blockwise form; rows up to this length are computed directly
SAVED_NAMES = ("attention_out", "attention_lse")  # what remat "block" keeps
_MASKED = -1e30  # finite, so that no difference of two masked scores is NaN


def _visible(query_segments: Array, key_segments: Array, query_positions: Array, key_positions: Array) -> Array:
    """[B, Q], [B, S] -> bool [B, 1, 1, Q, S]: same segment and not later. True on the diagonal, so no row is empty."""
    same = query_segments[:, :, None] == key_segments[:, None, :]
    return (same & (query_positions[:, :, None] >= key_positions[:, None, :]))[:, None, None]


def _direct(q: Array, k: Array, v: Array, segment_ids: Array, positions: Array) -> Array:
    """q [B, T, K, G, d], k and v [B, T, K, d] -> [B, T, K, G, d], with all [T, T] scores at once."""
    scores = einsum("bqkgd,bskd->bkgqs", q, k, out=jnp.float32) * q.shape[-1] ** -0.5
    scores = jnp.where(_visible(segment_ids, segment_ids, positions, positions), scores, _MASKED)
    shares = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    return checkpoint_name(einsum("bkgqs,bskd->bqkgd", shares, v), "attention_out")


def _tile(x: Array, index: Array | int, size: int) -> Array:
    return lax.dynamic_slice_in_dim(x, index * size, size, axis=1)


def _tile_scores(q: Array, k: Array, places: tuple[Array, Array], i: Array, j: Array, size: int) -> Array:
    """Masked float32 scores [B, K, G, size, size] of query tile i against key tile j."""
    segments, positions = places
    scores = einsum("bqkgd,bskd->bkgqs", _tile(q, i, size), _tile(k, j, size), out=jnp.float32) * q.shape[-1] ** -0.5
    visible = _visible(
        _tile(segments, i, size), _tile(segments, j, size), _tile(positions, i, size), _tile(positions, j, size)
    )
    return jnp.where(visible, scores, _MASKED)


def _blockwise_forward(
    q: Array, k: Array, v: Array, segment_ids: Array, positions: Array, size: int
) -> tuple[Array, tuple[Array, ...]]:
    """Online softmax over key tiles (arXiv:2205.14135, 2307.08691): memory grows with T, not with T squared.

    Key tiles right of the diagonal hold only later positions of the same segment and are not visited.
    """
    batch, length, kv_heads, group, width = q.shape

    def query_tile(i: Array) -> tuple[Array, Array]:
        def key_tile(j: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            top, total, mixed = carry
            scores = _tile_scores(q, k, (segment_ids, positions), i, j, size)
            new_top = jnp.maximum(top, scores.max(axis=-1))
            shrink, weights = jnp.exp(top - new_top), jnp.exp(scores - new_top[..., None])
            part = einsum("bkgqs,bskd->bkgqd", weights.astype(v.dtype), _tile(v, j, size), out=jnp.float32)
            return new_top, total * shrink + weights.sum(axis=-1), mixed * shrink[..., None] + part

        shape = (batch, kv_heads, group, size)
        start = (jnp.full(shape, _MASKED), jnp.zeros(shape), jnp.zeros((*shape, width)))
        top, total, mixed = lax.fori_loop(0, i + 1, key_tile, start)
        return (mixed / total[..., None]).astype(q.dtype), top + jnp.log(total)

    out, lse = lax.map(query_tile, jnp.arange(length // size))  # [n, B, K, G, size, d], [n, B, K, G, size]
    out = out.transpose(1, 0, 4, 2, 3, 5).reshape(q.shape)
    out, lse = checkpoint_name(out, SAVED_NAMES[0]), checkpoint_name(lse, SAVED_NAMES[1])
    return out, (q, k, v, segment_ids, positions, out, lse)


def _blockwise_backward(size: int, saved: tuple[Array, ...], d_out: Array) -> tuple[Array | np.ndarray, ...]:
    """Recomputes each tile's weights from the saved log-sum-exp and adds up the three gradients in float32."""
    q, k, v, segment_ids, positions, out, lse = saved
    scale, tiles = q.shape[-1] ** -0.5, q.shape[1] // size
    # Sum over the row of weight times its own gradient: the softmax's Jacobian needs only this.
    delta = jnp.sum(out.astype(jnp.float32) * d_out.astype(jnp.float32), axis=-1)  # [B, T, K, G]

    def query_tile(i: Array, grads: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        d_out_i, delta_i = _tile(d_out, i, size), _tile(delta, i, size).transpose(0, 2, 3, 1)

        def key_tile(j: Array, grads: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            dq, dk, dv = grads
            weights = jnp.exp(_tile_scores(q, k, (segment_ids, positions), i, j, size) - lse[i][..., None])
            d_weights = einsum("bqkgd,bskd->bkgqs", d_out_i, _tile(v, j, size), out=jnp.float32)
            d_scores = (weights * (d_weights - delta_i[..., None]) * scale).astype(q.dtype)
            dq_part = einsum("bkgqs,bskd->bqkgd", d_scores, _tile(k, j, size), out=jnp.float32)
            dk_part = einsum("bkgqs,bqkgd->bskd", d_scores, _tile(q, i, size), out=jnp.float32)
            dv_part = einsum("bkgqs,bqkgd->bskd", weights.astype(v.dtype), d_out_i, out=jnp.float32)
            return _add_tile(dq, dq_part, i, size), _add_tile(dk, dk_part, j, size), _add_tile(dv, dv_part, j, size)

        return lax.fori_loop(0, i + 1, key_tile, grads)

    zeros = tuple(jnp.zeros(x.shape, jnp.float32) for x in (q, k, v))
    dq, dk, dv = lax.fori_loop(0, tiles, query_tile, zeros)
    no_gradient = tuple(np.zeros(x.shape, jax.dtypes.float0) for x in (segment_ids, positions))
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), *no_gradient


def _add_tile(whole: Array, part: Array, index: Array, size: int) -> Array:
    return lax.dynamic_update_slice_in_dim(whole, _tile(whole, index, size) + part, index * size, axis=1)


def _blockwise_value(q: Array, k: Array, v: Array, segment_ids: Array, positions: Array, size: int) -> Array:
    return _blockwise_forward(q, k, v, segment_ids, positions, size)[0]


_blockwise = jax.custom_vjp(_blockwise_value, nondiff_argnums=(5,))
_blockwise.defvjp(_blockwise_forward, _blockwise_backward)


def xla_attention(q: Array, k: Array, v: Array, segment_ids: Array, positions: Array, *, block: int = BLOCK) -> Array:
    """The reference kernel: any device, any length; direct up to one block, blockwise beyond. See `attention`."""
    length, kv_heads = q.shape[1], k.shape[2]
    grouped = q.reshape(*q.shape[:2], kv_heads, -1, q.shape[-1])
    if length <= block:
        return _direct(grouped, k, v, segment_ids, positions).reshape(q.shape)
    # Padding joins segment 0 at the right end; no real token sees it, and its outputs are cut off.
    extra = -length % block
    grouped, k, v, segment_ids, positions = (
        jnp.pad(x, [(0, 0), (0, extra)] + [(0, 0)] * (x.ndim - 2)) for x in (grouped, k, v, segment_ids, positions)
    )
    return _blockwise(grouped, k, v, segment_ids, positions, block)[:, :length].reshape(q.shape)


KERNELS: dict[str, Kernel] = {"xla": xla_attention, "cudnn": cudnn_attention}


def attention(q: Array, k: Array, v: Array, segment_ids: Array, positions: Array, kernel: str = "xla") -> Array:
    """Causal attention within segments; scores and softmax in float32.

    Args:
        q: [B, T, H, d] queries.
        k: [B, T, K, d] keys; H is a multiple of K, query head h uses key head h // (H / K).
        v: [B, T, K, d] values.
        segment_ids: [B, T] whole numbers; only equal ids see each other. 0 is padding: finite, meaningless output.
        positions: [B, T] whole numbers that rise from left to right within a segment.
        kernel: a name in `KERNELS`.

    Returns:
        [B, T, H, d] in the dtype of q.

    Raises:
        ValueError: an unknown kernel or shapes that do not fit.
    """
    if kernel not in KERNELS:
        raise ValueError(f"attention kernel is {kernel!r}; choose one of {', '.join(KERNELS)}")
    if k.shape != v.shape or q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3] or q.shape[2] % k.shape[2]:
        raise ValueError(
            f"q {q.shape}, k {k.shape}, v {v.shape} do not fit [B, T, H, d], [B, T, K, d], [B, T, K, d] with H a "
            "multiple of K"
        )
    if not segment_ids.shape == positions.shape == q.shape[:2]:
        raise ValueError(f"segment_ids {segment_ids.shape} and positions {positions.shape} must be {q.shape[:2]}")
    return KERNELS[kernel](q, k, v, segment_ids, positions)
