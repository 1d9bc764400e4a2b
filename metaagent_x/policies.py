"""What `--model=` may name, for jobs that only play a policy: a run, a folder of weights, an endpoint."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import jax

from metaagent_x import assemble
from metaagent_x.config import ConfigError, Settings, base, get
from metaagent_x.learner.checkpoint import MANIFEST, CheckpointError, Checkpoints
from metaagent_x.model import hf
from metaagent_x.model.parameters import EXECUTION, abstract_params
from metaagent_x.rollout.engine import Engine
from metaagent_x.run_folder import DESCRIPTION, flatten

# What a policy was trained with and has to be played with, taken from its run.
OF_THE_RUN = (
    "policy", "model.compute_dtype", "model.attention", "rollout.prompts", "rollout.max_prompt_tokens",
    "rollout.max_designer_tokens", "rollout.max_executor_tokens", "rollout.forbid_answer_in_script",
    *(f"rollout.budget.{name}" for name in base().rollout.budget),
    "engine.kind", "engine.slots", "engine.cache_tokens", "engine.chunk", "engine.python", "engine.memory_share",
    "engine.request_timeout_s", "engine.push_timeout_s", "engine.start_timeout_s",
)  # fmt: skip
SIZES = {(2560, 36): "4B", (4096, 36): "8B"}  # hidden size and layers of the networks that the paper has figures for


@dataclasses.dataclass(frozen=True)
class Policy:
    """Who plays.

    Attributes:
      kind: where it comes from. name: as it was given. step: of a run's checkpoint; 0 for others.
    """

    kind: Literal["run", "folder", "endpoint"]
    name: str
    step: int

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f", step {self.step}" if self.kind == "run" else "")

    @property
    def label(self) -> str:
        """A short name that is fit for a folder: "tiny-step-64"."""
        last = re.sub(r"^https?://", "", self.name).rstrip("/") if self.kind == "endpoint" else Path(self.name).name
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.") or "model"
        return f"{safe}-step-{self.step}" if self.kind == "run" else safe


def adopt(config: Settings, engine: str | None = None) -> Policy:
    """Makes the settings say what `evaluate.model` is. Where they differ from their defaults, somebody chose so.

    From a run come the network, the tokenizer, prompts, lengths, budgets and the engine's shape; from a folder of
    weights the network and the tokenizer. `evaluate.step` becomes the step that is played, `evaluate.weights` a hash of
    what the folder of weights looks like, or of the checksums of that step.

    Args:
      engine: what somebody asked for by name, also if that is the default; an endpoint is one in any case.

    Raises:
      ConfigError: it is none of the three, or cannot be read, or an endpoint without the tokenizer to cut prompts with.
    """
    name = config.evaluate.model
    if not name:
        raise ConfigError("no model; give a run folder, a Hugging Face folder or a URL: --model=runs/tiny")
    if name.startswith(("http://", "https://")):
        return _endpoint(config, name)
    path = Path(name)
    if (path / "checkpoints").is_dir() and (path / "config.json").is_file():
        return _run(config, path, name, engine)
    if (path / "config.json").is_file():
        config.model.path = name
        assemble.adopt_weights(config)
        files = sorted(f for f in path.iterdir() if f.suffix in (".json", ".safetensors"))
        stats = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files]
        config.evaluate.weights = hashlib.sha256(json.dumps(stats).encode()).hexdigest()[:16]
        return Policy("folder", name, 0)
    raise ConfigError(
        f"--model={name} is no run folder (config.json and checkpoints/), no Hugging Face folder (config.json and "
        "weights) and no URL (http://HOST/v1)"
    )


async def engines(config: Settings, policy: Policy, folder: Path) -> dict[str, Engine]:
    """The engine of every role, started, with the weights of the policy.

    Args:
      folder: where the network is described for servers, and their logs lie.

    Raises:
      ConfigError, EngineRefused: as `assemble.engines`. EngineFailure: a server did not start.
      CheckpointError: a checkpoint is damaged, or not of this network.
    """
    if policy.kind == "endpoint":
        return await assemble.engines(config, None, assemble.model_config(config), {}, 0, folder)
    model, names = assemble.model_config(config), sorted(set(assemble.owners(config).values()))
    if policy.kind == "folder":
        params: Mapping[str, Any] = dict.fromkeys(names, assemble.weights(config, model, assemble.mesh(config)))
    else:
        saved = Checkpoints(Path(policy.name) / "checkpoints", read_only=True)
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        template = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), abstract_params(model)[0]
        )
        params = {name: saved.restore_params(policy.step, name, template) for name in names}
    described = folder / DESCRIPTION
    if config.engine.kind == "vllm":
        folder.mkdir(parents=True, exist_ok=True)
        assemble.describe(described, model, config.tokenizer)
    return await assemble.engines(config, None, model, params, policy.step, described)


def published_size(config: Settings, policy: Policy) -> str:
    """Which of the paper's models this is by its network: "4B", "8B", or "" for none of them."""
    if config.evaluate.published or policy.kind == "endpoint":
        return config.evaluate.published
    return SIZES.get((config.model.hidden_size, config.model.num_layers), "")


def _endpoint(config: Settings, url: str) -> Policy:
    config.engine.kind, config.engine.urls = "openai", (url,)
    if not config.engine.model:
        raise ConfigError(f"--model={url}: which of its models? Name it: --config.engine.model=NAME")
    if not config.tokenizer:
        raise ConfigError(
            f"--model={url}: prompts are measured and cut in tokens; name a folder with the model's tokenizer.json: "
            "--config.tokenizer=FOLDER"
        )
    return Policy("endpoint", url, 0)


def _run(config: Settings, path: Path, name: str, engine: str | None) -> Policy:
    default = base("evaluate")
    try:
        run = flatten(json.loads((path / "config.json").read_text()))
        network = hf.read_config(path / DESCRIPTION)
        saved = Checkpoints(path / "checkpoints", read_only=True)
        step = saved.latest() if config.evaluate.step < 0 else config.evaluate.step
        if step is None:
            raise ConfigError(f"--model={name} has no complete checkpoint yet")
        if step not in saved.steps():
            raise ConfigError(f"--model={name} has no checkpoint of step {step}; it has {saved.steps()}")
        sums = (saved.folder / str(step) / MANIFEST).read_bytes()  # of every leaf; a score is added beside it later
    except (OSError, ValueError, hf.WeightsError, CheckpointError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"--model={name}: not readable as a run: {error}") from error
    for field in OF_THE_RUN:
        if field not in run or get(config, field) != get(default, field):
            continue
        if field == "engine.kind" and (engine or run[field] == "scripted"):  # rehearsed: no way to play weights
            continue
        config.update_from_flattened_dict({field: run[field]})
    for field in dataclasses.fields(network):
        if field.name not in EXECUTION:
            config.model[field.name] = getattr(network, field.name)
    config.tokenizer = config.tokenizer or str(path / DESCRIPTION)
    config.evaluate.step, config.evaluate.weights = step, hashlib.sha256(sums).hexdigest()[:16]
    return Policy("run", name, step)
