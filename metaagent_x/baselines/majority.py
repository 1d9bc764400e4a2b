"""One agent asked several times, and a vote: what a team has to beat at the same cost.

  single_majority                      `Means.members` samples
  single_majority:members=8            8 samples
  single_majority:like=metaagent_x     as many as the tokens allow that metaagent_x sampled on the same task

Matched in compute, samples are drawn one after another while fewer tokens have been sampled than the other method
sampled, its Designer included: at least one, and the sum goes beyond by less than one completion. So the vote never has
less than what it is compared with. Prompt tokens, which cost far less, are not matched but stand in the results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from metaagent_x.baselines.method import Means, Method, MethodError
from metaagent_x.baselines.single import Fixed
from metaagent_x.mas.records import Execution
from metaagent_x.rollout.play import Player
from metaagent_x.tasks.task import Task

OPTIONS = ("members", "like")
MOST = 64  # samples of one task
VOTE = "answer = vote(together([solver()] * {members}, task))"
# A budget that is used up ends the script where it is: `answer` is then the vote of all before.
GROWING = f"texts = []\nfor _ in range({MOST}):\n    texts = [*texts, solver()(task)]\n    answer = vote(texts)"


class Matched(Fixed):
    """As many samples as another method's tokens allow."""

    def __init__(self, player: Player, like: str, means: Means):
        super().__init__(player, GROWING)
        self.needs, self._spent = like, means.spent

    async def solve(self, task: Task, sample: int = 0) -> Execution:  # type: ignore[override]
        """See `Method`. Void where the other method has no result to take the budget from."""
        tokens = self._spent(self.needs, task.id, sample)
        if tokens is None:
            return Execution(status="void", reason=f"{self.needs} has no result on this task to take the budget from")
        budget = dataclasses.replace(self.player.budget, calls=MOST, tokens=max(tokens, 1))
        return await super().solve(task, sample, budget=budget)


def make(means: Means, options: Mapping[str, str]) -> Method:
    """Raises MethodError."""
    temperature = means.config.rollout.temperature or means.vote_temperature
    if len(options) > 1:
        raise MethodError("single_majority takes members=N or like=METHOD, not both")
    if "like" in options:
        return Matched(means.player(temperature=temperature), options["like"], means)
    given = options.get("members", str(means.members))
    if not given.isdecimal() or not 2 <= int(given) <= MOST:
        raise MethodError(f"single_majority:members={given}: a vote takes 2 to {MOST} samples")
    budget = means.config.rollout.budget.to_dict()
    budget["calls"] = max(budget["calls"], int(given))
    return Fixed(means.player(temperature=temperature, budget=budget), VOTE.format(members=given))
