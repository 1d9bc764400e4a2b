"""A thread that says how a run is doing, and where everything waits when it does not get on."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from metaagent_x.config import PHASES, Settings

BETWEEN = "between"  # no phase: starting servers, writing files
GRACE_S = 120.0  # for a run that is told to end because it is stuck; then its process does
SHOWN = 8  # names of tasks or threads that wait alike


@dataclasses.dataclass
class _Phase:
    name: str
    since: float
    told: bool = False


class Watchdog:
    """Use as a context manager around a run; its thread lives as long as that.

    - `heartbeat.json` in the folder of the run is replaced every few seconds: pid, host, step, phase, seconds in it
      (`phase_s`), `resident_gb`, time. It stands still if the process is gone, or held up inside a library that does
      not let other threads run.
    - A phase that lasts longer than its limit is told once: a line for a person, and in `stuck.txt` where every asyncio
      task and every thread waits. Nothing is ended by it unless `stuck="exit"`.

    Attributes:
      step: of the run, for its reports. counters: called for figures to put into `stuck.txt`.
      ended: why the run was ended from here; "" if it was not.
    """

    def __init__(
        self, folder: Path, limits_s: Mapping[str, float], *, every_s: float = 5.0,
        stuck: Literal["report", "exit"] = "report", say: Callable[[str], Any] = print,
    ) -> None:  # fmt: skip
        """
        Args:
          folder: where the files go. limits_s: phase -> seconds, 0 for no limit.
          every_s: seconds between two looks.
          stuck: "exit" also cancels the task of `watch`, which closes what it opened as it does for a signal; where it
            has not done so after GRACE_S, or the code that hangs does not await, the process ends with code 1.
          say: tells a person.
        """
        self.step, self.ended = 0, ""
        self.counters: Callable[[], Mapping[str, Any]] = dict
        self._folder, self._limits, self._every, self._exit, self._say = folder, limits_s, every_s, stuck == "exit", say
        self._seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self._phase = _Phase(BETWEEN, time.monotonic())
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task | None = None
        self._over = threading.Event()
        self._stuck: _Phase | None = None
        self._leave = 0.0  # when the process ends, on the clock of `time.monotonic`; 0: it does not
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    @classmethod
    def of(cls, guard: Settings, folder: Path, say: Callable[[str], Any]) -> Watchdog:
        """With the limits, the pace and the action of the group `guard`."""
        limits = {name: guard[f"{name}_s"] for name in PHASES}
        return cls(folder, limits, every_s=guard.heartbeat_s, stuck=guard.stuck, say=say)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._phase = _Phase("ended", time.monotonic())
        self._beat()

    def watch(self) -> None:
        """Shows the tasks of this event loop from now on, and ends the current one if it must. Call in a coroutine."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The block is this phase of the run, one of `config.PHASES`. Raises KeyError for another name."""
        outer, began = self._phase, time.monotonic()
        self._seconds[name] += 0.0
        self._phase = _Phase(name, began)
        try:
            yield
        finally:
            self._seconds[name] += time.monotonic() - began
            self._phase = _Phase(BETWEEN, time.monotonic()) if outer.name == BETWEEN else outer

    def metrics(self) -> dict[str, float]:
        """`time/<phase>`: seconds in each phase that ended since the last call; `time/resident_gb`, where known."""
        out = {f"time/{name}": seconds for name, seconds in self._seconds.items()}
        self._seconds = dict.fromkeys(PHASES, 0.0)
        memory = resident_gb()
        return out if memory is None else out | {"time/resident_gb": memory}

    def _watch(self) -> None:
        self._beat()
        while not self._over.wait(self._every):
            self._beat()
            phase = self._phase
            seconds, limit = time.monotonic() - phase.since, self._limits.get(phase.name, 0.0)
            if limit and seconds > limit and not phase.told:
                phase.told = True
                self._tell(phase, seconds, limit)
            if self._leave and time.monotonic() > self._leave and (self.ended or self._phase is self._stuck):
                self._say(f"watchdog: it has not ended after {GRACE_S:g} s; leaving at once")
                os._exit(1)

    def _beat(self) -> None:
        phase = self._phase
        now = {
            "pid": os.getpid(), "host": socket.gethostname(), "step": self.step, "phase": phase.name,
            "phase_s": round(time.monotonic() - phase.since, 1), "resident_gb": resident_gb(),
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        with contextlib.suppress(OSError):  # a full disk is for the run to report, at its next line of metrics
            _replace(self._folder / "heartbeat.json", json.dumps(now) + "\n")

    def _tell(self, phase: _Phase, seconds: float, limit: float) -> None:
        name = phase.name
        what = f"step {self.step}: {name} has taken {seconds:.0f} s, more than guard.{name}_s={limit:g}"
        path = self._folder / "stuck.txt"
        head = f"{datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')} pid {os.getpid()}\n{what}\n"
        try:
            figures = "".join(f"{key}: {value}\n" for key, value in self.counters().items())
            _replace(path, f"{head}{figures}\n{where_all_wait(self._loop)}")
            place = f"where everything waits is in {path}"
        except Exception as error:  # whatever happens here, the run goes on
            place = f"where everything waits could not be written to {path}: {error!r}"
        self._say(f"watchdog: {what}; {place}")
        if self._exit and self._loop is not None and self._task is not None:
            why = f"{what} (guard.stuck='exit'); {place}; the same command goes on from the last checkpoint"
            self._stuck, self._leave = phase, time.monotonic() + GRACE_S
            with contextlib.suppress(RuntimeError):  # the loop has just been closed: the run ends anyway
                self._loop.call_soon_threadsafe(self._end, phase, why)

    def _end(self, phase: _Phase, why: str) -> None:
        """Runs in the event loop. A phase that has come to its end after all is no reason any more."""
        if self._phase is phase and self._task is not None:
            self.ended = why
            self._task.cancel()
        else:
            self._leave = 0.0


def resident_gb() -> float | None:
    """Memory that this process holds, in GB (1e9 bytes); None on a system without /proc."""
    try:
        with open("/proc/self/statm") as file:
            return round(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e9, 3)
    except OSError:
        return None


def where_all_wait(loop: asyncio.AbstractEventLoop | None) -> str:
    """The stacks of all tasks of a loop and of all threads but this one, outermost call first, as "file:line function".

    May be called from any thread. Those that wait at the same place are shown once, with their number.
    """
    tasks: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for task in asyncio.all_tasks(loop) if loop is not None else ():
        tasks[_task_stack(task)].append(task.get_name())
    threads: dict[tuple[str, ...], list[str]] = defaultdict(list)
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if thread.ident in frames and thread is not threading.current_thread():
            stack = traceback.extract_stack(frames[thread.ident])
            threads[tuple(f"{s.filename}:{s.lineno} {s.name}" for s in stack)].append(thread.name)
    out = []
    for what, groups in (("asyncio task", tasks), ("thread", threads)):
        for stack, names in sorted(groups.items(), key=lambda item: -len(item[1])):
            more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            title = f"{len(names)} {what}{'s' if len(names) > 1 else ''} ({', '.join(sorted(names)[:SHOWN])}{more})"
            out.append("\n".join([f"{title}:", *(f"  {line}" for line in stack)]))
    return "\n\n".join(out) + "\n"


def _task_stack(task: asyncio.Task) -> tuple[str, ...]:
    """`Task.get_stack` shows one frame of a task that waits; here, all that await one another below it."""
    out, at = [], task.get_coro()
    while at is not None:
        frame = next((f for kind in ("cr", "gi", "ag") if (f := getattr(at, f"{kind}_frame", None))), None)
        if frame is None:
            break
        out.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
        below = ("cr_await", "gi_yieldfrom", "ag_await")
        at = next((b for name in below if (b := getattr(at, name, None)) is not None), None)
    return tuple(out)


def _replace(path: Path, text: str) -> None:
    """Beside the file first, so that a reader never meets half of it."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text)
    os.replace(draft, path)
