"""Pure functions behind the figures: means, and how far a difference may be chance."""

from __future__ import annotations

import dataclasses
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
    gains, n = b - a, len(common)
    rng = np.random.default_rng(seed)
    # In slices, so that memory stays small for any number of tasks.
    means = np.concatenate(
        [gains[rng.integers(0, n, (min(500, resamples - i), n))].mean(1) for i in range(0, resamples, 500)]
    )
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Difference(float(a.mean()), float(b.mean()), float(low), float(high), n)


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
