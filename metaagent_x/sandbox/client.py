"""Host side of the zygote: start it, hand it jobs, start it again if it dies, stop it.

The host may hold JAX threads and must never fork itself (jax-ml/jax#18989); the zygote is started with `subprocess`
(which only execs) and does all forking.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import errno
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence

from metaagent_x.sandbox.limits import Limits, SandboxFailure

ROOT = str(pathlib.Path(__file__).resolve().parents[2])
BUSY = (errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS, errno.ETOOMANYREFS)
# PYTHONHASHSEED fixes set order in scripts and tools; programs may print integers of any length
# (LiveCodeBench/LiveCodeBench#133); one malloc arena keeps threads cheap under RLIMIT_AS.
ENVIRONMENT = {
    "PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONINTMAXSTRDIGITS": "0",
    "MALLOC_ARENA_MAX": "1",
}  # fmt: skip
START = "import sys; sys.path.insert(0, {root!r}); from metaagent_x.sandbox.zygote import main; main({fd}, {folder!r})"


class Zygote:
    """One zygote process and the folder in which its runs live."""

    def __init__(self) -> None:
        if not hasattr(os, "memfd_create"):
            raise SandboxFailure(f"the sandbox needs Linux (memfd, subreaper); this is {sys.platform}")
        self.folder = tempfile.mkdtemp(prefix="metaagent_x-")
        self.owner, self.count, self.lock, self.lost = os.getpid(), 0, threading.Lock(), False
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setblocking(False)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-s", "-c", START.format(root=ROOT, fd=theirs.fileno(), folder=self.folder)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()], cwd="/",
                env=ENVIRONMENT, start_new_session=True,
            )  # fmt: skip

    def alive(self) -> bool:
        return self.owner == os.getpid() and not self.lost and self.process.poll() is None

    def lose(self) -> None:
        """Gives the process up: it no longer answers. Its exit status may come later; `alive` does not wait for it."""
        self.lost = True
        self.process.kill()

    def new_folder(self) -> str:
        """A private folder that no other run has or had."""
        with self.lock:
            self.count += 1
            path = os.path.join(self.folder, str(self.count))
        os.mkdir(path, 0o700)
        return path

    def submit(self, folder: str, fds: Sequence[int], limits: Limits, entry: str = "") -> socket.socket | None:
        """Hands over one job.

        Args:
          folder: working directory of the child. fds: become 3, 4, ... there. limits: its limits.
          entry: "module:function" called with 3; "" runs the program of fd 3.

        Returns:
          The socket on which the zygote will report the end, or None if its queue is full at the moment.

        Raises:
          SandboxFailure: the zygote is gone.
        """
        job = {
            "folder": folder, "cpu_s": limits.cpu_s, "wall_s": limits.wall_s, "memory_mb": limits.memory_mb,
            "output_bytes": limits.output_bytes,
        }  # fmt: skip
        if entry:
            job["entry"] = entry
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                socket.send_fds(self.control, [json.dumps(job).encode()], [*fds, theirs.fileno()])
            except OSError as problem:
                ours.close()
                if problem.errno in BUSY:
                    return None
                self.lose()
                raise SandboxFailure(f"the sandbox process {self.process.pid} is gone: {problem}") from problem
        return ours

    def close(self) -> None:
        """Kills all runs, ends the process, removes the folder."""
        self.control.close()
        if self.owner != os.getpid():
            return
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        remove(self.folder)


_lock = threading.Lock()
_current: Zygote | None = None


def zygote() -> Zygote:
    """The living zygote of this process; started at the first use and again after a death."""
    global _current
    with _lock:
        if _current is None or not _current.alive():
            if _current is not None:
                _current.close()
            _current = Zygote()
        return _current


def close() -> None:
    """Ends the zygote and everything that runs in it. The next use starts another one."""
    global _current
    with _lock:
        old, _current = _current, None
    if old is not None:
        old.close()


def remove(folder: str) -> None:
    """Removes a folder tree, whatever permissions the program left on it."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)  # nearly always empty
        return
    for path, names, _ in os.walk(folder):
        for name in [path, *(os.path.join(path, n) for n in names)]:
            if not os.path.islink(name):
                with contextlib.suppress(OSError):
                    os.chmod(name, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


async def remove_soon(folder: str) -> None:
    """`remove` without holding up the event loop when there is something to remove."""
    try:
        os.rmdir(folder)
    except OSError:
        await asyncio.get_running_loop().run_in_executor(None, remove, folder)


atexit.register(close)
