"""From rows to what is reported: pure functions, so that the same rows always give the same table."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from metaagent_x.analysis import statistics
from metaagent_x.analysis.intervals import LEVEL, RESAMPLES, Estimate, mean_over_tasks, paired_gain
from metaagent_x.mas.tools import classes
from metaagent_x.tasks.math import is_equivalent

Rows = Sequence[Mapping[str, Any]]
SCHEMA = 1  # of results.json; docs/evaluation.md
# Sums over the rows of a cell, and means of one row. "time/" is the clock's: it differs between two equal evaluations.
COSTS = ("calls", "prompt_tokens", "sampled_tokens", "designer_tokens", "tools", "time/wall_s")
FAULTS = ("truncated", "empty", "prompt_cut", "invalid")
EVERYWHERE = "all"  # benchmark name of a comparison over the tasks of all benchmarks


class MixedScorers(ValueError):
    """Rows that different graders judged: a difference between them may be the graders'. Bad input."""


def scorer_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """The one scorer of all rows; "" if there are none.

    Raises:
      MixedScorers: there are several, or a row does not say.
    """
    found = {row.get("scorer", ""): row for row in rows}
    if len(found) > 1 or "" in found:
        told = "; ".join(
            f"{name or 'unknown'} ({row.get('method')} on {row.get('benchmark')})"
            for name, row in sorted(found.items())
        )  # fmt: skip
        raise MixedScorers(
            f"these results were not all judged by one scorer: {told}; they cannot stand in one table. Evaluate again, "
            "in a new folder, what the older one judged"
        )
    return next(iter(found), "")


def check_scorer(rows: Iterable[Mapping[str, Any]], scorer: str) -> None:
    """Raises MixedScorers if one of these rows was judged by another scorer than the one that is to judge now."""
    scorer_of([*rows, {"scorer": scorer, "method": "what is to come", "benchmark": "all"}])


def summarise(
    rows: Rows,
    *,
    methods: Sequence[str],
    benchmarks: Sequence[str],
    sampled: bool,
    published: Callable[[str, str], float | None] = lambda method, benchmark: None,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    equivalent: Callable[[str, str], bool] = is_equivalent,
) -> dict[str, Any]:
    """What `results.json` holds beside the description of the job.

    A task's value is the share of its samples that are right; void ones are left out. Intervals come from resampling
    tasks, and are None for one task; two methods are compared on the tasks that both have.

    Args:
      rows: one for every (method, benchmark, sample, task). methods, benchmarks: in the order of the tables.
      sampled: temperature above 0, so that several samples of a task are draws of one distribution.
      published: (method, benchmark, or "average") -> percent that the paper reports, None if it does not.
      equivalent: see `mas.tools.classes`.

    Raises:
      MixedScorers: see `scorer_of`.
    """
    scorer = scorer_of(rows)
    by_cell: dict[tuple[str, str], list[Mapping[str, Any]]] = collections.defaultdict(list)
    for row in rows:
        by_cell[row["method"], row["benchmark"]].append(row)
    options = {"level": level, "resamples": resamples}
    cells = [
        _cell(method, benchmark, by_cell[method, benchmark], sampled, published(method, benchmark), equivalent, options)
        for method, benchmark in itertools.product(methods, benchmarks)
        if by_cell[method, benchmark]
    ]
    values = {key: task_values(found) for key, found in by_cell.items()}
    return {
        "schema": SCHEMA, "scorer": scorer, "cells": cells,
        "averages": _averages(cells, methods, benchmarks, published),
        "comparisons": _comparisons(values, methods, benchmarks, options),
    }  # fmt: skip


def task_values(rows: Rows) -> dict[str, float]:
    """Task id -> share of its samples that are right; tasks of which every sample is void are left out."""
    found: dict[str, list[bool]] = collections.defaultdict(list)
    for row in rows:
        if not row["void"]:
            found[row["task_id"]].append(row["correct"])
    return {task: sum(outcomes) / len(outcomes) for task, outcomes in found.items()}


def _cell(
    method: str, benchmark: str, rows: Rows, sampled: bool, published: float | None,
    equivalent: Callable[[str, str], bool], options: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    counted = [row for row in rows if not row["void"]]
    values = task_values(rows)
    n = len(counted)
    limits = collections.Counter(limit for row in counted for limit in row["limits"])
    structures = collections.Counter(row["structure"] for row in counted)
    out: dict[str, Any] = {
        "method": method, "benchmark": benchmark, "tasks": len(values),
        "samples": 1 + max(row["sample"] for row in rows), "rows": n, "void": len(rows) - n,
        "accuracy": None, "low": None, "high": None, "published": published,
        "costs": {name: sum(row[name] for row in counted) / n if n else 0.0 for name in COSTS},
        "faults": {name: sum(int(row[name]) for row in counted) for name in FAULTS},
        "no_answer": sum(not row["answer"] for row in counted),
        "statuses": dict(sorted(collections.Counter(row["status"] for row in counted).items())),
        "limits": dict(sorted(limits.items())),
        "structures": {name: count / n for name, count in sorted(structures.items())},
    }  # fmt: skip
    if values:
        estimate = mean_over_tasks(values, **options)
        out |= {"accuracy": estimate.value, **_bounds(estimate)}
    if sampled and out["samples"] > 1:
        out |= _at_k(counted, out["samples"], equivalent)
    return out


def _at_k(rows: Rows, samples: int, equivalent: Callable[[str, str], bool]) -> dict[str, Any]:
    """pass@k and majority@k for k = 1, 2, 4, ... and the number of samples, over tasks of which none is void."""
    by_task: dict[str, list[Mapping[str, Any]]] = collections.defaultdict(list)
    for row in sorted(rows, key=lambda row: row["sample"]):
        by_task[row["task_id"]].append(row)
    whole = [found for found in by_task.values() if len(found) == samples]
    ks = sorted({1 << i for i in range(samples.bit_length()) if 1 << i <= samples} | {samples})
    if not whole:
        return {"pass@k": {}, "majority@k": {}}
    same = [_classes(found, equivalent) for found in whole]
    right = [[bool(row["correct"]) for row in found] for found in whole]
    passed = {str(k): sum(statistics.pass_at_k(samples, sum(r), k) for r in right) / len(whole) for k in ks}
    voted = {
        str(k): sum(statistics.majority_at_k(c, r, k) for c, r in zip(same, right, strict=True)) / len(whole)
        for k in ks
    }
    return {"pass@k": passed, "majority@k": voted}


def _classes(rows: Rows, equivalent: Callable[[str, str], bool]) -> list[int]:
    kind = rows[0]["kind"]
    texts = [row["answer"] for row in rows]
    shown = [f"\\boxed{{{text}}}" if text else "" for text in texts] if kind == "math" else texts
    return classes(kind, shown, equivalent)


def _averages(
    cells: Sequence[Mapping[str, Any]], methods: Sequence[str], benchmarks: Sequence[str],
    published: Callable[[str, str], float | None],
) -> list[dict[str, Any]]:  # fmt: skip
    """The plain mean over benchmarks, of methods that have a result on every one of several."""
    out = []
    for method in methods:
        found = [c["accuracy"] for c in cells if c["method"] == method and c["accuracy"] is not None]
        if len(found) == len(benchmarks) > 1:
            mean = sum(found) / len(found)
            out.append({"method": method, "accuracy": mean, "published": published(method, "average")})
    return out


def _comparisons(
    values: Mapping[tuple[str, str], Mapping[str, float]], methods: Sequence[str], benchmarks: Sequence[str],
    options: Mapping[str, Any],
) -> list[dict[str, Any]]:  # fmt: skip
    """Every method against every later one, on each benchmark and on the tasks of all of them together."""
    out = []
    for a, b in itertools.combinations(methods, 2):
        sides = {name: (values.get((a, name), {}), values.get((b, name), {})) for name in benchmarks}
        if len(benchmarks) > 1:
            sides[EVERYWHERE] = _together(values, a, benchmarks), _together(values, b, benchmarks)
        for name, (first, second) in sides.items():
            if first.keys() & second.keys():
                d = paired_gain(second, first, **options)
                out.append({
                    "benchmark": name, "method": a, "against": b, "tasks": d.gain.units, "accuracy": d.after,
                    "accuracy_against": d.before, "difference": d.gain.value, **_bounds(d.gain),
                })  # fmt: skip
    return out


def _bounds(estimate: Estimate) -> dict[str, float | None]:
    """For JSON, which has no NaN: None where one task alone has no interval."""
    low, high = (None if math.isnan(bound) else bound for bound in (estimate.low, estimate.high))
    return {"low": low, "high": high}


def _together(
    values: Mapping[tuple[str, str], Mapping[str, float]], method: str, benchmarks: Sequence[str]
) -> dict[str, float]:  # fmt: skip
    """The values of all benchmarks, by benchmark and task."""
    return {f"{name}/{task}": v for name in benchmarks for task, v in values.get((method, name), {}).items()}
