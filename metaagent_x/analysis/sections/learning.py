"""Learning curves, and what the stages gained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from metaagent_x.analysis import plots
from metaagent_x.analysis.curves import Band, band, stage_gains
from metaagent_x.analysis.figures import WINDOW
from metaagent_x.analysis.material import Group, Material
from metaagent_x.analysis.sections.base import Plot, Section
from metaagent_x.analysis.tables import Cell, Form, Table

LONG = 40  # stages that are still listed one by one


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
