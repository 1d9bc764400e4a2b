"""The trained system: its Designer writes a script for the task, and its Executor plays every agent in it."""

from __future__ import annotations

from collections.abc import Mapping

from metaagent_x.baselines.method import Means, Method
from metaagent_x.mas.records import Execution
from metaagent_x.rollout.play import Player
from metaagent_x.tasks.task import Task


class Designed:
    """A design for every task, run once."""

    needs = ""

    def __init__(self, player: Player):
        self.player = player

    async def solve(self, task: Task, sample: int = 0) -> Execution:
        """See `Method`. Sample i is design i of the task, execution 0."""
        design = await self.player.design(task, sample)
        if design.valid:
            execution = await self.player.execute(task, design, sample, 0)
        else:
            execution = Execution(status="void" if design.void else "invalid", reason=design.problem)
            execution.structure = "" if design.void else "invalid"
        execution.designer, execution.script = design.call, design.script or ""
        return execution


def make(means: Means, options: Mapping[str, str]) -> Method:
    return Designed(means.player())
