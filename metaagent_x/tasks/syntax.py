"""Python's own parser, for one thread at a time."""

from __future__ import annotations

import ast
import threading

# Python 3.11 counts the depth of all threads together: where a collection of garbage lets another thread parse in the
# middle, both may end in a SystemError (python/cpython#106905). Re-entrant, for what runs at such a collection.
_PARSING = threading.RLock()


def parse(text: str, name: str) -> ast.Module:
    """`ast.parse`, safe in threads. Raises whatever that raises."""
    with _PARSING:
        return ast.parse(text, name)
