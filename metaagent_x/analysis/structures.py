"""Which structures were chosen, and how much of a gain came with another structure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from metaagent_x.analysis.executions import Executions
from metaagent_x.analysis.intervals import Estimate, proportions, ratios, shares
from metaagent_x.mas.classify import STRUCTURES, paper_name

# The rows of the paper's Table 6, and what it does not list.
FOLDED = ("single", "reflection", "ensemble", "other")
FULL = tuple(name for name in STRUCTURES if name != "invalid")
CROSS = (("cold", "cold"), ("rl", "cold"), ("cold", "rl"), ("rl", "rl"))  # (Designer, Executor)


@dataclasses.dataclass(frozen=True)
class Distribution:
    """Shares of structures.

    Attributes:
      shares: structure -> its share of the executions that ran. invalid: share of all executions whose design was
        invalid (or that made no call). executions, tasks: how many there were, invalid ones too.
    """

    shares: Mapping[str, Estimate]
    invalid: Estimate
    executions: int
    tasks: int


def distribution(played: Executions, *, folded: bool) -> Distribution:
    """Shares of the structures, with intervals by resampling tasks.

    Args:
      played: executions of any number of tasks.
      folded: as in the paper's table: debate counts as ensemble, solver-tester as reflection.
    """
    names = FOLDED if folded else FULL
    structure = np.array([paper_name(s) if folded else s for s in played.structure], object)
    ran = shares(played.totals(*(structure == name for name in names)))
    valid = shares(played.totals(structure != "invalid", structure == "invalid"))
    return Distribution(dict(zip(names, ran, strict=True)), valid[1], len(played), len(played.tasks[0]))


def by_group(played: Executions) -> dict[tuple[str, str], Executions]:
    """(benchmark, difficulty) -> its executions; the difficulty "" is all of a benchmark. Those that state only one
    difficulty have that row alone."""
    out = {}
    for benchmark in sorted(set(played.benchmark)):
        own = played.where(played.benchmark == benchmark)
        out[benchmark, ""] = own
        levels = sorted(set(own.difficulty), key=_rank)
        if len(levels) > 1:
            out |= {(benchmark, level or "not stated"): own.where(own.difficulty == level) for level in levels}
    return out


def over_steps(played: Executions, window: int) -> dict[str, list[tuple[float, float, Estimate]]]:
    """Folded structure, or "invalid" -> [(first step, last step, share)] for every `window` steps. Here all are shares
    of all executions, and what no execution shows has no interval."""
    out: dict[str, list[tuple[float, float, Estimate]]] = {name: [] for name in (*FOLDED, "invalid")}
    structure = np.array([paper_name(s) for s in played.structure], object)
    part = (played.step - 1) // window
    for number in np.unique(part):
        chosen = part == number
        own, names = played.where(chosen), structure[chosen]
        counts = own.totals(*(names == name for name in out))
        found = ratios(counts, counts.sum(1, keepdims=True))
        for name, estimate in zip(out, found, strict=True):
            out[name].append((float(own.step.min()), float(own.step.max()), estimate))
    return out


@dataclasses.dataclass(frozen=True)
class Attribution:
    """What happened to the same tasks between two checkpoints.

    A task is newly solved by better execution if its structure is the one of before, by another design if not; newly
    lost likewise. Where tasks were played by sampling, both also happen by chance: the same checkpoint played twice
    solves and loses some. The net shares, solved minus lost, are free of that in the mean, and add up to the gain.

    Attributes:
      pairs: (task, sample) pairs that both sides have. tasks: of them.
      solved_same, solved_changed, lost_same, lost_changed, kept_right, kept_wrong: numbers of pairs.
      execution_share: of the newly solved, those with the same structure (the paper reports 50 % on AIME 2025).
      net_execution, net_design: solved minus lost, as shares of the pairs, with the same structure and with another.
    """

    pairs: int
    tasks: int
    solved_same: int
    solved_changed: int
    lost_same: int
    lost_changed: int
    kept_right: int
    kept_wrong: int
    execution_share: Estimate
    net_execution: Estimate
    net_design: Estimate


def comparable(before: Executions, after: Executions) -> bool:
    """Whether any execution of one side has its counterpart on the other."""
    return not _by_place(before, False).keys().isdisjoint(_by_place(after, False))


def attribute(before: Executions, after: Executions, *, folded: bool = True) -> Attribution:
    """Compares executions with the same task, design and number; what one side lacks is left out.

    Raises:
      ValueError: nothing in common.
    """
    sides = [_by_place(side, folded) for side in (before, after)]
    common = sorted(sides[0].keys() & sides[1].keys())
    if not common:
        raise ValueError("no task in common: improvement is attributed on the same tasks only")
    tasks, index = np.unique([place[0] for place in common], return_inverse=True)
    was, now = (np.array([side[place][0] for place in common]) for side in sides)
    same = np.array([sides[0][place][1] == sides[1][place][1] for place in common])
    solved, lost = (now > was), (now < was)
    parts = np.stack([solved & same, solved & ~same, lost & same, lost & ~same], axis=1).astype(float)
    totals = np.stack([np.bincount(index, part, len(tasks)) for part in (*parts.T, np.ones(len(common)))], axis=1)
    net = totals[:, :2] - totals[:, 2:4]
    share = proportions(totals[:, :1], totals[:, :2].sum(1, keepdims=True))[0]
    execution, design = ratios(net, totals[:, 4:])
    solved_same, solved_changed, lost_same, lost_changed = (int(n) for n in parts.sum(0))
    return Attribution(
        pairs=len(common), tasks=len(tasks), solved_same=solved_same, solved_changed=solved_changed,
        lost_same=lost_same, lost_changed=lost_changed, kept_right=int(((was == now) & (now == 1)).sum()),
        kept_wrong=int(((was == now) & (now == 0)).sum()), execution_share=share, net_execution=execution,
        net_design=design,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Effects:
    """What each role's training gained, from either Designer with either Executor on the same tasks.

    Attributes:
      designer: gain by exchanging the Designer, mean over both Executors. executor: likewise. They add up to `total`.
      interaction: how much more both gain together than the two alone.
      total: both exchanged.
    """

    designer: Estimate
    executor: Estimate
    interaction: Estimate
    total: Estimate


def effects(cells: Mapping[tuple[str, str], Mapping[str, float]]) -> Effects:
    """Of the cross table.

    Args:
      cells: (Designer, Executor), each "cold" or "rl" -> task -> outcome. Tasks that a cell lacks are left out.

    Raises:
      ValueError: a cell is missing, or no task is in all of them.
    """
    if missing := [cell for cell in CROSS if cell not in cells]:
        raise ValueError(f"the cross table lacks Designer {missing[0][0]} with Executor {missing[0][1]}")
    common = sorted(set.intersection(*(set(cells[cell]) for cell in CROSS)))
    if not common:
        raise ValueError("no task is in all four cells of the cross table")
    cc, rc, cr, rr = (np.array([cells[cell][task] for task in common], float) for cell in CROSS)
    gains = np.stack([(rc - cc + rr - cr) / 2, (cr - cc + rr - rc) / 2, rr - rc - cr + cc, rr - cc], axis=1)
    return Effects(*ratios(gains, np.ones((len(common), 1))))


def _by_place(side: Executions, folded: bool) -> dict[tuple[str, int, int], tuple[float, str]]:
    structures = [paper_name(s) if folded else s for s in side.structure]
    places = zip(side.task, side.design.tolist(), side.execution.tolist(), strict=True)
    return dict(zip(places, zip(side.correct.tolist(), structures, strict=True), strict=True))


def _rank(difficulty: str) -> tuple[int, float, str]:
    """Known words in their order, then numbers ("2", "6/8" by its first), then other words."""
    words: Sequence[str] = ("introductory", "easy", "interview", "medium", "competition", "hard")
    if difficulty in words:
        return 0, words.index(difficulty), ""
    try:
        return 1, float(difficulty.split("/")[0]), ""
    except ValueError:
        return 2, 0.0, difficulty
