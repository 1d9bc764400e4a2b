"""The command: two equal evaluations agree, a killed one goes on to the same table, and what is wrong is one line."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from chat_endpoint import ChatEndpoint

from metaagent_x import config
from metaagent_x.baselines import registry
from metaagent_x.baselines.method import Means
from metaagent_x.evaluation import job
from metaagent_x.rollout.chat import train_bpe
from metaagent_x.rollout.engine import RequestRefused
from metaagent_x.rollout.scripted import ScriptedEngine
from metaagent_x.tasks.task import Task

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A benchmark of sums under the name of AIME 2024, a second one, and a tokenizer."""
    folder = tmp_path_factory.mktemp("place")
    for name, count in (("aime24", 6), ("math500", 14)):
        rows = [
            {"problem": f"What is {i} + {i}?", "answer": str(2 * i), "id": i, "unique_id": f"u/{i}"}
            for i in range(count)
        ]
        (folder / name).mkdir()
        (folder / name / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train_bpe(["What is 3 + 4? answer = solver()(task)"] * 5, 400, str(folder / "tokenizer"))
    return folder


def command(place, url, workdir, *more):
    return [
        sys.executable, "-m", "metaagent_x.evaluate", "--config=configs/eval.py", f"--model={url}",
        "--config.engine.model=m", f"--config.tokenizer={place / 'tokenizer'}", f"--workdir={workdir}",
        "--config.rollout.max_prompt_tokens=8000", *more,
    ]  # fmt: skip


def run(place, url, workdir, *more):
    environment = os.environ | {"METAAGENT_X_DATA": str(place), "JAX_PLATFORMS": "cpu", "COLUMNS": "200"}
    return subprocess.run(
        command(place, url, workdir, *more), cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def without_times(value):
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if not k.startswith("time/")}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def results(workdir):
    return without_times(json.loads((workdir / "results.json").read_text()))


def answers(workdir):
    rows = [json.loads(line) for line in (workdir / "results.jsonl").read_text().splitlines()]
    return {(r["method"], r["benchmark"], r["sample"], r["task_id"]): without_times(r) | {"trace": 0} for r in rows}


METHODS = "--methods=metaagent_x,single,single_majority:like=metaagent_x"


async def test_void_results_that_an_endpoint_refused_are_told_apart():
    def refuse(request):
        raise RequestRefused("status 400")

    engine = ScriptedEngine(refuse)
    given = Means({"designer": engine, "executor": engine}, config.base("evaluate"))
    task, rows = Task("t/0", "math", "1 + 3?"), [{"void": False, "reason": ""}, {"void": True, "reason": "away"}]
    assert "refused" not in job.told_of_void(rows) and job.told_of_void(rows[:1]) == ""
    for name in ("metaagent_x", "single", "single_majority"):  # whoever it was that was refused
        execution = await registry.make(name, given).solve(task)
        rows.append({"void": execution.void, "reason": execution.reason})
    told = job.told_of_void(rows)
    assert told.startswith("4 results are void") and "3 of them the endpoint refused" in told


@pytest.mark.slow
def test_a_killed_evaluation_goes_on_to_the_table_of_one_that_was_not(place, tmp_path):
    with ChatEndpoint() as endpoint:
        done = run(place, endpoint.url, tmp_path / "whole", METHODS, "--benchmarks=aime24,math500")
        assert done.returncode == 0, done.stdout + done.stderr
        asked = endpoint.asked
    # 3 x 6 + 14 tasks: a design and three solvers, one solver, and a vote as long as the four replies of the team
    found = results(tmp_path / "whole")
    cells = {(c["method"], c["benchmark"]): c for c in found["cells"]}
    assert cells["metaagent_x", "aime24"]["samples"] == 3 and cells["single", "aime24"]["accuracy"] == 1.0
    assert cells["single", "math500"]["accuracy"] == pytest.approx(7 / 14)
    assert cells["metaagent_x", "math500"]["costs"]["calls"] == 4.0
    assert asked == sum(row["calls"] for row in answers(tmp_path / "whole").values())
    with ChatEndpoint(delay_s=0.1) as endpoint:  # another port is another model to the folder: keep this one
        environment = os.environ | {"METAAGENT_X_DATA": str(place), "JAX_PLATFORMS": "cpu"}
        flags = command(place, endpoint.url, tmp_path / "killed", METHODS, "--benchmarks=aime24,math500",
                        "--config.evaluate.in_flight=2")  # fmt: skip
        killed = subprocess.Popen(
            flags, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + 120
        while time.monotonic() < end and not (tmp_path / "killed" / "results.jsonl").exists():
            time.sleep(0.05)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        before = answers(tmp_path / "killed")
        assert 0 < len(before) < 3 * 32
        endpoint.delay_s, endpoint.asked = 0.0, 0
        done = run(place, endpoint.url, tmp_path / "killed", METHODS, "--benchmarks=aime24,math500")
        assert done.returncode == 0 and f"{len(before)} of 96 results are there" in done.stdout
    whole, again = answers(tmp_path / "whole"), answers(tmp_path / "killed")
    assert again == whole and {k: again[k] for k in before} == before
    assert endpoint.asked == sum(row["calls"] for key, row in again.items() if key not in before)
    again = results(tmp_path / "killed")
    for part in ("cells", "averages", "comparisons", "benchmarks", "scorer"):
        assert again[part] == found[part]
    text = (tmp_path / "killed" / "results.md").read_text()
    assert "## Accuracy" in text and "published" not in text


@pytest.mark.slow
def test_what_is_wrong_is_one_line_and_nothing_is_lost(place, tmp_path):
    with ChatEndpoint() as endpoint:
        look = ("--methods=single", "--benchmarks=math500", "--limit=2")
        assert run(place, endpoint.url, tmp_path / "a", *look).returncode == 0
        kept = (tmp_path / "a" / "results.jsonl").read_bytes()
        asked = endpoint.asked
        for more, words in (
            (("--temperature=1.0",), "evaluate.temperature: 0.0 there, 1.0 here"),
            (("--methods=single_majority:like=metaagent_x",), "needs the results of 'metaagent_x'"),
        ):
            done = run(place, endpoint.url, tmp_path / "a", *look, *more)
            said = [line for line in done.stdout.splitlines() if line.startswith("bad input: ")]
            assert done.returncode == 2 and len(said) == 1 and words in said[0], done.stdout + done.stderr
        assert endpoint.asked == asked == 2 and (tmp_path / "a" / "results.jsonl").read_bytes() == kept
        done = run(place, endpoint.url, tmp_path / "a", "--methods=single", "--benchmarks=math500", "--limit=4")
        assert done.returncode == 0 and "2 of 4 results are there" in done.stdout and endpoint.asked == 4
    done = run(place, endpoint.url, tmp_path / "a", "--methods=single", "--benchmarks=math500", "--limit=5",
               "--config.engine.request_timeout_s=0.2")  # fmt: skip
    assert done.returncode == 1 and "1 results are void" in done.stdout
