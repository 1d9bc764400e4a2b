"""Any chat endpoint that speaks OpenAI's protocol, for jobs that only ask: solve, evaluate, distill.

Such an endpoint gives text, not the ids that it sampled, so nothing can be trained on its answers (`learner.credit`
refuses); a budget of tokens counts what the job's tokenizer makes of them. What it is sent are the turns of the prompt
that another engine would get as ids, cut to the same limits.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from typing import Any

import httpx2

from metaagent_x.mas.records import CallRequest
from metaagent_x.rollout.chat import Chat
from metaagent_x.rollout.engine import Completion, EngineFailure, RequestRefused, Sampling
from metaagent_x.rollout.pace import Pace

KEY = "OPENAI_API_KEY"  # environment variable
TRIES = 5  # of one request
BACKOFF_S = 1.0  # before the second try; doubles, times a random factor from 0.5 to 1.5
LONGEST_WAIT_S = 60.0  # that an endpoint may ask for between two tries
REFUSALS = (400, 413, 422, 451)  # status codes that are about this request, not about the endpoint


class OpenAIEngine:
    """Implements the Engine protocol. Weights are never pushed to it; its version is always 0.

    Args:
      url: up to and with the version, "https://HOST/v1". model: name of the model there.
      chat: what prompts were made with. key: sent as a bearer token; "" for none; None takes OPENAI_API_KEY.
      connections: requests at a time. timeout_s: of one try. tries: of one request.
      pace: the endpoint's limits per minute, where it has any.

    Attributes:
      outages: requests that had to be tried again.
    """

    def __init__(
        self, url: str, model: str, chat: Chat, *, key: str | None = None, connections: int = 64,
        timeout_s: float = 600.0, tries: int = TRIES, pace: Pace | None = None,
    ):  # fmt: skip
        self.model, self.chat, self.timeout_s, self.version = model, chat, timeout_s, 0
        self._tries, self._pace, self.outages = tries, pace or Pace(), 0
        key = os.environ.get(KEY, "") if key is None else key
        self._url = url.rstrip("/") + "/chat/completions"
        self._room = asyncio.Semaphore(connections)
        self._http = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(None, connect=min(10.0, timeout_s)),  # the limit of a whole request is kept here
            limits=httpx2.Limits(max_connections=None),
        )

    async def generate(
        self, prompt_ids: tuple[int, ...], sampling: Sampling, seed: int, *, request: CallRequest | None = None
    ) -> Completion:
        """Asks for one completion. A refusal for load (429) or an error of the endpoint (5xx) is tried again, after as
        long as it says (Retry-After).

        Raises:
          RequestRefused: the endpoint will not answer this request, or gave an answer that is none.
          EngineFailure: no answer within a few tries.
        """
        body = {
            "model": self.model,
            "messages": [{"role": role, "content": content} for role, content in self.chat.turns(prompt_ids)],
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed,
            "n": 1,
            "stream": False,
        }
        # Not of OpenAI's own protocol, but of most servers that speak it: sent only where asked for.
        more = {"top_k": (sampling.top_k, -1), "min_p": (sampling.min_p, 0.0),
                "repetition_penalty": (sampling.repetition_penalty, 1.0)}  # fmt: skip
        body |= {name: value for name, (value, off) in more.items() if value != off}
        problems: list[str] = []
        while len(problems) < self._tries:
            async with self._room:
                await self._pace.turn(len(prompt_ids))
                answer, problem, wait_s = await self._try(body)
            if problem is None:
                try:
                    done = _completion(answer, self._url)
                except RequestRefused as refused:
                    self._pace.used(refused.usage[1] if refused.usage else 0)
                    raise
                self._pace.used(done.usage[1] if done.usage else len(self.chat.encode(done.text or "")))
                return done
            problems.append(problem)
            if wait_s is None:
                break
            if len(problems) < self._tries:
                self.outages += len(problems) == 1
                await asyncio.sleep(wait_s or BACKOFF_S * 2 ** (len(problems) - 1) * random.uniform(0.5, 1.5))
        refused = problems[-1].startswith(tuple(f"status {code}:" for code in REFUSALS))
        raise (RequestRefused if refused else EngineFailure)(
            f"{self._url}: no answer in {len(problems)} tries: {_short(problems)}"
        )

    async def update_weights(self, params: Any, version: int) -> None:
        """Raises EngineFailure: whose weights these are is not for us to say."""
        raise EngineFailure(f"{self._url} takes no weights; training needs engine.kind='jax' or 'vllm'")

    async def close(self) -> None:
        await self._http.aclose()

    async def _try(self, body: dict[str, Any]) -> tuple[Any, str | None, float | None]:
        """Returns (answer, None, None), or (None, what went wrong, seconds to wait): 0 own choice, None no use."""
        try:
            async with asyncio.timeout(self.timeout_s):
                response = await self._http.post(self._url, json=body)
        except TimeoutError:
            return None, f"no whole answer in {self.timeout_s:g} s", 0.0
        except httpx2.HTTPError as error:
            return None, f"{type(error).__name__} {error}".strip(), 0.0
        if response.status_code == 200:
            try:
                return response.json(), None, None
            except ValueError:
                return None, f"not JSON: {response.text[:200]!r}", 0.0
        problem = f"status {response.status_code}: {response.text[:300]}"
        if response.status_code in (408, 429) or response.status_code >= 500:
            wait_s = _retry_after(response.headers.get("retry-after", ""))
            if response.status_code == 429:  # meant for whoever asks with this key
                self._pace.hold(wait_s)
            return None, problem, wait_s
        return None, problem, None


def _retry_after(value: str) -> float:
    """Seconds, at most a minute; 0.0 if the endpoint does not say (or says a date)."""
    try:
        return min(max(0.0, float(value)), LONGEST_WAIT_S)  # in this order "nan" is 0
    except ValueError:
        return 0.0


def _completion(answer: Any, url: str) -> Completion:
    """Raises RequestRefused unless the answer is one whole completion."""
    try:
        (choice,) = answer["choices"]
        text, reason = choice["message"]["content"], choice["finish_reason"]
        if not isinstance(text, str) or reason not in ("stop", "length"):
            raise ValueError(f"content of type {type(text).__name__}, finish_reason {reason!r}")
    except (KeyError, TypeError, ValueError) as error:
        usage = _usage(answer.get("usage")) if isinstance(answer, dict) else None
        raise RequestRefused(f"{url} gave no whole completion: {type(error).__name__}: {error}", usage) from error
    return Completion((), (), reason, 0, text=text, usage=_usage(answer.get("usage")))


def _usage(reported: Any) -> tuple[int, int] | None:
    if not isinstance(reported, dict):
        return None
    prompt, completion = reported.get("prompt_tokens"), reported.get("completion_tokens")
    if not (isinstance(prompt, int) and isinstance(completion, int) and min(prompt, completion) >= 0):
        return None
    return prompt, completion


def _short(problems: Sequence[str]) -> str:
    """Each problem once."""
    return "; ".join(dict.fromkeys(problems))
