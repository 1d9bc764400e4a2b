"""What training this network costs, by formula: FLOPs, bytes in memory, bytes between devices.

Pure functions of sizes. Tests hold them against hand-worked numbers and against the compiled program (`program.py`).
FLOPs are those of matrix products, two per multiplied pair; everything else is below one percent.
"""

from __future__ import annotations

import math

import numpy as np

from metaagent_x.model.attention import tile_size
from metaagent_x.model.attention_cudnn import MAX_SEGMENTS
from metaagent_x.model.parameters import Qwen3Config

MASTER = 4  # bytes of a float32 value
MOMENTS = 2  # of Adam, in float32


def layer_weights(config: Qwen3Config) -> int:
    """Values in the matrices of one layer."""
    c = config
    attention = c.hidden_size * c.head_dim * (2 * c.num_heads + 2 * c.num_kv_heads)
    return attention + 3 * c.hidden_size * c.intermediate_size


def head_weights(config: Qwen3Config) -> int:
    """Values in the output matrix (the embedding, if tied)."""
    return config.vocab_size * config.hidden_size


def weights(config: Qwen3Config) -> int:
    """Values in all parameters."""
    c = config
    norms = c.num_layers * (2 * c.hidden_size + 2 * c.head_dim * c.qk_norm) + c.hidden_size
    biases = c.num_layers * c.head_dim * (c.num_heads + 2 * c.num_kv_heads) * c.qkv_bias
    tables = head_weights(c) * (1 if c.tie_embeddings else 2)
    return c.num_layers * layer_weights(c) + tables + norms + biases


def attention_pairs(length: int, tile: int | None = None) -> int:
    """(query, key) pairs of one head in one row that attention computes: by tiles up to the diagonal.

    `tile` is the largest tile; by default what `attention` takes on this backend.
    """
    size = tile_size(length, tile)
    tiles = math.ceil(length / size)
    return tiles * (tiles + 1) // 2 * size * size


def model_flops(config: Qwen3Config, rows: int, length: int) -> int:
    """Training FLOPs that the network itself asks for, whatever a program does: the numerator of MFU.

    Three forward passes, the head at every position, attention over the causal half, rows of one segment. Nothing that
    is computed a second time counts.
    """
    c, tokens = config, rows * length
    attention = 4 * c.num_layers * c.num_heads * c.head_dim * length // 2
    return 3 * tokens * (2 * (c.num_layers * layer_weights(c) + head_weights(c)) + attention)


def score_flops(config: Qwen3Config, rows: int, length: int, scored: int) -> int:
    """FLOPs of the log-prob pass: one forward pass and the head at `scored` positions of every row."""
    c = config
    pairs = 4 * c.num_heads * c.head_dim * attention_pairs(length)
    layer = 2 * length * layer_weights(c) + pairs
    return rows * (c.num_layers * layer + 2 * scored * head_weights(c))


def train_flops(config: Qwen3Config, rows: int, length: int, scored: int) -> int:
    """FLOPs of one forward and backward pass as it is programmed, with what it computes a second time.

    Matrices: twice the forward pass, and under remat once more all whose result the backward pass reads (not the last
    one of a layer). Attention recomputes its scores in the backward pass: 5 products for 2, with remat "full" 7. The
    head recomputes its logits (unless one chunk holds all that is scored).
    """
    c = config
    product = 2 * c.num_heads * c.head_dim * attention_pairs(length)  # scores or mixing, once
    attention = product * (2 + 5 + (2 if c.remat == "full" else 0))
    last = c.hidden_size * c.intermediate_size
    recomputed = 0 if c.remat == "none" else layer_weights(c) - last
    layer = 2 * length * (3 * layer_weights(c) + recomputed) + attention
    return rows * (c.num_layers * layer + 4 * 2 * scored * head_weights(c))


def saved_bytes(config: Qwen3Config, rows: int, length: int, tensor: int = 1) -> int | None:
    """Bytes that the layers keep from the forward to the backward pass; None with remat "none", where XLA decides.

    Every layer's input, whole; with remat "block" also what attention returned and its float32 log-sum-exp (by tiles
    once, by cuDNN for as many segments as a row may have), its heads split over `tensor` devices.
    """
    c, size = config, np.dtype(config.dtype).itemsize
    if c.remat == "none":
        return None
    kept = c.hidden_size * size
    if c.remat == "block":
        copies = MAX_SEGMENTS if c.attention == "cudnn" else 1
        kept += c.num_heads // tensor * (c.head_dim * size + MASTER * copies)
    return rows * length * c.num_layers * kept


def wire_bytes(kind: str, amount: float, group: int) -> float:
    """Bytes that every device sends in a collective on a ring of `group` devices.

    Args:
      kind: as XLA calls it.
      amount: bytes of the whole array: gathered, reduced, or before it is scattered.
      group: devices that take part.

    Raises:
      ValueError: an unknown kind.
    """
    rounds = {"all-gather": 1, "reduce-scatter": 1, "all-to-all": 1, "all-reduce": 2}
    if kind == "collective-permute":
        return float(amount)
    if kind not in rounds:
        raise ValueError(f"collective {kind!r} is not one of {', '.join([*rounds, 'collective-permute'])}")
    return rounds[kind] * amount * (group - 1) / group


def fsdp_bytes(config: Qwen3Config, fsdp: int, *, backward: bool) -> float:
    """Bytes that every device sends under ZeRO stage 3 in one pass over one micro-batch where only `fsdp` splits the
    weights.

    Every matrix is gathered in compute dtype, those of the layers once more for the backward pass, which comes to the
    head at once. Gradients are reduced and scattered: of the layers in compute dtype, of the head in float32. Embedded
    tokens travel instead of the embedding; they are left out, about one percent at 16,384 tokens a device.
    """
    c, size = config, np.dtype(config.dtype).itemsize
    layers, head = c.num_layers * layer_weights(c), head_weights(c)
    gathered = (layers * (2 if backward else 1) + head) * size
    sent = wire_bytes("all-gather", gathered, fsdp)
    if backward:
        sent += wire_bytes("reduce-scatter", layers * size + head * MASTER, fsdp)
    return sent


def gathered_bytes(config: Qwen3Config) -> int:
    """Bytes of all matrices as ZeRO stage 1 gathers them: layers in compute dtype, tables of the vocabulary in float32
    (they are looked up and multiplied, and their gradient is added up from both)."""
    c = config
    tables = head_weights(c) * (1 if c.tie_embeddings else 2)
    return c.num_layers * layer_weights(c) * np.dtype(c.dtype).itemsize + tables * MASTER


def exchange_bytes(config: Qwen3Config, fsdp: int, *, backward: bool) -> float:
    """Bytes that every device sends under ZeRO stage 1 in a program over any number of micro-batches, where only `fsdp`
    splits the weights: each matrix gathered once, and its float32 gradient reduced and scattered once."""
    sent = wire_bytes("all-gather", gathered_bytes(config), fsdp)
    if backward:
        tables = head_weights(config) * (1 if config.tie_embeddings else 2)
        matrices = config.num_layers * layer_weights(config) + tables
        sent += wire_bytes("reduce-scatter", matrices * MASTER, fsdp)
    return sent


def optimizer_bytes(config: Qwen3Config) -> int:
    """Bytes of memory that one optimizer update reads and writes, on all devices together.

    Gradient read; weight and two moments read and written.
    """
    return weights(config) * MASTER * (1 + 2 * (1 + MOMENTS))


def cache_bytes(config: Qwen3Config) -> int:
    """Bytes of the keys and values of one token, in compute dtype."""
    c = config
    return 2 * c.num_layers * c.num_kv_heads * c.head_dim * np.dtype(c.dtype).itemsize


def decode_seconds(config: Qwen3Config, sequences: int, context: float, bandwidth: float) -> float:
    """The shortest time in which one device draws one token of each sequence: all weights are read once, and the keys
    and values of every sequence. What it computes meanwhile is far below what it could.

    Args:
      sequences: decoded together. context: mean tokens before the one that is drawn. bandwidth: of memory, bytes/s.
    """
    looked_up = 0 if config.tie_embeddings else head_weights(config) * np.dtype(config.dtype).itemsize  # a row a token
    return (serving_bytes(config) - looked_up + sequences * context * cache_bytes(config)) / bandwidth


def serving_bytes(config: Qwen3Config) -> int:
    """Bytes of all weights in compute dtype: what an engine holds, and what every push brings."""
    return weights(config) * np.dtype(config.dtype).itemsize


def engine_bytes(config: Qwen3Config, slots: int, length: int) -> int:
    """Bytes of one built-in engine on its device: weights, keys and values of all slots, in compute dtype."""
    return serving_bytes(config) + cache_bytes(config) * slots * length
