"""Supervised fine-tuning as a job: a stopped one ends like one left alone, and RL can begin from what it leaves."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from configs import sft_4b, tiny
from metaagent_x import assemble, config, dry_run, examples, export
from metaagent_x.mas import demonstrations
from metaagent_x.model import hf
from metaagent_x.rollout.play import chat_for

SMALL = [
    "--config.model.hidden_size=32", "--config.model.num_layers=1", "--config.model.intermediate_size=32",
    "--config.sft.rows=4", "--config.sft.micro_rows=2", "--config.sft.row_tokens=128", "--config.sft.warmup_steps=2",
    "--config.sft.eval_every=5", "--config.examples.epochs=2", "--config.examples.hold_out=0.1",
    "--config.checkpoint.every=1",
]  # fmt: skip


@pytest.mark.parametrize("name", ["sft_4b", "sft_tiny"])
def test_the_config_files_are_valid(name):
    config.validate(importlib.import_module(f"configs.{name}").get_config())


def test_a_dry_run_is_of_the_rows_and_the_optimizer_of_the_job():
    c = sft_4b.get_config()
    step = dry_run.as_step(c)
    config.validate(step)
    assert (step.learner.row_tokens, step.learner.micro_rows, step.learner.b2) == (16_384, 1, 0.95)
    assert (step.learner.updates_per_step, step.learner.kl, step.engine.kind) == (1, 0.0, "scripted")
    assert step.mesh == c.mesh and step.model == c.model and c.engine.kind == "jax"


def test_a_held_out_loss_that_is_not_finite_ends_no_job():
    line = {"step": 0, "held_out/loss/designer": None, "held_out/loss/executor": 2.5}
    assert examples.told(line).endswith("loss -; held out executor 2.500")


# ---- whole jobs


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """200 generated examples, by role as a distillation leaves them."""
    folder = tmp_path_factory.mktemp("examples")
    lines = {"designer": [], "executor": []}
    for i in range(200):
        e = demonstrations.example(0, i)
        said = [{"role": "user", "content": e.user}, {"role": "assistant", "content": e.completion}]
        system = [{"role": "system", "content": e.system}] if e.system else []
        lines[e.role].append(json.dumps({"messages": system + said, "role": e.role, "task_id": f"t{i // 2}"}))
    for role, texts in lines.items():
        (folder / f"{role}.jsonl").write_text("\n".join(texts) + "\n")
    return folder


def start(workdir, files, *more):
    named = tuple(str(files / f"{role}.jsonl") for role in ("designer", "executor"))
    command = [sys.executable, "-m", "metaagent_x.sft", "--config=configs/sft_tiny.py", f"--workdir={workdir}",
               f"--config.examples.files={named}", f"--config.sft.cache={files / 'cache'}", *SMALL, *more]  # fmt: skip
    log = open(workdir.with_suffix(".log"), "ab")  # noqa: SIM115  the job writes to it
    env = {**os.environ, "XLA_FLAGS": ""}
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True)


def said(workdir):
    return workdir.with_suffix(".log").read_text()


def finish(workdir, files, *more):
    code = start(workdir, files, *more).wait(300)
    assert code == 0, said(workdir)[-5000:]


def metrics(workdir):
    """All but what depends on the clock."""
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines]


def stop(job, workdir, updates, how):
    """Sends the signal when so many updates are written. Returns the exit code."""
    limit = time.monotonic() + 200
    while len(metrics(workdir)) <= updates and job.poll() is None and time.monotonic() < limit:
        time.sleep(0.005)
    assert job.poll() is None, said(workdir)[-5000:]
    job.send_signal(how)
    return job.wait(120)


@pytest.fixture(scope="module")
def straight(files, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run") / "straight"
    finish(workdir, files)
    return workdir


@pytest.mark.slow
def test_a_job_learns_and_writes_what_it_measured(straight):
    lines = metrics(straight)
    steps = json.loads((straight / "config.json").read_text())["steps"]
    assert [line["step"] for line in lines] == list(range(steps + 1)) and steps > 10
    assert [line["step"] for line in lines if "held_out/loss" in line] == sorted({*range(0, steps + 1, 5), steps})
    assert lines[-1]["epoch"] == 2.0 and sum(line.get("examples", 0) for line in lines) > 300
    for role in ("designer", "executor"):
        assert lines[-1][f"held_out/loss/{role}"] < lines[0][f"held_out/loss/{role}"] - 0.5
    assert lines[0]["held_out/loss/executor"] == pytest.approx(np.log(512), abs=1.0)  # random weights know nothing
    rates = [line["lr"] for line in lines[1:]]
    assert rates[0] == 0.0 and rates[1] == pytest.approx(1.5e-3) and max(rates) == pytest.approx(3e-3)
    assert 0 < rates[-1] < 1e-3
    assert {o["name"].rpartition("/")[2] for o in json.loads((straight / "data.json").read_text())} == {
        "designer.jsonl", "executor.jsonl",
    }  # fmt: skip
    assert list((straight / "tensorboard").iterdir())


@pytest.mark.slow
@pytest.mark.fault("F099")
def test_a_job_that_was_killed_and_interrupted_ends_as_one_left_alone(straight, files, tmp_path):
    workdir = tmp_path / "stopped"
    assert stop(start(workdir, files), workdir, 3, signal.SIGKILL) == -signal.SIGKILL
    before = len(metrics(workdir))
    assert stop(start(workdir, files), workdir, before + 2, signal.SIGINT) == 3
    finish(workdir, files)
    assert said(workdir).count("resumed after update") == 2, said(workdir)
    assert metrics(workdir) == metrics(straight)
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (workdir / "hf" / name).read_bytes() == (straight / "hf" / name).read_bytes()


@pytest.mark.slow
def test_what_a_job_leaves_is_exported_again_and_is_where_rl_begins(straight, tmp_path):
    assert export.main([f"--run={straight}", f"--to={tmp_path / 'again'}", "--dtype=float32"]) == 0
    weights = [(folder / "model.safetensors").read_bytes() for folder in (straight / "hf", tmp_path / "again")]
    assert weights[0] == weights[1]
    c = tiny.get_config()
    c.model.path = str(straight / "hf")
    c.model.update(config.base().model.to_dict() | {"path": c.model.path, "compute_dtype": "float32"})
    c.sft.max_steps = 0
    config.validate(c)
    assemble.adopt_weights(c)
    model = assemble.network(c, tmp_path)
    assert (model.hidden_size, model.vocab_size) == (32, 512) and c.tokenizer == c.model.path
    params = assemble.weights(c, model)
    assert params["embed"].shape == (512, 32) and hf.read_config(c.model.path) == hf.read_config(straight / "model")
    assert chat_for(c.tokenizer).fingerprint == chat_for(str(straight / "model")).fingerprint


@pytest.mark.slow
def test_other_examples_or_a_bad_line_are_refused_in_one_line_and_nothing_is_lost(straight, files, tmp_path):
    before = {name: (straight / name).read_bytes() for name in ("config.json", "metrics.jsonl", "data.json")}
    path, log = files / "designer.jsonl", straight.with_suffix(".log")
    kept = path.read_text()
    next_line = len(kept.splitlines()) + 1
    for change, words in (
        (lambda text: text + text.splitlines()[0] + "\n", "holds a run on other data"),
        (lambda text: text + '{"messages": []}\n', f"designer.jsonl, line {next_line}: messages must be a list"),
    ):
        log.write_text("")
        try:
            path.write_text(change(kept))
            assert start(straight, files).wait(120) == 2
        finally:
            path.write_text(kept)
        told = [line for line in said(straight).splitlines() if line.startswith("bad input: ")]
        assert len(told) == 1 and words in told[0], said(straight)
    assert {name: (straight / name).read_bytes() for name in before} == before
