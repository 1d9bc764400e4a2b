"""A run folder as plain values."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from metaagent_x.run_folder import RunFolderError, read_lines, sampled_tokens


@dataclasses.dataclass(frozen=True)
class Run:
    """What is known of a run, finished or not.

    Attributes:
      path: its folder. config: its settings, nested.
      metrics: one record a step. evaluations: one record each. gate: None if the gate did not run.
      traces: trace files, oldest first. data: one record for each data set, see `RunFolder.check_data`.
    """

    path: Path
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    gate: dict[str, Any] | None
    traces: list[Path]
    data: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @property
    def design(self) -> str:
        """The script that every task gets; "" where a Designer writes them."""
        return self.config.get("rollout", {}).get("design", "")

    @property
    def held_out(self) -> frozenset[tuple[str, str]]:
        """Name and hash of the sets that the evaluations play: test sets, or else dev sets. Empty if not known."""
        uses = [o["use"] for o in self.data]
        use = "test" if "test" in uses else "dev"
        return frozenset((o["name"], o["hash"]) for o in self.data if o["use"] == use)

    def sampled(self) -> dict[int, int]:
        """Step -> tokens that both roles have sampled in training until then; 0 before the first step."""
        total, out = 0, {0: 0}
        for line in self.metrics:
            total += sampled_tokens([line])
            out[line["step"]] = total
        return out

    @property
    def tokens(self) -> int:
        """All of `sampled`."""
        return max(self.sampled().values())

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
        data=_json(path / "data.json", list) if (path / "data.json").exists() else [],
    )


def _json(path: Path, kind: type = dict) -> Any:
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        raise RunFolderError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(value, kind):
        raise RunFolderError(f"{path}: holds a {type(value).__name__}, not a {kind.__name__}")
    return value
