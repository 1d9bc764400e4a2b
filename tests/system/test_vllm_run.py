"""A whole run on real vLLM, by the command a person types. Skipped where vLLM's environment has not been made.

  METAAGENT_X_SOAK_STEPS=100 python -m pytest tests/system/test_vllm_run.py -s

takes that many steps in a row instead of six, and prints what was in use meanwhile.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from usage import children, growth, resident, tell

from metaagent_x.rollout import traces
from metaagent_x.rollout.vllm_server import find_python

try:
    find_python()
    WHY = ""
except FileNotFoundError as missing:
    WHY = str(missing)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY), reason=WHY), pytest.mark.timeout(1500)]


STEPS = int(os.environ.get("METAAGENT_X_SOAK_STEPS", "6"))
# How much more may be in use in the last quarter of the steps than in the second one, by the least of each: what is
# taken and given back within a step (connections, checkpoints being written) comes and goes, a leak raises the floor.
# One of a copy of the weights a step would raise it by 0.7 MB x STEPS / 2, one of processes or files by STEPS / 2.
# Memory moves as programs of new shapes are compiled (100 steps: learner +17 to +38 MB by floors of quarters), so
# that it is held to a limit in long runs only, and a leak of well under 1 MB a step is not seen.
GROWTH = {"learner MB": 64.0, "server MB": 16.0, "processes": 0, "files": 8, "shared memory files": 0, "shared MB": 0.0}
# oneDNN keeps compiled products by the number of rows, up to 1024 of them by default: 100 steps do not fill that (the
# server grows by 0.8 MB a step). With few of them nothing hides behind it.
QUIET = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32"}


def server_of(job: int) -> int:
    """Pid of the server that `job` has started; 0 while it has none."""
    for pid in children(job):
        with contextlib.suppress(OSError):
            if b"metaagent_x_vllm.serve" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return 0


def in_use(job: int, weights: Path) -> dict[str, float]:
    """What a job that keeps its weights in `weights`, a folder of /dev/shm, and its server hold at the moment."""
    server = server_of(job)
    of_server = [server, *children(server)]
    others = [path for path in Path("/dev/shm").iterdir() if path.is_file()]  # what a library may have left there
    shared = [path for path in weights.rglob("*") if path.is_file()]
    return {
        "learner MB": resident(job),
        "server MB": sum(map(resident, of_server)),
        "processes": 1 + len(children(job)),
        "files": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in (job, *of_server)),
        "shared memory files": len(shared) + len(others),
        "shared MB": sum(path.stat().st_size for path in shared) / 1e6,
    }


def command(folder: Path, weights: Path, *flags: str) -> list[str]:
    small = ["--config.sft.first_eval=150", "--config.sft.eval_tasks=2", "--config.eval.tasks=4",
             "--config.eval.stage_tasks=2", "--config.checkpoint.every=10",
             "--config.gate.tasks=2", *flags]  # fmt: skip
    return [
        sys.executable, "-m", "metaagent_x.train", "--config=configs/smoke.py", "--engine=vllm",
        f"--workdir={folder}/run", f"--config.sft.cache={folder}/cold", f"--config.engine.weights_dir={weights}",
        *small,
    ]  # fmt: skip


def lines(folder: Path) -> list[dict]:
    path = folder / "run" / "metrics.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().rpartition("\n")[0].splitlines()]  # the last may be half


@pytest.fixture
def weights():
    folder = Path(tempfile.mkdtemp(prefix="metaagent_x-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


def run(folder: Path, weights: Path, steps: int, watch=lambda pid: None) -> str:
    """Plays up to `steps`, and returns what the job said. `watch` is called with its pid all the while."""
    with (folder / "output").open("w+") as said:
        job = subprocess.Popen(
            command(folder, weights, f"--steps={steps}"), stdout=said, stderr=said, env={**os.environ, **QUIET}
        )
        try:
            while job.poll() is None:
                watch(job.pid)
                time.sleep(0.02)
        finally:
            job.kill()
        said.seek(0)
        output = said.read()
    assert job.returncode == 0, output
    return output


@pytest.mark.fault("F040")
def test_a_run_goes_on_with_the_restored_weights_and_takes_no_more_with_every_step(tmp_path, weights):
    first, samples = 2, []
    assert "held-out tasks" in run(tmp_path, weights, first)

    def watch(job: int) -> None:
        done = len(lines(tmp_path))
        if first + len(samples) < done < first + STEPS:
            samples.append(in_use(job, weights))

    assert f"resumed after step {first}" in run(tmp_path, weights, first + STEPS, watch)
    found = lines(tmp_path)
    assert [line["step"] for line in found] == list(range(1, first + STEPS + 1))
    assert all(line["engine/restarts"] == line["engine/failures"] == line["executions/void"] == 0 for line in found)
    gaps = [line["mismatch/max"] for line in found if "mismatch/max" in line]
    assert gaps and max(gaps) < 1e-4, "sampled by other weights than it learns from"
    for step in (1, first, first + 1, first + STEPS):
        rows = traces.read(tmp_path / "run" / "traces" / f"step_{step:06d}.parquet")
        assert {row["version"] for row in rows} == {step - 1}

    assert len(samples) > 0.8 * STEPS - 1
    grown = growth(samples)
    print(f"\n{STEPS} steps, {len(samples)} samples")
    tell(samples, grown, GROWTH)
    told = grown.keys() - ({"learner MB", "server MB"} if STEPS < 100 else set())
    assert not {what: grown[what] for what in told if grown[what] > GROWTH[what]}
    assert not list(weights.iterdir()), "the weights' memory outlives the job"
