"""How far a figure may be chance: intervals by resampling tasks.

Executions of one task are not independent: they share its difficulty, and the M x N of a step share designs too. So
whatever is a ratio of sums over executions is resampled by whole tasks (a cluster bootstrap), never by executions.

What every task shows alike, an accuracy of 0 % or 100 %, is the same in every redraw. T tasks that show nothing else
may still have missed what a share of up to 1 - 0.025^(1/T) of all tasks shows; the bounds allow for that.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

LEVEL = 0.95
RESAMPLES = 10_000
_SLICE = 200  # redraws at once, so that memory stays small for any number of tasks


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A figure and its interval, of 95 % unless another level was asked for.

    Attributes:
      value: the figure. low, high: bounds; NaN where nothing can be said of them (one task, one seed).
      units: how many independent units (tasks, or seeds) it rests on.
    """

    value: float
    low: float
    high: float
    units: int


@dataclasses.dataclass(frozen=True)
class Difference:
    """Two means over the same tasks: `before`, `after`, and the gain from one to the other."""

    before: float
    after: float
    gain: Estimate


def resample(columns: np.ndarray, *, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """[B, K] sums of the columns over redrawn tasks.

    Args:
      columns: [T, K], one row a task. resamples: B. seed: of the redraws; the result is a pure function.
    """
    tasks, rng = len(columns), np.random.default_rng(seed)
    if not tasks:
        return np.zeros((resamples, columns.shape[1]))
    sums = []
    for begin in range(0, resamples, _SLICE):
        n = min(_SLICE, resamples - begin)
        drawn = rng.integers(0, tasks, (n, tasks)) + tasks * np.arange(n)[:, None]
        sums.append(np.bincount(drawn.ravel(), minlength=n * tasks).reshape(n, tasks) @ columns)
    return np.concatenate(sums)


def ratios(
    parts: np.ndarray, wholes: np.ndarray, *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> list[Estimate]:
    """Ratios of sums over tasks, sum of a part / sum of its whole, with percentile intervals by resampling tasks.

    Args:
      parts: [T, K] one row a task, one column a ratio. wholes: [T, K], or [T, 1] for a common one.
      level: coverage of the intervals. resamples, seed: see `resample`.

    Returns:
      K estimates; NaN where the whole is 0, infinite where only the part is not. One task alone has no interval.

    Raises:
      ValueError: a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"level={level} must lie between 0 and 1")
    parts, wholes = np.asarray(parts, float), np.asarray(wholes, float)
    wholes = np.broadcast_to(wholes, parts.shape)
    tasks, k = parts.shape
    values = _divide(parts.sum(0), wholes.sum(0))
    if tasks < 2:
        return [Estimate(float(v), math.nan, math.nan, tasks) for v in values]
    sums = resample(np.concatenate([parts, wholes], axis=1), resamples=resamples, seed=seed)
    drawn = _divide(sums[:, :k], sums[:, k:])
    out = []
    for i, value in enumerate(values):
        low, high = percentiles(drawn[:, i], level)
        out.append(Estimate(float(value), low, high, int((wholes[:, i] != 0).sum())))
    return out


def proportions(
    parts: np.ndarray, wholes: np.ndarray, *, within: tuple[float, float] = (0.0, 1.0), level: float = LEVEL,
    resamples: int = RESAMPLES, seed: int = 0,
) -> list[Estimate]:  # fmt: skip
    """`ratios` whose parts lie between two multiples of their whole: 0 and 1 for accuracies and shares, -1 and 1 for
    gains of them.

    Where all T tasks that have a whole show the same, a share of tasks that a binomial bounds by 1 - 0.025^(1/T) may
    show something else, as far away as `within` allows. One such task alone has no interval.
    """
    parts, wholes = np.asarray(parts, float), np.broadcast_to(np.asarray(wholes, float), np.shape(parts))
    out = []
    for i, e in enumerate(ratios(parts, wholes, level=level, resamples=resamples, seed=seed)):
        own = wholes[:, i] != 0
        if e.units < 2:
            e = dataclasses.replace(e, low=math.nan, high=math.nan)
        elif np.ptp(parts[own, i] / wholes[own, i]) < 1e-12:  # equal but for rounding
            missed = 1 - ((1 - level) / 2) ** (1 / e.units)
            low, high = (e.value + missed * (end - e.value) for end in within)
            e = dataclasses.replace(e, low=low, high=high)
        out.append(e)
    return out


def shares(counts: np.ndarray, *, seed: int = 0) -> list[Estimate]:
    """Share of each column in the sum of all of them, as `proportions`.

    Args:
      counts: [T, K] executions of each of K names, one row a task. Tasks without any are left out.
    """
    counts = np.asarray(counts, float)
    counts = counts[counts.sum(1) > 0]
    return proportions(counts, counts.sum(1, keepdims=True), seed=seed)


def mean_over_tasks(
    values: Mapping[str, float], *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Estimate:  # fmt: skip
    """Mean of one value a task, such as the share of its samples that are right: the samples of a task stay together.

    Args:
      values: task id -> value in [0, 1]. level, resamples, seed: see `ratios`.

    Raises:
      ValueError: no task, or a level outside (0, 1).
    """
    if not values:
        raise ValueError("no task to estimate a mean from")
    x = np.array([[values[i]] for i in sorted(values)], float)
    return proportions(x, np.ones_like(x), level=level, resamples=resamples, seed=seed)[0]


def paired_gain(
    before: Mapping[str, float], after: Mapping[str, float], *, level: float = LEVEL, resamples: int = RESAMPLES,
    seed: int = 0,
) -> Difference:  # fmt: skip
    """How much the mean over tasks rises, by resampling tasks with both of their values together.

    Args:
      before, after: task id -> value in [0, 1]. Tasks that one side lacks (void there) are left out.
      level, resamples, seed: see `ratios`.

    Raises:
      ValueError: no task in common, or a level outside (0, 1).
    """
    common = sorted(before.keys() & after.keys())
    if not common:
        raise ValueError(f"no task in common among {len(before)} and {len(after)}: the two sides are not paired")
    a, b = (np.array([[side[i]] for i in common], float) for side in (before, after))
    options = {"level": level, "resamples": resamples, "seed": seed}
    (gain,) = proportions(b - a, np.ones_like(a), within=(-1.0, 1.0), **options)
    return Difference(float(a.mean()), float(b.mean()), gain)


def percentiles(drawn: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """The bounds that leave (1 - level) / 2 of the redrawn values outside on either side (2.5 %, unless another
    level is asked for); undefined ones (NaN) are left out."""
    known = np.sort(drawn[~np.isnan(drawn)])
    if not len(known):
        return math.nan, math.nan
    outside = int(len(known) * (1 - level) / 2)
    return float(known[outside]), float(known[-1 - outside])


def _divide(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return part / whole
