"""Worker processes that compare two answers with math-verify, and are killed when they hang.

math-verify guards itself with `signal.alarm`, which fails off the main thread (huggingface/Math-Verify#55). Here its
own limits are off; a worker has a CPU limit per comparison that the kernel enforces, a memory limit, and a wall limit
that the host enforces. The host may hold JAX threads and must not fork (jax-ml/jax#18989): workers are new programs.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import json
import os
import pathlib
import queue
import select
import signal
import subprocess
import sys
import threading
import time

ROOT = str(pathlib.Path(__file__).resolve().parents[2])
START = "import sys; sys.path.insert(0, {root!r}); from metaagent_x.tasks.math_worker import main; main({cpu}, {mb})"
WORKERS = max(2, min(16, (os.cpu_count() or 2) // 2))
CPU_S = 2.0  # of one comparison; queue and load do not count
WALL_S = 20.0  # of one comparison, from request to reply
START_S = 120.0  # importing sympy takes a second, or a minute on a cold disk
MEMORY_MB = 2048


class VerifierFailure(RuntimeError):
    """No worker could be started, or two in a row died without using up a limit. Infrastructure, not a verdict."""

    infrastructure = True


class _Died(Exception):
    """The worker ended during a comparison, or had to be killed."""


class _Worker:
    """One process. Not thread-safe: whoever took it from the pool owns it."""

    def __init__(self, cpu_s: float, memory_mb: int) -> None:
        self.timed_out = False
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", START.format(root=ROOT, cpu=cpu_s, mb=memory_mb)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
            env={**os.environ, "PYTHONHASHSEED": "0"}, start_new_session=True,
        )  # fmt: skip
        try:
            ready = self._read(START_S)
        except _Died as problem:
            raise VerifierFailure(f"math worker did not start: {problem}") from None
        if "error" in ready:
            self.kill()
            raise VerifierFailure(f"math worker did not start: {ready['error']}")

    def ask(self, gold: str, answer: str, wall_s: float) -> bool:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps([gold, answer]).encode() + b"\n")
        except OSError as problem:
            self.kill()
            raise _Died(str(problem)) from None
        return bool(self._read(wall_s)["equal"])

    def _read(self, wall_s: float) -> dict:
        """The next line of the worker, as JSON. Kills it if there is none in time."""
        assert self.process.stdout is not None
        fd, data, end = self.process.stdout.fileno(), b"", time.monotonic() + wall_s
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while not data.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                self.timed_out = True
                self.kill()
                raise _Died(f"no reply within {wall_s:g} s")
            piece = os.read(fd, 65536)
            if not piece:
                self.kill()
                raise _Died(f"exit code {self.process.returncode}")
            data += piece
        return json.loads(data)

    @property
    def ending(self) -> str:
        """What ended it: "wall" (our kill), "cpu" (its CPU timer's signal), or "died" (anything else)."""
        if self.timed_out:
            return "wall"
        return "cpu" if self.process.returncode == -signal.SIGPROF else "died"

    def kill(self) -> None:
        """Ends it, waits for it, closes its pipes."""
        # One that closed its pipe is ending by itself: its exit code says why.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.2)
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class VerifierPool:
    """At most `workers` processes, started when first needed, replaced when killed. Thread-safe.

    Args:
      workers: comparisons at once; more callers wait, and their waiting is not counted against them.
      cpu_s, wall_s: seconds of one comparison. memory_mb: MiB of address space of a worker.

    Attributes:
      started: workers started so far. ended: workers lost so far, by "cpu", "wall" (limits) and "died".
    """

    def __init__(
        self, workers: int = WORKERS, *, cpu_s: float = CPU_S, wall_s: float = WALL_S, memory_mb: int = MEMORY_MB
    ) -> None:
        self.owner = os.getpid()
        self.cpu_s, self.wall_s, self.memory_mb = cpu_s, wall_s, memory_mb
        self.started = 0
        self.ended: collections.Counter[str] = collections.Counter()
        self._places: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        self._workers = workers
        for _ in range(workers):
            self._places.put(None)

    def check(self, gold: str, answer: str) -> bool:
        """True if math-verify says that `answer` equals `gold`; False if it says no or runs into a limit.

        Raises:
          VerifierFailure: see there.
        """
        worker = self._places.get()
        try:
            for _ in range(2):
                if worker is None:
                    worker = _Worker(self.cpu_s, self.memory_mb)
                    self.started += 1
                try:
                    return worker.ask(gold, answer, self.wall_s)
                except _Died as problem:
                    ending, worker, reason = worker.ending, None, problem
                    self.ended[ending] += 1
                    if ending != "died":
                        return False
            raise VerifierFailure(f"two math workers died on one comparison: {reason}")
        finally:
            self._places.put(worker)

    def close(self) -> None:
        """Ends all workers, after the comparison they are at."""
        for _ in range(self._workers):
            if worker := self._places.get():
                assert worker.process.stdin is not None
                worker.process.stdin.close()
                worker.kill()
        for _ in range(self._workers):
            self._places.put(None)


_lock = threading.Lock()
_shared: VerifierPool | None = None


def shared() -> VerifierPool:
    """The pool of this process. No worker runs before the first comparison."""
    global _shared
    with _lock:
        if _shared is None or _shared.owner != os.getpid():
            _shared = VerifierPool()
        return _shared


def close() -> None:
    """Ends the workers of the shared pool. The next comparison starts new ones."""
    with _lock:
        pool = _shared
    if pool is not None and pool.owner == os.getpid():
        pool.close()


atexit.register(close)
