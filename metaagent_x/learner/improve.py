"""The learning half of a step: trees in, better policies out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from metaagent_x.learner import credit
from metaagent_x.learner.packing import by_trajectory, pack
from metaagent_x.learner.state import TrainState
from metaagent_x.learner.step import Learner
from metaagent_x.model.qwen3 import Params
from metaagent_x.rollout.tree import RolloutTree, Trajectory

TOKEN_MEANS = ("clip/high", "clip/low", "clip/dual", "approx_kl", "correction/mean", "mismatch/mean", "entropy")


def improve(
    trees: Sequence[RolloutTree],
    states: Mapping[str, TrainState],
    owner: Mapping[str, str],
    learner: Learner,
    roles: frozenset[str],
    *,
    seed: int,
    reference: Mapping[str, Params] | None = None,
    look: Callable[..., None] | None = None,
) -> tuple[dict[str, TrainState], list[Trajectory], dict[str, float]]:
    """Updates every policy that has an active role.

    Args:
      trees: the rollouts of this step.
      states: policy name -> state ("shared", or "designer" and "executor").
      owner: role -> name of the policy that plays it.
      learner: the compiled update and scoring passes, with its settings.
      roles: who learns at this step. Trajectories of other roles never reach the device.
      seed: orders trajectories into the updates of the step.
      reference: policy name -> parameters for the KL term; None unless `kl` is set.
      look: called after every update as `look(policy, number, state, batch, old_logp, ref_logp, metrics)`: its number
        from 1, the state after it, and what was given to it. See `replay.Recorder.look`.

    Returns:
      (new states, the trained trajectories with their `old_logprobs`, metrics). A policy without an active role keeps
      its state, the same object. An active role without a trajectory is a logged no-op. Besides those of
      `Learner.update`, see `merge`, metrics are `groups/flat/<role>` and `ratio/first_dev`: |ratio - 1| at most, of
      each policy's first update, before which nothing has moved.
    """
    s = learner.settings
    trained = credit.assign(trees, roles, weigh=s.weigh, call_cost=s.call_cost, truncated=s.truncated)
    metrics = {
        f"groups/flat/{role}": credit.flat_groups(trees, role, call_cost=s.call_cost)
        for role in ("designer", "executor")
    }
    out, every = dict(states), []
    active = sorted({owner[role] for role in roles})
    for name in active:
        rows = [t for t in trained if owner[t.role] == name]
        parts = [part for part in credit.split(rows, s.updates_per_step, seed) if part]
        batches = [
            pack(part, s.row_tokens, aggregate=s.aggregate, denominator=s.constant_denominator or None,
                 rows_multiple=learner.rows_multiple, row_segments=learner.row_segments)
            for part in parts
        ]  # fmt: skip
        # Old log-probs: one pass with the weights that sampled, before the first update moves them.
        old = [learner.logprobs(out[name].params, batch) for batch in batches]
        for part, batch, logp in zip(parts, batches, old, strict=True):
            for index, values in by_trajectory(batch, logp).items():
                part[index].old_logprobs = tuple(values.tolist())
        ref = [learner.logprobs(reference[name], batch) for batch in batches] if reference else [None] * len(batches)
        lines = []
        for number, (batch, old_logp, ref_logp) in enumerate(zip(batches, old, ref, strict=True), 1):
            out[name], line = learner.update(out[name], batch, old_logp, ref_logp=ref_logp)
            if look is not None:
                look(name, number, out[name], batch, old_logp, ref_logp, line)
            lines.append(line)
        if lines:
            first = lines[0]["ratio/max_dev"]
            metrics["ratio/first_dev"] = float(np.maximum(first, metrics.get("ratio/first_dev", 0.0)))
        every += lines
        if len(active) > 1:
            metrics |= {f"{name}/{key}": value for key, value in merge(lines).items()}
    return out, trained, metrics | merge(every)


def merge(lines: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Several updates of one step as one line: maxima of "max" figures, sums of counts, means of the rest.

    A mean over tokens stays one: updates of more tokens weigh more (huggingface/trl#6380). Others are means of updates.

    `tokens` are those trained on (`trained`, `trained/<role>` here: the sampled ones are `tokens/<role>`); `updates` is
    how many changed the weights, `updates/nonfinite` how many were skipped because a number was not finite.
    """
    out = {"updates": float(sum(line["updated"] for line in lines))}
    out["updates/nonfinite"] = float(sum(line["nonfinite"] for line in lines))
    for key in sorted({k for line in lines for k in line} - {"updated", "nonfinite"}):
        values = [line[key] for line in lines if key in line]
        if key.startswith("tokens"):
            out[key.replace("tokens", "trained", 1)] = float(np.sum(values))
        elif "max" in key or key.startswith("time/"):
            out[key] = float(np.max(values))
        else:
            tokens = [line["tokens"] for line in lines] if key in TOKEN_MEANS and len(values) == len(lines) else None
            out[key] = float(np.average(values, weights=tokens if tokens and sum(tokens) else None))
    return out
