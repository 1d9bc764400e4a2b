"""Child side of `run_python`: one program as `__main__`, as `python main.py < input` would run it."""

from __future__ import annotations

import _ast
import atexit
import builtins
import gc
import io
import json
import linecache
import os
import resource
import sys
import traceback
import types
import warnings
from collections.abc import Callable

NAME = "main.py"
TRACEBACK_CHARS = 8000


def run(first_fd: int) -> int:
    """Runs the program of descriptor `first_fd`; the next three are its stdin, stdout and stderr.

    `random` starts from seed 0: the same program with the same input prints the same text.

    Returns:
      The exit code.
    """
    source = read(first_fd)
    for target in range(3):
        os.dup2(first_fd + 1 + target, target)
        os.close(first_fd + 1 + target)
    hide_ours()
    prepare(source)
    return execute(source)


def read(fd: int) -> str:
    """The program in a file that the host wrote."""
    with open(fd, "rb") as file:
        return json.loads(file.read())["code"]


def compiled(source: str) -> tuple[types.CodeType | str, list[str]]:
    """The program as code, and the modules that it names in its outermost lines.

    One that cannot be compiled stays as it is: who executes it will find out why.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = compile(source, NAME, "exec", _ast.PyCF_ONLY_AST, dont_inherit=True)
            assert isinstance(tree, _ast.Module)
            names = [name.name for line in tree.body if isinstance(line, _ast.Import) for name in line.names]
            names += [line.module or "" for line in tree.body if isinstance(line, _ast.ImportFrom)]
            return compile(tree, NAME, "exec", dont_inherit=True), names
    except Exception:
        return source, []


def prepare(source: str) -> None:
    """Makes this process the interpreter that the program finds."""
    sys.stdin = sys.__stdin__ = _text_file(0, "r", "surrogateescape")
    sys.stdout = sys.__stdout__ = _text_file(1, "w", "surrogateescape")
    sys.stderr = sys.__stderr__ = _text_file(2, "w", "backslashreplace")
    linecache.cache[NAME] = (len(source), None, source.splitlines(keepends=True), NAME)
    atexit._clear()


def hide_ours() -> None:
    """Nothing of this package can be imported or found among the modules from here on."""
    for module in [name for name in sys.modules if name.split(".")[0] == "metaagent_x"]:
        del sys.modules[module]
    sys.path = [entry for entry in sys.path if not os.path.isdir(os.path.join(entry, "metaagent_x"))]


def execute(program: types.CodeType | str | Callable[[], object]) -> int:
    """Runs a prepared program on descriptors 0, 1 and 2: source, code, or what to call. Returns the exit code."""
    if "random" in sys.modules:
        sys.modules["random"].seed(0)
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __file__=NAME)
    sys.modules["__main__"] = main
    return _run(program, main.__dict__)


def _text_file(fd: int, mode: str, errors: str) -> io.TextIOWrapper:
    """Buffered by lines, so that what was printed before a kill is kept."""
    return open(fd, mode, 1, encoding="utf-8", errors=errors, closefd=False)  # type: ignore[return-value]


def _run(program: types.CodeType | str | Callable[[], object], scope: dict) -> int:
    code = 0
    try:
        if isinstance(program, str):
            program = compile(program, NAME, "exec", dont_inherit=True)
        exec(program, scope) if isinstance(program, types.CodeType) else program()
    except SystemExit as end:
        code = _exit_code(end)
    except MemoryError:
        code = _out_of_memory(scope)
    except BaseException as problem:
        code = 1
        _print_traceback(problem)
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()  # waits for threads as the interpreter's own exit does
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
