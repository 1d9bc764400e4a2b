"""Attention by cuDNN's fused kernel over packed rows: NVIDIA GPUs from Hopper on, 16-bit floats.

The public `jax.nn.dot_product_attention` knows no segments. The private function that does
(`jax._src.cudnn.fused_attention_stablehlo.dot_product_attention`) is not used either, only the two primitives below it:

- Before 0.12 it scales the offsets of keys by the stride of queries, and reads wrong keys where several query heads
  share one (jax-ml/jax#39521; `_fix_seqlen_offsets`). Offsets are scaled here, right in every version.
- Its residuals have no names, so that remat "block" would run the forward kernel again. Here they have.

On a mesh every device runs the kernel on its own rows and heads.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax._src.cudnn import fused_attention_stablehlo as fused
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

# Segments that a row may hold. The kernel keeps float32 statistics [MAX_SEGMENTS, H, T] of every row and layer: 67 MB
# for 32 heads at 16,384 tokens, half of what the output takes.
MAX_SEGMENTS = 32
MAX_HEAD_DIM = 256
NAMES = ("attention_out", "attention_lse")  # what remat "block" keeps, as `attention.SAVED_NAMES`
# jax 0.12 also takes a function on the scores.
_NO_SCORE_FUNCTION = {
    name: None
    for name in ("score_mod_name", "score_mod_jaxpr")
    if name in inspect.signature(fused._dot_product_attention_fwd_cuda_lowering).parameters
}


def unsupported(head_dim: int, dtype: jax.typing.DTypeLike) -> str:
    """Why the kernel has no form for such heads, or ""."""
    if (name := jnp.dtype(dtype).name) not in ("bfloat16", "float16"):
        return f"computes in 16-bit floats, not in {name}"
    if head_dim % 8 or head_dim > MAX_HEAD_DIM:
        return f"needs a head_dim that is a multiple of 8 and at most {MAX_HEAD_DIM}, not {head_dim}"
    return ""


def missing() -> str:
    """Why the devices of this process cannot run the kernel, or ""."""
    device = jax.local_devices()[0]
    if device.platform != "gpu" or "cuda" not in device.client.platform_version:
        return f"needs an NVIDIA GPU; this process computes on {device.platform}"
    if float(device.compute_capability) < 9:
        return f"needs compute capability 9.0 (Hopper) for packed rows; {device.device_kind} has "\
            f"{device.compute_capability}"  # fmt: skip
    try:
        fused.check_cudnn_version()
    except RuntimeError as error:
        return f"needs cuDNN: {error}"
    return ""


def segment_table(segment_ids: Array, most: int) -> tuple[Array, Array, Array]:
    """Where the segments of every row lie.

    Args:
        segment_ids: [B, T], in a row numbered 1, 2, ... from left to right, each in one piece; 0 is padding.
        most: the columns of the table.

    Returns:
        lengths [B, most] int32, 0 for segments that a row does not have; starts [B, most] int32; legal [B] bool: the
        row is numbered so and has at most `most` segments. The table of another row means nothing.
    """
    before = jnp.pad(segment_ids, ((0, 0), (1, 0)))[:, :-1]
    begins = (segment_ids != before) & (segment_ids > 0)
    numbered = jnp.where(segment_ids > 0, jnp.cumsum(begins, axis=1), 0)
    legal = jnp.all(numbered == segment_ids, axis=1) & (jnp.max(segment_ids, axis=1, initial=0) <= most)
    mine = segment_ids[:, None, :] == jnp.arange(1, most + 1)[:, None]  # [B, most, T]
    lengths = jnp.sum(mine, axis=2, dtype=jnp.int32)
    return lengths, jnp.argmax(mine, axis=2).astype(jnp.int32), legal


def ragged(lengths: Array, starts: Array, row: int) -> tuple[Array, Array]:
    """The table as cuDNN reads it: segments of all rows one after the other, those that do not exist at the end.

    Args:
        lengths: [B, M] of `segment_table`.
        starts: [B, M] of `segment_table`.
        row: T.

    Returns:
        lengths [B, M] int32 and offsets [B, M + 1] int32, to be read as if flat. Offsets are tokens from the first row
        on, B * T where no segment is.
    """
    count, most = lengths.shape
    exists = (lengths > 0).ravel()
    offsets = (starts + row * jnp.arange(count, dtype=jnp.int32)[:, None]).ravel()
    offsets = jnp.where(exists, offsets, count * row)
    order = jnp.argsort(offsets, stable=True)
    offsets = jnp.pad(offsets[order], (0, count), constant_values=count * row)
    return jnp.where(exists, lengths.ravel(), 0)[order].reshape(count, most), offsets.reshape(count, most + 1)


def cudnn_attention(q: Array, k: Array, v: Array, segment_ids: Array, positions: Array) -> Array:
    """The kernel "cudnn" of `attention.attention`, which says what goes in and out. Padding gives 0, without gradient.

    Rows must be those of `learner.packing.pack`: segments numbered 1, 2, ... from left to right, `MAX_SEGMENTS` of them
    at most. The output of any other row is NaN, which no update gets past.

    Raises:
        ValueError: a dtype, a head width or a size that the kernel has no form for.
    """
    del positions  # they rise within a segment, so that later in the row is later in the segment
    if why := unsupported(q.shape[-1], q.dtype):
        raise ValueError(f"attention kernel 'cudnn' {why}; use 'xla'")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"attention kernel 'cudnn' needs one dtype, not q {q.dtype}, k {k.dtype}, v {v.dtype}")
    real = (segment_ids > 0)[..., None, None]
    # cuDNN writes neither output nor gradient of padding: what stands there is chosen here, in both directions.
    q, k, v = (jnp.where(real, x, 0) for x in (q, k, v))
    k, v = (_shareable(x) for x in (k, v))
    out = _attend(q, k, v, segment_ids)
    legal = segment_table(segment_ids, MAX_SEGMENTS)[2][:, None, None, None]
    return jnp.where(real, jnp.where(legal, out, jnp.nan), 0).astype(q.dtype)


def _axes(rows: int) -> tuple[str | None, str | None, dict[str, int]]:
    """Mesh axes of rows and heads inside `jax.set_mesh`, and the devices on each axis that is open here."""
    from metaagent_x.model import sharding  # not at the top: it knows the network, which knows its kernels

    if not (free := sharding.open_axes()):
        return None, None, free
    return sharding.RULES["batch"] if sharding.batch_parts(rows) > 1 else None, sharding.RULES["heads"], free


def _shareable(x: Array) -> Array:
    """Keys or values with fewer heads than devices split them: every device gets the one that its queries use."""
    _, heads, free = _axes(x.shape[0])
    parts = free.get(heads or "", 1)
    return x if x.shape[2] % parts == 0 else jnp.repeat(x, parts // x.shape[2], axis=2)


def _on_mesh(call: Callable[..., Any], args: tuple[Array, ...], outs: str) -> Any:
    """Runs `call` on every device's own rows and heads. `outs`: "a" for [B, T, H, d], "s" for statistics."""
    batch, heads, free = _axes(args[0].shape[0])
    if heads is None:
        return call(*args)
    spec = {"a": PartitionSpec(batch, None, heads, None), "s": PartitionSpec(batch, heads, None)}
    kinds = ["a" if x.ndim == 4 else "s" if x.ndim == 3 else "" for x in args]
    ins = tuple(spec.get(kind, PartitionSpec(batch, None)) for kind in kinds)
    outs_of = tuple(spec[kind] for kind in outs)
    return jax.shard_map(call, in_specs=ins, out_specs=outs_of, axis_names=frozenset(free), check_vma=False)(*args)


def _operands(q: Array, k: Array, v: Array, segment_ids: Array) -> tuple[list[Array], dict[str, Any]]:
    """What both primitives take first, and their settings."""
    rows, length, heads, width = q.shape
    if (size := rows * length * heads * width) >= 2**31:
        raise ValueError(
            f"attention kernel 'cudnn' counts in int32, and the queries of a device, {q.shape}, have {size} values; "
            "lower learner.micro_rows"
        )
    lengths, offsets = ragged(*segment_table(segment_ids, MAX_SEGMENTS)[:2], length)
    none = jnp.zeros(0, q.dtype)
    key_offsets = offsets * (k.shape[2] * width)
    operands = [q, k, v, none, lengths, lengths, offsets * (heads * width), key_offsets, none, none]
    settings = dict(
        scale=width**-0.5, seed=0, dropout_rate=0.0, variadic_args=(False, False), sliding_window_length=None,
        mask_type=fused.MaskType.PADDING_CAUSAL, layout=fused.AttentionLayout.BTNH.value, **_NO_SCORE_FUNCTION,
    )  # fmt: skip
    return operands, settings


def _forward(q: Array, k: Array, v: Array, segment_ids: Array, *, training: bool) -> tuple[Array, ...]:
    """(output [B, T, H, d],), and with `training` statistics [B * MAX_SEGMENTS, H, T] float32."""
    operands, settings = _operands(q, k, v, segment_ids)
    return tuple(fused._dot_product_attention_fwd_p.bind(*operands, is_training=training, **settings))


def _backward(
    q: Array, k: Array, v: Array, segment_ids: Array, statistics: Array, out: Array, d_out: Array
) -> tuple[Array, ...]:
    operands, settings = _operands(q, k, v, segment_ids)
    return tuple(fused._dot_product_attention_bwd_p.bind(*operands, statistics, out, d_out, **settings))


@jax.custom_vjp
def _attend(q: Array, k: Array, v: Array, segment_ids: Array) -> Array:
    return _on_mesh(functools.partial(_forward, training=False), (q, k, v, segment_ids), "a")[0]


def _attend_forward(q: Array, k: Array, v: Array, segment_ids: Array) -> tuple[Array, tuple[Array, ...]]:
    out, statistics = _on_mesh(functools.partial(_forward, training=True), (q, k, v, segment_ids), "as")
    out, statistics = checkpoint_name(out, NAMES[0]), checkpoint_name(statistics, NAMES[1])
    return out, (q, k, v, segment_ids, statistics, out)


def _attend_backward(saved: tuple[Array, ...], d_out: Array) -> tuple[Array | np.ndarray, ...]:
    grads = _on_mesh(_backward, (*saved, d_out.astype(saved[0].dtype)), "aaa")
    return *grads, np.zeros(saved[3].shape, jax.dtypes.float0)


_attend.defvjp(_attend_forward, _attend_backward)
