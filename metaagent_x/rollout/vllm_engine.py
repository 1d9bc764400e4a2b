"""The production engine: a group of vLLM servers that play one policy.

What it promises, whatever the servers do:
- A completion is whole, was drawn by weights that this engine pushed, and says which. Anything else is an
  `EngineFailure`, and the execution that asked is void.
- A request is tried again only where that changes nothing: what failed has given no answer, and the seed decides the
  answer of the next try as it did that of the first.
- Requests that come during an update wait, and are answered with the new weights.
- Other weights, for evaluation, play on the same servers in turn (`playing`).

One event loop uses an engine. Which servers are asked, and how one comes back, is in `fleet.py`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from metaagent_x.mas.records import CallRequest
from metaagent_x.rollout.engine import Completion, EngineFailure, Sampling
from metaagent_x.rollout.fleet import Fleet, Host, InFlight, Seat, Transfer, Weights
from metaagent_x.rollout.vllm_client import Generated, ServerError

TRIES = 3  # of one request
HANGS = 3  # requests in a row that a server did not answer in time, then it is started again
BACKOFF_S = 0.2  # before the second try; doubles, times a random factor from 0.5 to 1.5


@dataclasses.dataclass
class VllmStats:
    """Sums over the engine's life.

    Attributes:
      requests: answered. tokens: of them. retries: tries after the first. failures: requests that got no answer.
      restarts: servers brought back. pushes: of weights, to all servers together. last_push_s: of the newest one.
    """

    requests: int = 0
    tokens: int = 0
    retries: int = 0
    failures: int = 0
    restarts: int = 0
    pushes: int = 0
    last_push_s: float = 0.0


class VllmEngine:
    """Implements the Engine protocol. See the module's docstring for what is guaranteed.

    Args:
      hosts: where the servers live. transfer: how weights come to them.
      expected: what every server must say of itself, by field of `ServerInfo`.
      weights: to begin with.
      slots: requests on one server at a time; more wait here.
      in_flight: what becomes of requests that new weights overtake. "keep": they go on, and their version is that of
        their first token, the oldest; the log-probs are those of whatever weights drew each token. "abort", and always
        on a CPU: they begin again with the new weights.
      timeout_s: of one try of one request. push_timeout_s: of each call of an update (pause, load, check, resume); a
        server that takes longer is started again.
    """

    def __init__(
        self, hosts: Sequence[Host], transfer: Transfer, expected: Mapping[str, object], weights: Weights, *,
        slots: int = 64, in_flight: InFlight = "keep", timeout_s: float = 900.0, push_timeout_s: float = 300.0,
    ):  # fmt: skip
        self._fleet = Fleet(
            hosts, transfer, expected, slots=slots, in_flight=in_flight, timeout_s=timeout_s,
            push_timeout_s=push_timeout_s, changed=self._notify,
        )  # fmt: skip
        self._current = weights
        self._room, self._vocabulary = int(str(expected["max_model_len"])), int(str(expected["vocab_size"]))
        self._requests = self._tokens = self._retries = self._failures = 0
        self._changed = asyncio.Event()  # wakes all that wait: look again whether you may go on
        self._updating = False  # requests wait
        self._promised = False  # whoever had weights given takes its place before it is another's turn
        self._giving: asyncio.Task | None = None
        self._asked: set[asyncio.Task] = set()

    @property
    def stats(self) -> VllmStats:
        f = self._fleet
        return VllmStats(
            self._requests, self._tokens, self._retries, self._failures, f.restarts, f.pushes, f.last_push_s
        )  # fmt: skip

    @property
    def outages(self) -> int:
        """Times that a server was taken out of use."""
        return self._fleet.outages

    async def start(self) -> None:
        """Starts or finds the servers, compares, and gives them the weights. Nothing is asked before that.

        Raises:
          EngineRefused: a server is not what the learner expects. EngineFailure: one did not start.
        """
        await self._fleet.start()
        self._updating = True
        await self._give(self._current)

    async def generate(
        self, prompt_ids: tuple[int, ...], sampling: Sampling, seed: int, *, request: CallRequest | None = None
    ) -> Completion:
        """Samples one completion. `max_tokens` is cut down to what a server has room for.

        Raises:
          ValueError: a request that no weights could answer: too long, unknown ids.
          EngineFailure: no whole answer came within a few tries, or the engine is closed.
        """
        return await self._generate(lambda: self._current, prompt_ids, sampling, seed)

    async def update_weights(self, params: Any, version: int) -> None:
        """Gives all servers new weights. What is asked from now on is answered with them.

        `params` must stay as they are until the next update: they are given again after others have played in between.

        Raises:
          EngineFailure: no server has them now, or one computes something else than the learner.
        """
        while self._updating:
            await self._changed.wait()
        self._fleet.check()
        self._updating = True
        self._current = Weights(params, version)
        await self._give(self._current)

    def playing(self, params: Any, version: int) -> Guest:
        """An engine of other weights on the same servers, in turn with this one: for evaluation."""
        return Guest(self, Weights(params, version))

    def check(self) -> None:
        """Raises EngineFailure if no server will ever answer again."""
        self._fleet.check()

    async def close(self) -> None:
        """Ends what was started. Whoever still waits gets an EngineFailure."""
        tasks = [*self._fleet.end(), *self._asked, *([self._giving] if self._giving is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._notify()
        await self._fleet.close()

    async def _generate(
        self, weights: Callable[[], Weights], prompt_ids: Sequence[int], sampling: Sampling, seed: int
    ) -> Completion:
        prompt = tuple(int(i) for i in prompt_ids)
        sampling = self._checked(prompt, sampling)
        problems: list[str] = []
        while len(problems) < TRIES:
            if problems:
                self._retries += 1
                await asyncio.sleep(BACKOFF_S * 2 ** (len(problems) - 1) * random.uniform(0.5, 1.5))
            seat, since = await self._admit(weights, prompt)
            try:
                answer = await self._ask(seat, prompt, sampling, seed)
            except ServerError as error:
                problems.append(str(error))
                well = await self._fleet.examine(seat)
                if well and not error.retryable:
                    break
                continue
            finally:
                seat.load -= 1
                self._notify()
            held = self._fleet.history[since:]
            if answer.finish_reason == "abort":
                if len(held) == 1:  # not ours: no new weights have come
                    problems.append(f"{seat.url} gave the request up")
                continue
            if stray := sorted({version for version, _, _ in answer.versions} - set(held)):
                problems.append(f"{seat.url} answered with weights {stray[0]}, not {held[-1]}")
                self._fleet.recover(seat, restart=False)
                continue
            if weights().version == held[0] and any(v != held[0] for v, _, _ in answer.versions):
                continue  # a Guest's, overtaken by an update that was not its own: it waits for its turn again
            if (worst := max(answer.ids)) >= self._vocabulary:
                problems.append(f"id {worst} of a vocabulary of {self._vocabulary}")
                break
            if wrong := _not_whole(answer, sampling):
                problems.append(f"{seat.url} {wrong}")
                break
            self._requests += 1
            self._tokens += len(answer.ids)
            return Completion(answer.ids, answer.logprobs, answer.finish_reason, version=answer.versions[0][0])
        self._failures += 1
        raise EngineFailure(f"no answer in {len(problems)} tries: {'; '.join(problems)}")

    def _checked(self, prompt: tuple[int, ...], sampling: Sampling) -> Sampling:
        if not 0 < len(prompt) < self._room:
            raise ValueError(
                f"a prompt of {len(prompt)} tokens plus up to {sampling.max_tokens} sampled ones do not fit into "
                f"engine.cache_tokens={self._room}; a prompt needs 1 to {self._room - 1} tokens"
            )
        if bad := [i for i in prompt if not 0 <= i < self._vocabulary]:
            raise ValueError(f"prompt id {bad[0]} is outside the vocabulary of {self._vocabulary} rows")
        return dataclasses.replace(sampling, max_tokens=min(sampling.max_tokens, self._room - len(prompt)))

    async def _admit(self, weights: Callable[[], Weights], prompt: tuple[int, ...]) -> tuple[Seat, int]:
        """Waits for a place on a server that holds these weights, which are given when it is their turn.

        Returns:
          (seat, place in the fleet's history of the version that it holds now).
        """
        fleet, promised = self._fleet, False
        try:
            while True:
                fleet.check()
                wanted = weights()
                if not self._updating and fleet.held == wanted.version:
                    if (seat := fleet.place(prompt)) is not None:
                        return seat, len(fleet.history) - 1
                elif not self._updating and fleet.idle and (promised or not self._promised):
                    self._updating = self._promised = promised = True
                    await self._give(wanted)
                    continue
                await self._changed.wait()
        finally:
            if promised:
                self._promised = False
                self._notify()

    async def _ask(self, seat: Seat, prompt: tuple[int, ...], sampling: Sampling, seed: int) -> Generated:
        assert seat.client is not None
        job = asyncio.create_task(seat.client.generate(prompt, sampling, seed))
        self._asked.add(job)
        job.add_done_callback(self._asked.discard)
        try:
            answer = await job
        except asyncio.CancelledError:
            if job.cancelled() and not asyncio.current_task().cancelling():  # type: ignore[union-attr]
                self._fleet.check()  # it was us: closed
            raise
        except ServerError as error:
            hung = isinstance(error.__cause__, TimeoutError)
            seat.hangs = seat.hangs + 1 if hung else 0
            if seat.hangs >= HANGS:
                self._fleet.recover(seat, restart=True)
            raise
        seat.hangs = 0
        return answer

    async def _give(self, weights: Weights) -> None:
        """Gives weights to the servers, to the end even if who asked for it goes away: none must be left half way.
        The caller has set `_updating`, which ends here."""

        async def give() -> None:
            try:
                await self._fleet.give(weights)
            finally:
                self._updating = False
                self._notify()

        self._giving = giving = asyncio.create_task(give())  # the next one may have begun when this is looked at
        giving.add_done_callback(lambda task: task.cancelled() or task.exception())  # somebody has seen it
        await asyncio.wait([giving])
        if giving.cancelled():
            self._fleet.check()
        giving.result()

    def _notify(self) -> None:
        self._changed.set()
        self._changed.clear()


def _not_whole(answer: Generated, sampling: Sampling) -> str:
    """How an answer ends otherwise than it says, or ""."""
    n, stop = len(answer.ids), next((i for i, token in enumerate(answer.ids) if token in sampling.stop_ids), None)
    if answer.finish_reason == "stop" and (stop is None or stop < n - 1 or n > sampling.max_tokens):
        where = "none of the stop ids" if stop is None else f"a stop id at {stop}"
        return f"says that it stopped, but its {n} ids have {where} (max_tokens {sampling.max_tokens})"
    if answer.finish_reason == "length" and (stop is not None or n != sampling.max_tokens):
        return f"says that it ran out of room, but has {n} ids of {sampling.max_tokens}, stop id at {stop}"
    return ""


class Guest:
    """Other weights on an engine's servers (Engine protocol). They are given when nobody is asking for those held now,
    and whoever asks for those next waits in turn."""

    def __init__(self, engine: VllmEngine, weights: Weights):
        self._engine, self._weights = engine, weights

    async def generate(
        self, prompt_ids: tuple[int, ...], sampling: Sampling, seed: int, *, request: CallRequest | None = None
    ) -> Completion:
        """As `VllmEngine.generate`."""
        return await self._engine._generate(lambda: self._weights, prompt_ids, sampling, seed)

    async def update_weights(self, params: Any, version: int) -> None:
        """From the next request on."""
        self._weights = Weights(params, version)

    @property
    def outages(self) -> int:
        """As `VllmEngine.outages`."""
        return self._engine.outages

    def check(self) -> None:
        """As `VllmEngine.check`."""
        self._engine.check()

    async def close(self) -> None:
        """The servers are the engine's."""
