"""Everything that an analysis reads, once: runs with their traces and evaluations, and folders of `evaluate`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metaagent_x.analysis.ablation import Variant, variants
from metaagent_x.analysis.evaluations import Evaluation, is_evaluation, read_evaluation
from metaagent_x.analysis.executions import Executions, Sampled, of_evaluation, of_traces
from metaagent_x.analysis.read import Run, read_run
from metaagent_x.run_folder import RunFolderError

LAST = 0.1  # share of the steps that "the last steps" are
BINS = 25  # windows of steps in a figure, at most


@dataclasses.dataclass(frozen=True)
class Group:
    """A variant with what its runs sampled, in the order of `variant.runs`."""

    variant: Variant
    sampled: Sequence[Sampled]

    @property
    def name(self) -> str:
        """Short, for headings, and another one for every group: what distinguishes it, or the run's own name."""
        runs = self.variant.runs
        if self.variant.settings:
            return self.variant.label
        return runs[0].path.name if len(runs) == 1 else f"{len(runs)} seeds"

    @functools.cached_property
    def trained(self) -> Executions:
        """All executions of all its runs."""
        return Executions.joined([s.executions for s in self.sampled])

    @property
    def steps(self) -> int:
        """The last step that any of its runs has."""
        return max((line["step"] for run in self.variant.runs for line in run.metrics), default=0)

    @property
    def window(self) -> int:
        """Steps in a window of a figure."""
        return max(1, -(-self.steps // BINS))

    @property
    def since(self) -> int:
        """The first of the last steps."""
        last = max((int(s.steps[-1]) for s in self.sampled if len(s.steps)), default=self.steps)
        return max(1, last + 1 - max(5, round(LAST * last)))

    @functools.cached_property
    def last(self) -> Executions:
        """Executions of the last steps."""
        return self.trained.where(self.trained.step >= self.since)

    def stages(self) -> tuple[list[int], list[list[str]]] | None:
        """(steps, who learned at each), of the longest of its runs if all have the same schedule; else None."""
        found = [({line["step"]: line.get("role/active", []) for line in run.metrics}) for run in self.variant.runs]
        longest = max(found, key=len, default={})
        if not longest or any(longest.get(step) != roles for own in found for step, roles in own.items()):
            return None
        return list(longest), list(longest.values())

    def records(self, name: str, temperature: float, **fields: str) -> list[Mapping[str, Any]]:
        """The evaluation of this name of every run that has it."""
        found = [run.evaluation(name, temperature=temperature, **fields) for run in self.variant.runs]
        return [record for record in found if record is not None]

    def held_out(self, name: str, temperature: float) -> Executions | None:
        """The same as executions, the run's number as their design; None if none tells its structures."""
        parts = []
        for number, run in enumerate(self.variant.runs):
            record = run.evaluation(name, temperature=temperature)
            played = of_evaluation(record, number) if record is not None else None
            if played is not None:
                parts.append(played)
        return Executions.joined(parts) if parts else None

    def curve(self, value: Callable[[Mapping[str, Any]], float | None]) -> list[dict[int, float]]:
        """Step -> a figure of its line, of every run; NaN where it has none."""
        out = []
        for run in self.variant.runs:
            found = {line["step"]: value(line) for line in run.metrics}
            out.append({step: np.nan if v is None else float(v) for step, v in found.items()})
        return out

    def lengths(self, role: str) -> list[dict[int, float]]:
        """Step -> mean tokens of the role's completions, of every run."""
        return [dict(zip(s.steps.tolist(), s.lengths[role].tolist(), strict=True)) for s in self.sampled]


@dataclasses.dataclass(frozen=True)
class Material:
    """What was given. `groups`: runs by variant. `evaluations`: folders of `evaluate`, in the order given."""

    groups: Sequence[Group]
    evaluations: Sequence[Evaluation]


def gather(
    folders: Sequence[Path], *, progress: Callable[[str, Sequence[Path]], Iterable[Path]] = lambda _, files: files
) -> Material:
    """Reads all folders.

    Args:
      folders: of runs and of evaluations. progress: (name of the run, its trace files) -> the files, to show how far it
        is.

    Raises:
      RunFolderError: a folder is neither, a file in it is damaged (named, a line by its number), or evaluations were
        judged by different scorers.
    """
    given = list(dict.fromkeys(folder.resolve() for folder in folders))
    runs = [read_run(folder) for folder in given if not is_evaluation(folder)]
    sampled = {
        run.path: of_traces(run.traces, int(run.config.get("executions", 1)),
                            progress=functools.partial(progress, run.path.name))
        for run in runs
    }  # fmt: skip
    groups = [Group(v, [sampled[run.path] for run in v.runs]) for v in (variants(runs) if runs else [])]
    evaluations = [read_evaluation(folder) for folder in given if is_evaluation(folder)]
    if len({e.name for e in evaluations}) < len(evaluations):  # equal names in different places
        evaluations = [dataclasses.replace(e, name=str(e.path)) for e in evaluations]
    if other := next((e for e in evaluations[1:] if e.scorer != evaluations[0].scorer), None):
        first = evaluations[0]
        raise RunFolderError(
            f"{first.path} was judged by scorer {first.scorer} and {other.path} by {other.scorer}: their results "
            "cannot be compared; play one of them again"
        )
    return Material(groups, evaluations)


def described(run: Run) -> str:
    """One line on what a run's steps are made of."""
    c = run.config
    return (
        f"{c.get('policy', 'shared')} policy, {c.get('schedule', '?')}, K = {c.get('stage_length', '?')}, "
        f"{c.get('batch', '?')} tasks a step, M × N = {c.get('designs', '?')} × {c.get('executions', '?')}"
    )
