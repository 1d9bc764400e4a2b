"""What one policy's learning consists of: master weights, optimizer state, number of updates."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, Sharding, SingleDeviceSharding

from metaagent_x.model.parameters import Params, Qwen3Config, abstract_params
from metaagent_x.model.sharding import param_shardings, replicated


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """A pytree; an update donates it, so only the state that the update returns may be used afterwards.

    Attributes:
      params: float32 master weights.
      opt_state: of `make_optimizer`; moments in float32, placed like the weights.
      step: int32 [], updates really made. Skipped updates do not count.
    """

    params: Params
    opt_state: Any
    step: jax.Array


def learning_rate(settings: Any, total_updates: int | None = None) -> optax.Schedule:
    """Rate by number of updates made: linear from 0 over `warmup_steps`, then constant, or a cosine to 0.

    Args:
      settings: `learning_rate` and `warmup_steps`, both counted in optimizer updates, never in micro-batches.
      total_updates: the cosine reaches 0 after so many updates; None keeps the rate.

    Raises:
      ValueError: a warm-up that is as long as the whole training, or longer.
    """
    peak, warmup = float(settings["learning_rate"]), int(settings["warmup_steps"])
    if total_updates is None:
        after = optax.constant_schedule(peak)
    elif total_updates > warmup:
        after = optax.cosine_decay_schedule(peak, total_updates - warmup)
    else:
        raise ValueError(f"warmup_steps={warmup} leaves nothing of total_updates={total_updates}; shorten the warm-up")
    if not warmup:
        return after
    return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), after], [warmup])


def make_optimizer(settings: Any, total_updates: int | None = None) -> optax.GradientTransformationExtraArgs:
    """AdamW behind one clip by global norm. Its update may be given the gradients' `norm`.

    Args:
      settings: `learning_rate, warmup_steps, b1, b2, weight_decay, clip_norm` (0: no clipping), as in `config.learner`.
      total_updates: see `learning_rate`.
    """
    clip = float(settings["clip_norm"])
    return optax.chain(  # type: ignore[return-value]
        clip_by_global_norm(clip) if clip > 0 else optax.identity(),
        optax.adamw(
            learning_rate(settings, total_updates),
            b1=float(settings["b1"]),
            b2=float(settings["b2"]),
            weight_decay=float(settings["weight_decay"]),
            mask=decayed,
        ),
    )


def clip_by_global_norm(largest: float) -> optax.GradientTransformationExtraArgs:
    """Scales all gradients by one factor so that their global norm is at most `largest`; bitwise nothing below it.

    Its update takes `norm` from a caller that has it: devices would add it up a second time.

    One product a value, which the compiler merges into what reads it: the function of that name in optax selects
    between two arrays and divides, for which a second set of gradients is made.
    """

    def init(params: optax.Params) -> optax.OptState:
        del params
        return optax.EmptyState()

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None, *,
        norm: jax.Array | None = None, **_: Any,
    ) -> tuple[optax.Updates, optax.OptState]:  # fmt: skip
        del params
        factor = largest / jnp.maximum(optax.tree.norm(updates) if norm is None else norm, largest)
        return jax.tree.map(lambda g: g * factor, updates), state

    return optax.GradientTransformationExtraArgs(init, update)


def decayed(params: Params) -> Any:
    """True for every leaf that weight decay pulls to zero: all but biases and the norms' scales (neutral value 1)."""

    def decays(path: tuple[Any, ...], _: Any) -> bool:
        name = jax.tree_util.keystr(path)
        return "norm" not in name and "bias" not in name

    return jax.tree_util.tree_map_with_path(decays, params)


def init_state(params: Params, optimizer: optax.GradientTransformation, shardings: TrainState) -> TrainState:
    """A fresh state where `state_shardings` says.

    The weights are copied where they come to lie, leaf by leaf: updates donate their buffers, and the caller's must
    survive. Every leaf is committed to its place, as the outputs of an update are: jit compiles anew for arguments
    that differ in this alone.
    """

    def own(x: jax.Array, place: Sharding) -> jax.Array:
        # Not `device_put(may_alias=False)`: on a CPU it still shares what is replicated or comes from NumPy.
        return jax.device_put(jnp.array(jax.device_put(x, place), jnp.float32, copy=True), place)

    params = jax.tree.map(own, params, shardings.params)
    opt_state = jax.jit(optimizer.init, out_shardings=shardings.opt_state)(params)
    return TrainState(params, opt_state, jax.device_put(jnp.zeros((), jnp.int32), shardings.step))


def abstract_state(config: Qwen3Config, optimizer: optax.GradientTransformation, shardings: TrainState) -> TrainState:
    """The `jax.ShapeDtypeStruct` of every leaf of a state, placed: enough to compile for, and nothing is allocated."""

    def make(params: Params) -> TrainState:
        return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))

    shapes = jax.eval_shape(make, abstract_params(config)[0])
    return jax.tree.map(lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes, shardings)


def state_shardings(config: Qwen3Config, optimizer: optax.GradientTransformation, mesh: Mesh | None) -> TrainState:
    """Where every leaf of a `TrainState` lives: moments beside their weights, counters everywhere.

    Without a mesh all of it is on the first device.
    """
    if mesh is None:
        whole: Sharding = SingleDeviceSharding(jax.devices()[0])
        params = jax.tree.map(lambda _: whole, abstract_params(config)[0])
    else:
        params, whole = param_shardings(config, mesh), replicated(mesh)
    shapes = jax.eval_shape(optimizer.init, jax.tree.map(lambda _: jax.ShapeDtypeStruct((), jnp.float32), params))
    placed = optax.tree_map_params(
        optimizer, lambda _, sharding: sharding, shapes, params, transform_non_params=lambda _: whole
    )
    return TrainState(params, placed, whole)  # type: ignore[arg-type]
