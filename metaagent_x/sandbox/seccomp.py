"""Which system calls a contained process may make: a seccomp filter, built here from a table (man 2 seccomp).

An allow list: reading and writing of descriptors that it has, memory, threads, clocks, its own signals and, where
Landlock guards them, files. Everything else fails with EPERM: no new process or program, no socket, no signal to
others, no ptrace, no mounts, no change of owner or mode. Calls newer than the table fail with ENOSYS, as on an older
kernel, so that the C library falls back.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

# name: (x86_64, aarch64); None where an architecture lacks the call. From the kernel's unistd tables.
PLAIN: dict[str, tuple[int | None, int | None]] = {
    # descriptors
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "pwrite64": (18, 68), "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286), "pwritev2": (328, 287),
    "lseek": (8, 62), "close": (3, 57), "dup": (32, 23), "dup2": (33, None),
    "dup3": (292, 24), "pipe": (22, None), "pipe2": (293, 59), "fsync": (74, 82), "fdatasync": (75, 83),
    "ftruncate": (77, 46), "fstat": (5, 80), "sendfile": (40, 71), "copy_file_range": (326, 285),
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72), "epoll_create": (213, None),
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22),
    "epoll_pwait2": (441, 441), "eventfd": (284, None), "eventfd2": (290, 19), "recvfrom": (45, 207),
    "recvmsg": (47, 212), "shutdown": (48, 210), "getsockopt": (55, 209), "getsockname": (51, 204),
    "getpeername": (52, 205), "getcwd": (79, 17),
    # memory
    "mmap": (9, 222), "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216), "madvise": (28, 233),
    "brk": (12, 214), "msync": (26, 227), "membarrier": (324, 283),
    # itself
    "getpid": (39, 172), "gettid": (186, 178), "getppid": (110, 173), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getgroups": (115, 158), "getresuid": (118, 148),
    "getresgid": (120, 150), "getpgrp": (111, None), "getrusage": (98, 165), "times": (100, 153), "uname": (63, 160),
    "getcpu": (309, 168), "exit": (60, 93), "exit_group": (231, 94), "futex": (202, 98), "futex_waitv": (449, 449),
    "set_robust_list": (273, 99), "set_tid_address": (218, 96), "rseq": (334, 293), "sched_yield": (24, 124),
    "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126), "getrlimit": (97, 163),
    "setrlimit": (160, 164), "umask": (95, 166), "wait4": (61, 260), "waitid": (247, 95), "getrandom": (318, 278),
    # its own signals, clocks
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigsuspend": (130, 133),
    "rt_sigtimedwait": (128, 137), "rt_sigpending": (127, 136), "sigaltstack": (131, 132), "signalfd4": (289, 74),
    "alarm": (37, None), "setitimer": (38, 103), "getitimer": (36, 102), "pause": (34, None), "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "gettimeofday": (96, 169), "time": (201, None), "restart_syscall": (219, 128),
}  # fmt: skip
# Only where Landlock decides which files these reach. Not here: what Landlock does not guard (chmod, chown, utime,
# truncate by path, extended attributes) and what no program needs (links, devices, mounts).
FILES: dict[str, tuple[int | None, int | None]] = {
    "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "stat": (4, None), "lstat": (6, None),
    "newfstatat": (262, 79), "statx": (332, 291), "readlink": (89, None), "readlinkat": (267, 78),
    "getdents64": (217, 61), "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None),
    "unlinkat": (263, 35), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "chdir": (80, 49),
    "fchdir": (81, 50), "statfs": (137, 43), "fstatfs": (138, 44),
}  # fmt: skip

# Allowed under conditions: (number of the 32-bit word of the arguments, mask, value). All of one alternative must hold.
Condition = tuple[int, int, int]
ALL = 0xFFFFFFFF
PID = 0x7EADBEEF  # stands for the pid of the process, which is known after the fork
CLONE_THREAD, CLONE_FILES, CLONE_NEW = 0x00010000, 0x00000400, 0x7E020000
AF_UNIX = 1
O_TRUNC, O_ACCMODE, O_RDONLY = 0o1000, 0o3, 0


def _low(argument: int) -> int:
    return 2 * argument


def _one_of(argument: int, *values: int) -> list[list[Condition]]:
    return [[(_low(argument), ALL, value)] for value in values]


_NO_ADDRESS: list[list[Condition]] = [[(_low(4), ALL, 0), (_low(4) + 1, ALL, 0)]]
CONDITIONAL: dict[str, tuple[tuple[int | None, int | None], list[list[Condition]]]] = {
    # Threads, never processes; with the descriptors of all others, else the limit on open files would be each one's.
    "clone": ((56, 220), [[(_low(0), CLONE_THREAD | CLONE_FILES | CLONE_NEW, CLONE_THREAD | CLONE_FILES)]]),
    "close_range": ((436, 436), _one_of(2, 0, 4)),  # now or on exec, but no descriptors of its own for a thread
    "kill": ((62, 129), _one_of(0, PID)),
    "tgkill": ((234, 131), _one_of(0, PID)),
    "sendto": ((44, 206), _NO_ADDRESS),  # to its peer only: datagrams reach abstract sockets of the host
    "socketpair": ((53, 199), _one_of(0, AF_UNIX)),
    "prlimit64": ((302, 261), _one_of(0, 0, PID)),
    "sched_getaffinity": ((204, 123), _one_of(0, 0, PID)),
    "sched_getparam": ((143, 121), _one_of(0, 0, PID)),
    "sched_getscheduler": ((145, 120), _one_of(0, 0, PID)),
    "prctl": ((157, 167), _one_of(0, 15, 16)),  # the name of a thread, set and get
    "ioctl": ((16, 29), _one_of(1, 0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),  # isatty, size, FIONREAD, flags
    # No F_SETOWN, F_SETSIG: they make the kernel send signals to any process. No locks: others can read the same files.
    "fcntl": ((72, 25), _one_of(1, 0, 1, 2, 3, 4, 1030, 1031, 1032)),
}  # fmt: skip
# open, openat: numbers, and which argument holds the flags. Opening for reading with O_TRUNC is refused: it empties a
# file that Landlock before ABI 3 only lets be read.
OPENING: tuple[tuple[tuple[int | None, int | None], int], ...] = (((2, None), 1), ((257, 56), 2))
# What a nest (`nest.py`) may do besides, until it has forked a program: that gets the narrower filter on top.
NEST: dict[str, tuple[int | None, int | None]] = {
    "setpgid": (109, 154), "pidfd_open": (434, 434), "setpriority": (141, 140),
    "chmod": (90, None), "fchmodat": (268, 53), "sendmsg": (46, 211),
    "seccomp": (317, 277), "landlock_restrict_self": (446, 446),
}  # fmt: skip
NEST_FREELY = ("clone", "kill", "prctl")  # under no conditions
NEW_CALLS = 424  # from here on all architectures share numbers

LD, JEQ, JGE, AND, RET = 0x20, 0x15, 0x35, 0x54, 0x06
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
SECCOMP = {"x86_64": 317, "aarch64": 277}  # the number of seccomp() itself
PR_SET_NO_NEW_PRIVS = 38
SET_MODE_FILTER, GET_ACTION_AVAIL, SPEC_ALLOW = 1, 2, 4

Instruction = tuple[int, int, int, int]


class Unsupported(OSError):
    """This kernel or machine cannot do what a layer needs."""


def program(machine: str, *, files: bool, nest: bool = False) -> list[Instruction]:
    """The filter as BPF instructions (code, jump if true, jump if false, constant).

    Args:
      machine: as `os.uname().machine`. files: with the calls that name files. nest: with those of `NEST`, too.

    Raises:
      Unsupported: no table for this machine.
    """
    column, out = _opening(machine)
    free = _nest_numbers(column, files) if nest else set()
    for number in free:
        out += _guarded(number, [(RET, 0, 0, ALLOW)])
    for number, block in _rules(column, files).items():
        if number not in free:
            out += _guarded(number, block)
    return [*out, (JGE, 0, 1, NEW_CALLS), (RET, 0, 0, ERRNO | errno.ENOSYS), (RET, 0, 0, ERRNO | errno.EPERM)]


def narrowing(machine: str, *, files: bool) -> list[Instruction]:
    """A short filter that makes `program(..., nest=True)` as strict as `program(...)`; the kernel asks both."""
    column, out = _opening(machine)
    rules = _rules(column, files)
    for number in _nest_numbers(column, files):
        refused = (RET, 0, 0, ERRNO | (errno.ENOSYS if number >= NEW_CALLS else errno.EPERM))
        out += _guarded(number, rules.get(number, [refused]))
    return [*out, (RET, 0, 0, ALLOW)]


def _opening(machine: str) -> tuple[int, list[Instruction]]:
    """The column of the tables for a machine, and the instructions that leave the number of the call to be tested."""
    if machine not in ARCHITECTURES:
        raise Unsupported(f"no table of system calls for {machine}; there is one for {', '.join(ARCHITECTURES)}")
    column, arch = ARCHITECTURES[machine]
    return column, [(LD, 0, 0, 4), (JEQ, 1, 0, arch), (RET, 0, 0, KILL), (LD, 0, 0, 0)]


def _rules(column: int, files: bool) -> dict[int, list[Instruction]]:
    """Number of a call -> instructions that decide on it. What is not here is refused."""
    rules: dict[int, list[Instruction]] = {}
    for numbers in [*PLAIN.values(), *(FILES.values() if files else ())]:
        if (number := numbers[column]) is not None:
            rules[number] = [(RET, 0, 0, ALLOW)]
    for numbers, alternatives in CONDITIONAL.values():
        if (number := numbers[column]) is not None:
            rules[number] = _allow_if(alternatives)
    for numbers, flags in OPENING if files else ():
        if (number := numbers[column]) is not None:
            truncating: Condition = (_low(flags), O_TRUNC | O_ACCMODE, O_TRUNC | O_RDONLY)
            refuse = [*_test(truncating, skip=1), (RET, 0, 0, ERRNO | errno.EPERM)]
            rules[number] = [*refuse, (RET, 0, 0, ALLOW)]
    return rules


def _nest_numbers(column: int, files: bool) -> set[int]:
    names = [*NEST.values(), *(() if files else FILES.values()), *(() if files else (n for n, _ in OPENING))]
    names += [CONDITIONAL[name][0] for name in NEST_FREELY]
    return {number for numbers in names if (number := numbers[column]) is not None}


def _guarded(number: int, block: list[Instruction]) -> list[Instruction]:
    """The block for one call; every way through it returns."""
    return [(JEQ, 0, len(block), number), *block]


def _allow_if(alternatives: Sequence[Sequence[Condition]]) -> list[Instruction]:
    out: list[Instruction] = []
    for conditions in alternatives:
        block: list[Instruction] = [(RET, 0, 0, ALLOW)]
        for condition in reversed(conditions):
            block = [*_test(condition, skip=len(block)), *block]
        out += block
    return [*out, (RET, 0, 0, ERRNO | errno.EPERM)]


def _test(condition: Condition, *, skip: int) -> list[Instruction]:
    """Goes on if the condition holds, else skips so many instructions."""
    word, mask, value = condition
    masked = [] if mask == ALL else [(AND, 0, 0, mask)]
    return [(LD, 0, 0, 16 + 4 * word), *masked, (JEQ, 0, skip, value)]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


class Filter:
    """A filter ready to be installed after a fork: built once, the pid filled in there."""

    def __init__(self, instructions: Sequence[Instruction], machine: str | None = None):
        self.number = SECCOMP[machine or os.uname().machine]
        self.data = bytearray(b"".join(struct.pack("=HBBI", *i) for i in instructions))
        self.length = len(instructions)
        buffer = (ctypes.c_char * len(self.data)).from_buffer(self.data)
        self.filtered = ctypes.byref(_Program(self.length, ctypes.addressof(buffer)))
        self.pid_places = [8 * i + 4 for i, each in enumerate(instructions) if each[0] == JEQ and each[3] == PID]

    def check(self, libc: ctypes.CDLL) -> None:
        """Raises Unsupported if the kernel has no such filters."""
        if libc.syscall(self.number, GET_ACTION_AVAIL, 0, ctypes.byref(ctypes.c_uint32(ERRNO))) != 0:
            raise _unsupported()

    def install(self, libc: ctypes.CDLL, pid: int) -> None:
        """From here on this process (which must have one thread) is filtered, for good.

        Raises:
          Unsupported: the kernel refuses.
        """
        for place in self.pid_places:
            struct.pack_into("=I", self.data, place, pid)
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        # SPEC_ALLOW: without it older kernels slow the process down, for secrets that it does not hold.
        for flags in (SPEC_ALLOW, 0):
            if libc.syscall(self.number, SET_MODE_FILTER, flags, self.filtered) == 0:
                return
        raise _unsupported()


def _unsupported() -> Unsupported:
    return Unsupported(f"seccomp: {errno.errorcode.get(ctypes.get_errno(), ctypes.get_errno())}")
