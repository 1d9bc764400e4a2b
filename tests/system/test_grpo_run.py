"""Single-agent GRPO by the command a person types: a limit on sampled tokens, its last step, and going on."""

import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.slow
# A policy that has hardly begun: what it says is nonsense of at most 8 tokens, which is all that counts here.
FLAGS = [
    "--config=configs/smoke.py", "--schedule=executor_only", "--designs=1", "--executions=4", "--stage_length=2",
    "--config.rollout.design=answer = solver()(task)", "--config.rollout.max_executor_tokens=8", "--steps=100",
    "--config.sft.first_eval=1", "--config.sft.eval_every=1", "--config.sft.eval_tasks=2", "--config.data.dev_size=4",
    "--config.eval.tasks=4", "--config.eval.stage_tasks=2", "--config.checkpoint.every=100", "--config.engine.slots=8",
    "--config.model.num_layers=1", "--config.sft.tokenizer_examples=200", "--config.rollout.max_designer_tokens=8",
]  # fmt: skip


@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    return tmp_path_factory.mktemp("cold")


def run(folder, cold, *flags):
    command = [sys.executable, "-m", "metaagent_x.train", *FLAGS, f"--workdir={folder}", *flags]
    env = {**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0", "COLUMNS": "200"}  # quick compiles
    done = subprocess.run(
        [*command, f"--config.sft.cache={cold}"], capture_output=True, text=True, timeout=300, env=env
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def metrics(folder):
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in records(folder / "metrics.jsonl")]


def evaluated(folder):
    return [(r["name"], r["step"], r["temperature"], r["designer"]) for r in records(folder / "evaluations.jsonl")]


def test_a_limit_on_tokens_ends_a_run_and_one_that_goes_on_equals_one_that_did_not_stop(cold, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    output = run(whole, cold, "--tokens=300")
    lines = metrics(whole)
    each = [line["tokens/executor"] for line in lines]
    assert sum(each[:-1]) < 300 <= sum(each) and all(line["tokens/designer"] == 0 for line in lines)
    last = len(lines)
    assert [line["step"] for line in lines] == list(range(1, last + 1)) and 4 < last < 12
    assert f"{last:4d}/100 {int(sum(each))}/300 tokens learns executor" in output
    assert [p.name for p in (whole / "checkpoints").iterdir() if p.name.isdigit()] == [str(last)]
    assert evaluated(whole) == [
        ("cold", 0, 1.0, "fixed"), ("cold", 0, 0.0, "fixed"),
        *(("stage", step, 1.0, "fixed") for step in range(2, last, 2)),
        ("final", last, 1.0, "fixed"), ("final", last, 0.0, "fixed"),
    ]  # fmt: skip
    assert json.loads((whole / "gate.json").read_text())["table"] == {}
    rows = pq.read_table(whole / "traces" / "step_000001.parquet").to_pylist()
    assert {row["role"] for row in rows} == {"executor"} and {row["execution"] for row in rows} == {0, 1, 2, 3}
    page = (whole / "report.html").read_text()
    assert (
        "Structures that the Designer chose" not in page and f">{last} steps, {int(sum(each))} sampled tokens; " in page
    )
    run(parts, cold, f"--tokens={int(sum(each[:3]))}")
    assert [line["step"] for line in metrics(parts)] == [1, 2, 3] and ("final", 3, 1.0, "fixed") in evaluated(parts)
    assert "resumed after step 3" in run(parts, cold, "--tokens=300")
    assert metrics(parts) == lines and evaluated(parts)[-1] == ("final", last, 0.0, "fixed")
