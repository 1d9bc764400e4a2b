"""The code grader: which program a text gives, and which tests it passes.

How a test is run, and what a program gets to see of it: `kinds.py`. What counts as the expected output: `compare.py`.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from metaagent_x.sandbox import Limits
from metaagent_x.tasks import syntax
from metaagent_x.tasks.compare import Checker
from metaagent_x.tasks.kinds import Runner, TestResult, UnsupportedTest, known_checker, require

__all__ = [
    "Judgement", "TestResult", "UnsupportedTest", "extract_code", "extract_code_with_flag", "is_program", "judge",
    "parse",
]  # fmt: skip

_NAME = "<program>"
# Programs under judgement have odd escapes ("\d"); that is nothing to tell our user.
warnings.filterwarnings("ignore", category=SyntaxWarning, module=re.escape(_NAME))
warnings.filterwarnings("ignore", category=DeprecationWarning, module=re.escape(_NAME))

OUTPUT_BYTES = 16 << 20
PYTHON_LABELS = frozenset(("python", "python3", "py", "py3"))

_OPENING = re.compile(r"^[ \t]*```[ \t]*([^\s`]*)[^\n`]*\n", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Judgement:
    """Verdict on one program. `per_test` ends early after a first failure if the caller wished so."""

    passed: int
    total: int
    per_test: tuple[TestResult, ...]


def extract_code(text: str) -> str | None:
    """The program that a text gives, or None. See `extract_code_with_flag`."""
    return extract_code_with_flag(text)[0]


def extract_code_with_flag(text: str) -> tuple[str | None, bool]:
    """The last complete program of a text, and whether the text breaks off inside a fence.

    In this order: the whole text, if it is a program; the last `<solution>` element; the last fence labelled as Python,
    or unlabelled with a program in it (an unlabelled sample output is not one). A fence ends at the first closing marks
    that leave a program that parses, so backticks in a docstring do not cut it (FoundationAgents/MetaGPT#1984). A fence
    that is never closed is no program (the completion was cut); an earlier complete one still counts.

    Returns:
      (program or None, True if the last fence is unclosed).
    """
    if is_program(text):
        return text.strip() + "\n", False
    start = text.rfind("<solution>", 0, max(text.rfind("</solution>"), 0))
    if start < 0:
        return _last_fence(text)
    tagged = text[start + len("<solution>") : text.find("</solution>", start)]
    return _last_fence(tagged) if not is_program(tagged) else (tagged.strip() + "\n", False)


def _last_fence(text: str) -> tuple[str | None, bool]:
    program, position = None, 0
    while opening := _OPENING.search(text, position):
        label, start = opening.group(1).lower(), opening.end()
        end = _closing(text, start)
        if end is None:
            return program, True
        body = text[start:end].rstrip() + "\n"
        if (label in PYTHON_LABELS and body.strip()) or (not label and is_program(body)):
            program = body
        position = end + 3
    return program, False


def _closing(text: str, start: int) -> int | None:
    """Where the fence that begins at `start` ends; None if no marks close it."""
    first = None
    position = text.find("```", start)
    for _ in range(8):  # a program has few docstrings with backticks; bounds the work on hostile text
        if position < 0:
            break
        first = position if first is None else first
        if parse(text[start:position]) is not None:
            return position
        position = text.find("```", position + 3)
    return first


def parse(program: str) -> ast.Module | None:
    """Its syntax tree, or None if it is not Python (or is nested too deeply to be read)."""
    try:
        return syntax.parse(program, _NAME)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def is_program(text: str) -> bool:
    """True if the text parses and does something: names, numbers and strings alone ("Yes", "4") are prose."""
    tree = parse(text)
    return tree is not None and any(
        not isinstance(node, ast.Expr) or isinstance(node.value, (ast.Call, ast.Await)) for node in tree.body
    )


def judge(
    program: str,
    tests: Sequence[Mapping[str, Any]],
    *,
    time_limit_s: float = 4.0,
    memory_mb: int = 512,
    limits: Limits | None = None,
    checker: Checker | str | None = None,
    stop_at_first_failure: bool = False,
) -> Judgement:
    """Runs a program on tests, each in a fresh contained process. Thread-safe; blocks.

    Args:
      program: Python source.
      tests: records of the kinds "stdin", "call" and "assert"; `kinds.py` says what each holds.
      time_limit_s: CPU seconds for one test; a sleeping program is ended by a wall limit well above it.
      memory_mb: MiB for one test.
      limits: all limits of one test, in place of these two.
      checker: says whether a printed text is right where several are: `(input, expected, got) -> bool`, or the name of
        one of `compare.CHECKERS`; None or "": `compare.same_output`. For stdin tests that name none themselves. It runs
        in this process and must stand any text; what it raises is raised here.
      stop_at_first_failure: do not run the tests after one that failed.

    Returns:
      The judgement; `total` counts all tests, also those not run.

    Raises:
      UnsupportedTest: a test of another kind, a malformed one, a checker that is unknown or is given for a test that is
        not of kind stdin. Raised before anything runs; but an assert test that uses nothing of the program is found out
        at its end.
      SandboxFailure: a test could not be run (infrastructure, not a verdict).
    """
    for number, test in enumerate(tests):
        require(test, f"test {number}")
        if checker:
            checker = known_checker(checker, test["kind"], f"test {number}")
    wall_s = 4 * time_limit_s + 10
    limits = limits or Limits(time_limit_s, wall_s=wall_s, memory_mb=memory_mb, output_bytes=OUTPUT_BYTES)
    results: list[TestResult] = []
    with Runner(program, limits, None if isinstance(checker, str) else checker) as runner:
        for test in tests:
            results.append(runner.run(test))
            if stop_at_first_failure and not results[-1].passed:
                break
    return Judgement(sum(r.passed for r in results), len(tests), tuple(results))
