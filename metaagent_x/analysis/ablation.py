"""Runs of different settings against each other: what was varied, which seeds belong together, who is better."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metaagent_x.analysis.intervals import Estimate, mean_over_tasks, paired_gain
from metaagent_x.analysis.read import Run
from metaagent_x.analysis.significance import mcnemar, mean_over_runs, runs_differ
from metaagent_x.run_folder import RESUMABLE_CHANGES, RESUMABLE_GROUPS, flatten

# Two runs that differ in nothing else are seeds of one another.
_SAME = (RESUMABLE_CHANGES - {"steps", "tokens"}) | {"seed"}
_ABSENT = "absent"


@dataclasses.dataclass(frozen=True)
class Variant:
    """Runs of equal settings but for the seed.

    Attributes:
      label: what distinguishes it from the others, "M × N = 8 × 1, coupled"; "all runs" if there are no others.
      settings: the fields that differ among the variants. runs: by seed.
    """

    label: str
    settings: Mapping[str, Any]
    runs: Sequence[Run]

    @property
    def seeds(self) -> list[int]:
        return [int(run.config.get("seed", 0)) for run in self.runs]


def variants(runs: Sequence[Run]) -> list[Variant]:
    """Runs grouped by settings, in the order in which they are given; the others are compared with the first."""
    flat = [{k: v for k, v in flatten(run.config).items() if not _aside(k)} for run in runs]
    keys = [json.dumps(settings, sort_keys=True) for settings in flat]
    fields = sorted({k for settings in flat for k in settings})
    varied = [f for f in fields if len({json.dumps(s.get(f, _ABSENT)) for s in flat}) > 1]
    out = []
    for key in dict.fromkeys(keys):
        members = [i for i, other in enumerate(keys) if other == key]
        settings = {f: flat[members[0]].get(f, _ABSENT) for f in varied}
        label = _label(settings) or "all runs"
        own = sorted((runs[i] for i in members), key=lambda run: run.config.get("seed", 0))
        out.append(Variant(label, settings, own))
    return out


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One variant against the first.

    Attributes:
      figure: its accuracy on the held-out tasks, mean over its runs. over: "seeds" or "tasks", what the interval of it
        speaks of: with 3 runs or more, other seeds of the same job; with fewer, other tasks for the same runs.
      gain: against the first variant, over the tasks that both have, each task's outcome the mean over the runs; the
        interval resamples tasks. None for the first itself.
      by_task: exact McNemar test where both are one run, else NaN. by_run: t-test over seeds where there are 3 or more.
    """

    figure: Estimate
    over: str
    gain: Estimate | None
    by_task: float
    by_run: float


def compare(sides: Sequence[Mapping[Any, Mapping[str, float]]]) -> list[Comparison]:
    """Held-out outcomes of variants, the first as the reference.

    Args:
      sides: of each variant, seed -> task -> 0 or 1; a variant without any has NaN. Runs are paired where their keys
        are equal, so a run that is not to be paired has a key of its own.
    """
    out = []
    reference = sides[0]
    for side in sides:
        means = {seed: float(np.mean(list(outcomes.values()))) for seed, outcomes in side.items() if outcomes}
        over = "seeds" if len(means) >= 3 else "tasks"
        pooled = _pooled(side)
        if not pooled:
            out.append(Comparison(Estimate(math.nan, math.nan, math.nan, 0), over, None, math.nan, math.nan))
            continue
        figure = mean_over_runs(list(means.values())) if over == "seeds" else mean_over_tasks(pooled)
        gain, by_task, by_run = None, math.nan, math.nan
        first = _pooled(reference)
        if side is not reference and first.keys() & pooled.keys():
            gain = paired_gain(first, pooled).gain
            if len(side) == len(reference) == 1:
                by_task = mcnemar(*(next(iter(s.values())) for s in (reference, side)))
            own = {seed: float(np.mean(list(o.values()))) for seed, o in reference.items() if o}
            by_run = runs_differ(own, means)
        out.append(Comparison(figure, over, gain, by_task, by_run))
    return out


def _label(settings: Mapping[str, Any]) -> str:
    """Fields and values, the usual ones in the paper's words."""
    rest = dict(settings)
    parts = []
    if {"designs", "executions"} <= rest.keys():
        parts.append(f"M × N = {rest.pop('designs')} × {rest.pop('executions')}")
    for field, form in (("schedule", "{}"), ("policy", "{} policy"), ("stage_length", "K = {}")):
        if field in rest:
            parts.append(form.format(rest.pop(field)))
    return ", ".join([*parts, *(f"{field}={value}" for field, value in rest.items())])


def _pooled(side: Mapping[Any, Mapping[str, float]]) -> dict[str, float]:
    """Task -> mean outcome over the runs, of the tasks that all runs have."""
    if not side:
        return {}
    common = set.intersection(*(set(outcomes) for outcomes in side.values()))
    return {task: float(np.mean([outcomes[task] for outcomes in side.values()])) for task in sorted(common)}


def _aside(field: str) -> bool:
    return field in _SAME or field.startswith(RESUMABLE_GROUPS)
