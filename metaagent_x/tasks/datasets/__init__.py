"""The datasets: from rows of local files to pairs of a `Task` and its `Rubric`.

A row that no grader could judge is dropped and counted, and so is a training task that asks what an earlier one asks;
benchmarks keep every row of the official list. A row that breaks the dataset's own form is an error that names the
file, the line and the field. The known oddities of the real rows are repaired where they are read (`math_sets`,
`code_sets`). Options go with the name: "apps:split=train,difficulty=introductory", "livecodebench:release=v6".

  python -m metaagent_x.tasks.datasets fetch NAME... --to DIR
  python -m metaagent_x.tasks.datasets check NAME
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence

from metaagent_x.tasks.datasets import reading
from metaagent_x.tasks.datasets.files import open_rows
from metaagent_x.tasks.datasets.registry import DATASETS, Dataset, Hub, parse
from metaagent_x.tasks.datasets.rows import DatasetError, Dropped, Row
from metaagent_x.tasks.task import Rubric, Task

__all__ = [
    "DATASETS", "Dataset", "DatasetError", "Dropped", "Hub", "Pairs", "Row", "load", "load_report", "open_rows",
    "parse", "public_only", "solutions",
]  # fmt: skip

Pairs = list[tuple[Task, Rubric]]


def load(name: str, path: str | None = None) -> Pairs:
    """All usable tasks of a dataset, in file order. See `load_report`."""
    return load_report(name, path)[0]


def load_report(name: str, path: str | None = None) -> tuple[Pairs, collections.Counter[str]]:
    """Reads a dataset and says what it left out.

    All tasks and tests are in memory afterwards. The six releases of LiveCodeBench are 4.5 GB packed; ask for one
    ("release=v6") or for dates ("from=2025-01-01"): rows that the options do not want are not unpacked.

    Args:
      name: a key of `DATASETS`, with options or without ("apps:split=test"). Without a split the first of the dataset
        is read, and all of a file that is named itself.
      path: a file (.jsonl, .jsonl.gz, .json, .parquet, .arrow), a folder of such files, a folder made by `fetch`, or a
        TFDS folder; or "hub:REPO@REVISION", of the Hugging Face hub, either left out for what the registry names: it is
        fetched once, into `hub/` of the folder of all datasets (`fetch` does the same with a progress bar). None: NAME
        in that folder, which is $METAAGENT_X_DATA, or else ./data.

    Returns:
      The pairs, ids unique; and how many rows were dropped, by reason.

    Raises:
      DatasetError: unknown name or option, nothing there, a damaged or unreadable file, no row or none that the options
        want, a row that breaks the dataset's form, a split that cannot be told from the others.
    """
    dataset, _ = parse(name)
    pairs: Pairs = []
    dropped: collections.Counter[str] = collections.Counter()
    questions: set[str] = set()
    for item in reading.read(name, path):
        if not (item.task and item.rubric):
            dropped[item.dropped] += 1
        elif item.task.prompt.strip() in questions and item.split not in dataset.benchmarks:
            dropped["question of an earlier row"] += 1
        else:
            questions.add(item.task.prompt.strip())
            pairs.append((item.task, item.rubric))
    return pairs, dropped


def public_only(pairs: Sequence[tuple[Task, Rubric]]) -> list[str]:
    """Ids of those tasks of a code benchmark that are judged on nothing but the tests that the agents see."""
    return [task.id for task, _ in pairs if task.metadata.get("hidden_tests") == 0]


def solutions(name: str, path: str | None = None) -> Iterator[tuple[str, list[str]]]:
    """Ids of the tasks and their reference programs (those in Python 3), which no task or rubric holds.

    Raises:
      DatasetError: as `load_report`; a dataset without reference programs.
    """
    dataset, _ = parse(name)
    if not dataset.solutions:
        having = ", ".join(entry.name for entry in DATASETS.values() if entry.solutions)
        raise DatasetError(f"{name}: has no reference programs; these have: {having}")
    for row, item in reading.converted(dataset, open_rows(name, path, all_columns=True)):
        if item.task:
            yield item.task.id, dataset.solutions(row)
