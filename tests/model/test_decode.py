"""Prefill and step-by-step decoding against the forward pass, and independence of slots."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaagent_x.model import decode, qwen3

SLOTS, LENGTH = 4, 24
PROMPTS = np.array([5, 1, 8, 3])


@functools.partial(jax.jit, static_argnums=1)
def replay(params, config, tokens, lengths):
    """Prefills rows of 8, then feeds `tokens` [B, T] one by one: hidden of the last prompt token and beyond."""
    filled, last = decode.prefill(params, config, tokens[:, :8], lengths)
    empty = decode.init_cache(config, tokens.shape[0], LENGTH)
    cache = [
        tuple(c.at[:, :, :8].set(f) for c, f in zip(*pair, strict=True)) for pair in zip(empty, filled, strict=True)
    ]
    rows = jnp.arange(tokens.shape[0])

    def step(carry, i):
        places = lengths + i
        hidden, cache = decode.decode_step(params, config, tokens[rows, places], places, carry)
        return cache, hidden

    _, hidden = jax.lax.scan(step, cache, jnp.arange(12))
    return last, hidden.swapaxes(0, 1)


def random_tokens(config, seed=0):
    return np.random.default_rng(seed).integers(0, config.vocab_size, (SLOTS, LENGTH)).astype(np.int32)


@pytest.mark.parametrize("tied", [True, False])
def test_prefill_and_decode_equal_forward(config, params, tied):
    config = dataclasses.replace(config, tie_embeddings=tied)
    params = params if tied else params | {"head": params["embed"] * 2}
    tokens = random_tokens(config)
    places = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), tokens.shape)
    want = jax.jit(qwen3.forward, static_argnums=1)(params, config, tokens, places, np.ones_like(tokens))
    last, hidden = replay(decode.unstack(params, config), config, tokens, PROMPTS)
    for r, n in enumerate(PROMPTS):
        np.testing.assert_allclose(last[r], want[r, n - 1], atol=1e-5)
        np.testing.assert_allclose(hidden[r], want[r, n : n + 12], atol=1e-5)


def test_a_request_is_bitwise_the_same_in_any_slot_and_company(config, params):
    ready, tokens = decode.unstack(params, config), random_tokens(config)
    last, hidden = replay(ready, config, tokens, PROMPTS)
    other = random_tokens(config, seed=1)
    order = np.array([2, 0, 3, 1])
    other[:2], lengths = tokens[order[:2]], np.array([8, 5, 2, 7])  # rows 2 and 0 move to slots 0 and 1
    moved_last, moved_hidden = replay(ready, config, other, lengths)
    np.testing.assert_array_equal(moved_last[:2], np.asarray(last)[order[:2]])
    np.testing.assert_array_equal(moved_hidden[:2], np.asarray(hidden)[order[:2]])


def test_tokens_beyond_the_cache_touch_nothing(config, params):
    """An idle slot may count on; its writes must not land in a real place."""
    ready = decode.unstack(params, config)
    cache = decode.init_cache(config, 2, 4)
    _, cache = jax.jit(decode.decode_step, static_argnums=1)(ready, config, jnp.array([1, 2]), jnp.array([4, 0]), cache)
    for keys, values in cache:
        assert not np.asarray(keys[0]).any() and not np.asarray(values[0]).any()
        assert np.asarray(keys[1, :, 0]).any() and not np.asarray(keys[1, :, 1:]).any()


def test_decoding_weights_are_in_compute_dtype(config, params):
    low = dataclasses.replace(config, compute_dtype="bfloat16")
    ready = decode.unstack(params, low)
    assert len(ready["layers"]) == config.num_layers
    assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(ready))
    assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(decode.init_cache(low, 1, 2)))
    np.testing.assert_array_equal(ready["layers"][1]["gate"], params["layers"]["gate"][1].astype(jnp.bfloat16))


def test_an_empty_cache_is_refused(config):
    with pytest.raises(ValueError, match="0 slots x 8 tokens"):
        decode.init_cache(config, 0, 8)
