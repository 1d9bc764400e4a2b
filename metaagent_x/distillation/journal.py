"""What a job has done and spent: files to which lines are only ever added.

attempts.jsonl   one line an attempt that has ended
usage.jsonl      one line an answered request, also of attempts that a kill cut short: [requests, prompt tokens,
                 completion tokens, of these requests counted here]
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metaagent_x.distillation.attempt import AGAIN, Attempt
from metaagent_x.distillation.cost import Usage


class JournalError(ValueError):
    """A file is damaged. Names it and the line."""


class Journal:
    """Keeps finished attempts, so that a killed job pays for none of them again.

    A last line without its end is what a kill left of a write; it is cut off, and that attempt is made again. So are
    those that ended for a reason of `AGAIN`: the endpoint or the grader may be repaired by now.

    Attributes:
      attempts: (task id, number) -> attempt. usage: of all requests before this start.
      found: how many attempts were there already, without those that are made again.
    """

    def __init__(self, folder: Path) -> None:
        """Raises JournalError; OSError if the files cannot be read or written."""
        self._attempts, self._usage = _Lines(folder / "attempts.jsonl"), _Lines(folder / "usage.jsonl")
        self.attempts: dict[tuple[str, int], Attempt] = {}
        for attempt in self._attempts.read(lambda fields: Attempt(**fields)):
            if attempt.reason not in AGAIN:
                self.attempts[attempt.task_id, attempt.number] = attempt
        self.found, self.usage = len(self.attempts), sum(self._usage.read(lambda counts: Usage(*counts)), Usage())

    def add(self, attempt: Attempt) -> None:
        """Writes an attempt that has ended."""
        self._attempts.add(dataclasses.asdict(attempt))
        self.attempts[attempt.task_id, attempt.number] = attempt

    def spend(self, usage: Usage) -> None:
        """Writes what a request used."""
        self._usage.add(dataclasses.astuple(usage))

    def close(self) -> None:
        self._attempts.close()
        self._usage.close()


class _Lines:
    """One file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  held

    def read(self, make: Any) -> Iterator[Any]:
        whole = 0
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                try:
                    yield make(json.loads(line))
                except (ValueError, TypeError) as error:
                    raise JournalError(
                        f"{self.path}, line {number}: {error}; restore the file or drop the line"
                    ) from error
                whole += len(line)
        self._file.truncate(whole)

    def add(self, value: Any) -> None:
        line = (json.dumps(value) + "\n").encode()
        while line:  # one write nearly always
            line = line[self._file.write(line) or 0 :]

    def close(self) -> None:
        self._file.close()
