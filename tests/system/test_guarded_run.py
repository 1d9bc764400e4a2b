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


def run(folder, cold, *flags, code, program=("-m", "metaagent_x.train")):
    command = [sys.executable, *program, *FLAGS, f"--workdir={folder}", f"--config.sft.cache={cold}", *flags]
    env = {**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0", "COLUMNS": "200"}  # quick compiles
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


def test_a_run_that_collapses_goes_back_by_itself_and_stops_when_that_does_not_help(cold, tmp_path):
    folder = tmp_path / "run"
    flags = ("--config.guard.one_structure.action=roll_back", "--config.guard.one_structure.limit=-1.0",
             "--config.guard.window=2", "--config.guard.max_roll_backs=1", "--config.checkpoint.every=1")  # fmt: skip
    output = run(folder, cold, "--steps=6", *flags, code=1)
    why = "structures/top_share is"
    assert f"rolled back: to step 1: {why}" in output and "resumed after step 1" in output
    assert "cold start: found" in output.partition("rolled back")[2], "the second try began with another cold start"
    assert f"stopped: {why}" in output and "rolled back 1 times before (guard.max_roll_backs=1)" in output
    assert [line["step"] for line in records(folder / "metrics.jsonl")] == [1, 2]
    (back,) = records(folder / "roll_backs.jsonl")
    assert (back["after_step"], back["to"]) == (2, 1) and back["why"].startswith(why)


HANGS = """
import asyncio
from absl import app
from metaagent_x import config, train
from metaagent_x.rollout.rehearsal import Rehearsal

plain = Rehearsal.update_weights

async def never_comes_back(engine, params, version):
    await (asyncio.sleep(1000) if version == 2 else plain(engine, params, version))

Rehearsal.update_weights = never_comes_back
app.run(train.main, flags_parser=config.parse_flags)
"""


def test_a_push_that_hangs_is_shown_and_ends_the_run_which_goes_on_from_its_last_whole_step(cold, tmp_path):
    """The step whose push hung has new weights but no metrics and no traces yet: it must not become a checkpoint."""
    folder, flags = tmp_path / "run", ("--steps=2", "--config.checkpoint.every=1")
    output = run(
        folder, cold, *flags, "--config.guard.push_s=0.2", "--config.guard.stuck=exit", code=1, program=["-c", HANGS]
    )
    assert "watchdog: step 2: push has taken" in output and "stuck: step 2: push" in output
    text = (folder / "stuck.txt").read_text()
    assert "never_comes_back" in text and "train.py:" in text and "thread" in text and "grader: {" in text
    assert [line["step"] for line in records(folder / "metrics.jsonl")] == [1]
    assert [p.name for p in (folder / "checkpoints").iterdir() if p.name.isdigit()] == ["1"]
    output = run(folder, cold, *flags, code=0)
    assert "resumed after step 1" in output and [line["step"] for line in records(folder / "metrics.jsonl")] == [1, 2]
