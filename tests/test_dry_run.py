"""The dry run: what it refuses, its verdicts, and the configs of the large models on the machine they are for."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from configs import qwen3_4b, tiny
from metaagent_x import assemble, dry_run
from metaagent_x.config import ConfigError
from metaagent_x.model import cost
from metaagent_x.model.parameters import Qwen3Config
from metaagent_x.model.sharding import make_mesh

ROOT = Path(__file__).parents[1]
GB = 1e9


def train(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "metaagent_x.train", "--dry_run", *flags]
    env = {**os.environ, "XLA_FLAGS": "", "COLUMNS": "160"}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=env, cwd=ROOT)


def figures(text: str) -> dict[str, float]:
    """First number of every row of the tables."""
    rows = re.findall(r"│ ([^│]+?) +│ +([\d,.]+%?) +│", text)
    return {name: float(number.replace(",", "").rstrip("%")) for name, number in rows}


@pytest.mark.parametrize("mesh", ["8", "xH200", "0xH200", "8xH300", "8 x H200", ""])
def test_a_mesh_that_cannot_be_read_is_refused(mesh):
    with pytest.raises(ConfigError, match="one of H200, H100, B200, v5p, cpu"):
        dry_run.parse_mesh(mesh)


def test_meshes_are_read():
    assert dry_run.parse_mesh("8xH200") == (8, "H200")
    assert dry_run.parse_mesh("16xv5p") == (16, "v5p")


def test_the_densest_batch_has_no_empty_place():
    batch = dry_run.full_batch(4, 16, 2)
    assert batch.tokens.shape == (4, 16) and batch.mask.all() and (batch.segment_ids == 1).all()


def test_shares_of_a_device_are_those_of_the_arrays():
    mesh = make_mesh(4, 2)
    c = tiny.get_config()
    c.mesh.fsdp, c.mesh.tensor = 4, 2
    model = assemble.model_config(c)
    learner = assemble.learner(c, model)
    state = learner.init(assemble.weights(c, model, mesh))
    for real, shapes in ((state.params, learner.abstract_state().params), (state, learner.abstract_state())):
        held = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(real))
        assert dry_run.on_device(shapes) == held


@pytest.fixture
def need():
    return dry_run.Need({"parameters": 10 * GB, "optimizer": 20 * GB}, 10 * GB, 6 * GB, 30 * GB, 5 * GB)


def test_the_larger_of_both_programs_decides(need):
    assert need.total == 60 * GB
    assert dataclasses.replace(need, scoring=40 * GB).total == 70 * GB


def test_the_verdict_names_what_to_change(need):
    c = qwen3_4b.get_config()
    c.learner.micro_rows = 2
    model = Qwen3Config.from_settings(c.model)
    assert dry_run.verdict(c, model, need, 35 * GB, 100 * GB) == (
        True, "fits: 0.00 GB free on every device beside learner, engine and margin",
    )  # fmt: skip
    fits, words = dry_run.verdict(c, model, need, 36 * GB, 100 * GB)
    assert not fits
    for part in ("1.00 GB too much", "model.remat='full' (saves", "micro_rows=1", "share of at most 0.35", "above 8"):
        assert part in words
    c.engine.kind, c.learner.micro_rows = "scripted", 1
    c.mesh.zero = 1
    whole = dataclasses.replace(need, gathered=8 * GB)
    assert (
        "change mesh.zero=3 (saves about 16.75 GB), or more"
        in dry_run.verdict(c, dataclasses.replace(model, remat="full"), whole, 0, 50 * GB)[1]
    )
    c.mesh.zero = 3
    alone = dry_run.verdict(c, dataclasses.replace(model, remat="full"), need, 0, 50 * GB)[1]
    assert alone == "does not fit: 12.50 GB too much on every device; change more devices (mesh.fsdp above 8)"


def test_limits_by_hand():
    """Two micro-batches, one update: 2 x 500 of 1000 FLOP/s against 2 x 10 of 20 bytes/s, then the optimizer."""
    c = qwen3_4b.get_config()
    c.mesh.fsdp, c.learner.updates_per_step = 2, 1
    model = Qwen3Config.from_settings(c.model)
    passes = {"score": dry_run.Pass(100, 0, 40, 0), "update": dry_run.Pass(500, 0, None, 10)}
    moved = 28 * 4_022_468_096 / 2
    device = dry_run.Accelerator(1.0, flops=1000.0, bandwidth=moved / 3, link=20.0, source="")
    table = dry_run.limits_table(c, model, passes, 2, device, 2)
    cells = list(zip(*(list(column.cells) for column in table.columns), strict=True))
    assert cells[:3] == [
        ("log-prob pass", "0.20", "4.00", "4.00"),
        ("updates", "1.00", "1.00", "4.00"),
        ("step", "", "", "8.00"),
    ]
    assert cells[3][-1] == f"{2 * 2 * 16_384 / 4:,.0f}"
    c.learner.updates_per_step = 2  # what is sent once is sent in every update
    passes["update"] = dry_run.Pass(500, 0, 0.0, 10, once=30.0)
    assert list(dry_run.limits_table(c, model, passes, 2, device, 2).columns[2].cells)[1] == "3.00"
    passes["score"] = dry_run.Pass(100, 0, 0.0, 0, once=30.0)  # and whenever an update's rows are scored
    assert next(iter(dry_run.limits_table(c, model, passes, 2, device, 2).columns[2].cells)) == "3.00"
    passes["update"] = dry_run.Pass(500, 0, None, 10, once=30.0, counted_once=20.0)  # no formula: as counted
    assert list(dry_run.limits_table(c, model, passes, 2, device, 2).columns[2].cells)[1] == "3.00"
    passes["score"], passes["update"] = dry_run.Pass(100, 0, 40, 0), dry_run.Pass(500, 0, None, 10)
    c.learner.updates_per_step = 1
    c.learner.kl = 0.1  # a reference is scored as well
    assert list(dry_run.limits_table(c, model, passes, 2, device, 2).columns[-1].cells)[:3] == ["8.00", "4.00", "12.00"]


def test_what_engines_take():
    c = qwen3_4b.get_config()
    model = Qwen3Config.from_settings(c.model)
    c.engine.memory_share = 0.25
    assert dry_run.engine_share(c, model, 100 * GB) == 25 * GB
    c.engine.layout = "split"
    assert dry_run.engine_share(c, model, 100 * GB) == 0
    c.engine.kind = "scripted"
    assert dry_run.engine_share(c, model, 100 * GB) == 0
    c.engine.kind, c.engine.slots, c.engine.cache_tokens = "jax", 1, 1000
    one = dry_run.engine_share(c, model, 100 * GB)
    assert one == 2 * 4_022_468_096 + 1000 * 144 * 1024  # 144 KiB of keys and values a token
    c.policy = "separate"
    assert dry_run.engine_share(c, model, 100 * GB) == 2 * one


def test_what_sampling_takes_by_hand():
    """Qwen3-4B in bfloat16: 8.04 GB of weights, 144 KiB of keys and values a token; a device that reads 1 TB/s."""
    c = qwen3_4b.get_config()
    model = Qwen3Config.from_settings(c.model)
    weights, token = 2 * 4_022_468_096, 144 * 1024
    assert 4.8e12 * cost.decode_seconds(model, 1, 0, 4.8e12) == weights
    untied = dataclasses.replace(model, tie_embeddings=False)
    assert cost.decode_seconds(untied, 1, 0, 1.0) == weights, "of the embedding only a row is read"
    device = dry_run.Accelerator(100e9, flops=1.0, bandwidth=1e12, link=None, source="")
    c.engine.slots, c.engine.cache_tokens, c.mesh.fsdp = 2, 20_000, 3
    c.rollout.max_designer_tokens = c.rollout.max_executor_tokens = 100
    found = dry_run.decode(c, model, 10**6, device)
    step = (weights + 2 * 10_000 * token) / 1e12
    assert (found.sequences, found.context) == (2, 10_000)
    assert found.rate == pytest.approx(3 * 2 / step) and found.seconds == pytest.approx(10**6 * step / 6)
    assert found.chain == pytest.approx(200 * (weights + 10_000 * token) / 1e12)
    assert dry_run.decode(c, model, 1, device).seconds == found.chain, "the longest chain takes its time"
    c.engine.slots = 1000
    assert dry_run.decode(c, model, 1, device).sequences == int((50e9 - weights) / (10_000 * token))
    c.policy = "separate"
    assert dry_run.decode(c, model, 1, device).sequences == int((25e9 - weights) / (10_000 * token))
    c.engine.memory_share = 0.1
    assert dry_run.decode(c, model, 1, device).sequences == 0


def test_a_budget_adds_up_what_a_step_takes():
    """One update of 990 FLOPs at 99 a second; two policies, each pushed by two devices through a 1 GB/s link."""
    c = qwen3_4b.get_config()
    c.policy, c.mesh.fsdp, c.learner.updates_per_step = "separate", 2, 1
    model = Qwen3Config.from_settings(c.model)
    device = dry_run.Accelerator(200e9, flops=99.0, bandwidth=1e15, link=1e9, source="", host_link=1e9)
    table = dry_run.budget_table(c, model, {"update": dry_run.Pass(990, 0, 0, 0)}, 1, 1000, device, 2)
    times = dict(zip(table.columns[0].cells, map(float, table.columns[1].cells), strict=True))
    push = 2 * 1.5 * 2 * 4_022_468_096 / 1e9
    assert times["push"] == pytest.approx(push, abs=0.01) and times["train"] == pytest.approx(10, abs=0.01)
    assert times["step"] == pytest.approx(times["rollout"] + 10 + push, abs=0.02)


@pytest.mark.slow
def test_bad_requests_are_bad_input():
    done = train("--config=configs/qwen3_4b.py", "--dry_run_mesh=4xH200")
    assert done.returncode == 2
    assert "--dry_run_mesh=4xH200 has 4 devices, mesh.fsdp=8 x mesh.tensor=1 needs 8" in done.stdout
    done = train("--config=configs/qwen3_4b.py", "--dry_run_mesh=24xH200", "--config.mesh.tensor=3")
    assert done.returncode == 2
    assert "bad input" in done.stdout and "3 devices on mesh axis 'tensor' cannot share" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy", "parameters", "learner"),
    [
        (name, policy, *figures)
        for name, *figures in (("qwen3_4b", 2.01, 31), ("qwen3_4b_zero", 2.01, 31), ("qwen3_8b", 4.10, 50))
        for policy in ("shared", "separate")
    ]
    + [("qwen3_4b_grpo", "shared", 2.01, 31)],
)
def test_the_large_configs_fit_beside_their_engine(name, policy, parameters, learner):
    """`learner`: GB a device that must be enough for a shared policy, by what was printed when this was written."""
    done = train(f"--config=configs/{name}.py", f"--policy={policy}")
    assert done.returncode == 0, done.stdout + done.stderr
    found = figures(done.stdout)
    assert found["parameters"] == found["gradients"] == parameters
    assert found["optimizer"] == pytest.approx(2 * parameters, abs=0.02)
    assert found["learner"] < learner + (3 * parameters + 0.1 if policy == "separate" else 0)
    assert ("the other policy" in found) == (policy == "separate")
    assert found["rollout"] > found["push"] > 0 and found["step"] > found["rollout"] + found["train"]
    assert "budget of a step, not measured" in done.stdout
    assert "fits: " in done.stdout and "dry run, nothing measured" in done.stdout


@pytest.mark.slow
def test_too_small_a_machine_is_exit_code_2():
    done = train("--config=configs/qwen3_8b.py", "--dry_run_mesh=2xH100", "--config.mesh.fsdp=2")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "does not fit" in done.stdout and "model.remat='full'" in done.stdout


@pytest.mark.slow
def test_a_kernel_for_gpus_is_planned_with_the_reference_and_named():
    flags = ("--config.model.attention=cudnn", "--config.model.compute_dtype=bfloat16", "--config.model.remat=block")
    done = train("--config=configs/tiny.py", "--dry_run_mesh=1xcpu", "--config.learner.row_tokens=2048", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    kept = 16 * 2048 * 3 * 4 * 4 * (32 - 1) / 1e9  # rows, tokens, layers, heads, bytes, tables beside one
    assert f"work are those of 'xla'; 'cudnn' keeps {kept:.2f} GB more on every device" in done.stdout
