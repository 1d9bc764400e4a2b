"""Qwen3 (dense), and Qwen2 by two flags: initialisation and forward pass over the parameter tree of `parameters`."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import Array
from jax.ad_checkpoint import checkpoint_policies
from jax.sharding import Mesh

from metaagent_x.model import attention as attention_lib
from metaagent_x.model import sharding
from metaagent_x.model.numerics import linear, rms_norm, rope, rotations, swiglu
from metaagent_x.model.parameters import Params, Qwen3Config, abstract_params, split_params

__all__ = ["Params", "Qwen3Config", "abstract_params", "cast", "embed_tokens", "forward", "init", "layer_forward"]

Attend = Callable[[Array, Array, Array], Array]

# What one layer keeps for the backward pass. "block": the two attention results, so that the quadratic part is never
# run twice while everything linear in the length is recomputed. "full": nothing but the layer's input.
REMAT_POLICIES = {
    "block": checkpoint_policies.save_only_these_names(*attention_lib.SAVED_NAMES),
    "full": checkpoint_policies.nothing_saveable,
}


def init(config: Qwen3Config, key: Array, mesh: Mesh | None = None) -> Params:
    """Draws float32 master weights; under a mesh each device makes only its own part.

    The values depend on `key` and `config` alone, not on the mesh (jax-ml/jax#40232).
    """
    placed = sharding.param_shardings(config, mesh) if mesh is not None else None
    # Run once, so not worth optimising: on a CPU the compiler would take four times as long as without this.
    quick = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    return jax.jit(split_params, static_argnums=0, out_shardings=placed, compiler_options=quick)(config, key)


def cast(params: Params, dtype: jax.typing.DTypeLike) -> Params:
    """Returns the tree in another float dtype (a no-op where it has it already)."""
    return jax.tree.map(lambda x: x.astype(dtype), params)


def layer_forward(layer: Params, config: Qwen3Config, x: Array, turns: tuple[Array, Array], attend: Attend) -> Array:
    """One layer, shared by training, prefill and decoding.

    Args:
        layer: one layer's parameters in compute dtype, no leading axis.
        config: the network's sizes.
        x: [..., D] residual stream.
        turns: of `rotations` at the positions [...].
        attend: maps rotated q [..., H, d], k [..., K, d] and v [..., K, d] to [..., H, d].

    Returns:
        [..., D].
    """
    h = rms_norm(x, layer["attn_norm"], config.rms_norm_eps)
    q, k, v = (linear(h, layer[name]) for name in "qkv")
    if config.qkv_bias:
        q, k, v = q + layer["q_bias"], k + layer["k_bias"], v + layer["v_bias"]
    if config.qk_norm:
        q, k = rms_norm(q, layer["q_norm"], config.rms_norm_eps), rms_norm(k, layer["k_norm"], config.rms_norm_eps)
    mixed = attend(rope(q, turns), rope(k, turns), v)
    x = x + linear(mixed, layer["o"], 2)
    h = rms_norm(x, layer["mlp_norm"], config.rms_norm_eps)
    gated = swiglu(linear(h, layer["gate"]), linear(h, layer["up"]))
    return x + linear(gated, layer["down"])


def embed_tokens(params: Params, config: Qwen3Config, tokens: Array) -> Array:
    """Looks tokens up: [...] -> [..., D]. Casts after the look-up, so that its gradient adds up in float32."""
    return params["embed"][tokens].astype(config.dtype)


def forward(
    params: Params,
    config: Qwen3Config,
    tokens: Array,
    positions: Array,
    segment_ids: Array,
    *,
    embedded: Array | None = None,
    turns: tuple[Array, Array] | None = None,
) -> Array:
    """Runs the network over packed rows.

    A token attends to itself and to the tokens of its own segment at smaller positions. Segment 0 is padding: its
    outputs are finite and mean nothing.

    Args:
        params: the tree of `init` (float32 master weights).
        config: the network's sizes and numerics.
        tokens: [B, T] ids.
        positions: [B, T]; within a segment they rise from left to right (the first token of a trajectory has 0).
        segment_ids: [B, T]; equal ids in a row belong together.
        embedded: [B, T, D] of `embed_tokens`, for a caller that differentiates by it; looked up here by default.
        turns: of `rotations` at `positions`, for a caller that has them; computed here by default.

    Returns:
        hidden [B, T, D] in compute dtype, after the final norm; `logprobs` turns it into scores.

    Raises:
        ValueError: the three inputs differ in shape or are not [B, T].
    """
    if tokens.ndim != 2 or not tokens.shape == positions.shape == segment_ids.shape:
        raise ValueError(
            f"tokens {tokens.shape}, positions {positions.shape} and segment_ids {segment_ids.shape} must share one "
            "shape [B, T]"
        )

    table = turns or rotations(positions, config.head_dim, config.rope_theta)

    def attend(q: Array, k: Array, v: Array) -> Array:
        return attention_lib.attention(q, k, v, segment_ids, positions, kernel=config.attention)

    def body(x: Array, layer: Params) -> tuple[Array, None]:
        return sharding.constrain_batch(layer_forward(layer, config, x, table, attend)), None

    if config.remat != "none":
        body = jax.checkpoint(body, policy=REMAT_POLICIES[config.remat], prevent_cse=False)
    x = sharding.constrain_batch(embed_tokens(params, config, tokens) if embedded is None else embedded)
    # One cast for all layers: casting inside the scan would read the float32 weights once more per layer and pass.
    x, _ = jax.lax.scan(body, x, cast(params["layers"], config.dtype), unroll=config.unroll)
    return rms_norm(x, params["norm"], config.rms_norm_eps)
