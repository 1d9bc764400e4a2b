"""Keeps runs that compute from slowing down those beside them.

A script asks agents and should hardly compute; programs of tools do, and their CPU limit says for how long. Whatever
computes without a pause is first lowered in priority. A script that goes on is suspended while the other runs keep the
cores busy, but for short turns: a process that computes costs those beside it some of their speed at any priority.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable

LINUX = sys.platform == "linux"
NICE, NICE_COMPUTING = 10, 19  # of a run, and of one that computes: the host comes first, then what is soon done
LOWER_S, SUSPEND_S = 0.005, 0.01  # CPU seconds without a pause until either; a script starts in 0.003
CROWDED = 0.25 * (os.cpu_count() or 1)  # cores that other runs use, from which on scripts that compute are suspended
SUSPENDED_S, TURN_S = 0.5, 0.01  # a suspended script goes on so often in any case, for so long
PROCESS_CLOCK = 2  # of all threads, by the scheduler (clock of another process: man 2 clock_gettime)


class Throttle:
    """The CPU use of one run, and what follows from it.

    Attributes:
      cpu_s: CPU seconds of all its threads, at the last look. load: cores that it used between the last two.
      suspended_s: how long it has been suspended in all.
      computing: whether it has computed without a pause for so long that it may be suspended.
    """

    def __init__(self, pid: int, script: bool, now: float):
        self.pid, self.script, self.clock = pid, script, (~pid << 3) | PROCESS_CLOCK
        self.cpu_s, self.load, self.looked = 0.0, 1.0, now
        self.computing, self.lowered, self.suspended_s = False, False, 0.0
        self._suspended_at, self._resumed_at = 0.0, 0.0
        self._streak = (now, 0.0, 0.0)  # when it began; CPU seconds and waiting seconds then

    def look(self, now: float) -> None:
        """Takes note of what it has used, lowers its priority if it computes."""
        try:
            cpu_s = time.clock_gettime(self.clock)
        except OSError:
            cpu_s = 0.0  # no such clock here, or the process is gone
        self.load = (cpu_s - self.cpu_s) / max(now - self.looked, 1e-6)
        self.cpu_s, self.looked = cpu_s, now
        if self._suspended_at:
            return
        if self.load == 0.0:
            self.computing, self._streak = False, (now, cpu_s, self._streak[2])
        elif not self.computing and cpu_s - self._streak[1] > (SUSPEND_S if self.lowered else LOWER_S):
            self._judge(now)

    def _judge(self, now: float) -> None:
        """Has it been on a core, or waiting for one, nearly all the time since the streak began?"""
        waited_s = self.waited()
        began, cpu_then, waited_then = self._streak
        if self.cpu_s - cpu_then + waited_s - waited_then < 0.8 * (now - began):
            self._streak = (now, self.cpu_s, waited_s)
        elif not self.lowered:
            self.lowered = True
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PGRP, self.pid, NICE_COMPUTING)  # all its threads
        elif self.script:
            self.computing = True
            with contextlib.suppress(OSError):
                for thread in os.listdir(f"/proc/{self.pid}/task"):
                    os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))

    def waited(self) -> float:
        """Seconds that its threads have waited for a core; 0 where the kernel does not count."""
        waited = 0
        with contextlib.suppress(OSError, IndexError):
            for thread in os.listdir(f"/proc/{self.pid}/task")[:64]:
                with open(f"/proc/{self.pid}/task/{thread}/schedstat", "rb") as file:
                    waited += int(file.read().split()[1])
        return waited / 1e9

    def suspend_or_resume(self, crowded: bool, now: float) -> None:
        """Suspends a script that computes while others are at work; resumes it when they are not, or for a turn."""
        if self._suspended_at:
            if not crowded or now - self._suspended_at > SUSPENDED_S:
                self.suspended_s += now - self._suspended_at
                self._suspended_at, self._resumed_at = 0.0, now
                self._signal(signal.SIGCONT)
        elif crowded and self.computing and now - self._resumed_at > TURN_S:
            self._suspended_at = now
            self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.pid, number)


def take_turns(runs: Iterable[Throttle], now: float) -> None:
    """Suspends scripts that compute while the other runs keep the cores busy, and resumes them."""
    runs = list(runs)
    if computing := [run for run in runs if run.computing]:
        crowded = sum(run.load for run in runs if not run.computing) > CROWDED
        for run in computing:
            run.suspend_or_resume(crowded, now)
