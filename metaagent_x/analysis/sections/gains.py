"""Where the improvement came from: execution or design, Executor or Designer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from metaagent_x.analysis import plots, published, structures
from metaagent_x.analysis.executions import Executions
from metaagent_x.analysis.material import Material
from metaagent_x.analysis.sections.base import INTERVALS, TEMPERATURES, Plot, Section
from metaagent_x.analysis.tables import Cell, Form, Table


def attribution(material: Material) -> Section | None:
    """Did the execution get better, or the design? Between two checkpoints on the same tasks; by the cross table."""
    compared: list[tuple[str, Executions, Executions]] = []
    for group in material.groups:
        for temperature, how in TEMPERATURES:
            before, after = group.held_out("cold", temperature), group.held_out("final", temperature)
            if before is not None and after is not None:
                compared.append((f"{group.name}: cold to final, {how}", before, after))
    for later in material.evaluations[1:]:
        first = material.evaluations[0]
        for method in [m for m in first.methods if m in later.methods]:
            a, b = first.methods[method], later.methods[method]
            for benchmark in sorted(set(a.benchmark) & set(b.benchmark)):
                label = f"{benchmark}: {first.name} to {later.name}, {method}"
                compared.append((label, a.where(a.benchmark == benchmark), b.where(b.benchmark == benchmark)))
    compared = [(label, a, b) for label, a, b in compared if structures.comparable(a, b)]
    items: list[Plot | Table] = []
    if compared:
        found = [(label, structures.attribute(a, b)) for label, a, b in compared]
        figure = plots.attribution_bars(found)
        caption = (
            "Answers newly solved (right) and newly lost (left). Blue: with the same structure (execution). Orange: "
            "with another structure (design)."
        )
        items.append(Plot("attribution", "Newly solved and newly lost", figure, caption))
        items += [_attribution_table(compared, folded) for folded in (True, False)]
    items += _cross_tables(material)
    if not items:
        return None
    note = (
        "A task is newly solved by better execution if its structure is the one of before, by another design if not. "
        "So a design that keeps its structure and tells its agents something else counts as execution here, as in the "
        "paper; the cross table tells the roles apart. Where tasks are sampled, both also happen by chance; the net "
        "columns, solved minus lost, are free of that on average and add up to the gain."
    )
    return Section("Who improved?", note, items)


def _attribution_table(compared: Sequence[tuple[str, Executions, Executions]], folded: bool) -> Table:
    rows: list[list[Cell]] = []
    for label, before, after in compared:
        a = structures.attribute(before, after, folded=folded)
        rows.append([label, a.solved_same, a.solved_changed, a.execution_share, a.lost_same, a.lost_changed,
                     a.net_execution, a.net_design, a.pairs, a.tasks])  # fmt: skip
    form = "folded structures" if folded else "all structures told apart"
    if folded:
        paper = published.ATTRIBUTION["execution"] / 100
        label = f"published, 8B, AIME 2025 ({published.ATTRIBUTION_REMARK})"
        rows.append([label, None, None, paper, *[None] * 6])
    columns: list[tuple[str, Form]] = [
        ("from, to", "text"), ("solved, same", "number"), ("solved, other", "number"), ("by execution", "percent"),
        ("lost, same", "number"), ("lost, other", "number"), ("net, same", "points"), ("net, other", "points"),
        ("answers", "number"), ("tasks", "number"),
    ]  # fmt: skip
    name = f"attribution_{'folded' if folded else 'full'}"
    note = (
        "Newly solved and newly lost answers with the same structure and with another one. By execution: share of the "
        f"newly solved that kept their structure. Net: in points of accuracy. {INTERVALS}"
    )
    return Table(name, f"Improvement attribution, {form}", columns, rows, note)


def _cross_tables(material: Material) -> Iterator[Table]:
    """Either Designer with either Executor, and the effect of each, over the tasks of all runs of a variant."""
    cells_rows: list[list[Cell]] = []
    effect_rows: list[list[Cell]] = []
    for group in material.groups:
        cells = {}
        for designer, executor in structures.CROSS:
            name = {"coldcold": "cold", "rlrl": "final"}.get(designer + executor, "cross")
            found: dict[str, list[float]] = {}
            for record in group.records(name, 1.0, designer=designer, executor=executor):
                for task, outcome in record["outcomes"].items():
                    found.setdefault(task, []).append(outcome)
            if found:
                cells[designer, executor] = {task: float(np.mean(v)) for task, v in found.items()}
        if len(cells) < len(structures.CROSS) or not set.intersection(*map(set, cells.values())):
            continue
        e = structures.effects(cells)
        mean = {cell: float(np.mean(list(outcomes.values()))) for cell, outcomes in cells.items()}
        for designer in ("cold", "rl"):
            cells_rows.append([group.name, designer, mean[designer, "cold"], mean[designer, "rl"]])
        effect_rows.append([group.name, e.designer, e.executor, e.interaction, e.total, e.total.units])
    if effect_rows:
        columns: list[tuple[str, Form]] = [
            ("run", "text"), ("Designer", "text"), ("with the cold Executor", "percent"), ("with the RL one", "percent")
        ]  # fmt: skip
        yield Table("cross", "Either Designer with either Executor", columns, cells_rows, "Accuracy at T = 1.")
        columns = [("run", "text"), ("Designer", "points"), ("Executor", "points"), ("beyond their sum", "points"),
                   ("both together", "points"), ("tasks", "number")]  # fmt: skip
        note = (
            "Points of accuracy gained by exchanging one role, the mean over both of the other role; the two add up to "
            f"both together. {INTERVALS}"
        )
        yield Table("cross_effects", "What each role's training gained", columns, effect_rows, note)
