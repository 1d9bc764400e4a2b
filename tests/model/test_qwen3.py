"""The forward pass: parity with a second implementation, packing, padding, precision of weights and updates."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from qwen3_reference import random_params, reference_hidden, reference_logprobs

from metaagent_x import config as settings
from metaagent_x.model import attention, logprobs, numerics, qwen3

forward = jax.jit(qwen3.forward, static_argnums=1)


def row(*lengths, total=None, vocab=96, seed=0):
    """A packed row [1, T] of random sequences: tokens, positions, segment ids; padded on the right to `total`."""
    rng = np.random.default_rng(seed)
    total = total or sum(lengths)
    tokens, positions, segments = (np.zeros((1, total), np.int32) for _ in range(3))
    start = 0
    for i, n in enumerate(lengths):
        tokens[0, start : start + n] = rng.integers(0, vocab, n)
        positions[0, start : start + n] = np.arange(n)
        segments[0, start : start + n] = i + 1
        start += n
    return tokens, positions, segments


@pytest.mark.parametrize("kv_heads", [2, 8])
def test_equals_an_independent_implementation(config, kv_heads):
    config = dataclasses.replace(config, num_kv_heads=kv_heads, rope_theta=1e4)
    params = random_params(config, seed=kv_heads)
    tokens, positions, segments = row(11)
    hidden = forward(params, config, tokens, positions, segments)
    np.testing.assert_allclose(hidden[0], reference_hidden(params, config, tokens[0]), atol=2e-5)


def test_positions_reach_the_rotation(config, params):
    """Rotary scores depend on differences only, so unevenly spaced positions must change the result."""
    tokens, positions, segments = row(9)
    base = forward(params, config, tokens, positions, segments)
    np.testing.assert_allclose(forward(params, config, tokens, positions + 100, segments), base, atol=5e-5)
    assert np.abs(forward(params, config, tokens, positions * 3, segments) - base).max() > 1e-2


@pytest.mark.parametrize("unroll", [2, 3])
def test_layers_unrolled_and_rotations_made_before_give_the_same_numbers(config, unroll):
    """Three layers: two and one left over, or all of them in one step."""
    config = dataclasses.replace(config, num_layers=3)
    params, (tokens, positions, segments) = random_params(config, seed=1), row(7, 5)
    turns = numerics.rotations(jnp.asarray(positions), config.head_dim, config.rope_theta)

    def loss(params, config, turns):
        return jnp.sum(jnp.sin(qwen3.forward(params, config, tokens, positions, segments, turns=turns)))

    run = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    want, want_grads = run(params, config, None)
    got, grads = run(params, dataclasses.replace(config, unroll=unroll), turns)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), grads, want_grads)


def test_packed_rows_equal_separate_rows(config, params):
    lengths = (7, 1, 12, 5)
    tokens, positions, segments = row(*lengths, total=32)
    apart = [np.zeros((4, 32), np.int32) for _ in range(3)]
    for i, n in enumerate(lengths):
        for whole, source in zip(apart, (tokens, positions, segments), strict=True):
            whole[i, :n] = source[segments == i + 1]
    packed, alone = (forward(params, config, *batch) for batch in ((tokens, positions, segments), apart))
    for i, n in enumerate(lengths):
        np.testing.assert_allclose(packed[segments == i + 1], alone[i, :n], atol=1e-5)


def test_padding_changes_nothing_and_stays_finite(config, params):
    tokens, positions, segments = row(9)
    want = forward(params, config, tokens, positions, segments)
    for pad_id in (0, 5, 95):
        padded, places, ids = row(9, total=32)
        padded[:, 9:] = pad_id
        hidden = forward(params, config, padded, places, ids)
        np.testing.assert_allclose(hidden[:, :9], want, atol=1e-5)
        assert np.isfinite(hidden).all()


@pytest.mark.fault("F073")
def test_left_padding_changes_no_score(config, params):
    """The same row must score the same behind any padding (huggingface/trl#6800, CarperAI/trlx#509)."""
    tokens, positions, segments = row(10)
    cases = [(pads, pad_id) for pads in (0, 1, 5, 8) for pad_id in (0, 3)]
    batch = [np.concatenate([np.pad(x, ((0, 0), (n, 8 - n))) for n, _ in cases]) for x in (tokens, positions, segments)]
    for r, (pads, pad_id) in enumerate(cases):
        batch[0][r, batch[2][r] == 0] = pad_id
        assert batch[1][r, pads] == 0  # the first real token
    hidden = forward(params, config, *batch)
    targets = np.roll(batch[0], -1, axis=1)
    scores = np.asarray(jax.jit(logprobs.token_logprobs, static_argnums=1)(params, config, hidden, targets))
    want = reference_logprobs(reference_hidden(params, config, tokens[0]) @ np.asarray(params["embed"], np.float64).T)
    want = want[np.arange(9), tokens[0, 1:]]
    for r, (pads, _) in enumerate(cases):
        np.testing.assert_allclose(scores[r, pads : pads + 9], want, atol=1e-5)


def loss(params, config, tokens, positions, segments):
    hidden = qwen3.forward(params, config, tokens, positions, segments)
    return -jnp.mean(logprobs.token_logprobs(params, config, hidden[:, :-1], tokens[:, 1:]))


def squared(params, config, *batch):
    return jnp.sum(qwen3.forward(params, config, *batch) ** 2)


def test_each_remat_policy_keeps_what_it_says(config, params):
    """That the numbers stay the same is tested with the meshes, where one runs with remat and one without."""

    def kept(remat):
        chosen = dataclasses.replace(config, remat=remat)
        backward = jax.eval_shape(lambda p: jax.vjp(lambda p: squared(p, chosen, *row(64)), p)[1], params)
        return sum(x.size for x in jax.tree.leaves(backward))

    out = config.num_layers * 64 * config.num_heads * config.head_dim
    assert kept("block") - kept("full") == out + config.num_layers * 64 * config.num_heads  # and the log-sum-exp
    assert kept("none") - kept("block") > 4 * out


def test_remat_block_never_runs_attention_twice(config, params, monkeypatch):
    monkeypatch.setitem(attention.KERNELS, "xla", functools.partial(attention.xla_attention, tile=16))

    def loops(remat):
        chosen = dataclasses.replace(config, remat=remat)
        return str(jax.make_jaxpr(lambda p: jax.grad(squared)(p, chosen, *row(40)))(params)).count("while[")

    assert loops("block") == loops("none") < loops("full")


@pytest.mark.fault("F090")
def test_masters_gradients_and_moments_are_float32_whatever_the_compute_dtype(config):
    """The dtype that layers run in must not leak into what is learned (mosaicml/llm-foundry#1734)."""
    low = dataclasses.replace(config, compute_dtype="bfloat16")
    params = qwen3.init(low, jax.random.key(0))
    grads = jax.eval_shape(jax.grad(lambda p: loss(p, low, *row(12))), params)
    moments = [x for x in jax.tree.leaves(optax.adamw(1e-3).init(params)) if x.ndim]
    for leaf in (*jax.tree.leaves(params), *jax.tree.leaves(grads), *moments):
        assert leaf.dtype == jnp.float32
    assert len(moments) == 2 * len(jax.tree.leaves(params))
    # A checkpoint stored in bfloat16 trains from float32 masters of the same values.
    stored = qwen3.cast(params, jnp.bfloat16)
    masters = qwen3.cast(stored, jnp.float32)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(masters))
    jax.tree.map(np.testing.assert_array_equal, qwen3.cast(masters, jnp.bfloat16), stored)


@pytest.mark.fault("F090")
def test_layers_compute_in_bfloat16_when_asked(config, params):
    low = dataclasses.replace(config, compute_dtype="bfloat16")
    tokens, positions, segments = row(12)
    hidden = forward(params, low, tokens, positions, segments)
    assert hidden.dtype == jnp.bfloat16
    text = str(jax.make_jaxpr(lambda p: qwen3.forward(p, low, tokens, positions, segments))(params))
    results = [line.split(":", 1)[1].split()[0] for line in text.splitlines() if "= dot_general" in line]
    assert len(results) == 9  # q, k, v, o, gate, up, down, scores, mix
    assert sum(r.startswith("bf16") for r in results) == 7  # scores and mix add up in float32
    exact = forward(params, config, tokens, positions, segments)
    assert 1e-4 < np.abs(np.asarray(hidden, np.float32) - exact).max() < 0.2


@pytest.mark.fault("F089")
@pytest.mark.parametrize("start", [0.02, 0.3])
def test_a_thousand_updates_of_a_millionth_move_the_weights(config, start):
    """bfloat16 weights would not move at all at this learning rate (areal-project/AReaL#1634)."""
    low = dataclasses.replace(config, compute_dtype="bfloat16")
    params = jax.tree.map(lambda x: jnp.full(x.shape, start, x.dtype), qwen3.abstract_params(low)[0])
    optimizer = optax.adamw(1e-6, weight_decay=0.0)

    def update(_, carry):
        params, state = carry
        grads = jax.tree.map(lambda x: jnp.full_like(x, 0.1), params)  # Adam turns it into one learning rate
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    moved, _ = jax.jit(lambda c: jax.lax.fori_loop(0, 1000, update, c))((params, optimizer.init(params)))
    for leaf in jax.tree.leaves(moved):
        np.testing.assert_allclose(leaf, start - 1e-3, atol=2e-5)
    stuck = jnp.asarray(start, jnp.bfloat16) - jnp.asarray(1e-6, jnp.bfloat16)
    assert stuck == jnp.asarray(start, jnp.bfloat16)  # what the masters are for


@pytest.mark.fault("F088")
def test_no_two_layers_or_parameters_share_their_noise(config):
    """Drawing stacked layers from one key by mistake gives equal layers (jax-ml/jax#21232)."""
    drawn = qwen3.init(dataclasses.replace(config, tie_embeddings=False), jax.random.key(3))
    parts = [np.asarray(drawn["embed"]).ravel(), np.asarray(drawn["head"]).ravel()]
    parts += [np.asarray(layer).ravel() for x in drawn["layers"].values() if x.ndim > 2 for layer in x]
    assert len(parts) == 2 + 7 * config.num_layers
    for i, a in enumerate(parts):
        for b in parts[:i]:
            n = min(a.size, b.size)
            assert abs(np.corrcoef(a[:n], b[:n])[0, 1]) < 0.2


def test_settings_become_a_config():
    model = settings.base().model
    config = qwen3.Qwen3Config.from_settings(model)
    assert (config.num_layers, config.head_dim, config.compute_dtype) == (36, 128, "bfloat16")
    model.head_dims = 64
    with pytest.raises(ValueError, match=r"model\.head_dims is not a setting"):
        qwen3.Qwen3Config.from_settings(model)


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("num_layers", 0, "num_layers is 0"),
        ("num_layers", 2.5, "num_layers is 2.5"),
        ("num_kv_heads", 3, "not a multiple of model.num_kv_heads 3"),
        ("head_dim", 15, "even"),
        ("rms_norm_eps", 0.0, "rms_norm_eps"),
        ("compute_dtype", "float16", "float32, bfloat16"),
        ("attention", "flash9", "xla"),
        ("remat", "some", "none, block, full"),
        ("unroll", 0, "unroll is 0"),
    ],
)
def test_settings_that_cannot_work_are_named(config, field, value, word):
    with pytest.raises(ValueError, match=word):
        dataclasses.replace(config, **{field: value})


def test_inputs_of_different_shape_are_refused(config, params):
    tokens, positions, segments = row(8)
    with pytest.raises(ValueError, match=r"positions \(1, 7\)"):
        qwen3.forward(params, config, tokens, positions[:, :7], segments)
