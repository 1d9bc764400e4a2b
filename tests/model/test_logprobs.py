"""Log-probs, entropies and their gradients against plain log-softmax; precision; memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from qwen3_reference import reference_logprobs

from metaagent_x.model import logprobs, program, sharding
from metaagent_x.model.parameters import Qwen3Config

token_logprobs = jax.jit(
    logprobs.token_logprobs, static_argnums=1, static_argnames=("temperature", "chunk", "with_entropy")
)


def make(vocab, dim, shape, *, tied=True, dtype="float32", scale=1.0, seed=0):
    """(config, params, hidden, targets) with logits of standard deviation `scale`."""
    rng = np.random.default_rng(seed)
    config = Qwen3Config(vocab, dim, 1, 1, 1, 2, 2, tie_embeddings=tied, compute_dtype=dtype)
    draw = lambda *s: rng.normal(size=s).astype("float32")  # noqa: E731
    params = {"embed": draw(vocab, dim) * scale * dim**-0.5}
    if not tied:
        params["head"] = draw(vocab, dim) * scale * dim**-0.5
    hidden = jnp.asarray(draw(*shape, dim), config.dtype)
    return config, jax.tree.map(jnp.asarray, params), hidden, rng.integers(0, vocab, shape).astype(np.int32)


def naive(params, config, hidden, targets, temperature):
    logits = hidden @ logprobs.head_weight(params, config).T / temperature
    logp = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(logp, targets[..., None], -1)[..., 0], -jnp.sum(jnp.exp(logp) * logp, -1)


@pytest.mark.parametrize(
    ("shape", "chunk", "tied", "temperature"),
    [((7,), 3, True, 1.0), ((4, 5), 8, False, 0.6), ((3, 2, 3), 5, True, 1.7), ((5, 1), 2, False, 1.0),
     ((4, 5), 20, True, 0.6), ((7,), 9, False, 1.0)],
)  # fmt: skip
def test_values_and_gradients_equal_log_softmax(shape, chunk, tied, temperature, monkeypatch):
    """In several chunks, or in one that is kept and goes by five parts of the vocabulary."""
    monkeypatch.setattr(logprobs, "PART", 10)
    config, params, hidden, targets = make(50, 16, shape, tied=tied, scale=2.0)
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, *shape)).astype("float32")

    def chunked(params, hidden):
        logp, entropy = logprobs.token_logprobs(
            params, config, hidden, targets, temperature=temperature, chunk=chunk, with_entropy=True
        )
        return jnp.sum(a * logp + b * entropy), (logp, entropy)

    def plain(params, hidden):
        logp, entropy = naive(params, config, hidden, targets, temperature)
        return jnp.sum(a * logp + b * entropy), (logp, entropy)

    (_, got), got_grads = jax.jit(jax.value_and_grad(chunked, (0, 1), has_aux=True))(params, hidden)
    (_, want), want_grads = jax.jit(jax.value_and_grad(plain, (0, 1), has_aux=True))(params, hidden)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5), got, want)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=5e-5), got_grads, want_grads)
    assert got[0].shape == shape and got[0].dtype == jnp.float32


def test_head_logits_are_what_token_logprobs_scores():
    for tied in (True, False):
        config, params, hidden, targets = make(50, 16, (9,), tied=tied)
        logits = logprobs.head_logits(params, config, hidden)
        want = np.take_along_axis(reference_logprobs(logits), targets[:, None], 1)[:, 0]
        np.testing.assert_allclose(logprobs.token_logprobs(params, config, hidden, targets), want, atol=1e-5)


@pytest.mark.fault("F085")
@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_log_softmax_and_temperature_are_float32(temperature):
    """In bfloat16 the tail is off by up to 0.1 nat (genlm/genlm-backend#66, radixark/miles#1554)."""
    config, params, hidden, targets = make(151_936, 8, (16,), dtype="bfloat16", scale=3.0)
    weight = params["embed"].astype(jnp.bfloat16)
    exact = np.asarray(hidden, np.float64) @ np.asarray(weight, np.float64).T
    logp, entropy = token_logprobs(params, config, hidden, targets, temperature=temperature, chunk=8, with_entropy=True)
    want = reference_logprobs(exact / temperature)
    np.testing.assert_allclose(logp, np.take_along_axis(want, targets[:, None], 1)[:, 0], atol=1e-4)
    np.testing.assert_allclose(entropy, -np.sum(np.exp(want) * want, -1), atol=1e-3)
    rounded = jax.nn.log_softmax(jnp.asarray(exact, jnp.bfloat16) / temperature)
    assert np.abs(np.asarray(rounded, np.float64) - want).max() > 0.03  # what the test would see otherwise


@pytest.mark.fault("F086")
@pytest.mark.parametrize("tied", [True, False])
def test_head_accumulates_in_float32_and_leaves_the_weights_alone(tied):
    """A head that adds up in bfloat16 differs by nats on rare tokens (pytorch/torchtitan#3667)."""
    config, params, hidden, targets = make(2048, 1024, (12,), tied=tied, dtype="bfloat16", scale=4.0)
    weight = np.asarray(logprobs.head_weight(params, config).astype(jnp.bfloat16), np.float64)
    exact = np.asarray(hidden, np.float64) @ weight.T
    got = jax.jit(logprobs.head_logits, static_argnums=1)(params, config, hidden)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, exact, atol=1e-3)
    scored = token_logprobs(params, config, hidden, targets, chunk=5)
    np.testing.assert_allclose(
        scored, np.take_along_axis(reference_logprobs(exact), targets[:, None], 1)[:, 0], atol=1e-3
    )
    assert np.abs(np.asarray(jnp.asarray(exact, jnp.bfloat16), np.float64) - exact).max() > 1e-2
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(params))


@pytest.mark.fault("F086")
def test_the_weight_gradient_adds_up_in_float32_over_chunks():
    """Many chunks that each give 1/256 of the sum: a bfloat16 sum stops growing long before the end."""
    config, params, _, _ = make(4, 2, (1,), dtype="bfloat16")
    hidden, targets = jnp.ones((2048, 2), jnp.bfloat16), np.zeros(2048, np.int32)

    def total(params, chunk):
        return jnp.sum(logprobs.token_logprobs(params, config, hidden, targets, chunk=chunk))

    many, one = (jax.jit(jax.grad(total), static_argnums=1)(params, chunk)["embed"] for chunk in (2, 2048))
    assert many.dtype == jnp.float32
    np.testing.assert_allclose(many, one, rtol=1e-4)


def test_the_gradient_of_an_entropy_that_nothing_depends_on_costs_nothing():
    config, params, hidden, targets = make(50, 16, (7,))

    def arrays(part, chunk):
        def total(params):
            logp, entropy = logprobs.token_logprobs(params, config, hidden, targets, chunk=chunk, with_entropy=True)
            return jnp.sum(logp) + part * jnp.sum(entropy if part else jax.lax.stop_gradient(entropy))

        return str(jax.make_jaxpr(jax.grad(total))(params)).count(":f32[1,")

    for chunk in (3, 7):
        assert arrays(0, chunk) < arrays(1, chunk)


def test_memory_follows_the_chunk_not_the_batch():
    config, params, hidden, targets = make(4096, 8, (4, 512))

    def total(params, hidden):
        logp, entropy = logprobs.token_logprobs(params, config, hidden, targets, chunk=64, with_entropy=True)
        return jnp.sum(logp + entropy)

    run = jax.jit(jax.grad(total, (0, 1))).lower(params, hidden).compile()
    whole = 4 * targets.size * config.vocab_size
    assert run.memory_analysis().temp_size_in_bytes < whole / 4


@pytest.mark.parametrize(("fsdp", "tensor"), [pytest.param(8, 1, marks=pytest.mark.slow), (2, 4)])
def test_devices_exchange_the_matrix_once_and_not_in_every_chunk(fsdp, tensor):
    """Otherwise the head alone sends more than all layers: 128 times the gradient of the matrix for rows of 16,384."""
    config, params, hidden, targets = make(64, 16, (8, 32))
    mesh = sharding.make_mesh(fsdp, tensor)

    def total(params, hidden, targets):
        logp, entropy = logprobs.token_logprobs(params, config, hidden, targets, chunk=32, with_entropy=True)
        return jnp.sum(logp * jnp.cos(targets)) + jnp.sum(entropy)

    grad = jax.grad(total, (0, 1))
    want = jax.jit(grad)(params, hidden, targets)
    table = NamedSharding(mesh, PartitionSpec("tensor", "fsdp"))
    placed = {"embed": jax.device_put(params["embed"], table)}
    rows = [jax.device_put(x, sharding.batch_sharding(mesh)) for x in (hidden, targets)]
    with jax.set_mesh(mesh):
        run = jax.jit(grad, out_shardings=({"embed": table}, rows[0].sharding)).lower(placed, *rows).compile()
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), run(placed, *rows), want)
    sent = [o for o in program.operations(run.as_text()) if o.kind != "dot"]
    whole = 4 * params["embed"].size // tensor
    assert sum(o.times * o.amount for o in sent if o.group == fsdp) <= 3 * whole  # two gathers, one sum
    if tensor == 1:
        assert not [o for o in sent if o.times > 1]


def test_bad_requests_are_named():
    config, params, hidden, targets = make(8, 4, (3,))
    for change, word in (({"temperature": 0.0}, "temperature is 0.0"), ({"chunk": 0}, "chunk is 0")):
        with pytest.raises(ValueError, match=word):
            logprobs.token_logprobs(params, config, hidden, targets, **change)
    with pytest.raises(ValueError, match=r"targets of shape \(3,\), got \(2,\)"):
        logprobs.token_logprobs(params, config, hidden, targets[:2])
