"""Cold start: supervised learning on Designer and Executor examples, until the policy is worth improving by RL.

It ends on measured accuracy, not after a fixed number of updates: when every kind of task is inside the target band on
the dev split. The result is kept under a hash of all that made it, so every run with the same settings starts from it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import functools
import hashlib
import inspect
import json
from pathlib import Path
from typing import IO, Any

import jax
from rich.console import Console

from metaagent_x import assemble, data, examples
from metaagent_x.config import ConfigError, Settings
from metaagent_x.learner import checkpoint
from metaagent_x.learner.checkpoint import Checkpoints
from metaagent_x.learner.packing import pack
from metaagent_x.learner.state import TrainState
from metaagent_x.learner.step import Learner
from metaagent_x.mas import demonstrations, prompts
from metaagent_x.model import parameters, qwen3
from metaagent_x.rollout import measure
from metaagent_x.rollout.chat import Chat
from metaagent_x.rollout.play import chat_for, with_rollout
from metaagent_x.rollout.tree import Trajectory
from metaagent_x.tasks import families

console = Console()


def fingerprint(config: Settings) -> str:
    """Hash of everything that decides the cold start: model, tokenizer, examples, optimisation, seed, dev tasks."""
    keys = ("seed", "tokenizer", "model", "sft", "data")
    chosen = {k: config[k].to_dict() if hasattr(config[k], "to_dict") else config[k] for k in keys}
    del chosen["sft"]["cache"]  # where it lies does not change what it is
    for name in parameters.EXECUTION:  # nor how it is computed, but for the precision
        if name != "compute_dtype":
            del chosen["model"][name]
    chosen["prompts"] = config.rollout.prompts
    if config.model.path:
        files = [f for f in sorted(Path(config.model.path).iterdir()) if f.suffix in (".json", ".safetensors")]
        chosen["weights"] = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    sources = [inspect.getsource(m) for m in (demonstrations, prompts, families, qwen3, parameters)]
    return hashlib.sha256(json.dumps([chosen, sources, checkpoint.FORMAT], sort_keys=True).encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class ColdStart:
    """Where the policy stands before RL: weights, shape of the network, folder of the tokenizer."""

    params: Any
    model: qwen3.Qwen3Config
    tokenizer: str


def trajectory(chat: Chat, example: demonstrations.Example) -> Trajectory:
    """One example as a training row."""
    return examples.trajectory(
        chat, examples.Example(example.role, example.system, ((example.user, example.completion),))
    )


def next_rows(chat: Chat, seed: int, index: int, tokens: int) -> tuple[list[Trajectory], int]:
    """Takes examples from `index` on until about `tokens` ids are reached. Returns the rows and the next index."""
    rows, total = [], 0
    while True:
        row = trajectory(chat, demonstrations.example(seed, index))
        if total + len(row.tokens) > tokens and rows:
            return rows, index
        rows.append(row)
        total += len(row.tokens)
        index += 1


def network(config: Settings, folder: Path) -> qwen3.Qwen3Config:
    """As `assemble.network`; where a cold start is to train the tokenizer, on the texts of its first examples."""
    first = (demonstrations.example(config.seed, i) for i in range(config.sft.tokenizer_examples))
    texts = (text for e in first for text in (e.system, e.user, e.completion))
    return assemble.network(config, folder, texts if config.sft.max_steps else None)


async def cold_start(config: Settings, pools: data.Pools) -> ColdStart:
    """Returns the cold-started policy of these settings, from its cache folder if it was made before.

    Interrupted, it goes on from its last measurement. Raises ConfigError if the target is not reached within
    `sft.max_steps` updates.
    """
    s = config.sft
    if not s.max_steps:
        model = network(config, Path(s.cache))
        return ColdStart(assemble.weights(config, model, assemble.mesh(config)), model, config.tokenizer)
    folder = Path(s.cache) / fingerprint(config)
    with await _locked(folder):  # jobs of one cold start take turns
        return await _made(config, pools, folder)


async def _made(config: Settings, pools: data.Pools, folder: Path) -> ColdStart:
    s, model = config.sft, network(config, folder)
    chat = chat_for(config.tokenizer)
    learner = Learner(model, s, temperature=1.0, total_updates=s.max_steps)
    saved = Checkpoints(folder / "checkpoints", keep=1)
    at, index, done, shape = 0, 0, False, learner.abstract_state()
    if (known := saved.resume({"last": shape, "average": TrainState(shape.params, (), shape.step)})) is not None:
        at, states, extra = known
        state, average, index, done = states["last"], states["average"], extra["index"], extra["done"]
        console.print(f"cold start: {'found' if done else 'going on'} at update {at} in {folder}")
    else:
        state = learner.init(assemble.weights(config, model))
        average = TrainState(jax.tree.map(lambda x: x.copy(), state.params), (), state.step.copy())
    if not done:
        console.print(
            f"cold start: up to {s.max_steps} updates, first measured after {max(s.first_eval, s.eval_every)}; kept in "
            f"{folder}", highlight=False, soft_wrap=True,
        )  # fmt: skip
    while not done:
        if at >= s.max_steps:
            raise ConfigError(f"cold start: target not reached after sft.max_steps={s.max_steps} updates; raise it, or "
                              "choose easier levels")  # fmt: skip
        loss, updates = 0.0, s.eval_every if at else max(s.first_eval, s.eval_every)
        for _ in range(updates):
            rows, index = next_rows(chat, config.seed, index, int(s.fill * s.rows * s.row_tokens))
            batch = pack(rows, s.row_tokens, rows_multiple=s.rows, row_segments=learner.row_segments)
            # Every token alike: by role, the few Designer tokens would weigh as much as all of the Executor's.
            batch = batch._replace(weights=batch.mask / batch.mask.sum())
            state, line = learner.supervised_update(state, batch)
            average = _averaged(average, state, s.average)
            loss += line["loss"] / updates
            at += 1
            await asyncio.sleep(0)  # where an interruption may end it
        done = await _measured(config, pools, model, average.params, at, index, loss)
        saved.save(at, {"last": state, "average": average}, {"index": index, "done": done})
        saved.wait()  # whatever ends the job next
    return ColdStart(average.params, model, config.tokenizer)


async def _locked(folder: Path) -> IO[str]:
    """The lock of a cold start's folder, waited for. It is let go of when the file is closed, or with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    lock, told = open(folder / ".lock", "w"), False  # noqa: SIM115  held
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if not told:
                console.print(f"cold start: another job is making it in {folder}; waiting", highlight=False)
            told = True
            await asyncio.sleep(1.0)


@functools.partial(jax.jit, donate_argnums=0, static_argnums=2)
def _averaged(average: TrainState, state: TrainState, decay: float) -> TrainState:
    """Moves the average towards the newest weights. A constant rate leaves the last weights noisy, not their mean."""
    mixed = jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, average.params, state.params)
    return TrainState(mixed, (), state.step)


async def _measured(
    config: Settings, pools: data.Pools, model: qwen3.Qwen3Config, params: Any, at: int,
    index: int, loss: float,
) -> bool:  # fmt: skip
    """Plays the dev tasks with the present weights; True if the policy is where RL should begin.

    The Designer writes the designs, also for a job with a fixed one: both begin with the same cold start."""
    engine, grader = assemble.engine(config, model, params), assemble.grader(config)
    try:
        record = await measure.evaluate(
            pools.dev[: config.sft.eval_tasks], {"designer": engine, "executor": engine}, grader,
            with_rollout(config, design=""),
        )  # fmt: skip
    finally:
        await engine.close()
        grader.close()
    kinds = {k: record[f"accuracy/{k}"] for k in ("math", "code")}
    console.print(
        f"cold start {at:5d} updates, {index:6d} examples: loss {loss:.3f}, valid designs {record['valid']:.2f}, "
        f"accuracy math {kinds['math']:.2f} code {kinds['code']:.2f}", highlight=False, soft_wrap=True,
    )  # fmt: skip
    return record["valid"] >= config.sft.valid and all(a >= config.sft.target for a in kinds.values())
