"""What a Hugging Face folder says beside its tensors: the network, how completions end, the tokenizer.

A description is read as it stands, or refused by name: nothing that changes the computation is guessed or ignored.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from metaagent_x.model.parameters import COMPUTE_DTYPES, Qwen3Config

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt",
)  # fmt: skip

# model_type -> (architecture, qk_norm, qkv_bias)
_FAMILIES = {"qwen3": ("Qwen3ForCausalLM", True, False), "qwen2": ("Qwen2ForCausalLM", False, True)}
# Our field -> its name in config.json.
_FIELDS = {
    "vocab_size": "vocab_size", "hidden_size": "hidden_size", "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads", "num_kv_heads": "num_key_value_heads",
    "intermediate_size": "intermediate_size", "rms_norm_eps": "rms_norm_eps", "tie_embeddings": "tie_word_embeddings",
    "max_positions": "max_position_embeddings",
}  # fmt: skip
# What would change the computation, with the values under which it does not.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",), "attention_bias": (None, False), "use_sliding_window": (None, False),
    "partial_rotary_factor": (None, 1.0), "quantization_config": (None,),
}  # fmt: skip


class WeightsError(ValueError):
    """A folder that cannot be read, or weights that cannot be written. Names the file, the thing and both values."""


def dtype_name(dtype: jax.typing.DTypeLike) -> str:
    """The name of a dtype that parameters may have. Raises WeightsError for any other."""
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if name not in COMPUTE_DTYPES:
        raise WeightsError(f"dtype is {name!r}; weights are kept as one of {', '.join(COMPUTE_DTYPES)}")
    return name


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises WeightsError if there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"cannot read {path}: {error}; give a Hugging Face folder with this file") from error
    if not isinstance(found, dict):
        raise WeightsError(f"{path} holds a {type(found).__name__}, not an object")
    return found


def read_config(folder: Path | str, compute_dtype: str = "float32") -> Qwen3Config:
    """Reads `config.json`.

    Raises:
        WeightsError: no such file; a network that is not Qwen3 or Qwen2 (dense, full attention, plain RoPE); a size
            that is missing or cannot work; a RoPE base that is missing, or given twice with different values.
    """
    path = Path(folder) / "config.json"
    raw = read_json(path)
    family = raw.get("model_type")
    if family not in _FAMILIES:
        raise WeightsError(f"{path}: model_type is {family!r}; only {', '.join(_FAMILIES)} can be read")
    architecture, qk_norm, qkv_bias = _FAMILIES[family]
    if raw.get("architectures") not in (None, [architecture]):
        raise WeightsError(f"{path}: architectures is {raw['architectures']!r}; only {[architecture]!r} can be read")
    for name, neutral in _NEUTRAL.items():
        if (value := raw.get(name, neutral[0])) not in neutral:
            raise WeightsError(f"{path}: {name} is {value!r}; this network has {neutral[-1]!r} only")
    if other := sorted(set(raw.get("layer_types") or ()) - {"full_attention"}):
        raise WeightsError(f"{path}: layer_types has {other[0]!r}; this network has 'full_attention' only")
    if missing := [theirs for theirs in _FIELDS.values() if raw.get(theirs) is None]:
        raise WeightsError(f"{path} does not give {missing[0]}")
    given = {ours: raw[theirs] for ours, theirs in _FIELDS.items()}
    try:
        return Qwen3Config(
            **given, head_dim=_head_dim(path, raw), rope_theta=_rope_theta(path, raw), qk_norm=qk_norm,
            qkv_bias=qkv_bias, compute_dtype=compute_dtype,
        )  # fmt: skip
    except TypeError as error:
        raise WeightsError(f"{path}: a value is of the wrong type: {error}") from error
    except ValueError as error:
        raise error if isinstance(error, WeightsError) else WeightsError(f"{path}: {error}") from error


def _head_dim(path: Path, raw: dict[str, Any]) -> int:
    """As given; only where it is not, the hidden size over the heads."""
    if raw.get("head_dim") is not None:
        return raw["head_dim"]
    width, rest = divmod(raw["hidden_size"], raw["num_attention_heads"])
    if rest:
        raise WeightsError(
            f"{path} gives no head_dim, and its hidden_size {raw['hidden_size']} is not a multiple of its "
            f"num_attention_heads {raw['num_attention_heads']}"
        )
    return width


def _rope_theta(path: Path, raw: dict[str, Any]) -> float:
    """The base of the rotary positions: at top level (older files), nested (newer ones), or in both if equal."""
    bases = {"rope_theta": raw.get("rope_theta")}
    for section in ("rope_parameters", "rope_scaling"):
        nested = raw.get(section) or {}
        kind = nested.get("rope_type", nested.get("type", "default"))
        if kind != "default":
            raise WeightsError(f"{path}: {section} has rope_type {kind!r}; this network has 'default' only")
        if (part := nested.get("partial_rotary_factor", 1.0)) != 1.0:
            raise WeightsError(f"{path}: {section} has partial_rotary_factor {part!r}; this network has 1.0 only")
        bases[f"{section}.rope_theta"] = nested.get("rope_theta")
    bases = {name: base for name, base in bases.items() if base is not None}
    if not bases:
        raise WeightsError(f"{path} gives no rope_theta, at top level or in rope_parameters; no value can be assumed")
    if len(set(bases.values())) > 1:
        raise WeightsError(f"{path} contradicts itself: {', '.join(f'{n} is {b!r}' for n, b in bases.items())}")
    return float(next(iter(bases.values())))


def write_description(
    folder: Path, config: Qwen3Config, dtype: str, tokenizer: Path | str | None = None, stop_ids: Sequence[int] = ()
) -> None:
    """Writes everything but the tensors: `config.json`, `generation_config.json`, the tokenizer's files.

    RoPE base and dtype stand under the names of older and newer readers. Generation is plain sampling, whatever the
    folder of origin had: an engine that takes its defaults from here samples what was trained.

    Args:
        folder: exists.
        config: the network; what says how it runs (`EXECUTION`) is not written.
        dtype: of the tensors.
        tokenizer: a folder whose tokenizer files and chat template are copied.
        stop_ids: ids that end a completion, the turn's end first and the padding id last.

    Raises:
        WeightsError: a combination of flags that no published architecture has.
    """
    families = {tuple(flags): (family, architecture) for family, (architecture, *flags) in _FAMILIES.items()}
    if (config.qk_norm, config.qkv_bias) not in families:
        raise WeightsError(
            f"no published architecture has qk_norm={config.qk_norm} with qkv_bias={config.qkv_bias}; Qwen3 has True "
            "with False, Qwen2 False with True"
        )
    family, architecture = families[config.qk_norm, config.qkv_bias]
    network = {
        "architectures": [architecture],
        "model_type": family,
        **{theirs: getattr(config, ours) for ours, theirs in _FIELDS.items()},
        "head_dim": config.head_dim,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": config.num_layers,
        "dtype": dtype,
        "torch_dtype": dtype,
    }
    ends: dict[str, Any] = {}
    if stop_ids:
        network |= {"eos_token_id": stop_ids[0], "pad_token_id": stop_ids[-1]}
        ends = {"eos_token_id": list(stop_ids), "pad_token_id": stop_ids[-1]}
    sampling = {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}
    for name, content in (("config.json", network), ("generation_config.json", ends | sampling)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    if tokenizer is not None:
        for name in TOKENIZER_FILES:
            if (source := Path(tokenizer) / name).exists():
                shutil.copyfile(source, folder / name)
