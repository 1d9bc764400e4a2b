"""Which structures were chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from metaagent_x.analysis import plots, published, structures
from metaagent_x.analysis.executions import Executions
from metaagent_x.analysis.material import Material
from metaagent_x.analysis.sections.base import INTERVALS, Plot, Section, file_name
from metaagent_x.analysis.tables import Cell, Form, Table


def structure(material: Material) -> Section | None:
    """Which structures were chosen: held-out tasks, training tasks, over steps."""
    sets = list(_sets(material))
    items: list[Plot | Table] = []
    bars: list[tuple[str, Mapping[str, float], str]] = []
    for benchmark in sorted({str(b) for _, played in sets for b in played.benchmark}):
        for label, played in sets:
            if len(here := played.where(played.benchmark == benchmark)):
                own = structures.distribution(here, folded=True)
                shares = {name: e.value for name, e in own.shares.items() if not math.isnan(e.value)}
                bars.append((f"{benchmark}: {label}", shares, f"{own.tasks} tasks"))
        if paper := published.STRUCTURES.get(benchmark.partition(":")[0]):
            shares = {name: value / 100 for name, value in paper.items()}
            bars.append((f"published, Qwen3-8B: {benchmark}", shares, "after RL"))
    if bars:
        note = "Folded as in the paper's Table 6: debate counts as ensemble, solver-tester as reflection."
        items.append(Plot("structures", "Share of each structure", plots.structure_bars(bars), note))
    for folded, name, title in ((True, "structures_folded", "as in the paper's Table 6"),
                                (False, "structures_full", "all of them")):  # fmt: skip
        if sets:
            items.append(_structure_table(name, title, sets, folded))
    for group in material.groups:
        if len(group.trained) and group.steps > 1:
            benchmarks, window = sorted(set(group.trained.benchmark)), group.window
            parts = [group.trained.where(group.trained.benchmark == benchmark) for benchmark in benchmarks]
            panels = {b: structures.over_steps(own, window) for b, own in zip(benchmarks, parts, strict=True)}
            caption = (
                f"Training tasks of {group.name}, means of {window} steps; shares of all executions, invalid "
                "designs too. Shaded by who learns. Every step has other tasks: the bands say how far they matter."
            )
            figure = plots.structures_over_steps(panels, group.stages())
            title = f"Structures over training steps: {group.name}"
            items.append(Plot(f"structures_over_steps_{file_name(group.name)}", title, figure, caption))
    note = (
        "What ran, judged by its calls. Held-out tasks are played once a run; on training tasks every design counts "
        "with all its executions."
    )
    return Section("Structures", note, items) if items else None


def _sets(material: Material) -> Iterator[tuple[str, Executions]]:
    """(label, executions) of everything whose structures are shown side by side."""
    for group in material.groups:
        for name, temperature, how in (("cold", 1.0, "T = 1"), ("final", 1.0, "T = 1"), ("final", 0.0, "greedy")):
            if (played := group.held_out(name, temperature)) is not None:
                yield f"{group.name}, {name}, {how}", played
        if len(group.last):
            yield f"{group.name}, training, steps {group.since} to {group.steps}", group.last
    for evaluation in material.evaluations:
        for method, played in evaluation.methods.items():
            yield f"{evaluation.name}, {method}", played


def _structure_table(name: str, title: str, sets: Sequence[tuple[str, Executions]], folded: bool) -> Table:
    rows: list[list[Cell]] = []
    names = structures.FOLDED if folded else structures.FULL
    benchmarks = sorted({str(b) for _, played in sets for b in played.benchmark})
    for benchmark in benchmarks:
        for label, played in sets:
            for (own, level), group in structures.by_group(played).items():
                if own == benchmark:
                    d = structures.distribution(group, folded=folded)
                    rows.append([benchmark, level or "all", label, *(d.shares[n] for n in names), d.invalid, d.tasks])
        paper = published.STRUCTURES.get(benchmark.partition(":")[0])
        if paper and folded:
            known: list[Cell] = [paper[n] / 100 if n in paper else None for n in names]
            rows.append([benchmark, "all", "published, Qwen3-8B after RL", *known, None, None])
    percents: list[tuple[str, Form]] = [(n, "percent") for n in (*names, "invalid")]
    columns: list[tuple[str, Form]] = [
        ("benchmark", "text"), ("difficulty", "text"), ("what", "text"), *percents, ("tasks", "number")
    ]  # fmt: skip
    note = f"Shares of the executions that ran; invalid designs: share of all. {INTERVALS}"
    return Table(name, f"Structures, {title}", columns, rows, note)
