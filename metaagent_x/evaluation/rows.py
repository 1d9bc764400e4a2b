"""One row of `results.jsonl`: what became of one task, played once by one method, and what that cost."""

from __future__ import annotations

from typing import Any

from metaagent_x.mas.records import Execution
from metaagent_x.rollout.tree import Design, RolloutTree
from metaagent_x.tasks.code import extract_code
from metaagent_x.tasks.math import extract_answer
from metaagent_x.tasks.task import Task

LIMITS = ("wall", "cpu", "memory", "output", "threads")  # of a contained process
Key = tuple[str, str, int, str]  # method, benchmark, sample, task id


def row_of(
    execution: Execution, task: Task, *, method: str, benchmark: str, sample: int, scorer: str, wall_s: float
) -> dict[str, Any]:
    """The row. Every method has the same fields; what each means stands in docs/evaluation.md."""
    verdict, e = execution.verdict, execution
    calls = ([e.designer] if e.designer else []) + e.calls
    graded = not e.void and verdict is not None
    extract = extract_answer if task.kind == "math" else extract_code
    return {
        "method": method, "benchmark": benchmark, "sample": sample, "task_id": task.id, "kind": task.kind,
        "correct": bool(verdict and verdict.correct) if graded else None, "void": e.void,
        "verdict": verdict.reason if verdict else "", "answer": (extract(e.answer) or "").strip(),
        "status": e.status, "reason": e.reason, "structure": e.structure, "flags": sorted(e.flags), "script": e.script,
        "calls": len(calls), "prompt_tokens": sum(len(c.prompt_ids) for c in calls),
        "sampled_tokens": sum(c.sampled for c in calls), "designer_tokens": e.designer.sampled if e.designer else 0,
        "truncated": sum(c.finish_reason == "length" for c in calls), "empty": sum(not c.text.strip() for c in calls),
        "prompt_cut": sum(c.prompt_cut for c in calls), "invalid": e.status == "invalid", "tools": len(e.tools),
        "limits": _limits(execution), "scorer": scorer, "time/wall_s": round(wall_s, 3),
    }  # fmt: skip


def key_of(row: dict[str, Any]) -> Key:
    return row["method"], row["benchmark"], row["sample"], row["task_id"]


def tree_of(execution: Execution, task: Task) -> RolloutTree:
    """The same as a tree, for the trace store."""
    e = execution
    invalid = e.status == "invalid"
    void = e.status == "void" and not e.calls and e.designer is None
    runs = [] if invalid or void else [e]
    design = Design(e.designer, e.script or None, problem=e.reason if invalid else "", executions=runs, void=void)
    return RolloutTree(task, [design])


def _limits(e: Execution) -> list[str]:
    """Which limits of contained processes were hit: of the script, of its tool runs, of the test that failed."""
    hit = [f"script {e.status}"] if e.status in LIMITS else []
    hit += [f"tool {tool.status}" for tool in e.tools if tool.status in LIMITS]
    last = e.verdict.reason.rpartition(": ")[2] if e.verdict and e.verdict.reason.startswith("test ") else ""
    return hit + ([f"test {last}"] if last in LIMITS else [])
