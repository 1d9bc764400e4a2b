"""The production engine: one group of vLLM servers that all hold the same weights.

What it promises, whatever the servers do:
- A completion is whole, was drawn by weights that this engine pushed, and says which. Anything else is an
  `EngineFailure`, and the execution that asked is void.
- A server gets requests only while it is known to hold the weights that are asked for. One that dies, restarts with
  old weights or breaks off an update gets none until it has been started again, compared and given the current ones.
- A request is tried again only where that changes nothing: what failed has given no answer, and the seed decides the
  answer of the next try as it did that of the first.
- Requests that come during an update wait, and are answered with the new weights.

One event loop uses an engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from metaagent_x.mas.records import CallRequest
from metaagent_x.rollout.engine import Completion, EngineFailure, EngineRefused, Sampling
from metaagent_x.rollout.routing import Homes, choose
from metaagent_x.rollout.vllm_client import Generated, ServerError, ServerInfo, VllmClient

TRIES = 3  # of one request
STARTS = 3  # of one server in a row, then it is given up
HANGS = 3  # requests in a row that a server did not answer in time, then it is started again
PROBES = 8  # requests that a server takes beside the `slots`: what checks its weights must not wait for them
BACKOFF_S = 0.2  # before the second try; doubles, times a random factor from 0.5 to 1.5


class Host(Protocol):
    """Where a server lives. `start` ends what is left of an earlier one and returns the URL once the server answers."""

    async def start(self) -> str: ...

    async def stop(self) -> None: ...


class Attached:
    """A server that somebody else runs (Host protocol): waited for, never ended."""

    def __init__(self, url: str, start_timeout_s: float = 900.0):
        self.url, self.start_timeout_s = url, start_timeout_s

    async def start(self) -> str:
        """Waits until it answers. Raises ServerError if it does not in time."""
        client = VllmClient(self.url, timeout_s=5.0, connections=1)
        try:
            async with asyncio.timeout(self.start_timeout_s):
                while not await client.healthy():
                    await asyncio.sleep(BACKOFF_S)
        except TimeoutError as error:
            raise ServerError(f"{self.url} does not answer within {self.start_timeout_s:g} s") from error
        finally:
            await client.close()
        return self.url

    async def stop(self) -> None:
        return None


class Transfer(Protocol):
    """How weights come to servers: `write` makes them ready, `push` brings what was written last to one server and
    checks that it has arrived.

    `push` raises ServerError if the server failed, EngineFailure if it now computes something else than the learner.
    """

    async def write(self, params: Any, version: int) -> None: ...

    async def push(self, client: VllmClient, in_flight: Literal["keep", "abort"]) -> None: ...

    def close(self) -> None: ...


@dataclasses.dataclass(frozen=True)
class Weights:
    """Parameters as the learner holds them, and their version: the same version is the same weights."""

    params: Any
    version: int


@dataclasses.dataclass
class VllmStats:
    """Sums over the engine's life.

    Attributes:
      requests: answered. tokens: of them.
      retries: tries after the first. failures: requests that got no answer. restarts: servers brought back.
      pushes: of weights, to all servers together. last_push_seconds: how long the newest one took.
    """

    requests: int = 0
    tokens: int = 0
    retries: int = 0
    failures: int = 0
    restarts: int = 0
    pushes: int = 0
    last_push_seconds: float = 0.0


@dataclasses.dataclass(eq=False)
class _Seat:
    """One server as the engine sees it. It takes requests while `version` is that of the weights held."""

    host: Host
    url: str = ""
    client: VllmClient | None = None
    version: int | None = None
    in_flight: Literal["keep", "abort"] = "keep"
    load: int = 0
    hangs: int = 0
    lost: str = ""
    recovery: asyncio.Task | None = None
    examination: asyncio.Task | None = None


class VllmEngine:
    """Implements the Engine protocol. See the module's docstring for what is guaranteed.

    Args:
      hosts: where the servers live. transfer: how weights come to them.
      expected: what every server must say of itself, by field of `ServerInfo`.
      weights: to begin with.
      slots: requests on one server at a time; more wait here.
      in_flight: what becomes of requests that new weights overtake. "keep": they go on, and their version is that of
        their first token, the oldest; the log-probs are those of whatever weights drew each token. "abort": they begin
        again with the new weights.
      timeout_s: of one try of one request.
    """

    def __init__(
        self, hosts: Sequence[Host], transfer: Transfer, expected: Mapping[str, object], weights: Weights, *,
        slots: int = 64, in_flight: Literal["keep", "abort"] = "keep", timeout_s: float = 900.0,
    ):  # fmt: skip
        if not hosts or slots < 1:
            raise ValueError(f"{len(hosts)} servers with slots={slots}; both must be at least 1")
        self.stats = VllmStats()
        self._seats = [_Seat(host) for host in hosts]
        self._transfer, self._expected, self._current = transfer, dict(expected), weights
        self._slots, self._timeout_s = slots, timeout_s
        self._in_flight: Literal["keep", "abort"] = in_flight
        self._slack = max(1, slots // 8)
        self._held: int | None = None  # version that servers hold, or are being given
        self._pushed: list[int] = []  # all versions ever held, in order
        self._updating = False  # requests wait
        self._pushing = asyncio.Lock()  # one update at a time touches a server
        self._changed = asyncio.Condition()  # a request may go on: look again
        self._homes = Homes()
        self._closed = False
        self._giving: asyncio.Task | None = None
        self._asked: set[asyncio.Task] = set()
        self._retired: list[VllmClient] = []  # of servers that were started again; a request may still use one

    # What the Engine protocol asks for

    async def start(self) -> None:
        """Starts or finds the servers, compares, and gives them the weights. Nothing is asked before that.

        Raises:
          EngineRefused: a server is not what the learner expects. EngineFailure: one did not start.
        """
        await _all(self._open(seat) for seat in self._seats)
        self._updating = True
        await self._give_whole(self._current)

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
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or not self._updating)
            self._check_open()
            self._updating = True
        self._current = Weights(params, version)
        await self._give_whole(self._current)

    def playing(self, params: Any, version: int) -> Guest:
        """An engine of other weights on the same servers, in turn with this one: for evaluation."""
        return Guest(self, Weights(params, version))

    async def close(self) -> None:
        """Ends what was started. Whoever still waits gets an EngineFailure."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()
        tasks = [t for s in self._seats for t in (s.recovery, s.examination) if t is not None]
        tasks += [*self._asked, *([self._giving] if self._giving is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in [*self._retired, *(seat.client for seat in self._seats)]:
            if client is not None:
                await client.close()
        await asyncio.gather(*(seat.host.stop() for seat in self._seats), return_exceptions=True)
        self._transfer.close()

    # One request

    async def _generate(
        self, weights: Callable[[], Weights], prompt_ids: Sequence[int], sampling: Sampling, seed: int
    ) -> Completion:
        prompt = tuple(int(i) for i in prompt_ids)
        sampling = self._checked(prompt, sampling)
        problems: list[str] = []
        while len(problems) < TRIES:
            if problems:
                self.stats.retries += 1
                await asyncio.sleep(BACKOFF_S * 2 ** (len(problems) - 1) * random.uniform(0.5, 1.5))
            seat, since = await self._admit(weights, prompt)
            try:
                answer = await self._ask(seat, prompt, sampling, seed)
            except ServerError as error:
                problems.append(str(error))
                well = await self._examine(seat)
                if well and not error.retryable:
                    break
                continue
            finally:
                await self._leave(seat)
            held = self._pushed[since:]
            if answer.finish_reason == "abort":
                if len(held) == 1:  # not ours: no new weights have come
                    problems.append(f"{seat.url} gave the request up")
                continue
            if stray := sorted({version for version, _, _ in answer.versions} - set(held)):
                problems.append(f"{seat.url} answered with weights {stray[0]}, not {held[-1]}")
                self._recover(seat, restart=False)
                continue
            if (worst := max(answer.ids)) >= self._expected["vocab_size"]:  # type: ignore[operator]
                problems.append(f"id {worst} of a vocabulary of {self._expected['vocab_size']}")
                break
            self.stats.requests += 1
            self.stats.tokens += len(answer.ids)
            reason: Literal["stop", "length"] = "stop" if answer.finish_reason == "stop" else "length"
            return Completion(answer.ids, answer.logprobs, reason, version=answer.versions[0][0])
        self.stats.failures += 1
        raise EngineFailure(f"no answer in {len(problems)} tries: {'; '.join(problems)}")

    async def _ask(self, seat: _Seat, prompt: tuple[int, ...], sampling: Sampling, seed: int) -> Generated:
        assert seat.client is not None
        job = asyncio.create_task(seat.client.generate(prompt, sampling, seed))
        self._asked.add(job)
        job.add_done_callback(self._asked.discard)
        try:
            answer = await job
        except asyncio.CancelledError:
            if job.cancelled() and not asyncio.current_task().cancelling():  # type: ignore[union-attr]
                self._check_open()
            raise
        except ServerError as error:
            hung = isinstance(error.__cause__, TimeoutError)
            seat.hangs = seat.hangs + 1 if hung else 0
            if seat.hangs >= HANGS:
                self._recover(seat, restart=True)
            raise
        seat.hangs = 0
        return answer

    def _checked(self, prompt: tuple[int, ...], sampling: Sampling) -> Sampling:
        room, vocabulary = int(self._expected["max_model_len"]), int(self._expected["vocab_size"])  # type: ignore[call-overload]
        if not 0 < len(prompt) < room:
            raise ValueError(
                f"a prompt of {len(prompt)} tokens plus up to {sampling.max_tokens} sampled ones do not fit into "
                f"engine.cache_tokens={room}; a prompt needs 1 to {room - 1} tokens"
            )
        if bad := [i for i in prompt if not 0 <= i < vocabulary]:
            raise ValueError(f"prompt id {bad[0]} is outside the vocabulary of {vocabulary} rows")
        return dataclasses.replace(sampling, max_tokens=min(sampling.max_tokens, room - len(prompt)))

    async def _admit(self, weights: Callable[[], Weights], prompt: tuple[int, ...]) -> tuple[_Seat, int]:
        """Waits for a place on a server that holds these weights, which are given when it is their turn.

        Returns:
          (seat, how many versions had been held before the one that it holds now).
        """
        while True:
            async with self._changed:
                while True:
                    self._check_open()
                    wanted = weights()
                    if not self._updating and self._held == wanted.version:
                        loads = [s.load if self._open_for(s) else None for s in self._seats]
                        at = choose(loads, self._homes.home(prompt), self._slack)
                        if at is not None:
                            self._seats[at].load += 1
                            self._homes.remember(prompt, at)
                            return self._seats[at], len(self._pushed) - 1
                    elif not self._updating and not any(s.load for s in self._seats):
                        self._updating = True
                        break
                    await self._changed.wait()
            await self._give_whole(wanted)

    async def _leave(self, seat: _Seat) -> None:
        seat.load -= 1
        async with self._changed:
            self._changed.notify_all()

    def _open_for(self, seat: _Seat) -> bool:
        return seat.version is not None and seat.version == self._held and seat.load < self._slots

    def _check_open(self) -> None:
        if self._closed:
            raise EngineFailure("the engine does not answer: it was closed")
        if all(seat.lost for seat in self._seats):
            raise EngineFailure(f"the engine does not answer: {'; '.join(seat.lost for seat in self._seats)}")

    # Weights

    async def _give_whole(self, weights: Weights) -> None:
        """`_give`, even if who asked for it goes away meanwhile: a server must not be left half way."""
        self._giving = asyncio.create_task(self._give(weights))
        self._giving.add_done_callback(lambda task: task.cancelled() or task.exception())  # somebody has seen it
        await asyncio.wait([self._giving])
        if self._giving.cancelled():
            self._check_open()
        self._giving.result()

    async def _give(self, weights: Weights) -> None:
        """Pushes to every server that is up. The caller has set `_updating`, which ends here."""
        try:
            async with self._pushing:
                began = time.perf_counter()
                await self._transfer.write(weights.params, weights.version)
                self._held = weights.version
                self._pushed.append(weights.version)
                self._homes.clear()
                up = [s for s in self._seats if s.recovery is None and not s.lost]
                for seat in up:
                    seat.version = None
                await _all(self._push(seat) for seat in up)
                self.stats.pushes += 1
                self.stats.last_push_seconds = time.perf_counter() - began
            while not any(s.version == self._held for s in self._seats):  # nobody has them: somebody must come back
                self._check_open()
                await asyncio.wait([s.recovery for s in self._seats if s.recovery is not None])
        finally:
            async with self._changed:
                self._updating = False
                self._changed.notify_all()

    async def _push(self, seat: _Seat) -> None:
        assert seat.client is not None
        try:
            await self._transfer.push(seat.client, seat.in_flight)
        except ServerError:
            self._recover(seat, restart=True)
        except EngineFailure as wrong:  # it computes something else: nothing that it says may be used
            seat.lost = str(wrong)
            raise
        else:
            seat.version = self._held

    # Servers that come and go

    async def _open(self, seat: _Seat) -> None:
        """Starts a server and compares it with what the learner expects."""
        seat.version = None
        if seat.client is not None:
            self._retired.append(seat.client)
            seat.client = None
        try:
            seat.url = await seat.host.start()
            seat.client = VllmClient(seat.url, timeout_s=self._timeout_s, connections=self._slots + PROBES)
            info = await seat.client.info()
            # On a CPU, vLLM 0.32 dies of a request with a seed of its own that is frozen and goes on.
            seat.in_flight = "abort" if info.device == "cpu" else self._in_flight
        except ServerError as error:
            raise EngineFailure(f"a vLLM server did not start: {error}") from error
        if wrong := differences(self._expected, info):
            raise EngineRefused(f"{seat.url} is not what the learner expects: {'; '.join(wrong)}")

    async def _examine(self, seat: _Seat) -> bool:
        """After a failure: True if the server lives and holds the right weights; else it is brought back."""
        if seat.version is None:
            return False
        if seat.examination is None or seat.examination.done():  # one look answers all that failed together
            seat.examination = asyncio.create_task(self._look(seat))
        examination = seat.examination
        await asyncio.wait([examination])
        return not examination.cancelled() and examination.result()

    async def _look(self, seat: _Seat) -> bool:
        async with self._pushing:
            if seat.version is None or seat.client is None:
                return False
            version: int | None = None
            well = await seat.client.healthy()
            if well:
                with contextlib.suppress(ServerError):
                    version = await seat.client.weight_info()
            if version == self._held:
                return True
            self._recover(seat, restart=not well)
            return False

    def _recover(self, seat: _Seat, *, restart: bool) -> None:
        """Takes a server out of use and brings it back in the background."""
        seat.version = None
        self._homes.forget(self._seats.index(seat))
        if seat.recovery is None and not self._closed:
            seat.recovery = asyncio.create_task(self._bring_back(seat, restart))

    async def _bring_back(self, seat: _Seat, restart: bool) -> None:
        why = ""
        for start in range(STARTS):
            try:
                if restart or start:
                    await asyncio.sleep(BACKOFF_S * start)
                    await self._open(seat)
                assert seat.client is not None
                async with self._pushing:
                    await self._transfer.push(seat.client, seat.in_flight)
                    seat.version = self._held
                    seat.recovery = None
                seat.hangs = 0
                self.stats.restarts += 1
                break
            except EngineRefused as error:
                why = str(error)
                break
            except (ServerError, EngineFailure, OSError) as error:
                why = str(error)
        else:
            why = f"given up after {STARTS} starts: {why}"
        seat.recovery, seat.lost = None, "" if seat.version is not None else why
        async with self._changed:
            self._changed.notify_all()


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

    async def close(self) -> None:
        """The servers are the engine's."""


def differences(expected: Mapping[str, object], info: ServerInfo) -> list[str]:
    """What a server says of itself and the learner expects otherwise, with both values."""
    said = dataclasses.asdict(info)
    return [f"{name} is {said[name]!r}, not {wanted!r}" for name, wanted in expected.items() if said[name] != wanted]


async def _all(jobs: Any) -> None:
    """Runs all, then raises the first failure."""
    done = await asyncio.gather(*jobs, return_exceptions=True)
    for error in done:
        if isinstance(error, BaseException):
            raise error
