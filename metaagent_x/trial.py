"""A few steps of a job at full lengths: does it run, how long does every phase take, and in how much memory?

Every prompt is as long as it may be, every completion is sampled to its limit, and rewards differ, so that every update
is a real one. The weights are those that the job begins with, before any cold start. The steps are those of `train.py`;
what they write lies in a temporary folder on the disk of the run and is removed.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import math
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from metaagent_x import assemble, cold_start, data, dry_run, loop
from metaagent_x.accelerators import ACCELERATORS, Accelerator, Gpu, installed_gpus
from metaagent_x.config import ConfigError, Settings
from metaagent_x.learner.checkpoint import CheckpointError, Checkpoints
from metaagent_x.learner.improve import improve
from metaagent_x.learner.packing import bucket_rows
from metaagent_x.learner.schedule import active_roles
from metaagent_x.learner.step import Learner
from metaagent_x.mas.records import CallRequest
from metaagent_x.model.parameters import Qwen3Config
from metaagent_x.rollout.engine import Completion, Engine, EngineFailure, EngineRefused, Sampling
from metaagent_x.rollout.seeds import call_seed
from metaagent_x.rollout.tree import RolloutTree, Trajectory
from metaagent_x.run_folder import DESCRIPTION
from metaagent_x.tasks.datasets import Pairs
from metaagent_x.tasks.mixture import Mixture

SCRIPT = "```python\nanswer = solver()(task)\n```"
FILLER = "0"  # a token of its own in the tokenizers of Qwen and in those of a cold start
FOLDER = ".preflight-"  # how the name of a temporary folder begins
PHASES = {"collect": "rollout", "update": "train", "push": "push", "save": ""}  # -> what the dry run calls it
FAILURES = (CheckpointError, ConfigError, EngineFailure, EngineRefused, OSError, jax.errors.JaxRuntimeError)


class Failed(RuntimeError):
    """A step could not be played. The message names the phase and the reason."""


class FullLength:
    """An engine whose completions are all as long as they may be (Engine protocol). Designs say `SCRIPT` all the same,
    so that executions follow."""

    def __init__(self, engine: Engine):
        self.engine = engine

    async def generate(
        self, prompt_ids: tuple[int, ...], sampling: Sampling, seed: int, *, request: CallRequest | None = None
    ) -> Completion:
        """Goes on where an engine stops of itself. It counts as stopped, or `learner.truncated` might leave it out."""
        ids: tuple[int, ...] = ()
        logprobs: tuple[float, ...] = ()
        version: int | None = None
        while len(ids) < sampling.max_tokens:
            rest = dataclasses.replace(sampling, max_tokens=sampling.max_tokens - len(ids), stop_ids=())
            again = (seed + len(ids)) % 2**32  # not the draws of the tokens so far
            done = await self.engine.generate((*prompt_ids, *ids), rest, again, request=request)
            ids, logprobs = ids + done.ids, logprobs + done.logprobs
            version = done.version if version is None else version
        assert version is not None
        designer = request is not None and request.agent == "designer"
        return Completion(ids, logprobs, "stop", version, SCRIPT if designer else None)

    async def update_weights(self, params: Any, version: int) -> None:
        await self.engine.update_weights(params, version)

    async def close(self) -> None:
        await self.engine.close()


class LongTasks:
    """A mixture whose tasks are longer than any prompt may be; they are cut to fit."""

    def __init__(self, mixture: Mixture, tokens: int):
        self.mixture, self.tokens = mixture, tokens

    def batch_at(self, step: int) -> Pairs:
        """As `Mixture.batch_at`."""
        filler = FILLER * self.tokens
        return [
            (dataclasses.replace(task, prompt=f"{task.prompt} {filler}"), rubric)
            for task, rubric in self.mixture.batch_at(step)
        ]


@dataclasses.dataclass
class Record:
    """What was measured.

    Attributes:
      seconds: phase -> of every step. memory: phase -> bytes at most, from the beginning to its end in the first step.
      now: the phase under way. fullest: the GPU of which most was in use after a step, by whomever; None without any.
    """

    seconds: dict[str, list[float]] = dataclasses.field(default_factory=lambda: {name: [] for name in PHASES})
    memory: dict[str, float] = dataclasses.field(default_factory=dict)
    now: str = "start"
    fullest: Gpu | None = None

    def look(self) -> None:
        """Takes note of the GPUs, servers included."""
        seen = [*installed_gpus(), *([self.fullest] if self.fullest else [])]
        self.fullest = max(seen, key=lambda gpu: gpu.used, default=None)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.now, began = name, time.perf_counter()
        yield
        self.seconds[name].append(time.perf_counter() - began)
        self.memory.setdefault(name, peak_bytes())
        self.now = f"after {name}"


async def play(config: Settings, pools: data.Pools, steps: int, near: Path, console: Console) -> None:
    """Plays `steps` steps and prints what they took.

    Args:
      config: validated settings, left as they are. pools: of `data.open_pools`.
      steps: at least 1. near: folder on the disk of the run.
      console: where to print.

    Raises:
      Failed: one could not be played.
    """
    c, record = copy.deepcopy(config), Record()
    with c.unlocked():
        c.learner.flat_groups = "keep"  # rewards are set afterwards: no batch is flat
    pools = dataclasses.replace(pools, train=LongTasks(pools.train, c.rollout.max_prompt_tokens))  # type: ignore[arg-type]
    try:
        with tempfile.TemporaryDirectory(prefix=FOLDER, dir=near) as folder:
            played = await _play(c, pools, steps, Path(folder), record)
        report(c, *played, record, console)  # weights and moments are gone: compiling may take memory
    except FAILURES as error:
        raise Failed(f"{record.now}: {error}") from error


async def _play(
    c: Settings, pools: data.Pools, steps: int, folder: Path, record: Record
) -> tuple[Qwen3Config, Learner, list[RolloutTree], list[Trajectory]]:
    """Returns the network, the learner, and what was sampled and trained in the last step."""
    model = cold_start.network(c, folder)
    params = assemble.weights(c, model, assemble.mesh(c))
    described = folder / DESCRIPTION
    assemble.describe(described, model, c.tokenizer)
    learner, owner = assemble.learner(c, model), assemble.owners(c)
    states = {name: learner.init(params) for name in sorted(set(owner.values()))}
    reference = dict.fromkeys(states, learner.place(params)) if c.learner.kl else None
    current = {name: state.params for name, state in states.items()}
    checkpoints = Checkpoints(folder / "checkpoints", keep=1)
    roles = widest_roles(c)
    record.now = "start of the engine"
    engines = await assemble.engines(c, pools, model, current, version=0, described=described)
    grader, draws = assemble.grader(c), 0
    trees: list[RolloutTree] = []
    trained: list[Trajectory] = []
    try:
        for step in range(steps):
            with record.phase("collect"):
                full = {role: FullLength(engine) for role, engine in engines.items()}
                trees, draws = await loop.gather(c, pools, full, grader, step, draws, roles)
            check_played(trees)
            spread_rewards(trees)
            with record.phase("update"):
                seed = call_seed(c.seed, step, "updates", 0, 0, "")
                states, trained, metrics = improve(trees, states, owner, learner, roles, seed=seed, reference=reference)
                jax.block_until_ready(states)
            if not metrics["updates"]:
                raise Failed("update: none was made: each had a loss or gradient that is not finite")
            with record.phase("push"):
                for name, engine in {owner[role]: engines[role] for role in sorted(owner)}.items():
                    await engine.update_weights(states[name].params, version=step + 1)
            record.look()
            if step == steps - 1:  # one more than a run keeps would have to fit otherwise
                with record.phase("save"):
                    checkpoints.save(step + 1, states, {"draws": draws})
                    checkpoints.wait()
    finally:
        for engine in {id(e): e for e in engines.values()}.values():
            await engine.close()
        grader.close()
    return model, learner, trees, trained


def widest_roles(c: Settings) -> frozenset[str]:
    """Who learns in the stage that trains on most: that of the Executor, if it has one."""
    stages = [active_roles(step, c.schedule, c.stage_length, c.first) for step in (0, c.stage_length)]
    return max(stages, key=lambda roles: "executor" in roles)


def check_played(trees: Sequence[RolloutTree]) -> None:
    """Raises EngineFailure if something was not sampled or not graded."""
    for design in (design for tree in trees for design in tree.designs):
        if design.problem:
            raise EngineFailure(f"a design was not sampled: {design.problem}")
        for execution in design.executions:
            if execution.void:
                raise EngineFailure(f"an execution is void: {execution.reason or execution.verdict}")
            if execution.status != "ok":
                raise EngineFailure(
                    f"an execution at full length ended by its {execution.status} limit ({execution.reason}); raise "
                    "rollout.budget, or lower rollout.concurrency"
                )


def spread_rewards(trees: Sequence[RolloutTree]) -> None:
    """Gives the executions of every task rewards that all differ: none of its groups is without a signal."""
    for tree in trees:
        executions = [execution for design in tree.designs for execution in design.executions]
        for place, execution in enumerate(executions):
            assert execution.verdict is not None
            execution.verdict = dataclasses.replace(execution.verdict, reward=place / len(executions))


def peak_bytes() -> float:
    """Memory at most so far: of the fullest device, or of this process where the devices are a CPU."""
    stats = [device.memory_stats() for device in jax.local_devices()]
    if all(stats):
        return float(max(s["peak_bytes_in_use"] for s in stats if s))
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))


# ---- what is printed


def report(
    c: Settings, model: Qwen3Config, learner: Learner, trees: Sequence[RolloutTree], trained: Sequence[Trajectory],
    record: Record, console: Console,
) -> None:  # fmt: skip
    """What the steps took, beside what the dry run says of the same batch on the same devices."""
    calls = [call for tree in trees for call in tree.calls()]
    sampled, prompt = sum(len(call.completion_ids) for call in calls), max(len(call.prompt_ids) for call in calls)
    longest = max(len(t.tokens) for t in trained) - 1  # the last id is no input
    owner = assemble.owners(c)
    by_policy = collections.Counter(owner[t.role] for t in trained)
    each = math.ceil(max(by_policy.values()) / c.learner.updates_per_step)
    rows = math.ceil(each / (c.learner.row_tokens // longest))
    micro = len(by_policy) * c.learner.updates_per_step * math.ceil(rows / learner.rows_multiple)
    console.print(
        f"{len(record.seconds['collect'])} steps at full lengths: {len(calls)} calls a step, prompts of up to "
        f"{prompt:,} tokens, {sampled:,} tokens sampled; {len(trained)} trajectories of up to {longest + 1:,} tokens "
        f"trained in rows of {c.learner.row_tokens:,}", highlight=False, soft_wrap=True,
    )  # fmt: skip
    batch = dry_run.full_batch(bucket_rows(rows, learner.rows_multiple), c.learner.row_tokens, learner.rows_multiple)
    on_cpu = jax.default_backend() == "cpu"
    options = dry_run.COMPILER if on_cpu else None
    compiled = {key: lowered.compile(compiler_options=options) for key, lowered in learner.lower(batch).items()}
    need, devices = dry_run.memory(c, model, learner, compiled), c.mesh.fsdp * c.mesh.tensor
    device = data_sheet()
    engine = dry_run.engine_share(c, model, 0.0)  # in this process only
    resident = sum(need.resident.values()) + engine
    planned = {"collect": resident, "update": need.total + engine}
    if on_cpu:  # one process holds what all devices would
        planned = {name: devices * (size - engine) + engine for name, size in planned.items()}
    least: Mapping[str, float] = {}
    if device is not None and c.engine.kind == "vllm":
        passes = {key: dry_run.work(c, model, key, None) for key in compiled}
        least = dry_run.budget(c, model, passes, micro, sampled, device, devices)
    console.print(phases_table(record, least, planned, "this process" if on_cpu else "the fullest device"))
    if gpu := record.fullest:
        console.print(
            f"learner and servers together hold at most {gpu.used / 1e9:.1f} of {gpu.memory / 1e9:.1f} GB of a GPU "
            "(nvidia-smi)", highlight=False, soft_wrap=True,
        )  # fmt: skip
    steps = min(c.steps, math.ceil(c.tokens / sampled)) if c.tokens else c.steps
    last = steps * sum(seconds[-1] for name, seconds in record.seconds.items() if name != "save")
    said = f"{last / 3600:.1f} h" if last >= 3600 else f"{last / 60:.1f} min"
    console.print(
        f"{steps} steps as long as the last one take {said}, evaluations not counted; most "
        "steps are shorter", highlight=False, soft_wrap=True,
    )  # fmt: skip


def data_sheet() -> Accelerator | None:
    """That of the devices in use; None if it is not in the list, or states no speed."""
    kind = jax.devices()[0].device_kind
    known = next((sheet for name, sheet in ACCELERATORS.items() if name in kind.split()), None)
    return known if known is not None and known.flops else None


def phases_table(record: Record, least: Mapping[str, float], planned: Mapping[str, float], whose: str) -> Table:
    steps = max(map(len, record.seconds.values()))
    out = Table("phase", title="measured, beside the dry run", title_justify="left")
    heads = [*(f"step {i + 1}, s" for i in range(steps)), "at least, s", "memory, GB", "dry run, GB"]
    for head in heads:
        out.add_column(head, justify="right")
    for name, in_dry_run in PHASES.items():
        seconds = [f"{s:.2f}" for s in record.seconds[name]]
        out.add_row(
            name, *["-"] * (steps - len(seconds)), *seconds,
            f"{least[in_dry_run]:.2f}" if in_dry_run in least else "-", f"{record.memory[name] / 1e9:.2f}",
            f"{planned[name] / 1e9:.2f}" if name in planned else "-",
        )  # fmt: skip
    out.caption = f"step 1 compiles; memory: at most so far, of {whose}; dry run: of arrays and temporaries"
    return out
