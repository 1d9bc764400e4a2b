"""Who gets which GPU and how much of it; that JAX hears of it in time."""

import os
import subprocess
import sys

import pytest

from configs import qwen3_4b
from metaagent_x import accelerators, config
from metaagent_x.accelerators import FRACTION, MARGIN, OLD_FRACTION, Place


def settings(**engine):
    c = qwen3_4b.get_config()
    c.engine.update(engine)
    config.validate(c)
    return c


@pytest.mark.fault("F094")
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_both_sides_and_the_margin_fit_on_one_gpu(share):
    c = settings(memory_share=share)
    learner = float(accelerators.environment(c, {})[FRACTION])
    assert learner == pytest.approx(1 - share - MARGIN)
    assert learner + share < 1
    separate = accelerators.places(c, ["designer", "executor"])
    for gpu in range(8):
        assert sum(p.share for p in separate if p.device == gpu) == pytest.approx(share)


@pytest.mark.parametrize("given", [{FRACTION: "0.3"}, {OLD_FRACTION: "0.3"}])
def test_what_the_user_has_set_stays(given):
    assert accelerators.environment(settings(), given) == {}


def test_without_servers_beside_it_jax_is_left_alone():
    c = settings(layout="split", servers=4, memory_share=0.9)
    assert accelerators.environment(c, {}) == {}
    c = settings(kind="jax")
    assert accelerators.environment(c, {}) == {} and accelerators.visible_devices(c) == "all"


def test_split_servers_come_after_the_learners_gpus():
    c = settings(layout="split", servers=4, memory_share=0.9)
    c.mesh.fsdp = 4
    assert accelerators.visible_devices(c) == "0,1,2,3"
    assert accelerators.places(c, ["shared"]) == [Place("shared", i, 0.9) for i in (4, 5, 6, 7)]
    assert accelerators.gpu_number(4, None) == 4
    assert accelerators.gpu_number(4, "7,6,5,4,3,2,1,0") == 3
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES=0,1 has no GPU 4"):
        accelerators.gpu_number(4, "0,1")
    with pytest.raises(ValueError, match="by their numbers"):
        accelerators.gpu_number(0, "GPU-8f2e")


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"memory_share": 0.95}, "engine.memory_share=0.95 must be above 0 and at most 0.9"),
        ({"servers": 9}, "engine.servers=9 with engine.layout='colocated'"),
        ({"urls": ("localhost:8000",)}, "engine.urls holds 'localhost:8000'"),
        ({"urls": ("http://localhost:80000",)}, "engine.urls holds 'http://localhost:80000'"),
        ({"urls": ("http://a:1", "http://a:1/")}, "engine.urls has 'http://a:1/' twice"),
        ({"kind": "openai", "model": "m", "urls": ("https://a/v1", "https://b/v1")}, "asks one endpoint"),
        ({"layout": "split", "servers": 0}, "say how many GPUs generate"),
        ({"layout": "shared"}, "colocated, split"),
        ({"in_flight": "wait"}, "keep, abort"),
        ({"request_timeout_s": 0.0}, "engine.request_timeout_s=0"),
    ],
)
def test_layouts_that_cannot_work_are_refused(engine, words):
    with pytest.raises(config.ConfigError) as error:
        settings(**engine)
    assert words in str(error.value)


def test_separate_policies_need_equal_groups_of_servers():
    c = settings(urls=("http://a:1", "http://b:1"))
    c.policy = "separate"
    config.validate(c)
    c.engine.urls = ("http://a:1",)
    with pytest.raises(config.ConfigError, match="needs 2 equal groups"):
        config.validate(c)


@pytest.mark.slow
@pytest.mark.fault("F094")
def test_the_training_job_sets_the_fraction_before_jax_makes_a_backend(tmp_path):
    """Set later, it is read by nobody, and the second one to come runs out of memory (jax#19267)."""
    program = f"""
import os, sys
from jax._src import xla_bridge
from metaagent_x import train
from absl import app
from metaagent_x import config

def seen():
    print("backend:", os.environ.get({FRACTION!r}))
    raise SystemExit(0)

xla_bridge.discover_pjrt_plugins = seen
assert not xla_bridge.backends_are_initialized(), "an import made one"
app.run(train.main, flags_parser=config.parse_flags)
"""
    flags = [
        "--config=configs/tiny.py", "--engine=vllm", "--config.engine.memory_share=0.3", f"--workdir={tmp_path}/run",
        f"--config.sft.cache={tmp_path}/cold", f"--config.engine.python={sys.executable}",
    ]  # fmt: skip
    env = {k: v for k, v in os.environ.items() if k not in (FRACTION, OLD_FRACTION)}
    done = subprocess.run(
        [sys.executable, "-c", program, *flags], capture_output=True, text=True, timeout=120, env=env
    )  # fmt: skip
    assert "backend: 0.650" in done.stdout, done.stdout + done.stderr
