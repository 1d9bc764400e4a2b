"""Where the learning signal is."""

from __future__ import annotations

import math

import numpy as np

from metaagent_x.analysis import plots, spread
from metaagent_x.analysis.curves import band
from metaagent_x.analysis.executions import ROLES
from metaagent_x.analysis.figures import WINDOW
from metaagent_x.analysis.material import Material
from metaagent_x.analysis.sections.base import Plot, Section, file_name
from metaagent_x.analysis.tables import Cell, Form, Table


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
        items.append(Plot(f"credit_{file_name(group.name)}", f"Where the signal is: {group.name}", figure, caption))
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
