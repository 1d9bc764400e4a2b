"""Trajectories of different lengths -> rows of one fixed length, as few as a simple rule can make them."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from metaagent_x.learner.objective import Aggregate, token_weights
from metaagent_x.rollout.tree import Trajectory

CANDIDATES = 128  # among so many lengths the packer looks for those that fill a row
ROLES = ("", "designer", "executor")  # the int8 code of a role is its index; 0 is padding


class Batch(NamedTuple):
    """R packed rows of T positions. Padding holds 0 everywhere.

    A trajectory of n ids takes n - 1 neighbouring positions of one row: inputs ids[:-1], targets ids[1:], so the last
    target of one never comes from the next.

    Attributes:
      tokens: [R, T] int32 input ids.
      targets: [R, T] int32 the id that follows each input id.
      positions: [R, T] int32 from 0 within each trajectory.
      segment_ids: [R, T] int32 from 1 within each row; attention stays within one value.
      trajectory: [R, T] int32 from 1, unique in the batch: index in the list that was packed, plus 1.
      mask: [R, T] bool, True where the TARGET was sampled by the policy.
      old_logp: [R, T] float32 the engine's log-prob of the target, where `mask`.
      advantages: [R, T] float32 of the trajectory.
      weights: [R, T] float32 token weights, by role, of this whole batch.
      roles: [R, T] int8: 1 designer, 2 executor.
    """

    tokens: np.ndarray
    targets: np.ndarray
    positions: np.ndarray
    segment_ids: np.ndarray
    trajectory: np.ndarray
    mask: np.ndarray
    old_logp: np.ndarray
    advantages: np.ndarray
    weights: np.ndarray
    roles: np.ndarray


def bucket_rows(rows: int, multiple: int = 1) -> int:
    """The smallest multiple * 2^k that holds `rows`: few shapes, so few compilations."""
    if multiple < 1:
        raise ValueError(f"multiple={multiple} must be at least 1")
    size = multiple
    while size < rows:
        size *= 2
    return size


def pack(
    trajectories: Sequence[Trajectory],
    row_tokens: int,
    *,
    aggregate: Aggregate = "token_mean",
    denominator: float | None = None,
    rows_multiple: int = 1,
    drop_too_long: bool = False,
    row_segments: int | None = None,
) -> Batch:
    """Packs whole trajectories into few rows; the same list always gives the same rows.

    Masks come from the trajectories' own flags, never from ids, so pad and stop ids may coincide. The first id of a
    trajectory is nobody's target: it has no context and is not trained. Filler rows are empty: weight 0, mask False.

    Args:
      trajectories: what to pack; `advantage` and `question` must be set.
      row_tokens: T, positions in a row.
      aggregate: how tokens are weighed, see `token_weights`; each role by itself, over this whole batch.
      denominator: for aggregate="constant".
      rows_multiple: R is this times a power of two.
      drop_too_long: leave out trajectories that do not fit (the others keep their ids) instead of raising.
      row_segments: trajectories that a row may hold at most; None: any number.

    Raises:
      ValueError: a trajectory longer than a row, or of fewer than 2 ids; both named. `row_segments` below 1.
    """
    starts, used = _place(trajectories, row_tokens, drop_too_long, row_segments)
    shape = (bucket_rows(used, rows_multiple), row_tokens)
    ints = {k: np.zeros(shape, np.int32) for k in ("tokens", "targets", "positions", "segment_ids", "trajectory")}
    mask, roles, question = np.zeros(shape, bool), np.zeros(shape, np.int8), np.zeros(shape, np.int32)
    old_logp, advantages, weights = (np.zeros(shape, np.float32) for _ in range(3))
    for index, (row, start, segment) in starts.items():
        t = trajectories[index]
        n = len(t.tokens) - 1
        at = (row, slice(start, start + n))
        ints["tokens"][at], ints["targets"][at] = t.tokens[:-1], t.tokens[1:]
        ints["positions"][at] = np.arange(n)
        ints["segment_ids"][at], ints["trajectory"][at] = segment, index + 1
        mask[at] = t.mask[1:]
        old_logp[at] = np.where(t.mask[1:], t.logprobs[1:], 0.0)
        advantages[at], roles[at], question[at] = t.advantage, ROLES.index(t.role), t.question
    for code in (1, 2):
        weights += token_weights(
            mask & (roles == code), ints["trajectory"], question, aggregate=aggregate, denominator=denominator
        ).astype(np.float32)
    return Batch(**ints, mask=mask, old_logp=old_logp, advantages=advantages, weights=weights, roles=roles)


def by_trajectory(batch: Batch, values: np.ndarray) -> dict[int, np.ndarray]:
    """Takes values of a packed batch apart again.

    Args:
      values: [R, T], one a target.

    Returns:
      Index in the list that was packed -> the values at its sampled targets, in their order.
    """
    owners = batch.trajectory[batch.mask]
    by_owner = np.argsort(owners, kind="stable")  # a trajectory's positions are neighbours in one row, so in order
    found, first = np.unique(owners[by_owner], return_index=True)
    parts = np.split(values[batch.mask][by_owner], first[1:])
    return {int(owner) - 1: part for owner, part in zip(found, parts, strict=False)}


def _place(
    trajectories: Sequence[Trajectory], row_tokens: int, drop_too_long: bool, row_segments: int | None
) -> tuple[dict[int, tuple[int, int, int]], int]:
    """Index of a trajectory -> (row, first position, segment id), and the number of rows used."""
    most = len(trajectories) if row_segments is None else row_segments
    if row_segments is not None and row_segments < 1:
        raise ValueError(f"row_segments={row_segments} must be at least 1, or None for any number")
    lengths = {}
    for index, t in enumerate(trajectories):
        n = len(t.tokens) - 1
        place = f"task {t.task_id!r}, {t.role}, design {t.design}, execution {t.execution}, path {t.path!r}"
        name = f"trajectory {index} ({place})"
        if n < 1:
            raise ValueError(f"{name} has {n + 1} ids; it needs at least 2, one of context and one to learn")
        if n <= row_tokens:
            lengths[index] = n
        elif not drop_too_long:
            raise ValueError(
                f"{name} needs {n} positions but a row has row_tokens={row_tokens}; raise learner.row_tokens to {n}, "
                "shorten the limits of rollout, or pass drop_too_long=True"
            )
    placed: dict[int, tuple[int, int, int]] = {}
    rows = _rows(lengths, row_tokens, most)
    for row, members in enumerate(rows):
        start = 0
        for segment, index in enumerate(members, 1):
            placed[index] = (row, start, segment)
            start += lengths[index]
    return placed, len(rows)


def _rows(lengths: Mapping[int, int], size: int, most: int) -> list[list[int]]:
    """The keys of `lengths` as rows of at most `size` tokens and `most` members, few rows.

    Best-fit decreasing, and where that leaves more rows than the tokens need, one row filled after the other: lengths
    that are alike, as those of a batch of rollouts often are, leave gaps that only a choice of the right ones closes.
    """
    order = sorted(lengths, key=lambda i: (-lengths[i], i))
    rows = _best_fit(order, lengths, size, most)
    if len(rows) > -(-sum(lengths.values()) // size):
        rows = min(rows, _one_by_one(order, lengths, size, most), key=len)
    return rows


def _best_fit(order: Sequence[int], lengths: Mapping[int, int], size: int, most: int) -> list[list[int]]:
    """Every length into the fullest row that has room for it, the longest first."""
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (free positions, row), sorted: the first that fits is the tightest, oldest first
    for index in order:
        n = lengths[index]
        found = bisect.bisect_left(room, (n, 0))
        free, row = room.pop(found) if found < len(room) else (size, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(index)
        if len(rows[row]) < most:  # a row that is full by number takes no more, whatever is free
            bisect.insort(room, (free - n, row))
    return rows


def _one_by_one(order: Sequence[int], lengths: Mapping[int, int], size: int, most: int) -> list[list[int]]:
    """The longest that is left opens a row, and those that fill it best join (Gupta and Ho 1999, minimum bin slack)."""
    left, rows = list(order), []
    while left:
        first = left.pop(0)
        room = size - lengths[first]
        fitting = [i for i in left if lengths[i] <= room]
        # Enough to choose from, spread over all lengths, and bounded work.
        offered = fitting[:: -(-len(fitting) // CANDIDATES)] if fitting else []
        chosen = [offered[at] for at in _fullest([lengths[i] for i in offered], room, most - 1)]
        room -= sum(lengths[i] for i in chosen)
        for i in fitting:  # what was not offered may fit as well
            if lengths[i] <= room and len(chosen) < most - 1 and i not in chosen:
                chosen.append(i)
                room -= lengths[i]
        taken = set(chosen)
        left = [i for i in left if i not in taken]
        rows.append([first, *chosen])
    return rows


def _fullest(lengths: Sequence[int], room: int, most: int) -> list[int]:
    """Places of at most `most` of the lengths whose sum comes nearest to `room` and not above it; long ones first.

    Subset sums as the bits of one integer: bit `count * block + total` says that `count` of them can sum to `total`. A
    block is wide enough that no sum runs into the next one before the mask cuts it off.
    """
    most = min(most, len(lengths), room // min(lengths)) if lengths else 0
    block, sums = 2 * room + 1, (1 << room + 1) - 1
    mask = sum(sums << count * block for count in range(most + 1))
    reached = [1]
    for n in lengths:
        reached.append(reached[-1] | reached[-1] << block + n & mask)
    totals = [(reached[-1] >> count * block & sums).bit_length() - 1 for count in range(most + 1)]
    best = max(range(most + 1), key=totals.__getitem__)
    at, chosen = best * block + totals[best], []
    for i in range(len(lengths) - 1, -1, -1):
        if not reached[i] >> at & 1:  # not without this one
            chosen.append(i)
            at -= block + lengths[i]
    return chosen[::-1]
