"""The few operations whose precision matters, each written once so that training and decoding cannot differ."""

from __future__ import annotations

from collections.abc import Sequence

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
    return jnp.einsum(spec, a, b, precision=_precision(a), preferred_element_type=out)


def _precision(x: Array) -> lax.Precision:
    return lax.Precision.HIGHEST if x.dtype == jnp.float32 else lax.Precision.DEFAULT


def _contract(a: Array, b: Array, a_axes: Sequence[int], b_axes: Sequence[int]) -> Array:
    if a.dtype != b.dtype:
        raise TypeError(f"a product got {a.dtype} and {b.dtype}; cast both to the compute dtype first")
    return lax.dot_general(a, b, ((tuple(a_axes), tuple(b_axes)), ((), ())), precision=_precision(a))


def rms_norm(x: Array, scale: Array, eps: float) -> Array:
    """RMS normalisation over the last axis, in the cast order of the published model: float32, cast, then scale.

    The gradient keeps x and recomputes the rest: left to itself, JAX keeps four arrays of that size.
    """
    return _rms_norm(x, scale, eps)


def _rms_norm_value(x: Array, scale: Array, eps: float) -> Array:
    return _normal(x, eps)[0].astype(x.dtype) * scale.astype(x.dtype)


def _normal(x: Array, eps: float) -> tuple[Array, Array]:
    x32 = x.astype(jnp.float32)
    rate = lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    return x32 * rate, rate


def _rms_norm_forward(x: Array, scale: Array, eps: float) -> tuple[Array, tuple[Array, Array]]:
    return _rms_norm_value(x, scale, eps), (x, scale)


def _rms_norm_backward(eps: float, saved: tuple[Array, Array], d_out: Array) -> tuple[Array, Array]:
    x, scale = saved
    normal, rate = _normal(x, eps)
    d_out = d_out.astype(jnp.float32)
    d_normal = d_out * scale.astype(x.dtype).astype(jnp.float32)
    d_x = rate * (d_normal - normal * jnp.mean(d_normal * normal, axis=-1, keepdims=True))
    d_scale = jnp.sum(d_out * normal.astype(x.dtype).astype(jnp.float32), axis=tuple(range(x.ndim - 1)))
    return d_x.astype(x.dtype), d_scale.astype(scale.dtype)


_rms_norm = jax.custom_vjp(_rms_norm_value, nondiff_argnums=(2,))
_rms_norm.defvjp(_rms_norm_forward, _rms_norm_backward)


def rotations(positions: Array, width: int, theta: float) -> tuple[Array, Array]:
    """Cosines and sines by which `rope` turns heads, for all layers at once.

    Args:
        positions: [...], whole numbers.
        width: of a head, even.
        theta: base of the geometric series of wavelengths.

    Returns:
        Two of [..., 1, width / 2], float32.
    """
    half = width // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions[..., None, None].astype(jnp.float32) * frequencies
    return jnp.cos(angles), jnp.sin(angles)


@jax.custom_vjp
def rope(x: Array, turns: tuple[Array, Array]) -> Array:
    """Rotates each head by its position, in float32: half-split layout (first half with second half), as published.

    The gradient is the rotation back.

    Args:
        x: [..., H, d].
        turns: of `rotations`; not differentiated.
    """
    return _rotate(x, *turns)


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def _rope_forward(x: Array, turns: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
    return rope(x, turns), turns


def _rope_backward(turns: tuple[Array, Array], d_out: Array) -> tuple[Array, tuple[Array, Array]]:
    cos, sin = turns
    return _rotate(d_out, cos, -sin), (jnp.zeros_like(cos), jnp.zeros_like(sin))


rope.defvjp(_rope_forward, _rope_backward)


@jax.custom_vjp
def swiglu(gate: Array, up: Array) -> Array:
    """silu(gate) * up, in the operands' dtype. The gradient keeps the two operands and nothing else."""
    return jax.nn.silu(gate) * up


def _swiglu_forward(gate: Array, up: Array) -> tuple[Array, tuple[Array, Array]]:
    return swiglu(gate, up), (gate, up)


def _swiglu_backward(saved: tuple[Array, Array], d_out: Array) -> tuple[Array, Array]:
    gate, up = saved
    share = jax.nn.sigmoid(gate)
    silu = gate * share
    # As arrays of their own: merged into the products that read them, exponentials would be computed several times.
    return lax.optimization_barrier((d_out * up * (share + silu * (1 - share)), d_out * silu))


swiglu.defvjp(_swiglu_forward, _swiglu_backward)


def linear(x: Array, weight: Array, axes: int = 1) -> Array:
    """Sums the last `axes` axes of x over the first ones of weight: [..., *in] and [*in, *out] -> [..., *out].

    Same value as `einsum`. The weight's gradient is written as x^T d_out: JAX's own is (d_out^T x)^T, for which the CPU
    compiler transposes d_out, together with everything elementwise that leads to it.

    Raises:
        TypeError: see `einsum`.
    """
    return _linear(x, weight, axes)


def _linear_value(x: Array, weight: Array, axes: int) -> Array:
    return _contract(x, weight, range(x.ndim - axes, x.ndim), range(axes))


def _linear_forward(x: Array, weight: Array, axes: int) -> tuple[Array, tuple[Array, Array]]:
    return _linear_value(x, weight, axes), (x, weight)


def _linear_backward(axes: int, saved: tuple[Array, Array], d_out: Array) -> tuple[Array, Array]:
    x, weight = saved
    leading, outs = x.ndim - axes, weight.ndim - axes
    d_x = _contract(d_out, weight, range(d_out.ndim - outs, d_out.ndim), range(axes, weight.ndim))
    return d_x, _contract(x, d_out, range(leading), range(leading))


_linear = jax.custom_vjp(_linear_value, nondiff_argnums=(2,))
_linear.defvjp(_linear_forward, _linear_backward)
