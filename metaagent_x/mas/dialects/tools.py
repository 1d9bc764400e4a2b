"""Tools of the workflow dialect, and what scripts and tools may start: Python programs, run by the host.

Tools of the published scripts write a program to a file and start `python` on it. The script process can start nothing.
So `subprocess.Popen` is replaced by `Program`; `subprocess.run` and its kin, `os.popen` and `os.system` are built on
it, and all end in `run_python`, where runs are contained, counted and recorded.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
import subprocess
import tempfile
from typing import Any

from metaagent_x.mas.dialects.context import PLAY

PYTHON = re.compile(r"(python|pypy)[\d.]*")
SHELL = frozenset(("|", "||", "&", "&&", ";", "<", ">", ">>", "2>&1", "2>"))
EXIT_CODE = re.compile(r"exit code (\d+)")
KILLED = -9
NO_PROCESS = (1 << 22) + 1  # above every process id of Linux: a script that kills its program must hit nobody
NO_NETWORK = "There is no network here: nothing can be looked up. Answer from what you know."


class ToolRegistry:
    """Tools by name. `register` is a decorator too: `@registry.register("add")` or `@registry.register`."""

    def __init__(self) -> None:
        self._tools: dict[str, dict[str, Any]] = {}

    def register(self, name: Any, func: Any = None, description: str = "", parameters: Any = None) -> Any:
        if callable(name):
            name, func = getattr(name, "__name__", "tool"), name
        if func is None:
            return lambda made: self.register(name, made, description, parameters)
        about = description or (func.__doc__ or "").strip()
        self._tools[str(name)] = {"function": func, "description": about, "parameters": parameters or {}}
        return func

    def get_tool(self, name: str) -> dict[str, Any] | None:
        return self._tools.get(name)

    def list_tools(self) -> list[str]:
        return list(self._tools)

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        def schema(name: str, tool: dict[str, Any]) -> dict[str, Any]:
            return {"name": name, "description": tool["description"], "parameters": tool["parameters"]}

        return [{"type": "function", "function": schema(*each)} for each in self._tools.items()]

    def call_tool(self, name: str, parameters: dict[str, Any]) -> Any:
        """Calls a tool.

        Raises:
          ValueError: there is no such tool.
        """
        if name not in self._tools:
            raise ValueError(f"there is no tool {name!r}; there are: {', '.join(self._tools) or 'none'}")
        return self._tools[name]["function"](**parameters)


def python_execute(code: str, *_: Any, **__: Any) -> str:
    """What a program prints, or what went wrong."""
    return PLAY.language.run_python(str(code)).strip() or "The program printed nothing."


class MathEnvironment:
    """Runs programs."""

    def __init__(self, *_: Any, **__: Any):
        pass

    def execute(self, code: str, *_: Any, **__: Any) -> str:
        return python_execute(code)


class CodeEnvironment(MathEnvironment):
    """Runs programs, reads and writes files of the script's folder."""

    def read_file(self, filepath: str) -> str:
        with open(filepath, encoding="utf-8") as file:
            return file.read()

    def write_file(self, filepath: str, content: str) -> str:
        with open(filepath, "w", encoding="utf-8") as file:
            return f"{file.write(content)} characters written to {filepath}"


class SearchEnvironment:
    """Says that there is no network."""

    def __init__(self, *_: Any, **__: Any):
        pass

    def search(self, query: str, *_: Any, **__: Any) -> str:
        return NO_NETWORK

    def fetch(self, url: str, *_: Any, **__: Any) -> str:
        return NO_NETWORK


def replace_subprocesses() -> None:
    """Replaces what starts processes, and gives temporary files their place, for the rest of this process."""
    subprocess.Popen = Program  # type: ignore[misc,assignment]
    os.system = lambda command: Program(command, shell=True).wait() << 8
    tempfile.tempdir = os.getcwd()


class Program:
    """`subprocess.Popen` for `python file.py`, `python -c code`, and `python` with the program on standard input.

    It runs as soon as its input is known, in a private folder of its own. stdin, stdout, stderr and the exit code are
    those of the original; `timeout` is overdue if the program reached a limit of the host. `env` has no effect.

    Raises:
      PermissionError: any other command, or one that needs a shell.
    """

    def __init__(
        self, args: Any, bufsize: int = -1, executable: Any = None, stdin: Any = None, stdout: Any = None,
        stderr: Any = None, *_: Any, cwd: Any = None, text: bool | None = None, universal_newlines: bool | None = None,
        encoding: str | None = None, errors: str | None = None, **__: Any,
    ):  # fmt: skip
        self.args, self.pid, self.returncode = args, NO_PROCESS, None
        self.code, self.argv = _read_command(args, cwd)
        self.as_text = bool(text or universal_newlines or encoding or errors)
        self.targets, self.printed, self.overdue = (stdout, stderr), ("", ""), False
        self.stdout, self.stderr = (self._pipe() if t == subprocess.PIPE else None for t in self.targets)
        self.stdin = _Input(self) if stdin == subprocess.PIPE else None
        if self.stdin is None:
            self._run(stdin.read() if hasattr(stdin, "read") else "")

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        if self.returncode is None and input is not None:
            self._run(input)
        self.wait(timeout)
        return self.stdout and self.stdout.read(), self.stderr and self.stderr.read()

    def wait(self, timeout: float | None = None) -> int:
        code = self.poll()
        if self.overdue and timeout is not None:
            raise subprocess.TimeoutExpired(self.args, timeout, *self.printed)
        return code

    def poll(self) -> int:
        if self.returncode is None:
            self._run(self.stdin.getvalue() if self.stdin else "")
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        """Nothing runs any more; what was overdue has ended now."""
        self.overdue = False

    terminate = kill

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: Any) -> None:
        self.poll()

    def _run(self, given: Any) -> None:
        stdin = given.decode("utf-8", "replace") if isinstance(given, bytes) else str(given)
        code, stdin = (stdin, "") if self.code is None else (self.code, stdin)
        if len(self.argv) > 1:
            code = f"import sys; sys.argv = {self.argv!r}\n{code}"
        out, status = PLAY.language.run_program(code, stdin)
        err, self.returncode, self.overdue = "", 0, status in ("cpu", "wall")
        if status != "ok":
            err, _, out = out.removeprefix("error: ").partition("\noutput so far:\n")
            number = EXIT_CODE.fullmatch(err.strip())
            self.returncode = KILLED if self.overdue else int(number[1]) if number else 1
        self.printed = (out + err, "") if self.targets[1] == subprocess.STDOUT else (out, err)
        for text, target, pipe in zip(self.printed, self.targets, (self.stdout, self.stderr), strict=True):
            if pipe is not None:
                pipe.write(text if self.as_text else text.encode())
                pipe.seek(0)
            elif hasattr(target, "write"):
                target.write(text if isinstance(target, io.TextIOBase) else text.encode())

    def _pipe(self) -> Any:
        return io.StringIO() if self.as_text else io.BytesIO()


class _Input(io.BytesIO):
    """Standard input of a program that waits for it; closing it starts the program."""

    def __init__(self, program: Program):
        super().__init__()
        self.program = program

    def write(self, text: Any) -> int:
        return super().write(text.encode() if isinstance(text, str) else text)

    def close(self) -> None:
        if not self.closed:
            self.program.poll()
        super().close()


def _read_command(args: Any, cwd: Any) -> tuple[str | None, list[str]]:
    """The source (None: it comes on standard input) and `sys.argv` of the program that a command starts."""
    listed = [args] if isinstance(args, (str, bytes, os.PathLike)) else list(args)
    words = [os.fsdecode(word) if isinstance(word, (bytes, os.PathLike)) else str(word) for word in listed]
    words = shlex.split(words[0]) if len(words) == 1 else words
    if not words or not PYTHON.fullmatch(os.path.basename(words[0])):
        raise _refusal(words, "only Python programs are, as in subprocess.run([sys.executable, file])")
    if SHELL.intersection(words) or "-m" in words[1:2]:
        raise _refusal(words, "there is no shell and no module to run; pass input=... and capture_output=True")
    rest = words[1:]
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "-c"):
        rest.pop(0)  # -u, -I, -B ... change nothing here
    if rest[:1] == ["-c"]:
        return "".join(rest[1:2]), ["-c", *rest[2:]]
    if not rest or rest[0] == "-":
        return None, rest or ["-"]
    with open(os.path.join(os.fspath(cwd or ""), rest[0]), encoding="utf-8") as file:
        return file.read(), rest


def _refusal(words: list[str], why: str) -> PermissionError:
    return PermissionError(errno.EPERM, f"{' '.join(words)[:80]!r} is not started: {why}")
