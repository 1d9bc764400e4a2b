"""Which tasks each step trains on: a pure function of (data, seed, step).

So a resumed run needs no state of an iterator: the step says where it stands, and `fingerprint` whether the data are
still the same.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from fractions import Fraction
from math import lcm
from typing import Any

from metaagent_x.tasks.datasets import DatasetError, Pairs


class Mixture:
    """Draws batches with exact shares from several sources.

    Each source is a stream of its own: shuffled, each task once an epoch, shuffled anew every epoch (Grain's random
    access: position -> task). A batch never holds a task twice, also where one epoch ends and the next begins inside
    it: tasks of a new epoch that the batch already holds come a little later in that epoch.

    Attributes:
      sources: name -> its pairs, in file order.
    """

    def __init__(
        self, sources: Mapping[str, Pairs], shares: Mapping[str, float], batch: int, seed: int,
        *, host: int = 0, hosts: int = 1,
    ) -> None:  # fmt: skip
        """
        Args:
          sources: name -> its pairs of task and rubric.
          shares: name -> share of every batch; together 1.
          batch: tasks a step, over all hosts.
          seed: fixes all orders.
          host, hosts: which of how many processes this is. Every one draws the same batch and takes each `hosts`-th
            task of it, so the batch of a step does not depend on the number of hosts.

        Raises:
          DatasetError: names that do not match, an empty source, shares that do not sum to 1 or do not give whole
            numbers of tasks (says which batch sizes do), a source with fewer tasks than one batch takes from it, a
            task id that occurs twice, more hosts than tasks in a batch.
        """
        if set(sources) != set(shares) or not sources:
            raise DatasetError(f"sources {sorted(sources)} and shares {sorted(shares)} must name the same sets")
        if not 0 <= host < hosts:
            raise ValueError(f"host={host} is not one of hosts={hosts}, counted from 0")
        counts = _counts(shares, batch)
        if hosts > batch:
            raise DatasetError(f"batch={batch} is less than a task for each of {hosts} hosts; raise it to {hosts}")
        self.sources = dict(sources)
        self._streams = [_Stream(name, sources[name], counts[name], seed) for name in sources]
        self._host, self._hosts = host, hosts
        owner: dict[str, str] = {}
        for name, pairs in sources.items():
            for task, _ in pairs:
                if task.id in owner:
                    raise DatasetError(
                        f"task id {task.id!r} occurs twice, in {owner[task.id]!r} and in {name!r}; a task must come "
                        "from one source only: name one folder that holds both files, or options that do not overlap"
                    )
                owner[task.id] = name

    def batch_at(self, step: int) -> Pairs:
        """This host's part of the batch of a step (from 0), grouped by source in the order of `sources`."""
        if step < 0:
            raise ValueError(f"step={step} must be at least 0")
        return [pair for stream in self._streams for pair in stream.take(step)][self._host :: self._hosts]


def fingerprint(pairs: Pairs) -> str:
    """A hash of what a set asks and what it counts as right, in order: tasks, golds, tests and limits."""
    digest = hashlib.sha256()
    for task, rubric in pairs:
        right = [rubric.gold, rubric.time_limit_s, rubric.memory_mb, rubric.checker]
        digest.update(json.dumps([task.id, task.prompt, right, len(task.public_tests), len(rubric.tests)]).encode())
        for test in (*task.public_tests, *rubric.tests):
            digest.update(json.dumps(dict(test)).encode())
    return digest.hexdigest()[:16]


def _counts(shares: Mapping[str, float], batch: int) -> dict[str, int]:
    exact = {name: Fraction(share).limit_denominator(10_000) for name, share in shares.items()}
    if sum(exact.values()) != 1 or min(exact.values()) <= 0:
        raise DatasetError(f"shares {dict(shares)} must be above 0 and sum to 1; they sum to {sum(shares.values()):g}")
    if batch < 1 or any((share * batch).denominator != 1 for share in exact.values()):
        whole = lcm(*(share.denominator for share in exact.values()))
        raise DatasetError(
            f"batch={batch} with shares {dict(shares)} does not give whole numbers of tasks; "
            f"multiples of {whole} do: {whole}, {2 * whole}, {3 * whole}, ..."
        )
    return {name: int(share * batch) for name, share in exact.items()}


class _Stream:
    """One source, `count` tasks a step."""

    def __init__(self, name: str, pairs: Pairs, count: int, seed: int) -> None:
        import grain  # here: reading this module must stay cheap

        if not pairs:
            raise DatasetError(f"source {name!r} holds no tasks")
        if len(pairs) < count:
            raise DatasetError(f"source {name!r} holds {len(pairs)} tasks; every batch needs {count} different ones")
        self.pairs, self.count = pairs, count
        # Sources of equal size must not be shuffled alike.
        own_seed = (seed * 1_000_003 + zlib.crc32(name.encode())) % 2**32
        self._shuffled: Any = grain.MapDataset.source(range(len(pairs))).seed(own_seed).shuffle().repeat()
        self._small_epochs: list[list[int]] = []
        # An epoch and the order of its first places, kept since Grain needs milliseconds a position in small sources.
        self._head: tuple[int, list[int]] = -1, []

    def take(self, step: int) -> Pairs:
        return [self.pairs[self._index(step * self.count + i)] for i in range(self.count)]

    def _index(self, position: int) -> int:
        """The task at a position of the endless stream."""
        size, count = len(self.pairs), self.count
        epoch, place = divmod(position, size)
        if size < 3 * count:
            return self._small_epoch(epoch)[place]
        if place >= 2 * count:  # only the first places of an epoch are ever touched
            return int(self._shuffled[position])
        if self._head[0] != epoch:
            start = epoch * size
            head = [int(self._shuffled[start + i]) for i in range(2 * count)]
            held = start % count  # tasks of the last epoch in the batch that goes on into this one
            tail = {int(self._shuffled[start - 1 - i]) for i in range(held)}
            self._head = epoch, _without_repeats(head, tail, count - held)
        return self._head[1][place]

    def _small_epoch(self, epoch: int) -> list[int]:
        """The order of an epoch of a source so small that the end of one epoch depends on how it began."""
        size, count = len(self.pairs), self.count
        while len(self._small_epochs) <= epoch:
            start = len(self._small_epochs) * size
            order = [int(self._shuffled[start + i]) for i in range(size)]
            held = start % count
            tail = set(self._small_epochs[-1][size - held :]) if held else set()
            self._small_epochs.append(_without_repeats(order, tail, count - held))
        return self._small_epochs[epoch]


def _without_repeats(order: list[int], held: set[int], free: int) -> list[int]:
    """Moves `held` tasks behind the first `free` places; the order is kept otherwise."""
    first = [i for i in order if i not in held][:free]
    return first + [i for i in order if i not in first]
