"""The one interface between rollouts and whatever samples tokens."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, Protocol

from metaagent_x.mas.records import CallRequest


class EngineFailure(RuntimeError):
    """The engine could not answer (infrastructure, not policy). The execution that asked becomes void."""


class EngineRefused(ValueError):
    """An engine is not what the job expects (tokenizer, vocabulary, lengths, dtype). Names both values; bad input."""


class RequestRefused(EngineFailure):
    """The engine answers others, but not this request, and would not the next time either.

    Attributes:
      usage: as `Completion.usage`, of an answer that was paid for and is none.
    """

    def __init__(self, message: str, usage: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.usage = usage


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Every sampling parameter, named in every request, so that no model folder's defaults can leak in.

    "Off" has one spelling each: top_p 1.0, top_k -1 (0 and None are read as -1), min_p 0.0, repetition_penalty 1.0.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.top_k:
            object.__setattr__(self, "top_k", -1)
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; a request must be allowed at least one token")
        if self.temperature < 0:
            raise ValueError(f"temperature is {self.temperature}; use 0 for greedy or a positive number")

    @property
    def plain(self) -> bool:
        """True if the sampler's distribution is the policy's own (up to temperature)."""
        return self.top_p == 1.0 and self.top_k == -1 and self.min_p == 0.0 and self.repetition_penalty == 1.0


@dataclasses.dataclass(frozen=True)
class Completion:
    """One answer.

    Attributes:
      ids: sampled, the stop id included when one was drawn. logprobs: of each, at the sampling temperature.
      version: of the weights that drew them; the oldest, where new ones came while it was drawn.
      text: what was said, by an engine that gives no ids (`ids` and `logprobs` are empty); nothing can be trained on
        it. None: the text is that of the ids.
      usage: tokens of the prompt and of the completion that an endpoint bills; None if it does not say.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]
    version: int
    text: str | None = None
    usage: tuple[int, int] | None = None


class Engine(Protocol):
    """Prompt ids in, sampled ids out. `request` says who asks: for tracing, routing and scripted answers; an engine
    may ignore it. Raises EngineFailure, never returns half an answer. One that asks servers and waits for them where
    they are away counts that in `outages`."""

    async def generate(
        self, prompt_ids: tuple[int, ...], sampling: Sampling, seed: int, *, request: CallRequest | None = None
    ) -> Completion: ...

    async def update_weights(self, params: Any, version: int) -> None: ...

    async def close(self) -> None: ...
