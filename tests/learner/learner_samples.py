"""Small trees, trajectories, settings and one tiny network for the tests of the learner."""

from typing import Any

import numpy as np

from metaagent_x import config
from metaagent_x.mas.records import Call, Execution
from metaagent_x.model.parameters import Qwen3Config
from metaagent_x.rollout.tree import Design, RolloutTree, Trajectory
from metaagent_x.tasks.task import Task, Verdict

MODEL = Qwen3Config(
    vocab_size=64, hidden_size=16, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=8, intermediate_size=32
)


def settings(**changes: Any) -> Any:
    """`config.learner` for the tiny network: a rate at which one update is visible, clipping that acts."""
    s = config.base().learner
    s.update({"learning_rate": 1e-2, "clip_norm": 0.5, "row_tokens": 16, "micro_rows": 4} | changes)
    return s


def call(ids: tuple[int, ...], prompt: tuple[int, ...] = (1, 2), **fields: Any) -> Call:
    given = {"path": "0", "agent": "a", "role_prompt": "", "finish_reason": "stop", "version": 0, "text": ""} | fields
    return Call(prompt_ids=prompt, completion_ids=ids, logprobs=(-1.0,) * len(ids), **given)


def execution(reward: float, calls: int = 1, *, void: bool = False, status: str = "ok") -> Execution:
    """An execution of so many stateless calls, three sampled ids each."""
    made = [call((5, 6, 7 + i), path=str(i)) for i in range(calls)]
    verdict = Verdict(reward >= 1, reward, 0.0, reward, "ok", void=void)
    return Execution(calls=made, status=status, verdict=verdict)


def tree(designs: list[list[Execution] | None], question: int = 0, executions: int | None = None) -> RolloutTree:
    """One question; None is an invalid design."""
    n = executions or max(len(d) for d in designs if d is not None)
    made = [
        Design(call((20 + i, 9)), "script", "" if d is not None else "no_script", d or [])
        for i, d in enumerate(designs)
    ]
    return RolloutTree(Task(f"t/{question}", "math", "?"), made, question, 0, n)


def rewards_tree(rewards: list[list[float]], question: int = 0) -> RolloutTree:
    return tree([[execution(r) for r in row] for row in rewards], question)


def trajectories(seed: int, count: int = 12, longest: int = 16) -> list[Trajectory]:
    """Random rows of both roles on three questions, with unequal lengths and turns; the longest fills a row of 16."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(count):
        n = longest + 1 if i == 0 else int(rng.integers(3, longest // 2 + 2))
        mask = rng.random(n) < 0.6
        mask[0], mask[-1] = False, True
        if i == 0:
            mask[1:] = True  # one row with every position trained: the same compiled shape for every sample
        logprobs = np.where(mask, rng.normal(-4, 0.3, n), 0.0)
        out.append(
            Trajectory(
                tokens=tuple(rng.integers(1, 64, n).tolist()),
                mask=tuple(mask.tolist()),
                logprobs=tuple(logprobs.tolist()),
                role="designer" if i % 3 == 1 else "executor",
                question=i % 4 % 3,
                design=i % 4,
                execution=i % 3 - 1,
                task_id="t",
                advantage=float(rng.normal()),
            )
        )
    return out
