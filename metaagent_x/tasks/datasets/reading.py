"""What becomes of every row of a dataset: a task and its rubric, or the reason why it is none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from metaagent_x.tasks.datasets.files import open_rows
from metaagent_x.tasks.datasets.registry import Dataset, parse
from metaagent_x.tasks.datasets.rows import DatasetError, Dropped, Row
from metaagent_x.tasks.task import Rubric, Task

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much is done, and of how much (0: unknown)."""


def silent(what: str, done: int, total: int) -> None:
    pass


@dataclasses.dataclass(frozen=True)
class Item:
    """What became of a row: a task and its rubric, or the reason why it was dropped.

    Attributes:
      place, number, split: of the row.
    """

    place: str
    number: int
    split: str
    task: Task | None = None
    rubric: Rubric | None = None
    dropped: str = ""


def read(name: str, path: str | None = None, progress: Progress = silent) -> list[Item]:
    """Every row of a dataset. Ids are unique: a row that repeats an earlier one is dropped. Questions may repeat.

    Raises:
      DatasetError: as `load_report`; two different questions with one id.
    """
    dataset, _ = parse(name)
    items: list[Item] = []
    for _, item in converted(dataset, open_rows(name, path)):
        items.append(item)
        progress("rows", len(items), 0)
    return _reviewed(dataset, items) if dataset.review else items


def converted(dataset: Dataset, rows: Iterable[Row]) -> Iterator[tuple[Row, Item]]:
    """Rows, each with what became of it."""
    first: dict[str, tuple[str, int]] = {}  # id -> where it stood, and what it asked
    for row in rows:
        item = Item(row.place, row.number, row.split)
        try:
            task, rubric = dataset.convert(row)
        except Dropped as reason:
            yield row, dataclasses.replace(item, dropped=str(reason))
            continue
        place, question = first.setdefault(task.id, (row.place, hash(task.prompt)))
        if place == row.place:
            yield row, dataclasses.replace(item, task=task, rubric=rubric)
        elif question == hash(task.prompt):
            yield row, dataclasses.replace(item, dropped="row repeated")
        else:
            raise DatasetError(
                f"{row.place}: asks something else than {place} under the same id, {task.id!r}; read the files by "
                "themselves, or give the rows ids of their own"
            )


def _reviewed(dataset: Dataset, items: list[Item]) -> list[Item]:
    assert dataset.review
    pairs = [(item.task, item.rubric) for item in items if item.task and item.rubric]
    reviewed = {task.id: (task, rubric) for task, rubric in dataset.review(pairs)}
    out = []
    for item in items:
        if item.task:
            task, rubric = reviewed[item.task.id]
            if rubric.gold or rubric.tests:
                item = dataclasses.replace(item, task=task, rubric=rubric)
            else:
                item = dataclasses.replace(item, task=None, rubric=None, dropped="all tests belong to another problem")
        out.append(item)
    return out
