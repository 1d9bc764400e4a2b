"""Every call of a step on disk: `traces/step_000012.parquet`, one row a Call."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from metaagent_x.mas.records import Call, Execution, ToolRun
from metaagent_x.rollout.tree import Design, RolloutTree, Trajectory

TOOL_RUN = tuple(field.name for field in dataclasses.fields(ToolRun))
LINK = ("source", "target", "how")
SCHEMA = pa.schema(
    [
        ("run", pa.string()), ("step", pa.int64()), ("task_id", pa.string()), ("kind", pa.string()),
        ("design", pa.int32()), ("execution", pa.int32()), ("path", pa.string()), ("role", pa.string()),
        ("agent", pa.string()), ("structure", pa.string()), ("prompt_ids", pa.list_(pa.int32())),
        ("completion_ids", pa.list_(pa.int32())), ("logprobs", pa.list_(pa.float32())),
        ("finish_reason", pa.string()), ("version", pa.int64()), ("text", pa.string()), ("reward", pa.float64()),
        ("advantage", pa.float64()), ("trained", pa.bool_()),
        # Beyond the contract: what a person who reads a rollout wants to know.
        ("status", pa.string()), ("reason", pa.string()), ("answer", pa.string()), ("problem", pa.string()),
        ("flags", pa.list_(pa.string())), ("seed", pa.int64()), ("role_prompt", pa.string()),
        ("messages", pa.list_(pa.string())), ("verdict", pa.string()), ("prompt_cut", pa.bool_()),
        ("correct", pa.bool_()), ("fraction", pa.float64()), ("format", pa.float64()),
        # What counts and lengths need, so that nobody has to read the ids for them.
        ("prompt_tokens", pa.int32()), ("completion_tokens", pa.int32()), ("difficulty", pa.string()),
        ("conversation", pa.string()), ("old_logprobs", pa.list_(pa.float32())),
        ("tools", pa.list_(pa.struct([(name, pa.string()) for name in TOOL_RUN]))),
        ("links", pa.list_(pa.struct([(name, pa.string()) for name in LINK]))),
    ]
)  # fmt: skip
# Rows that are written, and can be read, as one: a reader who wants one call of a large step reads no others.
ROW_GROUP = 128


def path_of(folder: str | Path, step: int) -> Path:
    """The trace file of a step."""
    return Path(folder) / f"step_{step:06d}.parquet"


def write(
    folder: str | Path, trees: Sequence[RolloutTree], trained: Sequence[Trajectory], *, run: str, step: int
) -> Path:
    """Writes one step; a file that exists is replaced as a whole, never half.

    Columns: `reward` is the outcome that the call's trajectory carries, before any cost of calls, 0 for void ones.
    `advantage` is 0 and `trained` False for calls that no trained trajectory contains. `status` is the execution's, for
    a Designer row "ok", "invalid" or "void". `verdict` is the grader's reason, "" if ungraded; `correct`, `fraction`
    and `format` are the components of its reward, null for Designer rows and where nothing was graded or is void.
    `execution` is -1 and `structure` "" for Designer rows. `prompt_tokens` and `completion_tokens` count the ids;
    `difficulty` is the task's, "" if its dataset states none. `old_logprobs` are the learner's, one for each of
    `completion_ids`, null where it scored nothing. `tools` and `links` (see `Execution`) are those of the whole
    execution and stand on its first row; null on the others.

    Args:
      folder: made if missing. trees: of the step. trained: what the learner trained on, with advantages.
      run: name of the run. step: number of the step.

    Returns:
      The path of the file.
    """
    path = path_of(folder, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    places: dict[tuple, list[Trajectory]] = {}
    for t in trained:
        places.setdefault((t.question, t.design, t.execution), []).append(t)
    rows = [row | {"run": run, "step": step} for tree in trees for row in _rows(tree, places)]
    table = pa.Table.from_pylist([_storable(row) for row in rows], schema=SCHEMA)
    unfinished = path.with_name(path.name + ".tmp")
    try:
        pq.write_table(table, unfinished, compression="zstd", row_group_size=ROW_GROUP)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def read(path: str | Path) -> list[dict[str, Any]]:
    """The rows of one trace file.

    Raises:
      ValueError: the file cannot be read; the message names it.
    """
    try:
        return pq.ParquetFile(path).read().to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"cannot read trace {str(path)!r}: {error}") from error


def _rows(tree: RolloutTree, places: dict[tuple, list[Trajectory]]) -> Iterator[dict[str, Any]]:
    rewards, counted = tree.rewards(), tree.counted()
    for i, design in enumerate(tree.designs):
        common = {"task_id": tree.task.id, "kind": tree.task.kind, "difficulty": tree.task.difficulty, "design": i,
                  "problem": design.problem}  # fmt: skip
        if design.call is not None:
            mean = float(rewards[i][counted[i]].mean()) if counted[i].any() else 0.0
            learned = _trained(design.call, [design.call], places.get((tree.question, i, -1), []))
            yield common | _call_fields(design.call, learned, mean) | _design_fields(design)
        for j, execution in enumerate(design.executions):
            here = places.get((tree.question, i, j), [])
            whole = {
                "tools": [dataclasses.asdict(run) for run in execution.tools],
                "links": [dict(zip(LINK, link, strict=True)) for link in execution.links],
            }
            for call in execution.calls:
                learned = _trained(call, execution.calls, here)
                yield common | whole | _call_fields(call, learned, execution.reward) | _execution_fields(execution, j)
                whole = {}


def _trained(call: Call, calls: list[Call], trajectories: list[Trajectory]) -> Trajectory | None:
    """The trained trajectory that holds the completion of `call`: begun by it, or by an earlier call of its memory."""
    ids = (*call.prompt_ids, *call.completion_ids)
    conversation = {c.path: c.conversation for c in calls}
    for t in trajectories:
        same_memory = call.conversation and conversation.get(t.path) == call.conversation
        if t.path == call.path or (same_memory and t.tokens[: len(ids)] == ids):
            return t
    return None


def _call_fields(call: Call, learned: Trajectory | None, reward: float) -> dict[str, Any]:
    return {
        "path": call.path, "agent": call.agent, "prompt_ids": call.prompt_ids, "completion_ids": call.completion_ids,
        "prompt_tokens": len(call.prompt_ids), "completion_tokens": len(call.completion_ids),
        "logprobs": call.logprobs, "finish_reason": call.finish_reason, "version": call.version, "text": call.text,
        "reward": reward, "advantage": learned.advantage if learned else 0.0, "trained": learned is not None,
        "seed": call.seed, "role_prompt": call.role_prompt, "messages": call.messages, "prompt_cut": call.prompt_cut,
        "conversation": call.conversation, "old_logprobs": _scored(call, learned),
    }  # fmt: skip


def _scored(call: Call, learned: Trajectory | None) -> tuple[float, ...] | None:
    """The learner's log-probs of this call's part of a trajectory."""
    if learned is None or learned.old_logprobs is None:
        return None
    before = sum(learned.mask[: len(call.prompt_ids)])
    return learned.old_logprobs[before : before + len(call.completion_ids)]


def _design_fields(design: Design) -> dict[str, Any]:
    status = "void" if design.void else "invalid" if design.problem else "ok"
    return {
        "role": "designer", "execution": -1, "structure": "", "status": status, "reason": design.problem,
        "answer": design.script or "", "flags": (), "verdict": "", "correct": None, "fraction": None, "format": None,
    }  # fmt: skip


def _execution_fields(execution: Execution, index: int) -> dict[str, Any]:
    verdict = execution.verdict
    graded = None if execution.void else verdict
    return {
        "role": "executor", "execution": index, "structure": execution.structure,
        "status": "void" if execution.void else execution.status, "reason": execution.reason,
        "answer": execution.answer, "flags": sorted(execution.flags),
        "verdict": verdict.reason if verdict else "", "correct": graded.correct if graded else None,
        "fraction": graded.fraction if graded else None, "format": graded.format if graded else None,
    }  # fmt: skip


def _storable(value: Any) -> Any:
    """Texts as UTF-8 can hold them, at any depth: half of a surrogate pair becomes "?"."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {key: _storable(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)) and value and isinstance(value[0], (str, dict)):
        return [_storable(item) for item in value]
    return value
