"""Settings and parameters of the network.

The NNX modules below are the one place that holds shapes, initialisers and logical axes. Everything that computes is
a plain function over the pytree of arrays split from them, so that jit, scan, donation and checkpoints see arrays only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from metaagent_x.model import attention_cudnn
from metaagent_x.model.attention import KERNELS

Params = dict[str, Any]

COMPUTE_DTYPES = ("float32", "bfloat16")
REMAT = ("none", "block", "full")
EXECUTION = ("compute_dtype", "attention", "remat", "unroll")  # fields that say how it runs, not what it is


@dataclasses.dataclass(frozen=True)
class Qwen3Config:
    """Sizes and numerics of the network. Master weights are always float32; `compute_dtype` is what layers run in.

    As they stand, `qk_norm` and `qkv_bias` make it Qwen3; the other way round, Qwen2 and 2.5. `max_positions` limits
    nothing here; it is what the weights were trained for, and exported for engines that do set a limit by it. `unroll`
    layers are compiled one after the other in each step of the loop over layers: more of them take longer to compile,
    and small ones run faster.

    Raises:
        ValueError: a field cannot work; the message names it.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rope_theta: float = 1e6
    rms_norm_eps: float = 1e-6
    tie_embeddings: bool = True
    qk_norm: bool = True
    qkv_bias: bool = False
    max_positions: int = 40_960
    compute_dtype: str = "float32"
    attention: str = "xla"
    remat: str = "none"
    unroll: int = 1

    def __post_init__(self) -> None:
        for name in (*(field.name for field in dataclasses.fields(self)[:7]), "max_positions", "unroll"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"model.{name} is {value!r}; it must be a whole number of at least 1")
        for name in ("rope_theta", "rms_norm_eps"):
            if not getattr(self, name) > 0:
                raise ValueError(f"model.{name} is {getattr(self, name)!r}; it must be positive")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"model.num_heads is {self.num_heads}, not a multiple of model.num_kv_heads {self.num_kv_heads}; "
                "each key head must serve the same number of query heads"
            )
        if self.head_dim % 2:
            raise ValueError(f"model.head_dim is {self.head_dim}; rotary positions need an even number")
        for name, known in (
            ("compute_dtype", COMPUTE_DTYPES),
            ("attention", tuple(KERNELS)),
            ("remat", REMAT),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"model.{name} is {getattr(self, name)!r}; choose one of {', '.join(known)}")
        if self.attention == "cudnn" and (why := attention_cudnn.unsupported(self.head_dim, self.compute_dtype)):
            raise ValueError(f"model.attention is 'cudnn', which {why}; set model.attention='xla', which has no limits")

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Qwen3Config:
        """Reads the `model` section of the settings (`config.base().model`); `path` belongs to the loader."""
        known = {field.name for field in dataclasses.fields(cls)}
        given = {name: settings[name] for name in settings if name != "path"}
        if unknown := sorted(set(given) - known):
            raise ValueError(f"model.{unknown[0]} is not a setting of the network; known: {', '.join(sorted(known))}")
        return cls(**given)

    @property
    def dtype(self) -> Any:
        """The compute dtype as NumPy knows it."""
        return jnp.dtype(self.compute_dtype)


class _Maker:
    """Draws one parameter after the other; each gets its own key, so that adding a parameter at the end moves none."""

    def __init__(self, key: Array) -> None:
        self._key, self._drawn = key, 0

    def normal(self, shape: tuple[int, ...], axes: tuple[str | None, ...], std: float) -> nnx.Param[Array]:
        self._drawn += 1
        key = jax.random.fold_in(self._key, self._drawn)
        return nnx.Param(std * jax.random.normal(key, shape, jnp.float32), axes=axes)

    def ones(self, shape: tuple[int, ...], axes: tuple[str | None, ...]) -> nnx.Param[Array]:
        return nnx.Param(jnp.ones(shape, jnp.float32), axes=axes)

    def zeros(self, shape: tuple[int, ...], axes: tuple[str | None, ...]) -> nnx.Param[Array]:
        return nnx.Param(jnp.zeros(shape, jnp.float32), axes=axes)


class Layers(nnx.Module):
    """All layers, stacked on the first axis."""

    def __init__(self, config: Qwen3Config, make: _Maker) -> None:
        n, dim, ffn = config.num_layers, config.hidden_size, config.intermediate_size
        heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
        # 1/sqrt(fan in) equals the published 0.02 at hidden size 2560 and stays right for small models. What writes
        # into the residual stream is smaller by sqrt(2 L), so that its size does not grow with depth.
        std, shrink = dim**-0.5, (2 * n) ** -0.5
        self.attn_norm = make.ones((n, dim), ("layers", "norm"))
        self.q = make.normal((n, dim, heads, width), ("layers", "embed", "heads", "head_dim"), std)
        self.k = make.normal((n, dim, kv_heads, width), ("layers", "embed", "kv_heads", "head_dim"), std)
        self.v = make.normal((n, dim, kv_heads, width), ("layers", "embed", "kv_heads", "head_dim"), std)
        if config.qkv_bias:
            self.q_bias = make.zeros((n, heads, width), ("layers", "heads", "head_dim"))
            self.k_bias = make.zeros((n, kv_heads, width), ("layers", "kv_heads", "head_dim"))
            self.v_bias = make.zeros((n, kv_heads, width), ("layers", "kv_heads", "head_dim"))
        if config.qk_norm:
            self.q_norm = make.ones((n, width), ("layers", "norm"))
            self.k_norm = make.ones((n, width), ("layers", "norm"))
        self.o = make.normal(
            (n, heads, width, dim), ("layers", "heads", "head_dim", "embed"), shrink * (heads * width) ** -0.5
        )
        self.mlp_norm = make.ones((n, dim), ("layers", "norm"))
        self.gate = make.normal((n, dim, ffn), ("layers", "embed", "mlp"), std)
        self.up = make.normal((n, dim, ffn), ("layers", "embed", "mlp"), std)
        self.down = make.normal((n, ffn, dim), ("layers", "mlp", "embed"), shrink * ffn**-0.5)


class Qwen3(nnx.Module):
    """The whole network: embedding, layers, final norm, and a head unless it is tied to the embedding."""

    def __init__(self, config: Qwen3Config, key: Array) -> None:
        make = _Maker(key)
        table, axes = (config.vocab_size, config.hidden_size), ("vocab", "embed")
        self.embed = make.normal(table, axes, config.hidden_size**-0.5)
        self.layers = Layers(config, make)
        self.norm = make.ones((config.hidden_size,), ("norm",))
        if not config.tie_embeddings:
            self.head = make.normal(table, axes, config.hidden_size**-0.5)


def split_params(config: Qwen3Config, key: Array) -> Params:
    """Builds the modules and splits their arrays off, as a nested dict; meant to run under jit."""
    return nnx.to_pure_dict(nnx.state(Qwen3(config, key), nnx.Param))


def abstract_params(config: Qwen3Config) -> tuple[Params, Params]:
    """Returns (shapes, axes): the pytree of `jax.ShapeDtypeStruct` and, per leaf, its tuple of logical axis names.

    Nothing is allocated.
    """
    state = nnx.state(nnx.eval_shape(lambda: Qwen3(config, jax.random.key(0))), nnx.Param)
    return nnx.to_pure_dict(state), nnx.to_pure_dict(state, lambda param: param.get_metadata("axes"))
