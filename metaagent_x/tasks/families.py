"""Generated tasks for a model of half a million parameters: families whose accuracy grows smoothly with training.

Every problem has two correct forms of solution. The direct one is short, and such a model mostly gets it wrong because
the whole computation must happen at once. The stepwise one is longer, and each of its tokens is easy. So there is
something to gain for the Executor (prefer the good form) and for the Designer (ask for it, vote, test and retry).

  math  sort distinct digits, combine three items               "sort 7 2 9 ascending, item 3 - item 2 + item 1"
  code  two operations on every integer of a line, one result   "read integers, to each add 17, then times 3, print max"

Carrying sums modulo 10 were left out: a small model learns the addition table suddenly and late, or not at all.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Callable, Mapping
from typing import Literal, get_args

from metaagent_x.tasks.task import Kind, Rubric, Task

Split = Literal["train", "dev", "test"]
NAMES: Mapping[str, Kind] = {"tiny_math": "math", "tiny_code": "code"}
PUBLIC_TESTS, HIDDEN_TESTS = 2, 5
SORT_SIZES = (3, 4, 5)  # digits to sort: the levels of the math family
ADDENDS = ((1, 9), (10, 49))  # what may be added: the levels of the code family
FACTORS = (2, 9)
REDUCTIONS: Mapping[str, tuple[str, Callable[[list[int]], str]]] = {  # word: (in a program, what it prints)
    "sum": ("sum(a)", lambda a: str(sum(a))),
    "max": ("max(a)", lambda a: str(max(a))),
    "min": ("min(a)", lambda a: str(min(a))),
    "all": ("*a", lambda a: " ".join(map(str, a))),
}
READ = "a=[int(x) for x in input().split()]\n"


@dataclasses.dataclass(frozen=True)
class SortProblem:
    """Sort distinct digits, then item `high` - item `middle` + item `low`, counted from 1; low < middle < high.

    The order of the items keeps every value that occurs within 0 to 9: nothing is carried.
    """

    digits: tuple[int, ...]
    high: int
    middle: int
    low: int

    @property
    def level(self) -> int:
        return len(self.digits)

    @property
    def content(self) -> str:
        """The same for every order of the digits: an order seen in training says nothing about a held-out set."""
        return f"{sorted(self.digits)} {self.high} {self.middle} {self.low}"

    @property
    def prompt(self) -> str:
        return f"sort {_spaced(self.digits)} ascending, item {self.high} - item {self.middle} + item {self.low}"

    @property
    def answer(self) -> int:
        high, middle, low = self._items()
        return high - middle + low

    @property
    def direct(self) -> str:
        return f"\\boxed{{{self.answer}}}"

    @property
    def stepwise(self) -> str:
        high, middle, low = self._items()
        first = f"{high}-{middle}={high - middle}"
        return f"{_spaced(sorted(self.digits))}\n{first}\n{high - middle}+{low}={self.answer}\n{self.direct}"

    def _items(self) -> tuple[int, int, int]:
        up = sorted(self.digits)
        return up[self.high - 1], up[self.middle - 1], up[self.low - 1]


@dataclasses.dataclass(frozen=True)
class ListProblem:
    """Two operations ("add" or "times", parameter) on every integer, then a reduction."""

    operations: tuple[tuple[str, int], tuple[str, int]]
    reduction: str

    @property
    def level(self) -> int:
        """2 if a two-digit number is added, else 1."""
        return 1 + any(name == "add" and k > ADDENDS[0][1] for name, k in self.operations)

    @property
    def content(self) -> str:
        return self.prompt

    @property
    def prompt(self) -> str:
        first, second = (f"{name} {k}" for name, k in self.operations)
        return f"read integers, to each {first}, then {second}, print {self.reduction}"

    def output(self, numbers: list[int]) -> str:
        """What a right program prints for a line of these numbers."""
        for name, k in self.operations:
            numbers = [x + k if name == "add" else x * k for x in numbers]
        return REDUCTIONS[self.reduction][1](numbers)

    @property
    def direct(self) -> str:
        """Both operations folded into one: the program's author multiplies and adds the parameters in the head."""
        factor, addend = 1, 0
        for name, k in self.operations:
            factor, addend = (factor, addend + k) if name == "add" else (factor * k, addend * k)
        folded = (f"*{factor}" if factor != 1 else "") + (f"+{addend}" if addend else "")
        return self._program([folded])

    @property
    def stepwise(self) -> str:
        return self._program([("+" if name == "add" else "*") + str(k) for name, k in self.operations])

    def _program(self, changes: list[str]) -> str:
        lines = "".join(f"a=[x{change} for x in a]\n" for change in changes)
        return f"{READ}{lines}print({REDUCTIONS[self.reduction][0]})"


Problem = SortProblem | ListProblem


def problem(kind: Kind, split: Split, rng: random.Random) -> Problem:
    """Draws a problem of a split, every level equally likely.

    Raises:
      ValueError: unknown kind or split.
    """
    if kind not in NAMES.values() or split not in get_args(Split):
        known = f"{', '.join(NAMES.values())}; {', '.join(get_args(Split))}"
        raise ValueError(f"no generated tasks of kind {kind!r}, split {split!r}; known: {known}")
    draw = _draw_sort if kind == "math" else _draw_list
    while True:
        drawn = draw(rng)
        if split_of(drawn) == split:
            return drawn


def split_of(drawn: Problem) -> Split:
    """The split that a problem belongs to, by a hash of its content: 60 % train, 15 % dev, 25 % test."""
    part = int.from_bytes(hashlib.sha256(drawn.content.encode()).digest()[:4], "big") % 20
    return "train" if part < 12 else "dev" if part < 15 else "test"


def generate(kind: Kind, split: Split, size: int, seed: int = 0) -> list[tuple[Task, Rubric]]:
    """Generates distinct tasks of one kind. The same arguments give the same tasks; splits share no content.

    Raises:
      ValueError: unknown kind or split, or fewer distinct tasks exist than were asked for.
    """
    rng = random.Random(f"{kind}/{split}/{seed}")
    found: dict[str, Problem] = {}
    for _ in range(20 * size + 100):
        if len(found) == size:
            break
        drawn = problem(kind, split, rng)
        found.setdefault(drawn.prompt, drawn)
    if len(found) < size:
        raise ValueError(
            f"{size} distinct {kind} tasks asked for split {split!r}, about {len(found)} exist; ask for fewer"
        )
    return [_pair(drawn, f"tiny_{kind}/{split}/{seed}/{i}", rng) for i, drawn in enumerate(found.values())]


def _pair(drawn: Problem, name: str, rng: random.Random) -> tuple[Task, Rubric]:
    metadata = {"source": name.split("/")[0], "level": drawn.level, "content": drawn.content}
    if isinstance(drawn, SortProblem):
        task = Task(name, "math", drawn.prompt, metadata=metadata)
        return task, Rubric(name, "math", gold=(str(drawn.answer),))
    inputs: list[list[int]] = []
    while len(inputs) < PUBLIC_TESTS + HIDDEN_TESTS:
        numbers = [rng.randint(-20, 40) for _ in range(rng.randint(2, 5))]
        if numbers not in inputs:  # a hidden test that is also public would be given away
            inputs.append(numbers)
    tests = tuple({"kind": "stdin", "input": _spaced(a) + "\n", "output": drawn.output(a) + "\n"} for a in inputs)
    task = Task(name, "code", drawn.prompt, public_tests=tests[:PUBLIC_TESTS], metadata=metadata)
    return task, Rubric(name, "code", tests=tests[PUBLIC_TESTS:])


def _draw_sort(rng: random.Random) -> SortProblem:
    digits = rng.sample(range(10), rng.choice(SORT_SIZES))
    low, middle, high = sorted(rng.sample(range(1, len(digits) + 1), 3))
    return SortProblem(tuple(digits), high, middle, low)


def _draw_list(rng: random.Random) -> ListProblem:
    addends = rng.choice(ADDENDS)

    def operation() -> tuple[str, int]:
        return ("add", rng.randint(*addends)) if rng.random() < 0.5 else ("times", rng.randint(*FACTORS))

    return ListProblem((operation(), operation()), rng.choice(list(REDUCTIONS)))


def _spaced(numbers: tuple[int, ...] | list[int]) -> str:
    return " ".join(map(str, numbers))
