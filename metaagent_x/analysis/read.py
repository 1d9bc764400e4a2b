"""A run folder as plain values."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metaagent_x.run_folder import RunFolderError, read_lines


@dataclasses.dataclass(frozen=True)
class Run:
    """What is known of a run, finished or not.

    Attributes:
      path: its folder. config: its settings, nested.
      metrics: one record a step. evaluations: one record each. gate: None if the gate did not run.
      traces: trace files, oldest first.
    """

    path: Path
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    gate: dict[str, Any] | None
    traces: list[Path]

    def evaluation(self, name: str, *, temperature: float = 1.0, **fields: str) -> dict[str, Any] | None:
        """The latest evaluation of this name and temperature (and designer, executor), or None."""
        wanted = {"name": name, "temperature": temperature, **fields}
        found = [e for e in self.evaluations if all(e.get(k) == v for k, v in wanted.items())]
        return found[-1] if found else None

    def column(self, key: str) -> list[float]:
        """One metric over all steps; NaN where a step lacks it."""
        return [float("nan") if line.get(key) is None else float(line[key]) for line in self.metrics]

    def names(self, prefix: str) -> list[str]:
        """The parts behind `prefix` of all metric names that begin so, sorted."""
        return sorted({k.removeprefix(prefix) for line in self.metrics for k in line if k.startswith(prefix)})


def read_run(path: str | os.PathLike[str]) -> Run:
    """Reads a run folder; parts not written yet are empty.

    Raises:
      RunFolderError: the folder has no config.json, or a file in it is damaged (named, with the line).
    """
    path = Path(path)
    if not (path / "config.json").is_file():
        raise RunFolderError(f"{path} is not a run folder: it has no config.json")
    return Run(
        path=path.absolute(),
        config=_json(path / "config.json"),
        metrics=read_lines(path / "metrics.jsonl"),
        evaluations=read_lines(path / "evaluations.jsonl"),
        gate=_json(path / "gate.json") if (path / "gate.json").exists() else None,
        traces=sorted((path / "traces").glob("step_*.parquet")),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        raise RunFolderError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(value, Mapping):
        raise RunFolderError(f"{path}: holds a {type(value).__name__}, not an object")
    return dict(value)
