"""Scores of tokens from hidden states, without ever building the [tokens, vocabulary] matrix of the whole batch."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from metaagent_x.model import sharding
from metaagent_x.model.numerics import einsum
from metaagent_x.model.parameters import Params, Qwen3Config

CHUNK = 1024  # tokens scored at once; at 151,936 entries 1,024 of them are 0.6 GB of float32


def head_weight(params: Params, config: Qwen3Config) -> Array:
    """The output matrix [V, D] as stored (float32 masters): the embedding if tied."""
    return params["embed"] if config.tie_embeddings else params["head"]


def head_logits(params: Params, config: Qwen3Config, hidden: Array) -> Array:
    """Logits of a few positions, for sampling: [..., D] -> float32 [..., V].

    Operands are in compute dtype, the sum is kept in float32: rounding it to bfloat16 moves rare tokens by nats
    (pytorch/torchtitan#3667).
    """
    weight = head_weight(params, config).astype(config.dtype)
    return einsum("...d,vd->...v", hidden.astype(config.dtype), weight, out=jnp.float32)


def token_logprobs(
    params: Params,
    config: Qwen3Config,
    hidden: Array,
    targets: Array,
    *,
    temperature: float = 1.0,
    chunk: int = CHUNK,
    with_entropy: bool = False,
) -> Any:
    """Log-probability of each target under the policy at `temperature`, in float32.

    Works on `chunk` tokens at a time, forward and backward; the backward pass recomputes the logits. If `hidden` is
    [R, T, D] each chunk takes columns of all rows, so that rows split over devices stay where they are.

    Args:
        params: the tree of `qwen3.init`.
        config: the network's sizes and numerics.
        hidden: [..., D] from `qwen3.forward`.
        targets: [...] ids to score (already shifted: the token that follows each hidden state).
        temperature: divides the logits, in float32.
        chunk: tokens scored at once.
        with_entropy: also return the entropy of each distribution, in nats.

    Returns:
        [...] float32 log-probs, or (log-probs, entropies) if `with_entropy`.

    Raises:
        ValueError: shapes that do not fit, a temperature that is not positive, a chunk below 1.
    """
    if hidden.shape[:-1] != targets.shape:
        raise ValueError(f"hidden {hidden.shape} needs targets of shape {hidden.shape[:-1]}, got {targets.shape}")
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}; log-probs need a positive one")
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}; at least one token must be scored at a time")
    weight = head_weight(params, config)
    rows = targets.shape[0] if targets.ndim > 1 and 0 < targets.shape[0] <= chunk else 1
    columns = math.prod(targets.shape) // rows
    width = max(1, min(chunk // rows, columns))
    extra = -columns % width
    flat = jnp.pad(hidden.reshape(rows, columns, hidden.shape[-1]), ((0, 0), (0, extra), (0, 0)))
    wanted = jnp.pad(targets.reshape(rows, columns), ((0, 0), (0, extra)))
    logp, entropy = _score(flat, weight, wanted, float(temperature), width, config.compute_dtype)
    logp, entropy = (x[:, :columns].reshape(targets.shape) for x in (logp, entropy))
    return (logp, entropy) if with_entropy else logp


def _chunks(x: Array, width: int) -> Array:
    """[R, n * width, ...] -> [n, R, width, ...]."""
    return jnp.moveaxis(x.reshape(x.shape[0], -1, width, *x.shape[2:]), 1, 0)


def _joined(x: Array) -> Array:
    """[n, R, width, ...] -> [R, n * width, ...]."""
    return jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:])


def _whole(weight: Array, dtype: str) -> Array:
    """The matrix in compute dtype, gathered once for all chunks but for the vocabulary's split."""
    return sharding.constrain(weight.astype(dtype), "vocab", None)


def _scaled_logits(hidden: Array, weight: Array, temperature: float) -> Array:
    return einsum("rtd,vd->rtv", hidden, weight, out=jnp.float32) / temperature


def _is_target(logits: Array, targets: Array) -> Array:
    # A comparison instead of a gather: it stays local when the vocabulary is split over devices.
    return lax.broadcasted_iota(targets.dtype, logits.shape, 2) == targets[..., None]


def _score_forward(
    hidden: Array, weight: Array, targets: Array, temperature: float, width: int, dtype: str
) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    """hidden [R, N, D], weight [V, D], targets [R, N] -> (log-probs, entropies), both [R, N], and what to keep."""
    low = _whole(weight, dtype)

    def score(part: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        logits = _scaled_logits(part[0].astype(dtype), low, temperature)
        lse = jax.nn.logsumexp(logits, axis=-1)
        wanted = jnp.sum(jnp.where(_is_target(logits, part[1]), logits, 0.0), axis=-1)
        mean = jnp.sum(jnp.exp(logits - lse[..., None]) * logits, axis=-1)
        return wanted - lse, lse - mean, lse

    logp, entropy, lse = (_joined(x) for x in lax.map(score, (_chunks(hidden, width), _chunks(targets, width))))
    return (logp, entropy), (hidden, weight, targets, lse, entropy)


def _score_backward(
    temperature: float, width: int, dtype: str, saved: tuple[Array, ...], grads: tuple[Array, Array]
) -> tuple[Array, Array, np.ndarray]:
    """d logp = onehot - p; d entropy = -p (log p + entropy). The weight's gradient adds up in float32."""
    hidden, weight, targets, lse, entropy = saved
    low = _whole(weight, dtype)
    # Every device adds up the gradient of its own rows; they are put together after the last chunk. Left to itself the
    # compiler sends the whole matrix, and the logits' gradient, between the devices in every chunk.
    parts = sharding.batch_parts(hidden.shape[0])

    def own(x: Array) -> Array:
        return sharding.constrain(x, "batch", *(None,) * (x.ndim - 1)).reshape(parts, -1, x.shape[-1])

    def placed(d_weight: Array) -> Array:
        return sharding.constrain(d_weight, "batch" if parts > 1 else None, "vocab", None)

    def step(d_weight: Array, part: tuple[Array, ...]) -> tuple[Array, Array]:
        h, wanted, log_total, ent, d_logp, d_ent = part
        h = h.astype(dtype)
        logits = _scaled_logits(h, low, temperature)
        logp = logits - log_total[..., None]
        p = jnp.exp(logp)
        d_logits = d_logp[..., None] * (_is_target(logits, wanted) - p) - d_ent[..., None] * p * (logp + ent[..., None])
        d_logits = (d_logits / temperature).astype(dtype)
        d_weight = placed(d_weight + einsum("gtv,gtd->gvd", own(d_logits), own(h), out=jnp.float32))
        return d_weight, einsum("rtv,vd->rtd", d_logits, low, out=jnp.float32).astype(hidden.dtype)

    chunks = tuple(_chunks(x, width) for x in (hidden, targets, lse, entropy, *grads))
    d_weight, d_hidden = lax.scan(step, placed(jnp.zeros((parts, *weight.shape), jnp.float32)), chunks)
    d_weight = sharding.constrain(d_weight.sum(0), "vocab", "embed").astype(weight.dtype)
    return _joined(d_hidden), d_weight, np.zeros(targets.shape, jax.dtypes.float0)


def _score_value(
    hidden: Array, weight: Array, targets: Array, temperature: float, width: int, dtype: str
) -> tuple[Array, Array]:
    return _score_forward(hidden, weight, targets, temperature, width, dtype)[0]


_score = jax.custom_vjp(_score_value, nondiff_argnums=(3, 4, 5))
_score.defvjp(_score_forward, _score_backward)
