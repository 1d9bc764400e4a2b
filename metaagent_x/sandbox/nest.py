"""The nest: a process for one program, which forks a fresh contained child for each input.

The zygote forks a nest; what all runs of the program have in common is done there once: its limits but for time, its
Landlock rules, the larger part of its seccomp filter, its compilation. The nest runs nothing of the program. A child
puts the rest over itself before it does: its CPU limit, Landlock, the narrower filter. Memory, files and processes of
one run are gone before the next begins, and a child holds no descriptor but the three of its run.

The host keeps three files for standard input, output and error, and rewrites them between runs. It asks for a run with
one message on the line: "-", or those of "i" and "o", input and output, for which descriptors are sent along instead of
its files. The answer is what a report of the zygote holds, in words: exit code, CPU seconds, why it was killed.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import functools
import gc
import importlib
import math
import os
import resource
import select
import signal
import socket
import time
import types
from collections.abc import Callable, Collection

from metaagent_x.sandbox import folders, program
from metaagent_x.sandbox.containment import Containment
from metaagent_x.sandbox.throttle import LINUX
from metaagent_x.sandbox.watch import Run

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LOOK_MS = 5  # until a run is watched
POLL_MS = 1  # between looks for the end of a run, where it cannot be waited for
READABLE = select.POLLIN
MAX_SENT = 64  # bytes of a message about two descriptors

# Gets the program as source, and as code if it could be compiled.
Driver = Callable[[str, types.CodeType | str], object]


class Nest:
    """Made in the process that the zygote has forked and put apart, with its limits on."""

    def __init__(
        self, job: dict, containment: Containment | None, fds: list[int], modules: Collection[str],
        driver: Driver | None, libc: ctypes.CDLL,
    ):  # fmt: skip
        """
        Args:
          job: the host's. fds: the host's line; the program, stdin, stdout, stderr; the rulesets of `prepare_files`.
          modules: those of the standard library that may be imported here if the program names them.
          driver: what runs the program, in place of the interpreter. libc: the C library.
        """
        self.modules, self.driver = frozenset(modules), driver
        line, code, *files = fds[:5]
        self.job, self.containment, self.rulesets = job, containment, fds[5:]
        self.line = socket.socket(fileno=line)
        self.pid, self.libc, self.cpu_s = os.getpid(), libc, math.ceil(job["cpu_s"])
        if LINUX:
            self.libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.source = program.read(code)
        self.program: types.CodeType | str = self.source
        for target, fd in enumerate(files):
            os.dup2(fd, target)
        program.prepare(self.source)

    def serve(self) -> int:
        """Compiles the program, then runs it as often as the host asks, until the host closes its end."""
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (self.cpu_s, hard))  # it may be long to compile
        self.program, names = program.compiled(self.source)
        for name in self.modules.intersection(names):
            importlib.import_module(name)
        gc.freeze()
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))
        while True:
            message, sent, _, _ = self.line.recvmsg(64, MAX_SENT)
            if not message:
                return 0
            given = array.array("i", sent[0][2]).tolist() if sent else []
            report = self._run(dict(zip(message.decode(), given, strict=True)) if given else {})
            for fd in given:
                os.close(fd)
            self.line.send(report.encode())

    def _run(self, given: dict[str, int]) -> str:
        """One run; `given`: descriptors instead of standard input ("i") and output ("o").

        Until the child has ended every page that this process writes to is copied: so little is done until then.
        """
        pid = os.fork()
        if pid == 0:
            self._child(given)
        try:
            end = os.pidfd_open(pid)
        except (AttributeError, OSError):  # a system without
            end = -1
        ended = select.poll()
        if end >= 0:
            ended.register(end, READABLE)
        killed = "" if ended.poll(LOOK_MS if end >= 0 else POLL_MS) else self._watch(pid, ended, end)
        if self.containment is None:
            self._kill(pid)  # its group, while the pid cannot be given to anyone else
        _, status, usage = os.wait4(pid, 0)
        if end >= 0:
            os.close(end)
        if self.containment is None:
            self._hunt()
        folders.clear(self.job["folder"])
        return f"{os.waitstatus_to_exitcode(status)} {usage.ru_utime + usage.ru_stime} {killed}"

    def _watch(self, pid: int, ended: select.poll, end: int) -> str:
        """Watches a child that is not soon done until it has ended. Returns why it was killed, or ""."""
        run = Run(pid, self.job["folder"], self.line, self.job["wall_s"])
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            until_due = max(0, math.ceil((run.due - time.monotonic()) * 1000))
            ended.poll(until_due if end >= 0 else min(until_due, POLL_MS))
            now = time.monotonic()
            if not run.killed and now >= run.due and (reason := run.look(now)):
                run.killed = reason
                self._kill(pid)
        return run.killed

    def _child(self, given: dict[str, int]) -> None:
        """Everything after the fork; never returns."""
        code = 70
        try:
            os.setpgid(0, 0)
            if LINUX:
                self.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != self.pid:
                return
            for name, fd in given.items():
                os.dup2(fd, "io".index(name))
            resource.setrlimit(resource.RLIMIT_CPU, (self.cpu_s, self.cpu_s + 1))
            if self.containment is not None:
                self.containment.leave_nest(self.rulesets)
            os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
            self.line.detach()
            if self.driver is None:
                code = program.execute(self.program)
            else:
                code = program.execute(functools.partial(self.driver, self.source, self.program))
        finally:
            os._exit(code)

    def _kill(self, pid: int) -> None:
        for kill in (os.killpg, os.kill):  # the child may not have its group yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)

    def _hunt(self) -> None:
        """Kills and reaps what a run left behind in other process groups; only uncontained ones can."""
        while True:
            try:
                with open(f"/proc/self/task/{self.pid}/children") as file:
                    strays = file.read().split()
            except FileNotFoundError:  # no such list here: group kill is all there is
                return
            for pid in strays:
                self._kill(int(pid))
            try:
                os.wait()
            except ChildProcessError:
                return
