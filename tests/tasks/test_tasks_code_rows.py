"""The judge on real rows: reference programs pass, and a program with one seeded mistake fails."""

from __future__ import annotations

import ast
import concurrent.futures
import json
import pathlib
import random
import re
import typing

import pytest

from metaagent_x.sandbox import Limits, run_python
from metaagent_x.tasks import datasets
from metaagent_x.tasks.code import judge
from metaagent_x.tasks.contained import HELPFUL
from metaagent_x.tasks.kinds import called

DATA = pathlib.Path(__file__).resolve().parents[3] / "shared" / "data"
SETS = {
    "humaneval": ("humaneval/HumanEval.jsonl", 100),
    "mbpp:split=train": ("mbpp/mbpp.jsonl", 200),
    "mbpp:split=validation": ("mbpp/mbpp.jsonl", 40),
    "mbpp:split=test": ("mbpp/mbpp.jsonl", 300),
    "apps": ("apps/train.jsonl", 91),
    "code_contests:split=train": ("code_contests/train_with_solutions.jsonl", 19),
}
LIMITS = Limits(cpu_s=10.0, wall_s=60.0, memory_mb=512, output_bytes=16 << 20)
PLAIN = Limits(cpu_s=1.0, wall_s=10.0, memory_mb=512, output_bytes=16 << 20)
TESTS = 5  # of one program, for a mutant
IMPORTS = "".join(f"from {module.__name__} import *\n" for module in HELPFUL if module.__name__ != "sys")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not DATA.is_dir(), reason=f"no real rows at {DATA}")]


def known_good(name):
    """(task id, program, all tests of its task) for every reference program of a set."""
    path, at_least = SETS[name]
    path = str(DATA / path)
    if name == "apps":
        return apps(path)
    tests = {task.id: [*task.public_tests, *rubric.tests] for task, rubric in datasets.load(name, path)}
    found = [
        (task_id, program, tests[task_id])
        for task_id, programs in datasets.solutions(name, path) if task_id in tests for program in programs
    ]  # fmt: skip
    assert len(found) >= at_least
    return found


def apps(path):
    """Also of the rows whose only test is an example of the statement: those make no task."""
    found = []
    for row in map(json.loads, pathlib.Path(path).read_text().splitlines()):
        packed = json.loads(row["input_output"])
        function = packed.get("fn_name")
        kind = {"kind": "call", "entry_point": function} if function else {"kind": "stdin"}
        tests = [kind | {"input": x, "output": y} for x, y in zip(packed["inputs"], packed["outputs"], strict=True)]
        found += [(str(row["problem_id"]), program, tests) for program in json.loads(row["solutions"])]
    return found


def side_by_side(function, jobs):
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        return list(threads.map(function, jobs))


@pytest.mark.fault("F134")
@pytest.mark.fault("F137")
@pytest.mark.parametrize("name", SETS)
def test_known_good_programs_pass(name):
    jobs = known_good(name)
    verdicts = side_by_side(lambda job: judge(*job[1:], limits=LIMITS, stop_at_first_failure=True), jobs)
    failed = {job[0]: v.per_test[-1] for job, v in zip(jobs, verdicts, strict=True) if v.passed < v.total}
    assert not failed, failed


class Mistake(ast.NodeTransformer):
    """Changes the node of a number: a comparison, a constant, a sign, or what is returned. Counts such nodes."""

    COMPARE: typing.ClassVar = {
        ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
        ast.In: ast.NotIn, ast.NotIn: ast.In,
    }  # fmt: skip

    def __init__(self, number):
        self.number, self.count = number, 0

    def here(self):
        self.count += 1
        return self.count - 1 == self.number

    def visit_Compare(self, node):
        self.generic_visit(node)
        if type(node.ops[0]) in self.COMPARE and self.here():
            node.ops[0] = self.COMPARE[type(node.ops[0])]()
        return node

    def visit_Constant(self, node):
        if type(node.value) in (int, str) and self.here():
            return ast.Constant(node.value + (1 if type(node.value) is int else "x"))
        return node

    def visit_JoinedStr(self, node):
        return node

    def visit_BinOp(self, node):
        self.generic_visit(node)
        if isinstance(node.op, (ast.Add, ast.Sub)) and self.here():
            node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        return node

    def visit_Return(self, node):
        self.generic_visit(node)
        return ast.Return(ast.Constant(None)) if node.value and self.here() else node


def mutants(program, seed):
    """The program with one mistake, in a random order of mistakes."""
    counter = Mistake(-1)
    counter.visit(ast.parse(program))
    numbers = list(range(counter.count))
    random.Random(seed).shuffle(numbers)
    for number in numbers:
        yield ast.unparse(ast.fix_missing_locations(Mistake(number).visit(ast.parse(program))))


def plain(program, test):
    """What a program does in the plain way: all in one process, nothing kept apart. None if it met a limit."""
    stdin = test["input"] if test["kind"] == "stdin" else ""
    if test["kind"] == "assert":
        program += "\n" + test["input"]
    elif test["kind"] == "call":
        name = ("Solution()." if re.search(r"^class Solution", program, re.MULTILINE) else "") + test["entry_point"]
        program = f"{IMPORTS}\n{program}\nprint(repr({name}(*{called(test)[0]!r})))"
    result = run_python(program, stdin, limits=PLAIN)
    said = result.stdout.split() if test["kind"] == "stdin" else result.stdout.rstrip().split("\n")[-1]
    return None if result.status not in ("ok", "error") else (result.status, test["kind"] != "assert" and said)


def a_mistake(job):
    """The first mutant that does something else on some of the tests in the plain way; None if there is none."""
    task_id, program, tests = job
    tests = tests[:TESTS]
    right = [plain(program, test) for test in tests]
    for mutant in mutants(program, task_id):
        outcomes = []
        for test, was in zip(tests, right, strict=True):
            outcomes.append(plain(mutant, test))
            if outcomes[-1] is None or outcomes[-1] != was:
                break
        last = len(outcomes) - 1
        if (
            outcomes[last] is not None
            and outcomes[last] != right[last]
            and plain(mutant, tests[last]) == outcomes[last]
        ):
            return mutant  # and not by chance
    return None


@pytest.mark.parametrize("name", SETS)
def test_one_mistake_that_changes_an_output_fails(name):
    jobs = known_good(name)
    found = side_by_side(a_mistake, jobs)
    pairs = [(job, mutant) for job, mutant in zip(jobs, found, strict=True) if mutant is not None]
    assert len(pairs) > 0.97 * len(jobs)
    verdicts = side_by_side(lambda pair: judge(pair[1], pair[0][2][:TESTS], limits=LIMITS), pairs)
    assert not [pair for pair, verdict in zip(pairs, verdicts, strict=True) if verdict.passed == verdict.total]
