"""Where parameters and batches live: one table from logical axes to mesh axes.

`fsdp` splits the batch and, for parameters, the hidden size; `tensor` splits heads, feed-forward width and vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from metaagent_x.model.parameters import Qwen3Config, abstract_params

RULES: Mapping[str, str | None] = {
    "batch": "fsdp",
    "embed": "fsdp",
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "head_dim": None,
    "layers": None,
    "norm": None,  # a few kB: every device has them all
}


class ShardingError(ValueError):
    """The sizes do not fit the mesh. The message names the parameter, the axis and the way out."""


def make_mesh(fsdp: int = 1, tensor: int = 1) -> Mesh:
    """Returns a mesh over the first `fsdp * tensor` devices of this process group.

    Raises:
        ShardingError: a size is below 1 or there are too few devices.
    """
    if fsdp < 1 or tensor < 1:
        raise ShardingError(f"mesh.fsdp is {fsdp} and mesh.tensor is {tensor}; both must be at least 1")
    devices = jax.devices()
    if fsdp * tensor > len(devices):
        raise ShardingError(
            f"mesh.fsdp {fsdp} x mesh.tensor {tensor} needs {fsdp * tensor} devices, this run has {len(devices)}"
        )
    # Auto: the compiler propagates shardings (the default, Explicit, rejects plain indexing of sharded arrays).
    return jax.make_mesh(
        (fsdp, tensor), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2, devices=devices[: fsdp * tensor]
    )


def partition_spec(
    name: str, shape: tuple[int, ...], axes: tuple[str | None, ...], sizes: Mapping[str, int]
) -> PartitionSpec:
    """Places one array.

    Fewer key heads than `tensor` devices cannot be split; if they divide it, every device keeps all of them and the
    query heads are still split. Everything else that does not divide is refused.

    Args:
        name: for messages.
        shape: the array's shape.
        axes: one logical axis (or None) per dimension.
        sizes: devices on each mesh axis.

    Raises:
        ShardingError: an unknown logical axis, two dimensions on one mesh axis, or a size that does not divide.
    """
    if len(shape) != len(axes):
        raise ShardingError(f"{name} has shape {shape} but logical axes {axes}; name one axis per dimension")
    spec: list[str | None] = []
    for size, axis in zip(shape, axes, strict=True):
        if axis is not None and axis not in RULES:
            raise ShardingError(f"{name}: logical axis {axis!r} is not in the table; known: {', '.join(RULES)}")
        place = RULES[axis] if axis is not None else None
        parts = sizes[place] if place is not None else 1
        if axis == "kv_heads" and size < parts and parts % size == 0:
            place, parts = None, 1
        if size % parts:
            raise ShardingError(
                f"{name}: axis {axis!r} has size {size}, which {parts} devices on mesh axis {place!r} cannot share "
                f"equally; choose mesh.{place} as a divisor of {size}"
            )
        if place is not None and place in spec:
            raise ShardingError(f"{name}: two of its axes {axes} lie on mesh axis {place!r}; change the table")
        spec.append(place)
    return PartitionSpec(*spec)


def own_rows(function: Callable[..., Any], mesh: Mesh, ins: tuple[PartitionSpec, ...], outs: Any) -> Callable[..., Any]:
    """`function`, run by every device of `fsdp` for itself: inside it an array has the device's rows only, weights are
    whole but for `tensor`, and nothing is exchanged that it does not exchange itself.

    Args:
        function: of arrays.
        mesh: of `make_mesh`.
        ins: by argument, how its leaves lie over `fsdp`.
        outs: the same of what it returns.
    """
    taken = {RULES["batch"], *(axis for axis, n in mesh.shape.items() if n == 1)}
    return jax.shard_map(function, mesh=mesh, in_specs=ins, out_specs=outs, axis_names=taken, check_vma=False)


def scatter_sum(parts: Any, mesh: Mesh, shardings: Any) -> Any:
    """The sum over the devices of `fsdp`, of which each one gets its part.

    Args:
        parts: a tree of [fsdp, ...], every device's own array; what `own_rows` returns as `PartitionSpec("fsdp")`.
        mesh: of `make_mesh`.
        shardings: the same tree, of where the sums shall live.
    """
    batch = RULES["batch"]

    def sum_one(x: Array, place: NamedSharding) -> Array:
        if batch in place.spec:
            return jax.lax.psum_scatter(x[0], batch, scatter_dimension=tuple(place.spec).index(batch), tiled=True)
        return jax.lax.psum(x[0], batch)

    def before(place: NamedSharding) -> PartitionSpec:
        return PartitionSpec(batch, *without(place.spec, {batch}))

    # Over all axes, `tensor` too: left to the compiler, it would gather that one first.
    apart = jax.shard_map(
        lambda tree: jax.tree.map(sum_one, tree, shardings), mesh=mesh, in_specs=(jax.tree.map(before, shardings),),
        out_specs=jax.tree.map(lambda place: place.spec, shardings), check_vma=False,
    )  # fmt: skip
    return apart(parts)


def without(spec: PartitionSpec, axes: Collection[str | None]) -> PartitionSpec:
    """The same place but for these mesh axes, over which it is whole."""
    return PartitionSpec(*(None if axis in axes else axis for axis in spec))


def param_shardings(config: Qwen3Config, mesh: Mesh) -> Any:
    """Returns the tree of `NamedSharding` for the parameters of `config` on a mesh of `make_mesh`.

    Raises:
        ShardingError: see `partition_spec`.
    """

    def place(path: tuple[Any, ...], leaf: Any, axes: tuple[str | None, ...]) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        return NamedSharding(mesh, partition_spec(name, leaf.shape, axes, dict(mesh.shape)))

    return jax.tree_util.tree_map_with_path(place, *abstract_params(config))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows over `fsdp`, everything else whole: for [R, T] and [R, T, D]."""
    return NamedSharding(mesh, PartitionSpec(RULES["batch"]))


def replicated(mesh: Mesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def open_axes() -> dict[str, int]:
    """Devices on each mesh axis over which the compiler may split here: inside `jax.set_mesh`, all axes but those that
    a `jax.shard_map` around has taken. Empty without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return {} if mesh.empty else {axis: n for axis, n in mesh.shape.items() if axis not in mesh.manual_axes}


def splits(axis: str) -> int:
    """Into how many parts the compiler splits a logical axis here."""
    return open_axes().get(RULES[axis] or "", 1)


def batch_parts(rows: int) -> int:
    """Over how many devices the compiler splits `rows` rows here; 1 without a mesh or if they do not divide."""
    n = splits("batch")
    return n if rows % n == 0 else 1


def constrain(x: Array, *axes: str | None) -> Array:
    """Says where a value inside a program lives, by one logical axis (or None: whole) per dimension.

    Acts only inside `jax.set_mesh` (or a jit traced in it); with no mesh there is nothing to say. The compiler places
    everything between such points, and what does not divide it pads.
    """
    return place(x, PartitionSpec(*(RULES[axis] if axis is not None else None for axis in axes)))


def place(x: Array, spec: PartitionSpec) -> Array:
    """`constrain` by mesh axes, one or None per dimension. Axes that a `jax.shard_map` has taken are left out."""
    if not (free := open_axes()):
        return x
    return jax.lax.with_sharding_constraint(x, without(spec, {axis for axis in spec if axis not in free}))


def constrain_batch(x: Array) -> Array:
    """Keeps activations split by rows: `constrain` with the batch first and everything else whole."""
    return constrain(x, "batch", *(None,) * (x.ndim - 1))
