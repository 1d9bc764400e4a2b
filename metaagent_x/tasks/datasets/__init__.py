"""The datasets: from rows of local files to pairs of a `Task` and its `Rubric`.

A row that no grader could judge is dropped and counted; a row that breaks the dataset's own form is an error that names
the file, the line and the field. The known oddities of the real rows are repaired where they are read (`math_sets`,
`code_sets`). Options go with the name: "apps:split=train,difficulty=introductory", "livecodebench:release=v6".

  python -m metaagent_x.tasks.datasets fetch NAME... --to DIR
  python -m metaagent_x.tasks.datasets check NAME
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator

from metaagent_x.tasks.datasets.files import open_rows
from metaagent_x.tasks.datasets.registry import DATASETS, Dataset, Hub, parse
from metaagent_x.tasks.datasets.rows import DatasetError, Dropped, Row
from metaagent_x.tasks.task import Rubric, Task

__all__ = [
    "DATASETS", "Dataset", "DatasetError", "Dropped", "Hub", "Pairs", "Row", "load", "load_report", "open_rows",
    "parse", "solutions",
]  # fmt: skip

Pairs = list[tuple[Task, Rubric]]


def load(name: str, path: str | None = None) -> Pairs:
    """All usable tasks of a dataset, in file order. See `load_report`."""
    return load_report(name, path)[0]


def load_report(name: str, path: str | None = None) -> tuple[Pairs, collections.Counter[str]]:
    """Reads a dataset and says what it left out.

    Args:
      name: a key of `DATASETS`, with options or without ("apps:split=test"). Without a split the first of the dataset
        is read, and all of a file that is named itself.
      path: a file (.jsonl, .jsonl.gz, .json, .parquet, .arrow), a folder of such files, a folder made by `fetch`, or a
        TFDS folder. None: the folder NAME in $METAAGENT_X_DATA, or else in ./data.

    Returns:
      The pairs, ids unique; and how many rows were dropped, by reason.

    Raises:
      DatasetError: unknown name or option, nothing there, a damaged or unreadable file, a row that breaks the dataset's
        form, a split that cannot be told from the others.
    """
    dataset, _ = parse(name)
    dropped: collections.Counter[str] = collections.Counter()
    pairs = [(task, rubric) for _, task, rubric in _usable(dataset, open_rows(name, path), dropped)]
    if dataset.review:
        reviewed = dataset.review(pairs)
        pairs = [pair for pair in reviewed if pair[1].gold or pair[1].tests]
        if len(pairs) < len(reviewed):
            dropped["all tests belong to another problem"] += len(reviewed) - len(pairs)
    return pairs, dropped


def solutions(name: str, path: str | None = None) -> Iterator[tuple[str, list[str]]]:
    """Ids of the usable tasks and their reference programs (those in Python 3), which no task or rubric holds.

    Raises:
      DatasetError: as `load_report`; a dataset without reference programs.
    """
    dataset, _ = parse(name)
    if not dataset.solutions:
        having = ", ".join(entry.name for entry in DATASETS.values() if entry.solutions)
        raise DatasetError(f"{name}: has no reference programs; these have: {having}")
    rows = open_rows(name, path, all_columns=True)
    for row, task, _ in _usable(dataset, rows, collections.Counter()):
        yield task.id, dataset.solutions(row)


def _usable(
    dataset: Dataset, rows: Iterable[Row], dropped: collections.Counter[str]
) -> Iterator[tuple[Row, Task, Rubric]]:
    """Converts rows; counts in `dropped` those that cannot be graded and those that ask what an earlier one asks."""
    ids: set[str] = set()
    questions: set[str] = set()
    for row in rows:
        try:
            task, rubric = dataset.convert(row)
        except Dropped as reason:
            dropped[str(reason)] += 1
            continue
        question = task.prompt.strip()
        if task.id in ids or question in questions:
            dropped["duplicate"] += 1
            continue
        ids.add(task.id)
        questions.add(question)
        yield row, task, rubric
