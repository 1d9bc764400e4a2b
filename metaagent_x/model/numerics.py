"""The few operations whose precision matters, each written once so that training and decoding cannot differ."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax


def einsum(spec: str, a: Array, b: Array, *, out: jax.typing.DTypeLike | None = None) -> Array:
    """Contracts two operands of one dtype.

    float32 operands are multiplied in full float32 (GPUs would otherwise round them to TF32); bfloat16 operands
    always accumulate in float32, and `out=float32` keeps that sum unrounded.

    Args:
        spec: an einsum specification.
        a: first operand.
        b: second operand, of the same dtype.
        out: dtype of the result; the operands' by default.

    Raises:
        TypeError: the operands differ in dtype, which would promote one of them silently.
    """
    if a.dtype != b.dtype:
        raise TypeError(f"einsum {spec!r} got {a.dtype} and {b.dtype}; cast both to the compute dtype first")
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else lax.Precision.DEFAULT
    return jnp.einsum(spec, a, b, precision=precision, preferred_element_type=out)


def rms_norm(x: Array, scale: Array, eps: float) -> Array:
    """RMS normalisation over the last axis, in the cast order of the published model: float32, cast, then scale."""
    x32 = x.astype(jnp.float32)
    normal = x32 * lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    return normal.astype(x.dtype) * scale.astype(x.dtype)


def rope(x: Array, positions: Array, theta: float) -> Array:
    """Rotates each head by its position, in float32: half-split layout (first half with second half), as published.

    Args:
        x: [..., H, d], d even.
        positions: [...], whole numbers.
        theta: base of the geometric series of wavelengths.
    """
    half = x.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions[..., None, None].astype(jnp.float32) * frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
