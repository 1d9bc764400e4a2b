"""`run_python`: one program, one input, one contained process. `Program`: one program, one input after another."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import tempfile
import time

from metaagent_x.sandbox import client, folders
from metaagent_x.sandbox.limits import Limits, Result, SandboxFailure
from metaagent_x.sandbox.watch import MAX_STARVED

STREAMS = ("stdin", "stdout", "stderr")
GRACE_S = 20.0  # a report this late means that the zygote hangs


class Program:
    """A program made ready to run on one input after another, each time in a fresh contained process (`nest.py`).

    Nothing goes from one run to the next: neither memory nor files. Not thread-safe: one run at a time. Close it, or
    use it in a `with` statement.
    """

    def __init__(self, code: str, *, limits: Limits | None = None, driver: str = ":"):
        """
        Args:
          code, limits: as of `run_python`; the limits are those of each run.
          driver: "module:function" that runs it in place of the interpreter. Trusted code that may import the standard
            library alone; the function gets the program as text, and as code if it could be compiled.
        """
        self.code, self.limits, self.driver = code, limits or Limits(), driver
        self._nest: _Nest | None = None

    def run(self, stdin: str | int = "", stdout: int | None = None) -> Result:
        """Runs it once; see `run_python`.

        Args:
          stdin: the whole input, or a descriptor to read it from, which stays the caller's to close.
          stdout: a descriptor to write to; `Result.stdout` is empty then. None: what it prints is kept.
        """
        if self._nest is not None and not self._nest.zygote.alive():
            self.close()
        if self._nest is None:
            self._nest = _Nest(self.code, self.limits, *self.driver.split(":"))
        try:
            result = self._nest.run(stdin, stdout)
        except BaseException:
            self.close()
            raise
        if self._nest.ended:
            self.close()
        return result

    def close(self) -> None:
        """Idempotent."""
        if self._nest is not None:
            self._nest.close()
            self._nest = None

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_) -> None:
        self.close()


class _Nest:
    """The host's end of a nest.

    Attributes:
      ended: whether the nest itself has come to an end, and with it the run that was asked for.
    """

    def __init__(self, code: str, limits: Limits, module: str, function: str):
        self.limits, self.zygote, self.ended = limits, client.zygote(module), False
        self.folder = self.zygote.new_folder()
        with contextlib.ExitStack() as undo:
            undo.callback(folders.remove, self.folder)
            self.files = []
            for name, data in (("code", json.dumps({"code": code}).encode()), *((n, b"") for n in STREAMS)):
                self.files.append(_file(name, data))
                undo.callback(os.close, self.files[-1])
            self.line, theirs = socket.socketpair()
            undo.callback(self.line.close)
            with theirs:
                fds = [theirs.fileno(), *self.files]
                while (report := self.zygote.submit(self.folder, fds, limits, nest=function)) is None:
                    time.sleep(0.002)
            self.report = report
            undo.callback(report.close)
            self.line.settimeout((1 + MAX_STARVED) * limits.wall_s + GRACE_S)
            self.undo = undo.pop_all()

    def run(self, stdin: str | int, stdout: int | None) -> Result:
        _, given, out, err = self.files
        if isinstance(stdin, str):
            _rewrite(given, stdin.encode("utf-8", "surrogatepass"))
        for fd in (out, err):
            _rewrite(fd)
        others = {name: fd for name, fd in (("i", stdin), ("o", stdout)) if isinstance(fd, int)}
        try:
            socket.send_fds(self.line, ["".join(others).encode() or b"-"], list(others.values()))
            report = self.line.recv(4096).decode()
        except TimeoutError:
            self.zygote.lose()  # the next use starts another one
            raise SandboxFailure(f"the sandbox process {self.zygote.process.pid} hangs") from None
        except ConnectionError:
            report = ""
        if not report:
            self.ended = True
            return _result(_wait(self.zygote, self.report, self.limits), out, err, self.limits)
        code, cpu_s, killed = report.split(" ")
        return _result({"exit": int(code), "cpu_s": float(cpu_s), "killed": killed}, out, err, self.limits)

    def close(self) -> None:
        """Ends the nest: it goes when its line is closed. The zygote reaps it."""
        self.undo.close()


def run_python(code: str, stdin: str = "", *, limits: Limits | None = None) -> Result:
    """Runs a program as `python main.py < stdin` would, in a process of its own. Thread-safe; blocks until it ended.

    What contains it: `containment.py` (mode "strict") and `zygote.py`. It may use threads, files in its own folder, the
    standard library and the packages that `containment.PACKAGES` names.

    Args:
      code: the program. Runs as `__main__`; `random` starts from seed 0.
      stdin: its whole input; empty means end of file at once.
      limits: see `Limits`; the default allows 4 CPU seconds, 10 s, 512 MiB, 1 MiB of output.

    Returns:
      A `Result`. An exit code of 0 is status "ok", however the program came to it; what it printed is for the caller
      to judge.

    Raises:
      SandboxFailure: the sandbox process or the program's could not be started, or the former died during the run.
    """
    limits = limits or Limits()
    zygote = client.zygote()
    folder = zygote.new_folder()
    files = [_file("code", json.dumps({"code": code}).encode()), _file("stdin", stdin.encode("utf-8", "surrogatepass"))]
    try:
        files += [_file("stdout"), _file("stderr")]
        while (report := zygote.submit(folder, files, limits)) is None:
            time.sleep(0.002)
        with report:
            ending = _wait(zygote, report, limits)
        return _result(ending, files[2], files[3], limits)
    finally:
        for fd in files:
            os.close(fd)
        folders.remove(folder)


def _file(name: str, data: bytes = b"") -> int:
    """An anonymous file, at its start; in memory on Linux."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, fd)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
        undo.pop_all()
    return fd


def _rewrite(fd: int, data: bytes = b"") -> None:
    """The file holds just that, and whoever shares the descriptor is at its start."""
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)
    view, at = memoryview(data), 0
    while at < len(view):
        at += os.pwrite(fd, view[at:], at)


def _wait(zygote: client.Zygote, report: socket.socket, limits: Limits) -> dict:
    report.settimeout((1 + MAX_STARVED) * limits.wall_s + GRACE_S)
    try:
        message = report.recv(4096)
    except TimeoutError:
        message = b""
    if not message:
        zygote.lose()  # the next use starts another one
        raise SandboxFailure(f"the sandbox process {zygote.process.pid} died during a run")
    return json.loads(message.split(b"\n")[0])  # the first report counts


def _result(ending: dict, stdout: int, stderr: int, limits: Limits) -> Result:
    if "refused" in ending:
        raise SandboxFailure(f"the sandbox could not start a program: {ending['refused']}")
    cap = limits.output_bytes
    over = max(os.fstat(stdout).st_size, os.fstat(stderr).st_size) > cap
    out = os.pread(stdout, cap, 0).decode("utf-8", "replace")
    err = os.pread(stderr, cap, 0).decode("utf-8", "replace")
    return Result(out, err, status_of(ending, limits, over, err), ending["exit"], ending["cpu_s"])


def status_of(ending: dict, limits: Limits, over_output: bool = False, stderr: str = "") -> str:
    """The status word for a zygote's report `{"exit", "killed", "cpu_s"}`."""
    code = ending["exit"]
    if ending["killed"]:
        return ending["killed"]
    if over_output or code == -signal.SIGXFSZ:
        return "output"
    if code == -signal.SIGXCPU or (code == -signal.SIGKILL and ending["cpu_s"] >= limits.cpu_s):
        return "cpu"
    if code < 0:
        return "crash"
    last = stderr.rstrip().rpartition("\n")[2] if code else ""
    for exception, status in (("MemoryError", "memory"), ("PermissionError", "refused")):
        if last.startswith(exception):
            return status
    return "error" if code else "ok"
