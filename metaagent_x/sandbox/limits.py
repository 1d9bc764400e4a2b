"""What a contained run may use (`Limits`) and what it left behind (`Result`)."""

from __future__ import annotations

import dataclasses


class SandboxFailure(RuntimeError):
    """The sandbox itself could not run something (infrastructure, never the fault of the program)."""

    infrastructure = True


class SandboxRefused(SandboxFailure):
    """This machine cannot contain programs as strictly as asked for."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one contained process.

    Attributes:
      cpu_s: CPU seconds, rounded up to whole seconds (RLIMIT_CPU; each process that the program starts has its own).
      wall_s: seconds from start to SIGKILL; time spent waiting for a core is not counted, up to twenty times this.
      memory_mb: MiB of address space on top of the bare interpreter (RLIMIT_AS).
      output_bytes: bytes of stdout, of stderr, and of any one file. All files together: 1,000 and 64 MiB.
    """

    cpu_s: float = 4.0
    wall_s: float = 10.0
    memory_mb: int = 512
    output_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"Limits.{field.name} is {getattr(self, field.name)!r}; it must be above 0")


@dataclasses.dataclass(frozen=True)
class Result:
    """What a program printed and how it ended.

    Attributes:
      stdout, stderr: text, bytes that are not UTF-8 replaced; at most `Limits.output_bytes` bytes each.
      status: "ok" (exit code 0), "error" (another exit code, an uncaught exception), "cpu", "wall", "memory",
        "output", "threads" (limits), "refused" (ended by what the sandbox forbids: an uncaught PermissionError),
        "crash" (ended by a signal).
      exit_code: exit code, or minus the signal.
      cpu_s: CPU seconds used, of the process and the children that it waited for.
    """

    stdout: str
    stderr: str
    status: str
    exit_code: int = 0
    cpu_s: float = 0.0
