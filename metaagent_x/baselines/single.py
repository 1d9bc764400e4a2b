"""One agent, one call: the prompt of `solver()` and nothing else, through the same runtime as any design."""

from __future__ import annotations

from collections.abc import Mapping

from metaagent_x.baselines.method import Means, Method
from metaagent_x.mas.records import Execution
from metaagent_x.rollout.play import Player, read_design
from metaagent_x.tasks.task import Task

SCRIPT = "answer = solver()(task)"


class Fixed:
    """Every task gets the same script."""

    needs = ""

    def __init__(self, player: Player, script: str):
        self.player, self.design = player, read_design(None, script)

    async def solve(self, task: Task, sample: int = 0) -> Execution:
        """See `Method`."""
        execution = await self.player.execute(task, self.design, 0, sample)
        execution.script = self.design.script or ""
        return execution


def make(means: Means, options: Mapping[str, str]) -> Method:
    return Fixed(means.player(), SCRIPT)
