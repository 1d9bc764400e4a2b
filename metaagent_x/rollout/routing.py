"""Which of several servers a request goes to: the least loaded, or the one that has computed most of its prompt.

A server keeps the keys and values of prompts that it has read. The M designs of one task share their whole prompt, and
a conversation with memory extends its own earlier ids: both are cheaper where the beginning is known.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

BLOCK = 32  # ids; a beginning counts in whole blocks
SHARE = 0.5  # of a prompt that must be known for a server to be its home: a system text that all prompts begin with
#              is no reason to send all of them to one server


def beginnings(ids: Sequence[int], block: int = BLOCK) -> list[int]:
    """A hash of every beginning of `ids` that ends at a block border, shortest first; each covers all before it."""
    out, so_far = [], 0
    for end in range(block, len(ids) + 1, block):
        so_far = hash((so_far, *ids[end - block : end]))
        out.append(so_far)
    return out


def choose(loads: Sequence[int | None], home: int | None, slack: int) -> int | None:
    """The server for a request.

    Args:
      loads: requests on each server; None where it takes none now.
      home: the server that knows the prompt's beginning, if any.
      slack: how many more requests than the least loaded server `home` may have and still be chosen.

    Returns:
      an index into `loads`; None if no server takes requests. The first of the least loaded ones.
    """
    open_ = [(load, i) for i, load in enumerate(loads) if load is not None]
    if not open_:
        return None
    least, first = min(open_)
    at_home = None if home is None else loads[home]
    return home if at_home is not None and at_home <= least + slack else first


class Homes:
    """Remembers which server has read which beginning, the newest `room` of them."""

    def __init__(self, room: int = 1 << 16):
        self._room = room
        self._home: collections.OrderedDict[int, int] = collections.OrderedDict()

    def home(self, ids: Sequence[int]) -> int | None:
        """The server that has read at least half of this prompt, if one has."""
        known = beginnings(ids)
        for i in reversed(range(len(known))):
            if (i + 1) * BLOCK < SHARE * len(ids):
                break
            if known[i] in self._home:
                return self._home[known[i]]
        return None

    def remember(self, ids: Sequence[int], server: int) -> None:
        for beginning in beginnings(ids):
            self._home[beginning] = server
            self._home.move_to_end(beginning)
        while len(self._home) > self._room:
            self._home.popitem(last=False)

    def forget(self, server: int) -> None:
        """The server has lost what it had read."""
        for beginning in [b for b, s in self._home.items() if s == server]:
            del self._home[beginning]

    def clear(self) -> None:
        """New weights: nothing that was read counts any more."""
        self._home.clear()
