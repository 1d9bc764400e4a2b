"""A whole run on real vLLM, by the command a person types. Skipped where vLLM's environment has not been made."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metaagent_x.rollout import traces
from metaagent_x.rollout.vllm_server import find_python

try:
    find_python()
    WHY = ""
except FileNotFoundError as missing:
    WHY = str(missing)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY), reason=WHY), pytest.mark.timeout(1500)]


def server_of(job: int) -> int:
    """Pid of the server that `job` has started; 0 while it has none."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == job and b"metaagent_x_vllm.serve" in (folder / "cmdline").read_bytes():
                return int(folder.name)
        except OSError:
            continue
    return 0


def command(folder: Path, *flags: str) -> list[str]:
    small = ["--config.sft.first_eval=150", "--config.eval.tasks=8", "--config.gate.tasks=2", *flags]
    return [
        sys.executable, "-m", "metaagent_x.train", "--config=configs/smoke.py", "--engine=vllm",
        f"--workdir={folder}/run", f"--config.sft.cache={folder}/cold", *small,
    ]  # fmt: skip


def lines(folder: Path) -> list[dict]:
    path = folder / "run" / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.fault("F040")
def test_a_run_outlives_its_server_and_goes_on_with_the_restored_weights(tmp_path):
    job = subprocess.Popen(
        command(tmp_path, "--steps=3"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )  # fmt: skip
    deadline = time.monotonic() + 600
    while not lines(tmp_path) and job.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    first = server_of(job.pid)
    os.killpg(first, signal.SIGKILL)
    output, _ = job.communicate(timeout=600)
    assert job.returncode == 0, output
    assert "held-out tasks" in output
    found = lines(tmp_path)
    assert [line["step"] for line in found] == [1, 2, 3]
    assert found[-1]["engine/restarts"] == 1 and found[-1]["executions/void"] == found[-1]["engine/failures"] == 0
    assert max(line["mismatch/max"] for line in found if "mismatch/max" in line) < 1e-4
    for step in (1, 2, 3):
        rows = traces.read(tmp_path / "run" / "traces" / f"step_{step:06d}.parquet")
        assert {row["version"] for row in rows} == {step - 1}
    assert not Path(f"/proc/{first}").exists()

    done = subprocess.run(command(tmp_path, "--steps=4"), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resumed after step 3" in done.stdout
    rows = traces.read(tmp_path / "run" / "traces" / "step_000004.parquet")
    assert {row["version"] for row in rows} == {3}
    assert lines(tmp_path)[-1].get("mismatch/max", 0.0) < 1e-4, "sampled by other weights than it learns from"
