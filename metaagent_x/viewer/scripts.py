"""A script as coloured lines, and what lint says of it."""

from __future__ import annotations

import io
import keyword
import tokenize
import warnings
from collections.abc import Iterator
from typing import Any

from metaagent_x import mas
from metaagent_x.mas.language import NAMES

Line = list[tuple[str, str]]
KINDS = {tokenize.COMMENT: "comment", tokenize.NUMBER: "number", tokenize.STRING: "string"}
# Python 3.12 and later take an f-string apart.
KINDS |= {
    getattr(tokenize, name): "string"
    for name in ("FSTRING_START", "FSTRING_MIDDLE", "FSTRING_END")
    if hasattr(tokenize, name)
}


def coloured(text: str) -> list[Line]:
    """The lines of a script as (kind, text): keyword, word (of the script language), string, number, comment, or "".

    What cannot be read as Python is plain from there on. The texts of a line together are the line.
    """
    lines = text.split("\n")
    out: list[Line] = [[] for _ in lines]
    place = (0, 0)
    for kind, begin, end in _tokens(text):
        if place <= begin and end[0] < len(lines):
            _take(out, lines, place, begin, "")
            _take(out, lines, begin, end, kind)
            place = end
    _take(out, lines, place, (len(lines) - 1, len(lines[-1])), "")
    return out


def lint(text: str) -> list[dict[str, Any]]:
    """Problems of a script as plain values; a failure of lint itself is one of them, on line 0."""
    try:
        return [{"line": p.line, "word": p.word, "hint": p.hint} for p in mas.lint(mas.Script.of(text))]
    except Exception as failure:  # whatever a model wrote, the page about it must open
        return [{"line": 0, "word": "lint", "hint": f"lint failed: {failure!r}"}]


def _tokens(text: str) -> Iterator[tuple[str, tuple[int, int], tuple[int, int]]]:
    """(kind, begin, end) of all tokens that have a colour; rows from 0."""
    with warnings.catch_warnings(action="ignore"):  # of escapes that Python does not know
        try:
            for token in tokenize.generate_tokens(io.StringIO(text, newline="\n").readline):
                kind = KINDS.get(token.type, "")
                if token.type == tokenize.NAME:
                    kind = "keyword" if keyword.iskeyword(token.string) else "word" if token.string in NAMES else ""
                if kind:
                    (first, left), (last, right) = token.start, token.end
                    yield kind, (first - 1, left), (last - 1, right)
        except (tokenize.TokenError, SyntaxError, ValueError, SystemError):  # the last: NUL in Python 3.12's f-strings
            return


def _take(out: list[Line], lines: list[str], begin: tuple[int, int], end: tuple[int, int], kind: str) -> None:
    """Moves the text between two places into its lines."""
    for row in range(begin[0], end[0] + 1):
        left = begin[1] if row == begin[0] else 0
        right = end[1] if row == end[0] else len(lines[row])
        if part := lines[row][left:right]:
            out[row].append((kind, part))
