"""Weights from the learner to vLLM servers: versioned, checksummed shared memory, and the steps of an update.

`WeightStore` writes one version at a time into a file that servers map. `WeightSync` takes a server through pause ->
start -> update -> finish -> reset prefix cache -> resume, and then asks it for log-probs that the learner knows. A push
that breaks off leaves the server paused and its weights without a version; the next whole push makes it right again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import errno
import fcntl
import functools
import mmap
import os
import shutil
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from metaagent_x.rollout.engine import EngineFailure
from metaagent_x.rollout.vllm_client import ServerError, VllmClient

PREFIX = "metaagent_x-weights-"
PROBE_LENGTH = 96  # tokens of a probe's sequences; several times the size of a server's cache blocks
PIECE = 1 << 20  # bytes that are copied and then summed, while the processor's cache still holds them
# Largest mean and single difference of log-probs between the two sides. In float32 both compute the same up to the
# order of sums. In bfloat16 each rounds on its own; wrong weights differ by more than 1.
TOLERANCE = {"float32": (2e-5, 1e-4), "bfloat16": (3e-2, 0.5)}

Tensors = Callable[[Any], Iterator[tuple[str, jax.Array]]]
Score = Callable[[Any, np.ndarray], np.ndarray]


class WeightSyncError(EngineFailure):
    """Weights could not be written, or a server computes something else than the learner. Names both values."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """One version as it lies in shared memory; `as_dict` is what a server is sent.

    Attributes:
      tensors: ({"name", "dtype", "shape", "offset", "crc32"}, ...) in the order of the network.
    """

    path: str
    size: int
    version: int
    tensors: tuple[dict[str, Any], ...]

    def as_dict(self) -> dict[str, Any]:
        return {"path": self.path, "size": self.size, "version": self.version, "tensors": list(self.tensors)}


class WeightStore:
    """A folder in shared memory that holds one version of the weights, and goes when its process does.

    Only one version is kept: writing the next takes over the memory of the last, which a push no longer needs. A file
    has its version's name only while it is complete.

    Args:
      tensors: names the tensors of a parameter tree as published checkpoints do, in the dtype that servers compute in
        (`model.hf.named_tensors`).
      dtype: that dtype, "float32" or "bfloat16".
      folder: "/dev/shm", or any that all servers see under this path.

    Raises:
      WeightSyncError: the folder cannot be written to.
    """

    def __init__(self, tensors: Tensors, dtype: str, folder: str = "/dev/shm"):
        self._tensors, self._width, self._dtype = tensors, np.dtype(jax.numpy.dtype(dtype)).itemsize, dtype
        try:
            remove_leftovers(folder)
            self.folder, self._lock = _locked_folder(folder)
        except OSError as error:
            raise WeightSyncError(f"cannot keep weights in {folder}: {error}; set engine.weights_dir") from error
        self._last: Path | None = None
        self._threads = max(2, min(8, len(os.sched_getaffinity(0))))

    def write(self, params: Any, version: int) -> Manifest:
        """Writes all tensors. Beside the shared memory the host holds a few of them at a time.

        Args:
          params: the learner's tree, on any mesh of this process.

        Raises:
          WeightSyncError: there is no room for them; they are not what `tensors` names.
        """
        size = sum(leaf.size for leaf in jax.tree.leaves(params)) * self._width
        path, draft = self.folder / f"v{version:08d}.weights", self.folder / "draft"
        if self._last is not None:  # from here on no complete version exists
            os.replace(self._last, draft)
            self._last = None
        entries: list[dict[str, Any]] = []
        sums: list[concurrent.futures.Future[int]] = []
        held = threading.Semaphore(2 * self._threads)  # tensors on the host
        with _room(draft, size) as room, concurrent.futures.ThreadPoolExecutor(self._threads) as pool:
            offset = 0
            for name, tensor in self._tensors(params):
                end = offset + tensor.size * self._width
                if tensor.dtype.name != self._dtype or end > size:
                    raise WeightSyncError(
                        f"tensor {name} is {tensor.dtype.name}{list(tensor.shape)}; servers compute in {self._dtype}, "
                        f"and {size - offset} of {size} bytes are left for it"
                    )
                held.acquire()
                sums.append(pool.submit(_copy, tensor, room[offset:end]))
                sums[-1].add_done_callback(lambda _: held.release())
                shape = [int(n) for n in tensor.shape]
                entries.append({"name": name, "dtype": self._dtype, "shape": shape, "offset": offset})
                offset = end
        if offset != size:
            raise WeightSyncError(f"{size - offset} of {size} bytes of parameters have no name in a checkpoint")
        for entry, future in zip(entries, sums, strict=True):
            entry["crc32"] = future.result()
        os.replace(draft, path)
        self._last = path
        return Manifest(str(path), size, version, tuple(entries))

    def close(self) -> None:
        """Frees the memory. The store cannot be used afterwards."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_leftovers(folder: str) -> list[str]:
    """Removes stores in `folder` whose process is gone, however it ended. Returns their paths."""
    removed = []
    for path in sorted(Path(folder).glob(f"{PREFIX}*")):
        try:
            lock = os.open(path / "lock", os.O_RDWR)
        except OSError:
            continue  # somebody else's, or just being made or removed
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a living owner holds it
            shutil.rmtree(path, ignore_errors=True)
            removed.append(str(path))
        except OSError:
            pass
        finally:
            os.close(lock)
    return removed


def _locked_folder(folder: str) -> tuple[Path, int]:
    """A new folder and the handle of its lock, which the kernel lets go of with this process."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=os.path.abspath(folder)))  # a server may be at home elsewhere
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # Another process may have taken it for a leftover between these two lines.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (path / "lock").exists():
                return path, lock
        os.close(lock)


@contextlib.contextmanager
def _room(path: Path, size: int) -> Iterator[np.ndarray]:
    """A file of `size` bytes as an array. Its memory is there from the beginning, or WeightSyncError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(handle, size)
        # Without this a full file system would show as SIGBUS in the middle of writing.
        os.posix_fallocate(handle, 0, size)
        room = mmap.mmap(handle, size)
    except OSError as error:
        os.unlink(path)
        free = shutil.disk_usage(path.parent).free
        raise WeightSyncError(
            f"{size} bytes of weights do not fit into {path.parent.parent}, where {free} are free "
            f"({errno.errorcode.get(error.errno or 0)}); enlarge it (containers: --shm-size), or set "
            "engine.weights_dir to a folder with room"
        ) from error
    finally:
        os.close(handle)
    yield np.frombuffer(room, np.uint8)


def _copy(tensor: jax.Array, target: np.ndarray) -> int:
    """Copies the bytes of a tensor and returns their CRC-32."""
    source = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)
    crc = 0
    for begin in range(0, len(source), PIECE):
        piece = target[begin : begin + PIECE]
        np.copyto(piece, source[begin : begin + PIECE])
        crc = zlib.crc32(piece.data, crc)
    return crc


@dataclasses.dataclass(frozen=True)
class Probe:
    """Fixed sequences by which a server is asked what it computes.

    Attributes:
      ids: [R, T]. logprobs: [R, T - 1], the learner's, of ids[:, 1:]. limits: (mean, single) difference allowed.
    """

    ids: np.ndarray
    logprobs: np.ndarray
    limits: tuple[float, float]

    async def ask(self, client: VllmClient) -> None:
        """Compares a server with the learner.

        Of each sequence all log-probs are computed anew, which shows wrong weights; and the last one again on top of
        whatever the prefix cache has of it, which shows what was computed with other weights.

        Raises:
          WeightSyncError: they differ. ServerError: the server did not answer.
        """
        rows = [[int(i) for i in row] for row in self.ids]
        anew, cached = await asyncio.gather(
            asyncio.gather(*(client.score(row) for row in rows)),
            asyncio.gather(*(client.next_logprob(row[:-1], row[-1]) for row in rows)),
        )
        self.compare(client.url, "computed anew", np.array(anew), self.logprobs)
        self.compare(client.url, "after what its prefix cache holds", np.array(cached), self.logprobs[:, -1])

    def compare(self, url: str, how: str, server: np.ndarray, learner: np.ndarray) -> None:
        """Raises WeightSyncError if the difference is above the limits, or no number."""
        gap = np.abs(server - learner)
        mean, worst = float(gap.mean()), float(gap.max())
        if mean <= self.limits[0] and worst <= self.limits[1]:
            return
        at = np.unravel_index(int(np.nanargmax(gap)) if np.isfinite(gap).any() else 0, gap.shape)
        raise WeightSyncError(
            f"{url} does not compute what the learner does: log-probs {how} differ by {mean:.2e} on average and by "
            f"{worst:.2e} at most (server {server[at]:.5f}, learner {learner[at]:.5f}); allowed are "
            f"{self.limits[0]:.0e} and {self.limits[1]:.0e}"
        )


class WeightSync:
    """Brings a learner's weights to servers, and makes sure that they have arrived.

    Args:
      store: where they pass through.
      score: (params, ids [R, T]) -> log-probs [R, T - 1] of ids[:, 1:], each given all before it, as the learner has
        them.
      vocab_size: ids of the probe are below it.
      dtype: in which servers compute; sets `TOLERANCE`.
      length: of a probe's sequences, tokens.
      rows: number of sequences.
    """

    def __init__(
        self, store: WeightStore, score: Score, *, vocab_size: int, dtype: str, length: int = PROBE_LENGTH,
        rows: int = 4, limits: tuple[float, float] | None = None,
    ):  # fmt: skip
        self._store, self._score = store, score
        self._limits = limits or TOLERANCE[dtype]
        # Any text will do. The same every time: what a server remembers of it is then what a forgotten reset leaves.
        self._ids = np.random.default_rng(0).integers(0, vocab_size, (rows, length), np.int32)
        self._written: tuple[Manifest, Probe] | None = None

    async def write(self, params: Any, version: int) -> None:
        """Makes weights ready for `push`, and computes what servers must say of them.

        Raises:
          WeightSyncError: see `WeightStore.write`.
        """
        self._written = None
        manifest = await asyncio.to_thread(self._store.write, params, version)
        logprobs = np.asarray(await asyncio.to_thread(self._score, params, self._ids), np.float64)
        if not np.isfinite(logprobs).all():
            raise WeightSyncError(f"the learner's own log-probs with weights {version} are not finite")
        self._written = manifest, Probe(self._ids, logprobs, self._limits)

    async def push(self, client: VllmClient, in_flight: Literal["keep", "abort"] = "keep") -> None:
        """Gives one server the version written last.

        Args:
          in_flight: what becomes of requests under way: "keep" computes their cache anew and goes on, "abort" ends
            them.

        Raises:
          ServerError: names the server and the step that failed; it stays paused until a push succeeds.
          WeightSyncError: nothing is written; or it works with other weights now, and must not be used.
        """
        if self._written is None:
            raise WeightSyncError("no weights are written that could be pushed")
        manifest, probe = self._written
        for step, call in update_steps(client, manifest, in_flight):
            try:
                await call()
            except ServerError as error:
                raise ServerError(
                    f"{client.url} stays paused: push of weights {manifest.version} failed at {step!r}: {error}",
                    status=error.status,
                    retryable=error.retryable,
                ) from error
        await probe.ask(client)

    async def push_all(
        self, clients: Sequence[VllmClient], params: Any, version: int, in_flight: Literal["keep", "abort"] = "keep"
    ) -> None:
        """Writes and pushes to all servers, at the same time.

        Raises:
          WeightSyncError: at least one of them does not have the weights. The others do.
        """
        await self.write(params, version)
        done = await asyncio.gather(*(self.push(client, in_flight) for client in clients), return_exceptions=True)
        failed = [error for error in done if isinstance(error, BaseException)]
        for error in failed:
            if not isinstance(error, (ServerError, WeightSyncError)):
                raise error
        if failed:
            raise WeightSyncError(f"{len(failed)} of {len(clients)} servers: {failed[0]}") from failed[0]

    def close(self) -> None:
        self._store.close()


def update_steps(client: VllmClient, manifest: Manifest, in_flight: Literal["keep", "abort"]):
    """The life cycle of an update, in order: [(name, call)].

    The cache is reset once, when the new weights are complete and before anything is computed with them.
    """
    return [
        ("pause", functools.partial(client.pause, in_flight)),
        ("start", client.start_update),
        ("update", functools.partial(client.update, manifest.as_dict())),
        ("finish", functools.partial(client.finish, manifest.version)),
        ("reset prefix cache", client.reset_prefix_cache),
        ("resume", client.resume),
    ]
