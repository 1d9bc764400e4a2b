"""Limits on what a run measures: when a metric leaves its range, somebody is told, or the run ends.

Everything here is a function of the lines of `metrics.jsonl` so far and of the settings, so a resumed run decides as
the uninterrupted one would have.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Rule:
    """What is watched. Limit and action are those of the settings' group `guard.<name>`.

    Attributes:
      metric: key of a line; "{role}" stands for each role that learns at the newest step.
      above: True if too much is wrong, False if too little is.
      meaning: what it says, and the way out.
      field: of the limit, where that is not `guard.<name>.limit`.
      averaged: judged by its mean over `guard.window` steps; otherwise each step by itself.
      designer: of what a Designer does; not judged with a fixed design.
    """

    metric: str
    above: bool
    meaning: str
    field: str = ""
    averaged: bool = True
    designer: bool = False


COLLAPSE = "the policy collapses; go on from an earlier checkpoint with a lower learner.learning_rate"
RULES: Mapping[str, Rule] = {
    "valid": Rule(
        "designs/valid", False, "lower learner.learning_rate or raise the share of Designer examples in the cold start",
        field="gate.stop_valid", designer=True,
    ),
    "repetition": Rule(
        "completions/repetition", True, f"completions end in repeated tokens: {COLLAPSE}, schedule='stagewise' or "
        "learner.kl above 0",
    ),
    "truncated": Rule(
        "completions/truncated", True, "completions reach their length limit: raise rollout.max_designer_tokens and "
        "rollout.max_executor_tokens, or, if texts grow without need, lower learner.learning_rate",
    ),
    "entropy": Rule(
        "entropy", False, "the policy hardly explores any more (nats a token): lower learner.learning_rate or raise "
        "learner.clip_high",
    ),
    "one_structure": Rule(
        "structures/top_share", True, "nearly all designs are of one structure, so that designs of a task hardly "
        "differ: lower learner.learning_rate or shorten the Designer's stages (stage_length)", designer=True,
    ),
    "flat": Rule(
        "groups/flat/{role}", True, "nearly no task of a step tells good from bad any more: choose harder or easier "
        "tasks (data.train), raise designs or executions, or set learner.flat_groups='top_up'",
    ),
    "stale": Rule(
        "calls/stale", True, "completions were drawn by other weights than those of their step: the push of weights "
        "does not reach every server; see servers/ in the run folder",
        averaged=False,
    ),
    "ratio": Rule(
        "ratio/first_dev", True, "new and old policy are the same before the first update of a step, and the ratio is "
        "not 1: scoring and updating disagree; compare model.attention='xla' and model.compute_dtype='float32'",
        averaged=False,
    ),
    "mismatch": Rule(
        "mismatch/mean", True, "engine and learner give the same tokens other log-probs (mean, nats): check dtype, "
        "tokenizer and version of the servers; learner.correction_cap bounds what it does",
    ),
    "mismatch_max": Rule(
        "mismatch/max", True, "engine and learner disagree on a token (nats): as for guard.mismatch",
        averaged=False,
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Alert:
    """One thing that somebody should know; a line of `alerts.jsonl`.

    Attributes:
      step: at whose end it was found. guard: name of the rule.
      metric, value, limit: what was measured and how much was allowed. steps: over how many steps.
      action: "warn", "stop" if the run ends of it, or "roll_back" if it goes back.
      message: all of this and the way out, in one line.
    """

    step: int
    guard: str
    metric: str
    value: float
    limit: float
    steps: int
    action: str
    message: str


def find(lines: Sequence[Mapping[str, Any]], settings: Any) -> list[Alert]:
    """What is wrong at the newest step.

    A rule is judged once its metric is a finite number at every step of the window. A warning is given when a limit is
    passed, and again only after the metric has been within it; the rest is asked for as long as the metric is beyond.

    Args:
      lines: of `metrics.jsonl`, in order, the newest last; `guard.window` + 1 of them are enough.
      settings: all of them (`config.base`).

    Returns:
      alerts in the order of `RULES`; none without lines.
    """
    out = []
    for name, rule in RULES.items() if lines else ():
        action = settings.guard[name].action
        if action == "off" or (rule.designer and settings.rollout.design):
            continue
        field = rule.field or f"guard.{name}.limit"
        limit = settings.gate.stop_valid if name == "valid" else settings.guard[name].limit
        steps = settings.guard.window if rule.averaged else 1
        for role in sorted(lines[-1]["role/active"]) if "{role}" in rule.metric else [""]:
            metric = rule.metric.format(role=role)
            value = mean(lines, metric, steps)
            if value is None or not _beyond(value, limit, rule):
                continue
            before = mean(lines[:-1], metric, steps)
            if action == "warn" and before is not None and _beyond(before, limit, rule):
                continue
            over = f" (mean of {steps} steps)" if steps > 1 else ""
            side = "above" if rule.above else "below"
            message = f"{metric} is {value:.2f}{over}, {side} {field}={limit:g}: {rule.meaning}"
            out.append(Alert(lines[-1]["step"], name, metric, value, limit, steps, action, message))
    return out


def mean(lines: Sequence[Mapping[str, Any]], metric: str, steps: int) -> float | None:
    """Mean over the last `steps` lines; None if there are fewer, or one does not have it as a finite number."""
    values = [v for line in lines[-steps:] if (v := line.get(metric)) is not None and math.isfinite(v)]
    return float(sum(values) / steps) if len(values) == steps else None


def _beyond(value: float, limit: float, rule: Rule) -> bool:
    return value > limit if rule.above else value < limit
