"""What the host does for a script besides model calls: programs, public tests, briefs, classes of equal answers."""

from __future__ import annotations

import ast
import concurrent.futures
import os
import re
from collections.abc import Callable, Sequence

from metaagent_x.mas.records import NO_PUBLIC_TESTS
from metaagent_x.mas.script import parse
from metaagent_x.sandbox import Limits, Result, run_python
from metaagent_x.tasks.code import extract_code
from metaagent_x.tasks.math import extract_answer
from metaagent_x.tasks.task import Task

# The wall limit is for programs that sleep: waiting for a core does not count (`sandbox/watch.py`).
LIMITS = Limits(cpu_s=5.0, wall_s=10.0, memory_mb=512, output_bytes=1 << 20)
SHOWN_CHARS = 4000
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
    if result.status in WORDS:
        return WORDS[result.status]
    lines = result.stderr.rstrip().split("\n")
    numbers = re.findall(r'File "main\.py", line (\d+)', result.stderr)
    what = (lines[-1] or f"exit code {result.exit_code}") + (f" (line {numbers[-1]})" if numbers else "")
    own = lines[-1].startswith("PermissionError") and "[Errno" not in lines[-1]  # raised by the program itself
    return f"{what}: {REFUSED}" if result.status == "refused" and not own else what


def head_and_tail(text: str, limit: int = SHOWN_CHARS) -> str:
    """The text, or its first and last parts and how much is missing between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters ...]\n{text[-half:]}"


def run_public_tests(task: Task, program: str) -> list[str]:
    """Runs a program on the public tests that read standard input; output is compared word by word.

    Returns:
      One description for each failure; [] if all passed; ["no public tests"] if the task has none of that kind.

    Raises:
      SandboxFailure: see `run_program`.
    """
    tests = [t for t in task.public_tests if t.get("kind", "stdin") == "stdin"]
    if not tests:
        return [NO_PUBLIC_TESTS]
    if not program.strip():
        return ["no program in the reply"]
    failures = []
    for test in tests:
        given, expected = str(test["input"]), str(test["output"])
        result = run_python(program, given, limits=LIMITS)
        if result.status != "ok":
            failures.append(_section("input", given) + "error: " + head_and_tail(error_of(result), SECTION_CHARS))
        elif result.stdout.split() != expected.split():
            got = _section("got", result.stdout).rstrip()
            failures.append(_section("input", given) + _section("expected output", expected) + got)
    return failures


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
