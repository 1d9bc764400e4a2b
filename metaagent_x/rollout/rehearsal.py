"""An engine that plays a policy that has not been trained yet: gold-derived answers, right and wrong, and every fault.

A random policy cannot write a design, so a rehearsal of the loop on real tasks takes its samples from here. It holds
rubrics and therefore belongs to rehearsals and tests only, never to training for a result.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from metaagent_x.mas.records import CallRequest
from metaagent_x.rollout.chat import Chat
from metaagent_x.rollout.engine import Completion, EngineFailure, Sampling
from metaagent_x.tasks.kinds import called
from metaagent_x.tasks.task import Rubric, Task

PLANS = (
    "answer = solver()(task)",
    "answer = ensemble([solver(), solver('check every step'), solver('work backwards')])(task)",
    "answer = reflect(solver(), critic(), rounds=1)(task)",
    "draft = solver()(task)\nanswer = draft if answer_of(draft) or code_of(draft) else solver('once more')(task)",
)
INVALID = "I would ask several experts and compare their answers."
CRASH = "draft = solver()(task)\nanswer = draft[len(draft) + 1]"


class Rehearsal:
    """Implements the Engine protocol.

    Design i of a task is PLANS[i % 4], but the first task has one design without a script, the second one whose script
    crashes after a call, and the third one execution whose engine fails. An agent's completion is right or wrong by
    the parity of its seed; a critic is right about both.

    Args:
      tasks: what will be asked. chat: tokenizer and template of the job. logprob: reported for every id.
    """

    def __init__(self, tasks: Sequence[tuple[Task, Rubric]], chat: Chat, logprob: float = -1.0):
        self.tasks, self.chat, self.logprob, self.version = list(tasks), chat, logprob, 0
        self._designs: Counter[str] = Counter()
        self._failed = False

    async def generate(
        self, prompt_ids: tuple[int, ...], sampling: Sampling, seed: int, *, request: CallRequest | None = None
    ) -> Completion:
        if request is None:
            raise ValueError("a rehearsal needs to know who asks: pass request=CallRequest(...)")
        ids = [*self.chat.encode(self._reply(request, seed)), self.chat.stop_ids[0]]
        finish = "stop" if len(ids) <= sampling.max_tokens else "length"
        ids = ids[: sampling.max_tokens]
        return Completion(tuple(ids), (self.logprob,) * len(ids), finish, self.version)

    async def update_weights(self, params: Any, version: int) -> None:
        self.version = version

    async def close(self) -> None:
        return None

    def _reply(self, request: CallRequest, seed: int) -> str:
        text = "\n".join(request.messages)
        place, task, rubric = next(
            ((i, t, r) for i, (t, r) in enumerate(self.tasks) if t.prompt in text), (-1, None, None)
        )
        if task is None or rubric is None:
            raise ValueError(f"agent {request.agent!r} asks about a task that this rehearsal does not know")
        if request.agent == "designer":
            return self._design(place, task.id)
        if place == 2 and request.agent == "critic" and not self._failed:  # after the solver's call is on record
            self._failed = True
            raise EngineFailure("rehearsed failure of the engine")
        if request.agent == "critic":
            return "CORRECT" if right_answer(rubric) in text else "Line 1 is wrong.\nWRONG"
        return right_answer(rubric) if seed % 2 else wrong_answer(rubric)

    def _design(self, place: int, task_id: str) -> str:
        i = self._designs[task_id]
        self._designs[task_id] += 1
        if (place, i) == (0, 2):
            return INVALID
        script = CRASH if (place, i) == (1, 3) else PLANS[i % len(PLANS)]
        return f"```python\n{script}\n```"


def right_answer(rubric: Rubric) -> str:
    """A completion that the grader must accept: the boxed gold, or a program that looks its outputs up.

    Raises:
      ValueError: the tests assert something; no table can answer them.
    """
    if rubric.kind == "math":
        return f"The answer is \\boxed{{{rubric.gold[0]}}}."
    (kind,) = {t["kind"] for t in rubric.tests}
    if kind == "stdin":
        table = {t["input"].strip(): t["output"] for t in rubric.tests}
        use = "import sys\nprint(table[sys.stdin.read().strip()])"
    elif kind == "call":
        table = {json.dumps(arguments): expected for arguments, expected in map(called, rubric.tests)}
        use = f"def {rubric.tests[0]['entry_point']}(*arguments):\n    return table[json.dumps(arguments)]"
    else:
        raise ValueError(f"{rubric.task_id}: a rehearsal has no answer to tests of kind {kind!r}")
    return f"```python\nimport json\ntable = json.loads({json.dumps(table)!r})\n{use}\n```"


def wrong_answer(rubric: Rubric) -> str:
    """A completion in the right form that the grader must refuse."""
    if rubric.kind == "math":
        return f"The answer is \\boxed{{{rubric.gold[0]} + 1}}."
    return "```python\nprint('no')\n```"
