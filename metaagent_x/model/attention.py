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

# Queries and keys of a tile at most. On a CPU the scores of one tile should stay in its caches.
TILES = {"cpu": 64}
TILE = 512  # of every other backend
SAVED_NAMES = ("attention_out", "attention_lse")  # what remat "block" keeps
_MASKED = -1e30  # finite, so that no difference of two masked scores is NaN


def tile_size(length: int, largest: int | None = None) -> int:
    """Rows of `length` are cut into the fewest equal tiles of at most `largest`, by default what suits the backend."""
    most = largest or TILES.get(jax.default_backend(), TILE)
    return -(-length // -(-length // most))


def _cut(x: Array, size: int) -> Array:
    """[B, T, ...] -> [n, B, ..., size, d] (or [n, B, size] of [B, T]): one contiguous block per tile, heads first.

    What is short of whole tiles is padded at the right end.
    """
    x = jnp.pad(x, [(0, 0), (0, -x.shape[1] % size)] + [(0, 0)] * (x.ndim - 2))
    x = x.reshape(x.shape[0], -1, size, *x.shape[2:])
    return x.transpose(1, 0, *range(3, x.ndim - 1), 2, *((x.ndim - 1,) if x.ndim > 3 else ()))


def _joined(x: Array, length: int) -> Array:
    """[n, B, K, G, size, d] -> [B, length, K, G, d]: undoes `_cut`."""
    x = x.transpose(1, 0, 4, 2, 3, 5)
    return x.reshape(x.shape[0], -1, *x.shape[3:])[:, :length]


def _visible(segments: tuple[Array, Array], positions: tuple[Array, Array]) -> Array:
    """Of queries and keys, [B, size] each -> bool [B, 1, 1, size, size]: same segment and not later.

    True on the diagonal, so no row is empty.
    """
    same = segments[0][:, :, None] == segments[1][:, None, :]
    return (same & (positions[0][:, :, None] >= positions[1][:, None, :]))[:, None, None]


def _scores(q: Array, k: Array) -> Array:
    """One tile's float32 scores [B, K, G, size, size], not yet masked."""
    return einsum("bkgqd,bksd->bkgqs", q, k, out=jnp.float32) * q.shape[-1] ** -0.5


def _tiled_forward(q: Array, k: Array, v: Array, segments: Array, positions: Array) -> tuple[Array, tuple[Array, ...]]:
    """Online softmax over key tiles (arXiv:2205.14135, 2307.08691): memory grows with T, not with T squared.

    Key tiles right of the diagonal hold only later positions of the same segment and are not visited.
    """

    def query_tile(tile: tuple[Array, ...]) -> tuple[Array, Array]:
        i, q_i, segment, position = tile

        def key_tile(j: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            top, total, mixed = carry
            scores = jnp.where(_visible((segment, segments[j]), (position, positions[j])), _scores(q_i, k[j]), _MASKED)
            new_top = jnp.maximum(top, scores.max(axis=-1, keepdims=True))
            shrink, weights = jnp.exp(top - new_top), jnp.exp(scores - new_top)
            part = einsum("bkgqs,bksd->bkgqd", weights.astype(v.dtype), v[j], out=jnp.float32)
            return new_top, total * shrink + weights.sum(axis=-1, keepdims=True), mixed * shrink + part

        column = (*q_i.shape[:-1], 1)
        start = (jnp.full(column, _MASKED), jnp.zeros(column), jnp.zeros(q_i.shape))
        top, total, mixed = lax.fori_loop(0, i + 1, key_tile, start)
        return (mixed / total).astype(q.dtype), top + jnp.log(total)

    out, lse = lax.map(query_tile, (jnp.arange(q.shape[0]), q, segments, positions))
    out, lse = checkpoint_name(out, SAVED_NAMES[0]), checkpoint_name(lse, SAVED_NAMES[1])
    return out, (q, k, v, segments, positions, out, lse)


def _tiled_backward(saved: tuple[Array, ...], d_out: Array) -> tuple[Array | np.ndarray, ...]:
    """Recomputes each tile's weights from the saved log-sum-exp and adds up the three gradients in float32.

    Scores have keys before queries here, [B, K, s, G, q]: four of the five products then read them as they lie, and the
    fifth gives the queries' gradient transposed, which is small. The other way round a CPU copies every tile twice.
    """
    q, k, v, segments, positions, out, lse = saved
    scale = q.shape[-1] ** -0.5
    # Sum over the row of weight times its own gradient: the softmax's Jacobian needs only this.
    delta = jnp.sum(out.astype(jnp.float32) * d_out.astype(jnp.float32), axis=-1)
    across = k.swapaxes(-1, -2)

    def query_tile(grads: tuple[Array, Array], tile: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        i, q_i, segment, position, lse_i, delta_i, d_out_i = tile

        def key_tile(j: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            dq, dk, dv = carry
            seen = _visible((segment, segments[j]), (position, positions[j]))
            seen = jnp.moveaxis(seen, -1, 2)
            scores = einsum("bksd,bkgqd->bksgq", k[j], q_i, out=jnp.float32) * scale
            weights = jnp.exp(jnp.where(seen, scores, _MASKED) - lse_i[:, :, None])
            d_weights = einsum("bksd,bkgqd->bksgq", v[j], d_out_i, out=jnp.float32)
            d_scores = (weights * (d_weights - delta_i[:, :, None])).astype(q.dtype)
            dq += einsum("bkds,bksgq->bkdgq", across[j], d_scores, out=jnp.float32)
            dk = dk.at[j].add(einsum("bksgq,bkgqd->bksd", d_scores, q_i, out=jnp.float32))
            dv = dv.at[j].add(einsum("bksgq,bkgqd->bksd", weights.astype(v.dtype), d_out_i, out=jnp.float32))
            return dq, dk, dv

        start = jnp.zeros(jnp.moveaxis(q_i, -1, 2).shape)
        dq, dk, dv = lax.fori_loop(0, i + 1, key_tile, (start, *grads))
        return (dk, dv), jnp.moveaxis(dq * scale, 2, -1).astype(q.dtype)

    start = (jnp.zeros(k.shape), jnp.zeros(v.shape))
    tiles = (jnp.arange(q.shape[0]), q, segments, positions, lse[..., 0], delta, d_out)
    (dk, dv), dq = lax.scan(query_tile, start, tiles)
    no_gradient = tuple(np.zeros(x.shape, jax.dtypes.float0) for x in (segments, positions))
    return dq, (dk * scale).astype(k.dtype), dv.astype(v.dtype), *no_gradient


@jax.custom_vjp
def _tiled(q: Array, k: Array, v: Array, segments: Array, positions: Array) -> Array:
    """q [n, B, K, G, size, d], k and v [n, B, K, size, d], segments and positions [n, B, size] -> like q."""
    return _tiled_forward(q, k, v, segments, positions)[0]


_tiled.defvjp(_tiled_forward, _tiled_backward)


def xla_attention(
    q: Array, k: Array, v: Array, segment_ids: Array, positions: Array, *, tile: int | None = None
) -> Array:
    """The reference kernel: any device, any length, by tiles of `tile_size(T, tile)`. See `attention`."""
    length, size = q.shape[1], tile_size(q.shape[1], tile)
    grouped = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[-1])
    # Padding joins segment 0 at the right end; no real token sees it, and its outputs are cut off.
    cut = (_cut(x, size) for x in (grouped, k, v, segment_ids, positions))
    return _joined(_tiled(*cut), length).reshape(q.shape)


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
