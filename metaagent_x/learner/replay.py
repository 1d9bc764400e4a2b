"""Updates that were skipped because a number was not finite: kept on disk whole, and done again alone.

A skipped update leaves its weights as they were, so they can be kept after the fact. One file, named like
`step_000012_update_2_shared.npz`, holds all that the update depends on: weights, batch, old log-probs, settings, and
what the update measured. It needs no checkpoint, and as much room as one float32 copy of the weights.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from metaagent_x.learner.packing import Batch
from metaagent_x.learner.state import TrainState
from metaagent_x.learner.step import Learner
from metaagent_x.model.parameters import Params, Qwen3Config


class ReplayError(ValueError):
    """A file that is no kept update, or is damaged, or does not fit the settings given. Exit code 2."""


@dataclasses.dataclass(frozen=True)
class Update:
    """One update, with all that it depends on.

    Attributes:
      step, update: which one, both from 1. policy: whose.
      model: fields of the `Qwen3Config`. settings: of the run, nested, values that JSON holds.
      metrics: what `Learner.update` returned, without `time/`.
      made: updates that the policy had made before; the learning rate depends on it.
      params: weights before it. batch, old_logp, ref_logp: as given to `Learner.update`.
    """

    step: int
    update: int
    policy: str
    model: Mapping[str, Any]
    settings: Mapping[str, Any]
    metrics: dict[str, float]
    made: int
    params: Params
    batch: Batch
    old_logp: np.ndarray
    ref_logp: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Skip:
    """An update that was skipped.

    Attributes:
      file: where it is kept, None if it is not. why_not: the reason.
      in_row: of this policy, so many updates one after the other, this one included.
    """

    step: int
    update: int
    policy: str
    loss: float
    grad_norm: float
    in_row: int
    file: Path | None
    why_not: str = ""


class Recorder:
    """Looks at every update of a run, counts those that were skipped as not finite, and keeps the newest of them.

    Attributes:
      in_row: policy -> so many of its updates were skipped one after the other, up to now.
    """

    def __init__(
        self, folder: Path, model: Qwen3Config, settings: Mapping[str, Any], keep: int,
        in_row: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
          in_row: of the run that is resumed.
          folder: for the files; made with the first. keep: so many at most, 0 for none.
          model: the network. settings: of the run.
        """
        self._folder, self._model, self._settings, self._keep = folder, model, settings, keep
        self.in_row: dict[str, int] = dict(in_row or {})
        self._found: list[Skip] = []

    def look(
        self, step: int, policy: str, update: int, state: TrainState, batch: Batch, old_logp: np.ndarray,
        ref_logp: np.ndarray | None, metrics: Mapping[str, float],
    ) -> None:  # fmt: skip
        """Call after every update.

        Args:
          step, update: numbers from 1. state: after it. metrics: returned by it. The rest was given to it.
        """
        if not metrics["nonfinite"]:
            self.in_row[policy] = 0
            return
        self.in_row[policy] = self.in_row.get(policy, 0) + 1
        file, why_not = self._folder / f"step_{step:06d}_update_{update}_{policy}.npz", ""
        if not self._keep:
            file, why_not = None, "guard.dumps=0"
        else:
            kept = {key: value for key, value in metrics.items() if not key.startswith("time/")}
            whole = Update(
                step, update, policy, dataclasses.asdict(self._model), self._settings, kept, int(state.step),
                state.params, batch, old_logp, ref_logp,
            )  # fmt: skip
            try:
                write(file, whole)
                self._drop_older()
            except OSError as error:  # a run should not end because it could not keep what may help later
                file, why_not = None, f"cannot write {file}: {error.strerror or error}"
        loss, norm = metrics["loss"], metrics["grad_norm"]
        self._found.append(Skip(step, update, policy, loss, norm, self.in_row[policy], file, why_not))

    def take(self) -> list[Skip]:
        """What was skipped since the last call."""
        found, self._found = self._found, []
        return found

    def _drop_older(self) -> None:
        files = sorted(self._folder.glob("step_*.npz"), key=lambda path: path.stat().st_mtime_ns)
        for path in files[: -self._keep]:
            path.unlink()


def write(path: Path, update: Update) -> None:
    """Writes one update, leaf by leaf: no second copy of the weights is made in memory. Raises OSError.

    The file is complete or absent. It is a `.npz` of NumPy, with a checksum for every array.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    try:
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_STORED) as archive:
            for name, value in _arrays(update):
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.asarray(value), allow_pickle=False)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def read(path: Path | str) -> Update:
    """Reads what `write` wrote. Raises ReplayError, naming the file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            record = json.loads(str(file["record"]))
            batch = Batch(*(file[f"batch.{name}"] for name in Batch._fields))
            params: Params = {}
            for name in file.files:
                if name.startswith("params."):
                    *groups, last = name.split(".")[1:]
                    at = params
                    for group in groups:
                        at = at.setdefault(group, {})
                    at[last] = file[name]
            ref = file.get("ref_logp")
            return Update(**record, params=params, batch=batch, old_logp=file["old_logp"], ref_logp=ref)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise ReplayError(f"{path}: not an update as a run keeps it in replay/, or damaged ({error})") from error


def _arrays(update: Update) -> Iterator[tuple[str, Any]]:
    fields = ("step", "update", "policy", "model", "settings", "metrics", "made")
    yield "record", json.dumps({name: getattr(update, name) for name in fields})
    for name, value in update.batch._asdict().items():
        yield f"batch.{name}", value
    yield "old_logp", update.old_logp
    if update.ref_logp is not None:
        yield "ref_logp", update.ref_logp
    for name, leaf in _leaves(update.params):
        yield f"params.{name}", leaf


@dataclasses.dataclass(frozen=True)
class Finding:
    """An array with numbers that are not finite.

    Attributes:
      where: "batch", "weights", "log-probs" or "gradients". name: of the array.
      count, size: numbers that are not finite, and all of them.
      index, value: the first one in the order of computation.
      note: which trajectory of the batch, where it belongs to one.
    """

    where: str
    name: str
    count: int
    size: int
    index: tuple[int, ...]
    value: float
    note: str = ""

    def __str__(self) -> str:
        place = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        note = f" ({self.note})" if self.note else ""
        return f"{self.where}: {self.name}{place} is {self.value}{note}; {self.count} of {self.size} are not finite"


@dataclasses.dataclass(frozen=True)
class Replay:
    """An update done again.

    Attributes:
      metrics: what it measured this time, without `time/`.
      findings: arrays that are not finite, in the order in which an update computes: batch, weights from the embedding
        on, log-probs, gradients from the last layer back.
      different: metrics that are not what was recorded, (name, recorded, now): beyond a factor of 1 +- 1e-3 and 1e-6.
      exact: every metric is bitwise what was recorded.
    """

    metrics: dict[str, float]
    findings: list[Finding]
    different: list[tuple[str, float, float]]
    exact: bool


def replay(update: Update, learner: Learner) -> Replay:
    """Does one kept update again, alone, and looks at everything that it computes.

    Args:
      update: see `read`.
      learner: for the kept model, with the settings to try; those of the run reproduce what was recorded.

    Raises:
      ReplayError: the batch was packed for other settings of `learner`.
    """
    state = learner.init(update.params)
    state = dataclasses.replace(state, step=jax.device_put(np.int32(update.made), state.step.sharding))
    try:
        scores = learner.logprobs(state.params, update.batch)
        grads = learner.gradients(state.params, update.batch, update.old_logp, ref_logp=update.ref_logp)
        findings = [
            *_in_batch(update, "batch", {
                "old_logp (the engine's)": update.batch.old_logp, "advantages": update.batch.advantages,
                "weights": update.batch.weights,
            }),
            *_in_leaves("weights", state.params),
            *_in_batch(update, "log-probs", {
                "of these weights": scores, "old (as given)": update.old_logp,
                "reference (as given)": np.zeros_like(scores) if update.ref_logp is None else update.ref_logp,
            }),
            *_in_leaves("gradients", grads, backward=True),
        ]  # fmt: skip
        del grads
        _, metrics = learner.update(state, update.batch, update.old_logp, ref_logp=update.ref_logp)
    except ValueError as error:
        raise ReplayError(f"the kept batch does not fit these settings: {error}") from error
    metrics = {key: value for key, value in metrics.items() if not key.startswith("time/")}
    pairs = [(k, update.metrics.get(k, math.nan), metrics.get(k, math.nan)) for k in update.metrics | metrics]
    return Replay(
        metrics, findings, different=[(k, a, b) for k, a, b in pairs if not _close(a, b)],
        exact=all(a == b or (math.isnan(a) and math.isnan(b)) for _, a, b in pairs),
    )  # fmt: skip


def _close(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-6)


def _in_batch(update: Update, where: str, arrays: Mapping[str, np.ndarray]) -> Iterator[Finding]:
    """What is not finite among the trained positions; others never reach the loss."""
    for name, array in arrays.items():
        bad = ~np.isfinite(array) & update.batch.mask
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            note = f"trajectory {update.batch.trajectory[at]}, position {update.batch.positions[at]}"
            yield Finding(where, name, int(bad.sum()), int(update.batch.mask.sum()), at, float(array[at]), note)


def _in_leaves(where: str, tree: Params, *, backward: bool = False) -> list[Finding]:
    """What is not finite in weights or gradients, one finding a leaf, in the order in which they are used."""
    out = []
    for name, leaf in _leaves(tree):
        array = np.asarray(leaf)
        bad = ~np.isfinite(array)
        if bad.any():
            places = np.argwhere(bad)
            if backward and name.startswith("layers."):
                places = places[places[:, 0] == places[-1, 0]]  # of the last layer
            at = tuple(int(i) for i in places[0])
            out.append(Finding(where, name, int(bad.sum()), array.size, at, float(array[at])))

    def depth(finding: Finding) -> float:
        if finding.name.startswith("layers."):
            return finding.index[0]
        return -1 if finding.name.startswith("embed") else math.inf

    return sorted(out, key=depth, reverse=backward)


def _leaves(params: Params) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree.leaves_with_path(params):
        yield jax.tree_util.keystr(path, simple=True, separator="."), leaf
