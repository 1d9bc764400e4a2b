"""Host side of the zygote: start it, hand it jobs, start it again if it dies, stop it.

The host may hold JAX threads and must never fork itself (jax-ml/jax#18989); the zygote is started with `subprocess`
(which only execs) and does all forking.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence

from metaagent_x.sandbox.folders import remove
from metaagent_x.sandbox.limits import Limits, SandboxFailure, SandboxRefused

ROOT = str(pathlib.Path(__file__).resolve().parents[2])
PACKETS = getattr(socket, "SOCK_SEQPACKET", socket.SOCK_DGRAM)  # macOS has no SEQPACKET
BUSY = (errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS, errno.ETOOMANYREFS)
# PYTHONHASHSEED fixes set order in scripts and tools; programs may print integers of any length
# (LiveCodeBench/LiveCodeBench#133); one malloc arena keeps threads cheap under RLIMIT_AS.
ENVIRONMENT = {
    "PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONINTMAXSTRDIGITS": "0",
    "MALLOC_ARENA_MAX": "1",
}  # fmt: skip
START_S = 60.0  # importing on a cold disk
START = (
    "import sys; sys.path.insert(0, {root!r}); from metaagent_x.sandbox.zygote import main; "
    "main({fd}, {folder!r}, {mode!r}, {driver!r})"
)


class Zygote:
    """One zygote process and the folder in which its runs live.

    Attributes:
      mode: "strict" or "process". layers: what contains its runs, in words.
    """

    def __init__(self, mode: str = "strict", driver: str | None = None) -> None:
        """Starts the process and waits for its first message.

        Args:
          driver: see `zygote`.

        Raises:
          SandboxRefused: mode is "strict" and this machine cannot contain what it must.
          SandboxFailure: the process could not be started.
        """
        if not hasattr(os, "waitid"):
            raise SandboxFailure(f"the sandbox needs os.waitid, which Python has on {sys.platform} from 3.13 on")
        self.mode = mode
        self.folder = tempfile.mkdtemp(prefix="metaagent_x-")
        self.owner, self.count, self.lock, self.lost = os.getpid(), 0, threading.Lock(), False
        self.control, theirs = socket.socketpair(socket.AF_UNIX, PACKETS)
        start = START.format(root=ROOT, fd=theirs.fileno(), folder=self.folder, mode=mode, driver=driver)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-s", "-c", start], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()], cwd="/", env=ENVIRONMENT, start_new_session=True,
            )  # fmt: skip
        try:
            self.layers: list[str] = self._hello()
        except SandboxFailure:
            self.close()
            raise
        self.control.setblocking(False)

    def _hello(self) -> list[str]:
        self.control.settimeout(START_S)
        try:
            hello = json.loads(self.control.recv(1 << 16) or b"null")
        except OSError:
            hello = None
        if hello is None:
            raise SandboxFailure(f"the sandbox process {self.process.pid} did not start")
        if self.mode == "strict" and hello["open"]:
            raise SandboxRefused(
                f"sandbox=strict cannot be guaranteed on this machine: programs could reach {', '.join(hello['open'])} "
                f"(layers: {', '.join(hello['layers'])}). It needs Linux with seccomp, and Landlock for files. "
                "sandbox=process runs programs with only limits and a process of their own; use it in a container or "
                "virtual machine that holds nothing of value"
            )
        return hello["layers"]

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

    def submit(
        self, folder: str, fds: Sequence[int], limits: Limits, entry: str = "", nest: str | None = None
    ) -> socket.socket | None:
        """Hands over one job.

        Args:
          folder: working directory of the child. fds: become 3, 4, ... there. limits: its limits.
          entry: "module:function" called with 3; "" runs the program of fd 3.
          nest: start a nest (`nest.py`) instead, on the line of fd 3 for the program of fd 4; the function of the
            driver that is to run it, or "".

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
        if nest is not None:
            job["nest"] = nest
        ours, theirs = socket.socketpair()
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
        if PACKETS == socket.SOCK_DGRAM and self.owner == os.getpid():
            with contextlib.suppress(OSError):
                self.control.send(b"")  # a datagram socket has no end of file
        self.control.close()
        if self.owner != os.getpid():
            return
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        remove(self.folder)


MODES = ("strict", "process")
_lock = threading.Lock()
_current: dict[str | None, Zygote] = {}
_mode = "strict"


def use(mode: str) -> list[str]:
    """Sets how programs are contained from now on, "strict" (default) or "process", and starts the sandbox.

    Returns:
      The layers that are on, in words, for a person to read.

    Raises:
      ValueError: no such mode. SandboxRefused, SandboxFailure: see `Zygote`.
    """
    global _mode
    if mode not in MODES:
        raise ValueError(f"sandbox={mode!r} is not one of {', '.join(MODES)}")
    if mode != _mode:
        close()
    _mode = mode
    return zygote().layers


def zygote(driver: str | None = None) -> Zygote:
    """A living zygote of this process; started at the first use and again after a death.

    Args:
      driver: None: the one for scripts and single runs. Else one for nests: the module whose functions run their
        programs, or "". It may import the standard library alone.
    """
    with _lock:
        old = _current.get(driver)
        if old is None or not old.alive():
            if old is not None:
                del _current[driver]
                old.close()
            _current[driver] = Zygote(_mode, driver)
        return _current[driver]


def close() -> None:
    """Ends the zygotes and everything that runs in them. The next use starts others."""
    with _lock:
        old = list(_current.values())
        _current.clear()
    for each in old:
        each.close()


atexit.register(close)
