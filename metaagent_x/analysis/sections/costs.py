"""What a solved task costs."""

from __future__ import annotations

from metaagent_x.analysis import cost, plots
from metaagent_x.analysis.material import Material
from metaagent_x.analysis.sections.base import INTERVALS, Plot, Section, file_name
from metaagent_x.analysis.tables import Cell, Form, Table


def costs(material: Material) -> Section | None:
    """Calls and tokens per solved task."""
    sets = [(f"{g.name}, steps {g.since} to {g.steps}", g.last) for g in material.groups if len(g.last)]
    sets += [(f"{e.name}, {m}", played) for e in material.evaluations for m, played in e.methods.items()]
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
        items.append(Plot(f"cost_{file_name(label)}", f"Cost by structure: {label}", figure))
    if not rows:
        return None
    columns: list[tuple[str, Form]] = [
        ("what", "text"), ("structure", "text"), ("executions", "number"), ("accuracy", "percent"),
        ("calls", "number"), ("sampled tokens", "number"), ("prompt tokens", "number"), ("calls per solved", "number"),
        ("sampled tokens per solved", "number"), ("and the design's", "number"),
    ]  # fmt: skip
    note = (
        f"Means of an execution, and all that was spent on failed ones too by how many were right. {INTERVALS} The "
        "Designer chooses a structure for each task: rows differ in their tasks too, not in the structure alone."
    )
    return Section("Cost", "", [*items, Table("cost", "Calls and tokens by structure", columns, rows, note)])
