"""What was read, and how accurate the evaluated methods were."""

from __future__ import annotations

import numpy as np

from metaagent_x.analysis import published
from metaagent_x.analysis.intervals import Estimate, proportions
from metaagent_x.analysis.material import Material, described
from metaagent_x.analysis.sections.base import INTERVALS, Plot, Section
from metaagent_x.analysis.tables import Cell, Form, Table


def read(material: Material) -> Section:
    """What the figures are made of."""
    rows: list[list[Cell]] = []
    for group in material.groups:
        for run, sampled in zip(group.variant.runs, group.sampled, strict=True):
            void = sum(line.get("executions/void", 0.0) for line in run.metrics)
            rows.append([
                run.path.name, int(run.config.get("seed", 0)), len(run.metrics), len(sampled.steps),
                len(sampled.executions), len(sampled.executions.tasks[0]), int(void), len(run.evaluations),
                described(run),
            ])  # fmt: skip
    columns: list[tuple[str, Form]] = [
        ("run", "text"), ("seed", "number"), ("steps", "number"), ("with traces", "number"), ("executions", "number"),
        ("training tasks", "number"), ("void, left out", "number"), ("evaluations", "number"), ("settings", "text"),
    ]  # fmt: skip
    items: list[Plot | Table] = [Table("runs", "Runs", columns, rows)] if rows else []
    rows = [
        [e.name, method, ", ".join(sorted(set(played.benchmark))), len(played.tasks[0]), len(played), e.void]
        for e in material.evaluations for method, played in e.methods.items()
    ]  # fmt: skip
    columns = [("folder", "text"), ("method", "text"), ("benchmarks", "text"), ("tasks", "number"),
               ("answers", "number"), ("void in the folder, left out", "number")]  # fmt: skip
    if rows:
        items.append(Table("evaluations", "Evaluations", columns, rows))
    return Section("What was read", "", items)


def accuracy(material: Material) -> Section | None:
    """Evaluations by method and benchmark, the paper's main table below where it has these benchmarks."""
    played = [(e.name, name, own) for e in material.evaluations for name, own in e.methods.items()]
    benchmarks = sorted({str(b) for _, _, own in played for b in own.benchmark})
    if not benchmarks:
        return None
    rows: list[list[Cell]] = []
    for folder, method, own in played:
        line: list[Cell] = [folder, method]
        for benchmark in benchmarks:
            here = own.where(own.benchmark == benchmark)
            right, played_here = here.totals(here.correct), here.totals(np.ones(len(here)))
            line.append(proportions(right, played_here)[0] if len(here) else None)
        rows.append(line)
    known = [b.partition(":")[0] for b in benchmarks]
    if set(known) == set(published.BENCHMARKS):
        for line in rows:
            values = [cell.value for cell in line if isinstance(cell, Estimate)]
            line.append(float(np.mean(values)) if len(values) == len(known) else None)
        known.append(published.AVERAGE)
    for size, methods in published.MAIN.items():
        for method, cells in methods.items():
            if cells.keys() & set(known):
                name = f"{published.LABELS[method]}, Qwen3-{size}"
                rows.append(["published", name, *(published.printed(size, method, b) for b in known)])
    percents: list[tuple[str, Form]] = [(b, "percent") for b in (*benchmarks, *known[len(benchmarks) :])]
    columns: list[tuple[str, Form]] = [("folder", "text"), ("method", "text"), *percents]
    note = (
        f"Share of answers that are entirely right, all samples of a task together. {INTERVALS} Published rows, in "
        "percent: other budgets and subsets of the benchmarks, which are not stated; * disagrees with its row's cells."
    )
    return Section("Accuracy", "", [Table("accuracy", "Accuracy of evaluations", columns, rows, note)])
