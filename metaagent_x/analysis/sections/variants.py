"""Ablations: variants against each other."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping, Sequence

import numpy as np

from metaagent_x.analysis import ablation, plots, published
from metaagent_x.analysis.material import Group, Material
from metaagent_x.analysis.sections.base import TEMPERATURES, Plot, Section
from metaagent_x.analysis.tables import Cell, Form, Table


def ablations(material: Material) -> Section | None:
    """Variants against each other, the published figures beside."""
    groups = material.groups
    if len(groups) < 2:
        return None
    items: list[Plot | Table] = []
    for temperature, how in TEMPERATURES:
        sides = [_outcomes(group, temperature) for group in groups]
        if not any(sides):
            continue
        known = ablation.compare(sides)
        rows = [
            (f"{g.variant.label}", c, [float(np.mean(list(o.values()))) for o in side.values()])
            for g, c, side in zip(groups, known, sides, strict=True)
        ]
        items.append(Plot(f"ablation_{how.replace(' = ', '')}", f"Accuracy on held-out tasks, {how}",
                          plots.variant_dots(rows), "Dots in grey: single runs."))  # fmt: skip
        items.append(_ablation_table(f"ablation_{how.replace(' = ', '')}", how, groups, known))
    items.append(_training_table(groups))
    varied = {field for group in groups for field in group.variant.settings}
    paper: list[list[Cell]] = [
        [row.table, row.label, _cells(row), row.remark or None]
        for row in published.ABLATIONS if varied & row.settings.keys()
    ]  # fmt: skip
    if paper:
        columns: list[tuple[str, Form]] = [
            ("published", "text"), ("row", "text"), ("accuracy, %", "text"), ("remark", "text")
        ]  # fmt: skip
        note = "From the paper, Qwen3-8B on its own benchmarks: to be compared in direction, not in height."
        items.append(Table("ablation_published", "Published ablations", columns, paper, note))
    return Section("Variants", "Runs of equal settings but for the seed are one variant.", items)


def _ablation_table(name: str, how: str, groups: Sequence[Group], known: Sequence[ablation.Comparison]) -> Table:
    rows: list[list[Cell]] = []
    for group, c in zip(groups, known, strict=True):
        over = "-" if not c.figure.units else f"{c.figure.units} {c.over}"
        rows.append([group.variant.label, len(group.variant.runs), c.figure, over, c.gain, c.by_task, c.by_run,
                     _published_for(group)])  # fmt: skip
    columns: list[tuple[str, Form]] = [
        ("variant", "text"), ("runs", "number"), ("accuracy", "percent"), ("interval over", "text"),
        ("against the first", "points"), ("p by task", "p"), ("p by run", "p"), ("published, Qwen3-8B, %", "text"),
    ]  # fmt: skip
    note = (
        "Accuracy at the end, mean over the runs. Its interval is over seeds (Student) from 3 runs on, else over "
        "tasks. Against the first variant: on the same tasks, interval by resampling tasks, which speaks of these runs "
        "and other tasks. p by task: exact McNemar test, of one run against one. p by run: t-test over seeds, paired "
        "where 3 or more are common, which speaks of other runs."
    )
    return Table(name, f"Variants on held-out tasks, {how}", columns, rows, note)


def _training_table(groups: Sequence[Group]) -> Table:
    rows: list[list[Cell]] = []
    for group in groups:
        line: list[Cell] = [group.variant.label, len(group.variant.runs)]
        for key in ("reward/mean", "accuracy", "designs/valid", "calls", "completions/repetition"):
            own = [[v for step, v in run.items() if step >= group.since and not math.isnan(v)]
                   for run in group.curve(lambda entry, k=key: entry.get(k))]  # fmt: skip
            means = [float(np.mean(values)) for values in own if values]
            line.append(float(np.mean(means)) if means else None)
        rows.append(line)
    columns: list[tuple[str, Form]] = [
        ("variant", "text"), ("runs", "number"), ("reward", "number"), ("accuracy", "percent"),
        ("valid designs", "percent"), ("calls a step", "number"), ("repetition", "percent"),
    ]  # fmt: skip
    return Table("variants_training", "Variants in training, last steps", columns, rows, "Means of the last tenth.")


def _outcomes(group: Group, temperature: float) -> dict[int | str, Mapping[str, float]]:
    """Seed -> outcomes of its final evaluation, of the runs that have one; the folder in place of a seed that several
    runs have, so that none of them is paired by it."""
    found: dict[int | str, Mapping[str, float]] = {}
    times = collections.Counter(group.variant.seeds)
    for run in group.variant.runs:
        if (record := run.evaluation("final", temperature=temperature)) is not None:
            seed = int(run.config.get("seed", 0))
            found[seed if times[seed] == 1 else str(run.path)] = record["outcomes"]
    return found


def _published_for(group: Group) -> str:
    """The paper's rows of the same settings, of what was varied here. They are of runs with a Designer."""
    if group.variant.runs[0].design:
        return "-"
    config, varied = group.variant.runs[0].config, group.variant.settings.keys()
    rows = [
        row for row in published.ABLATIONS
        if varied & row.settings.keys() and all(config.get(k) == v for k, v in row.settings.items())
    ]  # fmt: skip
    return "; ".join(f"{row.label}: {_cells(row)}" for row in rows) or "-"


def _cells(row: published.Ablation) -> str:
    return ", ".join(f"{name} {value:.1f}" for name, value in row.cells.items()) or row.remark
