"""What became of every execution, as columns: the one form in which traces and evaluations are analysed."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from metaagent_x.run_folder import RunFolderError

ROLES = ("designer", "executor")
_COLUMNS = ("step", "task_id", "kind", "design", "execution", "role", "structure", "status", "problem", "reward",
            "advantage", "trained", "correct", "difficulty")  # fmt: skip
_LENGTHS = {"prompt_tokens": "prompt_ids", "completion_tokens": "completion_ids"}  # and what they are counted from


@dataclasses.dataclass(frozen=True)
class Executions:
    """E executions, one entry each in every array. Void ones are not among them.

    An invalid design counts as executions of structure "invalid", never right, without calls. So does an execution of a
    valid design that made no call; where an engine failed before the first call, a trace does not tell the difference.

    Attributes:
      task, benchmark, difficulty, kind, structure: texts; the benchmark is the first part of the task's id, and the
        difficulty is as the dataset states it, "" where it does not.
      step, design, execution: where in the run it stands.
      correct: 1.0 or 0.0. reward: what trained.
      calls, prompt_tokens, completion_tokens: of its agents. design_tokens: sampled for its design. NaN: not recorded.
    """

    task: np.ndarray
    benchmark: np.ndarray
    difficulty: np.ndarray
    kind: np.ndarray
    structure: np.ndarray
    step: np.ndarray
    design: np.ndarray
    execution: np.ndarray
    correct: np.ndarray
    reward: np.ndarray
    calls: np.ndarray
    prompt_tokens: np.ndarray
    completion_tokens: np.ndarray
    design_tokens: np.ndarray

    def __len__(self) -> int:
        return len(self.task)

    def where(self, chosen: np.ndarray) -> Executions:
        """Those of a mask [E], or of indices in an order."""
        return Executions(*(getattr(self, f.name)[chosen] for f in dataclasses.fields(self)))

    @staticmethod
    def joined(parts: Sequence[Executions]) -> Executions:
        """One after the other; equal tasks of different parts are one task."""
        names = [f.name for f in dataclasses.fields(Executions)]
        return Executions(*(np.concatenate([getattr(part, n) for part in parts]) for n in names))

    @functools.cached_property
    def tasks(self) -> tuple[np.ndarray, np.ndarray]:
        """(the T distinct tasks, sorted; [E] index of each execution's task among them)."""
        names, index = np.unique(self.task.astype(str), return_inverse=True)
        return names, index

    def totals(self, *columns: np.ndarray) -> np.ndarray:
        """[T, K] sums of K columns [E] over the executions of each task."""
        names, index = self.tasks
        return np.stack([np.bincount(index, c.astype(float), len(names)) for c in columns], axis=1)

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Executions:
        """From rows with a field for every attribute; the benchmark is taken from the task's id where it is absent, and
        texts are "", numbers NaN, places 0 where they are."""
        rows = list(rows)
        columns: dict[str, np.ndarray] = {}
        for field in dataclasses.fields(cls):
            if field.name in ("step", "design", "execution"):
                columns[field.name] = np.array([row.get(field.name, 0) for row in rows], int)
            elif field.name in ("task", "benchmark", "difficulty", "kind", "structure"):
                columns[field.name] = np.array([row.get(field.name, "") for row in rows], object)
            else:
                columns[field.name] = np.array([row.get(field.name, np.nan) for row in rows], float)
        named = np.array([t.split("/")[0] for t in columns["task"]], object)
        columns["benchmark"] = np.where(columns["benchmark"] == "", named, columns["benchmark"])
        return cls(**columns)


@dataclasses.dataclass(frozen=True)
class Sampled:
    """What was sampled in a run, by role.

    Attributes:
      executions: of all steps. steps: those that have a trace.
      lengths: role -> [steps] mean tokens of its completions; NaN at a step without any.
      advantages: role -> those of the calls that were trained on.
    """

    executions: Executions
    steps: np.ndarray
    lengths: Mapping[str, np.ndarray]
    advantages: Mapping[str, np.ndarray]


def of_evaluation(record: Mapping[str, Any], design: int = 0) -> Executions | None:
    """The tasks of a record of `evaluations.jsonl`, one execution each, as this design of theirs; None if it does not
    tell their structures, as those of earlier versions."""
    structures, difficulties = record.get("structures_by_task"), record.get("difficulty_by_task", {})
    if not structures:
        return None
    return Executions.of(
        {"task": task, "structure": structures[task], "difficulty": difficulties.get(task, ""), "correct": correct,
         "step": record["step"], "design": design}
        for task, correct in record["outcomes"].items() if task in structures
    )  # fmt: skip


def of_traces(
    files: Sequence[Path], executions: int, *, progress: Callable[[Sequence[Path]], Iterable[Path]] = iter
) -> Sampled:
    """Reads the traces of a run, each once and only the columns that are needed: no text, no ids, no log-probs.

    Args:
      files: trace files, in order. executions: N of the run, as which an invalid design counts.
      progress: wraps the files, to show how far it is.

    Raises:
      RunFolderError: a file cannot be read, or is no trace; the message names it.
    """
    rows: list[dict[str, Any]] = []
    steps, lengths = [], {role: [] for role in ROLES}
    advantages: dict[str, list[np.ndarray]] = {role: [] for role in ROLES}
    for path in progress(files):
        table = _read(path)
        if not len(table):
            continue
        steps.append(int(table["step"][0].as_py()))
        for role in ROLES:
            own = table.filter(pc.equal(table["role"], role))  # type: ignore[attr-defined]
            tokens = own["completion_tokens"].to_numpy()
            lengths[role].append(float(tokens.mean()) if len(tokens) else np.nan)
            advantages[role].append(own.filter(own["trained"])["advantage"].to_numpy())
        rows += _executions(table, executions)
    return Sampled(
        Executions.of(rows),
        np.array(steps, int),
        {role: np.array(values, float) for role, values in lengths.items()},
        {role: np.concatenate([np.zeros(0), *values]) for role, values in advantages.items()},
    )


def _read(path: Path) -> pa.Table:
    try:
        file = pq.ParquetFile(path)
        there = set(file.schema_arrow.names)
        missing = [name for name in _LENGTHS if name not in there]  # a trace from before these columns
        wanted = [*(c for c in (*_COLUMNS, *_LENGTHS) if c in there), *(_LENGTHS[name] for name in missing)]
        table = file.read(columns=wanted)
        for name in missing:
            counted = pc.list_value_length(table[_LENGTHS[name]])  # type: ignore[attr-defined]
            table = table.append_column(name, counted)
        if absent := [c for c in _COLUMNS if c not in there and c != "difficulty"]:
            raise pa.ArrowInvalid(f"it lacks the column {absent[0]!r}")
        if "difficulty" not in there:
            table = table.append_column("difficulty", pa.array([""] * len(table)))
        return table
    except (OSError, pa.ArrowException) as error:
        raise RunFolderError(f"cannot read trace {str(path)!r}: {error}") from error


def _executions(table: pa.Table, n: int) -> list[dict[str, Any]]:
    """The executions of one step, by task, design and number."""
    keys = ["step", "task_id", "kind", "difficulty", "design", "execution", "role", "structure", "status", "problem",
            "correct", "reward"]  # fmt: skip
    sums = [("completion_tokens", "count"), ("completion_tokens", "sum"), ("prompt_tokens", "sum")]
    groups = table.group_by(keys, use_threads=False).aggregate(sums).to_pylist()
    designs = {(r["task_id"], r["design"]): r for r in groups if r["role"] == "designer"}
    ran: dict[tuple, dict[int, dict[str, Any]]] = collections.defaultdict(dict)
    for r in groups:
        if r["role"] == "executor":
            ran[r["task_id"], r["design"]][r["execution"]] = r
    out = []
    for key in sorted(designs.keys() | ran.keys()):
        design, runs = designs.get(key), ran[key]
        if design is not None and design["status"] == "void":
            continue
        common = {"task": key[0], "design": key[1], "design_tokens": design["completion_tokens_sum"] if design else 0}
        for execution in range(n if design else max(runs) + 1):
            r = runs.get(execution)
            if r is None and design is None:
                continue
            source = r or design
            assert source is not None
            place = {k: source[k] for k in ("step", "kind", "difficulty")} | {"execution": execution}
            if r is None:
                nothing = dict.fromkeys(("correct", "reward", "calls", "prompt_tokens", "completion_tokens"), 0.0)
                out.append(common | place | nothing | {"structure": "invalid"})
            elif r["status"] != "void":
                out.append(
                    common | place | {
                        "structure": r["structure"], "correct": float(bool(r["correct"])), "reward": r["reward"],
                        "calls": r["completion_tokens_count"], "prompt_tokens": r["prompt_tokens_sum"],
                        "completion_tokens": r["completion_tokens_sum"],
                    }
                )  # fmt: skip
    return out
