"""The teacher: an engine whose use is metered, and what it is told beyond the student's prompt."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from metaagent_x.distillation.cost import Meter, Usage
from metaagent_x.mas.prompts import PromptSet
from metaagent_x.mas.records import CallRequest
from metaagent_x.mas.templates import TEMPLATES, Template
from metaagent_x.rollout.chat import Chat
from metaagent_x.rollout.engine import Completion, Engine, EngineFailure, RequestRefused, Sampling
from metaagent_x.tasks.task import Task

SHOWN = (
    "\n\nHere are {} systems that worked for other tasks. Take one of them, change it, combine them or write another "
    "one: the task decides.\n"
)
ASK = (
    "\n\nFirst say in a few sentences what is hard about the task and which system suits it, and why. Then write the "
    "script in one ```python block, without imports."
)


class Seat:
    """The teacher as one attempt sees it. Implements the Engine protocol; one for every attempt.

    Attributes:
      usage: of this attempt. outage: the first failure that was not about a single request; the attempt is then no
        attempt, and to be made again.
    """

    def __init__(self, engine: Engine, meter: Meter, chat: Chat) -> None:
        self.usage, self.outage = Usage(), None
        self.outage: EngineFailure | None
        self._engine, self._meter, self._chat = engine, meter, chat

    async def generate(
        self, prompt_ids: tuple[int, ...], sampling: Sampling, seed: int, *, request: CallRequest | None = None
    ) -> Completion:
        try:
            done = await self._engine.generate(prompt_ids, sampling, seed, request=request)
        except RequestRefused as refused:
            if refused.usage:
                self._spend(Usage(1, *refused.usage))
            raise
        except EngineFailure as failure:
            self.outage = self.outage or failure
            raise
        if done.usage is None:
            said = len(done.ids) if done.text is None else len(self._chat.encode(done.text))
            used = Usage(1, len(prompt_ids), said, counted_here=1)
        else:
            used = Usage(1, *done.usage)
        self._spend(used)
        return done

    @property
    def outages(self) -> int:
        """Of the endpoint, so far: what waited for it longer than it may take is not wrong but void."""
        return getattr(self._engine, "outages", 0)

    def _spend(self, used: Usage) -> None:
        self.usage += used
        self._meter.add(used)

    async def update_weights(self, params: Any, version: int) -> None:
        raise EngineFailure("a teacher takes no weights")

    async def close(self) -> None:
        return None


def shown_templates(task: Task, attempt: int, seed: int, numbers: tuple[int, int]) -> list[Template]:
    """The workflow templates that the teacher is shown for an attempt at a task: of its kind, of different structures
    where there are so many, drawn by seed, task id and number of the attempt alone.

    Args:
      numbers: fewest and most.
    """
    draw = random.Random(f"templates/{seed}/{task.id}/{attempt}")
    wanted = draw.randint(*numbers)
    ours = [template for template in TEMPLATES.values() if template.kind == task.kind]
    draw.shuffle(ours)
    first = {template.structure: template for template in reversed(ours)}  # the first of each structure in `ours`
    fresh = [template for template in ours if first[template.structure] is template]
    return [*fresh, *(template for template in ours if template not in fresh)][:wanted]


def teacher_prompts(student: PromptSet, templates: list[Template]) -> PromptSet:
    """The student's prompts, with templates shown to the Designer. Without templates the student's own."""
    if not templates:
        return student
    shown = "".join(f"\n{template.when}\n```python\n{template.native}```\n" for template in templates)
    system = student.designer_system + SHOWN.format(len(templates)) + shown.rstrip("\n") + ASK
    return dataclasses.replace(student, designer_system=system)
