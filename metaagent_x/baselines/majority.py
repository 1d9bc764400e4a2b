"""One agent asked several times, and a vote: what a team has to beat at the same cost.

  single_majority                      `Means.members` samples
  single_majority:members=8            8 samples
  single_majority:like=metaagent_x     as many as the tokens allow that metaagent_x sampled on the same task

Matched in compute, samples are drawn one after another while fewer tokens have been sampled than the other method
sampled, its Designer included: at least one, and the sum goes beyond by less than one completion. So the vote never has
less than what it is compared with. Prompt tokens, which cost far less, are not matched but stand in the results.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence

from metaagent_x import mas
from metaagent_x.baselines.method import Means, Method, MethodError
from metaagent_x.baselines.single import SCRIPT, Fixed
from metaagent_x.mas.records import Execution
from metaagent_x.mas.tools import classes
from metaagent_x.rollout.play import Player
from metaagent_x.tasks.math import is_equivalent
from metaagent_x.tasks.task import Task

OPTIONS = ("members", "like")
MOST = 64  # samples of one vote
VOTE = "answer = vote(together([solver()] * {members}, task))"


class Matched(Fixed):
    """As many samples as another method's tokens allow, each an execution of the single agent."""

    def __init__(self, player: Player, like: str, means: Means):
        super().__init__(player, SCRIPT)
        self.needs, self._spent = like, means.spent

    async def solve(self, task: Task, sample: int = 0) -> Execution:
        """See `Method`. Void where the other method has no result to take the budget from."""
        tokens = self._spent(self.needs, task.id, sample)
        if tokens is None:
            return Execution(status="void", reason=f"{self.needs} has no result on this task to take the budget from")
        members: list[Execution] = []
        sampled = 0
        while not members or (sampled < tokens and len(members) < MOST and not members[-1].void):
            members.append(await super().solve(task, MOST * sample + len(members)))
            sampled += sum(call.sampled for call in members[-1].calls)
        return await asyncio.to_thread(voted, task, members)


def voted(task: Task, members: Sequence[Execution]) -> Execution:
    """Executions as one, in which each is a branch and the most frequent answer wins; void if one of them is."""
    same = classes(task.kind, [member.answer for member in members], is_equivalent)
    best = max((c for c in same if c >= 0), key=lambda c: (same.count(c), -same.index(c)), default=None)
    out = Execution(script=members[0].script, flags=_flags(members, None if best is None else same.index(best)))
    ends = []
    for i, member in enumerate(members):
        out.calls += [dataclasses.replace(call, path=f"{i}.{call.path}") for call in member.calls]
        ends.append(out.calls[-1].path if member.calls else "")
    winner = "" if best is None else ends[same.index(best)]
    out.links = [(end, winner, "vote") for end in ends if end] + ([(winner, "", "answer")] if winner else [])
    out.answer = "" if best is None else members[same.index(best)].answer
    if spoilt := next((member for member in members if member.void), None):
        out.status, out.reason = "void", spoilt.reason
    out.structure = mas.classify(out)
    return out


def _flags(members: Sequence[Execution], winner: int | None) -> set[str]:
    """Those of any member, but what makes an answer wrong only where it is true of the vote as a whole."""
    flags: set[str] = set().union(*(member.flags for member in members))
    if any(member.calls for member in members):
        flags.discard("no_calls")
    if winner is None or "answer_not_from_agents" not in members[winner].flags:
        flags.discard("answer_not_from_agents")
    return flags


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
