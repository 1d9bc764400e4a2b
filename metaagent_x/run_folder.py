"""The folder of one run: its settings, one line a step, evaluations, the gate's table, TensorBoard curves.

config.json          the settings; a folder belongs to one set of settings
data.json            what every data set gave: rows read, left out and why, tasks, a hash; a run goes on with the same
metrics.jsonl        one object a step; everything that depends on the clock stands under `time/`
evaluations.jsonl    one object an evaluation
changes.jsonl        settings that were changed under way: after which step, from what, to what
roll_backs.jsonl     where the run went back after a collapse, and why
gate.json            what the headroom gate measured
attempts.jsonl, usage.jsonl, designer.jsonl, executor.jsonl, summary.json, summary.html: of `distill`
alerts.jsonl         one object for everything that a guard found wrong, see `guards.Alert`
tensorboard/         the same metrics as curves
model/               the network's config.json and the tokenizer's files: with a checkpoint, all that an export needs
heartbeat.json       how the process is doing, every few seconds; stuck.txt: where all waited when it did not get on
hf/                  of supervised fine-tuning: the policy at its end as a Hugging Face folder
replay/              updates that were skipped because a number was not finite, for --replay
model/ traces/ checkpoints/ report.html and these last ones are written by others
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_collections

from metaagent_x.config import ConfigError

# These say how far a run goes and where it lies, not what a step computes: they may change when it is resumed.
RESUMABLE_CHANGES = frozenset(
    {
        "workdir", "steps", "tokens", "checkpoint.every", "checkpoint.keep", "checkpoint.keep_every", "checkpoint.best",
        "sft.cache", "engine.python", "engine.urls", "engine.servers", "engine.layout", "engine.memory_share",
        "teacher.url", "teacher.prompt_price", "teacher.completion_price", "teacher.requests_per_minute",
        "teacher.tokens_per_minute", "teacher.concurrency", "teacher.timeout_s", "teacher.tries",
        # Attempts are kept by task and number: what is chosen of them may be decided anew.
        "distill.designers", "distill.executors", "distill.attempts", "distill.round", "distill.budget",
        "distill.same_script", "distill.replies", "distill.per_task", "distill.near", "distill.reasoning_chars",
        "distill.benchmarks",
        "engine.weights_dir", "engine.request_timeout_s", "engine.push_timeout_s", "engine.start_timeout_s",
        # An evaluation may play more: a row of its results says which method, benchmark, sample and task it is of.
        "evaluate.methods", "evaluate.benchmarks", "evaluate.samples", "evaluate.runs", "evaluate.limit",
        "evaluate.in_flight", "evaluate.published",
    }
)  # fmt: skip
RESUMABLE_GROUPS = ("guard.", "distill.quotas.")  # the same of whole groups
PROBE_BYTES = 1 << 20
DESCRIPTION = "model"


class RunFolderError(ConfigError):
    """The folder cannot be used: other settings, no permission, no room, in use, or a damaged file."""


class RunWriteError(OSError):
    """Something cannot be written under way: no room, no permission, a disk that is gone. What was written is whole."""

    def __str__(self) -> str:
        return str(self.strerror)


class RunFolder:
    """Writes one run. Lines are appended whole or not at all; nothing already written is changed, except that
    `truncate_after` drops the steps that a resumed run plays again.

    Attributes:
      path: the folder. name: its last part, the run's name in traces.
    """

    def __init__(
        self, path: str | os.PathLike[str], config: ml_collections.ConfigDict, allow: Iterable[str] = (), *,
        look: bool = False,
    ) -> None:  # fmt: skip
        """Opens or creates the folder for these settings.

        Args:
          path: the folder. config: the settings.
          allow: fields that may differ from those that the run began with, each by its name. See `log_changes`.
          look: only find out whether the folder can be used; nothing in it is changed.

        Raises:
          RunFolderError: the folder holds a run of other settings (every difference is listed), is in use by another
            process, or cannot be written (permission, full disk). Found out before any compute is spent.
        """
        self.path = Path(path).absolute()
        self.name = self.path.name
        self._board: Any = None
        self._purge = 1
        settings = json.loads(json.dumps(config.to_dict()))
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = self._lock_folder()
            self._changes = self._check_same(settings, frozenset(allow))
            self._probe()
            if look:
                return
            _replace(self.path / "config.json", json.dumps(settings, indent=2) + "\n")
        except OSError as error:
            raise _explained(error, self.path) from error

    def check_data(self, origins: Sequence[Mapping[str, Any]]) -> None:
        """Keeps what the data sets gave, and refuses to go on with other data.

        Tasks are drawn by step alone, so a changed file would change every later batch without a word.

        Args:
          origins: one record for each set, with at least `use`, `name`, `tasks` and `hash`.

        Raises:
          RunFolderError: the folder holds a run on other data; says which sets differ.
        """
        path = self.path / "data.json"
        try:
            known = json.loads(path.read_text()) if path.exists() else origins
            there, here = ({(o["use"], o["name"]): o for o in side} for side in (known, origins))
            if changed := [
                f"{name} for {use}: {_said(there, (use, name))} there, {_said(here, (use, name))} here"
                for use, name in there | here
                if there.get((use, name), {}).get("hash") != here.get((use, name), {}).get("hash")
            ]:
                raise RunFolderError(
                    f"workdir={self.path} holds a run on other data ({'; '.join(changed)}); restore the files, or "
                    "choose another --workdir"
                )
            _replace(path, json.dumps(list(origins), indent=2) + "\n")
        except OSError as error:
            raise _explained(error, path) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, RunFolderError):
                raise
            raise RunFolderError(f"{path}: not readable ({error!r}); choose another --workdir") from error

    def log(self, step: int, roles: Iterable[str], metrics: Mapping[str, float]) -> dict[str, Any]:
        """Appends one step.

        Args:
          step: 1 for the first. roles: who learned at this step.
          metrics: name -> number. A number that is not finite is written as null, and named under `not_finite`.

        Returns:
          the line, as `metrics` will read it.
        """
        active = sorted(roles)
        line: dict[str, Any] = {"step": step, "stage": "+".join(active), "role/active": active}
        line |= {key: float(metrics[key]) for key in sorted(metrics)}
        if wrong := [k for k, v in line.items() if isinstance(v, float) and not math.isfinite(v)]:
            line |= dict.fromkeys(wrong) | {"not_finite": wrong}
        self._append("metrics.jsonl", line)
        self._draw(step, metrics)
        return line

    def log_alert(self, record: Mapping[str, Any]) -> None:
        """Appends what a guard found; `step` must be in it."""
        self._append("alerts.jsonl", record)

    def log_changes(self, step: int) -> None:
        """Appends the settings that have been changed on purpose, if any, once: field -> [from, to].

        Args:
          step: after which the run goes on.
        """
        if self._changes:
            self._append("changes.jsonl", {"after_step": step, "changes": self._changes})
            self._changes = {}

    def log_roll_back(self, record: Mapping[str, Any]) -> None:
        """Appends where the run went back and why."""
        self._append("roll_backs.jsonl", record)

    def roll_backs(self) -> list[dict[str, Any]]:
        """Those so far, in order. They are never taken back."""
        return read_lines(self.path / "roll_backs.jsonl")

    def log_evaluation(self, record: Mapping[str, Any]) -> None:
        """Appends one evaluation."""
        self._append("evaluations.jsonl", record)

    def write_gate(self, record: Mapping[str, Any]) -> None:
        """Writes what the headroom gate measured; a later measurement replaces an earlier one."""
        try:
            _replace(self.path / "gate.json", json.dumps(record, indent=2, allow_nan=False) + "\n")
        except OSError as error:
            raise _unwritten(error, self.path / "gate.json") from error

    def check_begins(self, every: int) -> None:
        """Refuses to begin again where a run has been that must have saved something.

        Args:
          every: steps between two checkpoints. The first is on disk before the third is begun.

        Raises:
          RunFolderError: its steps would be deleted.
        """
        if (played := self._played()) > 2 * every and not self.roll_backs():
            raise RunFolderError(
                f"workdir={self.path} holds {played} steps and no checkpoint: the run would begin again and delete "
                "them; bring checkpoints/ back, or remove metrics.jsonl to begin again, or choose another --workdir"
            )

    def metrics(self) -> list[dict[str, Any]]:
        """The steps so far, in order."""
        return read_lines(self.path / "metrics.jsonl")

    def evaluations(self) -> list[dict[str, Any]]:
        """The evaluations so far, in order."""
        return read_lines(self.path / "evaluations.jsonl")

    def truncate_after(self, step: int) -> None:
        """Drops what was written after `step`, the step of the checkpoint that the run goes on from: lines, traces and
        a last line that an interruption left incomplete. Kept lines stay as they are, byte by byte."""
        self._purge = step + 1
        if self._board is not None:  # of steps that did not last
            self._board.close()
            self._board = None
        try:
            for name in ("metrics.jsonl", "evaluations.jsonl", "alerts.jsonl"):
                _truncate_lines(self.path / name, step)
            for file in (self.path / "traces").glob("step_*.parquet"):
                if (number := re.fullmatch(r"step_(\d+)", file.stem)) and int(number[1]) > step:
                    file.unlink()
        except OSError as error:
            raise _unwritten(error, self.path) from error

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        append_lines(self.path / name, [record])

    def _draw(self, step: int, metrics: Mapping[str, float]) -> None:
        # Imported late: jobs that only read a run folder do not need it.
        from tensorboardX import SummaryWriter

        try:
            if self._board is None:
                self._board = SummaryWriter(logdir=str(self.path / "tensorboard"), purge_step=self._purge)
            for key in sorted(metrics):
                self._board.add_scalar(key, float(metrics[key]), step)
            self._board.flush()
        except OSError as error:
            raise _unwritten(error, self.path / "tensorboard") from error

    def _lock_folder(self) -> Any:
        handle = open(self.path / ".lock", "w")  # noqa: SIM115  held, and so locked, as long as this object lives
        try:
            # A lock of the process, not of the handle: a second RunFolder in one process is the same writer.
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.close()
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise RunFolderError(
                f"workdir={self.path}: another process is writing this run; wait for it or choose another --workdir"
            ) from None
        return handle

    def _played(self) -> int:
        return max((line["step"] for line in read_lines(self.path / "metrics.jsonl")), default=0)

    def _check_same(self, settings: Mapping[str, Any], allow: frozenset[str]) -> dict[str, Any]:
        """Raises unless the folder's settings are these. Returns the changes that were allowed: field -> [from, to]."""
        given = flatten(settings)
        if unknown := sorted(allow - given.keys()):
            raise RunFolderError(f"--allow_change={unknown[0]}: no such field; give one as in --config.{unknown[0]}")
        path = self.path / "config.json"
        if not path.exists():
            if kept := [n for n in ("metrics.jsonl", "checkpoints", "traces") if (self.path / n).exists()]:
                raise RunFolderError(
                    f"workdir={self.path} holds {', '.join(kept)} but no config.json: it is not known which settings "
                    "they belong to; choose another --workdir"
                )
            return {}
        try:
            known = flatten(json.loads(path.read_text()))
        except ValueError as error:
            raise RunFolderError(f"{path}: not readable as JSON ({error}); choose another --workdir") from error
        played = self._played()
        if given.get("steps", played) < played:
            raise RunFolderError(
                f"workdir={self.path} holds {played} steps, more than steps={given['steps']}; choose another --workdir"
            )
        changed = {
            k: [known.get(k, "absent"), given.get(k, "absent")]
            for k in sorted(known.keys() | given.keys())
            if known.get(k, "absent") != given.get(k, "absent")
            and not (k in RESUMABLE_CHANGES or k.startswith(RESUMABLE_GROUPS))
        }
        if refused := sorted(changed.keys() - allow):
            told = "; ".join(f"{k}: {changed[k][0]!r} there, {changed[k][1]!r} here" for k in refused)
            allowed = " ".join(f"--allow_change={k}" for k in refused)
            raise RunFolderError(
                f"workdir={self.path} holds a run of other settings ({told}); choose another --workdir, give the same "
                f"settings to go on, or go on with others on purpose: {allowed}"
            )
        return changed

    def _probe(self) -> None:
        """Fails now, not after the first step, if the disk is full."""
        probe = self.path / ".probe"
        try:
            with open(probe, "wb", buffering=0) as file:
                file.write(b"\0" * PROBE_BYTES)
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)


def read_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The objects of a `.jsonl` file; none if it does not exist. A last line without its end is not counted.

    Raises:
      RunFolderError: a complete line is not JSON; names file and line.
    """
    path = Path(path)
    out = []
    for number, line in enumerate(_complete_lines(path), 1):
        try:
            out.append(json.loads(line))
        except ValueError as error:
            raise RunFolderError(f"{path}, line {number}: not readable as JSON ({error})") from error
    return out


def sampled_tokens(lines: Iterable[Mapping[str, Any]]) -> int:
    """Tokens that both roles sampled in these lines of `metrics.jsonl`; what was void is not counted, and a line that
    names none, as of a step 0, has none."""
    return int(sum(line.get(f"tokens/{role}", 0) for line in lines for role in ("designer", "executor")))


def append_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Appends an object a line to a `.jsonl` file: all of them or none. Raises RunWriteError."""
    data = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records).encode()
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            before = os.lseek(handle, 0, os.SEEK_END)
            _write_whole(handle, data, before)
        finally:
            os.close(handle)
    except OSError as error:
        raise _unwritten(error, path) from error


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        out |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return out


def _said(sets: Mapping[tuple[str, str], Mapping[str, Any]], key: tuple[str, str]) -> str:
    return f"{sets[key]['tasks']} tasks ({sets[key]['hash']})" if key in sets else "absent"


def _complete_lines(path: Path) -> list[bytes]:
    if not path.exists():
        return []
    return path.read_bytes().split(b"\n")[:-1]


def _truncate_lines(path: Path, step: int) -> None:
    if not path.exists():
        return
    kept = [
        line for line, record in zip(_complete_lines(path), read_lines(path), strict=True) if record["step"] <= step
    ]
    data = b"".join(line + b"\n" for line in kept)
    if data != path.read_bytes():
        _replace(path, data.decode())


def _write_whole(handle: int, data: bytes, before: int) -> None:
    """Writes all of `data` at the end of the file, or leaves the file as long as it was."""
    done = 0
    try:
        while done < len(data):
            done += os.write(handle, data[done:])
        os.fsync(handle)
    except OSError:
        # The reason to report is the failed write, even if the rest cannot be taken back either.
        with contextlib.suppress(OSError):
            os.ftruncate(handle, before)
        raise


def _replace(path: Path, text: str) -> None:
    """Writes beside the file, then takes its place: a reader or a full disk never meets half a file."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        with open(draft, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _explained(error: OSError, path: Path) -> RunFolderError:
    return RunFolderError(f"workdir: {_why(error, path)}")


def _unwritten(error: OSError, path: Path) -> RunWriteError:
    return RunWriteError(error.errno, _why(error, path))


def _why(error: OSError, path: Path) -> str:
    way_out = {
        errno.ENOSPC: "free some space or choose a --workdir on another disk",
        errno.EDQUOT: "free some of your quota or choose a --workdir on another disk",
        errno.EACCES: "choose a --workdir that you may write",
        errno.EROFS: "choose a --workdir on a disk that can be written",
        errno.ENOTDIR: "part of this path is a file; choose another --workdir",
        errno.EEXIST: "it is a file, not a folder; choose another --workdir",
    }.get(error.errno or 0, "choose another --workdir")
    return f"cannot write {path}: {error.strerror or error}; {way_out}"
