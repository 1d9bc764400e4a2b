"""The benchmarks of an evaluation: names with options and paths, and the tasks behind them."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from metaagent_x.tasks import datasets, families
from metaagent_x.tasks.datasets import DatasetError, Pairs
from metaagent_x.tasks.mixture import fingerprint

Entry = tuple[str, str]  # name with its options, path ("": where all datasets are)


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """Tasks that results are reported on.

    Attributes:
      name: what it is called in results, with the options that were given. base: the name without them.
      pairs: its tasks, cut to the limit. available: how many there are without it.
      dropped: rows that cannot be graded, by reason. hash: of all that it asks and counts as right.
    """

    name: str
    base: str
    pairs: Pairs
    available: int
    dropped: dict[str, int]
    hash: str

    @property
    def whole(self) -> bool:
        """Whether all tasks of a benchmark are played, so that figures published for it may stand beside the results:
        neither a limit nor an option leaves some out (a release is an edition, not a part), and the split is one that
        is reported on."""
        options = datasets.parse(self.name)[1] if self.base in datasets.DATASETS else {}
        split = options.pop("split", None)
        reported = split is None or split in datasets.DATASETS[self.base].benchmarks
        return len(self.pairs) == self.available and reported and not options.keys() - {"release"}

    def origin(self) -> dict[str, object]:
        """Its record in `data.json`."""
        return {
            "use": "test", "name": self.name, "read": self.available + sum(self.dropped.values()),
            "dropped": self.dropped, "public_only": len(datasets.public_only(self.pairs)), "tasks": self.available,
            "hash": self.hash,
        }  # fmt: skip


def parse(text: str) -> tuple[Entry, ...]:
    """Entries of a comma-separated list: "aime24,apps:split=test,difficulty=introductory,aime25@rows.jsonl".

    A part with "=" and without ":" is a further option of the one before it; a path follows "@".
    """
    out: list[Entry] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        head = part.partition("@")[0]
        if out and "=" in head and ":" not in head:
            name, path = out.pop()
            part = f"{name},{part}" + (f"@{path}" if path else "")
        name, _, path = part.partition("@")
        out.append((name, path))
    return tuple(out)


def open_benchmark(entry: Entry, *, generated: int, limit: int) -> Benchmark:
    """Reads one benchmark. Of a dataset whose first split is not a benchmark, the split that is one is read.

    Args:
      entry: name and path; a generated family ("tiny_math") gives the first `generated` tasks of its test split, those
        that a training run of the same size is judged on. limit: tasks at most; 0: all.

    Raises:
      DatasetError: see `datasets.load_report`; no usable task.
    """
    name, path = entry
    dropped: collections.Counter[str] = collections.Counter()
    base = name.partition(":")[0]
    if name in families.NAMES:
        pairs = families.generate(families.NAMES[name], "test", generated)
    elif base not in datasets.DATASETS:
        known = ", ".join((*families.NAMES, *datasets.DATASETS))
        raise DatasetError(f"no benchmark {name!r}; there are {known}")
    else:
        pairs, dropped = datasets.load_report(_of_benchmark_split(name), path or None)
        if not pairs:
            raise DatasetError(f"{name!r} holds no usable task; dropped: {dict(dropped) or 'nothing'}")
    kept = pairs[:limit] if limit else pairs
    return Benchmark(name, base, kept, len(pairs), dict(dropped), fingerprint(pairs))


def open_all(entries: Sequence[Entry], *, generated: int, limit: int) -> list[Benchmark]:
    """All benchmarks, in order. Raises DatasetError: see `open_benchmark`; there are none, or one is named twice."""
    if not entries:
        raise DatasetError("no benchmark is named; name some: --benchmarks=aime24,apps")
    names = [name for name, _ in entries]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DatasetError(f"benchmark {twice!r} is named twice; its results could not be told apart")
    return [open_benchmark(entry, generated=generated, limit=limit) for entry in entries]


def _of_benchmark_split(name: str) -> str:
    dataset, options = datasets.parse(name)
    if "split" in options or not dataset.benchmarks or dataset.splits[0] in dataset.benchmarks:
        return name
    return f"{name}{',' if options else ':'}split={dataset.benchmarks[0]}"
