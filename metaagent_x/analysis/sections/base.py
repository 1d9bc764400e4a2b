"""What every section is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from matplotlib.figure import Figure

from metaagent_x.analysis.tables import Table

TEMPERATURES = ((1.0, "T = 1"), (0.0, "greedy"))
INTERVALS = "Brackets: 95 % intervals by resampling tasks, since executions of one task are not independent."


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


def file_name(label: str) -> str:
    """A label as a part of a file's name."""
    return "".join(c if c.isalnum() else "_" for c in label).strip("_")
