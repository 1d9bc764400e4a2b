"""Rate of the code judge against one fresh interpreter per test, in the same run, on real rows and known-good programs.

  python -m benchmarks.judge ../shared/data            # prints a table
  python -m benchmarks.judge ../shared/data --append   # and adds it to benchmarks/RESULTS.md

Two threads judge, in strict mode. "interpreter" runs `python -c` with what a test needs after the program: nothing for
stdin tests, the names that graders give to called functions and one call for call tests, the assertions for assert
tests. "with limits" sets CPU, memory and file limits in it, and its own session, as graders do; neither contains
anything else. "light" is a program of two lines on 200 inputs: what a test costs besides the program's own work.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import itertools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from metaagent_x import sandbox
from metaagent_x.tasks import datasets
from metaagent_x.tasks.code import judge
from metaagent_x.tasks.contained import HELPFUL
from metaagent_x.tasks.kinds import called

THREADS, REPEATS, TESTS, ROWS = 2, 5, 20, 40  # tests of one program and rows of one set, at most
Job = tuple[str, Sequence[Any]]
SETS = {
    "stdin, CodeContests": ("code_contests", "code_contests/train_with_solutions.jsonl"),
    "call, APPS": ("apps", "apps/train.jsonl"),
    "assert, HumanEval": ("humaneval", "humaneval/HumanEval.jsonl"),
    "assert, MBPP": ("mbpp", "mbpp/mbpp.jsonl"),
}
LIGHT: Job = (
    "a, b = map(int, input().split())\nprint(a + b)",
    [{"kind": "stdin", "input": f"{n} {n}", "output": str(2 * n)} for n in range(TESTS)],
)
PRELUDE = "".join(f"import {m.__name__}\nfrom {m.__name__} import *\n" for m in HELPFUL)


def jobs(name: str, path: Path) -> list[Job]:
    """Programs and the hidden tests that they are judged by."""
    rubrics = {rubric.task_id: rubric for _, rubric in datasets.load(name, str(path))}
    found = ((texts[0], rubrics[i].tests[:TESTS]) for i, texts in datasets.solutions(name, str(path)) if texts)
    return list(itertools.islice(found, ROWS))


def ours(job: Job) -> int:
    return judge(*job, time_limit_s=10).passed


def interpreter(limits: bool) -> Callable[[Job], int]:
    """Counts the tests of a job that pass, each in an interpreter of its own."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 20, 16 << 20))

    more: dict[str, Any] = {"preexec_fn": limit, "start_new_session": True} if limits else {}

    def passes(program: str, test: Any) -> bool:
        given, then = test["input"], ""
        if test["kind"] == "call":
            arguments, _ = called(test)
            name = test["entry_point"]
            function = f"(Solution().{name} if 'Solution' in globals() else {name})"
            program, given = PRELUDE + program, ""
            then = f"\nimport json\nprint(json.dumps({function}(*{arguments!r})))"
        elif test["kind"] == "assert":
            given, then = "", "\n" + test["input"]
        command = [sys.executable, "-c", program + then]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False, **more)
        if test["kind"] == "call":
            _, expected = called(test)
            return done.returncode == 0 and json.loads(done.stdout) in (expected, *expected[:1])
        return done.returncode == 0 and (test["kind"] == "assert" or done.stdout.split() == test["output"].split())

    return lambda job: sum(passes(job[0], test) for test in job[1])


def rate(way: Callable[[Job], int], work: Sequence[Job]) -> float:
    """Tests a second. Raises RuntimeError if a known-good program fails."""
    total = sum(len(tests) for _, tests in work)
    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        passed = sum(pool.map(way, work))
    if passed < total:
        raise RuntimeError(f"{total - passed} of {total} tests failed on programs that are known to be right")
    return total / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the rows")
    parser.add_argument("--append", action="store_true")
    args = parser.parse_args()
    layers = sandbox.use("strict")
    work = {"stdin, light": [LIGHT] * 10}
    work |= {title: jobs(name, args.data / path) for title, (name, path) in SETS.items()}
    ways = {"judge": ours, "interpreter": interpreter(False), "with limits": interpreter(True)}
    lines = [
        "| tests | programs | tests run | judge, tests/s | interpreter | with limits | ratio | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for title, chosen in work.items():
        rates = [{name: rate(way, chosen) for name, way in ways.items()} for _ in range(REPEATS)]
        middle = {name: statistics.median(row[name] for row in rates) for name in ways}
        ratios = [
            statistics.median(row["judge"] / row[name] for row in rates) for name in ("interpreter", "with limits")
        ]
        numbers = [f"{middle[name]:.0f}" for name in ways] + [f"{ratio:.1f}x" for ratio in ratios]
        tests = sum(len(tests) for _, tests in chosen)
        lines.append(f"| {title} | {len(chosen)} | {tests} | " + " | ".join(numbers) + " |")
        print(lines[-1], flush=True)
    table = "\n".join(lines)
    print(table)
    if args.append:
        machine = f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}"
        with open(Path(__file__).with_name("RESULTS.md"), "a") as file:
            file.write(f"\n## Code judge\n\n`python -m benchmarks.judge`, {datetime.date.today()}: {machine}; medians "
                       f"of {REPEATS} runs in turn, {THREADS} threads; {', '.join(layers)}.\n\n{table}\n")  # fmt: skip


if __name__ == "__main__":
    main()
