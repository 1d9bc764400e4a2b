"""Whole runs of the smoke configuration, by the command a person types: same seed, stop and go on, bad input."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
COMMAND = [sys.executable, "-m", "metaagent_x.train", "--config=configs/smoke.py"]
# The smallest run that passes every station; two stages of two steps.
SMALL = ["--config.sft.first_eval=150", "--config.eval.tasks=8", "--config.gate.tasks=2"]


@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    """The cold start is shared: it is the same for all runs of one seed."""
    return tmp_path_factory.mktemp("cold")


def start(folder: Path, cold: Path, *flags: str) -> subprocess.Popen:
    command = [*COMMAND, *SMALL, f"--workdir={folder}", f"--config.sft.cache={cold}", *flags]
    env = {**os.environ, "XLA_FLAGS": "", "COLUMNS": "200"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell has it ignored
    )  # fmt: skip


def run(folder: Path, cold: Path, *flags: str, code: int = 0) -> str:
    job = start(folder, cold, *flags)
    output, _ = job.communicate(timeout=600)
    assert job.returncode == code, output
    return output


def metrics(folder: Path) -> list[dict]:
    """All metrics but what depends on the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]


@pytest.fixture(scope="module")
def straight(tmp_path_factory, cold):
    folder = tmp_path_factory.mktemp("straight") / "run"
    return folder, run(folder, cold)


def test_a_run_leaves_the_documented_files(straight):
    folder, output = straight
    assert "report:" in output and "held-out tasks" in output
    for name in ("config.json", "metrics.jsonl", "evaluations.jsonl", "gate.json", "report.html", "checkpoints/4"):
        assert (folder / name).exists(), name
    assert [line["step"] for line in metrics(folder)] == [1, 2, 3, 4]
    assert [line["stage"] for line in metrics(folder)] == ["executor", "executor", "designer", "designer"]
    fixed = {"reward/mean", "reward/math", "reward/code", "accuracy", "designs/valid", "groups/flat/designer",
             "groups/flat/executor", "calls", "tokens/designer", "tokens/executor"}  # fmt: skip
    assert all(fixed <= line.keys() for line in metrics(folder))
    assert sum(line["calls"] for line in metrics(folder)) > 20, "designs must run, or these tests compare nothing"
    assert sum(line["updates"] for line in metrics(folder)) > 0


def test_the_same_seed_gives_the_same_metrics(straight, cold, tmp_path):
    run(tmp_path / "again", cold)
    assert metrics(tmp_path / "again") == metrics(straight[0])


@pytest.mark.fault("F103")
@pytest.mark.parametrize("after", [2])
def test_a_run_stopped_after_any_step_goes_on_to_the_same_metrics(straight, cold, tmp_path, after):
    """Parameters, moments and counters are restored exactly: nothing repeats, nothing jumps (maxdiffusion#484)."""
    folder = tmp_path / "run"
    job = start(folder, cold)
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline and job.poll() is None:
        if (folder / "metrics.jsonl").exists() and len((folder / "metrics.jsonl").read_text().splitlines()) >= after:
            break
        time.sleep(0.05)
    job.send_signal(signal.SIGINT if after % 2 else signal.SIGTERM)
    output, _ = job.communicate(timeout=120)
    assert job.returncode == 3, output
    run(folder, cold)
    assert metrics(folder) == metrics(straight[0])
    final = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    whole = [json.loads(line) for line in (straight[0] / "evaluations.jsonl").read_text().splitlines()]
    assert {json.dumps(r, sort_keys=True) for r in whole} <= {json.dumps(r, sort_keys=True) for r in final}


@pytest.mark.fault("F102")
def test_the_last_step_is_saved_and_a_finished_run_is_not_repeated(straight, cold):
    """7 steps with interval 5 must leave step 7; a second run in the folder finds nothing to do (maxtext#1443)."""
    folder, _ = straight
    before = (folder / "metrics.jsonl").read_bytes()
    assert "resumed after step 4" in run(folder, cold)
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_a_folder_of_other_settings_is_refused_and_left_alone(straight, cold):
    before = (straight[0] / "metrics.jsonl").read_bytes()
    output = run(straight[0], cold, "--designs=3", code=2)
    assert "designs" in output and "2 there, 3 here" in output
    assert (straight[0] / "metrics.jsonl").read_bytes() == before


def test_separate_policies_train_and_resume(cold, tmp_path):
    folder = tmp_path / "run"
    run(folder, cold, "--policy=separate", "--steps=2", "--config.eval.tasks=2")
    run(folder, cold, "--policy=separate", "--steps=3", "--config.eval.tasks=2")
    assert [line["step"] for line in metrics(folder)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ('(("polaris","no/such/file.jsonl",1.0),)', "no/such/file.jsonl"),
        ('(("nowhere","",1.0),)', "nowhere"),
    ],
)
def test_a_missing_dataset_is_named_before_any_compute(cold, tmp_path, train, words):
    output = run(tmp_path / "run", cold, f"--config.data.train={train}", code=2)
    assert words in output and not (tmp_path / "run").exists()


def test_a_row_without_an_answer_names_file_and_line(cold, tmp_path):
    data = tmp_path / "rows.jsonl"
    data.write_text('{"problem": "1+1", "answer": "2", "difficulty": "1/8"}\n{"problem": "1+2", "difficulty": "1/8"}\n')
    output = run(tmp_path / "run", cold, f'--config.data.train=(("polaris","{data}",1.0),)', code=2)
    assert "rows.jsonl" in output and "line 2" in output and "answer" in output
