"""Pure functions behind the figures: means, and how far a difference may be chance."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Difference:
    """A difference of two means over the same tasks.

    Attributes:
      before, after: the two means. low, high: bounds of after - before.
      tasks: how many tasks both sides have.
    """

    before: float
    after: float
    low: float
    high: float
    tasks: int

    @property
    def gain(self) -> float:
        return self.after - self.before


def paired_bootstrap(
    before: Mapping[str, float],
    after: Mapping[str, float],
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Difference:
    """Percentile interval of the gain, by resampling tasks with both of their outcomes together.

    Args:
      before, after: task id -> outcome. Tasks that one side lacks (void there) are left out.
      level: coverage. resamples: redrawn task sets. seed: of the redraws; the result is a pure function.

    Raises:
      ValueError: no task in common, or a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"level={level} must lie between 0 and 1")
    common = sorted(before.keys() & after.keys())
    if not common:
        raise ValueError(f"no task in common among {len(before)} and {len(after)}: the two sides are not paired")
    a = np.array([before[i] for i in common], float)
    b = np.array([after[i] for i in common], float)
    low, high = _percentiles(b - a, level, resamples, seed)
    return Difference(float(a.mean()), float(b.mean()), low, high, len(common))


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over tasks and the bounds of its interval."""

    mean: float
    low: float
    high: float
    tasks: int


def bootstrap(
    values: Mapping[str, float], *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Estimate:  # fmt: skip
    """Percentile interval of a mean, by resampling tasks: the samples of one task stay together in its value.

    Args:
      values: task id -> value. level: coverage. resamples, seed: see `paired_bootstrap`.

    Raises:
      ValueError: no task, or a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"level={level} must lie between 0 and 1")
    if not values:
        raise ValueError("no task to estimate a mean from")
    x = np.array([values[i] for i in sorted(values)], float)
    low, high = _percentiles(x, level, resamples, seed)
    return Estimate(float(x.mean()), low, high, len(x))


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Chance that at least one of k samples drawn without replacement is correct: unbiased for any k (Chen et al. 2021,
    arXiv 2107.03374, eq. 1).

    Raises:
      ValueError: not 1 <= k <= samples, or not 0 <= correct <= samples.
    """
    if not (1 <= k <= samples and 0 <= correct <= samples):
        raise ValueError(f"samples={samples}, correct={correct}, k={k}: k lies in 1..samples, correct in 0..samples")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def majority_at_k(classes: Sequence[int], correct: Sequence[bool], k: int) -> float:
    """How often a vote of k samples is right: the mean over disjoint blocks of k in order; what is left over is unused.

    The largest class of a block wins, the earlier one of two equal ones, and with it its first member's outcome.

    Args:
      classes: of each sample, equal numbers for equal answers; -1 for no answer, which never wins.
      correct: of each sample.

    Raises:
      ValueError: fewer than k samples, k below 1, or lists of different lengths.
    """
    if k < 1 or len(classes) < k or len(classes) != len(correct):
        raise ValueError(f"{len(classes)} classes, {len(correct)} outcomes, k={k}: a vote needs k of both")
    outcomes = []
    for begin in range(0, len(classes) - k + 1, k):
        block = list(classes[begin : begin + k])
        best = max((c for c in block if c >= 0), key=lambda c: (block.count(c), -block.index(c)), default=None)
        outcomes.append(0.0 if best is None else float(correct[begin + block.index(best)]))
    return sum(outcomes) / len(outcomes)


def _percentiles(values: np.ndarray, level: float, resamples: int, seed: int) -> tuple[float, float]:
    """Bounds of the mean of values that are redrawn with replacement."""
    rng, n = np.random.default_rng(seed), len(values)
    # In slices, so that memory stays small for any number of tasks.
    means = np.concatenate(
        [values[rng.integers(0, n, (min(500, resamples - i), n))].mean(1) for i in range(0, resamples, 500)]
    )
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def rolling_mean(values: Sequence[float] | np.ndarray, window: int) -> np.ndarray:
    """[T] mean of each value and up to `window - 1` values before it; never looks ahead. NaN is left out of a mean."""
    if window < 1:
        raise ValueError(f"window={window} must be at least 1")
    x = np.asarray(values, float)
    known = ~np.isnan(x)
    total = np.cumsum(np.where(known, x, 0.0))
    count = np.cumsum(known)
    total[window:] -= total[:-window].copy()
    count[window:] -= count[:-window].copy()
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def stages(active: Sequence[Sequence[str]]) -> list[tuple[int, int, tuple[str, ...]]]:
    """Runs of equal stages: [(first index, last index, roles)], both ends included."""
    out: list[tuple[int, int, tuple[str, ...]]] = []
    for i, roles in enumerate(active):
        key = tuple(roles)
        if out and out[-1][2] == key:
            out[-1] = (out[-1][0], i, key)
        else:
            out.append((i, i, key))
    return out
