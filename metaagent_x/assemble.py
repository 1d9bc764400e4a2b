"""Builds the parts of a job from its settings: model, learner, engines, grader."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import ml_collections
import numpy as np

from metaagent_x import accelerators, sandbox
from metaagent_x.config import ConfigError, Settings, base
from metaagent_x.data import Pools
from metaagent_x.learner.packing import pack
from metaagent_x.learner.step import Learner
from metaagent_x.model import attention_cudnn, hf, qwen3
from metaagent_x.model.parameters import EXECUTION, Params, Qwen3Config
from metaagent_x.model.sharding import make_mesh
from metaagent_x.rollout.chat import train_bpe
from metaagent_x.rollout.engine import Engine
from metaagent_x.rollout.fleet import Attached, Host, Weights
from metaagent_x.rollout.jax_engine import JaxEngine
from metaagent_x.rollout.openai_engine import OpenAIEngine
from metaagent_x.rollout.pace import Pace
from metaagent_x.rollout.play import chat_for, read_design
from metaagent_x.rollout.rehearsal import Rehearsal
from metaagent_x.rollout.tree import Trajectory
from metaagent_x.rollout.vllm_client import LOGPROBS_MODE
from metaagent_x.rollout.vllm_engine import VllmEngine
from metaagent_x.rollout.vllm_server import ServerSettings, VllmServer, find_python
from metaagent_x.rollout.weight_sync import PROBE_LENGTH, WeightStore, WeightSync
from metaagent_x.tasks.grader import Grader


def model_config(config: Settings, vocab_size: int | None = None) -> Qwen3Config:
    """The network's shape. A tokenizer trained for the job sets the vocabulary. Raises ConfigError."""
    try:
        model = Qwen3Config.from_settings(config.model)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return dataclasses.replace(model, vocab_size=vocab_size) if vocab_size else model


def adopt_weights(config: Settings) -> None:
    """With `model.path`, makes the settings say what that folder is: every size, and the tokenizer if none is named.

    Raises ConfigError if the folder cannot be read, or is not what a setting that differs from its default says.
    """
    path = config.model.path
    if not path:
        return
    try:
        found = hf.read_config(path)
    except hf.WeightsError as error:
        raise ConfigError(f"model.path={path!r}: {error}") from error
    default = base().model
    for field in dataclasses.fields(found):
        name = field.name
        if name in EXECUTION:  # how it runs is for the settings to say
            continue
        here, there = config.model[name], getattr(found, name)
        if here not in (default[name], there):
            raise ConfigError(f"model.{name}={here}, but model.path={path!r} has {there}; leave model.{name} out")
        config.model[name] = there
    config.tokenizer = config.tokenizer or path


def network(config: Settings, folder: Path, texts: Iterable[str] | None = None) -> Qwen3Config:
    """The network, and a tokenizer that fits it. Where the settings name none, one is trained on `texts`: made in
    `folder` if it is not there yet, and named by the settings from then on.

    Raises ConfigError if the tokenizer does not fit.
    """
    vocab_size = None
    if texts is not None and not config.tokenizer:  # a folder that the user named is read, never written
        vocab_size = config.sft.vocab_size
        with config.unlocked():
            config.tokenizer = str(folder / "tokenizer")
        if not (folder / "tokenizer" / "tokenizer.json").exists():
            try:
                train_bpe(texts, config.sft.vocab_size, config.tokenizer)
            except ValueError as error:
                raise ConfigError(f"sft.{error}") from error
    model = model_config(config, vocab_size)
    check_vocabulary(config, model)
    return model


def weights(config: Settings, model: Qwen3Config, mesh: Any = None) -> Params:
    """float32 weights to start from: those of `model.path`, or random ones. Raises ConfigError."""
    if not config.model.path:
        return qwen3.init(model, jax.random.key(config.seed), mesh)
    try:
        return hf.load(config.model.path, "float32", mesh)[1]
    except hf.WeightsError as error:
        raise ConfigError(f"model.path={config.model.path!r}: {error}") from error


def describe(folder: Path, model: Qwen3Config, tokenizer: str) -> None:
    """Writes what an export needs beside a checkpoint: the network's description and the tokenizer's files."""
    folder.mkdir(exist_ok=True)
    hf.write_description(folder, model, "float32", tokenizer or None, chat_for(tokenizer).stop_ids)


def mesh(config: Settings) -> Any:
    """The device mesh, or None for one device."""
    if config.mesh.fsdp * config.mesh.tensor == 1:
        return None
    return make_mesh(config.mesh.fsdp, config.mesh.tensor)


def owners(config: Settings) -> dict[str, str]:
    """Role -> name of the policy that plays it."""
    if config.policy == "shared":
        return {"designer": "shared", "executor": "shared"}
    return {"designer": "designer", "executor": "executor"}


def engine(config: Settings, model: Qwen3Config, params: Any, version: int = 0) -> JaxEngine:
    """A built-in engine with the job's one decode shape."""
    chat = chat_for(config.tokenizer)
    e = config.engine
    return JaxEngine(
        model, params, slots=e.slots, cache_tokens=e.cache_tokens, chunk=e.chunk, stop_ids=tuple(chat.stop_ids),
        vocab_limit=chat.vocab_size, version=version,
    )  # fmt: skip


async def engines(
    config: Settings, pools: Pools | None, model: Qwen3Config, params: Mapping[str, Any], version: int, described: Path
) -> dict[str, Engine]:
    """The engine of every role; one object where one policy plays both. Servers are started and hold the weights.

    Args:
      pools: what rehearsed samples are made from; None for a job without any.
      params: weights by policy name. version: of all of them.
      described: folder of `describe`, which servers read.

    Raises:
      EngineRefused: a server is not what the learner expects. EngineFailure: one did not start.
    """
    if config.engine.kind == "scripted" and pools is not None:
        return rehearsal(config, pools, version)
    if config.engine.kind == "openai":
        endpoint = openai_engine(config)
        return dict.fromkeys(owners(config), endpoint)
    made: dict[str, Engine] = {}
    try:
        for name, weights in params.items():  # one group after another: servers measure the GPU that they share
            if config.engine.kind == "vllm":
                made[name] = group = vllm_engine(config, model, name, Weights(weights, version), described)
                await group.start()
            else:
                made[name] = engine(config, model, weights, version)
    except BaseException:
        for started in made.values():
            await started.close()
        raise
    return {role: made[name] for role, name in owners(config).items()}


def cold_engines(
    config: Settings, pools: Pools, model: Qwen3Config, params: Any, beside: Mapping[str, Engine]
) -> dict[str, Engine]:
    """The engine of every role with the weights before RL, version 0: what training is compared with.

    Args:
      params: the weights. beside: the engines of the policies in training; servers play both in turn.
    """
    if config.engine.kind == "scripted":
        return rehearsal(config, pools)
    made: dict[str, Engine] = {}
    for role, name in owners(config).items():
        if name not in made:
            other = beside[role]
            guest = other.playing(params, 0) if isinstance(other, VllmEngine) else None
            made[name] = guest or engine(config, model, params, 0)
    return {role: made[name] for role, name in owners(config).items()}


def vllm_engine(config: Settings, model: Qwen3Config, policy: str, weights: Weights, described: Path) -> VllmEngine:
    """The servers of one policy, not started yet."""
    e, chat, dtype = config.engine, chat_for(config.tokenizer), config.model.compute_dtype
    homes = hosts(config, policy, described)  # before shared memory is taken
    store = WeightStore(functools.partial(hf.named_tensors, model, dtype=dtype), dtype, e.weights_dir)
    sync = WeightSync(
        store, scorer(config, model), vocab_size=chat.vocab_size, dtype=dtype,
        length=min(PROBE_LENGTH, e.cache_tokens - 1),  # a server wants room for one more
    )  # fmt: skip
    return VllmEngine(
        homes, sync, expected_server(config, model), weights, slots=e.slots, in_flight=e.in_flight,
        timeout_s=e.request_timeout_s, push_timeout_s=e.push_timeout_s,
    )  # fmt: skip


def expected_server(config: Settings, model: Qwen3Config) -> dict[str, object]:
    """What every server must say of itself, by field of `ServerInfo`."""
    return {
        "vocab_size": model.vocab_size, "max_model_len": config.engine.cache_tokens,
        "dtype": config.model.compute_dtype, "logprobs_mode": LOGPROBS_MODE,
        "fingerprint": chat_for(config.tokenizer).fingerprint,
    }  # fmt: skip


def hosts(config: Settings, policy: str, described: Path) -> list[Host]:
    """Where the servers of one policy live: at the URLs given for it, or in processes of our own.

    Raises ConfigError if vLLM is not installed, the GPUs do not suffice, or JAX computes on what vLLM is not built for.
    """
    e, policies = config.engine, sorted(set(owners(config).values()))
    if e.urls:
        each, at = len(e.urls) // len(policies), policies.index(policy)
        return [Attached(url, e.start_timeout_s) for url in e.urls[at * each : (at + 1) * each]]
    if (backend := jax.default_backend()) not in ("gpu", "cpu"):
        raise ConfigError(
            f"engine.kind='vllm' on {backend}: servers are started on GPUs or CPUs only; use engine.kind='jax'"
        )
    on_gpu, out = backend == "gpu", []
    for place in accelerators.places(config, policies):
        if place.policy != policy:
            continue
        try:
            gpus = (accelerators.gpu_number(place.device, os.environ.get("CUDA_VISIBLE_DEVICES")),) if on_gpu else ()
        except ValueError as error:
            raise ConfigError(str(error)) from error
        settings = ServerSettings(
            python=vllm_python(config), model=str(described), fingerprint=chat_for(config.tokenizer).fingerprint,
            dtype=config.model.compute_dtype, max_model_len=e.cache_tokens, slots=e.slots,
            device="cuda" if on_gpu else "cpu", gpus=gpus, memory_share=place.share, seed=config.seed + len(out),
        )  # fmt: skip
        log = described.parent / "servers" / f"{policy}-{len(out)}.log"
        out.append(VllmServer(settings, log, start_timeout_s=e.start_timeout_s))
    return out


def vllm_python(config: Settings) -> str:
    """The interpreter of vLLM's environment. Raises ConfigError."""
    try:
        return find_python(config.engine.python)
    except FileNotFoundError as error:
        raise ConfigError(f"engine.python={config.engine.python!r}: {error}") from error


def scorer(config: Settings, model: Qwen3Config) -> Callable[[Any, np.ndarray], np.ndarray]:
    """(params, ids [R, T]) -> [R, T - 1] log-probs of ids[:, 1:] at temperature 1, as the learner computes them."""
    judge = Learner(model, config.learner, mesh(config), zero=config.mesh.zero, temperature=1.0)

    def score(params: Any, ids: np.ndarray) -> np.ndarray:
        n = ids.shape[1]
        rows = [Trajectory(tuple(row), (False,) + (True,) * (n - 1), (0.0,) * n) for row in ids.tolist()]
        batch = pack(rows, n - 1, rows_multiple=judge.rows_multiple)
        order = np.argsort(batch.trajectory[: len(rows), 0])
        return judge.logprobs(params, batch)[: len(rows)][order]

    return score


def openai_engine(config: Settings) -> OpenAIEngine:
    """The endpoint of `engine.urls`, with the key in OPENAI_API_KEY."""
    e = config.engine
    return OpenAIEngine(
        e.urls[0], e.model, chat_for(config.tokenizer), connections=e.slots, timeout_s=e.request_timeout_s
    )  # fmt: skip


def check_tokenizer(config: Settings) -> None:
    """Raises ConfigError if the tokenizer cannot be read."""
    try:
        chat_for(config.tokenizer)
    except ValueError as error:
        raise ConfigError(f"tokenizer={config.tokenizer!r}: {error}") from error


def teacher(config: Settings) -> OpenAIEngine:
    """The endpoint of the group `teacher`, within its limits, with the key in OPENAI_API_KEY."""
    t = config.teacher
    return OpenAIEngine(
        t.url, t.model, chat_for(config.tokenizer), connections=t.concurrency, timeout_s=t.timeout_s, tries=t.tries,
        pace=Pace(t.requests_per_minute, t.tokens_per_minute),
    )  # fmt: skip


def rehearsal(config: Settings, pools: Pools, version: int = 0) -> dict[str, Engine]:
    """One scripted engine for both roles that knows the tasks of every step; never a stand-in for a trained policy."""
    tasks = [pair for step in range(config.steps) for pair in pools.train.batch_at(step)]
    engine = Rehearsal(tasks, chat_for(config.tokenizer))
    engine.version = version
    return {"designer": engine, "executor": engine}


def grader(config: Settings) -> Grader:
    return Grader(format_bonus=config.reward.format_bonus, code=config.reward.code)


def learner(config: Settings, model: Qwen3Config) -> Learner:
    settings = ml_collections.FrozenConfigDict({**config.learner.to_dict(), "call_cost": config.reward.call_cost})
    return Learner(model, settings, mesh(config), zero=config.mesh.zero, temperature=config.rollout.temperature)


def check_supported(config: Settings) -> None:
    """Raises ConfigError for a job that this version cannot do, before it asks for any file."""
    if config.engine.kind == "openai":
        raise ConfigError(
            f"engine.kind='openai' ({config.engine.urls[0]}): an endpoint gives text and not the token ids that it "
            "sampled, so nothing can be trained on its answers; train with engine.kind='jax' or 'vllm'"
        )
    if config.engine.kind == "vllm" and not config.engine.urls:
        vllm_python(config)
    if config.rollout.design and (problem := read_design(None, config.rollout.design).problem):
        raise ConfigError(f"rollout.design={config.rollout.design!r} is no script that runs: {problem}")
    if config.model.attention == "cudnn" and (why := attention_cudnn.missing()):
        raise ConfigError(f"model.attention='cudnn' {why}; model.attention='xla' runs anywhere")


def contain(config: Settings) -> str:
    """Starts the sandbox. Returns how programs are contained, in words. Raises ConfigError where it cannot be done."""
    try:
        return f"{config.sandbox} ({', '.join(sandbox.use(config.sandbox))})"
    except sandbox.SandboxFailure as failure:
        raise ConfigError(str(failure)) from failure


def check_vocabulary(config: Settings, model: Qwen3Config) -> None:
    """Raises ConfigError if the tokenizer cannot be read or knows ids that the embedding has no row for."""
    check_tokenizer(config)
    n = chat_for(config.tokenizer).vocab_size
    if n > model.vocab_size:
        raise ConfigError(f"tokenizer {config.tokenizer!r} has {n} ids but model.vocab_size is {model.vocab_size}")
