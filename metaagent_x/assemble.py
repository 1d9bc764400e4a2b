"""Builds the parts of a job from its settings: model, learner, engines, grader."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import ml_collections

from metaagent_x import sandbox
from metaagent_x.config import ConfigError, Settings, base
from metaagent_x.data import Pools
from metaagent_x.learner.step import Learner
from metaagent_x.model import attention_cudnn, hf, qwen3
from metaagent_x.model.qwen3 import Params, Qwen3Config
from metaagent_x.model.sharding import make_mesh
from metaagent_x.rollout.collect import chat_for
from metaagent_x.rollout.engine import Engine
from metaagent_x.rollout.jax_engine import JaxEngine
from metaagent_x.rollout.rehearsal import Rehearsal
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
        if name in ("compute_dtype", "attention", "remat"):  # how it runs is for the settings to say
            continue
        here, there = config.model[name], getattr(found, name)
        if here not in (default[name], there):
            raise ConfigError(f"model.{name}={here}, but model.path={path!r} has {there}; leave model.{name} out")
        config.model[name] = there
    config.tokenizer = config.tokenizer or path


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


def engines(
    config: Settings, pools: Pools, model: Qwen3Config, params: Mapping[str, Any], version: int
) -> dict[str, Engine]:
    """The engine of every role; one object where one policy plays both. `params`: weights by policy name."""
    if config.engine.kind == "scripted":
        return rehearsal(config, pools)
    made = {name: engine(config, model, weights, version) for name, weights in params.items()}
    return {role: made[name] for role, name in owners(config).items()}


def rehearsal(config: Settings, pools: Pools) -> dict[str, Engine]:
    """One scripted engine for both roles that knows the tasks of every step; never a stand-in for a trained policy."""
    tasks = [pair for step in range(config.steps) for pair in pools.train.batch_at(step)]
    engine = Rehearsal(tasks, chat_for(config.tokenizer))
    return {"designer": engine, "executor": engine}


def grader(config: Settings) -> Grader:
    return Grader(format_bonus=config.reward.format_bonus, code=config.reward.code)


def learner(config: Settings, model: Qwen3Config) -> Learner:
    settings = ml_collections.FrozenConfigDict({**config.learner.to_dict(), "call_cost": config.reward.call_cost})
    return Learner(model, settings, mesh(config), temperature=config.rollout.temperature)


def check_supported(config: Settings) -> None:
    """Raises ConfigError for a job that this version cannot do, before it asks for any file."""
    if config.engine.kind == "vllm":
        raise ConfigError(
            "engine.kind='vllm': this version has no vLLM engine. The settings themselves are valid. "
            "engine.kind='jax' is built in and plays any model, at a speed for small ones"
        )
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
    try:
        n = chat_for(config.tokenizer).vocab_size
    except ValueError as error:
        raise ConfigError(f"tokenizer={config.tokenizer!r}: {error}") from error
    if n > model.vocab_size:
        raise ConfigError(f"tokenizer {config.tokenizer!r} has {n} ids but model.vocab_size is {model.vocab_size}")
