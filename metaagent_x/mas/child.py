"""Entry point of the contained process: reads the script from the line, runs it, reports how it ended."""

from __future__ import annotations

import contextlib
import gc
import json
import resource
import socket
import threading
import traceback
from typing import Any

from metaagent_x.mas.language import Language
from metaagent_x.mas.line import Line, Stop
from metaagent_x.mas.prompts import PromptSet
from metaagent_x.mas.script import FILE, compile_script

THREAD_STACK = 1 << 19  # many branches must fit into the memory limit


def main(fd: int) -> int:
    """Runs one script over descriptor `fd`; returns the exit code of the process."""
    connection = socket.socket(fileno=fd)
    line = Line(connection)
    start = json.loads(line.file.readline())
    threading.stack_size(THREAD_STACK)
    threading.Thread(target=line.read, daemon=True).start()
    language = Language(line, start["task"], start["kind"], PromptSet(**start["prompts"]))
    scope: dict[str, Any] = {"__name__": "__main__", **language.names()}
    line.tell(do="end", **_run(start["script"], scope))
    return 0


def _run(text: str, scope: dict[str, Any]) -> dict[str, Any]:
    """The last message: `answer` (None if unset), or `error` and whether it was for want of memory."""
    try:
        with contextlib.suppress(SystemExit):  # a script may end early; what it set as answer stands
            exec(compile_script(text), scope)
        answer = scope.get("answer")
        if callable(answer):
            answer = answer(scope["task"])
        return {"answer": None if answer is None else str(answer)}
    except Stop:
        answer = scope.get("answer")
        return {"answer": str(answer) if isinstance(answer, str) else None}
    except MemoryError:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        scope.clear()
        gc.collect()
        return {"error": "MemoryError", "memory": True}
    except BaseException as problem:
        return {"error": _describe(problem)}


def _describe(problem: BaseException) -> str:
    """One line: where in the script, what kind, what."""
    if isinstance(problem, SyntaxError):
        return f"line {problem.lineno}: SyntaxError: {problem.msg}"
    lines = [f.lineno for f in traceback.extract_tb(problem.__traceback__) if f.filename == FILE]
    where = f"line {lines[-1]}: " if lines else ""
    return f"{where}{type(problem).__name__}: {problem}"[:1000]
