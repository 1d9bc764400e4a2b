"""`run_python`: one program, one input, one contained process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import tempfile
import time

from metaagent_x.sandbox import client, folders
from metaagent_x.sandbox.limits import MAX_STARVED, Limits, Result, SandboxFailure

GRACE_S = 20.0  # a report this late means that the zygote hangs


class Program:
    """A program made ready to run on one input after another, each time in a fresh contained process.

    Nothing goes from one run to the next: neither memory nor files. Not thread-safe: one run at a time; close it, or
    use it in a `with` statement.
    """

    def __init__(self, code: str, *, limits: Limits | None = None):
        """Args: as of `run_python`; the limits are those of each run."""
        self.code, self.limits = code, limits or Limits()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""

    def run(self, stdin: str | int = "", stdout: int | None = None) -> Result:
        """Runs it once; see `run_python`.

        Args:
          stdin: the whole input, or a descriptor to read it from, which stays the caller's to close.
          stdout: a descriptor to write to; `Result.stdout` is empty then. None: what it prints is kept.
        """
        zygote = client.zygote()
        folder = zygote.new_folder()
        own = [_file("code", json.dumps({"code": self.code}).encode())]
        try:
            if isinstance(stdin, str):
                own.append(_file("stdin", stdin.encode("utf-8", "surrogatepass")))
            own += [_file("stdout"), _file("stderr")]
            out, err = own[-2:]
            given = own[1] if isinstance(stdin, str) else stdin
            files = [own[0], given, out if stdout is None else stdout, err]
            while (report := zygote.submit(folder, files, self.limits)) is None:
                time.sleep(0.002)
            return _result(_wait(zygote, report, self.limits), out, err, self.limits)
        finally:
            for fd in own:
                os.close(fd)
            folders.remove(folder)


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
    return Program(code, limits=limits).run(stdin)


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


def _wait(zygote: client.Zygote, report: socket.socket, limits: Limits) -> dict:
    with report:
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
