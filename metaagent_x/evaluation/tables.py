"""The same tables as Markdown and in the terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from metaagent_x.analysis import published as paper

WIDE = 120  # columns of a terminal


@dataclasses.dataclass(frozen=True)
class Table:
    """A title, the heads of the columns, rows of text (the first column to the left), and what must be said of it.

    `wide`: it has more columns than a narrow terminal shows legibly.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    wide: bool = False

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", "| " + " | ".join(map(_cell, self.heads)) + " |"]
        lines.append("|---|" + "---:|" * (len(self.heads) - 1))
        lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in self.rows]
        return "\n".join([*lines, *(["", self.note] if self.note else []), ""])

    def rich(self) -> RichTable:
        out = RichTable(title=self.title, caption=self.note or None, title_justify="left", caption_justify="left")
        for i, head in enumerate(self.heads):
            out.add_column(head, justify="right" if i else "left", overflow="fold")
        for row in self.rows:
            out.add_row(*map(Text, row))
        return out


def show(made: Sequence[Table], console: Console) -> None:
    """Prints tables; of the wide ones only the names where the terminal is too narrow for them."""
    hidden = [table.title for table in made if table.wide and console.width < WIDE]
    for table in made:
        if table.title not in hidden:
            console.print(table.rich())
    if hidden:
        console.print(f"in results.md, or in a terminal of {WIDE} columns: {'; '.join(hidden)}", soft_wrap=True)


def tables(summary: Mapping[str, Any]) -> list[Table]:
    """Accuracy, votes, comparisons, costs and faults; those that would be empty are left out.

    Args:
      summary: see `job.results`.
    """
    out = [accuracy(summary), at_k(summary), comparisons(summary), costs(summary), faults(summary)]
    return [table for table in out if table.rows]


def accuracy(summary: Mapping[str, Any]) -> Table:
    cells, averages = summary["cells"], {a["method"]: a for a in summary["averages"]}
    benchmarks = list(dict.fromkeys(c["benchmark"] for c in cells))
    rows, size = [], summary.get("size", "")
    for method in dict.fromkeys(c["method"] for c in cells):
        own = {c["benchmark"]: c for c in cells if c["method"] == method}
        row = [method, *(_interval(own.get(name)) for name in benchmarks)]
        beside = [own.get(name, {}).get("published") for name in benchmarks]
        average = averages.get(method, {})
        if averages:
            row.append(_percent(average.get("accuracy")))
            beside.append(average.get("published"))
        rows.append(row)
        if any(value is not None for value in beside):
            label = f"published: {paper.LABELS.get(method, method)}, Qwen3-{size}"
            rows.append([label, *("-" if value is None else f"{value:.2f}" for value in beside)])
    notes = ["Percent of tasks answered entirely right, with intervals by resampling tasks."]
    notes += ["Rows marked as published are the paper's figures, measured elsewhere under other budgets."] * any(
        row[0].startswith("published") for row in rows
    )
    heads = ["method", *benchmarks, *(["average"] if averages else [])]
    return Table("Accuracy", heads, rows, " ".join(notes))


def at_k(summary: Mapping[str, Any]) -> Table:
    found = [c for c in summary["cells"] if c.get("pass@k")]
    ks = sorted({int(k) for c in found for k in c["pass@k"]})
    rows = [
        [c["method"], c["benchmark"], what.removesuffix("@k"), *(_percent(c[what].get(str(k))) for k in ks)]
        for c in found
        for what in ("pass@k", "majority@k")
    ]
    return Table("Several samples of a task", ["method", "benchmark", "what", *(f"k = {k}" for k in ks)], rows)


def comparisons(summary: Mapping[str, Any]) -> Table:
    rows = [
        [f"{c['method']} - {c['against']}", c["benchmark"], str(c["tasks"]),
         _interval(c, "difference", "+.1f")]
        for c in summary["comparisons"]
    ]  # fmt: skip
    note = "Points of accuracy on the same tasks; intervals by resampling tasks with both outcomes together."
    return Table("Paired comparison", ["methods", "benchmark", "tasks", "difference"], rows, note)


def costs(summary: Mapping[str, Any]) -> Table:
    rows = []
    for c in summary["cells"]:
        mean = c["costs"]
        tokens = [f"{mean[name]:,.0f}" for name in ("prompt_tokens", "sampled_tokens", "designer_tokens")]
        rows.append([
            c["method"], c["benchmark"], str(c["rows"]), f"{mean['calls']:.2f}", *tokens, f"{mean['tools']:.2f}",
            f"{mean['time/wall_s']:.1f}",
        ])  # fmt: skip
    note = "Tokens: of all prompts; sampled; sampled by the Designer, contained in these. Wall: seconds of one answer."
    heads = ["method", "benchmark", "answers", "calls", "prompts", "sampled", "design", "tools", "wall"]
    return Table("What one answer costs, on average", heads, rows, note, wide=True)


def faults(summary: Mapping[str, Any]) -> Table:
    rows = [
        [c["method"], c["benchmark"], *(str(c["faults"][name]) for name in ("truncated", "empty", "prompt_cut")),
         str(c["no_answer"]), str(c["faults"]["invalid"]), str(c["statuses"].get("crash", 0)),
         ", ".join(f"{n} {name}" for name, n in c["limits"].items()) or "0", str(c["statuses"].get("budget", 0)),
         str(c["void"])]
        for c in summary["cells"]
    ]  # fmt: skip
    note = (
        "Replies that ended by length, and empty ones; prompts that were cut; then answers: without any answer in "
        "them, by designs that cannot be run, by scripts that crashed, that hit a limit of a contained process, that "
        "used up their budget. All of these count as answers; void ones do not."
    )
    heads = ["method", "benchmark", "length", "empty", "cut", "none", "invalid", "crash", "limits", "budget", "void"]
    return Table("What went wrong, counts", heads, rows, note, wide=True)


def _interval(cell: Mapping[str, Any] | None, name: str = "accuracy", form: str = ".1f") -> str:
    """A value and its bounds in percent, without them where there are none."""
    if cell is None or cell[name] is None:
        return "-"
    value, low, high = (None if v is None else f"{100 * v:{form}}" for v in (cell[name], cell["low"], cell["high"]))
    return f"{value}" if low is None else f"{value} [{low}, {high}]"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
