"""What the zygote watches of a running child, where the kernel has no limit to set: clock, threads, files, manners."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time

from metaagent_x.sandbox.folders import is_full

LINUX = sys.platform == "linux"
NICE, NICE_BUSY = 10, 19  # of a run, and of one that computes for long: the host comes first, then what is soon done
BUSY_S = 0.005  # CPU seconds without a pause after which a run computes for long; starting a script takes 0.003
LOOK_S, LOOK_BUSY_S, LOOK_IDLE_S = 0.005, 0.05, 0.4  # between looks: at first, at a busy run, at one that does nothing
COUNT_S = 0.01  # CPU seconds between two counts of threads and files: what takes a run less is no flood
MAX_THREADS = 600
MAX_FILES, MAX_FOLDER_BYTES = 1000, 64 << 20
MAX_WRITTEN_BYTES = 256 << 20  # ever: a file can be removed and still be there, held open or mapped
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
        self.cpu_s, self.counted_s, self.busy = 0.0, 0.0, False
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
        idle = cpu_s == self.cpu_s
        self.pause = min(2 * self.pause, LOOK_IDLE_S) if idle else LOOK_BUSY_S if self.busy else LOOK_S
        self.next_look, self.cpu_s = now + self.pause, cpu_s
        if not self.busy and cpu_s - self.since[1] > BUSY_S:
            self._judge_manners(now, cpu_s)
        if cpu_s - self.counted_s > COUNT_S or not LINUX:
            self.counted_s = cpu_s
            return self._count()
        return ""

    def _judge_manners(self, now: float, cpu_s: float) -> None:
        """Has it been on a core, or waiting for one, nearly all the time since the last pause? Then it gives way.

        A program runs after all others; a script only while nobody else wants the core, and is put off it at once. The
        latter is what keeps the others quick: at any niceness a busy process is left on its core for some milliseconds
        before one that was woken gets it.
        """
        waited_s = self._waited()
        began, cpu_then, waited_then = self.since
        self.since = (now, cpu_s, waited_s)
        if cpu_s - cpu_then + waited_s - waited_then < 0.8 * (now - began):
            return
        self.busy = True
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PGRP, self.pid, NICE_BUSY)  # all its threads
        if self.session and LINUX:
            with contextlib.suppress(OSError):
                for thread in os.listdir(f"/proc/{self.pid}/task"):
                    os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))

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
