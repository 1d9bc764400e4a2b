"""Train states on disk, exact to the bit: written by Orbax in the background, and read back before they count."""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from metaagent_x.learner.state import TrainState
from metaagent_x.model.parameters import Params

FORMAT = 2  # of a step's folder
STATES, MANIFEST, SCORE = "states", "manifest.json", "score.json"  # in the folder of a step
DRAFT, LEAVING, DAMAGED = ".draft", ".leaving", ".damaged"  # endings of folders that are no checkpoint
WRITE_TIMEOUT_S = 7200  # of one step; 98 GB at 14 MB/s
READ_BACK_BYTES = 1 << 30  # leaves are read back in groups of about this size: one leaf at least
BLOCK = 1 << 15  # words that the host mixes at once, so that they stay in its cache: three times as fast as 1 << 18


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or used here. The message names the leaf or the step, and the way out."""


class DamagedCheckpoint(CheckpointError):
    """What lies on disk is not what was saved."""


class Checkpoints:
    """The checkpoints of a run, one folder a step.

    `save` returns when the values are off the devices; the rest goes on in a thread. A step is written under another
    name, read back and compared with checksums taken of the living arrays, and renamed when all of it is right; only
    then are older ones deleted. So a folder named like a step is complete, whatever killed the writer, and there is
    always one as soon as there was one. There is never a silent fresh start: what does not fit raises.

    A checksum is a sum, modulo 2^32, of every 32-bit word mixed with its place in the whole leaf. Such a sum is the
    same on any mesh, so each device adds up its own shard and nothing is gathered. The host reads back one leaf at a
    time (at most 7 GB for an 8B policy), at about 1 GB/s: two minutes of the background for the 98 GB of such a state.
    One process is assumed: several hosts would have to agree on when a step is complete.
    """

    def __init__(self, folder: Path | str, keep: int = 2, *, keep_every: int = 0, read_only: bool = False) -> None:
        """Opens the folder, and removes what an interrupted write left there.

        Args:
          folder: made if absent, unless `read_only`.
          keep: so many of the newest steps stay on disk. The one with the best score stays beside them.
          keep_every: every step that is a multiple of this stays as well; 0: none.
          read_only: leave everything as it is, also what a run that is still going is just writing.
        """
        self.folder = Path(folder).absolute()  # Orbax refuses relative paths
        self._keep, self._keep_every, self._read_only = keep, keep_every, read_only
        self._writer: threading.Thread | None = None
        self._failure: CheckpointError | None = None
        if not read_only:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in [*self.folder.glob(f"*{DRAFT}"), *self.folder.glob(f"*{LEAVING}")]:
                shutil.rmtree(path)

    def save(self, step: int, states: Mapping[str, TrainState], extra: Mapping[str, Any]) -> None:
        """Begins to write the states (policy name -> state) and `extra` (values JSON can hold).

        The arrays may be donated as soon as it returns. It first waits for the write before.

        Raises:
          CheckpointError: the write before failed; the step is there already; a leaf holds a value that is not finite,
            which would take the place of a state that can still learn; or this write cannot even begin.
        """
        self.wait()
        if step in self.steps():
            raise CheckpointError(f"{self.folder} has a checkpoint of step {step} already; a step is saved once")
        leaves = _leaves(dict(states))
        taken = _fingerprints(leaves)
        if wrong := [name for name, (_, bad) in taken.items() if bad]:
            raise CheckpointError(
                f"{self.folder}: step {step} is not saved: {taken[wrong[0]][1]} values of leaf {wrong[0]} are not "
                f"finite ({len(wrong)} of {len(leaves)} leaves hold such values); {self._standing()}. Train with a "
                "lower learning rate in another folder"
            )
        table = {name: [x.shape, str(x.dtype), taken[name][0]] for name, x in leaves.items()}
        content = json.loads(json.dumps({"format": FORMAT, "leaves": table, "extra": dict(extra)}))
        draft = self.folder / f"{step}{DRAFT}"
        try:
            shutil.rmtree(draft, ignore_errors=True)  # of a write that failed
            draft.mkdir()
            orbax = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(), timeout_secs=WRITE_TIMEOUT_S)
            # Returns with every value on the host. On a CPU that is the buffer itself, which JAX then does not donate.
            orbax.save(draft / STATES, args=ocp.args.PyTreeSave(leaves))  # type: ignore[call-arg]
        except Exception as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise self._unsaved(step, error) from error
        self._writer = threading.Thread(target=self._finish, args=(step, orbax, content), name=f"checkpoint {step}")
        self._writer.start()

    def wait(self) -> None:
        """Returns when nothing is being written any more. Needed before the process ends: its threads stop then.

        Raises:
          CheckpointError: what was written last is not on disk; names the last step that is.
        """
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def check(self) -> None:
        """Raises CheckpointError if a write has failed by now; does not wait."""
        if self._failure is not None:
            self.wait()

    def score(self, step: int, value: float) -> None:
        """Notes how good a step is on the dev tasks; higher is better. The best one is not deleted.

        A step that is not there is passed over: not every one that is measured is saved.

        Raises:
          ValueError: not a finite number. CheckpointError: see `wait`.
        """
        if not math.isfinite(value):
            raise ValueError(f"score of step {step} is {value}; it must be a finite number")
        self.wait()
        if step in self.steps():
            _write(self.folder / str(step) / SCORE, json.dumps({"score": value}))

    def drop_after(self, step: int) -> None:
        """Deletes every checkpoint of a later step, the newest first. Raises as `wait`."""
        self.wait()
        for later in reversed([known for known in self.steps() if known > step]):
            self._delete(later)

    def steps(self) -> list[int]:
        """The steps on disk, in order."""
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted(int(path.name) for path in found if path.name.isdecimal())

    def latest(self) -> int | None:
        """The newest complete step, None if there is none. Waits for one that is being written; raises as `wait`."""
        self.wait()
        return max(self.steps(), default=None)

    def resume(
        self, templates: Mapping[str, TrainState], say: Callable[[str], Any] = print
    ) -> tuple[int, dict[str, TrainState], dict[str, Any]] | None:
        """Reads the newest step that is whole: its number and what `restore` returns. None if nothing was ever saved.

        Those that are damaged are told, and moved aside (`12.damaged`) as soon as an earlier one has been read.

        Raises:
          CheckpointError: all are damaged, or as in `restore`.
        """
        damaged: dict[int, DamagedCheckpoint] = {}
        self.wait()
        for step in reversed(self.steps()):
            try:
                states, extra = self.restore(step, templates)
            except DamagedCheckpoint as error:
                damaged[step] = error
                continue
            for other, error in damaged.items():
                say(f"{error}; set aside as {other}{DAMAGED}, going on from step {step}")
                self._set_aside(other)
            return step, states, extra
        if damaged:
            raise CheckpointError(
                f"{self.folder}: no checkpoint can be read ({'; '.join(map(str, damaged.values()))}); bring one back "
                "from a copy, or remove this folder to start from step 0"
            )
        return None

    def restore(self, step: int, templates: Mapping[str, TrainState]) -> tuple[dict[str, TrainState], dict[str, Any]]:
        """Reads a step into the structure, shapes and shardings of `templates`, which are not changed.

        Raises:
          DamagedCheckpoint: it is not what was saved.
          CheckpointError: no such step, or a leaf that is missing, unknown, or of another shape or dtype.
        """
        wanted = _leaves(dict(templates))
        content = self._content(step)
        self._check(step, wanted, content["leaves"])
        found = self._read(step, wanted, content["leaves"])
        return jax.tree.unflatten(jax.tree.structure(dict(templates)), found), content["extra"]

    def policies(self, step: int) -> list[str]:
        """Names of the policies that a step holds. Raises CheckpointError if there is no such step."""
        return sorted({name.split(".")[0] for name in self._content(step)["leaves"]})

    def restore_params(self, step: int, policy: str, template: Params) -> Params:
        """Reads the weights of one policy, without its optimizer state.

        Args:
          step: see `latest`.
          policy: see `policies`.
          template: their shapes, dtypes and shardings (arrays or `jax.ShapeDtypeStruct`).

        Raises:
          DamagedCheckpoint: they are not what was saved.
          CheckpointError: no such step or policy, or a leaf that is missing, unknown, or of another shape or dtype.
        """
        saved = self._content(step)["leaves"]
        if policy not in (known := sorted({name.split(".")[0] for name in saved})):
            raise CheckpointError(f"{self.folder / str(step)} has no policy {policy!r}; it has {', '.join(known)}")
        wanted = _leaves({policy: {"params": template}})
        self._check(step, wanted, {k: v for k, v in saved.items() if k.startswith(f"{policy}.params.")})
        return jax.tree.unflatten(jax.tree.structure(template), self._read(step, wanted, saved))

    def _finish(self, step: int, orbax: ocp.AsyncCheckpointer, content: Mapping[str, Any]) -> None:
        """Waits for the write, verifies it, makes it count, deletes what has had its day. Runs in a thread."""
        draft = self.folder / f"{step}{DRAFT}"
        try:
            orbax.close()  # after the write; raises what went wrong in it
            _verify(draft / STATES, content["leaves"])
            _write(draft / MANIFEST, json.dumps({"crc32": _crc(content), "content": content}))
            os.rename(draft, self.folder / str(step))
            _sync(self.folder)
            for old in self._past():
                self._delete(old)
        except Exception as error:  # raised by whoever calls next
            shutil.rmtree(draft, ignore_errors=True)
            self._failure = self._unsaved(step, error)

    def _past(self) -> list[int]:
        """The steps that no rule keeps."""
        steps = self.steps()
        kept = set(steps[-self._keep :])
        scores = {step: value for step in steps if (value := self._score(step)) is not None}
        if scores:
            kept.add(max(scores, key=lambda step: (scores[step], step)))
        if self._keep_every:
            kept |= {step for step in steps if step % self._keep_every == 0}
        return [step for step in steps if step not in kept]

    def _score(self, step: int) -> float | None:
        path = self.folder / str(step) / SCORE
        return json.loads(path.read_text())["score"] if path.exists() else None

    def _delete(self, step: int) -> None:
        """Takes the name away first: half a folder never looks like a checkpoint."""
        leaving = self.folder / f"{step}{LEAVING}"
        os.rename(self.folder / str(step), leaving)
        shutil.rmtree(leaving)

    def _set_aside(self, step: int) -> None:
        if self._read_only:
            return
        aside = self.folder / f"{step}{DAMAGED}"
        shutil.rmtree(aside, ignore_errors=True)  # of an earlier time
        os.rename(self.folder / str(step), aside)

    def _standing(self) -> str:
        newest = max(self.steps(), default=None)
        return f"there is no earlier checkpoint in {self.folder}" if newest is None else f"step {newest} there is whole"

    def _unsaved(self, step: int, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"{self.folder}: saving step {step} failed ({_said(error)}); {self._standing()}. Free some space or repair "
            "the disk, then give the same command to go on"
        )

    def _content(self, step: int) -> dict[str, Any]:
        """The manifest of a step: leaf -> [shape, dtype, checksum] under `leaves`, and `extra`."""
        folder = self.folder / str(step)
        if step not in self.steps():
            raise CheckpointError(f"{self.folder} has no checkpoint of step {step}; it has {self.steps()}")
        try:
            manifest = json.loads((folder / MANIFEST).read_text())
            content = manifest["content"]
            if _crc(content) != manifest["crc32"]:
                raise ValueError("its checksum is another")
            if content["format"] != FORMAT:
                raise CheckpointError(f"checkpoint {folder} is of format {content['format']}; this is {FORMAT}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedCheckpoint(f"checkpoint {folder} is damaged: {MANIFEST}: {_said(error)}") from error
        return content

    def _read(self, step: int, wanted: Mapping[str, Any], saved: Mapping[str, Any]) -> list[jax.Array]:
        """The leaves of `wanted`, in its order, placed as they are there."""
        folder = self.folder / str(step)
        abstract = {k: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for k, x in wanted.items()}
        try:
            found = _restored(folder / STATES, abstract, ocp.checkpoint_utils.construct_restore_args(abstract))
        except Exception as error:  # Orbax and TensorStore raise many kinds, some of them bare
            reason = _origin(error)
            if not isinstance(reason, Exception) or isinstance(reason, MemoryError | jax.errors.JaxRuntimeError):
                raise  # interrupted, or no room here: nothing is wrong with the checkpoint
            raise DamagedCheckpoint(f"checkpoint {folder} is damaged: {_said(error)}") from error
        if wrong := [name for name, (checksum, _) in _fingerprints(found).items() if checksum != saved[name][2]]:
            raise DamagedCheckpoint(f"checkpoint {folder} is damaged: leaf {wrong[0]} has another checksum than saved")
        return [found[name] for name in wanted]

    def _check(self, step: int, wanted: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
        where = f"checkpoint {self.folder / str(step)}"
        hint = "it was made by another model, policy or optimizer setting; use that config or another workdir"
        for name in [*wanted, *saved]:
            if name not in saved:
                raise CheckpointError(f"{where} has no leaf {name}; {hint}")
            if name not in wanted:
                raise CheckpointError(f"{where} has a leaf {name} that this run does not; {hint}")
            shape, dtype, _ = saved[name]
            if tuple(shape) != wanted[name].shape or dtype != str(wanted[name].dtype):
                raise CheckpointError(
                    f"{where}: leaf {name} is {dtype}{shape}, this run needs "
                    f"{wanted[name].dtype}{list(wanted[name].shape)}; {hint}"
                )


def _leaves(tree: Any) -> dict[str, Any]:
    """Path -> leaf, in the order of the tree."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in jax.tree.leaves_with_path(tree)
    }


def _origin(error: BaseException) -> BaseException:
    """The error that was there first."""
    return error if error.__cause__ is None else _origin(error.__cause__)


def _said(error: BaseException) -> str:
    """One line: what TensorStore raises holds pages of descriptions."""
    first = _origin(error)
    return f"{type(first).__name__}: {str(first).partition(chr(10))[0][:400]}"


def _restored(folder: Path, abstract: Mapping[str, Any], how: Mapping[str, Any]) -> dict[str, Any]:
    """Some of the leaves that lie in a folder of Orbax."""
    with ocp.PyTreeCheckpointer() as reader:
        args = ocp.args.PyTreeRestore(abstract, restore_args=how, partial_restore=True)  # type: ignore[call-arg]
        return reader.restore(folder, args=args)


def _verify(folder: Path, saved: Mapping[str, Any]) -> None:
    """Compares what lies in the folder with its table (leaf -> [shape, dtype, checksum]). Raises DamagedCheckpoint."""
    sizes = {name: math.prod(shape) * np.dtype(dtype).itemsize for name, (shape, dtype, _) in saved.items()}
    for names in _groups(sizes):
        how = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
        for name, values in _restored(folder, dict.fromkeys(names, 0), how).items():
            if _checksum(values) != saved[name][2]:
                raise DamagedCheckpoint(f"what was read back of leaf {name} is not what was written")


def _groups(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Names in order, so many at a time that their sizes stay within READ_BACK_BYTES; one at least."""
    names: list[str] = []
    total = 0
    for name, size in sizes.items():
        if names and total + size > READ_BACK_BYTES:
            yield names
            names, total = [], 0
        names.append(name)
        total += size
    if names:
        yield names


def _fingerprints(leaves: Mapping[str, jax.Array]) -> dict[str, tuple[int, int]]:
    """Leaf -> checksum, number of values that are not finite. One at a time: a CPU needs room for the mixed words."""
    return {name: tuple(np.asarray(_fingerprint(leaf)).tolist()) for name, leaf in leaves.items()}


@jax.jit
def _fingerprint(x: jax.Array) -> jax.Array:
    """The two numbers of a leaf, uint32 [2], wherever it lies."""
    words = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}").astype(jnp.uint32)
    index, stride = jnp.zeros(x.shape, jnp.uint32), 1
    for axis in reversed(range(x.ndim)):
        index += jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis) * np.uint32(stride % 2**32)
        stride *= x.shape[axis]
    bad = ~jnp.isfinite(x) if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.zeros(x.shape, bool)
    return jnp.stack([jnp.sum(_mixed(words, index), dtype=jnp.uint32), jnp.sum(bad, dtype=jnp.uint32)])


def _crc(content: Any) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _checksum(x: np.ndarray) -> int:
    """The checksum of `_fingerprint`, on the host."""
    words = np.ascontiguousarray(x).reshape(-1).view(f"u{x.dtype.itemsize}")
    first, total = np.arange(BLOCK, dtype=np.uint32), 0
    for start in range(0, words.size, BLOCK):
        block = words[start : start + BLOCK].astype(np.uint32)
        index = first[: block.size] + np.uint32(start % 2**32)
        total += int(_mixed(block, index).sum(dtype=np.uint64))
    return total % 2**32


def _mixed(words: Any, index: Any) -> Any:
    """The last steps of MurmurHash3, on every word and its index: one to one in the word, so no change is lost."""
    h = words ^ (index * np.uint32(0x9E3779B1))
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def _write(path: Path, text: str) -> None:
    """Writes a small file whole or not at all, down to the disk."""
    beside = path.with_name(path.name + DRAFT)
    with open(beside, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Makes the names in a folder outlast a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
