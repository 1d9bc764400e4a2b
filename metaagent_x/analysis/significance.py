"""What runs of other seeds would give, and whether two sides differ by more than chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from metaagent_x.analysis.intervals import LEVEL, Estimate


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
