"""A run that is killed again and again ends as one that was left alone: the same metrics, bitwise the same weights.

  METAAGENT_X_KILLS=30 python -m pytest tests/system/test_kills.py -s

kills that often instead of three times, and prints where each one hit.
"""

import json
import os
import random
import subprocess
import sys
import time

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
KILLS = int(os.environ.get("METAAGENT_X_KILLS", "3"))
STEPS = 5 if KILLS <= 3 else 2 * KILLS  # a run may get on by two steps between two kills
FLAGS = [
    f"--steps={STEPS}", "--config.checkpoint.every=1", "--config.sft.first_eval=150", "--config.eval.tasks=4",
    "--config.eval.stage_tasks=4", "--config.eval.cross=False", "--config.gate.tasks=2",
]  # fmt: skip


@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    return tmp_path_factory.mktemp("cold")


def start(folder, cold):
    command = [sys.executable, "-m", "metaagent_x.train", "--config=configs/smoke.py", f"--workdir={folder}",
               f"--config.sft.cache={cold}", *FLAGS]  # fmt: skip
    log = open(folder.with_suffix(".log"), "ab")  # noqa: SIM115  the job writes to it
    env = {**os.environ, "XLA_FLAGS": ""}
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True)


def finish(folder, cold):
    code = start(folder, cold).wait(600)
    assert code == 0, folder.with_suffix(".log").read_text()[-5000:]


def lines(folder, name="metrics.jsonl"):
    path = folder / name
    return path.read_text().splitlines() if path.exists() else []


def metrics(folder):
    """All but what depends on the clock."""
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines(folder)]


def leaves(folder):
    """Every weight, moment and counter of the newest checkpoint."""
    program = f"""
import sys, numpy as np, orbax.checkpoint as ocp
from metaagent_x.learner.checkpoint import STATES, Checkpoints
saved = Checkpoints({str(folder / "checkpoints")!r}, read_only=True)
found = ocp.PyTreeCheckpointer().restore(saved.folder / str(saved.latest()) / STATES)
np.savez(sys.argv[1], step=saved.latest(), **{{k: np.asarray(v) for k, v in found.items()}})
"""
    out = folder.with_suffix(".npz")
    subprocess.run([sys.executable, "-c", program, str(out)], check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    return dict(np.load(out))


def gone(session):
    """Whether no process of a session is left, a moment after its leader was killed."""
    for _ in range(100):
        try:
            os.killpg(session, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def moment(job, folder, rng):
    """Waits for something that only this job can do, then a random while. Returns what it was."""
    being_saved = lambda: list((folder / "checkpoints").glob("*.draft"))  # noqa: E731
    what = rng.choice(["any time", "a step", "a save", "an evaluation"])
    known = {"a step": len(lines(folder)), "an evaluation": len(lines(folder, "evaluations.jsonl"))}
    wait, limit = rng.uniform(0.0, 1.0), time.monotonic() + 60
    if what == "any time":
        wait = rng.uniform(1.0, 10.0)
    while what != "any time" and job.poll() is None and time.monotonic() < limit:
        if what == "a save" and being_saved():
            wait = rng.uniform(0.0, 0.03)
            break
        if what == "a step" and len(lines(folder)) > known[what]:
            break
        if what == "an evaluation" and len(lines(folder, "evaluations.jsonl")) > known[what]:
            break
        time.sleep(0.002)
    time.sleep(wait)
    saving = ", while it was written" if being_saved() else ""
    return f"{what} + {wait:.2f} s{saving}"


@pytest.mark.fault("F099")
def test_a_run_killed_at_random_moments_ends_as_one_left_alone(tmp_path, cold):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    finish(straight, cold)
    rng, hits = random.Random(os.environ.get("METAAGENT_X_KILL_SEED", "0")), 0
    while hits < KILLS:
        job = start(killed, cold)
        where = moment(job, killed, rng)
        if job.poll() is not None:
            assert job.returncode == 0, killed.with_suffix(".log").read_text()[-5000:]
            assert hits, "the run was over before the first kill"
            print(f"over after {hits} kills")
            break
        job.kill()
        job.wait()
        assert gone(job.pid), "a killed run leaves processes behind"
        hits += 1
        print(f"kill {hits}: {where}; {len(lines(killed))} steps written", flush=True)
    finish(killed, cold)
    log = killed.with_suffix(".log").read_text()
    assert "resumed after step" in log, "no kill came after the first checkpoint: nothing was tested"
    assert metrics(killed) == metrics(straight) and len(metrics(killed)) == STEPS
    a, b = leaves(straight), leaves(killed)
    assert a.keys() == b.keys() and len(a) > 30
    for name, value in a.items():
        assert value.tobytes() == b[name].tobytes(), name
    traces = [sorted(path.name for path in folder.glob("traces/*")) for folder in (straight, killed)]
    assert traces[0] == traces[1] and len(traces[0]) == STEPS
    evaluations = [sorted(lines(folder, "evaluations.jsonl")) for folder in (straight, killed)]
    assert evaluations[0] == evaluations[1]
