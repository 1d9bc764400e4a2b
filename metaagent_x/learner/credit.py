"""From rollout trees to trajectories that carry their advantage."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from metaagent_x.learner.advantages import designer_advantages, executor_advantages
from metaagent_x.rollout.tree import Role, RolloutTree, Trajectory

Weigh = Literal["trajectory", "execution"]


def assign(
    trees: Sequence[RolloutTree],
    roles: frozenset[str],
    *,
    weigh: Weigh = "trajectory",
    eps: float = 1e-6,
    call_cost: float = 0.0,
    truncated: Literal["train", "mask"] = "train",
    ddof: int = 1,
) -> list[Trajectory]:
    """The trajectories of the active roles with their advantages, ordered by question, Designer first.

    - A group is the trajectories of one role on one question (eq. 5 and 7); trees never mix.
    - An invalid design is a design of reward 0. Void designs and void executions are out of every mean and every loss.
    - A crashed execution keeps its finished calls, with reward 0.
    - An advantage of exactly 0.0 keeps its trajectory: it has no gradient but counts in the normalisation.
    - A trajectory without a sampled id neither trains nor shifts the mean of its peers.

    Args:
      trees: the rollouts of a step.
      roles: active roles; nothing of another role is returned.
      weigh: what is counted once in an Executor group, see `executor_advantages`.
      eps: added to the standard deviation.
      call_cost: taken off a Designer's reward per agent call (mean over its counted executions).
      truncated: "mask" leaves trajectories that ended by length out of the loss and of its normalisation. They stay in
        the group statistics: running out of tokens is an outcome of the policy.
      ddof: of the standard deviation.

    Returns:
      Copies with `advantage` set; a Designer's `reward` is the mean outcome minus the cost of calls.

    Raises:
      ValueError: an unknown `truncated`, or completions of an engine that gives text without ids.
    """
    if truncated not in ("train", "mask"):
        raise ValueError(f"truncated={truncated!r} is not one of train, mask")
    out: list[Trajectory] = []
    for tree in trees:
        if any(call.text and not call.completion_ids for call in tree.calls()):
            raise ValueError(
                f"task {tree.task.id!r} was answered in text without token ids, as an endpoint of engine.kind='openai' "
                "does: nothing can be trained on that; sample with engine.kind='jax' or 'vllm'"
            )
        if "designer" in roles:
            out += _designers(tree, eps, call_cost, ddof)
        if "executor" in roles:
            out += _executors(tree, weigh, eps, ddof)
    return [t for t in out if truncated == "train" or not t.truncated]


def flat_groups(trees: Sequence[RolloutTree], role: Role, *, call_cost: float = 0.0) -> float:
    """Share of the questions on which every advantage of `role` is 0: groups that teach nothing.

    Questions without any trajectory of the role are no groups. 0.0 if there is no group at all.
    """
    groups = [
        _designers(t, 1e-6, call_cost, 1) if role == "designer" else _executors(t, "trajectory", 1e-6, 1) for t in trees
    ]
    flat = [all(t.advantage == 0.0 for t in group) for group in groups if group]
    return sum(flat) / len(flat) if flat else 0.0


def split(trajectories: Sequence[Trajectory], updates: int, seed: int) -> list[list[Trajectory]]:
    """Deals the trajectories of a step into `updates` parts, one for each optimizer update.

    Each role is dealt by itself, longest first to the part that has fewest ids of that role, so that every part holds
    its share of both roles. The seed decides ties and which part is trained first. Each part keeps the given order.

    Returns:
      `updates` lists that hold every trajectory exactly once; some are empty if there are too few.

    Raises:
      ValueError: fewer than 1 update.
    """
    if updates < 1:
        raise ValueError(f"updates={updates} must be at least 1")
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(trajectories)).tolist()
    parts: list[list[int]] = [[] for _ in range(updates)]
    for role in ("designer", "executor"):
        load = [0] * updates
        rank = rng.permutation(updates).tolist()
        for index in sorted(order, key=lambda i: -len(trajectories[i].tokens)):
            if trajectories[index].role == role:
                lightest = min(range(updates), key=lambda p: (load[p], rank[p]))
                load[lightest] += len(trajectories[index].tokens)
                parts[lightest].append(index)
    return [[trajectories[i] for i in sorted(part)] for part in parts]


def _designers(tree: RolloutTree, eps: float, call_cost: float, ddof: int) -> list[Trajectory]:
    rows = [t for t in tree.designer_trajectories() if any(t.mask)]
    rewards, counted = tree.rewards() - call_cost * _calls(tree), tree.counted()
    silent = set(range(len(tree.designs))) - {t.design for t in rows}
    counted[sorted(silent)] = False
    advantages = designer_advantages(rewards, counted, eps=eps, ddof=ddof)
    return [
        dataclasses.replace(
            t, advantage=float(advantages[t.design]), reward=float(rewards[t.design][counted[t.design]].mean())
        )
        for t in rows
    ]


def _executors(tree: RolloutTree, weigh: Weigh, eps: float, ddof: int) -> list[Trajectory]:
    rows = [t for t in tree.executor_trajectories() if any(t.mask)]
    if not rows:
        return []
    ids = [t.design * tree.executions + t.execution for t in rows]
    advantages = executor_advantages([t.reward for t in rows], ids, weigh=weigh, eps=eps, ddof=ddof)
    return [dataclasses.replace(t, advantage=float(a)) for t, a in zip(rows, advantages, strict=True)]


def _calls(tree: RolloutTree) -> np.ndarray:
    """[M, N] finished calls of every execution."""
    out = np.zeros((len(tree.designs), tree.executions))
    for i, design in enumerate(tree.designs):
        for j, execution in enumerate(design.executions):
            out[i, j] = len(execution.calls)
    return out
