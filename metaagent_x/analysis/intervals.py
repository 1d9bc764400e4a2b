"""How far a figure may be chance: intervals by resampling tasks, intervals over seeds, and paired tests.

Executions of one task are not independent: they share its difficulty, and the M x N of a step share designs too. So
whatever is a ratio of sums over executions is resampled by whole tasks (a cluster bootstrap), never by executions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

LEVEL = 0.95
RESAMPLES = 2000
_SLICE = 200  # redraws at once, so that memory stays small for any number of tasks


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval.

    Attributes:
      value: the figure. low, high: bounds; NaN where nothing can be said of them (one task, one seed).
      units: how many independent units (tasks, or seeds) it rests on.
    """

    value: float
    low: float
    high: float
    units: int


def resample(columns: np.ndarray, *, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """[B, K] sums of the columns over redrawn tasks.

    Args:
      columns: [T, K], one row a task. resamples: B. seed: of the redraws; the result is a pure function.
    """
    tasks = len(columns)
    rng, even = np.random.default_rng(seed), np.full(tasks, 1 / max(tasks, 1))
    if not tasks:
        return np.zeros((resamples, columns.shape[1]))
    drawn = [
        rng.multinomial(tasks, even, size=min(_SLICE, resamples - i)) @ columns for i in range(0, resamples, _SLICE)
    ]
    return np.concatenate(drawn)


def ratios(parts: np.ndarray, wholes: np.ndarray, *, seed: int = 0) -> list[Estimate]:
    """Ratios of sums over tasks, sum of a part / sum of its whole, with percentile intervals by resampling tasks.

    Args:
      parts: [T, K] one row a task, one column a ratio. wholes: [T, K], or [T, 1] for a common one.

    Returns:
      K estimates; NaN where the whole is 0, infinite where only the part is not. One task alone has no interval.
    """
    parts, wholes = np.asarray(parts, float), np.asarray(wholes, float)
    wholes = np.broadcast_to(wholes, parts.shape)
    tasks, k = parts.shape
    values = _divide(parts.sum(0), wholes.sum(0))
    if tasks < 2:
        return [Estimate(float(v), math.nan, math.nan, tasks) for v in values]
    sums = resample(np.concatenate([parts, wholes], axis=1), seed=seed)
    drawn = _divide(sums[:, :k], sums[:, k:])
    out = []
    for i, value in enumerate(values):
        low, high = percentiles(drawn[:, i])
        out.append(Estimate(float(value), low, high, int((wholes[:, i] != 0).sum())))
    return out


def proportions(parts: np.ndarray, wholes: np.ndarray, *, seed: int = 0) -> list[Estimate]:
    """`ratios` of parts that lie between 0 and their whole, as accuracies and shares do.

    What no task shows (or every one) is the same in every redraw; there the bound is that of a binomial over tasks,
    1 - 0.025^(1/T).
    """
    out = []
    for e in ratios(parts, wholes, seed=seed):
        if e.units > 1 and e.value in (0.0, 1.0):
            edge = 1 - ((1 - LEVEL) / 2) ** (1 / e.units)
            e = Estimate(e.value, *((0.0, edge) if e.value == 0 else (1 - edge, 1.0)), e.units)
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


def mean_over_runs(values: Sequence[float]) -> Estimate:
    """Mean of one figure a run, with Student's interval: what runs of other seeds would give. NaN bounds for one."""
    x = np.asarray(values, float)
    mean = float(x.mean()) if len(x) else math.nan
    if len(x) < 2:
        return Estimate(mean, math.nan, math.nan, len(x))
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x)))
    return Estimate(mean, mean - half, mean + half, len(x))


def mcnemar(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Exact McNemar test, two-sided: the probability of so uneven a split of the tasks that came out differently, were
    either side equally likely to win each. 1.0 if none did.

    Args:
      before, after: task id -> 0 or 1; tasks that one side lacks are left out.

    Raises:
      ValueError: an outcome that is neither 0 nor 1.
    """
    common = before.keys() & after.keys()
    if wrong := [v for side in (before, after) for i in common if (v := side[i]) not in (0, 1)]:
        raise ValueError(f"outcome {wrong[0]} is neither 0 nor 1: McNemar's test compares single outcomes")
    won = sum(before[i] < after[i] for i in common)
    lost = sum(before[i] > after[i] for i in common)
    return float(stats.binomtest(won, won + lost).pvalue) if won + lost else 1.0


def runs_differ(before: Mapping[Any, float], after: Mapping[Any, float]) -> float:
    """p-value of a t-test over runs: paired by seed where 3 or more seeds are common, else Welch's; NaN if either side
    has fewer than 3 runs, or none of them differ. What differs by rounding alone, 1e-12, is equal.

    Args:
      before, after: seed -> figure of that run.
    """
    common = sorted(before.keys() & after.keys())
    if len(common) >= 3:
        gains = np.round([after[s] - before[s] for s in common], 12)
        if not np.ptp(gains):
            return math.nan
        test: Any = stats.ttest_1samp(gains, 0.0)
        return float(test.pvalue)
    if min(len(before), len(after)) < 3:
        return math.nan
    sides = [np.round(list(side.values()), 12) for side in (before, after)]
    if not any(map(np.ptp, sides)):
        return math.nan
    welch: Any = stats.ttest_ind(*sides, equal_var=False)
    return float(welch.pvalue)


def percentiles(drawn: np.ndarray) -> tuple[float, float]:
    """The bounds that leave 2.5 % of the redrawn values outside on either side; undefined ones (NaN) are left out."""
    known = drawn[~np.isnan(drawn)]
    if not len(known):
        return math.nan, math.nan
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="inverted_cdf")
    return float(low), float(high)


def _divide(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return part / whole
