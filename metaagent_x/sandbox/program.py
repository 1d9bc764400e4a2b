"""Child side of `run_python`: one program as `__main__`, as `python main.py < input` would run it."""

from __future__ import annotations

import atexit
import builtins
import gc
import json
import linecache
import os
import random
import resource
import sys
import threading
import traceback
import types
from typing import TextIO

NAME = "main.py"
TRACEBACK_CHARS = 8000


def run(first_fd: int) -> int:
    """Runs the program of descriptor `first_fd`; the next three are its stdin, stdout and stderr.

    `random` starts from seed 0: the same program with the same input prints the same text.

    Returns:
      The exit code.
    """
    with open(first_fd, "rb") as file:
        source = json.loads(file.read())["code"]
    for target in range(3):
        os.dup2(first_fd + 1 + target, target)
        os.close(first_fd + 1 + target)
    sys.stdin = sys.__stdin__ = _text_file(0, "r", "surrogateescape")
    sys.stdout = sys.__stdout__ = _text_file(1, "w", "surrogateescape")
    sys.stderr = sys.__stderr__ = _text_file(2, "w", "backslashreplace")
    for module in [name for name in sys.modules if name.split(".")[0] == "metaagent_x"]:
        del sys.modules[module]
    sys.path = [entry for entry in sys.path if not os.path.isdir(os.path.join(entry, "metaagent_x"))]
    atexit._clear()
    random.seed(0)
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __file__=NAME)
    sys.modules["__main__"] = main
    linecache.cache[NAME] = (len(source), None, source.splitlines(keepends=True), NAME)
    return _execute(source, main.__dict__)


def _text_file(fd: int, mode: str, errors: str) -> TextIO:
    """Buffered by lines, so that what was printed before a kill is kept."""
    return open(fd, mode, 1, encoding="utf-8", errors=errors, closefd=False)  # type: ignore[return-value]


def _execute(source: str, scope: dict) -> int:
    code = 0
    try:
        exec(compile(source, NAME, "exec", dont_inherit=True), scope)
    except SystemExit as end:
        code = _exit_code(end)
    except MemoryError:
        code = _out_of_memory(scope)
    except BaseException as problem:
        code = 1
        _print_traceback(problem)
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads as the interpreter's own exit does
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except MemoryError:
        code = _out_of_memory(scope)
    except BaseException as problem:
        code = code or 1
        _print_traceback(problem)
    return code


def _exit_code(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    print(end.code, file=sys.stderr)
    return 1


def _print_traceback(problem: BaseException) -> None:
    # The first frame is ours.
    frames = problem.__traceback__.tb_next if problem.__traceback__ else None
    text = "".join(traceback.format_exception(type(problem), problem, frames))
    if len(text) > TRACEBACK_CHARS:
        text = "[...]\n" + text[-TRACEBACK_CHARS:]
    try:
        sys.stderr.write(text)
    except BaseException:
        os.write(2, text.encode("utf-8", "backslashreplace"))


def _out_of_memory(scope: dict) -> int:
    """Says so with what is left: the program's data are dropped and the spare memory is opened first."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    scope.clear()
    gc.collect()
    os.write(2, b"MemoryError\n")
    return 1
