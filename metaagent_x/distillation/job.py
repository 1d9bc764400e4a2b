"""The loop of a distillation: rounds of attempts, each folded into the selection when it is whole.

What is asked in a round follows from the selection two rounds before, and what is chosen from the order of the tasks:
neither depends on who is quick, nor on where the job was stopped.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable, Mapping
from typing import Any

from metaagent_x.distillation import attempt as attempts
from metaagent_x.distillation.attempt import Attempt
from metaagent_x.distillation.cost import Meter
from metaagent_x.distillation.journal import Journal
from metaagent_x.distillation.plan import Plan
from metaagent_x.distillation.selection import Selection, Wanted
from metaagent_x.distillation.teacher import Seat, shown_templates, teacher_prompts
from metaagent_x.mas import prompts as prompt_sets
from metaagent_x.mas.records import Budget
from metaagent_x.rollout.collect import GraderProtocol
from metaagent_x.rollout.engine import Engine, EngineFailure
from metaagent_x.rollout.play import Player, Settings, chat_for
from metaagent_x.tasks.task import Rubric, Task

AHEAD = 2  # rounds under way: while the last attempts of one end, the next has begun
DONE, SPENT, NO_TASKS = "done", "budget spent", "no tasks left"


class Job:
    """One distillation.

    Args:
      config: settings with the groups `teacher` and `distill`.
      plan: which tasks. engine: the teacher. grader: what is right. journal: what was done before. meter: the cost.
      tell: called after every attempt (True if it was made now) and after every round (None).

    Attributes:
      selection: what is chosen. folded: the attempts that it was chosen from, in the order of the tasks.
    """

    def __init__(
        self, config: Settings, plan: Plan, engine: Engine, grader: GraderProtocol, journal: Journal, meter: Meter,
        tell: Callable[[Job, bool | None], None] = lambda *_: None,
    ) -> None:  # fmt: skip
        self.config, self.plan, self.engine, self.grader = config, plan, engine, grader
        self.journal, self.meter, self.tell = journal, meter, tell
        self.selection, self.folded = Selection(wanted(config)), []
        self.folded: list[Attempt]
        self.student = prompt_sets.get(config.rollout.prompts).within(Budget(**config.rollout.budget))
        self._places = asyncio.Semaphore(config.teacher.concurrency)

    async def run(self) -> str:
        """Goes on until enough is chosen, nothing is left to ask, or the budget is spent; says which.

        Raises:
          EngineFailure: the teacher is away, or refused every attempt of a round. What has ended is in the journal.
        """
        d, rounds = self.config.distill, collections.deque()
        rounds: collections.deque[list[asyncio.Future[Attempt | None]]]
        try:
            while not self.selection.done:
                while len(rounds) < AHEAD and (drawn := self.plan.draw(d.round, self._has_room)):
                    rounds.append(
                        [asyncio.ensure_future(self._attempt(*one, n)) for one in drawn for n in range(d.attempts)]
                    )
                if not rounds:
                    return NO_TASKS
                made = await asyncio.gather(*rounds[0])
                if spent := None in made:
                    made = [attempt for row in rounds for attempt in await asyncio.gather(*row)]
                self._fold(made)
                if spent:
                    return SPENT
                rounds.popleft()
            return DONE
        finally:
            waiting = [future for row in rounds for future in row]
            for future in waiting:
                future.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def _has_room(self, dataset: str, task: Task) -> bool:
        return self.selection.has_room(dataset, attempts.difficulty(task))

    def _fold(self, made: list[Attempt | None]) -> None:
        """Takes the tasks of which every attempt was made."""
        n = self.config.distill.attempts
        for first in range(0, len(made), n):
            of_task = [attempt for attempt in made[first : first + n] if attempt is not None]
            if len(of_task) == n and not self.selection.done:
                self.selection.add(of_task)
                self.folded += of_task
        whole = [attempt for attempt in made if attempt is not None]
        if whole and all(attempt.reason == attempts.REFUSED for attempt in whole):
            raise EngineFailure(
                f"the teacher refused all {len(whole)} attempts of a round, the first so: {whole[0].detail}"
            )
        self.tell(self, None)

    async def _attempt(self, dataset: str, task: Task, rubric: Rubric, number: int) -> Attempt | None:
        """An attempt, made now or before; None if the budget was spent first."""
        if (known := self.journal.attempts.get((task.id, number))) is not None:
            self.tell(self, False)
            return known
        async with self._places:
            if self.meter.empty:
                return None
            c = self.config
            templates = shown_templates(task, number, c.seed, c.distill.templates)
            seat = Seat(self.engine, self.meter, chat_for(c.tokenizer))
            player = Player(
                {"designer": seat, "executor": seat}, c, 0, prompts=teacher_prompts(self.student, templates)
            )
            played = await attempts.play(player, self.student, self.grader, task, rubric, number)
            if failure := player.defect or seat.outage:
                raise failure
            made = attempts.attempt_of(
                task, dataset, number, [t.name for t in templates], seat.usage, played, provenance(c)
            )
            self.journal.add(made)
            self.tell(self, True)
            return made


def wanted(config: Settings) -> Wanted:
    """What the settings ask for."""
    d = config.distill
    return Wanted(
        numbers={"designer": d.designers, "executor": d.executors},
        quotas={field: dict(quotas) for field, quotas in d.quotas.items()},
        same_script=d.same_script, replies=d.replies, per_task=d.per_task, near=d.near,
        reasoning_chars=d.reasoning_chars,
    )  # fmt: skip


def provenance(config: Settings) -> Mapping[str, Any]:
    """What is the same for every example of a job."""
    r = config.rollout
    return {
        "teacher": config.teacher.model, "seed": config.seed, "prompts": r.prompts,
        "sampling": {
            "temperature": r.temperature, "top_p": r.top_p, "max_designer_tokens": r.max_designer_tokens,
            "max_executor_tokens": r.max_executor_tokens,
        },
    }  # fmt: skip
