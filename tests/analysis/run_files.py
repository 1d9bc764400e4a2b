"""Makes the files of a run without playing one: what the report's tests read."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from metaagent_x import config
from metaagent_x.rollout import traces
from metaagent_x.run_folder import RunFolder

STRUCTURES = ("single", "ensemble", "solver-tester", "reflection", "invalid")
HOSTILE = "</pre><script>alert('run')</script><img src=http://evil.example/x onerror=alert(1)>\u202e &amp; ünïcode"


def write_run(path, steps=64, stage=8, seed=0, text=None, hash="3f2a", lift=0.0, **fields):
    """A finished run in which accuracy rises and ensembles spread.

    `text` replaces everything that a model wrote; `hash` is that of its held-out tasks; `lift` is added to the accuracy
    at the end; `fields` are further settings.
    """
    c = config.base()
    c.steps, c.stage_length, c.workdir, c.seed = steps, stage, str(path), seed
    c.update(fields)
    folder, rng = RunFolder(path, c), np.random.default_rng(seed)
    folder.check_data([{"use": "test", "name": "tiny_math", "tasks": 512, "hash": hash}])
    folder.write_gate({
        "accuracy": {"math": 0.55, "code": 0.48}, "valid": 0.97, "passed": True, "message": "headroom for both roles",
        "table": {"solver": {"math": 0.44, "code": 0.41}, "solver step by step": {"math": 0.71, "code": 0.43},
                  "ensemble of 3": {"math": 0.62, "code": 0.50}, "ensemble, step by step": {"math": 0.86, "code": 0.52},
                  "solve and test": {"math": 0.45, "code": 0.68}, "reflect": {"math": 0.43, "code": 0.39}},
    })  # fmt: skip
    luck = rng.random(512)
    for temperature, more in ((1.0, 0.0), (0.0, 0.06)):
        folder.log_evaluation(evaluation("cold", 0, luck, 0.52 + more, temperature, "cold", "cold"))
    for step in range(1, steps + 1):
        role = "executor" if (step - 1) // stage % 2 == 0 else "designer"
        folder.log(step, {role}, step_metrics(step, steps, role, rng))
        if step % stage == 0 and step < steps:
            folder.log_evaluation(evaluation("stage", step, luck[:128], 0.52 + 0.2 * step / steps, 1.0))
    for temperature, more in ((1.0, 0.0), (0.0, 0.05)):
        folder.log_evaluation(evaluation("final", steps, luck, 0.74 + lift + more, temperature))
    folder.log_evaluation(evaluation("cross", steps, luck, 0.66, 1.0, "rl", "cold"))
    folder.log_evaluation(evaluation("cross", steps, luck, 0.61, 1.0, "cold", "rl"))
    write_trace(folder.path, steps, text)
    return folder


def write_fixed_run(path, script, steps=8, hash="3f2a"):
    """A finished run of one agent with a fixed design; its steps sample 1,000 tokens each, as `c.tokens` asks."""
    c = config.base()
    c.schedule, c.designs, c.executions, c.rollout.design = "executor_only", 1, 16, script
    c.steps, c.tokens, c.stage_length, c.workdir = 100, 1000 * steps, 4, str(path)
    folder, luck, rng = RunFolder(path, c), np.random.default_rng(0).random(512), np.random.default_rng(1)
    folder.check_data([{"use": "test", "name": "tiny_math", "tasks": 512, "hash": hash}])
    gate = {"accuracy": {"math": 0.3, "code": 0.45}, "valid": 1.0, "table": {}, "passed": True, "message": "headroom"}
    folder.write_gate(gate)
    folder.log_evaluation(evaluation("cold", 0, luck, 0.4, 1.0, "fixed", "cold"))
    for step in range(1, steps + 1):
        own = {"tokens/designer": 0.0, "tokens/executor": 1000.0, "designs/valid": 1.0, "structure/single": 1.0}
        measured = {k: v for k, v in step_metrics(step, steps, "executor", rng).items() if "structure/" not in k}
        folder.log(step, {"executor"}, measured | own)
    folder.log_evaluation(evaluation("stage", 4, luck[:128], 0.5, 1.0, "fixed"))
    for temperature in (1.0, 0.0):
        folder.log_evaluation(evaluation("final", steps, luck, 0.6, temperature, "fixed"))
    write_trace(folder.path, steps)
    trace = folder.path / "traces" / f"step_{steps:06d}.parquet"
    rows = [row for row in pq.read_table(trace).to_pylist() if row["role"] == "executor" and row["design"] == 0]
    pq.write_table(pa.Table.from_pylist(rows, schema=traces.SCHEMA), trace)
    return folder


def evaluation(name, step, luck, accuracy, temperature, designer="rl", executor="rl"):
    outcomes = {f"t/{i}": int(u < accuracy) for i, u in enumerate(luck)}
    mean = sum(outcomes.values()) / len(outcomes)
    return {
        "name": name, "step": step, "designer": designer, "executor": executor, "temperature": temperature,
        "tasks": len(outcomes), "void": 0, "accuracy": mean, "accuracy/math": mean,
        "accuracy/code": mean, "valid": 0.98, "structures": {"math": {"single": 1.0}, "code": {"single": 1.0}},
        "outcomes": outcomes,
        "structures_by_task": {
            t: "ensemble" if i % 4 < 2 * (designer == "rl") else "single" for i, t in enumerate(outcomes)
        },
    }  # fmt: skip


def step_metrics(step, steps, role, rng):
    t = step / steps
    shares = np.array([0.5 - 0.3 * t, 0.2 + 0.3 * t, 0.15 + 0.05 * t, 0.1 - 0.05 * t, 0.05 - 0.03 * t])
    shares = np.maximum(shares + rng.normal(0, 0.03, 5), 0)
    shares /= shares.sum()
    right = float(np.clip(0.5 + 0.25 * t + rng.normal(0, 0.06), 0, 1))
    return {
        "accuracy": right, "reward/mean": right, "reward/math": right, "reward/code": right, "grad_norm": 0.4,
        f"loss/{role}": -0.01, "ratio/max_dev": 2e-6, "mismatch/mean": 3e-7, "designs/valid": float(1 - shares[-1]),
        "calls": float(180 + 90 * t + rng.normal(0, 12)), "tokens/designer": float(420 + 60 * t + rng.normal(0, 15)),
        "tokens/executor": float(3600 + 2500 * t + rng.normal(0, 200)), "executions/void": 0.0, "time/step": 1.5,
        **{f"structure/{n}": float(s) for n, s in zip(STRUCTURES, shares, strict=True)},
    }  # fmt: skip


def write_trace(path, step, text=None):
    scripts = [
        'answer = solver("step by step")(task)', "answer = solver()(task)", "answer = SOLVE(task)",
        'answer = ensemble([solver("step by step")] * 3)(task)',
    ]  # fmt: skip
    rows = []
    for task, kind in (("tiny_math/17", "math"), ("tiny_code/4", "code")):
        for design, script in enumerate(scripts):
            worth = (1.0, 0.25, 0.0, 1.0)[design] if kind == "math" else 0.5
            rows.append(call(step, task, kind, design, -1, "", "designer", script, worth, "", text))
            for execution in range(0 if design == 2 else 4):
                for n in range(3 if design == 3 else 1):
                    reward = float(execution < 4 * worth)
                    said = f"7+8+4=5+4=9\n\\boxed{{{9 if reward else 3}}}"
                    at, structure = (f"{n}.0", "ensemble") if design == 3 else ("0", "single")
                    rows.append(call(step, task, kind, design, execution, at, "solver", said, reward, structure, text))
    (path / "traces").mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=traces.SCHEMA), path / "traces" / f"step_{step:06d}.parquet")


def call(step, task, kind, design, execution, path, agent, said, reward, structure, text):
    ids = list(range(3, 3 + len(said) // 2))
    role = "designer" if execution < 0 else "executor"
    invalid = role == "designer" and "SOLVE" in said
    prompt = "compute 7+8+4" if kind == "math" else "add 2, then times 3, print sum"
    return {
        "run": "synthetic", "step": step, "task_id": text or task, "kind": kind, "design": design,
        "execution": execution, "prompt_cut": False, "path": path, "role": role, "agent": text or agent,
        "structure": structure, "prompt_ids": [1, 2] * 12,
        "completion_ids": ids, "logprobs": [-0.25] * len(ids), "finish_reason": "stop", "version": step,
        "text": text or said, "reward": reward, "advantage": (reward - 0.5) * 1.7, "trained": role == "designer",
        "status": "ok", "reason": text or "", "answer": text or said, "flags": [text] if text else [], "seed": 1,
        "problem": text or ("unknown name SOLVE, line 1" if invalid else ""), "messages": [text or prompt],
        "role_prompt": text or ("design" if role == "designer" else "step by step"),
        "verdict": text or ("ok" if reward else "wrong_answer"),
        "correct": None if role == "designer" else reward == 1, "prompt_tokens": 24, "completion_tokens": len(ids),
        "difficulty": "",
    }  # fmt: skip
