"""Writes an analysis: a page that needs no network, figures as SVG and PNG, tables as Markdown and CSV."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from metaagent_x.analysis import figures
from metaagent_x.analysis.html import Markup, document, join, tag
from metaagent_x.analysis.material import Material
from metaagent_x.analysis.sections import SECTIONS, Plot, Section
from metaagent_x.analysis.style import CSS
from metaagent_x.analysis.tables import Table

PAGE = "index.html"
_STYLE = """
.scroll { overflow-x: auto; } .scroll table { font-size: 13px; } .scroll th, .scroll td { padding: 4px 9px; }
td, tbody th { white-space: nowrap; vertical-align: top; } td.long { white-space: normal; min-width: 32ch; }
td small { display: block; color: var(--muted); font-size: 11.5px; } th:has(span.text) { text-align: left; }
h3 { margin: 26px 0 4px; } figcaption { margin-top: 4px; max-width: 92ch; }
nav a { margin-right: 16px; color: var(--executor); text-decoration: none; }
nav a:focus-visible, nav a:hover { text-decoration: underline; }
"""


def write_study(material: Material, out: Path, *, step: Callable[[str], None] = lambda _: None) -> Path:
    """Writes everything below `out`; files of an earlier analysis of the same names are replaced.

    Args:
      material: what was read. out: a folder, made if missing. step: told the title of each section as it begins.

    Returns:
      the path of the page.

    Raises:
      OSError: something cannot be written.
    """
    for name in ("figures", "tables"):
        (out / name).mkdir(parents=True, exist_ok=True)
    sections: list[Section] = []
    for make in SECTIONS:
        step(make.__name__)
        if (section := make(material)) is not None:
            sections.append(section)
    body = [_section(section, number, out) for number, section in enumerate(sections)]
    names = [e.name for e in material.evaluations]
    names += [run.path.name for group in material.groups for run in group.variant.runs]
    contents = tag("nav", *(tag("a", s.title, href=f"#s{i}") for i, s in enumerate(sections)))
    title = f"Analysis of {', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}"
    note = "Made from the files of these folders alone. Figures and tables also stand beside this page, as files."
    page = document(title, CSS + _STYLE, tag("h1", title), tag("p", note, class_="note"), contents, *body)
    path = out / PAGE
    _replace(path, page)
    return path


def _section(section: Section, number: int, out: Path) -> Markup:
    parts: list[object] = [tag("h2", section.title, id=f"s{number}")]
    if section.note:
        parts.append(tag("p", section.note, class_="note"))
    for item in section.items:
        parts.append(_plot(item, out / "figures") if isinstance(item, Plot) else _table(item, out / "tables"))
    return join(*parts)


def _plot(plot: Plot, folder: Path) -> Markup:
    drawn = figures.draw(plot.figure, plot.name)
    figures.save(plot.figure, drawn, folder / plot.name)
    caption = tag("figcaption", plot.caption) if plot.caption else None
    return tag("figure", tag("h3", plot.title), figures.inline(drawn, plot.title), caption)


def _table(table: Table, folder: Path) -> Markup:
    _replace(folder / f"{table.name}.md", table.markdown())
    _replace(folder / f"{table.name}.csv", table.csv())
    note = tag("p", table.note, class_="note") if table.note else None
    return join(tag("h3", table.title), tag("div", table.html(), class_="scroll"), note)


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)
