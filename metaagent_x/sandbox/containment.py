"""What holds for every contained process, by effects, and by which layers of the kernel.

| effect | held by |
|---|---|
| no network, no other sockets | seccomp; besides, an empty network namespace where one can be had |
| no new process or program | seccomp |
| no signal to others, no ptrace, no change of their priorities or limits | seccomp |
| reads only Python's and the system's libraries, a few packages, its own folder | Landlock, else no files: seccomp |
| writes only in its own folder | the same |
| no privilege | no_new_privs; as root all capabilities are dropped |

None needs root, a namespace or a helper program. `Containment.open_effects` tries each effect in a child and says which
of them were possible: strict mode goes by that, not by the names of layers.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import sys
import sysconfig
from collections.abc import Sequence

from metaagent_x.sandbox import seccomp
from metaagent_x.sandbox.landlock import Landlock
from metaagent_x.sandbox.seccomp import Unsupported

EFFECTS = ("network", "processes", "signals", "reads", "writes")
# What programs may import besides the standard library, where it is installed.
PACKAGES = ("numpy", "numpy.libs", "scipy", "scipy.libs", "sympy", "mpmath", "networkx", "sortedcontainers")
HIDDEN = ("site-packages", "dist-packages")  # all other packages, ours among them where it is installed
SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/dev/urandom", "/dev/zero",
          "/usr/share/zoneinfo")  # fmt: skip
CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWNET = 0x04000000, 0x08000000, 0x10000000, 0x40000000
CAPABILITY_VERSION_3 = 0x20080522


def readable() -> list[str]:
    """Places that contained programs may read."""
    paths = sysconfig.get_paths()
    libraries = [paths["stdlib"], paths["platstdlib"], str(sysconfig.get_config_var("LIBDIR") or "")]
    site = {paths["purelib"], paths["platlib"]}
    return [
        *SYSTEM,
        *(p for p in libraries if p),
        *(os.path.join(folder, name) for folder in site for name in PACKAGES),
    ]


class Containment:
    """The layers of this machine, prepared once in the zygote, then put over each forked child.

    Attributes:
      layers: what is on, in words.
      files: whether contained programs can open files at all (their own folder, Python's library).
    """

    def __init__(self, private: str) -> None:
        """`private` is where the folders of all runs are."""
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.layers: list[str] = []
        self.landlock: Landlock | None = None
        self.filter: seccomp.Filter | None = None
        if sys.platform != "linux":
            self.layers.append(f"no seccomp on {sys.platform}")
            return
        if isolate(self.libc):
            self.layers.append("own network and IPC namespaces")
        try:
            self.landlock = Landlock(self.libc, private, readable(), ["/dev/null"], HIDDEN)
            self.layers.append(f"Landlock {self.landlock.abi}")
        except Unsupported as problem:
            self.layers.append(f"no files at all ({problem})")
        try:
            calls = seccomp.Filter(seccomp.program(os.uname().machine, files=self.files))
            calls.check(self.libc)
            self.filter = calls
            self.nest_filter = seccomp.Filter(seccomp.program(os.uname().machine, files=self.files, nest=True))
            self.narrowing = seccomp.Filter(seccomp.narrowing(os.uname().machine, files=self.files))
            self.layers.append("seccomp")
        except Unsupported as problem:
            self.layers.append(f"no seccomp ({problem})")

    @property
    def files(self) -> bool:
        return self.landlock is not None

    def restrict_files(self, folder: str) -> None:
        """From here on this process (of one thread) opens only what `readable` names, and what is in its folder.

        Raises:
          Unsupported: the kernel refused.
        """
        if self.landlock is not None:
            self.landlock.restrict(folder)

    def restrict_calls(self) -> None:
        """The rest of the containment, for good; comes after whatever still needs a call that is forbidden then.

        Raises:
          Unsupported: the kernel refused, or there is no filter for this machine.
        """
        if self.filter is None:
            raise Unsupported(self.layers[-1])
        drop_capabilities(self.libc)
        self.filter.install(self.libc, os.getpid())

    def prepare_files(self, folder: str) -> list[int]:
        """What `leave_nest` needs to do as `restrict_files` does: descriptors. Raises Unsupported."""
        return self.landlock.prepare(folder) if self.landlock is not None else []

    def enter_nest(self) -> None:
        """Restricts this process to the calls that a nest needs. Raises Unsupported; see `restrict_calls`."""
        if self.filter is None:
            raise Unsupported(self.layers[-1])
        drop_capabilities(self.libc)
        self.nest_filter.install(self.libc, os.getpid())

    def leave_nest(self, rulesets: Sequence[int]) -> None:
        """In a process that a nest forked: does as `restrict_files` and `restrict_calls` do. Raises Unsupported."""
        if self.landlock is not None:
            self.landlock.apply(rulesets)
        self.narrowing.install(self.libc, os.getpid())

    def open_effects(self, folder: str) -> list[str]:
        """Effects that a contained process could have on this machine: a child tries them all.

        Returns:
          Names out of `EFFECTS`; [] if everything is contained.
        """
        outside = os.path.join(folder, "outside")
        own = os.path.join(folder, "own")
        os.mkdir(own)
        with open(outside, "w") as file:
            file.write("x")
        result, result_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                os.write(result_write, json.dumps(self._try_effects(own, outside)).encode())
            os._exit(0)
        os.close(result_write)
        with open(result, "rb") as file:
            said = file.read()
        os.waitpid(pid, 0)
        os.unlink(outside)
        os.rmdir(own)
        return json.loads(said) if said else list(EFFECTS)

    def _try_effects(self, own: str, outside: str) -> list[str]:
        parent = os.getppid()
        with contextlib.suppress(Unsupported):
            self.restrict_files(own)
            self.restrict_calls()

        def child() -> None:
            if os.fork() == 0:
                os._exit(0)

        attempts = {
            "network": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
            "processes": child,
            "signals": lambda: os.kill(parent, 0),
            "reads": lambda: os.open(outside, os.O_RDONLY),
            "writes": lambda: os.open(outside + ".new", os.O_WRONLY | os.O_CREAT),
        }
        return [effect for effect in EFFECTS if _succeeds(attempts[effect])]


def _succeeds(attempt) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


def isolate(libc: ctypes.CDLL) -> bool:
    """Gives this process (of one thread) an empty network and IPC of its own, if the system lets it."""
    spaces = CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    if libc.unshare(spaces) == 0:  # root
        return True
    user, group = os.getuid(), os.getgid()
    if libc.unshare(spaces | CLONE_NEWUSER) != 0:
        return False
    with contextlib.suppress(OSError):  # unmapped ids work too: files are still ours
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    return True


def drop_capabilities(libc: ctypes.CDLL) -> None:
    """Root without capabilities is an ordinary user that owns root's files."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    if libc.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise Unsupported(f"capset: errno {ctypes.get_errno()}")
