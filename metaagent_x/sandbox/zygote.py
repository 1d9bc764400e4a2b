"""The zygote: a small process that forks one contained child for every run. Started once, never imports JAX.

It owns no policy: the host sends a job (one JSON datagram plus file descriptors), the zygote forks, applies the limits
and the containment, watches the clock, kills, reaps and reports. Everything that the child can touch is decided here.

What holds for a child in every mode: own process and process group; CPU, memory, file-size, open-file and core limits;
no environment; a private folder as working directory; every inherited descriptor closed but those of the job; SIGKILL
at the wall limit; at the end its whole group is killed, and whatever it left behind is hunted down among the zygote's
adopted children (Linux subreaper). While it runs, its threads, the files in its folder and what it writes are watched
(`watch.py`). All runs come after the host, and those that compute after all others (`throttle.py`).

In mode "strict" the kernel contains it besides (`containment.py`): no network, no new process, no signal to others, no
file but Python's library and its own folder. Mode "process" does without: such a child can do what the user can.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import math
import os
import resource
import select
import signal
import socket
import sys
import time
import types

from metaagent_x.sandbox import program
from metaagent_x.sandbox.containment import EFFECTS, Containment
from metaagent_x.sandbox.folders import remove
from metaagent_x.sandbox.nest import Nest
from metaagent_x.sandbox.throttle import LINUX, NICE, take_turns
from metaagent_x.sandbox.watch import Run

# Imported before the first fork, so that no program pays for them again; in a nest, those that its program names.
PRELOAD = (
    "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "fractions", "functools", "heapq", "io",
    "itertools", "json", "math", "operator", "random", "re", "string", "threading", "typing",
)  # fmt: skip
# Where no file can be opened these are all that a program can import besides.
PRELOAD_WITHOUT_FILES = (
    "_strptime", "abc", "array", "ast", "base64", "calendar", "cmath", "contextlib", "ctypes", "enum", "graphlib",
    "hashlib", "inspect", "linecache", "numbers", "pickle", "pprint", "queue", "statistics", "struct", "textwrap",
    "time", "timeit", "traceback", "types", "unicodedata", "uuid", "warnings", "weakref", "zlib",
)  # fmt: skip
MESSAGE_BYTES = 1 << 16
OPEN_FILES = 64
SPARE_BYTES = 16 << 20  # freed when memory runs out, so that the child can still say so
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class Zygote:
    """The event loop. One thread, no state but the table of living children."""

    def __init__(
        self, control: socket.socket, folder: str, containment: Containment | None, driver: types.ModuleType | None
    ):  # fmt: skip
        self.control, self.folder, self.containment, self.driver = control, folder, containment, driver
        self.runs: dict[int, Run] = {}
        self.by_report: dict[int, Run] = {}
        self.pid, self.host = os.getpid(), os.getppid()
        self.children = f"/proc/self/task/{self.pid}/children"
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.base_bytes: int | None = None
        if LINUX:
            self.libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            with open("/proc/self/statm") as file:
                self.base_bytes = int(file.read().split()[0]) * resource.getpagesize()
        self.wake, wake_write = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.poll = select.poll()
        for fd in (control.fileno(), self.wake):
            self.poll.register(fd, select.POLLIN)

    def serve(self) -> None:
        """Runs until the host closes its end; then kills what runs and removes the folders."""
        open_for_jobs = True
        while open_for_jobs and os.getppid() == self.host:
            for fd, _ in self.poll.poll(self._timeout_ms()):
                if fd == self.control.fileno():
                    open_for_jobs = self._accept()
                elif fd == self.wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self.wake, 4096)
                elif fd in self.by_report:
                    # The host shut its side: it wants this run gone.
                    self._kill(self.by_report[fd], "host")
                    self.poll.unregister(fd)
            now = time.monotonic()
            for run in self.runs.values():
                if not run.killed and now >= run.due and (reason := run.look(now)):
                    self._kill(run, reason)
            take_turns((run.throttle for run in self.runs.values() if not run.killed), now)
            self._reap()
        for run in self.runs.values():
            self._kill(run, "host")
        self.runs.clear()
        with contextlib.suppress(ChildProcessError):
            while True:
                self._hunt()
                os.wait()
        remove(self.folder)

    def _timeout_ms(self) -> int | None:
        waiting = [run.due for run in self.runs.values() if not run.killed and run.due < math.inf]
        if not waiting:
            return None if LINUX else 1000  # to see whether the host is there
        return max(0, math.ceil((min(waiting) - time.monotonic()) * 1000))

    def _accept(self) -> bool:
        message, fds, _, _ = socket.recv_fds(self.control, MESSAGE_BYTES, 8)
        if not message:
            return False
        job = json.loads(message)
        report = socket.socket(fileno=fds.pop())
        try:
            if "entry" in job:
                module, _, name = job["entry"].partition(":")
                job["function"] = getattr(importlib.import_module(module), name)
                gc.freeze()
            pid = os.fork()
        except (OSError, ImportError, AttributeError) as problem:
            with contextlib.suppress(OSError):
                report.send(_line({"refused": f"{type(problem).__name__}: {problem}"}))
            report.close()
        else:
            if pid == 0:
                self._child(job, fds, report)
            run = Run(pid, job["folder"], report, math.inf if "nest" in job else job["wall_s"], "entry" in job)
            self.runs[pid] = self.by_report[report.fileno()] = run
            self.poll.register(report.fileno(), select.POLLIN)
        for fd in fds:
            os.close(fd)
        return True

    def _child(self, job: dict, fds: list[int], report: socket.socket) -> None:
        """Everything after the fork; never returns."""
        code = 70
        try:
            self._enter(job, fds, report.detach())
            if "nest" in job:
                driver = getattr(self.driver, job["nest"]) if job["nest"] else None
                code = Nest(job, self.containment, [3 + i for i in range(len(fds))], PRELOAD, driver, self.libc).serve()
            else:
                code = job["function"](3) if "function" in job else program.run(3)
        finally:
            os._exit(code)

    def _enter(self, job: dict, fds: list[int], report: int) -> None:
        """Makes this process the child of that job. What fails is reported: then its program has not run."""
        try:
            os.setpgid(0, 0)
            os.setpriority(os.PRIO_PROCESS, 0, NICE)
            if LINUX:
                self.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != self.pid:
                os._exit(70)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGXCPU, signal.SIGXFSZ, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.chdir(job["folder"])
            os.environ.clear()
            sys.argv = ["main.py"]
            nest = "nest" in job
            if self.containment is not None:
                if nest:
                    fds += self.containment.prepare_files(job["folder"])
                else:
                    self.containment.restrict_files(job["folder"])
            report = _arrange_fds([*fds, report])
            _set_limits(job, self.base_bytes)
            if self.containment is not None:
                (self.containment.enter_nest if nest else self.containment.restrict_calls)()
        except BaseException as problem:
            os.write(report, _line({"refused": f"{type(problem).__name__}: {problem}"}))
            raise
        os.close(report)

    def _kill(self, run: Run, why: str) -> None:
        if not run.killed:
            run.killed = why
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            # The child may not have its group yet; its pid is ours until it is reaped.
            with contextlib.suppress(ProcessLookupError):
                os.kill(run.pid, signal.SIGKILL)

    def _reap(self) -> None:
        """Ends every run whose child has died: group killed first, while the pid cannot be given to anyone else."""
        while (pid := _next_dead()) is not None:
            run = self.runs.pop(pid, None)
            if run is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(run.pid, signal.SIGKILL)
            _, status, usage = os.wait4(pid, 0)
            self._hunt()  # after a stray too: only now have its children come to us
            if run is None:
                continue
            cpu_s = usage.ru_utime + usage.ru_stime
            message = {"exit": os.waitstatus_to_exitcode(status), "killed": run.killed, "cpu_s": cpu_s}
            with contextlib.suppress(KeyError):
                self.poll.unregister(run.report.fileno())
            del self.by_report[run.report.fileno()]
            with contextlib.suppress(OSError):
                run.report.send(_line(message))
            run.report.close()

    def _hunt(self) -> None:
        """Kills adopted processes: what a run started in another session falls to us when its parent dies."""
        try:
            with open(self.children) as file:
                strays = {int(pid) for pid in file.read().split()} - self.runs.keys()
        except FileNotFoundError:  # kernel without CONFIG_PROC_CHILDREN: group kill is all there is
            return
        for pid in strays:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # reaped by the loop; its own children come to us in turn


def _line(message: dict) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _next_dead() -> int | None:
    """Pid of a child that has ended and is not reaped yet, so that nobody else has its pid."""
    try:
        info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if info is None else info.si_pid


def _arrange_fds(fds: list[int]) -> int:
    """The descriptors become 3, 4, ...; 0, 1 and 2 are the null device; everything else is closed. Returns the last."""
    os.dup2(1, 2)  # the zygote's own standard error is ours
    copies = [fcntl.fcntl(fd, fcntl.F_DUPFD, 16) for fd in fds]  # out of the way of the targets, none overwritten
    for i, fd in enumerate(copies):
        os.dup2(fd, 3 + i)
    os.closerange(3 + len(fds), os.sysconf("SC_OPEN_MAX"))
    return 2 + len(fds)


def _set_limits(job: dict, base_bytes: int | None) -> None:
    def limit(kind: int, soft: int, hard: int | None = None) -> None:
        ceiling = resource.getrlimit(kind)[1]
        values = [soft, hard or soft]
        if ceiling != resource.RLIM_INFINITY:
            values = [min(value, ceiling) for value in values]
        resource.setrlimit(kind, (values[0], values[1]))

    cpu = math.ceil(job["cpu_s"])
    limit(resource.RLIMIT_CORE, 1)  # 0 would not keep a core from a handler behind a pipe; 1 does (man 5 core)
    limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    limit(resource.RLIMIT_FSIZE, int(job["output_bytes"]) + 1)
    if "nest" not in job:  # it sets one for each run
        limit(resource.RLIMIT_CPU, cpu, cpu + 1)
    if base_bytes is not None:
        memory = base_bytes + (int(job["memory_mb"]) << 20)
        limit(resource.RLIMIT_AS, memory, memory + SPARE_BYTES)


def main(control_fd: int, folder: str, mode: str, driver: str | None) -> None:
    """Entry point of the zygote process. Its first message says what is contained and by what.

    Args:
      driver: None, or for nests alone: little is imported then, since every fork has to copy what it finds, but a
        module of this name, if it is not "".
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    containment = Containment(folder) if mode == "strict" else None
    preload = PRELOAD if driver is None else ()
    if containment is not None and not containment.files:
        preload = PRELOAD + PRELOAD_WITHOUT_FILES
    for name in preload:
        importlib.import_module(name)
    drives = importlib.import_module(driver) if driver else None
    if driver is not None:
        program.hide_ours()  # here, since no nest needs to import it
    gc.collect()
    gc.freeze()
    control = socket.socket(fileno=control_fd)
    zygote = Zygote(control, folder, containment, drives)
    if containment is None:
        hello = {"layers": ["own process and limits only" + ("" if LINUX else ", none on memory")], "open": EFFECTS}
    else:
        hello = {"layers": containment.layers, "open": containment.open_effects(folder)}
    control.send(json.dumps(hello).encode())
    zygote.serve()
    sys.exit(0)
