"""Whole runs that go wrong, by the command a person types: numbers that are not finite, a phase that takes too long."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow
# Rehearsed answers, so that the first update has a signal although nothing has been learned.
FLAGS = [
    "--config=configs/smoke.py", "--engine=scripted", "--config.sft.first_eval=1", "--config.sft.eval_every=1",
    "--config.data.dev=()", "--config.data.test=()", "--config.checkpoint.every=10",
    "--config.rollout.max_executor_tokens=112", "--config.engine.cache_tokens=256", "--config.learner.row_tokens=256",
    "--schedule=designer_only", "--config.guard.heartbeat_s=0.01",
]  # fmt: skip


@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    return tmp_path_factory.mktemp("cold")


def run(folder, cold, *flags, code):
    command = [sys.executable, "-m", "metaagent_x.train", *FLAGS, f"--workdir={folder}", f"--config.sft.cache={cold}",
               *flags]  # fmt: skip
    env = {**os.environ, "XLA_FLAGS": "", "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_whose_weights_stop_being_finite_ends_and_its_last_update_can_be_done_again(cold, tmp_path):
    folder, broken = tmp_path / "run", ("--config.learner.learning_rate=1e39", "--config.guard.nonfinite=2")
    output = run(folder, cold, *broken, "--config.guard.update_s=0.02", code=1)
    lines, alerts = records(folder / "metrics.jsonl"), records(folder / "alerts.jsonl")
    assert "watchdog: step 1: update has taken" in output and "improve.py:" in (folder / "stuck.txt").read_text()
    phases = {f"time/{name}" for name in ("cold_start", "collect", "update", "push", "save", "evaluate", "step")}
    assert phases <= lines[0].keys() and lines[0]["time/cold_start"] > 0 < lines[1]["time/update"]
    assert [(line["step"], line["updates"], line["updates/nonfinite"]) for line in lines] == [
        (1, 1.0, 0.0), (2, 0.0, 1.0), (3, 0.0, 1.0),
    ]  # fmt: skip
    skips = [a for a in alerts if a["guard"] == "nonfinite"]
    assert [(a["step"], a["value"], a["action"]) for a in skips] == [(2, 1.0, "warn"), (3, 2.0, "stop")]
    files = sorted((folder / "replay").iterdir())
    assert [f.name for f in files] == [f"step_00000{n}_update_1_shared.npz" for n in (2, 3)]
    assert "stopped:" in output and f"--replay={files[1]}" in output
    assert json.loads((folder / "heartbeat.json").read_text())["phase"] == "ended"
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    shown = run(folder, cold, *broken, "--config.learner.weigh=execution", f"--replay={files[1]}", code=0)
    assert "reproduced to the bit" in shown and "first: weights: " in shown and " then " in shown
    assert "learner.weigh: 'trajectory' then, 'execution' now" in shown
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
    assert "not an update" in run(folder, cold, f"--replay={folder}/config.json", code=2)


def test_a_phase_that_takes_too_long_can_end_the_run(cold, tmp_path):
    folder = tmp_path / "run"
    output = run(folder, cold, "--config.guard.collect_s=0.02", "--config.guard.stuck=exit", code=1)
    assert "watchdog: step 1: collect has taken" in output and "stopped: step 1: collect" in output
    assert not (folder / "metrics.jsonl").exists()
    text = (folder / "stuck.txt").read_text()
    assert "loop.py:" in text and "asyncio task" in text and "thread" in text and "grader:" in text
