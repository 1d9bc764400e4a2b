"""Scores of tokens from hidden states, without ever building the [tokens, vocabulary] matrix of the whole batch."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero

from metaagent_x.model import sharding
from metaagent_x.model.numerics import einsum
from metaagent_x.model.parameters import Params, Qwen3Config

CHUNK = 1024  # tokens scored at once; at 151,936 entries 1,024 of them are 0.6 GB of float32
PART = 8192  # entries of the vocabulary at a time, at least, where one chunk holds all tokens


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

    Works on `chunk` tokens at a time, forward and backward; the backward pass recomputes the logits, unless one chunk
    holds all tokens: then they are kept, which takes no more memory. If `hidden` is [R, T, D] each chunk takes columns
    of all rows, so that rows split over devices stay where they are.

    Args:
        params: the tree of `qwen3.init`.
        config: the network's sizes and numerics.
        hidden: [..., D] from `qwen3.forward`.
        targets: [...] ids to score (already shifted: the token that follows each hidden state).
        temperature: divides the logits, in float32.
        chunk: tokens scored at once.
        with_entropy: also return the entropy of each distribution, in nats. Its gradient costs nothing where it is not
            asked for.

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
    scores = _score(flat, weight, wanted, float(temperature), width, config.compute_dtype, with_entropy)
    logp, *entropy = (x[:, :columns].reshape(targets.shape) for x in scores)
    return (logp, *entropy) if with_entropy else logp


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


def _parts_of_vocabulary(vocab: int) -> int:
    """Equal parts of at least `PART` entries for a chunk whose logits are kept; 1 where devices split it."""
    if sharding.splits("batch") * sharding.splits("vocab") > 1:
        return 1
    return max((n for n in range(1, vocab // PART + 1) if vocab % n == 0), default=1)


def _over_vocabulary(step: Any, start: Any, low: Array, parts: int, *more: Array) -> Any:
    """`lax.scan` of step(carry, (first id, rows of the matrix, *more)) over parts of the vocabulary.

    No loop for one part.
    """
    firsts = jnp.arange(parts, dtype=jnp.int32) * (low.shape[0] // parts)
    xs = (firsts, low.reshape(parts, -1, low.shape[-1]), *more)
    if parts > 1:
        return lax.scan(step, start, xs)
    carry, ys = step(start, tuple(x[0] for x in xs))
    return carry, ys[None]


def _score_chunk(
    hidden: Array, low: Array, targets: Array, temperature: float, with_entropy: bool, parts: int = 1
) -> tuple[tuple[Array, ...], Array, Array]:
    """(log-probs and, if asked for, entropies), log-sum-exps, all [R, width]; logits [parts, R, width, V / parts].

    By parts of the vocabulary, as an online softmax: the passes over the logits then need no memory to speak of.
    """

    def step(carry: tuple[Array, ...], part: tuple[Array, Array]) -> tuple[tuple[Array, ...], Array]:
        top, total, wanted, mixed = carry
        logits = _scaled_logits(hidden.astype(low.dtype), part[1], temperature)
        new_top = jnp.maximum(top, logits.max(axis=-1))
        shrink, weights = jnp.exp(top - new_top), jnp.exp(logits - new_top[..., None])
        wanted += jnp.sum(jnp.where(_is_target(logits, targets - part[0]), logits, 0.0), axis=-1)
        total = total * shrink + weights.sum(axis=-1)
        if with_entropy:  # the comparison keeps 0 times minus infinity out
            mixed = mixed * shrink + jnp.sum(jnp.where(weights > 0, weights * logits, 0.0), axis=-1)
        return (new_top, total, wanted, mixed), logits

    zeros = jnp.zeros(targets.shape, jnp.float32)
    start = (jnp.full_like(zeros, -jnp.inf), zeros, zeros, zeros)
    (top, total, wanted, mixed), logits = _over_vocabulary(step, start, low, parts)
    lse = top + jnp.log(total)
    return (wanted - lse, lse - mixed / total)[: 1 + with_entropy], lse, logits


def _score_value(
    hidden: Array, weight: Array, targets: Array, temperature: float, width: int, dtype: str, with_entropy: bool
) -> tuple[Array, ...]:
    """hidden [R, N, D], weight [V, D], targets [R, N] -> (log-probs, and entropies if asked for), all [R, N]."""
    return _scored(hidden, weight, targets, temperature, width, dtype, with_entropy)[0]


def _scored(
    hidden: Array, weight: Array, targets: Array, temperature: float, width: int, dtype: str, with_entropy: bool
) -> tuple[tuple[Array, ...], Array, Array | None]:
    """Scores, log-sum-exps [R, N], and the logits [parts, R, N, V / parts] if one chunk holds them all."""
    low = _whole(weight, dtype)
    if width == hidden.shape[1]:
        return _score_chunk(hidden, low, targets, temperature, with_entropy, _parts_of_vocabulary(low.shape[0]))

    def score(part: tuple[Array, Array]) -> tuple[tuple[Array, ...], Array]:
        return _score_chunk(part[0], low, part[1], temperature, with_entropy)[:2]

    scores, lse = lax.map(score, (_chunks(hidden, width), _chunks(targets, width)))
    return tuple(_joined(x) for x in scores), _joined(lse), None


def _score_forward(
    hidden: Any, weight: Any, targets: Any, temperature: float, width: int, dtype: str, with_entropy: bool
) -> tuple[tuple[Array, ...], tuple[Any, ...]]:
    """The values, and what to keep. Operands come with a mark whether they are differentiated; all of them are."""
    operands = (hidden.value, weight.value, targets.value)
    scores, lse, logits = _scored(*operands, temperature, width, dtype, with_entropy)
    return scores, (*operands, lse, *scores[1:], logits)


def _score_backward(
    temperature: float, width: int, dtype: str, with_entropy: bool, saved: tuple[Any, ...], grads: tuple[Any, ...]
) -> tuple[Array, Array, np.ndarray]:
    """d logp = onehot - p; d entropy = -p (log p + entropy), left out where nothing depends on the entropies."""
    hidden, weight, targets, lse, *entropy, kept = saved
    d_logp, d_entropy = _given(grads[0], lse), [g for g in grads[1:] if not isinstance(g, SymbolicZero)]
    low = _whole(weight, dtype)
    # Every device adds up the gradient of its own rows; they are put together after the last chunk. Left to itself the
    # compiler sends the whole matrix, and the logits' gradient, between the devices in every chunk.
    parts = sharding.batch_parts(hidden.shape[0])

    def own(x: Array) -> Array:
        return sharding.constrain(x, "batch", *(None,) * (x.ndim - 1)).reshape(parts, -1, x.shape[-1])

    def placed(d_weight: Array) -> Array:
        return sharding.constrain(d_weight, "batch" if parts > 1 else None, "vocab", None)

    def chunk(
        h: Array, kept: Array, wanted: Array, log_total: Array, d_logp: Array, *ent: Array
    ) -> tuple[Array, Array]:
        """Gradients of the matrix, one part a device, and of the hidden states."""

        def step(d_hidden: Array, part: tuple[Array, Array, Array]) -> tuple[Array, Array]:
            first, matrix, logits = part
            logp = logits - log_total[..., None]
            p = jnp.exp(logp)
            d_logits = d_logp[..., None] * (_is_target(logits, wanted - first) - p)
            if ent:
                d_logits -= ent[1][..., None] * p * (logp + ent[0][..., None])
            # As an array of its own: merged into the two products that read it, it would be computed twice.
            d_logits = lax.optimization_barrier((d_logits / temperature).astype(dtype))
            d_hidden += einsum("rtv,vd->rtd", d_logits, matrix, out=jnp.float32)
            return d_hidden, einsum("gtv,gtd->gvd", own(d_logits), own(h.astype(dtype)), out=jnp.float32)

        start = jnp.zeros(h.shape, jnp.float32)
        d_hidden, d_weight = _over_vocabulary(step, start, low, kept.shape[0], kept)
        return d_weight.reshape(parts, *weight.shape), d_hidden.astype(hidden.dtype)  # a mesh means one part

    columns = (targets, lse, d_logp, *((entropy[0], *d_entropy) if d_entropy else ()))
    if kept is not None:
        d_weight, d_hidden = chunk(hidden, kept, *columns)
        d_weight = placed(d_weight)
    else:

        def step(d_weight: Array, part: tuple[Array, ...]) -> tuple[Array, Array]:
            logits = _scaled_logits(part[0].astype(dtype), low, temperature)
            more, d_hidden = chunk(part[0], logits[None], *part[1:])
            return placed(d_weight + more), d_hidden

        start = placed(jnp.zeros((parts, *weight.shape), jnp.float32))
        d_weight, d_hidden = lax.scan(step, start, tuple(_chunks(x, width) for x in (hidden, *columns)))
        d_hidden = _joined(d_hidden)
    d_weight = sharding.constrain(d_weight.sum(0) if parts > 1 else d_weight[0], "vocab", "embed").astype(weight.dtype)
    return d_hidden, d_weight, np.zeros(targets.shape, jax.dtypes.float0)


def _given(grad: Any, like: Array) -> Array:
    return jnp.zeros_like(like) if isinstance(grad, SymbolicZero) else grad


_score = jax.custom_vjp(_score_value, nondiff_argnums=(3, 4, 5, 6))
_score.defvjp(_score_forward, _score_backward, symbolic_zeros=True)
