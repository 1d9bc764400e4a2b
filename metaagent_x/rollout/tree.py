"""The records of a step: Task -> M Designs -> N Executions each -> Trajectories."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from metaagent_x.mas.records import Call, Execution
from metaagent_x.tasks.task import Task

Role = Literal["designer", "executor"]
UNREADABLE = "unreadable: "  # begins the problem of a design on which our own reading failed


@dataclasses.dataclass
class Trajectory:
    """One role's token sequence with a loss mask.

    Attributes:
      tokens: T ids: prompt, completion (and for an agent with memory: next user turn, next completion, ...).
      mask: T flags, True exactly where the id was sampled by the policy.
      logprobs: T log-probs by the engine at sampling time; 0.0 where mask is False.
      role: who it trains.
      question: index of the task within the batch; the group of eq. 5 and eq. 7.
      design, execution: indices within the question; execution is -1 for a Designer completion.
      path: path of its first call ("" for the Designer).
      reward: the outcome that it carries. advantage: set by `learner.credit`.
      truncated: some completion of it ended by length.
      old_logprobs: the learner's log-probs of the sampled ids, in their order, by the weights that sampled; set by
        `learner.improve`, None where the learner has not scored it.
    """

    tokens: tuple[int, ...]
    mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    role: Role = "executor"
    question: int = 0
    design: int = 0
    execution: int = -1
    path: str = ""
    task_id: str = ""
    reward: float = 0.0
    advantage: float = 0.0
    truncated: bool = False
    old_logprobs: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.mask) == len(self.logprobs):
            raise ValueError(
                f"trajectory {self.task_id!r} design {self.design} execution {self.execution} path {self.path!r}: "
                f"{len(self.tokens)} tokens, {len(self.mask)} mask values, {len(self.logprobs)} log-probs; all three "
                "must have one entry a token"
            )


def trajectories_of(calls: list[Call], **fields: object) -> list[Trajectory]:
    """Joins calls into trajectories: a call whose prompt extends an earlier trajectory's ids exactly continues it.

    Only calls of the same conversation can be joined; each sampled id lands in exactly one trajectory.
    """
    rows: list[dict] = []
    for call in calls:
        row = next(
            (
                r
                for r in reversed(rows)
                if call.conversation
                and r["conversation"] == call.conversation
                and len(call.prompt_ids) >= len(r["tokens"])
                and list(call.prompt_ids[: len(r["tokens"])]) == r["tokens"]
            ),
            None,
        )
        if row is None:
            row = {
                "conversation": call.conversation,
                "path": call.path,
                "tokens": [],
                "mask": [],
                "logprobs": [],
                "cut": False,
            }
            rows.append(row)
        context = call.prompt_ids[len(row["tokens"]) :]
        row["tokens"] += [*context, *call.completion_ids]
        row["mask"] += [False] * len(context) + [True] * len(call.completion_ids)
        row["logprobs"] += [0.0] * len(context) + list(call.logprobs)
        row["cut"] |= call.finish_reason == "length"
    return [
        Trajectory(
            tokens=tuple(r["tokens"]), mask=tuple(r["mask"]), logprobs=tuple(r["logprobs"]), path=r["path"],
            truncated=r["cut"], **fields,  # type: ignore[arg-type]
        )
        for r in rows
    ]  # fmt: skip


@dataclasses.dataclass
class Design:
    """One Designer completion, its script, and whether it is valid.

    Attributes:
      call: the completion. script: the text to run, None if none was found.
      problem: "" if valid, else why not ("no_script", "syntax: line 2 ...", "unknown name SOLVE, line 1",
        "unreadable: ValueError(...)", ...).
      executions: N of them; empty if the design is invalid (each counts as reward 0) or void.
      void: the engine failed while the design was written; the design is out of every mean.
      own_imports: statements of the script that import our own names; they are left out when it runs.
    """

    call: Call | None
    script: str | None = None
    problem: str = ""
    executions: list[Execution] = dataclasses.field(default_factory=list)
    void: bool = False
    own_imports: int = 0

    @property
    def valid(self) -> bool:
        return not self.void and not self.problem


@dataclasses.dataclass
class RolloutTree:
    """All that was sampled for one task at one step."""

    task: Task
    designs: list[Design]
    question: int = 0
    step: int = 0
    executions: int = 1

    def calls(self) -> list[Call]:
        """Every finished call: those of the Designer first."""
        out = [d.call for d in self.designs if d.call is not None]
        return out + [call for d in self.designs for e in d.executions for call in e.calls]

    def rewards(self) -> np.ndarray:
        """[M, N] outcome rewards; an invalid design is a row of zeros."""
        out = np.zeros((len(self.designs), self.executions))
        for i, design in enumerate(self.designs):
            for j, execution in enumerate(design.executions):
                out[i, j] = execution.reward
        return out

    def counted(self) -> np.ndarray:
        """[M, N] False only where void."""
        out = np.ones((len(self.designs), self.executions), bool)
        for i, design in enumerate(self.designs):
            out[i] = not design.void
            for j, execution in enumerate(design.executions):
                out[i, j] = not execution.void
        return out

    def designer_trajectories(self) -> list[Trajectory]:
        """One for every design that was sampled, in order, with the mean reward of its counted executions (eq. 4).

        A design whose executions are all void is left out.
        """
        rewards, counted = self.rewards(), self.counted()
        out = []
        for i, design in enumerate(self.designs):
            if design.call is None or not counted[i].any():
                continue
            out += trajectories_of(
                [design.call], role="designer", question=self.question, design=i, task_id=self.task.id,
                reward=float(rewards[i][counted[i]].mean()),
            )  # fmt: skip
        return out

    def executor_trajectories(self) -> list[Trajectory]:
        """Every agent conversation of every execution that is not void, with the execution's reward (eq. 6)."""
        out = []
        for i, design in enumerate(self.designs):
            for j, execution in enumerate(design.executions):
                if not execution.void:
                    out += trajectories_of(
                        execution.calls, role="executor", question=self.question, design=i, execution=j,
                        task_id=self.task.id, reward=execution.reward,
                    )  # fmt: skip
        return out
