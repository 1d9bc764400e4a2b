"""From a Designer's completion to a script."""

from __future__ import annotations

import re

from metaagent_x.mas.language import NAMES
from metaagent_x.mas.script import Script, parse, protect_latex
from metaagent_x.tasks.code import is_program

OPENING = re.compile(r"^[ \t]*```[ \t]*([A-Za-z0-9_+-]*)[ \t]*\n", re.MULTILINE)
CLOSING = re.compile(r"(?P<alone>^[ \t]*)?```[ \t]*$", re.MULTILINE)
CLOSINGS = 8  # so many are tried for one block: bounds the work on hostile text
LABELS = frozenset(("", "python", "python3", "py", "py3"))
TAG = re.compile(r"<code>(.*?)</code>", re.DOTALL)
LOOKS_LIKE = re.compile(
    rf"\banswer\s*=|\b(?:{'|'.join(n for n in NAMES if n not in ('task', 'kind', 'answer'))})\s*\("
    r"|^\s*(?:from|import)\s+workflow\b",
    re.MULTILINE,
)
THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)  # later, in a script, these are words like any other
MAX_CHARS = 40_000
PROSE_LINES = 60


def parse_completion(text: str) -> Script | None:
    """Finds the script in a completion: in <code> tags, fenced, or bare; the last complete one wins.

    Of several complete blocks the last that is a program and uses our names wins, else the last program, else the last
    (lint will say what is wrong with it). Blocks labelled as something else ("text", "json") count only if there are no
    others. A block whose closing fence is missing counts only if there is no complete one and it is a program. Prose
    around a bare script is left out.

    Returns:
      None if nothing looks like a script.
    """
    text = THOUGHT.sub("", text).replace("\r\n", "\n")[-MAX_CHARS:]
    tagged = [_inner(match[1]) for match in TAG.finditer(text)]
    closed, unclosed = _fenced(text)
    programs = [t for t in tagged if _is_program(t)] or [c for c in closed if _is_program(c)]
    if programs:
        return Script.of(([p for p in programs if LOOKS_LIKE.search(p)] or programs)[-1])
    if blocks := [b for b in tagged or closed if b.strip()]:
        return Script.of(blocks[-1])
    if unclosed.strip():
        return Script.of(unclosed) if _is_program(unclosed) else None
    return Script.of(_bare(text)) if LOOKS_LIKE.search(text) else None


def _inner(text: str) -> str:
    closed, unclosed = _fenced(text)
    return (closed[-1] if closed else unclosed or text).strip("\n")


def _fenced(text: str) -> tuple[list[str], str]:
    """Closed fenced blocks of Python (if none is, all) in order, and the rest after a fence that never closes."""
    blocks: list[tuple[str, str]] = []  # label, content
    position = 0
    while opening := OPENING.search(text, position):
        end = _closing(text, opening.end())
        if end is None:
            break
        blocks.append((opening[1].lower(), text[opening.end() : end.start()].rstrip("\n")))
        position = end.end()
    own = [content for label, content in blocks if label in LABELS]
    return own or [content for _, content in blocks], text[opening.end() :] if opening else ""


def _closing(text: str, start: int) -> re.Match[str] | None:
    """Where the fence that begins at `start` ends: at the first marks that make it a program, else the first alone.

    A fence may stand inside a string of the script, and the closing marks behind its last line.
    """
    marks = [mark for mark, _ in zip(CLOSING.finditer(text, start), range(CLOSINGS), strict=False)]
    complete = [mark for mark in marks if _is_program(text[start : mark.start()])]
    return next(iter(complete or [mark for mark in marks if mark["alone"] is not None]), None)


def _bare(text: str) -> str:
    """A text without the lines of prose before its script and the paragraphs of prose behind it.

    A fault of the script itself is left for lint to name: nothing that looks like a script is taken out. Of the lines
    before the first that looks like one, at most `PROSE_LINES` are looked at then.
    """
    lines = text.strip().split("\n")
    if _wrong_line("\n".join(lines)):
        first = next(i for i, line in enumerate(lines) if LOOKS_LIKE.search(line))
        lines = lines[max(first - PROSE_LINES, 0) :]
    while wrong := _wrong_line("\n".join(lines)):
        before, after = lines[:wrong], lines[wrong - 1 :]
        if not LOOKS_LIKE.search("\n".join(before)):
            lines = lines[wrong:]
        elif not LOOKS_LIKE.search("\n".join(after)) and wrong > 1 and not lines[wrong - 2].strip():
            lines = lines[: wrong - 1]
        else:
            return text.strip()
    return "\n".join(lines).strip()


def _wrong_line(text: str) -> int:
    """The first line that is no Python, from 1; 0 if all is."""
    try:
        parse(protect_latex(text))
    except SyntaxError as problem:
        return problem.lineno or 1
    return 0


def _is_program(text: str) -> bool:
    return is_program(protect_latex(text))
