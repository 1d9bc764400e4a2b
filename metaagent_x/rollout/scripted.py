"""An engine that answers from a rule instead of a network: for tests, demos and forced designs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metaagent_x.mas.records import CallRequest
from metaagent_x.rollout.chat import Chat
from metaagent_x.rollout.engine import Completion, EngineFailure, Sampling


class ScriptedEngine:
    """Implements the Engine protocol.

    Args:
      reply: the rule. It may raise EngineFailure, and may return a Completion to decide ids and log-probs itself.
      logprob: reported for every id.
      chat: tokenizer of the job; `collect` sets its own if this is None.

    Attributes:
      requests, samplings, seeds: what was asked, in order of arrival.
      version: of the weights last pushed. versions: all that were pushed.
    """

    def __init__(
        self, reply: Callable[[CallRequest], str | Completion], logprob: float = -1.0, chat: Chat | None = None
    ):
        self.reply, self.logprob, self.chat = reply, logprob, chat
        self.requests: list[CallRequest] = []
        self.samplings: list[Sampling] = []
        self.seeds: list[int] = []
        self.version, self.versions, self._closed = 0, [], False

    async def generate(
        self, prompt_ids: tuple[int, ...], sampling: Sampling, seed: int, *, request: CallRequest | None = None
    ) -> Completion:
        """The rule's text as ids with the stop id, or its first `max_tokens` ids (finish reason "length").

        Raises:
          ValueError: no `request`, or no tokenizer. EngineFailure: closed, or raised by the rule.
        """
        if self._closed:
            raise EngineFailure("the scripted engine is closed")
        if request is None:
            raise ValueError("a scripted engine needs to know who asks: pass request=CallRequest(...)")
        self.requests.append(request)
        self.samplings.append(sampling)
        self.seeds.append(seed)
        text = self.reply(request)
        if isinstance(text, Completion):
            return text
        if self.chat is None:
            raise ValueError("a scripted engine needs a tokenizer: pass chat=Chat(...)")
        whole = [*self.chat.encode(text), self.chat.stop_ids[0]]
        ids = tuple(whole[: sampling.max_tokens])
        finish = "stop" if len(ids) == len(whole) else "length"
        return Completion(ids, (self.logprob,) * len(ids), finish, self.version)

    async def update_weights(self, params: Any, version: int) -> None:
        self.version = version
        self.versions.append(version)

    async def close(self) -> None:
        self._closed = True
