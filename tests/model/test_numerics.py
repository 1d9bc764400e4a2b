"""Operations with a gradient of their own against the one that JAX derives from the same formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaagent_x.model import numerics


def plain_norm(x, scale):
    wide = x.astype(jnp.float32)
    normal = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-2)
    return normal.astype(x.dtype) * scale.astype(x.dtype)


def plain_rope(x, places):
    angles = places[..., None, None].astype(jnp.float32) * 100.0 ** (-jnp.arange(4, dtype=jnp.float32) / 4)
    turned = (x[..., :4] + 1j * x[..., 4:]) * jnp.exp(1j * angles)
    return jnp.concatenate([turned.real, turned.imag], -1)


PLACES = np.array([[0, 1, 7], [3, 2, 50]])
TURNS = numerics.rotations(PLACES, 8, 100.0)
CASES = {
    "rms_norm": (lambda x, s: numerics.rms_norm(x, s, 1e-2), plain_norm, [(2, 3, 8), (8,)]),
    "rope": (
        lambda x: numerics.rope(x, TURNS),
        lambda x: plain_rope(x, PLACES),
        [(2, 3, 5, 8)],
    ),
    "swiglu": (numerics.swiglu, lambda gate, up: gate / (1 + jnp.exp(-gate)) * up, [(2, 3, 8), (2, 3, 8)]),
    "linear to heads": (numerics.linear, lambda x, w: jnp.tensordot(x, w, 1), [(2, 3, 8), (8, 4, 5)]),
    "linear from heads": (
        lambda x, w: numerics.linear(x, w, 2),
        lambda x, w: jnp.tensordot(x, w, 2),
        [(2, 3, 4, 5), (4, 5, 8)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_equal_the_plain_form(name):
    ours, plain, shapes = CASES[name]
    rng = np.random.default_rng(0)
    operands = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    weights = rng.normal(size=jax.eval_shape(plain, *operands).shape).astype("float32")

    def run(f):
        def total(*operands):
            out = f(*operands)
            return jnp.sum(weights * out), out

        return jax.value_and_grad(total, tuple(range(len(operands))), has_aux=True)(*operands)

    (_, got), got_grads = run(ours)
    (_, want), want_grads = run(plain)
    for a, b in zip((got, *got_grads), (want, *want_grads), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_gradients_come_in_the_dtype_of_their_operands():
    """bfloat16 activations beside float32 masters: the scale of a norm keeps its own dtype."""
    x, scale = jnp.ones((2, 8), jnp.bfloat16), jnp.ones(8, jnp.float32)
    grads = jax.grad(lambda x, s: jnp.sum(numerics.rms_norm(x, s, 1e-6).astype(jnp.float32)), (0, 1))(x, scale)
    assert [g.dtype for g in grads] == [jnp.bfloat16, jnp.float32]


def test_operands_of_two_dtypes_are_refused():
    with pytest.raises(TypeError, match="bfloat16 and float32"):
        numerics.linear(jnp.ones((2, 8), jnp.bfloat16), jnp.ones((8, 3)))
