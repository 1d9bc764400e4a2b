"""What the host does for a script besides model calls: programs, public tests, briefs, classes of equal answers."""

from __future__ import annotations

import ast
import concurrent.futures
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from metaagent_x.mas.records import NO_PUBLIC_TESTS
from metaagent_x.mas.script import parse
from metaagent_x.sandbox import Limits, Result, run_python
from metaagent_x.tasks.code import TestResult, extract_code, judge
from metaagent_x.tasks.kinds import head_and_tail, last_words, shown
from metaagent_x.tasks.math import extract_answer
from metaagent_x.tasks.task import Task

# The wall limit is for programs that sleep: waiting for a core does not count (`sandbox/watch.py`).
LIMITS = Limits(cpu_s=5.0, wall_s=10.0, memory_mb=512, output_bytes=1 << 20)
BRIEF_CHARS = 4096
SECTION_CHARS = 400
MAX_PROGRAM_CHARS = 100_000
WORDS = {"cpu": "time limit exceeded", "wall": "time limit exceeded", "memory": "memory limit exceeded",
         "output": "too much output", "threads": "too many threads", "crash": "the process crashed"}  # fmt: skip
REFUSED = "a program has no network, no other processes and no files outside its own folder"

# Threads only wait for contained processes. Two a core would keep the cores busy; there are more, and few for any one
# execution, so that some executions whose programs sleep do not hold up the rest.
POOL = concurrent.futures.ThreadPoolExecutor(max(24, 4 * (os.cpu_count() or 1)), thread_name_prefix="tools")
AT_ONCE = 2


def run_program(code: str, stdin: str) -> tuple[str, str]:
    """What `run_python` answers a script, and the status of the run.

    Raises:
      SandboxFailure: the program could not be started.
    """
    result = run_python(code, stdin, limits=LIMITS)
    if result.status == "ok":
        return head_and_tail(result.stdout), "ok"
    so_far = "\noutput so far:\n" + result.stdout if result.stdout else ""
    return head_and_tail("error: " + error_of(result) + so_far), result.status


def error_of(result: Result) -> str:
    """One line: the exception and its line, or the limit, and what a program must not do if that ended it."""
    return in_words(result.status, last_words(result.stderr, result.exit_code))


def in_words(status: str, said: str) -> str:
    """One line for how a run ended, from its status and the last words of its program."""
    if status in WORDS:
        return WORDS[status]
    own = said.startswith("PermissionError") and "[Errno" not in said  # raised by the program itself
    return f"{said}: {REFUSED}" if status == "refused" and not own else said


def run_public_tests(task: Task, program: str) -> list[str]:
    """Runs a program on the public tests as the grader runs the hidden ones.

    Returns:
      One description for each failure; [] if all passed; ["no public tests"] if the task has none.

    Raises:
      UnsupportedTest: see `judge`. SandboxFailure: see `run_program`.
    """
    if not task.public_tests:
        return [NO_PUBLIC_TESTS]
    if not program.strip():
        return ["no program in the reply"]
    results = judge(program, task.public_tests, limits=LIMITS).per_test
    return [_failure(*pair) for pair in zip(task.public_tests, results, strict=True) if not pair[1].passed]


def _failure(test: Mapping[str, Any], result: TestResult) -> str:
    given, expected = shown(test)
    asserts = test["kind"] == "assert"
    head = _section("test" if asserts else "input", given)
    if result.status != "wrong_answer":
        return head + "error: " + in_words(result.status, result.detail)
    if asserts:
        return head + f"failed: {result.detail}\n" + _section("the last call returned", result.got).rstrip()
    return head + _section("expected output", expected) + _section("got", result.got).rstrip()


def _section(title: str, text: str) -> str:
    return f"{title}:\n{head_and_tail(text.strip(), SECTION_CHARS)}\n"


def brief(text: str, limit: int = BRIEF_CHARS) -> str:
    """The text, or its final program or answer and as much of what stands before it as fits, cut at lines."""
    if len(text) <= limit:
        return text
    program = extract_code(text)
    start = text.rfind(program) if program else -1
    if program and start > 0 and "```" in text:
        core = "```python\n" + program.strip("\n") + "\n```"
        before = text[:start].rpartition("```")[0]
    else:
        answer = extract_answer(text)
        at = text.rfind(answer) if answer else len(text) - 1
        line = text.rfind("\n", 0, at) + 1
        core, before = text[line:], text[:line]
    if len(core) >= limit:
        return _whole_lines(core, limit)
    return _whole_lines(before, limit - len(core) - 1) + "\n" + core


def _whole_lines(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text.rstrip("\n")
    cut = text[: max(limit, 0)]
    return cut.rpartition("\n")[0] or cut


def code_key(program: str) -> str:
    """Equal for programs that differ in layout and comments only; the text of what cannot be read or written as a tree.

    (Python reads a number of 5,000 hexadecimal digits and refuses to write it in decimals: a ValueError.)
    """
    if len(program) <= MAX_PROGRAM_CHARS:
        try:
            return ast.dump(parse(program))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass
    return program.strip()


def key_of(kind: str, text: str) -> str | None:
    """What makes two texts the same answer, up to mathematical equivalence; None if the text holds no answer."""
    if kind == "code":
        program = extract_code(text)
        return code_key(program) if program else None
    answer = extract_answer(text)
    return answer.strip() if answer and answer.strip() else None


def classes(kind: str, texts: Sequence[str], equivalent: Callable[[str, str], bool] | None) -> list[int]:
    """Class numbers in order of first appearance; -1 for a text without an answer.

    `equivalent(answer, representative)` is asked for math only, and only where the strings differ.
    """
    kept: list[str] = []
    out = []
    for text in texts:
        key = key_of(kind, text)
        if key is None:
            out.append(-1)
            continue
        same = next((i for i, other in enumerate(kept) if key == other), None)
        if same is None and kind == "math" and equivalent is not None:
            same = next((i for i, other in enumerate(kept) if equivalent(key, other)), None)
        if same is None:
            same = len(kept)
            kept.append(key)
        out.append(same)
    return out
