"""Hugging Face folders: reads Qwen3 and Qwen2 (2.5) weights into the parameter tree, and writes them back.

Tensors go one by one from the file, which is mapped and not read, to the devices that hold them, each device its own
part: the host holds none of them. What does not fit is refused by name: no tensor is ignored or filled in.
"""

from __future__ import annotations

import functools
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from metaagent_x.model.hf_config import WeightsError, dtype_name, read_config, read_json, write_description
from metaagent_x.model.parameters import Params, Qwen3Config, abstract_params
from metaagent_x.model.sharding import param_shardings

__all__ = ["WeightsError", "load", "named_tensors", "read_config", "save", "write_description"]

ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD_BYTES = 4 << 30  # also what `save` holds on the host at once
_DTYPES = {"F32": np.float32, "BF16": jnp.bfloat16, "F16": np.float16}
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class _Stored(NamedTuple):
    """How the files hold a parameter: its name, our axes in their order, and how many of these make up the rows.

    Published matrices are [outputs, inputs]; heads and their width are one axis there and two here.
    """

    name: str
    axes: tuple[int, ...] = (0,)
    rows: int = 1

    def shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        turned = [ours[axis] for axis in self.axes]
        parts = (turned[: self.rows], turned[self.rows :])
        return tuple(math.prod(part) for part in parts if part)


_TOP = {"embed": _Stored(EMBED, (0, 1)), "norm": _Stored("model.norm.weight"), "head": _Stored(HEAD, (0, 1))}
_LAYER = {
    "attn_norm": _Stored("input_layernorm.weight"),
    "q": _Stored("self_attn.q_proj.weight", (1, 2, 0), 2),
    "k": _Stored("self_attn.k_proj.weight", (1, 2, 0), 2),
    "v": _Stored("self_attn.v_proj.weight", (1, 2, 0), 2),
    "q_bias": _Stored("self_attn.q_proj.bias", (0, 1), 2),
    "k_bias": _Stored("self_attn.k_proj.bias", (0, 1), 2),
    "v_bias": _Stored("self_attn.v_proj.bias", (0, 1), 2),
    "q_norm": _Stored("self_attn.q_norm.weight"),
    "k_norm": _Stored("self_attn.k_norm.weight"),
    "o": _Stored("self_attn.o_proj.weight", (2, 0, 1), 1),
    "mlp_norm": _Stored("post_attention_layernorm.weight"),
    "gate": _Stored("mlp.gate_proj.weight", (1, 0)),
    "up": _Stored("mlp.up_proj.weight", (1, 0)),
    "down": _Stored("mlp.down_proj.weight", (1, 0)),
}


class _Entry(NamedTuple):
    """One tensor of a folder: the parameter that it is, or the layer of a stacked one."""

    leaf: str
    layer: int | None
    stored: _Stored


def _entries(config: Qwen3Config) -> dict[str, _Entry]:
    """Name in the files -> what it is, in the order of the network."""
    shapes = abstract_params(config)[0]
    layers = {
        f"model.layers.{i}.{_LAYER[leaf].name}": _Entry(leaf, i, _LAYER[leaf])
        for i in range(config.num_layers)
        for leaf in _LAYER
        if leaf in shapes["layers"]
    }
    top = {_TOP[leaf].name: _Entry(leaf, None, _TOP[leaf]) for leaf in _TOP if leaf in shapes}
    return {EMBED: top.pop(EMBED), **layers, **top}


def _own_shape(params: Params, entry: _Entry) -> tuple[int, ...]:
    return params[entry.leaf].shape if entry.layer is None else params["layers"][entry.leaf].shape[1:]


def load(folder: Path | str, dtype: jax.typing.DTypeLike, mesh: Mesh | None = None) -> tuple[Qwen3Config, Params]:
    """Reads a folder into the parameter tree.

    Args:
        folder: holds `config.json` and `model.safetensors`, or its shards and their index.
        dtype: of the parameters, "float32" for training or "bfloat16"; also the config's `compute_dtype`.
        mesh: where the parameters go (`sharding.make_mesh`); None for the default device.

    Raises:
        WeightsError: a network that is not ours (see `read_config`); a tensor that is missing, unknown, of another
            shape, or no float; a head that contradicts `tie_word_embeddings`.
        ShardingError: the sizes do not fit the mesh.
    """
    dtype = dtype_name(dtype)
    config = read_config(folder, dtype)
    shapes, entries = abstract_params(config)[0], _entries(config)
    files = _opened(Path(folder), config)
    here = SingleDeviceSharding(jax.devices()[0])
    places = param_shardings(config, mesh) if mesh is not None else jax.tree.map(lambda _: here, shapes)
    params: Params = {"layers": {}}
    for name, (leaf, layer, stored) in entries.items():
        # A copy of what was fetched, always: on a CPU that may be the mapped file itself.
        if layer is None:
            part = files.fetch(name, stored, shapes[leaf].shape, places[leaf])
            params[leaf] = jnp.array(part, dtype, copy=True)
        else:
            like, place = shapes["layers"][leaf], places["layers"][leaf]
            stack = params["layers"].pop(leaf) if layer else jnp.zeros(like.shape, dtype, device=place)
            part = files.fetch(name, stored, like.shape[1:], _of_one_layer(place))
            # Waiting, or the parts of many layers would queue up on the devices.
            params["layers"][leaf] = jax.block_until_ready(_set_layer(stack, part, layer, stored.axes, place))
    return config, jax.block_until_ready(params)


def check(folder: Path | str) -> Qwen3Config:
    """Opens a folder and compares its tensors with its `config.json`; reads none of them but a tied head.

    Raises:
        WeightsError: as `load`.
    """
    config = read_config(folder)
    _opened(Path(folder), config)
    return config


def _opened(folder: Path, config: Qwen3Config) -> _Files:
    shapes, files = abstract_params(config)[0], _Files(folder)
    entries = _entries(config).items()
    files.check({name: entry.stored.shape(_own_shape(shapes, entry)) for name, entry in entries}, config)
    return files


def _of_one_layer(place: Sharding) -> Sharding:
    return NamedSharding(place.mesh, PartitionSpec(*place.spec[1:])) if isinstance(place, NamedSharding) else place


@functools.partial(jax.jit, static_argnums=(3, 4), donate_argnums=0)
def _set_layer(stack: Array, part: Array, layer: int, axes: tuple[int, ...], place: Sharding) -> Array:
    """Puts one layer, its axes in the order of the file, into the stack, in place."""
    ours = part.transpose(np.argsort(axes)).astype(stack.dtype)
    return jax.lax.with_sharding_constraint(jax.lax.dynamic_update_index_in_dim(stack, ours, layer, 0), place)


class _Files:
    """The tensors of a folder, in one file or in several with an index."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tensors: dict[str, np.ndarray] = {}
        self._file_of: dict[str, str] = {}
        index = folder / INDEX
        if index.exists() and (folder / ONE_FILE).exists():
            raise WeightsError(f"{folder} has both {ONE_FILE} and {INDEX}; remove the one that is out of date")
        listed: dict[str, str] | None = read_json(index).get("weight_map") if index.exists() else None
        for file in [ONE_FILE] if listed is None else sorted(set(listed.values())):
            for name, tensor in _mapped(folder / file).items():
                if listed is not None and listed.get(name) != file:
                    raise WeightsError(f"{index} says {name} is in {listed.get(name)}, but it is in {file}")
                self._tensors[name], self._file_of[name] = tensor, file
        if missing := sorted(set(listed or ()) - set(self._tensors)):
            raise WeightsError(f"{index} says {missing[0]} is in {(listed or {})[missing[0]]}, but it is not")

    def check(self, wanted: dict[str, tuple[int, ...]], config: Qwen3Config) -> None:
        """Raises WeightsError unless the files hold these tensors and no others.

        A tied network may come with its head; it must then be the embedding.
        """
        extra = {HEAD: wanted[EMBED]} if config.tie_embeddings and HEAD in self._tensors else {}
        if missing := [name for name in wanted if name not in self._tensors]:
            raise WeightsError(f"{self._folder} has no tensor {missing[0]} ({len(missing)} are missing)")
        if unknown := [name for name in self._tensors if name not in wanted | extra]:
            raise WeightsError(
                f"{self._folder}: {self._file_of[unknown[0]]} has a tensor {unknown[0]}, but config.json describes a "
                f"network without it ({len(unknown)} such tensors)"
            )
        for name, shape in (wanted | extra).items():
            if (found := self._tensors[name].shape) != shape:
                raise WeightsError(
                    f"{self._folder}: tensor {name} of {self._file_of[name]} has shape {list(found)}; by config.json "
                    f"it is {list(shape)}"
                )
        for row in range(0, config.vocab_size if extra else 0, 4096):
            head, embed = (self._tensors[name][row : row + 4096] for name in (HEAD, EMBED))
            if not np.array_equal(head, embed):
                raise WeightsError(
                    f"{self._folder}: config.json says tie_word_embeddings, but {HEAD} differs from {EMBED} in "
                    f"rows {row} to {row + len(head) - 1}; remove the tensor that is wrong, or untie them there"
                )

    def fetch(self, name: str, stored: _Stored, ours: tuple[int, ...], place: Sharding) -> Array:
        """A tensor on its devices, our axes in the order of the file; on a CPU it may be the mapped file itself."""
        whole = self._tensors[name].reshape([ours[axis] for axis in stored.axes])
        if isinstance(place, NamedSharding):
            place = NamedSharding(place.mesh, PartitionSpec(*(place.spec[axis] for axis in stored.axes)))
        parts = place.addressable_devices_indices_map(whole.shape).items()
        arrays = [jax.device_put(whole[index], device) for device, index in parts]
        return jax.make_array_from_single_device_arrays(whole.shape, place, arrays)


def _mapped(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file, mapped into memory: what is not looked at is not read, and nothing is held."""
    try:
        with safe_open(path, framework="numpy"):  # checks that the file is whole and its header true
            pass
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        data = np.memmap(path, np.uint8, "r", offset=8 + size).view(np.ndarray)
    except (OSError, ValueError, SafetensorError) as error:
        raise WeightsError(
            f"cannot read {path}: {error}; a folder of weights holds {ONE_FILE}, or {INDEX} and all its files, whole"
        ) from error
    out = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in _DTYPES:
            raise WeightsError(f"{path}: tensor {name} is {entry['dtype']}; only {', '.join(_DTYPES)} can be read")
        start, stop = entry["data_offsets"]
        out[name] = data[start:stop].view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return out


@functools.partial(jax.jit, static_argnums=(1, 2))
def _as_stored(array: Array, stored: _Stored, dtype: str | None) -> Array:
    return array.transpose(stored.axes).reshape(stored.shape(array.shape)).astype(dtype or array.dtype)


def named_tensors(config: Qwen3Config, params: Params, dtype: str | None = None) -> Iterator[tuple[str, Array]]:
    """Yields (name, tensor) as published files have them, one at a time; the head only if it is not tied.

    Args:
        config: the network.
        params: the tree of `qwen3.init`.
        dtype: of the tensors; None for that of the parameters.
    """
    for name, (leaf, layer, stored) in _entries(config).items():
        yield name, _as_stored(params[leaf] if layer is None else params["layers"][leaf][layer], stored, dtype)


def save(
    folder: Path | str, config: Qwen3Config, params: Params, dtype: jax.typing.DTypeLike, *,
    tokenizer: Path | str | None = None, stop_ids: Sequence[int] = (), shard_bytes: int = SHARD_BYTES,
) -> None:  # fmt: skip
    """Writes a folder that `load`, transformers and vLLM read. A second export into it replaces the first.

    Nothing in the folder changes before the new files are complete beside the old ones, and `config.json` comes last:
    an export that is stopped leaves the earlier model, or a folder that no reader takes for one.

    Args:
        folder: made if missing.
        config: the network; what says how it runs (`EXECUTION`) is not written.
        params: the tree of `qwen3.init`, on any mesh of this process.
        dtype: of every tensor, "float32" or "bfloat16".
        tokenizer: a folder whose tokenizer files and chat template are copied.
        stop_ids: ids that end a completion, the turn's end first and the padding id last (`Chat.stop_ids`).
        shard_bytes: a file has at most so many bytes of tensors, or a single larger tensor.

    Raises:
        WeightsError: parameters that are not those of `config`, or a network that no published architecture is.
    """
    dtype, folder = dtype_name(dtype), Path(folder)
    given, wanted = (
        {jax.tree_util.keystr(path, simple=True, separator="."): x.shape for path, x in jax.tree.leaves_with_path(tree)}
        for tree in (params, abstract_params(config)[0])
    )
    if wrong := sorted(name for name in given | wanted if given.get(name) != wanted.get(name)):
        raise WeightsError(
            f"parameter {wrong[0]} has shape {given.get(wrong[0])}; by the config it is {wanted.get(wrong[0])}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=folder))
    try:
        write_description(draft, config, dtype, tokenizer, stop_ids)
        _write_tensors(draft, config, params, dtype, shard_bytes)
        for old in [folder / "config.json", folder / INDEX, *folder.glob("model*.safetensors")]:
            old.unlink(missing_ok=True)
        for new in sorted(draft.iterdir(), key=lambda path: path.name == "config.json"):
            os.replace(new, folder / new.name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write_tensors(folder: Path, config: Qwen3Config, params: Params, dtype: str, shard_bytes: int) -> None:
    width = jnp.dtype(dtype).itemsize
    sizes = {name: width * math.prod(_own_shape(params, entry)) for name, entry in _entries(config).items()}
    shards: list[list[str]] = [[]]
    for name, size in sizes.items():
        if shards[-1] and sum(sizes[other] for other in shards[-1]) + size > shard_bytes:
            shards.append([])
        shards[-1].append(name)
    files = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    files = files if len(shards) > 1 else [ONE_FILE]
    tensors = named_tensors(config, params, dtype)
    # Names first in the inner `zip`: it must not take a tensor that belongs to the next file.
    for file, names in zip(files, shards, strict=True):
        # The library writes an array's memory, whatever its strides say; "pt" is what transformers asks for.
        held = {name: np.ascontiguousarray(tensor) for name, (_, tensor) in zip(names, tensors, strict=False)}
        save_file(held, folder / file, metadata={"format": "pt"})
        shutil.copymode(folder / "config.json", folder / file)  # the library's files are for their owner alone
    if len(shards) > 1:
        where = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": where}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
