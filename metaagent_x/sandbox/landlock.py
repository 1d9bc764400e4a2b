"""Which files a contained process may open: Landlock, by path (man 7 landlock)."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Sequence

from metaagent_x.sandbox.seccomp import PR_SET_NO_NEW_PRIVS, Unsupported

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # on every architecture
VERSION, PATH_BENEATH = 1, 1
(EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK,
 MAKE_FIFO, MAKE_BLOCK, MAKE_SYM, REFER, TRUNCATE, IOCTL_DEV) = (1 << i for i in range(16))  # fmt: skip
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
OWN = WRITE_FILE | READ_FILE | READ_DIR | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | REFER | TRUNCATE
TCP, SCOPES = 0b11, 0b11  # bind and connect; abstract sockets and signals


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("fd", ctypes.c_int32))


class Landlock:
    """Restricts processes to reading some places and to one folder of their own.

    Attributes:
      abi: version that the kernel speaks; each adds kinds of access that it can refuse.
    """

    def __init__(
        self, libc: ctypes.CDLL, private: str, readable: Sequence[str], writable: Sequence[str] = (),
        hidden: Sequence[str] = (),
    ):  # fmt: skip
        """Prepares the rules.

        Args:
          private: where the folders of all runs are.
          readable, writable: files and folders; what does not exist is left out.
          hidden: folders of such names in `readable` cannot be read, but where `readable` names something in them.

        Raises:
          Unsupported: the kernel has no Landlock (before 5.13, or not switched on).
        """
        self.libc = libc
        self.abi = libc.syscall(CREATE_RULESET, None, 0, VERSION)
        if self.abi < 1:
            raise Unsupported(f"Landlock: {errno.errorcode.get(ctypes.get_errno(), ctypes.get_errno())}")
        self.handled = OWN | EXECUTE | MAKE_CHAR | MAKE_SOCK | MAKE_FIFO | MAKE_BLOCK | MAKE_SYM | IOCTL_DEV
        for abi, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
            if self.abi < abi:
                self.handled &= ~right
        readable, writable = _existing(readable), _existing(writable)
        self.rules = [self._rule(path, READ_FILE | READ_DIR) for path in readable]
        self.rules += [self._rule(path, READ_FILE | WRITE_FILE | TRUNCATE) for path in writable]
        # Rules can only allow. So what is hidden is left out of a second ruleset, for reading alone, which names what
        # stands beside it. What both allow is open.
        self.shown = self._ask(CREATE_RULESET, ctypes.byref(_Ruleset(READ_FILE, 0, 0)), 8, 0)
        shown = [path for place in readable for path in _beside(place, hidden)]
        for path in dict.fromkeys((private, *writable, *shown)):
            rule = self._rule(path, READ_FILE)
            self._ask(ADD_RULE, self.shown, PATH_BENEATH, ctypes.byref(rule), 0)
            os.close(rule.fd)

    def restrict(self, folder: str) -> None:
        """From here on this process (of one thread) opens nothing but the places, and files in its folder.

        Raises:
          Unsupported: the kernel refuses.
        """
        rulesets = self.prepare(folder)
        self.apply(rulesets)
        os.close(rulesets[-1])

    def prepare(self, folder: str) -> list[int]:
        """Descriptors of the rulesets of processes with that folder. Raises Unsupported."""
        rules = _Ruleset(self.handled, TCP if self.abi >= 4 else 0, SCOPES if self.abi >= 6 else 0)
        size = 24 if self.abi >= 6 else 16 if self.abi >= 4 else 8
        ruleset = self._ask(CREATE_RULESET, ctypes.byref(rules), size, 0)
        own = self._rule(folder, OWN)
        for rule in [*self.rules, own]:
            self._ask(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(rule), 0)
        os.close(own.fd)
        self.libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return [self.shown, ruleset]

    def apply(self, rulesets: Sequence[int]) -> None:
        """Puts prepared rulesets over this process (of one thread); its parents may have prepared them."""
        for each in rulesets:
            self._ask(RESTRICT_SELF, each, 0)

    def _rule(self, path: str, rights: int) -> _Beneath:
        fd = os.open(path, os.O_PATH)
        rights &= self.handled if stat.S_ISDIR(os.fstat(fd).st_mode) else self.handled & OF_FILES
        return _Beneath(rights, fd)

    def _ask(self, *args: object) -> int:
        result = self.libc.syscall(*args)
        if result < 0:
            raise Unsupported(f"Landlock: {errno.errorcode.get(ctypes.get_errno(), ctypes.get_errno())}")
        return result


def _existing(paths: Sequence[str]) -> list[str]:
    return sorted({os.path.realpath(path) for path in paths if os.path.exists(path)})


def _beside(path: str, hidden: Sequence[str], depth: int = 2) -> list[str]:
    """The path, or where folders of hidden names stand in it, up to two levels deep, all that stands beside them."""
    if depth == 0 or not os.path.isdir(path):
        return [path]
    out, found = [], False
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name in hidden:
                found = True
            elif not entry.is_symlink():  # where it leads is in a place of its own, or nowhere
                inner = _beside(entry.path, hidden, depth - 1)
                out += inner
                found = found or inner != [entry.path]
    return out if found else [path]
