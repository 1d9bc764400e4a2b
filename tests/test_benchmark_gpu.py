"""The GPU benchmark without a GPU: its small form runs to the end and says what it is."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu
from metaagent_x.model import attention_cudnn, cost

ROOT = Path(__file__).parents[1]


def test_depth_is_what_fits() -> None:
    full = gpu.size(small=False)
    assert gpu.depth(full.model, full.row, 0.95 * 141e9) == full.model.num_layers == 36
    layers = gpu.depth(full.model, full.row, 60e9)
    for more, fits in ((0, True), (1, False)):
        model = dataclasses.replace(full.model, num_layers=layers + more)
        saved = 16_384 * model.num_layers * 2 * (2560 + 32 * 128 + 32 * 2)  # input, output, float32 log-sum-exp
        assert (18 * cost.weights(model) + saved + gpu.WORKSPACE <= 60e9) is fits
    with pytest.raises(MemoryError, match="not one layer of 2560 fits into 9 GB"):
        gpu.depth(full.model, full.row, 9e9)


@pytest.mark.slow
def test_the_small_form_runs_every_part_and_claims_nothing(tmp_path) -> None:
    out = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--small", "--out", str(out)]
    env = {**os.environ, "XLA_FLAGS": "", "COLUMNS": "160"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NOT A MEASUREMENT" in done.stdout
    record = json.loads(out.read_text())
    assert (record["measurement"], record["well"], record["device"]) == (False, True, "cpu")
    found = {(row["part"], row["what"]): row for row in record["rows"]}
    for key in (
        ("train xla", "log-prob pass"), ("train xla", "update"), ("memory", "dry run"), ("decode", "built-in engine"),
        ("attention xla", "forward, 8 segments"), ("attention xla", "forward and backward, 1 segment"),
    ):  # fmt: skip
        assert found[key]["value"] > 0
        assert found[key]["share"] is None  # no data sheet of this machine, so no share of it
    assert attention_cudnn.missing() in found["attention cudnn", "left out"]["note"]


def test_a_part_that_fails_is_told_and_the_others_go_on(monkeypatch) -> None:
    def broken(*_):
        raise RuntimeError("out of memory")
        yield

    def fine(*_):
        yield gpu.Row("decode", "built-in engine", 1.0)

    class Ended:
        returncode = 0

        def communicate(self, timeout):
            return "2e9\n", None

        def kill(self):
            pass

        wait = kill

    monkeypatch.setattr(gpu, "training_part", broken)
    monkeypatch.setattr(gpu, "attention_part", fine)
    monkeypatch.setattr(gpu, "decoding_part", fine)
    monkeypatch.setattr(gpu, "foresee", lambda *_: Ended())
    rows, well = gpu.measure(gpu.size(small=True), True, gpu.Console(quiet=True))
    assert not well
    assert [(r.part, r.what) for r in rows[:2]] == [("train xla", "failed"), ("memory", "dry run")]
    assert "RuntimeError: out of memory" in rows[0].note and rows[1].value == 2
    monkeypatch.setattr(gpu, "LIMIT_S", -1.0)
    rows, well = gpu.measure(gpu.size(small=True), True, gpu.Console(quiet=True))
    assert well and {r.what for r in rows} == {"left out"}
