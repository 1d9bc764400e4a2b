"""Plays what is missing of an evaluation: every method on every task as often as asked, many tasks in flight."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence

from metaagent_x.baselines.method import Means, Method
from metaagent_x.evaluation.benchmarks import Benchmark
from metaagent_x.evaluation.journal import Journal
from metaagent_x.evaluation.rows import Key, row_of
from metaagent_x.interruption import to_the_end
from metaagent_x.mas.records import Execution
from metaagent_x.rollout.collect import GraderProtocol, judge
from metaagent_x.tasks.task import Rubric, Task


@dataclasses.dataclass(frozen=True)
class Unit:
    """One task to be played once by one method."""

    method: str
    benchmark: str
    sample: int
    task: Task
    rubric: Rubric

    @property
    def key(self) -> Key:
        return self.method, self.benchmark, self.sample, self.task.id


def units(
    methods: Sequence[str], benchmarks: Sequence[Benchmark], samples: Callable[[Benchmark], int]
) -> list[Unit]:  # fmt: skip
    """All that an evaluation consists of, in the order in which it is played."""
    return [
        Unit(method, benchmark.name, sample, task, rubric)
        for method in methods
        for benchmark in benchmarks
        for sample in range(samples(benchmark))
        for task, rubric in benchmark.pairs
    ]


def missing(all_of_it: Iterable[Unit], journal: Journal) -> list[Unit]:
    """What has no result yet, or a void one."""
    return [unit for unit in all_of_it if journal.rows.get(unit.key, {"void": True})["void"]]


async def play(
    todo: Sequence[Unit],
    methods: Mapping[str, Method],
    means: Means,
    grader: GraderProtocol,
    journal: Journal,
    *,
    scorer: str,
    in_flight: int,
    forbid_answer_in_script: bool = False,
    ended: Callable[[Unit], object] = lambda _: None,
) -> None:
    """Plays units, grades them and writes them down; what has ended is on disk when this returns, however it returns.

    Methods that need another one's results begin when that one has ended.

    Args:
      todo: see `missing`. methods: by name. means: what they were made with.
      scorer: name and version of the grader, for every row. in_flight: tasks at a time.
      ended: told of every unit that has ended.

    Raises:
      Exception: whatever a defect (not an EngineFailure) of an engine or the grader raised.
    """

    async def worker(queue: Iterator[Unit], group: asyncio.TaskGroup) -> None:
        for unit in queue:
            began = time.perf_counter()
            execution = await methods[unit.method].solve(unit.task, unit.sample)
            means.check()
            # Beside the next task: engines must not wait for programs that are being tested.
            group.create_task(conclude(unit, execution, time.perf_counter() - began))

    async def conclude(unit: Unit, execution: Execution, wall_s: float) -> None:
        if execution.status != "void":
            execution.verdict = await judge(
                grader, unit.rubric, execution, forbid_answer_in_script=forbid_answer_in_script
            )
        row = row_of(
            execution, unit.task, method=unit.method, benchmark=unit.benchmark, sample=unit.sample, scorer=scorer,
            wall_s=wall_s,
        )  # fmt: skip
        journal.add(row, execution, unit.task)
        ended(unit)

    try:
        for wave in _waves(todo, methods):
            queue = iter(wave)
            async with _first_failure(), asyncio.TaskGroup() as group:
                for _ in range(min(in_flight, len(wave))):
                    group.create_task(worker(queue, group))
    finally:
        await to_the_end(journal.flush())


def _waves(todo: Sequence[Unit], methods: Mapping[str, Method]) -> list[list[Unit]]:
    """Those that need nothing, then those that need them. Needs go one level deep: a vote is not matched to a vote."""
    return [[u for u in todo if bool(methods[u.method].needs) == late] for late in (False, True)]


@contextlib.asynccontextmanager
async def _first_failure() -> AsyncIterator[None]:
    """Raises the first exception of a group instead of the group."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
