"""From tasks to rollout trees: M designs a task, N executions a design, all at once, each graded when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from metaagent_x.mas.records import Execution
from metaagent_x.rollout.engine import Engine, EngineFailure
from metaagent_x.rollout.play import Player, Settings
from metaagent_x.rollout.tree import Design, RolloutTree
from metaagent_x.tasks.task import Rubric, Task, Verdict

# Ended by its own doing, not by ours: reward 0, whatever text it left behind.
FAILED = ("invalid", "wall", "cpu", "memory", "crash")


class GraderProtocol(Protocol):
    async def grade(self, rubric: Rubric, text: str) -> Verdict: ...


async def collect(
    tasks: Sequence[tuple[Task, Rubric]],
    engines: Mapping[str, Engine],
    grader: GraderProtocol,
    *,
    designs: int,
    executions: int,
    config: Settings,
    step: int,
) -> list[RolloutTree]:
    """Samples, runs and grades designs; waits for nothing but what it needs next.

    Args:
      tasks: B pairs of a task and its rubric; the rubric goes to the grader and nowhere else.
      engines: the engine of each role, "designer" and "executor"; both may be the same object. With `rollout.design`
        no Designer is asked: every task gets that script.
      grader: `async grade(rubric, text) -> Verdict`.
      designs: M, designs per task. executions: N, executions per design.
      config: settings as made by `metaagent_x.config.base` (`seed`, `tokenizer`, `rollout`).
      step: part of every seed. The same (config.seed, step, tasks) gives the same requests and seeds.

    Returns:
      B trees in the order of `tasks`. A failing engine or grader makes an execution (or a design) void, never wrong.

    Raises:
      ValueError: designs or executions below 1.
      Exception: whatever a defect (not an EngineFailure) in an engine or grader raised, after all else has ended.
    """
    if designs < 1 or executions < 1:
        raise ValueError(f"designs={designs}, executions={executions}; both must be at least 1")
    job = _Collector(Player(engines, config, step), grader)
    trees = await asyncio.gather(
        *(job.tree(q, task, rubric, designs, executions) for q, (task, rubric) in enumerate(tasks))
    )
    if defect := job.player.defect or job.defect:
        raise defect
    return list(trees)


class _Collector:
    """What all trees of one `collect` share."""

    def __init__(self, player: Player, grader: GraderProtocol) -> None:
        self.player, self.grader = player, grader
        self.defect: BaseException | None = None

    async def tree(self, q: int, task: Task, rubric: Rubric, m: int, n: int) -> RolloutTree:
        made = await asyncio.gather(*(self.design(task, rubric, i, n) for i in range(m)))
        return RolloutTree(task, list(made), question=q, step=self.player.step, executions=n)

    async def design(self, task: Task, rubric: Rubric, i: int, n: int) -> Design:
        design = await self.player.design(task, i)
        if design.valid:
            design.executions += await asyncio.gather(*(self.execute(task, rubric, design, i, j) for j in range(n)))
        return design

    async def execute(self, task: Task, rubric: Rubric, design: Design, i: int, j: int) -> Execution:
        execution = await self.player.execute(task, design, i, j)
        if execution.status != "void":
            forbid = self.player.settings.forbid_answer_in_script
            try:
                execution.verdict = await judge(self.grader, rubric, execution, forbid_answer_in_script=forbid)
            except Exception as defect:
                self.defect = self.defect or defect
                execution.verdict = Verdict(False, 0.0, 0.0, 0.0, f"grader: {defect!r}", void=True)
        return execution


async def judge(
    grader: GraderProtocol, rubric: Rubric, execution: Execution, *, forbid_answer_in_script: bool = False
) -> Verdict:
    """The grader's verdict on an execution that is not void, after the rules that no answer can get around.

    Void if the grader failed (EngineFailure). Raises whatever a defect in the grader raised.
    """
    if execution.status in FAILED:
        return Verdict(False, 0.0, 0.0, 0.0, execution.status)
    for flag in ("no_calls", "answer_not_from_agents"):
        if flag in execution.flags:
            return Verdict(False, 0.0, 0.0, 0.0, flag)
    if "answer_in_script" in execution.flags and forbid_answer_in_script:
        return Verdict(False, 0.0, 0.0, 0.0, "answer_in_script")
    try:
        return await grader.grade(rubric, execution.answer)
    except EngineFailure as failure:
        return Verdict(False, 0.0, 0.0, 0.0, f"grader: {failure}", void=True)
