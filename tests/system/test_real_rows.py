"""The loop on real rows with the real tokenizer: all trajectories recorded, each role updated once, saved, resumed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from metaagent_x.rollout.chat import Chat

pytestmark = pytest.mark.slow
SHARED = Path(__file__).parents[2].parent / "shared"
START, END, END_OF_TEXT, VOCABULARY = 151_644, 151_645, 151_643, 151_669


def run(folder: Path, *flags: str) -> str:
    command = [
        sys.executable,
        "-m",
        "metaagent_x.train",
        "--config=configs/real_rows.py",
        f"--workdir={folder}",
        *flags,
    ]
    env = {**os.environ, "XLA_FLAGS": "", "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if not (SHARED / "tokenizer_qwen3").exists() or not (SHARED / "data").exists():
        pytest.skip("real rows and the Qwen3 tokenizer are not at ../shared")
    path = tmp_path_factory.mktemp("real") / "run"
    run(path, "--steps=1")
    run(path)  # goes on from the checkpoint of step 1
    return path


def rows(folder: Path, step: int) -> list[dict]:
    return pq.read_table(folder / f"traces/step_{step:06d}.parquet").to_pylist()


def test_one_executor_and_one_designer_update_across_a_resume(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["stage"] for line in lines] == ["executor", "designer"]
    assert all(line["updates"] == 1 and line["grad_norm"] > 0 for line in lines)
    assert all(line["ratio/max_dev"] < 1e-3 for line in lines)
    assert (folder / "checkpoints" / "2").exists()


def test_right_and_wrong_answers_an_invalid_design_a_crash_and_a_void_execution_are_recorded(folder):
    first = rows(folder, 1)
    line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    assert {r["kind"] for r in first} == {"math", "code"}
    for kind in ("math", "code"):
        rewards = {r["reward"] > 1 for r in first if r["kind"] == kind and r["role"] == "executor"}
        assert rewards == {True, False}, kind
    assert line["designs/valid"] == 15 / 16
    assert line["executions/crash"] == 4
    assert line["executions/void"] == 1
    assert {r["status"] for r in first} >= {"ok", "crash", "void"}


def test_every_trained_row_is_the_sampled_ids_in_the_official_template(folder):
    chat = Chat(str(SHARED / "tokenizer_qwen3"))
    for step, role in ((1, "executor"), (2, "designer")):
        trained = [r for r in rows(folder, step) if r["trained"]]
        assert trained and {r["role"] for r in trained} == {role}
        for r in trained:
            assert r["prompt_ids"][0] == START
            assert r["prompt_ids"][-7:] == [START, 77091, 198, 151667, 271, 151668, 271]
            assert max(r["prompt_ids"] + r["completion_ids"]) < VOCABULARY
            stopped = r["completion_ids"][-1] in (END, END_OF_TEXT)
            assert stopped == (r["finish_reason"] == "stop")
            assert chat.decode(r["completion_ids"]) == r["text"]


def test_advantages_of_a_group_sum_to_zero(folder):
    designers = [r for r in rows(folder, 2) if r["role"] == "designer"]
    for task in {r["task_id"] for r in designers}:
        assert abs(sum(r["advantage"] for r in designers if r["task_id"] == task)) < 1e-5
