"""What the zygote watches of a running child, where the kernel has no limit to set: clock, threads, files, manners."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Collection

from metaagent_x.sandbox.folders import is_full

LINUX = sys.platform == "linux"
NICE, NICE_BUSY = 10, 19  # of a run, and of one that computes for long: the host comes first, then what is soon done
# CPU seconds without a pause after which a run gives way, and a script is held back too; a script starts in 0.003.
BUSY_S = (0.005, 0.01)
QUIET_S = 0.1  # without activity of other runs, until scripts that are held back go on
HELD_S, TURN_S = 0.5, 0.01  # they have a turn so often in any case, so long
LOOK_S, LOOK_BUSY_S, LOOK_IDLE_S = 0.005, 0.05, 0.4  # between looks: at first, at a busy run, at one that does nothing
COUNT_S = 0.01  # CPU seconds between two counts of threads and files: what takes a run less is no flood
MAX_THREADS = 600
MAX_FILES, MAX_FOLDER_BYTES = 1000, 64 << 20
MAX_WRITTEN_BYTES = 256 << 20  # ever: a file can be removed and still be there, held open or mapped
MAX_REMOVED = 64  # files that are removed and still mapped: they may have been written through memory
MAX_STARVED = 4.0  # time without a core does not count against the wall limit, up to so many times the limit
PROCESS_CLOCK = 2  # of all threads, by the scheduler (clockid of another process: man 2 clock_gettime)
THREADS = 17  # field of /proc/PID/stat after the name (man 5 proc)


class Run:
    """One child.

    Attributes:
      pid, folder: its own. report: the socket on which the host waits. killed: why, once it was.
      session: True for a script, which should not compute but ask.
      due: when to `look` again, in seconds of `time.monotonic`.
    """

    def __init__(self, pid: int, folder: str, report: socket.socket, wall_s: float, session: bool):
        self.pid, self.folder, self.report, self.session, self.killed = pid, folder, report, session, ""
        self.wall_s, self.start = wall_s, time.monotonic()
        self.deadline, self.next_look, self.pause = self.start + wall_s, self.start + LOOK_S, LOOK_S
        self.clock = (~pid << 3) | PROCESS_CLOCK
        self.cpu_s, self.counted_s, self.gave_way = 0.0, 0.0, 0
        self.active_at, self.held_at, self.went_on_at = self.start, 0.0, 0.0
        self.since = (self.start, 0.0, 0.0)  # time, CPU seconds, seconds of waiting for a core: where a streak began

    @property
    def due(self) -> float:
        return min(self.deadline, self.next_look)

    def look(self, now: float) -> str:
        """The limit that it has reached, as a status word, or "". Makes a busy run give way."""
        if now >= self.deadline:
            self.deadline = self.start + self.wall_s + min(self._waited(), MAX_STARVED * self.wall_s)
            if now >= self.deadline:
                return "wall"
        cpu_s = self._cpu()
        if cpu_s == self.cpu_s:
            self.pause = min(2 * self.pause, LOOK_IDLE_S)
        else:
            self.active_at, self.pause = now, LOOK_BUSY_S if self.gave_way == len(BUSY_S) else LOOK_S
        self.next_look, self.cpu_s = now + self.pause, cpu_s
        if self.gave_way < len(BUSY_S) and cpu_s - self.since[1] > BUSY_S[self.gave_way]:
            self._judge_manners(now, cpu_s)
        if cpu_s - self.counted_s > COUNT_S or not LINUX:
            self.counted_s = cpu_s
            return self._count()
        return ""

    def _judge_manners(self, now: float, cpu_s: float) -> None:
        """Has it been on a core, or waiting for one, nearly all the time since the last pause? Then it gives way.

        At first it runs after all others. A script then gets a core only while nobody else wants it, and is held back
        while others are at work (`take_turns`): any process that computes costs those beside it some of their speed.
        """
        waited_s = self._waited()
        began, cpu_then, waited_then = self.since
        if cpu_s - cpu_then + waited_s - waited_then < 0.8 * (now - began):
            self.since = (now, cpu_s, waited_s)
            return
        self.gave_way += 1
        with contextlib.suppress(OSError):
            if self.gave_way == 1:
                os.setpriority(os.PRIO_PGRP, self.pid, NICE_BUSY)  # all its threads
            elif self.session and LINUX:
                for thread in os.listdir(f"/proc/{self.pid}/task"):
                    os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))

    @property
    def computes(self) -> bool:
        """True for a script that has computed so long that it is held back for others."""
        return self.session and self.gave_way == len(BUSY_S)

    def hold_back(self, crowded: bool, now: float) -> None:
        """Stops it while others are at work, but for a short turn now and then."""
        if crowded and not self.held_at and now - self.went_on_at > TURN_S:
            self.held_at = now
            self._signal(signal.SIGSTOP)
        elif self.held_at and (not crowded or now - self.held_at > HELD_S):
            self.held_at, self.went_on_at = 0.0, now
            self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.pid, number)

    def _count(self) -> str:
        with contextlib.suppress(OSError):
            # As bytes: the name of the process in it is the program's choice.
            if int(self._read("stat").rpartition(b")")[2].split()[THREADS]) > MAX_THREADS:
                return "threads"
        if is_full(self.folder, MAX_FILES, MAX_FOLDER_BYTES):
            return "output"
        with contextlib.suppress(OSError):
            written = next(line for line in self._read("io").splitlines() if line.startswith(b"wchar"))
            if int(written.split()[1]) > MAX_WRITTEN_BYTES:
                return "output"
            if self._read("maps").count(b" (deleted)\n") > MAX_REMOVED:
                return "output"
        return ""

    def _cpu(self) -> float:
        """CPU seconds of all its threads; 0 where the system has no such clock, or the process is gone."""
        try:
            return time.clock_gettime(self.clock)
        except OSError:
            return 0.0

    def _waited(self) -> float:
        """Seconds that its threads have waited for a core; 0 where the kernel does not count."""
        waited = 0
        with contextlib.suppress(OSError, IndexError):
            for thread in os.listdir(f"/proc/{self.pid}/task")[:64]:
                waited += int(self._read(f"task/{thread}/schedstat").split()[1])
        return waited / 1e9

    def _read(self, name: str) -> bytes:
        with open(f"/proc/{self.pid}/{name}", "rb") as file:
            return file.read()


def take_turns(runs: Collection[Run], now: float) -> None:
    """Holds back the scripts that compute while other runs are at work."""
    if computing := [run for run in runs if run.computes and not run.killed]:
        crowded = any(now - run.active_at < QUIET_S for run in runs if not run.computes)
        for run in computing:
            run.hold_back(crowded, now)
