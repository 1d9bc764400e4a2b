"""Rows of traces and executions by the few fields that a test is about."""

import pyarrow as pa
import pyarrow.parquet as pq

from metaagent_x.analysis.executions import Executions
from metaagent_x.rollout import traces

DEFAULTS = {
    "run": "r", "step": 1, "task_id": "t/0", "kind": "math", "design": 0, "execution": 0, "path": "0",
    "role": "executor", "agent": "solver", "structure": "single", "prompt_ids": [1, 2, 3], "completion_ids": [4, 5],
    "logprobs": [-0.5, -0.5], "finish_reason": "stop", "version": 0, "text": "said", "reward": 0.0, "advantage": 0.0,
    "trained": False, "status": "ok", "reason": "", "answer": "", "problem": "", "flags": [], "seed": 0,
    "role_prompt": "", "messages": [], "verdict": "ok", "prompt_cut": False, "correct": False, "fraction": 0.0,
    "format": 0.0, "prompt_tokens": 3, "completion_tokens": 2, "difficulty": "",
}  # fmt: skip


def call(design=0, execution=0, right=False, **fields):
    return DEFAULTS | {"design": design, "execution": execution, "correct": right, "reward": float(right)} | fields


def designer(design=0, problem="", **fields):
    own = {"role": "designer", "execution": -1, "structure": "", "correct": None, "problem": problem}
    return call(design, **own | {"status": "invalid" if problem else "ok"} | fields)


def write(folder, step, rows, without=()):
    folder.mkdir(exist_ok=True)
    path = traces.path_of(folder, step)
    table = pa.Table.from_pylist([row | {"step": step} for row in rows], schema=traces.SCHEMA)
    pq.write_table(table.drop_columns(list(without)), path)
    return path


def played(*rows):
    """Executions of (task, structure, right) and further fields by name."""
    places = {}
    out = []
    for task, structure, right, *more in rows:
        number = places[task] = places.get(task, -1) + 1
        fields = more[0] if more else {}
        place = {"execution": number, "step": 1, "calls": 1, "completion_tokens": 10, "prompt_tokens": 5,
                 "design_tokens": 3}  # fmt: skip
        out.append(
            place | {"task": task, "structure": structure, "correct": float(right), "reward": float(right)} | fields
        )
    return Executions.of(out)
