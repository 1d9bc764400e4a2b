"""`ast.parse` for programs that several threads read at once."""

from __future__ import annotations

import ast

TRIES = 20


def parse(source: str, name: str) -> ast.Module:
    """The syntax tree of a source, whose errors and warnings call it by this name.

    CPython 3.11 counts the depth of all trees that are being built in one place: where another thread parses meanwhile,
    a text that is in order may end in "SystemError: AST constructor recursion depth mismatch". It is read again then.

    Raises:
      SyntaxError, ValueError, RecursionError, MemoryError, OverflowError: as `ast.parse`.
    """
    for _ in range(TRIES - 1):
        try:
            return ast.parse(source, name)
        except SystemError:
            continue
    return ast.parse(source, name)
