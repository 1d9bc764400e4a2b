"""What a folder holds, read as late and as little as can be: a page asks for one step, one execution, one call."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from metaagent_x.analysis.read import Run
from metaagent_x.run_folder import RunFolderError, read_lines
from metaagent_x.viewer.rows import Row

# Columns without which a row has no place. All others may be missing, as in traces of older versions.
PLACE = ("task_id", "design", "execution", "path", "role")
# What tables and filters are made of: small, so that a step is listed without its texts and tokens.
SMALL = (
    *PLACE, "kind", "agent", "structure", "finish_reason", "version", "reward", "advantage", "trained", "status",
    "reason", "flags", "verdict", "prompt_cut", "correct", "problem", "conversation",
)  # fmt: skip
BATCH = 128  # rows that are decoded at once
KEPT_LISTS, KEPT_BATCHES = 24, 4  # of about 1 MB each
Value = TypeVar("Value")


class NotThere(LookupError):
    """An address that names nothing: a step, task, design, execution or call that the folder does not hold."""


class Damaged(ValueError):
    """A file that cannot be read; the message names it. Other files are not affected."""


class Store:
    """Reads one folder: a run, or anything with `traces/step_*.parquet`. May be used by several threads.

    Nothing is kept that a changed file would contradict: what was read is known by the file's size and time.

    Attributes:
      folder: the folder. name: its last part.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """
        Raises:
          NotThere: neither `config.json` nor `traces/` is in the folder.
        """
        self.folder = Path(folder).absolute()
        self.name = self.folder.name
        self._lists = _Recent(KEPT_LISTS)
        self._batches = _Recent(KEPT_BATCHES)
        if not (self.folder / "traces").is_dir() and not (self.folder / "config.json").is_file():
            raise NotThere(f"{folder} is no run: it has neither traces/ nor config.json")

    def steps(self) -> list[int]:
        """Numbers of the steps with a trace, in order. A file that is being written has another name."""
        try:
            names = os.listdir(self.folder / "traces")
        except FileNotFoundError:
            return []
        return sorted(int(found[1]) for name in names if (found := re.fullmatch(r"step_(\d{6,})\.parquet", name)))

    def run(self) -> tuple[Run, list[str]]:
        """What the folder tells beside its traces, and what of it could not be read: such a part is left empty."""
        problems: list[str] = []
        config = self._json("config.json", problems)
        metrics, evaluations = (self.lines(name, problems) for name in ("metrics.jsonl", "evaluations.jsonl"))
        return Run(self.folder, config, metrics, evaluations, None, []), problems

    def config(self) -> dict[str, Any]:
        """The settings of the run, nested; {} if there are none that can be read."""
        return self._json("config.json", [])

    def lines(self, name: str, problems: list[str]) -> list[Row]:
        """The objects of a `.jsonl` file of the folder; none, and a line more in `problems`, if it cannot be read."""
        try:
            return [line for line in read_lines(self.folder / name) if isinstance(line, dict)]
        except (RunFolderError, OSError) as problem:
            problems.append(str(problem))
            return []

    def heartbeat(self) -> dict[str, Any]:
        """What the run says that it is doing; {} if it does not."""
        return self._json("heartbeat.json", [])

    def _json(self, name: str, problems: list[str]) -> dict[str, Any]:
        path = self.folder / name
        if not path.is_file():
            return {}
        try:
            value = json.loads(path.read_bytes())
        except (OSError, ValueError) as problem:
            problems.append(f"{path}: not readable as JSON ({problem})")
            return {}
        return value if isinstance(value, dict) else {}

    def mark(self) -> str:
        """A text that changes when the run has gone on."""
        names = ("metrics.jsonl", "evaluations.jsonl", "alerts.jsonl", "gate.json")
        steps = self.steps()
        return repr([_stamp(self.folder / name) for name in names] + [len(steps), steps[-1:]])

    def small(self, step: int) -> list[Row]:
        """All rows of a step in the order of the file, with the columns of `SMALL`; None where the file lacks one.

        Raises:
          NotThere: no such step. Damaged: its file cannot be read.
        """

        def read() -> list[Row]:
            with _opened(self._path(step)) as file:
                table = file.read(columns=[name for name in SMALL if name in file.schema_arrow.names])
                missing = dict.fromkeys(name for name in SMALL if name not in table.schema.names)
                return [missing | row for row in table.to_pylist()]

        return self._lists.get((step, self.stamp(step)), read)

    def task_ids(self, step: int) -> list[str]:
        """Ids of the tasks of a step, in the order of the file; nothing else of it is read.

        Raises:
          NotThere, Damaged: see `small`.
        """
        with _opened(self._path(step)) as file:
            return file.read(columns=["task_id"]).column(0).unique().to_pylist()

    def stamp(self, step: int) -> tuple[int, int]:
        """Time and size of a step's file: another one if it was written anew.

        Raises:
          NotThere: no such step.
        """
        return _stamp(self._path(step))

    def rows(self, step: int, wanted: Sequence[int]) -> list[Row]:
        """Some rows of a step with all their columns, by their number in the file. Decodes no more than `BATCH` rows at
        a time, and only groups of the file that hold one of them.

        Raises:
          NotThere, Damaged: see `small`.
        """
        found: dict[int, Row] = {}
        path = self._path(step)
        starts = sorted({number - number % BATCH for number in wanted})
        for start in starts:
            batch = self._batches.get((step, start, self.stamp(step)), lambda start=start: _batch(path, start))
            with _reading(path):
                found |= {n: batch.slice(n - start, 1).to_pylist()[0] for n in wanted if start <= n < start + BATCH}
        return [found[number] for number in wanted]

    def _path(self, step: int) -> Path:
        path = self.folder / "traces" / f"step_{step:06d}.parquet"
        if not path.is_file():
            raise NotThere(f"step {step} has no trace in {self.folder / 'traces'}")
        return path


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What goes wrong inside is `Damaged`."""
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError) as problem:
        raise Damaged(f"cannot read trace {path.name}: {problem}; other steps are not affected") from problem


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    """A trace that has at least the columns of `PLACE`."""
    with _reading(path), pq.ParquetFile(path) as file:
        if missing := [name for name in PLACE if name not in file.schema_arrow.names]:
            raise Damaged(f"{path.name} is no trace: it lacks the column {missing[0]!r}")
        yield file


class _Recent:
    """The values asked for last, at most `size` of them."""

    def __init__(self, size: int) -> None:
        self._size, self._lock = size, threading.Lock()
        self._kept: collections.OrderedDict[Hashable, Any] = collections.OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        value = make()
        with self._lock:
            self._kept[key] = value
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
        return value


def _batch(path: Path, start: int) -> pa.Table:
    """Rows `start` to `start + BATCH` of a file, or to its end."""
    with _opened(path) as file:
        parts, at = [], 0
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            if at < start + BATCH and start < at + size:
                parts += _pieces(file, group, at, start)
            at += size
        return pa.Table.from_batches(parts, file.schema_arrow)


def _pieces(file: pq.ParquetFile, group: int, at: int, start: int) -> Iterator[pa.RecordBatch]:
    """The part of one row group, which begins at row `at`, that lies within `BATCH` rows from `start`."""
    for batch in file.iter_batches(BATCH, row_groups=[group]):
        first, last = max(start, at), min(start + BATCH, at + batch.num_rows)
        if first < last:
            yield batch.slice(first - at, last - first)
        at += batch.num_rows
        if at >= start + BATCH:
            return


def _stamp(path: Path) -> tuple[int, int]:
    try:
        state = path.stat()
    except OSError:
        return (0, 0)
    return state.st_mtime_ns, state.st_size
