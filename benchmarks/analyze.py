"""How long `analyze` takes on a long run: 400 steps x 128 executions x 3 calls, written here.

  python -m benchmarks.analyze
  python -m benchmarks.analyze --steps=40 --keep=DIR

The run has the files of a real one, texts and ids too (50 MB, as they repeat themselves), which the analysis must not
read. The named alternative is reading every column of the same traces with pyarrow, and nothing else.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from metaagent_x import config
from metaagent_x.rollout import traces
from metaagent_x.run_folder import RunFolder

TASKS, DESIGNS, EXECUTIONS, CALLS = 8, 4, 4, 3
TOKENS = 300  # of a completion
STRUCTURES = ("single", "ensemble", "solver-tester", "reflection")


def write_run(path: Path, steps: int) -> None:
    """A run of so many steps; structures and rewards drift."""
    c = config.base()
    c.steps, c.workdir = steps, str(path)
    folder, rng = RunFolder(path, c), np.random.default_rng(0)
    folder._draw = lambda step, metrics: None  # TensorBoard files are not what is measured
    tasks = [f"{'polaris' if i % 2 else 'apps'}/{i}" for i in range(2000)]
    for name, step, designer, executor in (("cold", 0, "cold", "cold"), ("final", steps, "rl", "rl"),
                                           ("cross", steps, "rl", "cold"), ("cross", steps, "cold", "rl")):  # fmt: skip
        right = rng.random(512) < (0.4 if step == 0 else 0.55)
        folder.log_evaluation({
            "name": name, "step": step, "designer": designer, "executor": executor, "temperature": 1.0,
            "tasks": 512, "void": 0, "accuracy": float(right.mean()), "valid": 1.0,
            "outcomes": {f"olympiadbench/{i}": int(r) for i, r in enumerate(right)},
            "structures_by_task": {f"olympiadbench/{i}": STRUCTURES[rng.integers(4)] for i in range(512)},
        })  # fmt: skip
    for step in range(1, steps + 1):
        role = "executor" if (step - 1) // 30 % 2 == 0 else "designer"
        folder.log(step, {role}, {
            "reward/mean": 0.4 + 0.3 * step / steps + rng.normal(0, 0.05), "accuracy": 0.4 + 0.2 * step / steps,
            "designs/valid": 0.97, "calls": 384.0, "entropy": 0.5, "completions/repetition": 0.01,
            "designs/truncated": 0.0, "calls/truncated": 0.02, "executions/void": 0.0,
            "groups/flat/designer": 0.3, "groups/flat/executor": 0.2,
        })  # fmt: skip
        rows = list(_rows(step, steps, tasks, role, rng))
        target = traces.path_of(path / "traces", step)
        target.parent.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=traces.SCHEMA), target, compression="zstd")


def _rows(step, steps, tasks, role, rng):
    text = "Let us consider the cases one by one. " * 30
    for task in rng.choice(tasks, TASKS, replace=False):
        for design in range(DESIGNS):
            common = {"run": "long", "step": step, "task_id": task, "design": design, "version": step, "seed": 1,
                      "kind": "math" if task.startswith("polaris") else "code", "prompt_ids": list(range(TOKENS)),
                      "completion_ids": rng.integers(0, 150_000, TOKENS).tolist(), "text": text, "problem": "",
                      "logprobs": rng.random(TOKENS).tolist(), "finish_reason": "stop", "status": "ok", "reason": "",
                      "flags": [], "role_prompt": "Solve.", "messages": [text], "verdict": "ok", "prompt_cut": False,
                      "fraction": 1.0, "format": 1.0, "prompt_tokens": TOKENS, "completion_tokens": TOKENS,
                      "difficulty": "introductory" if design else "interview", "answer": text}  # fmt: skip
            yield common | {"role": "designer", "execution": -1, "path": "", "agent": "designer", "structure": "",
                            "reward": 0.5, "advantage": float(rng.normal()), "trained": role == "designer",
                            "correct": None}  # fmt: skip
            at = step / steps
            structure = STRUCTURES[rng.choice(4, p=[0.5 - 0.3 * at, 0.2, 0.1 + 0.2 * at, 0.2 + 0.1 * at])]
            for execution in range(EXECUTIONS):
                right = bool(rng.random() < 0.4 + 0.2 * at)
                for number in range(CALLS):
                    yield common | {"role": "executor", "execution": execution, "path": str(number), "agent": "solver",
                                    "structure": structure, "reward": float(right), "correct": right,
                                    "advantage": float(rng.normal()), "trained": role == "executor"}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.analyze", description="The analysis of a long run.")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--keep", type=Path, help="folder for the run and its analysis; by default they are removed")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = parsed.keep or Path(temporary)
        if not (folder / "long" / "traces").exists():
            write_run(folder / "long", parsed.steps)
        files = sorted((folder / "long" / "traces").glob("*.parquet"))
        size = sum(file.stat().st_size for file in files) / 1e9
        print(
            f"{len(files)} steps, {sum(pq.read_metadata(f).num_rows for f in files):,} calls, {size:.2f} GB of traces"
        )
        began = time.perf_counter()
        job = [sys.executable, "-m", "metaagent_x.analyze", str(folder / "long"), "--out", str(folder / "out")]
        subprocess.run(job, check=True)
        took = time.perf_counter() - began
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"analyze: {took:.1f} s, {usage.ru_utime + usage.ru_stime:.1f} s of CPU, {usage.ru_maxrss / 1e6:.2f} GB")
        began = time.perf_counter()
        for file in files:
            pq.read_table(file)
        print(f"reading every column of the traces: {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
