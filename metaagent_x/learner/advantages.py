"""Group-relative advantages of both roles, on the host in float64 (paper, eq. 4 to 7).

Peers of a Designer completion: the M designs of the same question. Peers of an Executor trajectory: all trajectories of
all executions of all designs of the same question. One rule for both roles: (reward - mean) / (std + eps), the standard
deviation with `ddof` 1 as the public reference trains. A group without signal (one member, or rewards within 1e-9 of
each other) gets exactly 0.0, so rounding never becomes a gradient.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

TIE = 1e-9  # a spread of rewards up to this is rounding, not signal


def designer_advantages(
    rewards: npt.ArrayLike, counted: npt.ArrayLike | None = None, *, eps: float = 1e-6, ddof: int = 1
) -> np.ndarray:
    """Advantages of the M designs of one question (eq. 4 and 5).

    Args:
      rewards: [M, N] outcome rewards, design by execution. An invalid design is a row of zeros.
      counted: [M, N] False where the execution is void. Such entries are ignored, whatever they hold. A design without
        any counted execution is out of mean and std and gets 0.0.
      eps: added to the standard deviation.
      ddof: 1 divides the sum of squares by M - 1, 0 by M.

    Returns:
      [M] float64.

    Raises:
      ValueError: wrong number of axes, shapes that differ, or a counted reward that is not finite.
    """
    table = np.asarray(rewards, np.float64)
    if table.ndim != 2:
        raise ValueError(f"rewards has shape {table.shape}; expected 2 axes [M designs, N executions]")
    keep = np.ones(table.shape, bool) if counted is None else np.asarray(counted, bool)
    if keep.shape != table.shape:
        raise ValueError(f"counted has shape {keep.shape} but rewards has {table.shape}; both are [M, N]")
    _check_finite(table, keep, ("design", "execution"))
    number = keep.sum(axis=1)
    means = np.where(keep, table, 0.0).sum(axis=1) / np.maximum(number, 1)
    present = number > 0
    out = np.zeros(len(means))
    out[present] = _standardise(means[present], means[present], eps, ddof)
    return out


def executor_advantages(
    rewards: npt.ArrayLike,
    execution: npt.ArrayLike | None = None,
    *,
    weigh: Literal["trajectory", "execution"] = "trajectory",
    eps: float = 1e-6,
    ddof: int = 1,
) -> np.ndarray:
    """Advantages of the T executor trajectories of one question (eq. 6 and 7).

    Args:
      rewards: [T] reward of the execution that each trajectory belongs to.
      execution: [T] which execution that is; any integers. Needed by weigh="execution".
      weigh: "trajectory" is eq. 7 as written: mean and std over trajectories, so an execution with more of them weighs
        more. "execution": mean and std over executions, each once.
      eps: added to the standard deviation.
      ddof: 1 divides the sum of squares by the number of members - 1, 0 by their number.

    Returns:
      [T] float64.

    Raises:
      ValueError: wrong shapes, a reward that is not finite, an unknown `weigh`; with "execution": missing ids, or two
        trajectories of one execution with different rewards.
    """
    values = np.asarray(rewards, np.float64)
    if values.ndim != 1:
        raise ValueError(f"rewards has shape {values.shape}; expected 1 axis [T trajectories of one question]")
    _check_finite(values, np.ones(values.shape, bool), ("trajectory",))
    if weigh not in ("trajectory", "execution"):
        raise ValueError(f"weigh={weigh!r} is not one of trajectory, execution")
    if weigh == "trajectory":
        return _standardise(values, values, eps, ddof)
    if execution is None:
        raise ValueError("weigh='execution' needs `execution`, the [T] ids of the executions")
    ids = np.asarray(execution)
    if ids.shape != values.shape:
        raise ValueError(f"execution has shape {ids.shape} but rewards has {values.shape}; both are [T]")
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    one_each = values[first]
    if differing := np.flatnonzero(one_each[inverse] != values).tolist():
        t = differing[0]
        raise ValueError(
            f"trajectory {t} of execution {ids[t]} has reward {values[t]} but another of that execution has "
            f"{one_each[inverse][t]}; all trajectories of an execution carry its one outcome"
        )
    return _standardise(values, one_each, eps, ddof)


def _standardise(values: np.ndarray, group: np.ndarray, eps: float, ddof: int) -> np.ndarray:
    """(values - mean) / (std + eps) of `group`; zeros if it carries no signal. Two passes, so nothing cancels."""
    if len(group) < 2 or group.max() - group.min() <= TIE:
        return np.zeros(len(values))
    mean = group.mean()
    std = np.sqrt(np.square(group - mean).sum() / (len(group) - ddof))
    return (values - mean) / (std + eps)


def _check_finite(values: np.ndarray, keep: np.ndarray, axes: tuple[str, ...]) -> None:
    bad = np.argwhere(keep & ~np.isfinite(values))
    if len(bad):
        where = ", ".join(f"{axis} {i}" for axis, i in zip(axes, bad[0], strict=True))
        raise ValueError(f"rewards at {where} is {values[tuple(bad[0])]}; a counted reward must be finite")
