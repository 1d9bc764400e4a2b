"""Folders that `metaagent_x.evaluate` writes, as executions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from metaagent_x.analysis.executions import Executions
from metaagent_x.run_folder import RunFolderError, read_lines

RESULTS = "results.jsonl"


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One folder.

    Attributes:
      path: the folder. name: what it is called on the page.
      methods: name -> what it did on all benchmarks; the sample is an execution's number.
      void: rows that the infrastructure spoilt; they are in none of `methods`.
      scorer: hash of what judged the rows.
    """

    path: Path
    name: str
    methods: Mapping[str, Executions]
    void: int
    scorer: str


def is_evaluation(path: Path) -> bool:
    """Whether a folder holds results of an evaluation."""
    return (path / RESULTS).is_file()


def read_evaluation(path: Path) -> Evaluation:
    """Reads `results.jsonl`, and the difficulties from the traces beside it where these tell them.

    Raises:
      RunFolderError: a line is not JSON or lacks a field (file and line are named), a trace cannot be read, or not all
        rows were judged by one scorer.
    """
    latest: dict[tuple, dict[str, Any]] = {}
    scorers: set[str] = set()
    for number, row in enumerate(read_lines(path / RESULTS), 1):
        try:  # of two rows with one key the later one counts
            latest[row["method"], row["benchmark"], row["sample"], row["task_id"]] = _row(row)
            scorers.add(row["scorer"])
        except (KeyError, TypeError) as error:
            raise RunFolderError(f"{path / RESULTS}, line {number}: not a result ({error!r})") from error
    if len(scorers) > 1:
        raise RunFolderError(
            f"{path / RESULTS}: rows of different scorers ({', '.join(sorted(scorers))}); play it again"
        )
    known = _difficulties(path / "traces")
    rows: dict[str, list[dict[str, Any]]] = {}
    for (method, *_), row in latest.items():
        if not row.pop("void"):
            rows.setdefault(method, []).append(row | {"difficulty": known.get(row["task"], "")})
    void = len(latest) - sum(map(len, rows.values()))
    methods = {method: Executions.of(own) for method, own in rows.items()}
    return Evaluation(path.absolute(), path.absolute().name, methods, void, "".join(scorers))


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Calls are those of agents; prompt tokens include the Designer's, which the row does not tell apart."""
    return {
        "task": row["task_id"], "benchmark": row["benchmark"], "kind": row["kind"], "execution": row["sample"],
        "structure": "invalid" if row["invalid"] else row["structure"] or "invalid", "void": row["void"],
        "correct": float(bool(row["correct"])), "reward": float(bool(row["correct"])),
        "calls": row["calls"] - (row["designer_tokens"] > 0), "prompt_tokens": row["prompt_tokens"],
        "completion_tokens": row["sampled_tokens"] - row["designer_tokens"], "design_tokens": row["designer_tokens"],
    }  # fmt: skip


def _difficulties(folder: Path) -> dict[str, str]:
    out: dict[str, str] = {}
    for path in sorted(folder.glob("*.parquet")):
        try:
            file = pq.ParquetFile(path)
            if "difficulty" in file.schema_arrow.names:
                table = file.read(columns=["task_id", "difficulty"])
                out.update(zip(table["task_id"].to_pylist(), table["difficulty"].to_pylist(), strict=True))
        except (OSError, pa.ArrowException) as error:
            raise RunFolderError(f"cannot read trace {str(path)!r}: {error}") from error
    return out
