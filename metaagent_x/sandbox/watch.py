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
BUSY_S = 0.02  # CPU seconds of a run that computes for long; a script that only asks agents needs a fifth
FIRST_LOOK_S, LOOK_S, LOOK_IDLE_S = 0.02, 0.05, 0.4  # seconds between two looks at a run; at one that does little
MAX_THREADS = 600
MAX_FILES, MAX_FOLDER_BYTES = 1000, 64 << 20
MAX_WRITTEN_BYTES = 256 << 20  # ever: a file can be removed and still be there, held open or mapped
MAX_STARVED = 4.0  # time without a core does not count against the wall limit, up to so many times the limit
TICKS = os.sysconf("SC_CLK_TCK")
THREADS, USER_TICKS, SYSTEM_TICKS = 17, 11, 12  # fields of /proc/PID/stat after the name (man 5 proc)


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
        self.deadline = self.start + wall_s
        self.cpu_s, self.busy, self.pause, self.next_look = 0.0, False, FIRST_LOOK_S, self.start + FIRST_LOOK_S

    @property
    def due(self) -> float:
        return min(self.deadline, self.next_look)

    def look(self, now: float) -> str:
        """The limit that it has reached, as a status word, or "". Makes a busy run give way."""
        if now >= self.deadline and not self._starved(now):
            return "wall"
        if now < self.next_look:
            return ""
        cpu_s, threads = self._usage()
        idle = cpu_s == self.cpu_s and LINUX
        self.cpu_s, self.pause = cpu_s, min(2 * self.pause, LOOK_IDLE_S) if idle else LOOK_S
        self.next_look = now + self.pause
        if idle:
            return ""
        if threads > MAX_THREADS:
            return "threads"
        if is_full(self.folder, MAX_FILES, MAX_FOLDER_BYTES) or self._written() > MAX_WRITTEN_BYTES:
            return "output"
        if cpu_s >= BUSY_S and not self.busy:
            self.busy = True
            self._give_way()
        return ""

    def _give_way(self) -> None:
        """A program runs after all others; a script only while nobody else wants the core, and is put off it at once.

        The latter is what keeps the others quick: at any niceness a busy process is left on its core for some
        milliseconds before one that was woken gets it.
        """
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PGRP, self.pid, NICE_BUSY)  # all its threads
        if self.session and LINUX:
            with contextlib.suppress(OSError):
                for thread in os.listdir(f"/proc/{self.pid}/task"):
                    os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))

    def _starved(self, now: float) -> bool:
        """True if it has waited for a core so long that its wall limit is not reached yet; moves the deadline."""
        try:
            waited_s = int(self._read("schedstat").split()[1]) / 1e9
        except (OSError, IndexError):
            return False
        self.deadline = self.start + self.wall_s + min(waited_s, MAX_STARVED * self.wall_s)
        return now < self.deadline

    def _usage(self) -> tuple[float, int]:
        """CPU seconds and number of threads; zeros where there is no /proc, or no process any more."""
        try:
            fields = self._read("stat").rpartition(b")")[2].split()
        except OSError:
            return 0.0, 0
        return (int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS])) / TICKS, int(fields[THREADS])

    def _written(self) -> int:
        """Bytes that it has ever written."""
        try:
            return next(int(line.split()[1]) for line in self._read("io").splitlines() if line.startswith(b"wchar"))
        except OSError:
            return 0

    def _read(self, name: str) -> bytes:
        """A file of /proc, as bytes: the name of the process in it is the program's choice."""
        with open(f"/proc/{self.pid}/{name}", "rb") as file:
            return file.read()
