"""What an evaluation has so far: `results.jsonl` and the traces beside it, kept so that a killed one goes on exactly.

Executions come in groups of one method, benchmark and sample, and are written in parts: first the part's trace file,
then its rows, in one write. So a row never lacks its trace. What a kill left without the other half is removed when the
journal is opened, and played again. Of two rows with one key the later one counts: void rows are played again.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from metaagent_x.evaluation.rows import Key, key_of, tree_of
from metaagent_x.mas.records import Execution
from metaagent_x.rollout import traces
from metaagent_x.run_folder import append_lines, read_lines
from metaagent_x.tasks.task import Task

NAME = "results.jsonl"
PART = 64  # executions of one trace file at most
EVERY_S = 20.0  # what has ended is on disk after so long at most, so that a kill costs little
Group = tuple[str, str, int]
Entry = tuple[dict[str, Any], Execution, Task]


class Journal:
    """Of one folder. Used by one event loop.

    Attributes:
      rows: the latest row of every key.
    """

    def __init__(self, folder: Path) -> None:
        """Reads what is there and puts right what a kill left half done. Raises RunFolderError: a damaged row."""
        self.path, self.traces = folder / NAME, folder / "traces"
        kept = _whole(self.path, self.traces)
        self.rows: dict[Key, dict[str, Any]] = {key_of(row): row for row in kept}
        parts = {row["trace"] for row in kept}
        for number, file in _trace_files(self.traces).items():
            if number not in parts:
                file.unlink()
        self._next = max(parts, default=-1) + 1
        self._waiting: dict[Group, list[Entry]] = {}
        self._since = time.monotonic()
        self._writing: asyncio.Task[None] | None = None

    def add(self, row: dict[str, Any], execution: Execution, task: Task) -> None:
        """Takes one result. What is a whole part, or has waited long enough, begins to be written, one part at a time.

        Raises what an earlier write raised.
        """
        self.rows[key_of(row)] = row
        waiting = self._waiting.setdefault((row["method"], row["benchmark"], row["sample"]), [])
        waiting.append((row, execution, task))
        if self._writing is not None and self._writing.done():
            self._writing.result()
            self._writing = None
        due = time.monotonic() - self._since > EVERY_S
        if self._writing is None and (due or len(waiting) >= PART):
            self._writing = asyncio.create_task(self._write())

    async def flush(self) -> None:
        """Writes all that waits. Not to be cancelled (`to_the_end`)."""
        if self._writing is not None:
            await self._writing
        await self._write()

    async def _write(self) -> None:
        self._since = time.monotonic()
        for group in list(self._waiting):
            entries = self._waiting.pop(group)
            for begin in range(0, len(entries), PART):
                number, self._next = self._next, self._next + 1
                await asyncio.to_thread(self._write_part, group, number, entries[begin : begin + PART])

    def _write_part(self, group: Group, number: int, part: list[Entry]) -> None:
        method, benchmark, sample = group
        trees = [tree_of(execution, task) for _, execution, task in part]
        traces.write(self.traces, trees, [], run=f"{method} {benchmark} {sample}", step=number)
        append_lines(self.path, [{**row, "trace": number} for row, _, _ in part])


def _trace_files(folder: Path) -> dict[int, Path]:
    return {int(file.stem.removeprefix("step_")): file for file in folder.glob("step_*.parquet")}


def _whole(path: Path, folder: Path) -> list[dict[str, Any]]:
    """The rows of whole parts; the file is cut to them."""
    rows = read_lines(path)
    if not path.exists() or path.read_bytes().endswith(b"\n"):
        return rows
    last = max(_trace_files(folder), default=-1)
    rows = [row for row in rows if row["trace"] != last]  # the part that was being written
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.replace(draft, path)
    return rows
