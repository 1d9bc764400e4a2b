"""Builds the parts of a job from its settings: model, learner, engines, grader."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import ml_collections

from metaagent_x import sandbox
from metaagent_x.config import ConfigError, Settings
from metaagent_x.data import Pools
from metaagent_x.learner.step import Learner
from metaagent_x.model.qwen3 import Qwen3Config
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
    if config.model.path:
        raise ConfigError(
            f"model.path={config.model.path!r}: this version cannot read Hugging Face weights and has no vLLM engine, "
            "and a network of this size needs both. The settings themselves are valid. An empty model.path is a random "
            "network, cold-started on generated examples (configs/tiny.py)"
        )


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
