"""From a Designer's completion to a script, and what is wrong with the script before anything has run."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import difflib
import re

from metaagent_x.mas import script as scripts
from metaagent_x.mas.language import NAMES
from metaagent_x.mas.script import Script

# Builtins that a script may name: values and pure functions, nothing that reaches files, code or the interpreter.
BUILTINS = frozenset((
    "abs", "all", "any", "bool", "bytes", "chr", "dict", "divmod", "enumerate", "filter", "float", "format",
    "frozenset", "hash", "hex", "int", "isinstance", "iter", "len", "list", "map", "max", "min", "next", "ord", "pow",
    "print", "range", "repr", "reversed", "round", "set", "slice", "sorted", "str", "sum", "tuple", "zip",
    "Exception", "ValueError", "TypeError", "KeyError", "IndexError", "RuntimeError", "ZeroDivisionError",
    "StopIteration", "AssertionError", "ArithmeticError", "AttributeError", "NameError", "SystemExit", "exit", "quit",
))  # fmt: skip
ALLOWED = BUILTINS | frozenset(NAMES)
FENCE = re.compile(r"^[ \t]*```[ \t]*([A-Za-z0-9_+-]*)[ \t]*$", re.MULTILINE)
LABELS = frozenset(("", "python", "python3", "py", "py3"))
TAG = re.compile(r"<code>(.*?)</code>", re.DOTALL)
LOOKS_LIKE = re.compile(rf"\banswer\s*=|\b(?:{'|'.join(n for n in NAMES if n not in ('task', 'kind', 'answer'))})\s*\(")
MAX_CHARS = 40_000


@dataclasses.dataclass(frozen=True)
class Problem:
    """Why a script cannot run: the line, from 1, the offending word, and what is wrong with it."""

    line: int
    word: str
    hint: str

    def __str__(self) -> str:
        return f"{self.hint}, line {self.line}"


def parse_completion(text: str) -> Script | None:
    """Finds the script in a completion: fenced, in <code> tags, or bare; the last complete one wins.

    Of several complete blocks the last that is Python wins, else the last (lint will say what is wrong with it).
    Blocks labelled as something else ("text", "json") count only if there are no others. A block whose closing fence is
    missing counts only if there is no complete one and it is Python.

    Returns:
      None if nothing looks like a script.
    """
    text = text.rpartition("</think>")[2].replace("\r\n", "\n")
    if len(text) > MAX_CHARS:
        text = text[-MAX_CHARS:]
    tagged = [_inner(match[1]) for match in TAG.finditer(text)]
    closed, unclosed = _fenced(TAG.sub("", text))
    candidates = [c for c in (tagged or closed) if c.strip()]
    for source in reversed(candidates):
        if _is_python(source):
            return Script.of(source)
    if candidates:
        return Script.of(candidates[-1])
    if unclosed.strip():
        return Script.of(unclosed) if _is_python(unclosed) else None
    bare = text.strip()
    return Script.of(bare) if LOOKS_LIKE.search(bare) else None


def _inner(text: str) -> str:
    closed, unclosed = _fenced(text)
    return (closed[-1] if closed else unclosed or text).strip("\n")


def _fenced(text: str) -> tuple[list[str], str]:
    """Closed fenced blocks of Python (if none is, all) in order, and the rest after a fence that never closes.

    A fence may stand inside a string of the script: the block ends at the first closing fence that makes it Python,
    else at the first closing fence.
    """
    marks = list(FENCE.finditer(text))
    blocks: list[tuple[str, str]] = []  # label, content
    unclosed = ""
    i = 0
    while i < len(marks):
        start = marks[i].end() + 1
        closers = [j for j in range(i + 1, len(marks)) if not marks[j][1]]
        if not closers:
            unclosed = text[start:]
            break
        end = next((j for j in closers[:8] if _is_python(text[start : marks[j].start()])), closers[0])
        blocks.append((marks[i][1].lower(), text[start : marks[end].start()].rstrip("\n")))
        i = end + 1
    own = [content for label, content in blocks if label in LABELS]
    return own or [content for _, content in blocks], unclosed


def _is_python(text: str) -> bool:
    try:
        return bool(scripts.parse(scripts.protect_latex(text)).body)
    except SyntaxError:
        return False


def lint(script: Script) -> list[Problem]:
    """What is wrong with a script: syntax, unknown names, imports, attributes that reach into the interpreter.

    Found before any call is made; an empty list means that it may run. Endless loops are allowed: budgets end them.

    Returns:
      Problems in the order of their lines.
    """
    try:
        tree = scripts.parse(script.text)
    except SyntaxError as problem:
        word = (problem.text or "").strip()[:60]
        return [Problem(problem.lineno or 1, word, f"syntax error: {problem.msg}")]
    bound = _bound_names(tree)
    problems = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and not scripts.is_own_import(node):
            word = node.module or "." if isinstance(node, ast.ImportFrom) else node.names[0].name
            problems.append(Problem(node.lineno, word, f"import of {word}: a script imports nothing"))
        elif isinstance(node, ast.Attribute) and node.attr.startswith("__"):
            problems.append(Problem(node.lineno, node.attr, f"attribute {node.attr} is not allowed"))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            if node.id not in ALLOWED and node.id not in bound:
                problems.append(Problem(node.lineno, node.id, _unknown(node.id, bound)))
        elif isinstance(node, (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)):
            problems.append(Problem(node.lineno, "async", "async is not needed: calls wait for their text"))
    return sorted(set(problems), key=lambda p: (p.line, p.word))


def _unknown(name: str, bound: set[str]) -> str:
    if hasattr(builtins, name):
        return f"name {name} is not allowed in scripts"
    near = difflib.get_close_matches(name.lower(), sorted(set(NAMES) | bound), n=1, cutoff=0.0)
    return f"unknown name {name}" + (f" (nearest word: {near[0]})" if near else "")


def _bound_names(tree: ast.Module) -> set[str]:
    """Every name that the script itself gives a meaning to, anywhere."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            names.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            names.add(node.rest)
        elif isinstance(node, ast.ImportFrom) and scripts.is_own_import(node):
            names |= {a.asname for a in node.names if a.asname and a.name in NAMES}
    return names
