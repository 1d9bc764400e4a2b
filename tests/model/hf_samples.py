"""Small Hugging Face folders for tests, written without the project's writer, and rows to score with them."""

import functools
import json
import zlib
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from metaagent_x.model import logprobs, qwen3


def raw_config(family="qwen3", theta=1e6, nested=True, **changes):
    """A `config.json` as the hub has it; the RoPE base nested as newer files do, or at top level as older ones."""
    rope = {"rope_parameters": {"rope_theta": theta, "rope_type": "default"}} if nested else {"rope_theta": theta}
    raw = {
        "architectures": [{"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM"}[family]], "model_type": family,
        "hidden_act": "silu", "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": None, "initializer_range": 0.02,
        **rope,
    }  # fmt: skip
    if family == "qwen3":
        raw |= {"head_dim": 16, "attention_bias": False}
    return raw | changes


# Networks that must equal transformers: every ratio of heads, both families, both places of the RoPE base.
CONFIGS = {
    "one_key_head": raw_config(num_key_value_heads=1),
    "as_many_key_heads": raw_config(num_key_value_heads=4),
    "heads_times_width_is_hidden": raw_config(head_dim=8),
    "two_heads": raw_config(num_attention_heads=2, num_key_value_heads=1, head_dim=24),
    "wide_heads": raw_config(head_dim=32, num_attention_heads=6, num_key_value_heads=3),
    "ffn_is_hidden": raw_config(intermediate_size=32, head_dim=8, num_key_value_heads=4),
    "untied": raw_config(tie_word_embeddings=False),
    "base_5e6": raw_config(theta=5e6, tie_word_embeddings=False),
    "base_at_top_level": raw_config(theta=5e6, nested=False),
    "three_layers_large_eps": raw_config(num_hidden_layers=3, rms_norm_eps=1e-3, vocab_size=37),
    "odd_sizes": raw_config(
        hidden_size=30, intermediate_size=50, num_attention_heads=5, num_key_value_heads=1, head_dim=6
    ),
    "qwen2": raw_config("qwen2"),
    "qwen2_untied": raw_config("qwen2", nested=False, tie_word_embeddings=False, num_key_value_heads=1),
    "qwen2_as_many_key_heads": raw_config("qwen2", theta=1e4, num_key_value_heads=4),
}  # fmt: skip


def shapes(raw):
    """Name -> shape of every tensor that the hub's folder of this network has."""
    dim, ffn, heads = raw["hidden_size"], raw["intermediate_size"], raw["num_attention_heads"]
    width = raw.get("head_dim") or dim // heads
    q, kv = heads * width, raw["num_key_value_heads"] * width
    out = {"model.embed_tokens.weight": (raw["vocab_size"], dim), "model.norm.weight": (dim,)}
    for i in range(raw["num_hidden_layers"]):
        layer = {
            "input_layernorm.weight": (dim,), "post_attention_layernorm.weight": (dim,),
            "self_attn.q_proj.weight": (q, dim), "self_attn.k_proj.weight": (kv, dim),
            "self_attn.v_proj.weight": (kv, dim), "self_attn.o_proj.weight": (dim, q),
            "mlp.gate_proj.weight": (ffn, dim), "mlp.up_proj.weight": (ffn, dim), "mlp.down_proj.weight": (dim, ffn),
        }  # fmt: skip
        if raw["model_type"] == "qwen3":
            layer |= {"self_attn.q_norm.weight": (width,), "self_attn.k_norm.weight": (width,)}
        else:
            layer |= {f"self_attn.{n}_proj.bias": (size,) for n, size in (("q", q), ("k", kv), ("v", kv))}
        out |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return out if raw["tie_word_embeddings"] else out | {"lm_head.weight": (raw["vocab_size"], dim)}


def tensors(raw, dtype="float32"):
    """Random values, each tensor's own; norm scales around 1, so that forgetting one shows."""
    out = {}
    for name, shape in shapes(raw).items():
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        values = rng.uniform(0.5, 1.5, shape) if "norm" in name else rng.normal(size=shape) * 0.2
        out[name] = values.astype("float32").astype(dtype)
    return out


def write(folder, raw, given=None, files=1):
    """Writes a folder; with `files` above 1, that many shards and an index."""
    folder, given = Path(folder), tensors(raw) if given is None else given
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    if files == 1:
        save_file(given, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    names = [f"model-{i + 1:05d}-of-{files:05d}.safetensors" for i in range(files)]
    where = {name: names[i % files] for i, name in enumerate(sorted(given))}
    for file in names:
        save_file({n: given[n] for n in given if where[n] == file}, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


# Where the segments of `packed` stand: two share a row, which ends in padding; the third has one of its own.
PARTS = ((0, slice(0, 7)), (0, slice(7, 13)), (1, slice(0, 11)))


class Packed(NamedTuple):
    """Arrays [2, 15]. `weights` are of both signs, as advantages are; 0 where no next token of the segment follows."""

    tokens: np.ndarray
    positions: np.ndarray
    segments: np.ndarray
    weights: np.ndarray


def packed(raw):
    """Two rows of random tokens and loss weights."""
    rng = np.random.default_rng(0)
    batch = Packed(
        rng.integers(0, raw["vocab_size"], (2, 15)), *(np.zeros((2, 15), kind) for kind in (int, int, float))
    )
    for i, (row, part) in enumerate(PARTS):
        length = part.stop - part.start
        batch.positions[row, part], batch.segments[row, part] = np.arange(length), i + 1
        batch.weights[row, part.start : part.stop - 1] = rng.normal(size=length - 1) / 15
    return batch


@functools.partial(jax.jit, static_argnums=1)
def logits(params, config, tokens, positions, segments):
    return logprobs.head_logits(params, config, qwen3.forward(params, config, tokens, positions, segments))


@functools.partial(jax.jit, static_argnums=1)
def loss_and_gradients(params, config, batch):
    """-sum of weight times log-prob of the next token, and its gradient."""

    def loss(params):
        hidden = qwen3.forward(params, config, batch.tokens, batch.positions, batch.segments)
        targets = jnp.roll(batch.tokens, -1, axis=1)
        return -jnp.sum(batch.weights * logprobs.token_logprobs(params, config, hidden, targets))

    return jax.value_and_grad(loss)(params)


def projections(grads):
    """[tensors, 3], by name: weighted sums of each gradient, which no permutation of its values leaves alone."""
    out = []
    for name in sorted(grads):
        grad = np.asarray(grads[name], np.float64).ravel()
        weights = np.random.default_rng(zlib.crc32(name.encode())).normal(size=(3, grad.size))
        out.append(weights @ grad / grad.size**0.5)
    return np.array(out, "float32")


def norm_inputs():
    """x [20, 64] and scale [64] in bfloat16."""
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in ((20, 64), (64,)))
