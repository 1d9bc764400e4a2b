"""One attempt: the teacher designs a system for a task, plays it, and is graded. What came of it, ready to be kept."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from metaagent_x import mas
from metaagent_x.distillation.cost import Usage
from metaagent_x.distillation.examples import chat_messages, conversations, unfit, why_left_out
from metaagent_x.mas.classify import lineage
from metaagent_x.mas.prompts import PromptSet
from metaagent_x.mas.records import Execution
from metaagent_x.rollout.collect import GraderProtocol, judge
from metaagent_x.rollout.engine import RequestRefused
from metaagent_x.rollout.play import Player
from metaagent_x.rollout.tree import Design
from metaagent_x.tasks.task import Rubric, Task, Verdict

FORMAT = 1  # of an example's provenance
REFUSED = "refused by the endpoint"
AGAIN = (REFUSED, "grader failed", "infrastructure failed")  # reasons that say nothing of the teacher's answer


@dataclasses.dataclass(frozen=True)
class Attempt:
    """What the journal keeps of one attempt: plain values only.

    Attributes:
      task_id, dataset, kind, difficulty: of the task; difficulty "" if the dataset states none.
      number: of the attempt at this task, from 0. templates: names of those shown.
      reason: "" if the execution was right, else why nothing can be learned from it.
      detail: the reason in full. structure: what the execution was; "" if there was none.
      script: that the teacher wrote. usage: tokens, fields of `Usage`.
      examples: in the common chat form, if right: the Designer's first, then one a conversation of an agent.
      left_out: conversations of a right execution that should not be learned, by reason.
    """

    task_id: str
    dataset: str
    kind: str
    difficulty: str
    number: int
    templates: Sequence[str]
    reason: str
    detail: str
    structure: str
    script: str
    usage: Mapping[str, int]
    examples: Sequence[Mapping[str, Any]]
    left_out: Mapping[str, int]

    @property
    def right(self) -> bool:
        return not self.reason

    @property
    def tokens(self) -> int:
        """Of all completions: what the system costs."""
        return self.usage["completion"]


@dataclasses.dataclass(frozen=True)
class Played:
    """One attempt as it was played.

    Attributes:
      design, execution: None if the design could not be run. reason: "" if right, else why nothing can be learned.
      examples: of a right attempt, without what is known of its task. left_out: conversations that are none, by reason.
    """

    design: Design
    execution: Execution | None
    reason: str
    examples: Sequence[Mapping[str, Any]] = ()
    left_out: Mapping[str, int] = dataclasses.field(default_factory=dict)


def difficulty(task: Task) -> str:
    """What the dataset says of a task, as text."""
    return str(task.metadata.get("difficulty", task.metadata.get("level", "")))


async def play(
    player: Player, student: PromptSet, grader: GraderProtocol, task: Task, rubric: Rubric, number: int
) -> Played:
    """Makes one attempt.

    Args:
      player: plays both roles with the teacher, told what the teacher is told.
      student: what the student's Designer is told instead. rubric: goes to the grader and nowhere else.
    """
    design = await player.design(task, number)
    if reason := _bad_design(design):
        return Played(design, None, reason)
    execution = await player.execute(task, design, number, 0)
    if execution.status != "void":
        forbid = player.settings.forbid_answer_in_script
        execution.verdict = await judge(grader, rubric, execution, forbid_answer_in_script=forbid)
    if reason := _bad_execution(execution):
        return Played(design, execution, reason)
    assert design.call is not None
    told = [student.designer_user(task), design.call.text]
    first = {"role": "designer", "agent": "designer", "path": ""}
    kept, left_out = await executor_examples(grader, rubric, execution)
    examples = [first | {"messages": chat_messages(student.designer_system, told)}, *kept]
    return Played(design, execution, "", examples, left_out)


def _bad_design(design: Design) -> str:
    if design.void:
        return REFUSED
    assert design.call is not None
    if design.call.finish_reason == "length":
        return "design cut off"
    if design.call.prompt_cut:
        return "prompt cut"
    if design.problem:
        return "no script" if design.problem == "no_script" else "script does not lint"
    assert design.script is not None
    if design.own_imports or mas.Script.of(design.script).dialect:
        return "script with imports"  # the student's language needs none
    return unfit(design.call.text)


def _bad_execution(execution: Execution) -> str:
    verdict = execution.verdict
    if execution.status == "void" or verdict is None:
        refused = execution.reason.startswith(RequestRefused.__name__)
        return REFUSED if refused else "infrastructure failed"
    if verdict.void:
        return "grader failed"
    if not verdict.correct:
        return "tests failed" if verdict.reason.startswith("test ") else verdict.reason.replace("_", " ")
    if execution.status == "budget" or "answer_unset" in execution.flags:  # right by luck
        return "right, but over its budget" if execution.status == "budget" else "right, but no answer set"
    return ""


async def executor_examples(
    grader: GraderProtocol, rubric: Rubric, execution: Execution
) -> tuple[list[Mapping[str, Any]], collections.Counter[str]]:
    """The conversations of a right execution that should be learned; the others counted by reason."""
    calls = execution.calls
    given = await asyncio.gather(*(grader.grade(rubric, call.text) for call in calls))
    verdicts: dict[str, Verdict] = {call.path: verdict for call, verdict in zip(calls, given, strict=True)}
    edges, way = await asyncio.to_thread(lineage, execution)
    examples: list[Mapping[str, Any]] = []
    left_out: collections.Counter[str] = collections.Counter()
    for turns in conversations(calls):
        if reason := why_left_out(turns, verdicts, edges, way):
            left_out[reason] += 1
            continue
        told = [text for call in turns for text in ("\n".join(call.messages), call.text)]
        first = turns[0]
        examples.append(
            {
                "role": "executor",
                "agent": first.agent,
                "path": first.path,
                "messages": chat_messages(first.role_prompt, told),
            }
        )
    return examples, left_out


def attempt_of(
    task: Task, dataset: str, number: int, templates: Sequence[str], usage: Usage, played: Played,
    provenance: Mapping[str, Any],
) -> Attempt:  # fmt: skip
    """The record of an attempt that was played.

    Args:
      provenance: what is the same for all attempts of a job (teacher, seed, sampling, ...).
    """
    design, execution = played.design, played.execution
    verdict = execution.verdict if execution else None
    structure = execution.structure if execution else ""
    level = difficulty(task)
    origin = {
        "format": FORMAT, **provenance, "attempt": number, "templates": list(templates),
        "usage": dataclasses.asdict(usage), "verdict": dataclasses.asdict(verdict) if verdict else None,
    }  # fmt: skip
    examples = [
        {
            "messages": example["messages"], "role": example["role"], "agent": example["agent"], "kind": task.kind,
            "task_id": task.id, "dataset": dataset, "difficulty": level, "structure": structure,
            "provenance": {**origin, "path": example["path"]},
        }
        for example in played.examples
    ]  # fmt: skip
    return Attempt(
        task_id=task.id, dataset=dataset, kind=task.kind, difficulty=level, number=number, templates=list(templates),
        reason=played.reason,
        detail=design.problem or (execution.reason if execution else "") or (verdict.reason if verdict else ""),
        structure=structure, script=design.script or "", usage=dataclasses.asdict(usage), examples=examples,
        left_out=dict(played.left_out),
    )  # fmt: skip
