"""Which attempts become examples: a pure, deterministic fold over tasks in their order.

Per task the correct design that needs the fewest completion tokens is the Designer's example: of two systems that work
the cheaper one should be learned. Executor examples come from every correct execution of the task. The same prompt is
learned with its shortest right reply, so a style that says it in a few words is not crowded out by one that is right
more often at greater length. Quotas are most shares of the wanted number; what would exceed one is left out, and the
next best attempt is looked at.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from metaagent_x import mas
from metaagent_x.distillation.attempt import Attempt
from metaagent_x.distillation.near import Seen
from metaagent_x.tasks import syntax

ROLES = ("designer", "executor")
FIELDS = ("dataset", "structure", "difficulty")  # that quotas may be about

FENCE = re.compile(r"^[ \t]*(?:`{3,}|~{3,})\w*[ \t]*$", re.MULTILINE)

Example = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What the data should be.

    Attributes:
      numbers: role -> examples.
      quotas: field of `FIELDS` -> value -> most share of a role's examples; values without one have no limit.
      same_script: most share of Designer examples with one script.
      replies: different right replies to one prompt at most. per_task: Executor examples of one task at most.
      near: see `near.Seen`. reasoning_chars: fewest characters that a Designer says besides its script.
    """

    numbers: Mapping[str, int]
    quotas: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    same_script: float = 1.0
    replies: int = 1
    per_task: int = 8
    near: float = 0.8
    reasoning_chars: int = 0


class Selection:
    """What was chosen so far.

    Attributes:
      examples: role -> those chosen, in order. left_out: (role, reason) -> how many were not.
      tasks: folded in so far.
    """

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.examples: dict[str, list[Example]] = {role: [] for role in ROLES}
        self.left_out: collections.Counter[tuple[str, str]] = collections.Counter()
        self.tasks = 0
        self._counts: collections.Counter[tuple[str, str, str]] = collections.Counter()
        self._seen = {role: Seen(wanted.near) for role in ROLES}

    def full(self, role: str) -> bool:
        return len(self.examples[role]) >= self.wanted.numbers[role]

    @property
    def done(self) -> bool:
        return all(map(self.full, ROLES))

    def has_room(self, dataset: str, difficulty: str = "") -> bool:
        """Whether a task of that dataset and difficulty can still add anything."""
        return any(
            not self.full(role)
            and self._below(role, "dataset", dataset)
            and self._below(role, "difficulty", difficulty)
            for role in ROLES
        )

    def add(self, attempts: Sequence[Attempt]) -> None:
        """Takes what it wants of all attempts at one task."""
        self.tasks += 1
        right = sorted((a for a in attempts if a.right), key=lambda a: (a.tokens, a.number))
        for attempt in right:
            if self._take("designer", attempt.examples[0], attempt.script):
                break
        replies: collections.Counter[str] = collections.Counter()
        taken = 0
        for example in _in_turn([e for a in right for e in a.examples[1:]]):
            prompt = json.dumps([m["content"] for m in example["messages"] if m["role"] != "assistant"])
            if replies[prompt] >= self.wanted.replies:
                self.left_out["executor", "another reply to the prompt is shorter"] += 1
            elif taken >= self.wanted.per_task:
                self.left_out["executor", "enough of its task"] += 1
            elif self._take("executor", example):
                replies[prompt] += 1
                taken += 1

    def _take(self, role: str, example: Example, script: str = "") -> bool:
        reason = self._why_not(role, example, script)
        if reason:
            self.left_out[role, reason] += 1
            return False
        self.examples[role].append(example)
        self._seen[role].add(said(example))
        for field in FIELDS:
            self._counts[role, field, example[field]] += 1
        if script:
            self._counts[role, "script", spelled(script)] += 1
        return True

    def _why_not(self, role: str, example: Example, script: str) -> str:
        if self.full(role):
            return "enough of its role"
        for field in FIELDS:
            if not self._below(role, field, example[field]):
                return f"quota of {field} {example[field]}"
        if script:
            share = self.wanted.same_script
            if self._counts[role, "script", spelled(script)] >= _most(share, self.wanted.numbers[role]):
                return "quota of its script"
            if reasoning(example["messages"][-1]["content"], script) < self.wanted.reasoning_chars:
                return "too little reasoning"
        return "near-duplicate" if self._seen[role].has(said(example)) else ""

    def _below(self, role: str, field: str, value: str) -> bool:
        share = self.wanted.quotas.get(field, {}).get(value)
        return share is None or self._counts[role, field, value] < _most(share, self.wanted.numbers[role])


def said(example: Example) -> str:
    """A conversation as one text. Of the Designer without the system turn, which is the same for all; an agent's role
    belongs to what it learns."""
    skipped = "system" if example["role"] == "designer" else None
    return "\n".join(m["content"] for m in example["messages"] if m["role"] != skipped)


def spelled(script: str) -> str:
    """One spelling of a script: layout and comments do not matter, styles and roles do."""
    try:
        return ast.unparse(syntax.parse(script, "script"))
    except (SyntaxError, ValueError, RecursionError):
        return script


def reasoning(text: str, script: str) -> int:
    """Characters that a Designer says besides its script and the fences around it."""
    found = mas.parse_completion(text)
    rest = text.replace((found.source if found else script).strip(), "")
    return len(FENCE.sub("", rest).strip())


def _most(share: float, number: int) -> int:
    return math.ceil(share * number - 1e-9)


def _in_turn(examples: Sequence[Example]) -> list[Example]:
    """The shortest of every agent first, then the second of every agent, so that no role is crowded out of a task."""

    def length(example: Example) -> int:
        return sum(len(m["content"]) for m in example["messages"] if m["role"] == "assistant")

    rank: collections.Counter[tuple[str, str]] = collections.Counter()
    order = []
    for i, example in enumerate(sorted(examples, key=length)):
        who = example["agent"], example["messages"][0]["content"] if example["messages"][0]["role"] == "system" else ""
        order.append((rank[who], i, example))
        rank[who] += 1
    return [example for *_, example in sorted(order, key=lambda item: item[:2])]
