"""The code grader: which program a text gives, and which tests it passes.

Each test is a fresh contained process that gets the program and one input, nothing else. Expected outputs stay in this
process, where the comparison is made, so a program can neither read nor forge a verdict.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from metaagent_x.sandbox import Limits, run_python

_NAME = "<program>"
# Programs under judgement have odd escapes ("\d"); that is nothing to tell our user.
warnings.filterwarnings("ignore", category=SyntaxWarning, module=re.escape(_NAME))
warnings.filterwarnings("ignore", category=DeprecationWarning, module=re.escape(_NAME))

FLOAT_TOLERANCE = 1e-6  # absolute below 1, relative above; for expected tokens with a decimal point only
OUTPUT_BYTES = 16 << 20
PYTHON_LABELS = frozenset(("python", "python3", "py", "py3"))

_OPENING = re.compile(r"^[ \t]*```[ \t]*([^\s`]*)[^\n`]*\n", re.MULTILINE)
_SOLUTION = re.compile(r"<solution>(.*?)</solution>", re.DOTALL)
_REAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class UnsupportedTest(ValueError):
    """A test of a kind that `judge` cannot run."""


@dataclasses.dataclass(frozen=True)
class TestResult:
    """How one test went.

    Attributes:
      status: "passed", "wrong_answer", or how the run ended: "error", "cpu", "wall", "memory", "output", "refused",
        "crash".
      detail: one line for a person: the exception, the first line that differs. Never shown to an agent.
    """

    __test__ = False  # not a pytest class

    status: str
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.status == "passed"


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
    if tagged := _SOLUTION.findall(text):
        return _last_fence(tagged[-1]) if not is_program(tagged[-1]) else (tagged[-1].strip() + "\n", False)
    return _last_fence(text)


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
        return ast.parse(program, _NAME)
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
    stop_at_first_failure: bool = False,
) -> Judgement:
    """Runs a program on tests, each in a fresh contained process. Thread-safe; blocks.

    Args:
      program: Python source.
      tests: `{"kind": "stdin", "input": str, "output": str}` records.
      time_limit_s: CPU seconds for one test; a sleeping program is ended by a wall limit well above it.
      memory_mb: MiB for one test.
      stop_at_first_failure: do not run the tests after one that failed.

    Returns:
      The judgement; `total` counts all tests, also those not run.

    Raises:
      UnsupportedTest: a test of another kind. Raised before anything runs.
      SandboxFailure: a test could not be run (infrastructure, not a verdict).
    """
    for number, test in enumerate(tests):
        if test["kind"] != "stdin":
            raise UnsupportedTest(f"test {number} is of kind {test['kind']!r}; only 'stdin' tests can be judged")
    limits = Limits(cpu_s=time_limit_s, wall_s=4 * time_limit_s + 10, memory_mb=memory_mb, output_bytes=OUTPUT_BYTES)
    results: list[TestResult] = []
    for test in tests:
        results.append(_run(program, test, limits))
        if stop_at_first_failure and not results[-1].passed:
            break
    return Judgement(sum(r.passed for r in results), len(tests), tuple(results))


def _run(program: str, test: Mapping[str, Any], limits: Limits) -> TestResult:
    result = run_python(program, test["input"], limits=limits)
    if result.status != "ok":
        return TestResult(result.status, result.stderr.rstrip().rpartition("\n")[2][:200])
    if same_output(test["output"], result.stdout):
        return TestResult("passed")
    return TestResult("wrong_answer", _difference(test["output"], result.stdout))


def same_output(expected: str, got: str) -> bool:
    """True if a printed text is the expected one.

    Line ends (CRLF), trailing blanks and empty lines at the end never count. If the lines differ, tokens separated by
    white space are compared one by one: equal, case and all, or, for an expected token with a decimal point, a number
    within `FLOAT_TOLERANCE` of it (absolute below 1, relative above). An expected integer must be printed as it is.
    """
    if _lines(expected) == _lines(got):
        return True
    wanted, printed = expected.split(), got.split()
    return len(wanted) == len(printed) and all(_same_token(w, p) for w, p in zip(wanted, printed, strict=True))


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_token(wanted: str, printed: str) -> bool:
    if wanted == printed:
        return True
    if "." not in wanted or not (_REAL.fullmatch(wanted) and _REAL.fullmatch(printed)):
        return False
    x = float(wanted)
    return abs(x - float(printed)) <= FLOAT_TOLERANCE * max(1.0, abs(x))


def _difference(expected: str, got: str) -> str:
    wanted, printed = expected.split(), got.split()
    for number, (w, p) in enumerate(zip(wanted, printed, strict=False)):
        if not _same_token(w, p):
            return f"token {number}: expected {w[:60]!r}, got {p[:60]!r}"
    return f"expected {len(wanted)} tokens, got {len(printed)}"
