"""Which tasks the teacher is asked, in rounds: a pure function of the tasks, the seed and what is chosen so far."""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Callable, Mapping, Sequence

from metaagent_x.tasks.datasets import DatasetError, Pairs
from metaagent_x.tasks.datasets.overlap import overlap
from metaagent_x.tasks.task import Rubric, Task


class Plan:
    """Every task once, datasets by their shares; what a full quota would leave out is not asked any more.

    Args:
      sources: dataset -> its tasks. shares: dataset -> share of the tasks asked, while all have room.
      seed: fixes the orders.
    """

    def __init__(self, sources: Mapping[str, Pairs], shares: Mapping[str, float], seed: int) -> None:
        def place(pair: tuple[Task, Rubric]) -> bytes:
            return hashlib.blake2b(repr((seed, pair[0].id)).encode(), digest_size=8).digest()

        self._queues = {name: sorted(pairs, key=place) for name, pairs in sources.items()}
        self._shares = dict(shares)
        self._place, self._drawn = dict.fromkeys(sources, 0), dict.fromkeys(sources, 0)

    def draw(self, count: int, has_room: Callable[[str, Task], bool]) -> list[tuple[str, Task, Rubric]]:
        """The next tasks with their datasets; fewer than `count` only if no dataset has more that are wanted.

        Args:
          has_room: whether a task of a dataset is still wanted. One that is not is passed over for good.
        """
        out: list[tuple[str, Task, Rubric]] = []
        while len(out) < count:
            able = [name for name in self._queues if self._has_next(name, has_room)]
            if not able:
                break
            name = min(able, key=lambda name: (self._drawn[name] + 1) / self._shares[name])
            out.append((name, *self._queues[name][self._place[name]]))
            self._place[name] += 1
            self._drawn[name] += 1
        return out

    def _has_next(self, name: str, has_room: Callable[[str, Task], bool]) -> bool:
        queue = self._queues[name]
        while self._place[name] < len(queue) and not has_room(name, queue[self._place[name]][0]):
            self._place[name] += 1
        return self._place[name] < len(queue)


def clean(
    sources: Mapping[str, Pairs], benchmarks: Sequence[tuple[str, Pairs]]
) -> tuple[dict[str, Pairs], dict[tuple[str, str], int]]:
    """Leaves out the tasks that share text with a benchmark (`overlap`: the same question, or 13 words in a row).

    Returns:
      the sources that are left; (dataset, benchmark) -> how many of its tasks were left out for this benchmark.

    Raises:
      DatasetError: nothing is left of a source.
    """
    texts = [(task.id, task.prompt) for pairs in sources.values() for task, _ in pairs]
    asked: dict[str, set[str]] = {}
    for name, pairs in benchmarks:
        asked[name] = {match.training for match in overlap(texts, [(task.id, task.prompt) for task, _ in pairs])}
    bad = set().union(*asked.values())
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    left: dict[str, Pairs] = {}
    for name, pairs in sources.items():
        left[name] = [pair for pair in pairs if pair[0].id not in bad]
        for benchmark, ids in asked.items():
            counts[name, benchmark] = sum(task.id in ids for task, _ in pairs)
        if pairs and not left[name]:
            raise DatasetError(f"every task of {name!r} is asked by a benchmark of distill.benchmarks; nothing is left")
    return left, dict(+counts)
