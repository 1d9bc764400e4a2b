"""The servers of one policy: which of them hold the weights, and how one that does not comes to hold them again.

A server takes requests only while it is known to hold the weights that all are to hold. One that dies, was restarted
behind our back, or breaks off an update is started again where we started it, compared with what the learner expects,
and given the weights, in the background; the others go on. After three starts in a row without success it is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

from metaagent_x.rollout.engine import EngineFailure, EngineRefused
from metaagent_x.rollout.routing import Homes, choose
from metaagent_x.rollout.vllm_client import ServerError, ServerInfo, VllmClient

STARTS = 3  # of one server in a row, then it is given up
PROBES = 8  # requests that a server takes beside its `slots`: what checks its weights must not wait for them
PAUSE_S = 0.2  # between two starts, and between two looks at a server that does not answer yet

InFlight = Literal["keep", "abort"]


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
                    await asyncio.sleep(PAUSE_S)
        except TimeoutError as error:
            raise ServerError(f"{self.url} does not answer within {self.start_timeout_s:g} s") from error
        finally:
            await client.close()
        return self.url

    async def stop(self) -> None:
        return None


class Transfer(Protocol):
    """How weights come to servers (`weight_sync.WeightSync`): `write` makes them ready, `push` brings what was written
    last to one server and checks that it has arrived.

    `push` raises ServerError if the server failed, EngineFailure if it now computes something else than the learner.
    """

    async def write(self, params: Any, version: int) -> None: ...

    async def push(self, client: VllmClient, in_flight: InFlight) -> None: ...

    def close(self) -> None: ...


@dataclasses.dataclass(frozen=True)
class Weights:
    """Parameters as the learner holds them, and their version: the same version is the same weights."""

    params: Any
    version: int


@dataclasses.dataclass(eq=False)
class Seat:
    """One server. It takes requests while `version` is that of the weights held; `load` counts them."""

    host: Host
    url: str = ""
    client: VllmClient | None = None
    in_flight: InFlight = "keep"
    version: int | None = None
    load: int = 0
    hangs: int = 0  # requests in a row that it did not answer in time
    lost: str = ""  # why it was given up
    recovery: asyncio.Task | None = None
    examination: asyncio.Task | None = None


class Fleet:
    """Servers that all hold the same weights.

    Args:
      hosts: where they live. transfer: how weights come to them.
      expected: what every server must say of itself, by field of `ServerInfo`.
      slots: requests on one server at a time.
      in_flight: what an update does to them; on a CPU always "abort".
      timeout_s: of one request. push_timeout_s: of one call of an update.
      changed: called when a server has come back or is lost.

    Attributes:
      held: version that servers hold, or are being given. history: all versions ever held, in order.
      outages: times that a server was taken out of use. restarts: servers that came back.
      pushes, last_push_s: updates of all together, and how long the newest took.
    """

    def __init__(
        self, hosts: Sequence[Host], transfer: Transfer, expected: Mapping[str, object], *, slots: int,
        in_flight: InFlight, timeout_s: float, push_timeout_s: float, changed: Callable[[], None],
    ):  # fmt: skip
        if not hosts or slots < 1:
            raise ValueError(f"{len(hosts)} servers with slots={slots}; both must be at least 1")
        self.seats = [Seat(host) for host in hosts]
        self.held: int | None = None
        self.history: list[int] = []
        self.outages = self.restarts = self.pushes = 0
        self.last_push_s = 0.0
        self._transfer, self._expected, self._changed = transfer, dict(expected), changed
        self._slots, self._timeout_s, self._push_timeout_s = slots, timeout_s, push_timeout_s
        self._in_flight: InFlight = in_flight
        self._homes = Homes()
        self._pushing = asyncio.Lock()  # one update at a time touches a server
        self._retired: list[VllmClient] = []  # of servers that were started again; a request may still use one
        self._closed = False

    async def start(self) -> None:
        """Starts or finds all servers, and compares them with what is expected. They have no weights yet.

        Raises:
          EngineRefused: a server is not what the learner expects. EngineFailure: one did not start.
        """
        await _all(self._open(seat) for seat in self.seats)

    def place(self, prompt: Sequence[int]) -> Seat | None:
        """Takes a place on the best server for a prompt; None if all are full or away. `seat.load` gives it back."""
        loads = [
            s.load if s.version is not None and s.version == self.held and s.load < self._slots else None
            for s in self.seats
        ]
        if all(load is None for load in loads):  # all that wait ask whenever one is done: this must cost nothing
            return None
        at = choose(loads, self._homes.home(prompt), slack=max(1, self._slots // 8))
        assert at is not None
        self._homes.remember(prompt, at)
        self.seats[at].load += 1
        return self.seats[at]

    @property
    def idle(self) -> bool:
        return not any(seat.load for seat in self.seats)

    def check(self) -> None:
        """Raises EngineFailure if no server will ever answer."""
        if self._closed:
            raise EngineFailure("the engine does not answer: it was closed")
        if all(seat.lost for seat in self.seats):
            raise EngineFailure(f"the engine does not answer: {'; '.join(seat.lost for seat in self.seats)}")

    async def give(self, weights: Weights) -> None:
        """Pushes to every server that is up, and returns when at least one of them holds the weights.

        Raises:
          EngineFailure: none will, or one computes something else than the learner.
        """
        async with self._pushing:
            began = time.perf_counter()
            await self._transfer.write(weights.params, weights.version)
            self.held = weights.version
            self.history.append(weights.version)
            self._homes.clear()
            up = [s for s in self.seats if s.recovery is None and not s.lost]
            for seat in up:
                seat.version = None
            await _all(self._push(seat) for seat in up)
            self.pushes += 1
            self.last_push_s = time.perf_counter() - began
        while not any(s.version == self.held for s in self.seats):  # somebody must come back
            self.check()
            await asyncio.wait([s.recovery for s in self.seats if s.recovery is not None])

    async def examine(self, seat: Seat) -> bool:
        """After a failure: True if the server lives and holds the right weights; else it is brought back."""
        if seat.version is None:
            return False
        if seat.examination is None or seat.examination.done():  # one look answers all that failed together
            seat.examination = asyncio.create_task(self._look(seat))
        examination = seat.examination
        await asyncio.wait([examination])
        return not examination.cancelled() and examination.result()

    def recover(self, seat: Seat, *, restart: bool) -> None:
        """Takes a server out of use and brings it back in the background."""
        seat.version = None
        self._homes.forget(self.seats.index(seat))
        if seat.recovery is None and not self._closed:
            self.outages += 1
            seat.recovery = asyncio.create_task(self._bring_back(seat, restart))

    def end(self) -> list[asyncio.Task]:
        """Nothing is begun from now on. Returns what is under way, cancelled."""
        self._closed = True
        tasks = [t for s in self.seats for t in (s.recovery, s.examination) if t is not None]
        for task in tasks:
            task.cancel()
        return tasks

    async def close(self) -> None:
        """Ends what was started. After `end`."""
        for client in [*self._retired, *(seat.client for seat in self.seats)]:
            if client is not None:
                await client.close()
        await asyncio.gather(*(seat.host.stop() for seat in self.seats), return_exceptions=True)
        self._transfer.close()

    async def _open(self, seat: Seat) -> None:
        """Starts a server and compares it with what the learner expects."""
        seat.version = None
        if seat.client is not None:
            self._retired.append(seat.client)
            seat.client = None
        for client in [c for c in self._retired if not c.busy]:
            self._retired.remove(client)
            await client.close()
        try:
            seat.url = await seat.host.start()
            seat.client = VllmClient(
                seat.url, timeout_s=self._timeout_s, control_timeout_s=self._push_timeout_s,
                connections=self._slots + PROBES,
            )  # fmt: skip
            info = await seat.client.info()
        except ServerError as error:
            raise EngineFailure(f"a vLLM server did not start: {error}") from error
        # On a CPU, vLLM 0.32 dies of a request with a seed of its own that is frozen and goes on.
        seat.in_flight = "abort" if info.device == "cpu" else self._in_flight
        if wrong := differences(self._expected, info):
            raise EngineRefused(f"{seat.url} is not what the learner expects: {'; '.join(wrong)}")

    async def _push(self, seat: Seat) -> None:
        assert seat.client is not None
        try:
            await self._transfer.push(seat.client, seat.in_flight)
        except ServerError:
            self.recover(seat, restart=True)
        except Exception as wrong:  # it computes something else, or a defect: nothing that it says may be used
            seat.lost = str(wrong) if isinstance(wrong, EngineFailure) else repr(wrong)
            raise
        else:
            if seat.recovery is None:  # else it is on its way out, and was when the push ended
                seat.version = self.held

    async def _look(self, seat: Seat) -> bool:
        async with self._pushing:
            if seat.version is None or (client := seat.client) is None:
                return False
            version: int | None = None
            well = await client.healthy()
            if well:
                with contextlib.suppress(ServerError):
                    version = await client.weight_info()
            if seat.version is None:  # somebody else has begun to bring it back
                return False
            if version == self.held:
                return True
            self.recover(seat, restart=not well)
            return False

    async def _bring_back(self, seat: Seat, restart: bool) -> None:
        why = ""
        for start in range(STARTS):
            try:
                if restart or start:
                    await asyncio.sleep(PAUSE_S * start)
                    await self._open(seat)
                assert seat.client is not None
                async with self._pushing:
                    await self._transfer.push(seat.client, seat.in_flight)
                    seat.version, seat.hangs, seat.recovery = self.held, 0, None
                self.restarts += 1
                break
            except EngineRefused as error:
                why = str(error)
                break
            except (ServerError, EngineFailure, OSError) as error:
                why = str(error)
            except Exception as defect:  # nobody awaits this task, and requests wait for what becomes of the server
                why = repr(defect)
                break
        else:
            why = f"given up after {STARTS} starts: {why}"
        seat.recovery, seat.lost = None, "" if seat.version is not None else why
        self._changed()


def differences(expected: Mapping[str, object], info: ServerInfo) -> list[str]:
    """What a server says of itself and the learner expects otherwise, with both values."""
    said = dataclasses.asdict(info)
    return [f"{name} is {said[name]!r}, not {wanted!r}" for name, wanted in expected.items() if said[name] != wanted]


async def _all(jobs: Iterable[Awaitable[None]]) -> None:
    """Runs all, then raises the first failure."""
    done = await asyncio.gather(*jobs, return_exceptions=True)
    for error in done:
        if isinstance(error, BaseException):
            raise error
