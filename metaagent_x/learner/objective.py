"""The clipped objective of both roles (paper, eq. 2 and 3) as a plain weighted sum over tokens.

`token_weights` carries all normalisation and is computed once on the whole batch. The loss is then sum(weight * term):
micro-batches, rows and devices can be cut anywhere and added up, and the result is the same.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

Aggregate = Literal["token_mean", "sequence_mean", "group_mean", "constant"]
Ratio = Literal["token", "sequence", "sequence_geometric"]

COUNTS = ("tokens", "max_dev", "high", "low", "dual", "approx_kl")  # what `clipped_terms` counts
LOG_RATIO_LIMIT = 20.0  # e^20 = 5e8: finite in float32 after multiplication by any advantage; no gradient beyond it


def token_weights(
    mask: npt.ArrayLike,
    trajectory: npt.ArrayLike,
    group: npt.ArrayLike | None = None,
    *,
    aggregate: Aggregate = "token_mean",
    denominator: float | None = None,
) -> np.ndarray:
    """The weight of every token in the loss of one role.

    Args:
      mask: [R, T] True where the target was sampled and is trained.
      trajectory: [R, T] ids, unique in the batch; 0 is padding.
      group: [R, T] question of the token; needed by "group_mean".
      aggregate: "token_mean": every token alike. "sequence_mean": mean over trajectories of their token means.
        "group_mean": mean over questions of that. "constant": sum / denominator (bias-free of length). The first three
        sum to 1 over a batch with any masked token. A trajectory without masked tokens counts in none.
      denominator: used by "constant" only, tokens.

    Returns:
      [R, T] float64, 0.0 where `mask` is False.

    Raises:
      ValueError: shapes that differ, a masked token of trajectory 0, a trajectory in two groups, a missing `group` or
        `denominator`, an unknown `aggregate`.
    """
    on, ids = np.asarray(mask, bool), np.asarray(trajectory)
    if on.shape != ids.shape:
        raise ValueError(f"mask has shape {on.shape} but trajectory has {ids.shape}; both are [R, T]")
    if (stray := np.argwhere(on & (ids == 0))).size:
        raise ValueError(f"mask is True at {stray[0].tolist()} where trajectory is 0 (padding)")
    out = np.zeros(on.shape)
    if aggregate == "constant":
        if denominator is None or not denominator > 0:
            raise ValueError(f"aggregate='constant' needs a denominator above 0 (tokens); got {denominator}")
        out[on] = 1.0 / denominator
        return out
    if aggregate not in ("token_mean", "sequence_mean", "group_mean"):
        raise ValueError(f"aggregate={aggregate!r} is not one of token_mean, sequence_mean, group_mean, constant")
    if not on.any():
        return out
    if aggregate == "token_mean":
        out[on] = 1.0 / on.sum()
        return out
    _, inverse, length = np.unique(ids[on], return_inverse=True, return_counts=True)
    if aggregate == "sequence_mean":
        out[on] = 1.0 / (len(length) * length[inverse])
        return out
    if group is None:
        raise ValueError("aggregate='group_mean' needs `group`, the [R, T] question of every token")
    questions = np.asarray(group)
    if questions.shape != on.shape:
        raise ValueError(f"group has shape {questions.shape} but mask has {on.shape}; both are [R, T]")
    pairs = np.unique(np.stack([ids[on], questions[on]]), axis=1)  # one column a trajectory
    if pairs.shape[1] != len(length):
        twice = pairs[0][np.flatnonzero(np.diff(pairs[0]) == 0)[0]]
        raise ValueError(f"trajectory {twice} has tokens of two groups; a trajectory belongs to one question")
    _, group_of, size = np.unique(pairs[1], return_inverse=True, return_counts=True)
    out[on] = 1.0 / (len(size) * size[group_of][inverse] * length[inverse])
    return out


def clipped_objective(
    logp: jax.Array,
    old_logp: jax.Array,
    advantages: jax.Array,
    weights: jax.Array,
    *,
    trajectory: jax.Array | None = None,
    num_trajectories: int | None = None,
    correction: jax.Array | None = None,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    ratio: Ratio = "token",
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Sum over tokens of weight * -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)   (eq. 2 and 3).

    A token of weight 0 is masked: it may hold NaN, infinity or garbage in any array and adds exactly 0 to value and
    gradient (https://github.com/jax-ml/jax/issues/2630: selecting after `exp` would make the gradient NaN).

    Args:
      logp: [R, T] log-probs under the parameters that learn.
      old_logp: [R, T] log-probs under the parameters that sampled. Not differentiated.
      advantages: [R, T]. Not differentiated.
      weights: [R, T] from `token_weights`.
      trajectory: [R, T] ids from 1; needed by the sequence ratios. A trajectory must lie whole within these arrays.
      num_trajectories: the largest id. May be left out where `trajectory` is concrete (outside jit).
      correction: [R, T] multiplies each token's term (sampler against learner). Not differentiated.
      clip_low: lower side of the clip range.
      clip_high: upper side of the clip range.
      dual_clip: c > 1 bounds the loss of negative advantages by c * |A| (https://arxiv.org/abs/1912.09729); None: off.
      ratio: "token": per token, as the public reference trains. "sequence": product over the trajectory (eq. 3 as
        written). "sequence_geometric": its geometric mean.

    Returns:
      (loss, metrics). Metrics over tokens of non-zero weight: `tokens`, `ratio/max_dev` (largest |ratio - 1|),
      `clip/high` and `clip/low` (share of tokens on which that side really binds), `clip/dual`, `approx_kl` (mean k3 of
      old against new). All are 0 for an empty batch.

    Raises:
      ValueError: shapes that differ, missing `trajectory` or its size, a dual clip not above 1, an unknown `ratio`.
    """
    terms, stats = clipped_terms(
        logp, old_logp, advantages, weights, trajectory=trajectory, num_trajectories=num_trajectories,
        correction=correction, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip, ratio=ratio,
    )  # fmt: skip
    return terms.sum(), summarise(stats)


def clipped_terms(
    logp: jax.Array,
    old_logp: jax.Array,
    advantages: jax.Array,
    weights: jax.Array,
    *,
    trajectory: jax.Array | None = None,
    num_trajectories: int | None = None,
    correction: jax.Array | None = None,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    ratio: Ratio = "token",
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """`clipped_objective` before its sum: the [R, T] weighted terms, and counts that add up over micro-batches.

    Every entry of the second result is a sum over tokens, but for "max_dev", a maximum. `summarise` turns them into
    metrics once all micro-batches and devices are in, so no mean of means is ever taken.
    """
    arrays = {"old_logp": old_logp, "advantages": advantages, "weights": weights, "trajectory": trajectory,
              "correction": correction}  # fmt: skip
    for name, array in arrays.items():
        if array is not None and jnp.shape(array) != jnp.shape(logp):
            raise ValueError(f"{name} has shape {jnp.shape(array)} but logp has {jnp.shape(logp)}; all are [R, T]")
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip={dual_clip} must be above 1; use None to turn it off")
    weights = jax.lax.stop_gradient(jnp.asarray(weights, jnp.float32))
    on = weights != 0
    advantages = jax.lax.stop_gradient(_where(on, advantages))
    # Masked entries are replaced before the difference and the exponential, so their gradient is a true zero.
    difference = _where(on, logp) - jax.lax.stop_gradient(_where(on, old_logp))
    shared = _log_ratio(difference, on, trajectory, num_trajectories, ratio)
    rho = jnp.exp(jnp.clip(shared, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    high = (advantages > 0) & (rho > 1 + clip_high)
    low = (advantages < 0) & (rho < 1 - clip_low)
    # min(rho A, clip(rho) A), spelled by the side that binds: exact one-sided gradients and honest clip counts.
    term = jnp.where(high, (1 + clip_high) * advantages, jnp.where(low, (1 - clip_low) * advantages, rho * advantages))
    dual = jnp.zeros_like(on)
    if dual_clip is not None:
        dual = (advantages < 0) & (rho > dual_clip)
        term = jnp.where(dual, dual_clip * advantages, term)
    if correction is not None:
        term = term * jax.lax.stop_gradient(_where(on, correction))
    detached = jax.lax.stop_gradient(rho)
    token = jnp.clip(jax.lax.stop_gradient(difference), -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    stats = {
        "tokens": on.sum(),
        "max_dev": jnp.max(jnp.where(on, jnp.abs(detached - 1), 0.0), initial=0.0),
        "high": (high & on).sum(),
        "low": (low & on).sum(),
        "dual": (dual & on).sum(),
        "approx_kl": jnp.where(on, jnp.exp(token) - 1 - token, 0.0).sum(),
    }
    return -weights * term, {name: value.astype(jnp.float32) for name, value in stats.items()}


def summarise(stats: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Metrics of `clipped_objective` from (summed) counts of `clipped_terms`."""
    number = jnp.maximum(stats["tokens"], 1)
    shares = {f"clip/{side}": stats[side] / number for side in ("high", "low", "dual")}
    return {
        "tokens": stats["tokens"],
        "ratio/max_dev": stats["max_dev"],
        "approx_kl": stats["approx_kl"] / number,
    } | shares


def kl_penalty(
    logp: jax.Array, ref_logp: jax.Array, weights: jax.Array, kind: Literal["k1", "k2", "k3"] = "k3"
) -> jax.Array:
    """Weighted sum of a per-token estimate of KL(policy || reference), with d = logp - ref_logp.

    Value and gradient are two things (http://joschu.net/blog/kl-approx.html; https://arxiv.org/abs/2510.01555). The
    gradient is that of the estimate itself, with the tokens held fixed:
      k1 = d                 gradient 1 * dlogp: zero in expectation on-policy, so it does not pull to the reference.
      k2 = d^2 / 2           gradient d * dlogp: in expectation on-policy the gradient of KL(policy || reference).
      k3 = exp(-d) - 1 + d   gradient (1 - exp(-d)) * dlogp: in expectation that of KL(reference || policy).

    Args:
      logp: [R, T] log-probs of the policy.
      ref_logp: [R, T] log-probs of the frozen reference. Not differentiated.
      weights: [R, T]; a token of weight 0 is masked, whatever it holds.
      kind: the estimator.

    Raises:
      ValueError: an unknown kind.
    """
    weights = jax.lax.stop_gradient(jnp.asarray(weights, jnp.float32))
    on = weights != 0
    d = _where(on, logp) - jax.lax.stop_gradient(_where(on, ref_logp))
    if kind == "k1":
        return (weights * d).sum()
    if kind == "k2":
        return (weights * jnp.square(d) / 2).sum()
    if kind == "k3":
        d = jnp.clip(d, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        return (weights * (jnp.exp(-d) - 1 + d)).sum()
    raise ValueError(f"kind={kind!r} is not one of k1, k2, k3")


def _where(on: jax.Array, values: jax.Array) -> jax.Array:
    return jnp.where(on, jnp.asarray(values, jnp.float32), 0.0)


def _log_ratio(
    difference: jax.Array, on: jax.Array, trajectory: jax.Array | None, number: int | None, ratio: Ratio
) -> jax.Array:
    """[R, T] log of the ratio that each token is clipped by."""
    if ratio == "token":
        return difference
    if ratio not in ("sequence", "sequence_geometric"):
        raise ValueError(f"ratio={ratio!r} is not one of token, sequence, sequence_geometric")
    if trajectory is None:
        raise ValueError(f"ratio={ratio!r} needs `trajectory`, the [R, T] ids of the trajectories")
    if number is None:
        try:
            number = int(np.max(np.asarray(trajectory), initial=0))
        except jax.errors.TracerArrayConversionError as error:
            message = f"ratio={ratio!r} under jit needs `num_trajectories`, the largest trajectory id"
            raise ValueError(message) from error
    ids = jnp.where(on, jnp.asarray(trajectory), 0)
    total = jax.ops.segment_sum(difference.ravel(), ids.ravel(), num_segments=number + 1)
    if ratio == "sequence_geometric":
        length = jax.ops.segment_sum(on.ravel().astype(jnp.float32), ids.ravel(), num_segments=number + 1)
        total = total / jnp.maximum(length, 1)
    return jnp.where(on, total[ids], 0.0)
