"""Curves over steps: several seeds as one, and what each stage of training gained."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from metaagent_x.analysis.statistics import rolling_mean, stages


@dataclasses.dataclass(frozen=True)
class Band:
    """Several runs of the same settings as one curve.

    Attributes:
      steps: that any of them has. mean, low, high: over the runs that have the step; the smallest and the largest.
    """

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def band(runs: Sequence[Mapping[int, float]], window: int) -> Band:
    """The mean and the range of runs, each first smoothed by itself.

    Args:
      runs: step -> value of each run; NaN where it is not known. window: steps that a value is the mean of, its own and
        those before.
    """
    steps = sorted({step for run in runs for step in run})
    if not steps:
        return Band(*(np.zeros(0) for _ in range(4)))
    table = np.full((len(runs), len(steps)), np.nan)
    for row, run in zip(table, runs, strict=True):
        own = sorted(run)
        row[np.searchsorted(steps, own)] = rolling_mean([run[step] for step in own], window)
    known = ~np.isnan(table)
    count = known.sum(0)
    mean = np.where(count > 0, np.where(known, table, 0.0).sum(0) / np.maximum(count, 1), np.nan)
    low = np.where(count > 0, np.where(known, table, np.inf).min(0), np.nan)
    high = np.where(count > 0, np.where(known, table, -np.inf).max(0), np.nan)
    return Band(np.array(steps), mean, low, high)


@dataclasses.dataclass(frozen=True)
class StageGain:
    """One stage: who learned from which step to which, and how much a figure rose."""

    roles: tuple[str, ...]
    first: int
    last: int
    before: float
    after: float

    @property
    def gain(self) -> float:
        return self.after - self.before


def stage_gains(
    steps: Sequence[int], active: Sequence[Sequence[str]], values: Sequence[float], window: int
) -> list[StageGain]:
    """The rise of a figure by stages: the mean of its last `window` steps against that of the stage before (for the
    first stage: against its own first `window` steps). So the gains add up to the rise of the whole run."""
    out: list[StageGain] = []
    x = np.asarray(values, float)
    for first, last, roles in stages(active):
        end = float(np.mean(x[max(first, last + 1 - window) : last + 1]))
        begin = out[-1].after if out else float(np.mean(x[: min(window, last + 1)]))
        out.append(StageGain(roles, steps[first], steps[last], begin, end))
    return out
