"""The preflight: what is missing is found, all of it at once, and said with the way out; what is played is as long as
it may be."""

import asyncio
import dataclasses
import hashlib
import io
import json
import os
import re
import resource
import shutil
from collections import namedtuple
from types import SimpleNamespace

import jax.numpy as jnp
import pytest
from hf_samples import raw_config, write
from rich.console import Console

from configs import qwen3_4b, qwen3_8b, tiny
from metaagent_x import accelerators, config, data, dry_run, preflight, sandbox, trial
from metaagent_x.learner import credit
from metaagent_x.learner.checkpoint import Checkpoints
from metaagent_x.mas.records import Call, CallRequest, Execution
from metaagent_x.model import hf
from metaagent_x.model.parameters import Qwen3Config
from metaagent_x.rollout.engine import Completion, EngineFailure, Sampling
from metaagent_x.rollout.play import chat_for
from metaagent_x.rollout.tree import Design, RolloutTree, Trajectory
from metaagent_x.rollout.vllm_client import ServerInfo, VllmClient
from metaagent_x.run_folder import RunFolder
from metaagent_x.tasks.task import Rubric, Task, Verdict

GB = 1e9
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def small(tmp_path):
    """Settings of which every check can be made here."""
    c = tiny.get_config()
    c.workdir = str(tmp_path / "run")
    c.data.train_size, c.data.dev_size, c.data.test_size = 40, 8, 8
    return c


@pytest.fixture
def large(tmp_path):
    c = qwen3_4b.get_config()
    c.workdir = str(tmp_path / "run")
    return c


@pytest.fixture
def disk(monkeypatch):
    """Sets the free bytes of every file system."""

    def set_free(free):
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2 * free, free, free))

    return set_free


def program(path, text):
    """An executable shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def one(findings):
    (finding,) = findings
    return finding


def wrong(findings):
    findings = list(findings)
    assert all(f.way_out for f in findings if f.verdict != "ok"), "nothing is wrong without a way out"
    return {f.check: f.way_out for f in findings if f.verdict == "wrong"}


# ---- all at once


def test_everything_that_is_wrong_is_listed_at_once(large, disk, tmp_path):
    """Missing data, missing vLLM and a full disk are found by one command, not by three."""
    large.engine.python = str(tmp_path / "no" / "python")
    large.model.path = str(tmp_path / "no" / "weights")
    large.mesh.fsdp = 16
    disk(1 * GB)
    found = wrong(preflight.examine(preflight.Job(large)))
    expected = {"devices of the learner", "shared memory", "disk", "weights", "tokenizer", "engine"}
    assert expected | {"train: polaris", "train: code_contests"} <= found.keys()
    assert "launch/setup_vllm.sh" in found["engine"]
    assert "--workdir" in found["disk"] and "--shm-size" in found["shared memory"]
    assert "the mesh needs 16 devices and JAX has 8" in found["devices of the learner"]
    assert "python -m metaagent_x.tasks.datasets fetch polaris" in found["train: polaris"]
    assert str(tmp_path / "no" / "weights") in found["weights"]


def test_a_check_that_fails_of_itself_hides_no_other(small, monkeypatch):
    def broken(job):
        raise ZeroDivisionError("a defect")

    checks = {"first": broken, "disk": preflight.CHECKS["disk"], "last": broken}
    monkeypatch.setattr(preflight, "CHECKS", checks)
    found = preflight.examine(preflight.Job(small))
    assert [(f.check, f.verdict) for f in found] == [("first", "wrong"), ("disk", "ok"), ("last", "wrong")]
    assert "ZeroDivisionError('a defect')" in found[0].way_out


def test_on_a_machine_that_has_all_nothing_is_wrong_and_nothing_stays_behind(small, tmp_path):
    found = preflight.examine(preflight.Job(small))
    assert wrong(found) == {}
    assert {f.check for f in found} >= {"train: tiny_math", "dev: tiny_code", "sandbox", "tokenizer", "work folder"}
    assert list(tmp_path.iterdir()) == []


def interrupt(job):
    raise KeyboardInterrupt


def test_the_exit_code_says_whether_something_is_wrong(small, disk, monkeypatch):
    printed = []
    console = SimpleNamespace(print=lambda *args, **_: printed.append(args[0]))
    monkeypatch.setattr(preflight, "CHECKS", {"disk": preflight.check_disk, "cores": preflight.check_cores})
    monkeypatch.setattr(preflight, "cores", lambda: 0.5)  # a warning, which does not fail
    monkeypatch.setattr(preflight.accelerators, "prepare", lambda config: None)
    assert preflight.run(small, steps=0, interruption=None, console=console) == 0
    assert any(str(line).startswith("warning: CPU cores") for line in printed)
    disk(0)
    assert preflight.run(small, steps=2, interruption=None, console=console) == 2
    assert printed[-1] == "1 of 2 checks failed; nothing was played"
    monkeypatch.setattr(preflight, "CHECKS", {"disk": interrupt})
    assert preflight.run(small, steps=0, interruption=None, console=console) == 3
    with pytest.raises(config.ConfigError, match="--preflight_steps=-1 must be at least 0"):
        preflight.run(small, steps=-1, interruption=None, console=console)


# ---- the machine


@pytest.mark.parametrize(("module", "size"), [(qwen3_4b, 48.27), (qwen3_8b, 98.29)])
@pytest.mark.parametrize("policies", [1, 2])
def test_the_disk_holds_what_is_kept_and_one_more(disk, tmp_path, module, size, policies):
    """float32 weights and two moments: 12 bytes a weight, for each policy."""
    c = module.get_config()
    c.workdir, c.policy = str(tmp_path), ("shared", "separate")[policies - 1]
    c.guard.dumps = 0
    job = preflight.Job(c)
    assert preflight.checkpoint_bytes(job) / GB == pytest.approx(size * policies, abs=0.01)
    needed = 3 * preflight.checkpoint_bytes(job)  # checkpoint.keep = 2
    disk(needed)
    assert one(preflight.check_disk(job)).verdict == "ok"
    disk(needed - 1)
    assert "2 + 1 checkpoints" in wrong(preflight.check_disk(job))["disk"]
    c.guard.dumps = 3  # skipped updates, the weights of one policy each, and one more while it is written
    needed += 4 * preflight.checkpoint_bytes(job) // policies // 3
    disk(needed)
    assert one(preflight.check_disk(job)).verdict == "ok"
    disk(needed - 1)
    assert "skipped updates" in wrong(preflight.check_disk(job))["disk"]


def test_checkpoints_that_are_there_already_are_room(small, disk, tmp_path):
    small.guard.dumps = 0
    job = preflight.Job(small)
    disk(2 * preflight.checkpoint_bytes(job))
    for name, verdict in (("3.damaged", "wrong"), ("4", "ok")):  # nobody takes the damaged ones away
        (tmp_path / "run" / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "run" / "checkpoints" / name / "array").write_bytes(bytes(preflight.checkpoint_bytes(job)))
        assert one(preflight.check_disk(job)).verdict == verdict


def test_what_a_killed_preflight_left_is_removed(small, tmp_path):
    (tmp_path / "run" / f"{preflight.trial.FOLDER}abc" / "checkpoints").mkdir(parents=True)
    list(preflight.check_disk(preflight.Job(small)))
    assert not list((tmp_path / "run").iterdir())


def test_shared_memory_holds_the_weights_twice_for_every_policy(large, disk):
    """In the dtype that servers compute in: 2 bytes a weight."""
    job = preflight.Job(large)
    assert preflight.shared_bytes(job) == 2 * 2 * 4_022_468_096
    disk(preflight.shared_bytes(job) - 1)
    assert one(preflight.check_shared_memory(job)).verdict == "wrong"
    disk(preflight.shared_bytes(job))
    assert one(preflight.check_shared_memory(job)).verdict == "ok"
    large.policy = "separate"
    assert one(preflight.check_shared_memory(job)).verdict == "wrong"
    large.engine.kind = "jax"
    assert one(preflight.check_shared_memory(job)).found == "not used"


def test_host_memory_is_what_the_container_leaves(large, monkeypatch, tmp_path):
    inner = tmp_path / "job" / "step"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (inner / "memory.current").write_text("5000\n")
    (inner / "cpu.max").write_text("max 100000\n")
    for name, text in (
        ("memory.max", "9000"), ("memory.current", "6000"), ("memory.stat", "anon 1\ninactive_file 500\n"),
        ("cpu.max", "150000 100000"),
    ):  # fmt: skip
        (tmp_path / "job" / name).write_text(text)
    monkeypatch.setattr(preflight, "control_groups", lambda: [inner, tmp_path / "job", tmp_path])
    assert preflight.free_host_bytes() == 3500, "what is cached of files can be had back"
    assert preflight.cores() == min(1.5, len(os.sched_getaffinity(0)))
    assert "a checkpoint being written 48.27 GB" in wrong(preflight.check_memory(preflight.Job(large)))["host memory"]
    monkeypatch.setattr(preflight, "free_host_bytes", lambda: 2e12)
    assert one(preflight.check_memory(preflight.Job(large))).verdict == "ok"


def test_too_many_executions_for_the_cores_are_a_warning_with_a_figure(large, monkeypatch):
    monkeypatch.setattr(preflight, "cores", lambda: 2.0)
    found = one(preflight.check_cores(preflight.Job(large)))
    assert found.verdict == "warning"
    assert "128 executions a core" in found.way_out and "lower it to 240" in found.way_out
    large.rollout.concurrency = 240
    assert one(preflight.check_cores(preflight.Job(large))).verdict == "ok"


def test_open_files_suffice_for_executions_and_requests(large, monkeypatch):
    job, needed = preflight.Job(large), 4 * 256 + 64 * 8 + 512
    for soft, verdict in ((needed, "ok"), (needed - 1, "wrong"), (resource.RLIM_INFINITY, "ok")):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, 1 << 20))
        assert one(preflight.check_files(job)).verdict == verdict
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    assert f"ulimit -n {needed}; hard limit 4096" in one(preflight.check_files(job)).way_out


@pytest.fixture
def smi(monkeypatch, tmp_path):
    """Puts an nvidia-smi on the path that prints these lines."""

    def install(lines, code=0):
        program(tmp_path / "nvidia-smi", f"cat <<'E'\n{lines}\nE\nexit {code}")
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return install


def node(driver="580.95.05", used=(4,) * 8):
    return "\n".join(f"NVIDIA H200, {driver}, 143771, {n}" for n in used)


def test_a_node_of_eight_is_fine(large, smi):
    smi(node())
    found = list(preflight.check_gpus(preflight.Job(large)))
    assert wrong(found) == {} and len(found) == 3
    assert found[1].found == "8 x NVIDIA H200, 150.75 GB each"


def test_an_old_driver_and_a_gpu_in_use_are_both_said(large, smi):
    smi(node("570.10", (4, 4, 4, 60_000, 4, 4, 4, 4)))
    found = wrong(preflight.check_gpus(preflight.Job(large)))
    assert "570.10 does not run CUDA 13" in found["GPU driver"]
    assert "GPU 3: other processes hold up to 62.91 GB" in found["GPU memory in use"]


def test_a_gpu_that_the_job_does_not_use_may_be_in_use(large, smi, monkeypatch):
    smi(node(used=(60_000, *[4] * 8)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2,3,4,5,6,7,8")
    assert wrong(preflight.check_gpus(preflight.Job(large))) == {}


def test_servers_that_run_already_have_their_part_of_a_gpu(large, smi):
    smi(node(used=(70_000,) * 8))
    assert "GPU memory in use" in wrong(preflight.check_gpus(preflight.Job(large)))
    large.engine.urls = ("http://127.0.0.1:8000",)
    assert wrong(preflight.check_gpus(preflight.Job(large))) == {}


def test_gpus_that_jax_does_not_use_are_said(small, smi, monkeypatch):
    smi(node())
    assert wrong(preflight.check_devices(preflight.Job(small))) == {}, "JAX_PLATFORMS=cpu asks for it"
    monkeypatch.delenv("JAX_PLATFORMS")
    small.mesh.fsdp = 16
    assert "requirements-gpu.txt" in one(preflight.check_devices(preflight.Job(small))).way_out


def test_what_a_device_holds_whole_under_zero_1_counts(large, smi):
    """8B beside vLLM's half: its share of weights and moments fits, gathered weights and all gradients do not."""
    smi(node())
    for field, value in (("hidden_size", 4096), ("intermediate_size", 12_288), ("tie_embeddings", False)):
        large.model[field] = value
    assert "GPU memory" not in wrong(preflight.check_gpus(preflight.Job(large)))
    large.mesh.zero = 1
    assert "--dry_run" in wrong(preflight.check_gpus(preflight.Job(large)))["GPU memory"]
    large.mesh.fsdp, large.mesh.tensor = 1, 8  # one device's share is all of it
    assert preflight.whole_bytes(preflight.Job(large)) == 0


def test_gpus_that_are_too_few_or_too_small_are_said(large, smi):
    smi(node(used=(4,) * 4))
    with pytest.raises(config.ConfigError, match="the job needs 8 GPUs and the machine has no GPU 4, only 4"):
        list(preflight.check_gpus(preflight.Job(large)))
    large.mesh.fsdp = 1
    assert "--dry_run" in wrong(preflight.check_gpus(preflight.Job(large)))["GPU memory"]
    large.engine.layout, large.engine.servers = "split", 4
    with pytest.raises(config.ConfigError, match="needs 5 GPUs"):
        list(preflight.check_gpus(preflight.Job(large)))


def test_a_driver_that_does_not_answer_is_said(smi):
    smi("Failed to initialize NVML", 9)
    with pytest.raises(config.ConfigError, match=r"code 9: Failed to initialize NVML; repair the driver"):
        accelerators.installed_gpus()


@pytest.fixture
def process_mode():
    yield
    sandbox.use("strict")
    sandbox.close()


def test_what_a_program_can_do_here_is_tried(small, process_mode):
    """With limits only it can do all of it; the same program must fail at each in strict mode."""
    assert one(preflight.check_sandbox(preflight.Job(small))).verdict == "ok"
    small.sandbox = "process"
    found = one(preflight.check_sandbox(preflight.Job(small)))
    assert found.verdict == "warning"
    for effect in ("open a network connection", "read a file of ours", "write beside it", "signal the learner"):
        assert effect in found.way_out


def test_a_strict_sandbox_that_leaks_is_wrong(small, monkeypatch):
    leak = SimpleNamespace(status="ok", stdout='["read a file of ours"]', stderr="")
    monkeypatch.setattr(preflight.sandbox, "run_python", lambda *_, **__: leak)
    found = one(preflight.check_sandbox(preflight.Job(small)))
    assert found.verdict == "wrong" and "read a file of ours in spite of" in found.way_out


# ---- the job


def write_polaris(folder, answers=("2", "3")):
    folder.mkdir()
    rows = [{"problem": f"1 + {i}", "answer": a, "difficulty": "1/8"} for i, a in enumerate(answers, 1)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "train.jsonl").write_text(text)
    entry = {"bytes": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    record = {"repo": "r", "revision": "0" * 40, "files": {"train.jsonl": entry}, "complete": ["train"]}
    (folder / "dataset.json").write_text(json.dumps(record))


def real(c, *entries):
    c.data.train, c.data.dev, c.data.test, c.sft.max_steps = entries, (), (), 0
    c.rollout.max_prompt_tokens = 100_000  # bytes: no tokenizer is named
    c.batch = 2
    return preflight.Job(c)


def test_data_that_are_not_what_was_fetched_are_said(small, tmp_path):
    write_polaris(tmp_path / "polaris")
    job = real(small, ("polaris", str(tmp_path / "polaris"), 1.0))
    found = list(preflight.check_data(job))
    assert wrong(found) == {} and found[0].found.startswith("2 tasks of 2 rows, ")
    file = tmp_path / "polaris" / "train.jsonl"
    file.write_text(file.read_text().replace('"answer": "3"', '"answer": "4"'))
    assert "train.jsonl is not what was fetched" in wrong(preflight.check_data(job))["train: polaris"]


def test_every_data_set_that_cannot_be_read_is_named(small, tmp_path):
    write_polaris(tmp_path / "polaris", ("2", ""))
    (tmp_path / "polaris" / "train.jsonl").write_text('{"problem": "1+1"}\n')
    (tmp_path / "polaris" / "dataset.json").unlink()
    job = real(
        small, ("polaris", str(tmp_path / "polaris"), 0.5), ("apps", str(tmp_path / "none"), 0.25),
        ("gsm8k:split=test", str(tmp_path / "none"), 0.25),
    )  # fmt: skip
    found = wrong(preflight.check_data(job))
    assert "line 1" in found["train: polaris"] and "does not exist" in found["train: apps"]
    assert "a result on it would mean nothing afterwards" in found["data"], (
        "what is wrong with all of them together too"
    )


def test_a_tokenizer_must_be_there_and_fit_the_vocabulary(small):
    assert one(preflight.check_tokenizer(preflight.Job(small))).found == "trained at the start"
    small.sft.max_steps = 0
    assert one(preflight.check_tokenizer(preflight.Job(small))).found == "261 ids"
    small.model.vocab_size = 260
    with pytest.raises(config.ConfigError, match=r"has 261 ids but model\.vocab_size is 260"):
        list(preflight.check_tokenizer(preflight.Job(small)))


def test_weights_are_compared_with_their_description_without_being_loaded(tmp_path):
    c = config.base()
    write(tmp_path, raw_config("qwen3", vocab_size=300))
    c.model.path = str(tmp_path)
    assert f"parameters, {tmp_path}" in one(preflight.check_weights(preflight.Job(c))).found
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(hf.WeightsError, match="cannot read"):
        list(preflight.check_weights(preflight.Job(c)))


@pytest.mark.parametrize(
    ("said", "verdict", "words"),
    [("0.32.1", "ok", ""), ("0.31.0", "wrong", "has vLLM 0.31.0, and 0.32.x is needed"), ("", "wrong", "has no vLLM")],
)
def test_the_version_of_vllm_is_the_pinned_one(large, tmp_path, said, verdict, words):
    large.engine.python = str(program(tmp_path / "python", f"echo {said}"))
    found = one(preflight.check_engine(preflight.Job(large)))
    assert found.verdict == verdict and words in found.way_out
    assert verdict == "ok" or "launch/setup_vllm.sh" in found.way_out


async def test_servers_that_run_already_are_greeted_all_of_them(small, monkeypatch):
    small.engine.kind, small.sft.max_steps = "vllm", 0
    small.engine.urls = ("http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3")
    job = preflight.Job(small)
    right = ServerInfo(
        "0.32.0", "m", device="cpu", weight_version=None, **preflight.assemble.expected_server(small, job.model)
    )  # fmt: skip
    answers = {1: right, 2: dataclasses.replace(right, dtype="bfloat16")}

    real_info = VllmClient.info

    async def info(client):
        port = int(client.url.rpartition(":")[2])
        return answers[port] if port in answers else await real_info(client)

    monkeypatch.setattr(VllmClient, "info", info)
    first, second, third = await preflight.shake_hands(job)
    assert (first.verdict, second.verdict, third.verdict) == ("ok", "wrong", "wrong")
    assert "dtype is 'bfloat16', not 'float32'" in second.way_out
    assert "127.0.0.1:3" in third.way_out


def test_engines_that_cannot_train_are_said(small):
    small.engine.kind, small.engine.urls, small.engine.model = "openai", ("https://h/v1",), "m"
    with pytest.raises(config.ConfigError, match="nothing can be trained on its answers"):
        list(preflight.check_engine(preflight.Job(small)))
    small.engine.kind = "scripted"
    assert one(preflight.check_engine(preflight.Job(small))).verdict == "warning"


def test_the_work_folder_says_where_a_run_goes_on(small, tmp_path):
    job = preflight.Job(small)
    assert one(preflight.check_workdir(job)).found.endswith("run, new")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log").write_text("")
    assert one(preflight.check_workdir(job)).found.endswith("run, new")
    assert [f.name for f in (tmp_path / "run").iterdir()] == ["log"], "whoever fails here may change the settings"
    RunFolder(small.workdir, small)
    assert "no checkpoint: begins with step 1" in one(preflight.check_workdir(job)).found
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    checkpoints.save(7, {"shared": {"w": jnp.ones(2)}}, {})
    checkpoints.wait()
    assert "goes on after step 7" in one(preflight.check_workdir(job)).found
    small.designs = 8
    with pytest.raises(config.ConfigError, match="designs: 4 there, 8 here"):
        list(preflight.check_workdir(job))


def test_a_run_on_other_data_does_not_go_on(small):
    job = preflight.Job(small)
    job.pools = data.open_pools(small)
    RunFolder(small.workdir, small).check_data([dataclasses.asdict(o) for o in job.pools.origins])
    assert one(preflight.check_workdir(job)).verdict == "ok"
    first, *others = job.pools.origins
    job.pools = dataclasses.replace(job.pools, origins=(dataclasses.replace(first, hash="other"), *others))
    with pytest.raises(config.ConfigError, match="holds a run on other data"):
        list(preflight.check_workdir(job))


def test_a_work_folder_that_cannot_be_made_is_said(small, tmp_path):
    (tmp_path / "file").write_text("")
    small.workdir = str(tmp_path / "file")
    with pytest.raises(config.ConfigError, match="--workdir"):
        list(preflight.check_workdir(preflight.Job(small)))
    small.workdir = "/proc/none/run"
    with pytest.raises(config.ConfigError, match=r"cannot write in /proc: .*choose another --workdir"):
        list(preflight.check_workdir(preflight.Job(small)))


# ---- the steps at full lengths


class Early:
    """An engine that stops after three tokens, whatever it is asked."""

    def __init__(self):
        self.asked = []

    async def generate(self, prompt_ids, sampling, seed, *, request=None):
        self.asked.append((prompt_ids, sampling, seed))
        n = min(3, sampling.max_tokens)
        first = len(self.asked) * 10
        return Completion(tuple(range(first, first + n)), (-0.5,) * n, "stop", version=len(self.asked))


async def test_completions_are_as_long_as_they_may_be():
    inner = Early()
    request = CallRequest("0", "solver", "", "", ("task",))
    engine = trial.FullLength(inner)
    done = await engine.generate((1, 2), Sampling(8, stop_ids=(9,)), 2**32 - 1, request=request)
    assert done.ids == (10, 11, 12, 20, 21, 22, 30, 31) and len(done.logprobs) == 8
    assert (done.finish_reason, done.version, done.text) == ("stop", 1, None), "the oldest weights name it"
    assert [len(prompt) for prompt, _, _ in inner.asked] == [2, 5, 8]
    assert [s.max_tokens for _, s, _ in inner.asked] == [8, 5, 2] and not any(s.stop_ids for _, s, _ in inner.asked)
    assert [seed for *_, seed in inner.asked] == [2**32 - 1, 2, 5], "every part has draws of its own"


async def test_a_design_runs_whatever_was_sampled_for_it():
    request = CallRequest("", "designer", "", "", ("task",))
    done = await trial.FullLength(Early()).generate((1,), Sampling(5), 0, request=request)
    assert len(done.ids) == 5 and "answer = solver()(task)" in done.text


def test_tasks_are_longer_than_any_prompt():
    task, rubric = Task("t", "math", "1 + 1"), Rubric("t", "math", ("2",))
    mixture = SimpleNamespace(batch_at=lambda step: [(task, rubric)])
    ((long, same),) = trial.LongTasks(mixture, 300).batch_at(5)
    assert same is rubric and long.id == "t" and long.prompt.startswith("1 + 1 ")
    assert len(chat_for("").encode(long.prompt)) > 300


def tree(*executions):
    task = Task("t", "math", "1 + 1")
    half = len(executions) // 2
    designs = [Design(None, script="s", executions=list(part)) for part in (executions[:half], executions[half:])]
    return RolloutTree(task, designs, executions=half)


def played(**fields):
    return Execution(verdict=Verdict(False, 0.0, 0.0, 0.0, "wrong_answer"), **fields)


def test_every_group_has_a_signal():
    played_tree = tree(*(played() for _ in range(4)))
    trial.spread_rewards([played_tree])
    assert played_tree.rewards().tolist() == [[0.0, 0.25], [0.5, 0.75]]
    assert len(set(played_tree.rewards().mean(1))) == 2, "designs differ too"
    assert credit.flat_groups([played_tree], "designer") == 0.0


def test_what_was_not_played_whole_is_said():
    trial.check_played([tree(played(), played())])
    for execution, words in (
        (Execution(status="void", reason="server gone"), "void: server gone"),
        (played(status="wall", reason="wall limit of 60 s"), "ended by its wall limit"),
    ):
        with pytest.raises(EngineFailure, match=words):
            trial.check_played([tree(played(), execution)])
    failed = tree(played(), played())
    failed.designs[0].problem = "engine: no answer"
    with pytest.raises(EngineFailure, match="a design was not sampled: engine: no answer"):
        trial.check_played([failed])


def test_the_stage_that_trains_on_most_is_played():
    c = tiny.get_config()
    for schedule, first, roles in (
        ("stagewise", "designer", {"executor"}), ("stagewise", "executor", {"executor"}),
        ("designer_only", "executor", {"designer"}), ("coupled", "executor", {"designer", "executor"}),
    ):  # fmt: skip
        c.schedule, c.first = schedule, first
        assert trial.widest_roles(c) == roles


def test_a_failure_names_the_phase(small, tmp_path, monkeypatch):
    async def refuse(*_, **__):
        raise EngineFailure("no server came")

    learner = SimpleNamespace(init=lambda params: SimpleNamespace(params=params))
    monkeypatch.setattr(trial.assemble, "learner", lambda *_: learner)
    monkeypatch.setattr(trial.assemble, "weights", lambda *_: {})
    monkeypatch.setattr(trial.assemble, "engines", refuse)
    small.sft.max_steps = 0
    pools = data.open_pools(small)
    with pytest.raises(trial.Failed, match="start of the engine: no server came"):
        asyncio.run(trial.play(small, pools, 1, tmp_path, None))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_limits_of_the_data_sheet_stand_beside_what_was_measured(small, monkeypatch):
    """96 rows of a trajectory each, on two devices, sampled by two servers: what H200 would take at least."""
    small.engine.kind, small.engine.servers, small.mesh.fsdp, small.learner.micro_rows = "vllm", 2, 2, 2
    small.model.num_layers, small.model.remat = 1, "block"
    model = Qwen3Config.from_settings(small.model)
    sheet = accelerators.ACCELERATORS["H200"]
    monkeypatch.setattr(trial, "data_sheet", lambda: sheet)
    ids = tuple(range(176))
    calls = [Call(str(i), "solver", "", ids[:128], ids[:48], (-1.0,) * 48, "stop", 0, "") for i in range(96)]
    trained = [Trajectory(ids, (False,) * 128 + (True,) * 48, (0.0,) * 176) for _ in calls]
    record = trial.Record()
    for name in trial.PHASES:
        with record.phase(name):
            pass
    console = Console(width=120, file=io.StringIO())
    learner = trial.assemble.learner(small, model)
    trial.report(small, model, learner, [tree(played(calls=calls), played())], trained, record, console)
    said = console.file.getvalue()
    assert "96 calls a step, prompts of up to 128 tokens, 4,608 tokens sampled" in said
    passes = {key: dry_run.work(small, model, key, None) for key in ("score", "update")}
    least = dry_run.budget(small, model, passes, 96 // 4, 4608, sheet, 2)
    for phase, part in (("collect", "rollout"), ("update", "train"), ("push", "push")):
        assert re.search(rf"│ {phase} +│ +[\d.]+ │ +{least[part]:.2f} │", said), said
    assert least["rollout"] > 0 and re.search(r"│ save +│ +[\d.]+ │ +- │", said)
