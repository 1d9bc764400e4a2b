"""What a dataset holds and whether it can be trusted: a report, and the rows without what it found.

Every gold is put into the box of an answer and graded, as it stands and in another spelling of the same: an answer that
equals the gold character by character is right in any case, which says little. A gold that is not right itself teaches
that nothing is.
Reference programs, where the rows have them, can be judged on the task's own tests. Training tasks that a benchmark
also asks are listed (`overlap`).
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from tokenizers import Tokenizer

from metaagent_x.tasks import code
from metaagent_x.tasks.datasets import overlap, public_only
from metaagent_x.tasks.datasets.files import open_rows
from metaagent_x.tasks.datasets.reading import Item, Progress, silent
from metaagent_x.tasks.datasets.rows import DatasetError
from metaagent_x.tasks.math import extract_answer, is_equivalent
from metaagent_x.tasks.task import Rubric, Task

PERCENTILES = (50, 90, 99, 100)
SHOWN = 12  # ids of a line in the terminal; the JSON report has all


@dataclasses.dataclass(frozen=True)
class Report:
    """Findings on one dataset, all of plain values; `dataclasses.asdict` of it is the JSON report.

    Attributes:
      name: what was checked, with its options.
      rows: read. tasks: rows that became one.
      dropped: reason -> {"rows", "first": place of the first such row}.
      golds: {"graded", "failed": [{"id", "gold"}], "respelled": the same of other spellings that are not accepted,
        "next_integer": {"graded", "accepted": [ids]}}; math only.
      programs: {"judged", "failed": [{"id", "passed", "total", "reason"}], "without": tasks without a program}.
      tests: {"public", "judged"} -> {"min", "median", "max"} a task, "kinds" -> number of tests, and "public_only": ids
        of the tasks that are judged on nothing but public tests; code only.
      lengths: {"unit": "tokens" or "characters", "percentiles": {"50": ...}, "limit", "over": ids}.
      duplicates: {"exact", "near"} -> {id: id of the first}.
      overlap: benchmark -> {"tasks", "exact", "ngram": lists of matches}.
    """

    name: str
    rows: int
    tasks: int
    dropped: Mapping[str, Mapping[str, Any]]
    golds: Mapping[str, Any]
    programs: Mapping[str, Any]
    tests: Mapping[str, Any]
    lengths: Mapping[str, Any]
    duplicates: Mapping[str, Mapping[str, str]]
    overlap: Mapping[str, Mapping[str, Any]]

    def rejected(self) -> dict[str, str]:
        """Task id -> why a cleaned set leaves it out."""
        out: dict[str, str] = {}
        for name, found in self.overlap.items():
            out |= {match["training"]: f"overlaps with {name}" for kind in ("ngram", "exact") for match in found[kind]}
        out |= dict.fromkeys(self.duplicates["near"], "near duplicate")
        out |= dict.fromkeys(self.duplicates["exact"], "duplicate")
        out |= {failed["id"]: "reference program fails" for failed in self.programs.get("failed", ())}
        out |= {failed["id"]: "gold is wrong in another spelling" for failed in self.golds.get("respelled", ())}
        out |= {failed["id"]: "gold does not grade itself" for failed in self.golds.get("failed", ())}
        return out


def examine(
    name: str,
    items: Sequence[Item],
    *,
    against: Mapping[str, overlap.Texts] | None = None,
    tokenizer: Tokenizer | None = None,
    limit: int = 0,
    least_share: float = 0.0,
    programs: Mapping[str, Sequence[str]] | None = None,
    progress: Progress = silent,
) -> Report:
    """Looks at every row of a dataset.

    Args:
      name: for the report.
      items: all rows, in order.
      against: benchmark -> ids and texts of its tasks.
      tokenizer: prompts are measured in its tokens; None: in characters.
      limit: prompts longer than this are listed; 0: none is.
      least_share: of `overlap.overlap`.
      programs: task id -> reference programs, to be judged; None: they are not.
    """
    pairs = [(item.task, item.rubric) for item in items if item.task and item.rubric]
    texts = [(task.id, task.prompt) for task, _ in pairs]
    dropped: dict[str, dict[str, Any]] = {}
    for item in items:
        if not item.task:
            dropped.setdefault(item.dropped, {"rows": 0, "first": item.place})["rows"] += 1
    exact, near = overlap.duplicates(texts)
    return Report(
        name=name,
        rows=len(items),
        tasks=len(pairs),
        dropped=dict(sorted(dropped.items(), key=lambda one: -one[1]["rows"])),
        golds=grade_golds([rubric for _, rubric in pairs if rubric.kind == "math"], progress),
        programs=_judge_programs(pairs, programs, progress) if programs is not None else {},
        tests=_count_tests([pair for pair in pairs if pair[0].kind == "code"]),
        lengths=_lengths(texts, tokenizer, limit, progress),
        duplicates={"exact": exact, "near": near},
        overlap={
            other: _overlap(texts, tasks, other, least_share, progress) for other, tasks in (against or {}).items()
        },
    )


def grade_golds(rubrics: Sequence[Rubric], progress: Progress = silent) -> dict[str, Any]:
    """Each accepted gold as the content of a box, graded, as it stands and `respelled`; and each integer gold plus one,
    which must be wrong."""
    failed, other, accepted, integers = [], [], [], 0
    for number, rubric in enumerate(rubrics, 1):
        for gold in rubric.gold:
            if not _is_right(gold, rubric):
                failed.append({"id": rubric.task_id, "gold": gold})
            elif not _is_right(respelled(gold), rubric):
                other.append({"id": rubric.task_id, "gold": gold})
            if re.fullmatch(r"-?\d{1,18}", gold):
                integers += 1
                if _is_right(str(int(gold) + 1), rubric):
                    accepted.append(rubric.task_id)
        progress("golds", number, len(rubrics))
    if not rubrics:
        return {}
    plus_one = {"graded": integers, "accepted": accepted}
    return {"graded": len(rubrics), "failed": failed, "respelled": other, "next_integer": plus_one}


def respelled(gold: str) -> str:
    """A gold as another hand writes it: between dollar signs, with \\dfrac, blanks around signs, a full stop behind."""
    text = re.sub(r"\\[dt]?frac(?![A-Za-z])", r"\\dfrac", gold)
    text = re.sub(r"\s*([+=])\s*", r" \1 ", text).strip()
    return f"$ {text} $."


def _is_right(answer: str, rubric: Rubric) -> bool:
    given = extract_answer(f"The answer is $\\boxed{{{answer}}}$.")
    return given is not None and any(is_equivalent(given, gold) for gold in rubric.gold)


def _judge_programs(
    pairs: Sequence[tuple[Task, Rubric]], programs: Mapping[str, Sequence[str]], progress: Progress
) -> dict[str, Any]:
    """One reference program of each task that has one, on its public and hidden tests."""
    failed, judged = [], 0
    for number, (task, rubric) in enumerate(pairs, 1):
        for program in programs.get(task.id, ())[:1]:
            judged += 1
            verdict = code.judge(
                program, [*task.public_tests, *rubric.tests], time_limit_s=rubric.time_limit_s,
                memory_mb=rubric.memory_mb, stop_at_first_failure=True,
            )  # fmt: skip
            if verdict.passed < verdict.total:
                last = verdict.per_test[-1]
                reason = f"test {len(verdict.per_test) - 1}: {last.status} {last.detail}".strip()
                failed.append({"id": task.id, "passed": verdict.passed, "total": verdict.total, "reason": reason})
        progress("programs", number, len(pairs))
    return {"judged": judged, "failed": failed, "without": len(pairs) - judged}


def _count_tests(pairs: Sequence[tuple[Task, Rubric]]) -> dict[str, Any]:
    if not pairs:
        return {}
    counts = {"public": [len(task.public_tests) for task, _ in pairs], "judged": [len(r.tests) for _, r in pairs]}
    kinds = collections.Counter(test["kind"] for task, r in pairs for test in (*task.public_tests, *r.tests))
    spread = {who: {"min": min(n), "median": float(np.median(n)), "max": max(n)} for who, n in counts.items()}
    return spread | {"kinds": dict(kinds.most_common()), "public_only": public_only(pairs)}


def _lengths(texts: overlap.Texts, tokenizer: Tokenizer | None, limit: int, progress: Progress) -> dict[str, Any]:
    if not texts:
        return {}
    lengths: list[int] = []
    for start in range(0, len(texts), 256):
        chunk = [text for _, text in texts[start : start + 256]]
        if tokenizer:
            lengths += [len(one.ids) for one in tokenizer.encode_batch_fast(chunk, add_special_tokens=False)]
        else:
            lengths += map(len, chunk)
        progress("lengths", len(lengths), len(texts))
    over = [name for (name, _), length in zip(texts, lengths, strict=True) if limit and length > limit]
    percentiles = {str(p): int(np.percentile(lengths, p, method="higher")) for p in PERCENTILES}
    unit = "tokens" if tokenizer else "characters"
    return {"unit": unit, "percentiles": percentiles, "limit": limit, "over": over}


def _overlap(
    texts: overlap.Texts, tasks: overlap.Texts, name: str, least_share: float, progress: Progress
) -> dict[str, Any]:
    progress(f"overlap with {name}", 0, len(texts))
    matches = overlap.overlap(texts, tasks, least_share=least_share)
    progress(f"overlap with {name}", len(texts), len(texts))
    found = {kind: [dataclasses.asdict(m) for m in matches if m.kind == kind] for kind in ("exact", "ngram")}
    return {"tasks": len(tasks), **found}


def tables(report: Report) -> list[Table]:
    """The report for a person."""
    table = Table(title=report.name, box=box.SIMPLE, show_header=False, title_justify="left")
    table.add_column()
    table.add_column(overflow="fold")
    table.add_row("rows read", f"{report.rows:,}")
    table.add_row("tasks", f"{report.tasks:,}")
    for reason, one in report.dropped.items():
        table.add_row(f"dropped: {reason}", f"{one['rows']:,}   first: {one['first']}")
    if golds := report.golds:
        failed = [f"{one['id']} ({one['gold'][:40]})" for one in golds["failed"]]
        other = [f"{one['id']} ({one['gold'][:40]})" for one in golds["respelled"]]
        table.add_row("golds refused as their own answer", _of(failed, golds["graded"]))
        table.add_row("golds refused in another spelling", _of(other, golds["graded"]))
        table.add_row("integer golds: plus one accepted", _of(**_named(golds["next_integer"])))
    if programs := report.programs:
        failed = [f"{one['id']} ({one['reason'][:60]})" for one in programs["failed"]]
        table.add_row("reference programs that fail", _of(failed, programs["judged"]))
        table.add_row("tasks without a program", f"{programs['without']:,}")
    if tests := report.tests:
        for who in ("public", "judged"):
            table.add_row(
                f"{who} tests a task", "{min} / {median:g} / {max}  (min / median / max)".format(**tests[who])
            )
        if tests["public_only"]:
            table.add_row("judged on public tests only", _of(tests["public_only"], report.tasks))
        table.add_row("tests by kind", ", ".join(f"{kind} {n:,}" for kind, n in tests["kinds"].items()))
    if lengths := report.lengths:
        marks = " / ".join(f"{n:,}" for n in lengths["percentiles"].values())
        table.add_row(f"prompt, {lengths['unit']}", f"{marks}  ({' / '.join(lengths['percentiles'])} %)")
        if lengths["limit"]:
            table.add_row(f"prompts over {lengths['limit']:,} {lengths['unit']}", _of(lengths["over"], report.tasks))
    for kind, found in report.duplicates.items():
        pairs = [f"{name} = {first}" for name, first in found.items()]
        table.add_row("duplicates" if kind == "exact" else "near duplicates", _of(pairs, report.tasks))
    out = [table]
    if report.overlap:
        heads = "overlap with", "tasks", "exact", f"{overlap.NGRAM}-gram", "training tasks"
        shared = Table(*heads, title="tasks that a benchmark also asks", box=box.SIMPLE, title_justify="left")
        for name, found in report.overlap.items():
            both = [*found["exact"], *found["ngram"]]
            ids = list(dict.fromkeys(match["training"] for match in both))
            counts = [len({match["benchmark"] for match in found[kind]}) for kind in ("exact", "ngram")]
            shared.add_row(name, f"{found['tasks']:,}", *map(str, counts), _of(ids, report.tasks))
        out.append(shared)
    return out


def _named(found: Mapping[str, Any]) -> dict[str, Any]:
    return {"found": found["accepted"], "total": found["graded"]}


def _of(found: Sequence[str], total: int) -> str:
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f"{len(found):,} of {total:,}" + (f": {', '.join(found[:SHOWN])}{more}" if found else "")


def write_clean(
    name: str, path: str | None, items: Sequence[Item], report: Report, file: pathlib.Path
) -> collections.Counter[str]:
    """Writes the rows of the tasks that the report does not reject, as they are read, one JSON object a line.

    The file is whole or absent. Ids that are row numbers (Polaris) count anew in it.

    Args:
      name, path: the dataset, which is read a second time: rows of code are too large to be kept.
      items, report: what the first reading found.
      file: to be written.

    Returns:
      How many rows were left out, by reason.

    Raises:
      DatasetError: a row holds what JSON cannot, or the dataset has changed.
      OSError: it cannot be written.
    """
    rejected = report.rejected()
    reasons = {item.number: rejected.get(item.task.id, "") if item.task else item.dropped for item in items}
    left_out = collections.Counter(filter(None, reasons.values()))
    temporary = file.with_name(f"{file.name}.partial")
    written = 0
    with temporary.open("w", encoding="utf-8") as out:
        for row in open_rows(name, path, all_columns=True):
            if reasons.get(row.number) == "":
                try:
                    out.write(json.dumps(dict(row.values), ensure_ascii=False) + "\n")
                except (TypeError, ValueError) as problem:
                    raise DatasetError(f"{row.place}: cannot be written as JSON: {problem}") from None
                written += 1
        out.flush()
        os.fsync(out.fileno())
    if written != len(items) - left_out.total():
        raise DatasetError(f"{name}: changed while it was read; {temporary} is not complete")
    os.replace(temporary, file)
    return left_out
