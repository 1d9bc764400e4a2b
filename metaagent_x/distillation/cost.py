"""What a teacher's answers cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Usage:
    """Tokens of answered requests.

    Attributes:
      requests: answered. prompt, completion: tokens. counted_here: requests whose tokens the endpoint did not report,
        counted with the student's tokenizer instead.
    """

    requests: int = 0
    prompt: int = 0
    completion: int = 0
    counted_here: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


@dataclasses.dataclass(frozen=True)
class Prices:
    """Of a million tokens, in whatever currency the budget is in."""

    prompt: float = 0.0
    completion: float = 0.0

    def of(self, usage: Usage) -> float:
        return (usage.prompt * self.prompt + usage.completion * self.completion) / 1e6


class Meter:
    """Adds up what is spent against a budget.

    Args:
      budget: 0 for none. usage: of earlier starts of the job. note: told of every answered request.

    Attributes:
      usage: so far.
    """

    def __init__(
        self, prices: Prices, budget: float = 0.0, usage: Usage | None = None,
        note: Callable[[Usage], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.prices, self.budget, self.usage, self._note = prices, budget, usage or Usage(), note

    @property
    def spent(self) -> float:
        return self.prices.of(self.usage)

    @property
    def empty(self) -> bool:
        """True if nothing more may be begun. What is in flight then still ends, and may cost a little more."""
        return self.budget > 0 and self.spent >= self.budget

    def add(self, usage: Usage) -> None:
        self.usage += usage
        self._note(usage)
