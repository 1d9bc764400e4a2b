"""What every section is made of."""

from __future__ import annotations

import dataclasses
import hashlib
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
    """A label as a part of a file's name; a long one is cut, for a name has at most 255 bytes, and ends in its hash."""
    name = "".join(c if c.isalnum() else "_" for c in label).strip("_")
    if len(name.encode()) <= 100:
        return name
    digest = hashlib.sha256(label.encode("utf-8", "backslashreplace")).hexdigest()
    return f"{name.encode()[:80].decode(errors='ignore')}_{digest[:8]}"
