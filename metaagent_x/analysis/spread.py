"""Where the learning signal is: in which design was written, or in how it was executed?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from metaagent_x.analysis.executions import Executions
from metaagent_x.analysis.intervals import Estimate, percentiles, resample

Group = Sequence[Sequence[float]]  # rewards of the executions of each design of one task


@dataclasses.dataclass(frozen=True)
class Spread:
    """Variance components of the reward within a task (one-way analysis of variance, designs as random effects).

    Attributes:
      within: variance among executions of one design. between: variance of the designs' own means, what chance among N
        executions alone makes of their differences taken off (0 at least).
      share: between / (between + within): 0 if it does not matter which design was written, 1 if nothing else does.
      groups: tasks with two or more designs.
    """

    within: float
    between: float
    share: Estimate
    groups: int


def spread(groups: Sequence[Group]) -> Spread:
    """Pools the sums of squares of all groups. The interval resamples groups. NaN where they cannot tell.

    Designs without a reward (void) are left out. A design may have any number of executions.
    """
    rows = [_sums([np.asarray(d, float) for d in group if len(d)]) for group in groups]
    columns = np.array([row for row in rows if row is not None]).reshape(-1, 5)
    within, between, share = (float(v[0]) for v in _components(columns.sum(0, keepdims=True)))
    low, high = math.nan, math.nan
    if len(columns) > 1:
        low, high = percentiles(_components(resample(columns))[2])
    return Spread(within, between, Estimate(share, low, high, len(columns)), len(columns))


def groups_of(played: Executions, *, valid_only: bool = False) -> Iterator[tuple[int, Group]]:
    """(step, its group) for every task of every step. An invalid design is one of rewards 0, or left out."""
    kept = played.where(played.structure != "invalid") if valid_only else played
    order = np.lexsort((kept.execution, kept.design, kept.task.astype(str), kept.step))
    kept = kept.where(order)
    place = list(zip(kept.step.tolist(), kept.task, kept.design.tolist(), strict=True))
    group: list[list[float]] = []
    for i, (at, reward) in enumerate(zip(place, kept.reward.tolist(), strict=True)):
        if i and at[:2] != place[i - 1][:2]:
            yield place[i - 1][0], group
            group = []
        if not group or at != place[i - 1]:
            group.append([])
        group[-1].append(reward)
    if group:
        yield place[-1][0], group


def _sums(designs: list[np.ndarray]) -> tuple[float, ...] | None:
    """Sum of squares and degrees of freedom, within and between; how often the latter holds the designs' variance."""
    if len(designs) < 2:
        return None
    sizes = np.array([len(d) for d in designs])
    means = np.array([d.mean() for d in designs])
    n = sizes.sum()
    within = float(sum(((d - d.mean()) ** 2).sum() for d in designs))
    between = float((sizes * (means - (sizes * means).sum() / n) ** 2).sum())
    return within, float(n - len(designs)), between, float(len(designs) - 1), float(n - (sizes**2).sum() / n)


def _components(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[B, 5] sums -> [B] within, between, share."""
    ss_within, df_within, ss_between, df_between, weight = sums.T
    with np.errstate(divide="ignore", invalid="ignore"):
        within = ss_within / df_within
        between = np.maximum(0.0, (ss_between - df_between * within) / weight)
        return within, between, between / (between + within)
