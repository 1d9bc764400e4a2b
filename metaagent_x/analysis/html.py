"""HTML by construction: every text is escaped unless it was built here, so hostile text stays text."""

from __future__ import annotations

import html
import re


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


# Formatting characters that reorder or hide what a reader sees, and control characters other than tab and newline.
_HIDDEN = re.compile("[\u202a-\u202e\u2066-\u2069\u200b-\u200f\u2060\ufeff\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_VOID = frozenset({"meta", "br", "hr"})


def escape(value: object) -> Markup:
    """Any value as HTML text; invisible and reordering characters appear by code, as in `\\u202e`."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(_HIDDEN.sub(lambda m: f"\\u{ord(m[0]):04x}", str(value)), quote=True))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """`tag("p", "a < b", class_="note")` -> `<p class="note">a &lt; b</p>`. None and False vanish."""
    parts = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        parts.append(f" {key}" if value is True else f' {key}="{escape(value)}"')
    opening = f"<{name}{''.join(parts)}>"
    if name in _VOID:
        return Markup(opening)
    return Markup(f"{opening}{''.join(escape(c) for c in children if c is not None)}</{name}>")


# Nothing on a page may load, run or send anything, whatever a model wrote into it.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def document(title: str, style: str, *body: object) -> Markup:
    """A whole page of its own that follows the reader's light or dark theme."""
    head = tag(
        "head", tag("meta", charset="utf-8"), tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"), tag("title", title), tag("style", Markup(style)),
    )  # fmt: skip
    return Markup(f"<!doctype html>\n{tag('html', head, tag('body', tag('main', *body)), lang='en')}\n")


def join(*parts: object) -> Markup:
    """Parts one after the other."""
    return Markup("".join(escape(p) for p in parts if p is not None))


def table(head: list[object], rows: list[list[object]], **attributes: object) -> Markup:
    """A table whose first column names the rows. A cell that is a `td` already keeps its own attributes."""

    def cell(value: object, first: bool) -> Markup:
        if isinstance(value, Markup) and value.startswith("<td"):
            return value
        return tag("th", value, scope="row") if first else tag("td", value)

    body = [tag("tr", *(cell(v, i == 0) for i, v in enumerate(row))) for row in rows]
    return tag(
        "table", tag("thead", tag("tr", *(tag("th", h, scope="col") for h in head))), tag("tbody", *body), **attributes
    )
