"""Which branch may spend what of a budget: the host's ledger of one execution.

Branches run at once, but who is quick must not decide which calls are made. So when branches open, what their
enclosing branch has left is dealt out evenly among them (the remainder to the first). A branch does one thing after
another, so its share runs out at a fixed request. That request is held until no branch of the group can go on: each has
ended, is held, or has opened branches that cannot go on. Then what all of them have left is dealt out again, evenly
among the held ones that it can serve. If it serves none, the enclosing branch as a whole counts as held. When that
reaches the outermost branch, the budget is used up and every held request is stopped. Since a group is looked at only
when nothing in it moves, every decision depends on what the branches did, never on when.

The script process says when branches open and end. It is hostile, so nothing is believed that would give it more:
shares are parts of what is left, and a branch asks for one thing at a time. A lie moves shares about or holds requests
that nobody frees, until the wall limit of its own execution.

The tokens of a call are known only when it is done: it is started while its branch has a token left, and overdraws the
share by at most its length less one. What is overdrawn is a debt to the group, and only what is left after debts is
dealt out again. So the sum exceeds the budget by less than one completion for each branch that held a share at the end.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Generic, TypeVar

from metaagent_x.mas.messages import Malformed, order

MAX_BRANCHES = 512  # open at once in one execution; each is a thread of the script process
NEEDS = {"call": ("calls", "tokens"), "run_python": ("tools",), "run_tests": ("tests", "tools")}

R = TypeVar("R")


@dataclasses.dataclass(eq=False)
class Share(Generic[R]):
    """What one open branch may spend, and what it is doing.

    Attributes:
      path: its branch indices and numbers. left: amount by kind; negative tokens are a debt.
      parent: the enclosing branch. members: the branches that it has opened and waits for, in order.
      busy: a request of it is being answered. held: a request that waits for a share. needs: kinds that it needs.
    """

    path: tuple[int, ...]
    left: Counter[str]
    parent: Share[R] | None = None
    members: list[Share[R]] = dataclasses.field(default_factory=list)
    busy: bool = False
    ended: bool = False
    held: R | None = None
    needs: tuple[str, ...] = ()

    @property
    def stuck(self) -> bool:
        """True if it cannot go on by itself."""
        return self.ended or self.held is not None or (bool(self.members) and all(m.stuck for m in self.members))

    def tree(self) -> Iterator[Share[R]]:
        """This share and those inside it, in the order of their paths."""
        yield self
        for member in self.members:
            yield from member.tree()


class Ledger(Generic[R]):
    """The shares of all open branches. Requests of type R are handed back when they may go on, or must stop."""

    def __init__(self, **limits: int):
        self.root: Share[R] = Share((), Counter(limits))
        self.shares: dict[tuple[int, ...], Share[R]] = {(): self.root}

    def ask(self, path: str, needs: tuple[str, ...], request: R) -> list[tuple[Share[R], R, str]]:
        """A request that needs at least one of each kind; one of each but tokens is spent when it goes on.

        Returns:
          (share, request, reason) of what is decided by this: reason "" may go on (its share is busy until told
          otherwise), any other names the kind that is used up. Empty if the request is held.

        Raises:
          Malformed: the branch of this path waits for a reply or for branches of its own.
        """
        share = self._branch(path)
        share.held, share.needs = request, needs
        return [self._start(share)] if _serves(share.left, share) else self._settle(share)

    def open(self, path: str, count: int) -> None:
        """Branches path.0 to path.(count - 1) begin; their enclosing branch waits until all have ended.

        Raises:
          Malformed: see `ask`; or more than `MAX_BRANCHES` would be open at once.
        """
        outer = self._branch(path)
        if not 1 <= count <= MAX_BRANCHES + 1 - len(self.shares):
            raise Malformed(
                f"{count} branches at {path!r}: at most {MAX_BRANCHES} may be open at once; use fewer agents"
            )
        outer.members = [Share((*order(path), i), Counter(), outer) for i in range(count)]
        self.shares |= {m.path: m for m in outer.members}
        _deal(_collect([outer]), outer.members)

    def end(self, path: str) -> list[tuple[Share[R], R, str]]:
        """A branch has ended. Returns as `ask`.

        Raises:
          Malformed: there is no such branch, or it waits for something.
        """
        share = self.shares.get(order(path))
        if share is None or share.parent is None or share.busy or share.held is not None or share.members:
            raise Malformed(f"branch {path!r} cannot end: it is not open or waits for something")
        share.ended = True
        del self.shares[share.path]
        return self._settle(share)

    def _branch(self, path: str) -> Share[R]:
        """The innermost open branch around a path."""
        place = order(path)
        share = next(self.shares[place[:n]] for n in reversed(range(len(place))) if place[:n] in self.shares)
        if share.busy or share.held is not None or share.members:
            raise Malformed(f"path {path!r}: its branch waits for something and cannot ask for more")
        return share

    def _settle(self, share: Share[R]) -> list[tuple[Share[R], R, str]]:
        """What follows from a share that has ended or is held now."""
        group = share.parent
        while group is not None:
            if all(m.ended for m in group.members):
                group.left, group.members = _collect(group.members), []
                return []
            if not all(m.stuck for m in group.members):
                return []
            if going := self._deal_again(group):
                return going
            group = group.parent
        return self._stop()

    def _deal_again(self, group: Share[R]) -> list[tuple[Share[R], R, str]]:
        inside = list(group.tree())
        pool = _total(inside)
        served = [s for s in inside if s.held is not None and _serves(pool, s)]
        if not served:
            return []
        _deal(_collect(inside), served)
        return [self._start(s) for s in served if _serves(s.left, s)]

    def _start(self, share: Share[R]) -> tuple[Share[R], R, str]:
        request, share.held, share.busy = share.held, None, True
        assert request is not None  # only held requests are started
        share.left.subtract(kind for kind in share.needs if kind != "tokens")
        return share, request, ""

    def _stop(self) -> list[tuple[Share[R], R, str]]:
        """Nothing can go on: every held request stops, for what the first of them lacks."""
        inside = list(self.root.tree())
        pool, held = _total(inside), [s for s in inside if s.held is not None]
        reason = next(kind for kind in held[0].needs if pool[kind] < 1)
        stopped = [(s, s.held, reason) for s in held if s.held is not None]
        for share in held:
            share.held = None
        return stopped


def _serves(left: Counter[str], share: Share) -> bool:
    return all(left[kind] >= 1 for kind in share.needs)


def _total(shares: list[Share]) -> Counter[str]:
    total: Counter[str] = Counter()
    for share in shares:
        total.update(share.left)  # unlike +, keeps debts
    return total


def _collect(shares: list[Share]) -> Counter[str]:
    """Takes all that these shares have left."""
    total = _total(shares)
    for share in shares:
        share.left = Counter()
    return total


def _deal(pool: Counter[str], shares: list[Share]) -> None:
    """Even parts of each kind, the remainder to the first."""
    for kind, amount in pool.items():
        part, more = divmod(amount, len(shares))
        for i, share in enumerate(shares):
            share.left[kind] += part + (i < more)
