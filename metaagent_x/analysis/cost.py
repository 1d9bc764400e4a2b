"""What a solved task costs, by structure."""

from __future__ import annotations

import dataclasses

import numpy as np

from metaagent_x.analysis.executions import Executions
from metaagent_x.analysis.intervals import Estimate, proportions, ratios


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of the executions of one structure; failed ones are paid for too.

    Attributes:
      executions, solved: how many, and how many of them right. accuracy: the latter by the former.
      calls, tokens: agent calls and sampled tokens of an execution. prompt_tokens: read by its agents.
      calls_per_solved, tokens_per_solved: all that was spent by how many were right; infinite if none was.
      with_design: tokens per solved if every execution also pays for its design, as when a design is run once.
    """

    executions: int
    solved: int
    accuracy: Estimate
    calls: Estimate
    tokens: Estimate
    prompt_tokens: Estimate
    calls_per_solved: Estimate
    tokens_per_solved: Estimate
    with_design: Estimate


def cost(played: Executions) -> Cost:
    """Of these executions, with intervals by resampling tasks."""
    ones = np.ones(len(played))
    p = played
    sums = p.totals(
        p.correct, p.calls, p.completion_tokens, p.prompt_tokens, ones, p.completion_tokens + p.design_tokens
    )
    correct, calls, tokens, prompts, n, all_tokens = sums.T
    parts = np.stack([calls, tokens, prompts, calls, tokens, all_tokens], axis=1)
    wholes = np.stack([n, n, n, correct, correct, correct], axis=1)
    accuracy = proportions(sums[:, :1], n[:, None])[0]
    return Cost(len(p), int(correct.sum()), accuracy, *ratios(parts, wholes))


def by_structure(played: Executions) -> dict[str, Cost]:
    """Structure, as it ran -> its cost; the most frequent first."""
    names, counts = np.unique(played.structure.astype(str), return_counts=True)
    order = sorted(zip(names.tolist(), counts.tolist(), strict=True), key=lambda item: (-item[1], item[0]))
    return {name: cost(played.where(played.structure == name)) for name, _ in order}
