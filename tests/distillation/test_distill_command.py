"""The whole job from the command line: killed in the middle, and refused before anything is asked."""

import collections
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scripted_teacher import DESIGN, Reply, ScriptedTeacher

from metaagent_x.rollout.rehearsal import right_answer
from metaagent_x.tasks import datasets

ROOT = Path(__file__).parents[2]
CONFIG = """
from metaagent_x.config import base

def get_config():
    c = base("teacher", "distill")
    c.steps = 0
    c.sft.max_steps = 0
    c.data.train = (("tiny_math", "", 1.0),)
    c.data.train_size = 40
    c.distill.round = 6
    c.distill.attempts = 2
    c.distill.same_script = 1.0
    c.distill.near = 1.0
    c.distill.designers = 16
    c.distill.executors = 20
    return c
"""
SORT = re.compile(r"sort ([\d ]+) ascending, item (\d) - item (\d) \+ item (\d)")


def sorts(body):
    """A teacher of the generated tasks that is right two times in three."""
    if "You design" in body["messages"][0]["content"]:
        script = "answer = ensemble([solver()] * 2)(task)" if body["seed"] % 2 else "answer = solver()(task)"
        return Reply(DESIGN.format(script), delay_s=0.05, usage=(100, body["seed"] % 30))
    digits, high, middle, low = SORT.search(body["messages"][-1]["content"]).groups()
    items = sorted(map(int, digits.split()))
    right = items[int(high) - 1] - items[int(middle) - 1] + items[int(low) - 1]
    return Reply(
        f"So it is \\boxed{{{right if body['seed'] % 3 else 'x'}}}.", delay_s=0.05, usage=(50, body["seed"] % 30)
    )


def command(tmp_path, teacher_url, workdir, *flags):
    (tmp_path / "job.py").write_text(CONFIG)
    return [
        sys.executable, "-m", "metaagent_x.distill", f"--config={tmp_path / 'job.py'}", f"--workdir={workdir}",
        f"--config.teacher.url={teacher_url}", "--config.teacher.model=wise", *flags,
    ]  # fmt: skip


def ended(command):
    env = os.environ | {"JAX_PLATFORMS": "cpu", "COLUMNS": "200"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_settings_that_cannot_work_are_refused_before_anything_is_asked(tmp_path):
    with ScriptedTeacher(sorts) as teacher:
        done = ended(command(tmp_path, teacher.url, tmp_path / "w", "--config.distill.budget=3"))
        assert done.returncode == 2 and "bad input: distill.budget=3.0 with teacher.prompt_price=0" in done.stdout
    assert teacher.bodies == [] and not (tmp_path / "w").exists()


@pytest.mark.slow
def test_a_job_that_is_killed_goes_on_and_pays_for_no_finished_attempt_twice(tmp_path):
    with ScriptedTeacher(sorts) as teacher:
        whole = ended(command(tmp_path, teacher.url, tmp_path / "whole"))
        assert whole.returncode == 0 and "done: designers 16 of 16" in whole.stdout, whole.stdout + whole.stderr
        teacher.bodies.clear()
        again = command(tmp_path, teacher.url, tmp_path / "killed")
        job = subprocess.Popen(again, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        journal = tmp_path / "killed" / "attempts.jsonl"
        while not journal.exists() or journal.read_bytes().count(b"\n") < 9:
            assert job.poll() is None
            time.sleep(0.02)
        job.send_signal(signal.SIGKILL)
        job.wait()
        finished = [json.loads(line) for line in journal.read_bytes().split(b"\n")[:-1]]
        sent = len(teacher.bodies)
        done = ended(again)
        assert done.returncode == 0 and f"found {len(finished)} attempts" in done.stdout, done.stdout + done.stderr
        assert sum(a["usage"]["requests"] for a in finished) <= sent
    for name in ("designer.jsonl", "executor.jsonl"):
        assert (tmp_path / "killed" / name).read_text() == (tmp_path / "whole" / name).read_text()
    made = collections.Counter((a["task_id"], a["number"]) for a in map(json.loads, journal.read_text().splitlines()))
    assert set(made.values()) == {1}
    figures = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("killed", "whole")]
    assert figures[0]["right"] == figures[1]["right"] and figures[0]["chosen"] == figures[1]["chosen"]
    assert "found 0" not in whole.stdout and (tmp_path / "killed" / "summary.html").exists()


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "../shared/data/polaris").is_dir(), reason="real rows are not beside this checkout")
def test_real_rows_become_examples_in_the_terms_of_configs_distill(tmp_path):
    """Math and code as they are published, decontaminated, with the real tokenizer; the teacher knows the answers."""
    shared = ROOT / "../shared"
    train = (
        ("polaris", str(shared / "data/polaris"), 0.5),
        ("apps", str(shared / "data/apps/train.jsonl"), 0.5),
    )
    answers = [
        (task.prompt, right_answer(rubric)) for name, path, _ in train for task, rubric in datasets.load(name, path)
    ]

    def knows(body):
        if "You design" in body["messages"][0]["content"]:
            return Reply(DESIGN.format("answer = solver('forward')(task)"), usage=(2000, 60))
        text = body["messages"][-1]["content"]
        return Reply(next(answer for prompt, answer in answers if prompt in text), usage=(500, 90))

    with ScriptedTeacher(knows) as teacher:
        done = ended([
            sys.executable, "-m", "metaagent_x.distill", "--config=configs/distill.py", f"--workdir={tmp_path / 'w'}",
            f"--config.teacher.url={teacher.url}", "--config.teacher.model=wise", f"--config.data.train={train!r}",
            f"--config.tokenizer={shared / 'tokenizer_qwen3'}", "--config.distill.designers=8",
            "--config.distill.executors=12", "--config.distill.attempts=1", "--config.distill.round=4",
            "--config.distill.quotas.dataset=()", "--config.distill.quotas.structure=()",
            "--config.distill.same_script=1.0", "--config.batch=2", "--config.teacher.prompt_price=0.3",
            f"--config.distill.benchmarks=(('aime25', '{shared / 'data/aime25'}'),)",
        ])  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    examples = [json.loads(line) for line in (tmp_path / "w/executor.jsonl").read_text().splitlines()]
    assert {(e["dataset"], e["kind"]) for e in examples} == {("polaris", "math"), ("apps", "code")}
    assert len(examples) == 12 and all(e["difficulty"] for e in examples)
    figures = json.loads((tmp_path / "w/summary.json").read_text())
    assert (
        figures["cost"] == round((figures["usage"]["prompt"]) * 0.3 / 1e6, 6) and figures["usage"]["counted_here"] == 0
    )
