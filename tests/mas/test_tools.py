"""Public tests of all kinds: what an agent is told of a failure."""

import pytest

from metaagent_x.mas.tools import REFUSED, run_public_tests
from metaagent_x.tasks.task import Task

STDIN = {"kind": "stdin", "input": "3\n", "output": "9.0\n"}
CALL = {"kind": "call", "input": [[1, 2], "x"], "output": [[2.0, "x"]], "entry_point": "f"}
ASSERT = {"kind": "assert", "input": "assert f([1, 2], 'x') == (2, 'x')", "output": "", "entry_point": "f"}


def failures(program, *tests):
    return run_public_tests(Task("c/1", "code", "Do it.", tests), program)


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("print(9.0000000001)", STDIN),
        ("def f(x, y): return [max(x), y]", CALL),
        ("def f(x, y): return max(x), y", ASSERT),
    ],
)
def test_what_the_grader_passes_is_no_failure(program, test):
    assert failures(program, test) == []


@pytest.mark.parametrize(
    ("program", "test", "told"),
    [
        ("print(8)", STDIN, "input:\n3\nexpected output:\n9.0\ngot:\n8"),
        ("x = 1\nprint(1 // 0)", STDIN,
         "input:\n3\nerror: ZeroDivisionError: integer division or modulo by zero (line 2)"),
        ("def f(x, y): return y", CALL, "input:\nf([1, 2], 'x')\nexpected output:\n[[2.0, 'x']]\ngot:\n'x'"),
        (
            "def f(x, y): return print", CALL,
            "input:\nf([1, 2], 'x')\nexpected output:\n[[2.0, 'x']]\ngot:\n"
            "builtin_function_or_method, which is no plain data",
        ),
        ("def f(x, y):\n    return z", CALL,
         "input:\nf([1, 2], 'x')\nerror: NameError: name 'z' is not defined (line 2)"),
        (
            "def f(x, y): return y", ASSERT,
            "test:\nassert f([1, 2], 'x') == (2, 'x')\nfailed: AssertionError (line 1)\nthe last call returned:\n'x'",
        ),
        (
            "def f(x, y):\n    import os\n    os.fork()", ASSERT,
            "test:\nassert f([1, 2], 'x') == (2, 'x')\n"
            f"error: PermissionError: [Errno 1] Operation not permitted (line 3): {REFUSED}",
        ),
        ("def f(x, y): return ' '.join(['y'] * 10**5)", CALL, None),
        ("print('y ' * 10**5)", STDIN, None),
    ],
)  # fmt: skip
def test_a_failure_says_what_was_asked_expected_and_got(program, test, told):
    (failure,) = failures(program, test)
    assert failure == told if told else len(failure) < 600 and "characters ...]" in failure


def test_only_failures_are_told_and_a_task_without_tests_says_so():
    assert failures("print(9.0)", STDIN, STDIN | {"output": "8"}) == ["input:\n3\nexpected output:\n8\ngot:\n9.0"]
    assert failures("print(1)") == ["no public tests"]
    assert failures(" \n", STDIN) == ["no program in the reply"]


@pytest.mark.fault("B036")
def test_a_public_test_names_its_checker_itself():
    """A task has no rubric, so the checker of its public tests stands in them."""
    lines = STDIN | {"output": "a\nb"}
    assert failures("print('b')\nprint('a')", lines | {"checker": "unordered_lines"}) == []
    assert len(failures("print('b')\nprint('a')", lines)) == 1
