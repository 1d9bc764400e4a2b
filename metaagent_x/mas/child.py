"""Entry point of the contained process: reads the script from the line, runs it, reports how it ended.

A script gives its answer in one of three forms: the text in `answer`; an agent or structure in `answer`, which is
applied to the task; or a function `main(task)` (also called `workflow`, `forward` or `solve`) that returns either, if
the script sets no `answer` and asked for nothing outside of functions. In the workflow dialect it is what the last run
of a workflow gave.
"""

from __future__ import annotations

import contextlib
import gc
import json
import numbers
import resource
import socket
import threading
import traceback
import types
from typing import Any

from metaagent_x.mas.dialects import workflow
from metaagent_x.mas.language import Language
from metaagent_x.mas.line import Line, Stop, path_of
from metaagent_x.mas.prompts import PromptSet
from metaagent_x.mas.script import FILE, Script, compile_script

THREAD_STACK = 1 << 19  # many branches must fit into the memory limit
MAIN_FUNCTIONS = ("main", "workflow", "forward", "solve")


def main(fd: int) -> int:
    """Runs one script over descriptor `fd`; returns the exit code of the process."""
    connection = socket.socket(fileno=fd)
    line = Line(connection)
    start = json.loads(line.file.readline())
    threading.stack_size(THREAD_STACK)
    threading.Thread(target=line.read, daemon=True).start()
    language = Language(line, start["task"], start["kind"], PromptSet(**start["prompts"]))
    scope: dict[str, Any] = {"__name__": "__main__", **language.names()}
    if Script(start["script"], "").dialect:
        scope |= workflow.play(language)
    line.tell(do="end", **_run(start["script"], scope, language))
    threading.Event().wait()  # the host ends this process; one that leaves while a reply is on its way can lose its end
    return 0


def _run(text: str, scope: dict[str, Any], language: Language) -> dict[str, Any]:
    """The last message: `answer` (None if unset) and its `form`, or `error` and whether it was for want of memory."""
    form = ""
    try:
        with contextlib.suppress(SystemExit):  # a script may end early; what it set as answer stands
            exec(compile_script(text), scope)
            if scope.get("answer") is None and not language.branch.number:  # else a main function was used already
                scope["answer"], form = _from_main(scope, language), "main"
        answer = _given(scope)
        if callable(answer):
            answer, form = answer(language.task), form or "applied"
        if path_of(answer):
            language.line.tell(do="links", links=[[path_of(answer), "", "answer"]])
        return {"answer": _text(answer), "form": form}
    except Stop:
        answer = None
        with contextlib.suppress(Exception):  # of a run that failed earlier
            answer = _text(_given(scope))
        return {"answer": answer}
    except MemoryError:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        scope.clear()
        gc.collect()
        return {"error": "MemoryError", "memory": True}
    except BaseException as problem:
        return {"error": _describe(problem)}


def _given(scope: dict[str, Any]) -> Any:
    """What the script left as its answer; None if nothing.

    Raises:
      Exception: what went wrong in the last run of a workflow.
    """
    result = workflow.outcome()
    return scope.get("answer") if result is None else result


def _text(answer: Any) -> str | None:
    """The answer as text; None if there is none. Anything but a text or a number is a slip: a list would be its repr.

    Raises:
      TypeError: it is something else.
    """
    if answer is None or isinstance(answer, (str, numbers.Number)):
        return None if answer is None else str(answer)
    raise TypeError(f"answer is {type(answer).__name__}; it must be a text, an agent or a structure")


def _from_main(scope: dict[str, Any], language: Language) -> Any:
    """What the script's main function returns, given the task (and the kind, if it needs two); None without one."""
    for name in MAIN_FUNCTIONS:
        main = scope.get(name)
        if isinstance(main, types.FunctionType):
            needed = main.__code__.co_argcount - len(main.__defaults__ or ())
            return main(*(language.task, language.kind)[:needed])
    return None


def _describe(problem: BaseException) -> str:
    """One line: where in the script, what kind, what."""
    if isinstance(problem, SyntaxError):
        return f"line {problem.lineno}: SyntaxError: {problem.msg}"
    lines = [f.lineno for f in traceback.extract_tb(problem.__traceback__) if f.filename == FILE]
    where = f"line {lines[-1]}: " if lines else ""
    return f"{where}{type(problem).__name__}: {problem}"[:1000]
