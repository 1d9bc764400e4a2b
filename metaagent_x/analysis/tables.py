"""A table once, as Markdown, as CSV for a spreadsheet, and as HTML."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Sequence
from typing import Literal

from metaagent_x.analysis.html import Markup, tag
from metaagent_x.analysis.html import table as html_table
from metaagent_x.analysis.intervals import Estimate

Form = Literal["text", "percent", "points", "number", "p"]
Cell = str | int | float | Estimate | None


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows under columns, each with the form of its numbers.

    Attributes:
      name: of its files. title: above it. columns: (heading, form); the first one names the rows.
      rows: one cell a column. `percent` and `points` are given as fractions; None is "-".
      note: what a reader must know, below it.
    """

    name: str
    title: str
    columns: Sequence[tuple[str, Form]]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def markdown(self) -> str:
        """As a pipe table with its title and note."""
        head = [name for name, _ in self.columns]
        rule = ["---", *("---" if form == "text" else "---:" for _, form in self.columns[1:])]
        lines = "\n".join(f"| {' | '.join(map(_piped, line))} |" for line in (head, rule, *self._texts()))
        return f"### {self.title}\n\n{lines}\n" + (f"\n{self.note}\n" if self.note else "")

    def csv(self) -> str:
        """Plain numbers; a column that has intervals is three columns."""
        wide = [any(isinstance(row[i], Estimate) for row in self.rows) for i in range(len(self.columns))]
        out = io.StringIO()
        write = csv.writer(out, lineterminator="\n").writerow
        ends = {True: ("", " low", " high"), False: ("",)}
        write([name + end for (name, _), w in zip(self.columns, wide, strict=True) for end in ends[w]])
        for row in self.rows:
            line: list[object] = []
            for cell, w in zip(row, wide, strict=True):
                values = (cell.value, cell.low, cell.high) if isinstance(cell, Estimate) else (cell, None, None)
                line += map(_plain, values if w else values[:1])
            write(line)
        return out.getvalue()

    def html(self) -> Markup:
        """Without the title. An interval stands below its figure."""
        rows: list[list[object]] = [
            [texts[0], *(_cell(text, form) for text, (_, form) in zip(texts[1:], self.columns[1:], strict=True))]
            for texts in self._texts()
        ]
        head: list[object] = [tag("span", name, class_=form) for name, form in self.columns]
        return html_table(head, rows)

    def _texts(self) -> list[list[str]]:
        return [[said(c, form) for c, (_, form) in zip(row, self.columns, strict=True)] for row in self.rows]


def said(cell: Cell, form: Form) -> str:
    """A cell as a person reads it: "55.2 % [50.1, 60.3]", "+3.1", "0.012", "-"."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return "-"
    if isinstance(cell, Estimate):
        value = said(cell.value, form)
        if value == "-" or math.isnan(cell.low) or math.isnan(cell.high):
            return value
        low, high = (said(bound, form).removesuffix(" %") for bound in (cell.low, cell.high))
        return f"{value} [{low}, {high}]"
    if isinstance(cell, str):
        return cell
    if math.isinf(cell):
        return "∞" if cell > 0 else "-∞"
    if form == "percent":
        return f"{100 * cell:.1f} %"
    if form == "points":
        return f"{100 * cell:+.1f}"
    if form == "p":
        return f"{cell:.3f}" if cell >= 0.001 else "< 0.001"
    digits = 0 if isinstance(cell, int) or abs(cell) >= 100 else 1 if abs(cell) >= 10 else 2 if abs(cell) >= 1 else 3
    return f"{cell:,.{digits}f}"


def _cell(text: str, form: Form) -> Markup:
    value, bracket, bounds = text.partition(" [")
    if form == "text" or not bracket:
        return tag("td", text, class_=("text long" if len(text) > 48 else "text") if form == "text" else None)
    return tag("td", value, tag("small", "[" + bounds))


def _piped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _plain(value: Cell) -> object:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value
