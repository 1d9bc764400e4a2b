"""Pure functions behind figures and tables: several samples of one task, and curves over steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


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
