"""A long run holds at its end what it held at its beginning.

  METAAGENT_X_SOAK_STEPS=300 python -m pytest tests/system/test_soak.py -s

takes that many steps instead of twelve, and prints what was in use meanwhile.
"""

import itertools
import json
import os
import subprocess
import sys
import time

import pytest
from usage import children, growth, resident, tell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
STEPS = int(os.environ.get("METAAGENT_X_SOAK_STEPS", "12"))
KEEP = 2
# How much more may be in use in the last quarter of the steps than in the second one, by the least of each. "files":
# open ones; "checkpoints": folders, one of which may be in the making; "others": files of the run, but one a step.
GROWTH = {"MB": 32.0, "processes": 0, "threads": 2, "files": 4, "checkpoints": 1, "others": 0, "temporary": 0}


def in_use(job, folder, temporary):
    everything = [path for path in folder.rglob("*") if path.is_file()]
    each_step = [path for path in everything if path.suffix == ".parquet" or "checkpoints" in path.parts]
    return {
        "MB": resident(job),
        "processes": 1 + len(children(job)),
        "threads": len(os.listdir(f"/proc/{job}/task")),
        "files": len(os.listdir(f"/proc/{job}/fd")),
        "checkpoints": len(os.listdir(folder / "checkpoints")) if (folder / "checkpoints").exists() else 0,
        "others": len(everything) - len(each_step),
        "temporary": len(os.listdir(temporary)),
    }


def test_a_long_run_takes_no_more_with_every_step(tmp_path):
    folder, temporary, samples = tmp_path / "run", tmp_path / "temporary", []
    temporary.mkdir()
    command = [
        sys.executable, "-m", "metaagent_x.train", "--config=configs/smoke.py", f"--workdir={folder}",
        f"--config.sft.cache={tmp_path}/cold", f"--steps={STEPS}", f"--stage_length={max(2, STEPS // 6)}",
        "--config.checkpoint.every=1", f"--config.checkpoint.keep={KEEP}", "--config.sft.first_eval=150",
        "--config.sft.eval_tasks=2", "--config.eval.tasks=4", "--config.eval.stage_tasks=2", "--config.gate.tasks=2",
    ]  # fmt: skip
    with (tmp_path / "output").open("w+") as said:
        job = subprocess.Popen(command, stdout=said, stderr=said, env={**os.environ, "TMPDIR": str(temporary)})
        try:
            while job.poll() is None:
                path = folder / "metrics.jsonl"
                done = path.read_bytes().count(b"\n") if path.exists() else 0
                if len(samples) < done < STEPS:
                    samples.append(in_use(job.pid, folder, temporary))
                time.sleep(0.02)
        finally:
            job.kill()
        said.seek(0)
        assert job.returncode == 0, said.read()
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    assert len(samples) > 0.8 * STEPS - 1
    # A program for a batch of a new shape takes 30 MB for good, whenever the first one comes (here at step 210 of 300).
    # Memory is compared among the steps with as many programs as most have.
    compiled = list(itertools.accumulate((line.get("time/compiled", 0.0) for line in steps), max))[: len(samples)]
    most = max(compiled, key=compiled.count)
    alike = [sample for sample, programs in zip(samples, compiled, strict=True) if programs == most]
    grown = growth(samples) | {"MB": growth(alike)["MB"]}
    print(f"\n{STEPS} steps, {len(samples)} samples, {sum(line['calls'] for line in steps):.0f} calls; "
          f"{len(alike)} samples with {most:.0f} programs")  # fmt: skip
    tell(samples, grown, GROWTH)
    told = grown.keys() - ({"MB"} if STEPS < 100 else set())
    assert not {what: grown[what] for what in told if grown[what] > GROWTH[what]}
    kept = sorted(int(name) for name in os.listdir(folder / "checkpoints"))
    assert kept == list(range(STEPS - KEEP + 1, STEPS + 1)), "more than the policy keeps"
    assert len(os.listdir(folder / "traces")) == STEPS
