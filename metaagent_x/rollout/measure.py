"""What a step, an evaluation and the headroom gate measure on rollout trees."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metaagent_x.mas.records import Call
from metaagent_x.rollout.collect import collect
from metaagent_x.rollout.engine import Engine
from metaagent_x.rollout.play import Settings, with_rollout
from metaagent_x.rollout.tree import UNREADABLE, Design, RolloutTree
from metaagent_x.tasks.task import Rubric, Task

# What `completions/repetition` counts: a block of at most PERIOD ids, REPEATS times in a row, and LEAST ids in all.
PERIOD, REPEATS, LEAST = 64, 4, 16
STATUSES = ("ok", "budget", "wall", "cpu", "memory", "crash", "void")
# All evaluations draw from one stream of seeds, apart from every training step, so that two of them are paired.
EVALUATION_STEP = -1


def _mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else 0.0


def step_metrics(trees: Sequence[RolloutTree], *, format_bonus: float) -> dict[str, float]:
    """The rollout half of a line of `metrics.jsonl`: rewards, accuracy, designs, structures, calls, tokens, faults.

    Invalid designs count as executions of reward 0 and structure "invalid"; void executions are left out of every mean.

    The reward and its components, over all tasks and by kind ("/math", "/code"): `reward/mean` (or `reward/math`,
    `reward/code`) = `reward/correctness` + format_bonus * `reward/format`. Correctness is what trains, a share of tests
    or all of them as configured; `reward/fraction` and `accuracy` are these two, whichever of them trains.
    `verdicts/<reason>` counts the grader's reasons ("verdicts/test_wall": the first failed test ran out of time).

    How things ended, of what can end: `status/<name>`, shares of the executions of valid designs ("void" includes those
    whose grader failed); `void/designer`, `void/executor`, `void/grader`, how many designs and executions each of them
    spoilt; `tools/<status>`, numbers of tool runs ("tools/wall": out of time).

    What a collapsing policy shows: `completions/repetition`, the share of completions of both roles that end in
    repeated tokens (`ends_in_repetition`); `completions/truncated`, that end by length; `structures/top_share`, the
    largest `structure/<name>` of valid designs, among those. `calls/stale`: completions drawn by other weights than
    those of their step.

    Args:
      trees: of one step. format_bonus: lambda, with which they were graded.
    """
    m: dict[str, float] = {}
    for name, suffix, kinds in (
        ("mean", "", ("math", "code")),
        ("math", "/math", ("math",)),
        ("code", "/code", ("code",)),
    ):
        chosen = [t for t in trees if t.task.kind in kinds]
        parts = {field: _counted(chosen, field) for field in ("reward", "format", "fraction", "correct")}
        m[f"reward/{name}"] = _mean(parts["reward"])
        m[f"reward/correctness{suffix}"] = _mean(parts["reward"] - format_bonus * parts["format"])
        m[f"reward/format{suffix}"] = _mean(parts["format"])
        m[f"reward/fraction{suffix}"] = _mean(parts["fraction"])
        m[f"accuracy{suffix}"] = _mean(parts["correct"])
    designs = [d for t in trees for d in t.designs if not d.void]
    runs = [e for d in designs for e in d.executions if not e.void]
    calls = [c for e in runs for c in e.calls]
    m["designs/valid"] = _mean([d.valid for d in designs])
    m["designs/distinct"] = _mean([len({d.script for d in t.designs}) / len(t.designs) for t in trees])
    m["designs/answer_in_script"] = float(sum("answer_in_script" in e.flags for e in runs))
    m["designs/own_imports"] = float(sum(d.own_imports for d in designs))
    m["designs/unreadable"] = float(sum(d.problem.startswith(UNREADABLE) for d in designs))
    m["designs/truncated"] = _mean([d.call.finish_reason == "length" for d in designs if d.call])
    m["calls"] = float(len(calls))
    m["calls/truncated"] = _mean([c.finish_reason == "length" for c in calls])
    m["calls/empty"] = _mean([not c.text.strip() for c in calls])
    m["calls/prompt_cut"] = _mean([c.prompt_cut for c in calls])
    m["tokens/designer"] = float(sum(len(d.call.completion_ids) for d in designs if d.call))
    m["tokens/executor"] = float(sum(len(c.completion_ids) for c in calls))
    completions = [*(d.call for d in designs if d.call), *calls]
    m["completions/repetition"] = _mean([_repeats(c) for c in completions])
    m["completions/truncated"] = _mean([c.finish_reason == "length" for c in completions])
    m["calls/stale"] = _mean([c.version != t.step for t in trees for c in t.calls()])
    m |= _endings(trees)
    m["executions/void"] = float(sum((~t.counted()).sum() for t in trees))
    for status, n in Counter(e.status for e in runs).items():
        m[f"executions/{status}"] = float(n)
    for reason, n in Counter(reason_class(e.verdict.reason) for e in runs if e.verdict).items():
        m[f"verdicts/{reason}"] = float(n)
    for flag, n in Counter(f for e in runs for f in e.flags).items():
        m[f"flags/{flag}"] = float(n)
    shares = structure_shares(trees)
    for structure, share in shares.items():
        m[f"structure/{structure}"] = share
    made = [share for structure, share in shares.items() if structure != "invalid"]
    m["structures/top_share"] = max(made) / sum(made) if made else 0.0
    return m


def ends_in_repetition(ids: Sequence[int]) -> bool:
    """True if the last ids are one block over and over: of 1 to 64 ids, at least 4 times, at least 16 ids in all.

    The last repeat may be incomplete, as where a length limit cuts it. Exact, and a few comparisons for most texts.
    """
    for period in range(1, PERIOD + 1):
        span = max(REPEATS * period, LEAST)
        if span > len(ids):
            return False
        if ids[-span:-period] == ids[-span + period :]:
            return True
    return False


def _repeats(call: Call) -> bool:
    """Whether a completion ends in repeated tokens, its stop id aside."""
    return ends_in_repetition(call.completion_ids[:-1] if call.finish_reason == "stop" else call.completion_ids)


def _endings(trees: Sequence[RolloutTree]) -> dict[str, float]:
    designs = [d for t in trees for d in t.designs]
    runs = [e for d in designs for e in d.executions]
    ended = Counter("void" if e.void else e.status for e in runs)
    m = {f"status/{name}": ended[name] / len(runs) if runs else 0.0 for name in STATUSES}
    m["void/designer"] = float(sum(d.void for d in designs))
    m["void/executor"] = float(sum(e.status == "void" for e in runs))
    m["void/grader"] = float(sum(e.status != "void" and e.void for e in runs))
    tools = Counter(tool.status for e in runs for tool in e.tools)
    return m | {f"tools/{status}": float(n) for status, n in tools.items()}


def correct(tree: RolloutTree) -> np.ndarray:
    """[M, N] 1.0 where the answer is entirely right; an invalid design is a row of zeros."""
    return _verdicts(tree, "correct")


def reason_class(reason: str) -> str:
    """A verdict's reason without what differs from task to task: "test 3: wall" -> "test_wall"."""
    reason = re.sub(r"^test \d+: ", "test ", reason).split(":")[0]
    return re.sub(r"\W+", "_", reason).strip("_") or "none"


def _verdicts(tree: RolloutTree, field: str) -> np.ndarray:
    """[M, N] one number of every verdict; 0.0 where there is none (invalid design, void execution)."""
    out = np.zeros((len(tree.designs), tree.executions))
    for i, design in enumerate(tree.designs):
        for j, e in enumerate(design.executions):
            out[i, j] = 0.0 if e.verdict is None or e.void else getattr(e.verdict, field)
    return out


def _counted(trees: Sequence[RolloutTree], field: str) -> np.ndarray:
    return np.concatenate([np.zeros(0), *(_verdicts(t, field)[t.counted()] for t in trees)])


def structure_shares(trees: Sequence[RolloutTree]) -> dict[str, float]:
    """Share of each structure among executions that are not void; an invalid design counts N times "invalid"."""
    names: Counter[str] = Counter()
    for tree in trees:
        for design in tree.designs:
            if design.void:
                continue
            if not design.valid:
                names["invalid"] += tree.executions
            names.update(e.structure for e in design.executions if not e.void)
    total = sum(names.values())
    return {name: n / total for name, n in sorted(names.items())} if total else {}


async def evaluate(
    tasks: Sequence[tuple[Task, Rubric]],
    engines: Mapping[str, Engine],
    grader: Any,
    config: Settings,
    *,
    temperature: float = 1.0,
) -> dict[str, Any]:
    """One design and one execution for every task.

    Returns:
      a record for `evaluations.jsonl`: accuracy (all, math, code), valid designs, structures by kind; by task id the
      outcome (0 or 1), the structure, and the difficulty where one is stated; number of void executions (they count as
      neither right nor wrong, and are in none of these).
    """
    settings = with_rollout(config, temperature=temperature)
    trees = await collect(
        tasks, engines, grader, designs=1, executions=1, config=settings, step=EVALUATION_STEP
    )  # fmt: skip
    outcomes = {t.task.id: int(correct(t)[0, 0]) for t in trees if t.counted().all()}
    kind = {t.task.id: t.task.kind for t in trees}
    record: dict[str, Any] = {
        "temperature": temperature,
        "tasks": len(outcomes),
        "void": len(trees) - len(outcomes),
        "accuracy": _mean(list(outcomes.values())),
    }
    for k in ("math", "code"):
        record[f"accuracy/{k}"] = _mean([v for i, v in outcomes.items() if kind[i] == k])
    record["valid"] = _mean([t.designs[0].valid for t in trees if not t.designs[0].void])
    record["structures"] = {k: structure_shares([t for t in trees if t.task.kind == k]) for k in ("math", "code")}
    record["outcomes"] = outcomes
    played = [t for t in trees if t.task.id in outcomes]
    record["structures_by_task"] = {t.task.id: _structure(t.designs[0]) for t in played}
    record["difficulty_by_task"] = {t.task.id: t.task.difficulty for t in played if t.task.difficulty}
    return record


def _structure(design: Design) -> str:
    """What the one execution of a design was; an invalid one has none."""
    return design.executions[0].structure if design.valid else "invalid"


async def structure_table(
    tasks: Sequence[tuple[Task, Rubric]],
    engines: Mapping[str, Engine],
    grader: Any,
    config: Settings,
    scripts: Mapping[str, str],
) -> dict[str, dict[str, float]]:
    """Accuracy at T=1 of every structure forced on every task: {structure name: {"math": a, "code": b}}."""
    table = {}
    for name, script in scripts.items():
        record = await evaluate(tasks, engines, grader, with_rollout(config, design=script))
        table[name] = {k: record[f"accuracy/{k}"] for k in ("math", "code")}
    return table


def headroom(record: Mapping[str, Any], table: Mapping[str, Mapping[str, float]], gate: Any) -> tuple[bool, str]:
    """Decides whether RL can learn anything from here, and if not, which knob to turn.

    Args:
      record: an evaluation at T=1. table: accuracy by structure and kind; empty where no Designer chooses one.
      gate: `low`, `high` (accuracy of each kind), `valid` (share of designs), `spread` (best minus worst structure).

    Returns:
      (passed, message). The message names every figure outside its band.
    """
    wrong = []
    for kind in ("math", "code"):
        a = record[f"accuracy/{kind}"]
        if a < gate.low:
            wrong.append(
                f"{kind} accuracy {a:.2f} is below {gate.low:.2f}: train the cold start longer (sft.target) or choose "
                "easier levels (tasks/families.py)"
            )
        if a > gate.high:
            wrong.append(
                f"{kind} accuracy {a:.2f} is above {gate.high:.2f}: stop the cold start earlier (sft.target) or choose "
                "harder levels (tasks/families.py)"
            )
        scores = [row[kind] for row in table.values()]
        if scores and max(scores) - min(scores) < gate.spread:
            wrong.append(
                f"{kind}: best structure minus worst is {max(scores) - min(scores):.2f}, below {gate.spread:.2f}: the "
                "Designer has nothing to choose; let the styles differ more (mas/demonstrations.py)"
            )
    if record["valid"] < gate.valid:
        wrong.append(
            f"valid designs {record['valid']:.2f} are below {gate.valid:.2f}: train the cold start longer (sft.valid)"
        )
    return not wrong, "; ".join(wrong) or ("headroom for both roles" if table else "headroom")
