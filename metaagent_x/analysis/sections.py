"""The sections of the analysis: each takes what was read and gives its figures, its tables and what to know of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from metaagent_x.analysis import ablation, cost, plots, published, spread, structures
from metaagent_x.analysis.curves import Band, band, stage_gains
from metaagent_x.analysis.executions import ROLES, Executions
from metaagent_x.analysis.figures import WINDOW
from metaagent_x.analysis.intervals import Estimate, ratios
from metaagent_x.analysis.material import Group, Material, described
from metaagent_x.analysis.tables import Cell, Form, Table

LONG = 40  # stages that are still listed one by one
TEMPERATURES = ((1.0, "T = 1"), (0.0, "greedy"))
_INTERVALS = "Brackets: 95 % intervals by resampling tasks, since executions of one task are not independent."


@dataclasses.dataclass(frozen=True)
class Plot:
    """A figure with the name of its files, its title, and what is to be said below it."""

    name: str
    title: str
    figure: Figure
    caption: str = ""


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page. `items`: plots and tables in order."""

    title: str
    note: str
    items: Sequence[Plot | Table]


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
        [e.path.name, method, ", ".join(sorted(set(played.benchmark))), len(played.tasks[0]), len(played), e.void]
        for e in material.evaluations for method, played in e.methods.items()
    ]  # fmt: skip
    columns = [("folder", "text"), ("method", "text"), ("benchmarks", "text"), ("tasks", "number"),
               ("answers", "number"), ("void in the folder, left out", "number")]  # fmt: skip
    if rows:
        items.append(Table("evaluations", "Evaluations", columns, rows))
    return Section("What was read", "", items)


def accuracy(material: Material) -> Section | None:
    """Evaluations by method and benchmark, the paper's main table below where it has these benchmarks."""
    played = [(e.path.name, name, own) for e in material.evaluations for name, own in e.methods.items()]
    benchmarks = sorted({str(b) for _, _, own in played for b in own.benchmark})
    if not benchmarks:
        return None
    rows: list[list[Cell]] = []
    for folder, method, own in played:
        line: list[Cell] = [folder, method]
        for benchmark in benchmarks:
            here = own.where(own.benchmark == benchmark)
            line.append(ratios(here.totals(here.correct), here.totals(np.ones(len(here))))[0] if len(here) else None)
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
        f"Share of answers that are entirely right, all samples of a task together. {_INTERVALS} Published rows, in "
        "percent: other budgets and subsets of the benchmarks, which are not stated; * disagrees with its row's cells."
    )
    return Section("Accuracy", "", [Table("accuracy", "Accuracy of evaluations", columns, rows, note)])


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
            items.append(Plot(f"structures_over_steps_{_file(group.name)}", title, figure, caption))
    note = (
        "What ran, judged by its calls. Held-out tasks are played once a run; on training tasks every design counts "
        "with all its executions."
    )
    return Section("Structures", note, items) if items else None


def curves(material: Material) -> Section | None:
    """Learning curves, and what each role's stages gained."""
    groups = [g for g in material.groups if g.steps]
    if not groups:
        return None
    several = len(groups) > 1

    def lines(runs_of, window=WINDOW, role: str = "") -> dict[str, Band]:
        return {(g.name if several else role or "all"): band(runs_of(g), window) for g in groups}

    def metric(key: str, role: str = "") -> dict[str, Band]:
        return lines(lambda g: g.curve(lambda line: line.get(key)), role=role)

    def entropy(role: str) -> dict[str, Band]:
        def value(line: Mapping) -> float | None:
            return line.get(f"{role}/entropy", line.get("entropy") if line.get("role/active") == [role] else None)

        return lines(lambda g: g.curve(value), window=1, role=role)

    def held_out(g: Group) -> list[dict[int, float]]:
        kept = ("cold", "stage", "final")
        return [
            {e["step"]: e["accuracy"] for e in run.evaluations if e["name"] in kept and e["temperature"] == 1.0}
            for run in g.variant.runs
        ]

    panels = [
        ("reward", metric("reward/mean"), False), ("accuracy, training tasks", metric("accuracy"), True),
        ("accuracy, held-out tasks, T = 1", lines(held_out, window=1), True),
        ("valid designs", metric("designs/valid", "designer"), True),
        ("tokens of a design", lines(lambda g: g.lengths("designer"), role="designer"), False),
        ("tokens of an agent's reply", lines(lambda g: g.lengths("executor"), role="executor"), False),
        ("designs cut by length", metric("designs/truncated", "designer"), True),
        ("replies cut by length", metric("calls/truncated", "executor"), True),
        ("completions that end in repetition", metric("completions/repetition"), True),
        ("entropy while the Designer learns, nats", entropy("designer"), False),
        ("entropy while the Executor learns, nats", entropy("executor"), False),
        ("agent calls a step", metric("calls", "executor"), False),
    ]  # fmt: skip
    known = [p for p in panels if any(len(b.mean) and not np.isnan(b.mean).all() for b in p[1].values())]
    stages = [g.stages() for g in groups]
    same = stages[0] if all(s == stages[0] for s in stages) else None
    caption = f"Means of {WINDOW} steps, of each run by itself."
    if any(len(g.variant.runs) > 1 for g in groups):
        caption += " Lines: mean over seeds; bands: from the lowest seed to the highest."
    if several:
        names = [f"{g.name}: {'1 run' if len(g.variant.runs) == 1 else f'{len(g.variant.runs)} runs'}" for g in groups]
        caption += f" {'; '.join(names)}."
    items: list[Plot | Table] = [
        Plot("learning_curves", "Learning curves", plots.learning_curves(known, same), caption)
    ]
    items += _stage_tables(groups)
    return Section("Learning curves", "Shaded: who learns (blue the Executor, orange the Designer).", items)


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
                label = f"{benchmark}: {first.path.name} to {later.path.name}, {method}"
                compared.append((label, a.where(a.benchmark == benchmark), b.where(b.benchmark == benchmark)))
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


def credit(material: Material) -> Section | None:
    """Is the signal in the design or in the execution?"""
    rows: list[list[Cell]] = []
    items: list[Plot | Table] = []
    for group in material.groups:
        per_step = [pair for s in group.sampled for pair in spread.groups_of(s.executions)]
        if not any(len(g) > 1 for _, g in per_step):
            continue
        since, window = group.since, group.window
        valid = [pair for s in group.sampled for pair in spread.groups_of(s.executions, valid_only=True)]
        for label, pairs in (("all designs", per_step), ("valid designs only", valid)):
            for when, chosen in (("all steps", pairs), (f"from step {since}", [p for p in pairs if p[0] >= since])):
                found = spread.spread([g for _, g in chosen])
                deviations = math.sqrt(found.between), math.sqrt(found.within)
                rows.append([group.name, label, when, found.share, *deviations, found.groups])
        windows: dict[int, list[spread.Group]] = {}
        for step, g in per_step:
            windows.setdefault((step - 1) // window, []).append(g)
        windows = dict(sorted(windows.items()))
        shares = [(at * window + 1.0, (at + 1.0) * window, spread.spread(own).share) for at, own in windows.items()]
        flat = {role: band(group.curve(lambda line, r=role: line.get(f"groups/flat/{r}")), WINDOW) for role in ROLES}
        advantages = {role: np.concatenate([s.advantages[role] for s in group.sampled]) for role in ROLES}
        figure = plots.credit([s for s in shares if not math.isnan(s[2].value)], flat, advantages, group.stages())
        caption = (
            f"{group.name}. Upper left: means of {window} steps. Lower row: advantages of the calls that were trained "
            "on, clipped to 4 standard deviations."
        )
        items.append(Plot(f"credit_{_file(group.name)}", f"Where the signal is: {group.name}", figure, caption))
    if not rows:
        return None
    columns: list[tuple[str, Form]] = [
        ("run", "text"), ("designs", "text"), ("when", "text"), ("share between designs", "percent"),
        ("sd between designs", "number"), ("sd within a design", "number"), ("tasks", "number"),
    ]  # fmt: skip
    note = (
        "Variance components of the reward within a task: what lies between the designs' own means (chance among their "
        "N executions taken off) against what lies among executions of one design. With N = 1 they cannot be told "
        "apart. Intervals by resampling the tasks of steps."
    )
    items.insert(0, Table("credit", "Spread of rewards within a task", columns, rows, note))
    return Section("Credit", "A Designer learns from the first kind of spread, an Executor from both.", items)


def costs(material: Material) -> Section | None:
    """Calls and tokens per solved task."""
    sets = [(f"{g.name}, steps {g.since} to {g.steps}", g.last) for g in material.groups if len(g.last)]
    sets += [(f"{e.path.name}, {m}", played) for e in material.evaluations for m, played in e.methods.items()]
    rows: list[list[Cell]] = []
    items: list[Plot | Table] = []
    for label, played in sets:
        if not len(played):
            continue
        found = cost.by_structure(played)
        for name, c in [*found.items(), ("all", cost.cost(played))]:
            rows.append([label, name, c.executions, c.accuracy, c.calls, c.tokens, c.prompt_tokens, c.calls_per_solved,
                         c.tokens_per_solved, c.with_design])  # fmt: skip
        figure = plots.costs({name: c for name, c in found.items() if name != "invalid"})
        items.append(Plot(f"cost_{_file(label)}", f"Cost by structure: {label}", figure))
    if not rows:
        return None
    columns: list[tuple[str, Form]] = [
        ("what", "text"), ("structure", "text"), ("executions", "number"), ("accuracy", "percent"),
        ("calls", "number"), ("sampled tokens", "number"), ("prompt tokens", "number"), ("calls per solved", "number"),
        ("sampled tokens per solved", "number"), ("and the design's", "number"),
    ]  # fmt: skip
    note = (
        f"Means of an execution, and all that was spent on failed ones too by how many were right. {_INTERVALS} The "
        "Designer chooses a structure for each task: rows differ in their tasks too, not in the structure alone."
    )
    return Section("Cost", "", [*items, Table("cost", "Calls and tokens by structure", columns, rows, note)])


SECTIONS = (read, accuracy, structure, curves, attribution, ablations, credit, costs)


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
            yield f"{evaluation.path.name}, {method}", played


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
    note = f"Shares of the executions that ran; invalid designs: share of all. {_INTERVALS}"
    return Table(name, f"Structures, {title}", columns, rows, note)


def _stage_tables(groups: Sequence[Group]) -> Iterator[Table]:
    """What the stages of each role gained, and stage by stage where there are not too many."""
    total: list[list[Cell]] = []
    each: list[list[Cell]] = []
    for group in groups:
        for run in group.variant.runs:
            steps, active = (
                [line["step"] for line in run.metrics],
                [line.get("role/active", []) for line in run.metrics],
            )
            reward, right = (stage_gains(steps, active, run.column(k), WINDOW) for k in ("reward/mean", "accuracy"))
            for roles in dict.fromkeys(s.roles for s in reward):
                own = [i for i, s in enumerate(reward) if s.roles == roles]
                gains = [sum(stages[i].gain for i in own) for stages in (reward, right)]
                total.append([run.path.name, " and ".join(roles), len(own), *gains])
            for r, a in zip(reward, right, strict=True):
                each.append([run.path.name, f"{r.first} to {r.last}", " and ".join(r.roles), r.before, r.after,
                             a.before, a.after, a.gain])  # fmt: skip
    note = (
        f"A stage's rise: mean of its last {WINDOW} steps against that of the stage before (first stage: against its "
        f"own first {WINDOW}). Rises add up to that of the run. Training tasks, other ones at every step."
    )
    columns: list[tuple[str, Form]] = [("run", "text"), ("learned", "text"), ("stages", "number"),
                                       ("reward gained", "number"), ("accuracy gained", "points")]  # fmt: skip
    yield Table("gains_by_role", "Gains by role that learned", columns, total, note)
    if len(each) <= LONG:
        columns = [
            ("run", "text"), ("steps", "text"), ("learned", "text"), ("reward before", "number"), ("after", "number"),
            ("accuracy before", "percent"), ("after", "percent"), ("gain", "points"),
        ]  # fmt: skip
        yield Table("gains_by_stage", "Gains stage by stage", columns, each, note)


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
        f"newly solved that kept their structure. Net: in points of accuracy. {_INTERVALS}"
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
        if len(cells) < len(structures.CROSS):
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
            f"both together. {_INTERVALS}"
        )
        yield Table("cross_effects", "What each role's training gained", columns, effect_rows, note)


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


def _outcomes(group: Group, temperature: float) -> dict[int, Mapping[str, float]]:
    """Seed -> outcomes of its final evaluation, of the runs that have one."""
    found = {}
    for run in group.variant.runs:
        if (record := run.evaluation("final", temperature=temperature)) is not None:
            found[int(run.config.get("seed", 0))] = record["outcomes"]
    return found


def _published_for(group: Group) -> str:
    """The paper's rows of the same settings, of what was varied here."""
    config, varied = group.variant.runs[0].config, group.variant.settings.keys()
    rows = [
        row for row in published.ABLATIONS
        if varied & row.settings.keys() and all(config.get(k) == v for k, v in row.settings.items())
    ]  # fmt: skip
    return "; ".join(f"{row.label}: {_cells(row)}" for row in rows) or "-"


def _cells(row: published.Ablation) -> str:
    return ", ".join(f"{name} {value:.1f}" for name, value in row.cells.items()) or row.remark


def _file(label: str) -> str:
    """A label as a part of a file's name."""
    return "".join(c if c.isalnum() else "_" for c in label).strip("_")
