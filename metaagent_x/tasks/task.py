"""What is asked (`Task`, safe to show to anyone), what is right (`Rubric`, secret), what was said (`Verdict`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

Kind = Literal["math", "code"]


@dataclasses.dataclass(frozen=True)
class Task:
    """One question. Safe to show to agents and scripts.

    Attributes:
      id: unique within a dataset, stable between runs ("polaris/17").
      kind: "math" or "code".
      prompt: the text the agents read.
      public_tests: tests that the statement itself shows, of the form of `Rubric.tests` (code only).
      metadata: plain values for analysis (source, difficulty, level); never shown to a script.
    """

    id: str
    kind: Kind
    prompt: str
    public_tests: tuple[Mapping[str, Any], ...] = ()
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def difficulty(self) -> str:
        """As its dataset states it ("introductory", "6/8"), or the level of a generated task; "" if neither does."""
        return str(self.metadata.get("difficulty", self.metadata.get("level", "")))


@dataclasses.dataclass(frozen=True)
class Rubric:
    """The secret half of a task. Lives only in the grader.

    Attributes:
      task_id: the id of its `Task`.
      kind: "math" or "code".
      gold: accepted answers, any of which is right (math).
      tests: hidden tests `{"kind": "stdin"|"call"|"assert", "input", "output", "entry_point"}` (code); `kinds.py` says
        what each field holds.
      time_limit_s: CPU seconds for one test.
      memory_mb: memory for one test, MiB.
      checker: which outputs are right where several are: a name of `compare.CHECKERS`; "" compares with the expected.
        For all tests but those that name one themselves, as public tests must (`kinds.py`).
    """

    task_id: str
    kind: Kind
    gold: tuple[str, ...] = ()
    tests: tuple[Mapping[str, Any], ...] = ()
    time_limit_s: float = 4.0
    memory_mb: int = 512
    checker: str = ""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the grader says of one answer.

    Attributes:
      correct: entirely right.
      fraction: share of tests passed (code), of those before the first failure if grading stops there; 0/1 (math).
      format: 1.0 if the answer stands in the required form, else 0.0.
      reward: the scalar that trains; correctness plus format bonus, as configured.
      reason: short and precise ("ok", "wrong_answer", "no_answer", "test 3: wall", ...).
      void: True if the grader itself failed. A void verdict carries no reward and must not be trained on.
    """

    correct: bool
    fraction: float
    format: float
    reward: float
    reason: str
    void: bool = False
