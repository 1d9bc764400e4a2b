"""The three kinds of tests: what each must hold, and how it is run.

  stdin    {"kind", "input": text, "output": text}: the program reads the one and prints the other. Where several
           outputs are right, "checker" is the name of one of `compare.CHECKERS`.
  call     {"kind", "input": arguments, "output": value, "entry_point": name}: a method of class `Solution`, if it has
           such a one, or a function, is called. The arguments are a list, or a text with one JSON value a line; then
           the output is a text with one JSON value.
  assert   {"kind", "input": Python source, "output": "", "entry_point": name}: the source makes assertions when it
           runs, calling the program by its names.

Each test is a fresh contained process, so that a program carries nothing from one hidden input to the next. It gets one
input and nothing else: expected outputs stay in this process, where they are compared. The source of an assert test
holds expected values; it runs in a second contained process, which asks that of the program for every call.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import json
import re
import socket
import threading
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from metaagent_x.sandbox import Limits, Program, Result, SandboxFailure
from metaagent_x.tasks import contained, syntax
from metaagent_x.tasks.compare import CHECKERS, Checker, output_difference, same_output, same_value

KINDS = ("stdin", "call", "assert")
GOT_CHARS = 400  # of what a program said, in a result
TEST_MEMORY_MB = 512
KEPT = 16  # processes of assert tests
RESULT_BYTES = contained.MAX_LINE  # of a returned value: what the parent reads takes many times that
LONGER = 32  # times as long as the expected value, a returned one is wrong and is not read

_NAME = "<test>"
# Tests have odd escapes ("\d"); that is nothing to tell our user.
warnings.filterwarnings("ignore", category=SyntaxWarning, module=_NAME)
warnings.filterwarnings("ignore", category=DeprecationWarning, module=_NAME)


class UnsupportedTest(ValueError):
    """A test that cannot be run: of no known kind, or malformed."""


@dataclasses.dataclass(frozen=True)
class TestResult:
    """How one test went.

    Attributes:
      status: "passed", "wrong_answer", or how the run ended: "error", "cpu", "wall", "memory", "output", "threads",
        "refused", "crash".
      detail: one line for a person: the exception, the first thing that differs. May hold expected values, so it is
        never shown to an agent, except for a public test.
      got: for a wrong answer, what the program printed or returned, its middle left out if it is long.
    """

    __test__ = False  # not a pytest class

    status: str
    detail: str = ""
    got: str = ""

    @property
    def passed(self) -> bool:
        return self.status == "passed"


PASSED = TestResult("passed")


def head_and_tail(text: str, limit: int = 4000) -> str:
    """The text, or its first and last parts and how much is missing between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters ...]\n{text[-half:]}"


def _short(text: str) -> str:
    """For a result; a person or a tokenizer can read it (a program's text may hold halves of characters)."""
    return head_and_tail(text, GOT_CHARS).encode("utf-8", "backslashreplace").decode()


def last_words(stderr: str, exit_code: int = 0, file: str = contained.FILE) -> str:
    """The last line of a traceback, with the line of the program (or another file) where it came about."""
    numbers = re.findall(rf'File "{re.escape(file)}", line (\d+)', stderr)
    said = stderr.rstrip().rpartition("\n")[2] or (f"exit code {exit_code}" if exit_code else "")
    return said + (f" (line {numbers[-1]})" if numbers else "")


def require(test: Mapping[str, Any], name: str) -> None:
    """Refuses a test that cannot be run.

    Raises:
      UnsupportedTest: says which test (`name`) and what is wrong with it.
    """
    kind = test.get("kind")
    if kind not in KINDS:
        raise UnsupportedTest(f"{name} is of kind {kind!r}, which is not one of {', '.join(KINDS)}")
    fields = ("input", "output") + (("entry_point",) if kind != "stdin" else ())
    if missing := [field for field in fields if field not in test]:
        raise UnsupportedTest(f"{name}, of kind {kind}, has no {missing[0]}")
    text = ("input", "output") if kind == "stdin" else ("entry_point",) if kind == "call" else ("entry_point", "input")
    for field in text:
        if not isinstance(test[field], str):
            raise UnsupportedTest(f"{name}, of kind {kind}: {field} is {type(test[field]).__name__}, not text")
    if checker := test.get("checker"):
        known_checker(checker, kind, name)
    if kind != "stdin" and not test["entry_point"].isidentifier():
        raise UnsupportedTest(f"{name}: entry_point is {test['entry_point']!r}, which is no name")
    try:
        if kind == "call":
            json.dumps(contained.encode(called(test)))
        elif kind == "assert":
            _names(test["input"])
    except (ValueError, TypeError, SyntaxError, RecursionError) as problem:
        raise UnsupportedTest(f"{name}, of kind {kind}, cannot be read: {problem}") from problem


@functools.lru_cache(1024)
def _names(source: str) -> list[str]:
    """The names whose values a source reads."""
    nodes = ast.walk(syntax.parse(source, _NAME))
    return sorted({node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)})


def known_checker(checker: Checker | str, kind: str, name: str) -> Checker:
    """The checker itself, for a test (`name`) of that kind. Raises UnsupportedTest."""
    if kind != "stdin":
        raise UnsupportedTest(f"{name} is of kind {kind!r}; a checker reads printed text only")
    if isinstance(checker, str) and checker not in CHECKERS:
        raise UnsupportedTest(f"{name}: checker {checker!r} is not one of {', '.join(CHECKERS)}")
    return CHECKERS[checker] if isinstance(checker, str) else checker


def called(test: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """Arguments and expected value of a call test."""
    given, expected = test["input"], test["output"]
    if isinstance(given, str):
        return [json.loads(line) for line in given.split("\n") if line.strip()], json.loads(expected)
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"input is {type(given).__name__}, not a list of arguments or a text with one a line")
    return list(given), expected


def shown(test: Mapping[str, Any]) -> tuple[str, str]:
    """Input and expected output of a test as a person would write them; a source for an assert test, and ""."""
    if test["kind"] != "call":
        return test["input"], test["output"]
    arguments, expected = called(test)
    return f"{test['entry_point']}({', '.join(map(_repr, arguments))})", _repr(expected)


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return json.dumps(contained.encode(value))


class Runner:
    """Runs tests on one program, which is made ready once for each kind. Use it in a `with` statement; one thread."""

    def __init__(self, program: str, limits: Limits, checker: Checker | None = None):
        """Args: `checker`: decides on stdin tests instead of `same_output`."""
        self.program, self.limits, self.checker = program, limits, checker
        self._ready: dict[str, Program] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_) -> None:
        self._stack.close()

    def run(self, test: Mapping[str, Any]) -> TestResult:
        """Raises SandboxFailure if the test could not be run (infrastructure, not a verdict)."""
        return {"stdin": self._stdin, "call": self._call, "assert": self._assert}[test["kind"]](test)

    def _program(self, limits: Limits, driver: str = "") -> Program:
        if driver not in self._ready:
            self._ready[driver] = self._stack.enter_context(_driven(self.program, limits, driver))
        return self._ready[driver]

    def _stdin(self, test: Mapping[str, Any]) -> TestResult:
        result = self._program(self.limits).run(test["input"])
        if result.status != "ok":
            return _ended(result)
        given, expected, got = test["input"], test["output"], result.stdout
        checker = CHECKERS[test["checker"]] if test.get("checker") else self.checker
        if checker(given, expected, got) if checker else same_output(expected, got):
            return PASSED
        return TestResult("wrong_answer", output_difference(expected, got), _short(got.strip()))

    def _call(self, test: Mapping[str, Any]) -> TestResult:
        arguments, expected = called(test)
        asked = json.dumps({"entry_point": test["entry_point"], "arguments": contained.encode(arguments)})
        limits = dataclasses.replace(self.limits, output_bytes=min(self.limits.output_bytes, RESULT_BYTES))
        result = self._program(limits, "call").run(asked)
        if result.status != "ok":
            return _ended(result)
        if not result.stdout:
            return TestResult("error", "the program ended before it returned")
        if len(result.stdout) > 1000 + LONGER * len(json.dumps(contained.encode(expected))):
            got = _short(result.stdout)
            return TestResult("wrong_answer", f"returned much more than expected: {got}", got)
        try:
            said = json.loads(result.stdout)
            if "value" not in said:
                problem = _short(str(said["problem"]))
                return TestResult("wrong_answer", f"returned {problem}", problem)
            got = contained.decode(said["value"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return TestResult("error", "the program wrote something else in place of what it returned")
        # Some sets wrap the expected value in a list of one, and some rows of the same sets do not.
        wrapped = isinstance(test["input"], list) and isinstance(expected, list) and len(expected) == 1
        if same_value(expected, got) or (wrapped and same_value(expected[0], got)):
            return PASSED
        wanted, got = (_short(_repr(value)) for value in (expected, got))
        return TestResult("wrong_answer", f"expected {wanted}, got {got}", got)

    def _assert(self, test: Mapping[str, Any]) -> TestResult:
        limits = dataclasses.replace(self.limits, wall_s=2 * self.limits.wall_s, memory_mb=TEST_MEMORY_MB)
        asked = json.dumps(
            {"source": test["input"], "entry_point": test["entry_point"], "names": _names(test["input"])}
        )
        with _asserting(limits) as asserting:
            of_program, of_test = _both(self._program(self.limits, "serve"), asserting, asked)
        said = json.loads(of_test.stdout) if of_test.status == "ok" else None
        if said and said["status"] == "passed":
            if not said["asked"]:
                raise UnsupportedTest("an assert test used nothing of the program")
            return PASSED
        if of_program.status != "ok":
            return _ended(of_program)
        if said is None:
            return _ended(of_test)
        status, told = said["status"], said["detail"]
        detail = last_words(told, file=contained.FILE if status == "error" else contained.TESTS)
        if status == "error" and detail.startswith("PermissionError"):
            status = "refused"
        return TestResult(status, _short(detail), _short(said["got"]))


def _driven(program: str, limits: Limits, driver: str) -> Program:
    return Program(program, limits=limits, driver=f"{contained.__name__}:{driver}" if driver else ":")


_shelf: list[Program] = []
_shelf_lock = threading.Lock()


@contextlib.contextmanager
def _asserting(limits: Limits) -> Iterator[Program]:
    """The process of assert tests: the same for every program, so it is kept ready."""
    with _shelf_lock:
        at = next((i for i, ready in enumerate(_shelf) if ready.limits == limits), None)
        ready = _driven("", limits, "check") if at is None else _shelf.pop(at)
    try:
        yield ready
    except BaseException:
        ready.close()
        raise
    with _shelf_lock:
        _shelf.append(ready)
        oldest = _shelf.pop(0) if len(_shelf) > KEPT else None
    if oldest is not None:
        oldest.close()


def _both(program: Program, asserting: Program, asked: str) -> tuple[Result, Result]:
    """Runs two programs whose standard inputs are the ends of one line. Whoever ends first hangs up.

    What is asked of the second stands in its end of the line before the first begins, which cannot read it there.
    """
    ours, theirs = socket.socketpair()
    ending: list[Result | BaseException] = []

    def run() -> None:
        try:
            theirs.sendall(asked.encode() + b"\n")
            ending.append(program.run(theirs.fileno()))
        except OSError as problem:
            ending.append(SandboxFailure(f"the process of an assert test cannot be told its test: {problem}"))
        except BaseException as problem:
            ending.append(problem)
        finally:
            theirs.close()

    thread = threading.Thread(target=run, name="program under assertions")
    thread.start()
    try:
        of_test = asserting.run(ours.fileno())
    finally:
        ours.close()
        thread.join()
    (of_program,) = ending
    if isinstance(of_program, BaseException):
        raise of_program
    return of_program, of_test


def _ended(result: Result) -> TestResult:
    return TestResult(result.status, _short(last_words(result.stderr, result.exit_code)))
