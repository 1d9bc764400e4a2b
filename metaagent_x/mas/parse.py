"""From a Designer's completion to a script."""

from __future__ import annotations

import itertools
import re

from metaagent_x.mas.language import NAMES
from metaagent_x.mas.lint import lint
from metaagent_x.mas.script import Script, parse, protect_latex
from metaagent_x.tasks.code import is_program

# Every pattern here reads a text in time that grows with its length alone: no two repeats that can share characters.
OPENING = re.compile(
    r"^(?P<indent>[ \t]*(?:(?:[-*+]|\d{1,3}[.)])[ \t]+)?)(?P<marks>`{3,}+|~{3,}+)(?P<info>[^`\n]*)\n", re.MULTILINE
)
CLOSING = re.compile(
    r"^[ \t]*(?P<first>`{3,}+|~{3,}+)(?!\w)(?P<behind>[^\n]*)$|(?P<last>(?<!`)`{3,}+|(?<!~)~{3,}+)[ \t]*$", re.MULTILINE
)
CLOSINGS = 8  # so many are tried for one block: bounds the work on hostile text
LABEL = re.compile(r"[\s{.]*([A-Za-z]*)")  # of "python3.11", "python title=...", "{.python}": "python"
LABELS = frozenset(("", "python", "py"))
TAG = re.compile(r"<(?P<closing>/?)(?P<name>code|answer|python|workflow)(?:[ \t][^<>\n]*)?>")
LOOKS_LIKE = re.compile(
    rf"\banswer[ \t]*=|\b(?:{'|'.join(n for n in NAMES if n not in ('task', 'kind', 'answer'))})[ \t]*\("
    r"|^[ \t]*(?:from|import)[ \t]+workflow\b",
    re.MULTILINE,
)
PLAIN = {0xFEFF: None, 0x200B: None, 0xA0: " "}  # byte-order mark, zero-width space, no-break space
THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)  # later, in a script, these are words like any other
MAX_CHARS = 40_000
PROSE_LINES = 60


def parse_completion(text: str) -> Script | None:
    """Finds the script in a completion: in tags (`TAG`), fenced, or bare; the last complete one wins.

    Of several complete blocks the last that is a program and uses our names wins, else the last program, else the last
    (lint will say what is wrong with it); tags go before fences. If the winner lacks names that the fenced blocks
    before it give, all up to it are one script. Blocks labelled as something else ("text", "json") count only if there
    are no others. A block whose closing fence is missing counts only if there is no complete one and it is a program.
    Prose around a bare script is left out.

    Returns:
      None if nothing looks like a script.
    """
    text = THOUGHT.sub("", text).replace("\r\n", "\n").translate(PLAIN)[-MAX_CHARS:]
    tagged = _tagged(text)
    closed, unclosed = _fenced(text)
    programs = [[b for b in blocks if _is_program(b)] for blocks in ([b for _, b in tagged], closed)]
    ours = [[b for b in blocks if LOOKS_LIKE.search(b)] for blocks in programs]
    if best := next(filter(None, (*ours, *programs)), None):
        return _joined(programs[1], best[-1])
    if blocks := [b for name, b in tagged if name == "code" and b.strip()] or [b for b in closed if b.strip()]:
        return Script.of(blocks[-1])
    if unclosed.strip():
        return Script.of(unclosed) if _is_program(unclosed) else None
    return Script.of(_bare(text)) if LOOKS_LIKE.search(text) else None


def _joined(blocks: list[str], last: str) -> Script:
    """The script `last`; or all blocks up to it, if it lacks nothing but names, and then nothing at all."""
    script = Script.of(last)
    if last in blocks[1:]:
        problems = lint(script)
        if problems and all(p.hint.startswith("unknown name") for p in problems):
            whole = Script.of("\n\n".join(blocks[: len(blocks) - blocks[::-1].index(last)]))
            return script if lint(whole) else whole
    return script


def _tagged(text: str) -> list[tuple[str, str]]:
    """(name, content) of each closing tag and the last tag of its name that opens before it."""
    blocks = []
    opened: dict[str, int] = {}
    for tag in TAG.finditer(text):
        if not tag["closing"]:
            opened[tag["name"]] = tag.end()
        elif tag["name"] in opened:
            blocks.append((tag["name"], _inner(text[opened.pop(tag["name"]) : tag.start()])))
    return blocks


def _inner(text: str) -> str:
    closed, unclosed = _fenced(text)
    return (closed[-1] if closed else unclosed or text).strip("\n")


def _fenced(text: str) -> tuple[list[str], str]:
    """Closed fenced blocks of Python (if none is, all) in order, and the rest after a fence that never closes."""
    blocks: list[tuple[str, str]] = []  # label, content
    position = 0
    while opening := OPENING.search(text, position):
        end = _closing(text, opening)
        if end is None:
            break
        blocks.append((_label(opening["info"]), _content(text, opening, end.start()).rstrip("\n")))
        position = end.end()
    own = [content for label, content in blocks if label in LABELS]
    return own or [content for _, content in blocks], _content(text, opening, len(text)) if opening else ""


def _label(info: str) -> str:
    match = LABEL.match(info)
    return match[1].lower() if match else ""


def _content(text: str, opening: re.Match[str], end: int) -> str:
    """What stands behind an opening fence, less the fence's own indentation (in a list item, say)."""
    content, width = text[opening.end() : end], len(opening["indent"])
    return re.sub(rf"^[ \t]{{1,{width}}}", "", content, flags=re.MULTILINE) if width else content


def _closing(text: str, opening: re.Match[str]) -> re.Match[str] | None:
    """Where a fence ends: at the first marks that make it a program, else the first alone on a line.

    A fence may stand inside a string of the script, the closing marks behind its last line, and prose behind them.
    """
    marks = (
        mark
        for mark in CLOSING.finditer(text, opening.end())
        if (mark["first"] or mark["last"]).startswith(opening["marks"])
    )
    tried = list(itertools.islice(marks, CLOSINGS))
    complete = (mark for mark in tried if _is_program(_content(text, opening, mark.start())))
    alone = (mark for mark in tried if mark["first"] and not mark["behind"].strip())
    return next(complete, None) or next(alone, None)


def _bare(text: str) -> str:
    """A text without the lines of prose before its script and the paragraphs of prose behind it.

    A fault of the script itself is left for lint to name: nothing that looks like a script is taken out. Of the lines
    before the first that looks like one, at most `PROSE_LINES` are looked at then.
    """
    lines = re.split(r"\r\n?|\n", text.strip())  # as Python counts lines
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
