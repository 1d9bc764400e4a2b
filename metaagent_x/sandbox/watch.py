"""What the zygote watches of a running child, where the kernel has no limit to set: clock, threads, files."""

from __future__ import annotations

import math
import socket
import time

from metaagent_x.sandbox.folders import is_full
from metaagent_x.sandbox.throttle import LINUX, Throttle

MAX_STARVED = 20.0  # time without a core does not count against the wall limit, up to so many times the limit
LOOK_S, LOOK_BUSY_S, LOOK_IDLE_S = 0.005, 0.05, 0.4  # between looks: at first, when it computes, when it does nothing
COUNT_S, COUNT_CPU_S = 0.1, 0.01  # between counts of threads and files: seconds, and CPU seconds: less is no flood
MAX_THREADS = 600
MAX_FILES, MAX_FOLDER_BYTES = 1000, 64 << 20
MAX_WRITTEN_BYTES = 256 << 20  # ever: a file can be removed and still be there, held open or mapped
MAX_REMOVED = 64  # files that are removed and still mapped: they may have been written through memory
THREADS = 17  # field of /proc/PID/stat after the name (man 5 proc)


class Run:
    """One child.

    Attributes:
      pid, folder: its own. report: the socket on which the host waits. killed: why, once it was.
      throttle: what keeps it from slowing down others.
      due: when to `look` again, in seconds of `time.monotonic`.
    """

    def __init__(self, pid: int, folder: str, report: socket.socket, wall_s: float, script: bool = False):
        self.pid, self.folder, self.report, self.killed = pid, folder, report, ""
        self.wall_s, self.start = wall_s, time.monotonic()
        self.throttle = Throttle(pid, script, self.start)
        self.deadline, self.next_look, self.pause = self.start + wall_s, self.start + LOOK_S, LOOK_S
        if wall_s == math.inf:  # a nest, which watches its own runs
            self.next_look = math.inf
        self.counted = (self.start, 0.0)  # when threads and files were counted, and its CPU seconds then

    @property
    def due(self) -> float:
        return min(self.deadline, self.next_look)

    def look(self, now: float) -> str:
        """The limit that it has reached, as a status word, or ""."""
        throttle = self.throttle
        if now >= self.deadline:
            starved_s = min(throttle.waited(), MAX_STARVED * self.wall_s) + throttle.suspended_s
            self.deadline = self.start + self.wall_s + starved_s
            if now >= self.deadline:
                return "wall"
        throttle.look(now)
        idle = throttle.load == 0.0
        self.pause = min(2 * self.pause, LOOK_IDLE_S) if idle else LOOK_BUSY_S if throttle.computing else LOOK_S
        self.next_look = now + self.pause
        counted_at, cpu_then = self.counted
        if now - counted_at < COUNT_S or (throttle.cpu_s - cpu_then < COUNT_CPU_S and LINUX):
            return ""
        self.counted = (now, throttle.cpu_s)
        return self._count()

    def _count(self) -> str:
        try:
            # As bytes: the name of the process in it is the program's choice.
            threads = int(self._read("stat").rpartition(b")")[2].split()[THREADS])
            written = int(self._read("io").partition(b"wchar:")[2].split()[0])
            removed = self._read("maps").count(b" (deleted)\n")
        except (OSError, IndexError):  # it has ended, or there is no /proc
            threads = written = removed = 0
        if threads > MAX_THREADS:
            return "threads"
        flooded = written > MAX_WRITTEN_BYTES or removed > MAX_REMOVED
        return "output" if flooded or is_full(self.folder, MAX_FILES, MAX_FOLDER_BYTES) else ""

    def _read(self, name: str) -> bytes:
        with open(f"/proc/{self.pid}/{name}", "rb") as file:
            return file.read()
