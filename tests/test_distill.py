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

sys.path.insert(0, str(Path(__file__).parent / "distillation"))
from scripted_teacher import DESIGN, Reply, ScriptedTeacher

ROOT = Path(__file__).parents[1]
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
