"""A weight-transfer engine that loads tensors from a file in shared memory (or any folder).

The learner writes all tensors of one version, named as published checkpoints name them, into one file, and sends a
manifest of it. Every tensor parallel worker maps the file and keeps its own part by the model's own weight loaders.
Nothing of the model is touched before names, sizes and places have been found right; and no tensor is loaded before its
bytes have, while those after it are looked at.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import mmap
import os
import zlib
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import _place_kernel_tensors, get_layerwise_info
from vllm.platforms import current_platform

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class WeightTransferError(RuntimeError):
    """What arrived is not what was announced, or not what the model needs. Names the tensor and both values."""


@dataclass
class Init(WeightTransferInitInfo):
    """Nothing: the two sides meet in the file."""


@dataclass
class Manifest(WeightTransferUpdateInfo):
    """Where a version lies.

    Attributes:
      path: the file. size: its bytes. version: of the weights.
      tensors: [{"name", "dtype", "shape", "offset", "crc32"}], in the order of the network.
    """

    path: str
    size: int
    version: int
    tensors: list[dict[str, Any]]


class SharedMemoryEngine(WeightTransferEngine[Init, Manifest]):
    """Loads one version as a whole.

    If that breaks off, the model holds a mixture and the weight version stays what the learner set when it opened the
    update, which no client accepts; the next complete update makes it whole again.
    """

    init_info_cls = Init
    update_info_cls = Manifest

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # By name in the file: what a checkpoint of this model consists of. Read before anything has been reloaded.
        self._expected = checkpoint_names(self.model)
        self._sizes = parameter_sizes(self.model) if self.parallel_config.world_size == 1 else {}
        self._received = False

    def init_transfer_engine(self, init_info: Init) -> None:
        del init_info

    def start_weight_update(self) -> None:
        self._received = False

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # Not the base class's: that synchronises an accelerator, which need not exist.
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: Manifest) -> None:
        """Loads the file, each tensor after its check.

        Raises:
          WeightTransferError: a tensor is missing, unknown, twice there, of another dtype or beyond the file: the model
            is as before. Or its bytes are not those that were written: the model holds a mixture.
        """
        check_names([entry["name"] for entry in update_info.tensors], set(self._expected))
        check_sizes(update_info.tensors, self._expected, self._sizes)
        with open(update_info.path, "rb") as file:
            if (size := os.fstat(file.fileno()).st_size) != update_info.size:
                raise WeightTransferError(f"{update_info.path} has {size} bytes, announced were {update_info.size}")
            mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        # Tensors of the mapping may outlive this call in vLLM's buffers; the mapping goes when the last of them does.
        arrays = find_bytes(np.frombuffer(mapped, np.uint8), update_info)
        initialize_layerwise_reload(self.model)
        keep_embeddings(self.model)
        try:
            with contextlib.closing(checked_tensors(arrays, update_info)) as tensors:
                self.model.load_weights(tensors)
        except BaseException:
            self.abandon()
            raise
        self._received = True

    def finish_weight_update(self) -> None:
        if not self._received:
            raise WeightTransferError("the update is finished, but no weights came; send them first")
        self._received = False
        finalize_layerwise_reload(self.model, self.model_config)
        repack_head(self.model, self.model_config.head_dtype)

    def abandon(self) -> None:
        """Puts every layer into a state from which an update can begin.

        Layers that were left half way would add what the next update brings to what they have of this one.
        """
        self._received = False
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        pass


def checkpoint_names(model: torch.nn.Module) -> dict[str, str]:
    """Name of each tensor of a published checkpoint -> the parameter into which vLLM loads it, alone or with others."""
    packed: dict[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    names = {}
    for name, _ in model.named_parameters():
        module, _, kind = name.rpartition(".")
        parent, _, leaf = module.rpartition(".")
        for part in packed.get(leaf, [leaf]):
            names[".".join(x for x in (parent, part, kind) if x)] = name
    return names


def parameter_sizes(model: torch.nn.Module) -> dict[str, int]:
    """Elements of each parameter as it is loaded; without embeddings and heads, whose rows vLLM pads."""
    return {
        f"{path}.{name}": parameter.numel()
        for path, module in model.named_modules()
        if not isinstance(module, VocabParallelEmbedding)
        for name, parameter in get_layerwise_info(module).restore_metadata[0].items()
    }


def check_names(given: list[str], expected: set[str]) -> None:
    """Raises WeightTransferError unless each expected name is there once, and no other."""
    for what, wrong in (
        ("does not have", sorted(expected - set(given))),
        ("has, which the model does not,", sorted(set(given) - expected)),
        ("has twice", sorted({name for name in given if given.count(name) > 1}) if len(given) > len(expected) else []),
    ):
        if wrong:
            raise WeightTransferError(f"the update {what} tensor {wrong[0]} ({len(wrong)} such tensors)")


def check_sizes(tensors: list[dict[str, Any]], names: dict[str, str], sizes: dict[str, int]) -> None:
    """Raises WeightTransferError unless the tensors fill their parameters. Of one too long vLLM would take a part."""
    given: dict[str, int] = {}
    for entry in tensors:
        parameter = names[entry["name"]]
        given[parameter] = given.get(parameter, 0) + math.prod(entry["shape"])
    for parameter, size in sizes.items():
        if given.get(parameter, size) != size:
            raise WeightTransferError(f"{given[parameter]} elements came for {parameter}, which has {size}")


def find_bytes(data: np.ndarray, manifest: Manifest) -> list[np.ndarray]:
    """The bytes of each tensor. Raises WeightTransferError if one is of a strange dtype, or reaches beyond the file."""
    out = []
    for entry in manifest.tensors:
        if entry["dtype"] not in DTYPES:
            raise WeightTransferError(f"tensor {entry['name']} is {entry['dtype']}; only {', '.join(DTYPES)} can come")
        size = DTYPES[entry["dtype"]].itemsize * math.prod(entry["shape"])
        out.append(data[entry["offset"] : entry["offset"] + size])
        if out[-1].nbytes != size:
            raise WeightTransferError(f"tensor {entry['name']} ends beyond the {data.nbytes} bytes of {manifest.path}")
    return out


def checked_tensors(arrays: list[np.ndarray], manifest: Manifest) -> Generator[tuple[str, torch.Tensor], None, None]:
    """Tensors by name, each when its checksum has been found right; threads go on with the next ones meanwhile.

    Raises:
      WeightTransferError: the bytes of a tensor have another checksum.
    """
    with concurrent.futures.ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as pool:  # zlib lets go of the GIL
        sums = [pool.submit(zlib.crc32, array) for array in arrays]
        try:
            for array, entry, found in zip(arrays, manifest.tensors, sums, strict=True):
                if found.result() != entry["crc32"]:
                    raise WeightTransferError(
                        f"tensor {entry['name']} of version {manifest.version} has checksum {found.result():#010x} in "
                        f"{manifest.path}, written was {entry['crc32']:#010x}"
                    )
                # torch warns of read-only memory; nothing writes to it.
                yield entry["name"], torch.frombuffer(array, dtype=DTYPES[entry["dtype"]]).view(entry["shape"])
        finally:
            pool.shutdown(cancel_futures=True)


def keep_embeddings(model: torch.nn.Module) -> None:
    """Takes embeddings, and heads that share theirs, out of a reload that has begun: they are overwritten in place.

    A reload builds every layer anew, processes it and copies it over. An embedding is kept as the checkpoint has it, so
    that this only costs time; on a CPU as much as a third of the whole reload.
    """
    for module in model.modules():
        if isinstance(getattr(module, "quant_method", None), UnquantizedEmbeddingMethod):
            info = get_layerwise_info(module)
            if info.kernel_tensors is not None and all(p.numel() for p in info.kernel_tensors[0].values()):
                _place_kernel_tensors(module, info)
                info.reset()


def repack_head(model: torch.nn.Module, head_dtype: torch.dtype) -> None:
    """On a CPU, packs the weight of a head again that also keeps it unpacked, as one tied to the embedding does.

    vLLM 0.32 packs a layer's weight when it reloads that layer. A head that shares the embedding's tensor is no layer
    of its own to it, and would go on with what was packed from the old weights.

    Args:
      head_dtype: of the logits; where it is not the weight's, they are computed from the weight itself.
    """
    if not current_platform.is_cpu():
        return
    for module in model.modules():
        if isinstance(module, ParallelLMHead) and module.weight.numel() and module.weight.dtype == head_dtype:
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)
