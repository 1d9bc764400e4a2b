"""Puts the results of several evaluations into one table: two checkpoints, or a run and an endpoint. Plays nothing.

  python -m metaagent_x.compare runs/evaluations/tiny-step-0 runs/evaluations/tiny-step-64 [--to=DIR]

Each argument is a folder of `evaluate.py` or a `results.jsonl`; its methods are named after it. Results that different
scorers judged are refused. With `--to`, results.json and results.md are written there. Exit codes: 0 done, 2 bad input,
1 anything else.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from metaagent_x.evaluation import job, journal, summary, tables
from metaagent_x.evaluation.rows import key_of
from metaagent_x.run_folder import RunFolderError, read_lines

DATA = "data.json"  # beside the results: what each benchmark asks, by hash


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one comparison. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m metaagent_x.compare", description="Evaluations side by side.")
    parser.add_argument("results", type=Path, nargs="+", help="folder of an evaluation, or its results.jsonl")
    parser.add_argument("--to", type=Path, help="folder for results.json and results.md")
    parsed = parser.parse_args(arguments)
    try:
        made = compare(parsed.results)
        if parsed.to:
            parsed.to.mkdir(parents=True, exist_ok=True)
            job.write(parsed.to, made)
        tables.show(tables.tables(made), Console())
        return 0
    except (RunFolderError, summary.MixedScorers) as error:
        print(f"bad input: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(error, file=sys.stderr)
        return 1


def compare(paths: Sequence[Path]) -> dict[str, Any]:
    """The summary of all rows under paths, methods named "FOLDER: METHOD" where there are several folders.

    Benchmarks are those that every folder has. Votes and pass@k are left to the folder's own table.

    Raises:
      RunFolderError: no results there, a damaged row, two folders of one name, no benchmark in common, one
        of which the folders played different data.
      MixedScorers: not all rows were judged by one scorer.
    """
    files = [path / journal.NAME if path.is_dir() else path for path in paths]
    names = [file.absolute().parent.name for file in files]
    if len(set(names)) < len(names):
        raise RunFolderError(f"two of {', '.join(map(str, paths))} have one name; rename a folder to tell them apart")
    rows: list[dict[str, Any]] = []
    sides: list[set[str]] = []
    for file, name in zip(files, names, strict=True):
        own = {key_of(row): row for row in read_lines(file)}  # the later of two counts
        if not own:
            raise RunFolderError(f"{file} holds no results")
        sides.append({row["benchmark"] for row in own.values()})
        prefix = f"{name}: " if len(files) > 1 else ""
        rows += [{**row, "method": prefix + row["method"]} for row in own.values()]
    common = [b for b in dict.fromkeys(row["benchmark"] for row in rows) if all(b in side for side in sides)]
    if not common:
        raise RunFolderError(f"no benchmark in common: {'; '.join(', '.join(sorted(side)) for side in sides)}")
    _check_data(files, common)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    chosen = [row for row in rows if row["benchmark"] in common]
    return {
        "header": " against ".join(names), "benchmarks": common,
        **summary.summarise(chosen, methods=methods, benchmarks=common, sampled=False),
    }  # fmt: skip


def _check_data(files: Sequence[Path], benchmarks: Sequence[str]) -> None:
    """Raises RunFolderError if the `data.json` beside two files of results, where there is one, name different data."""
    seen: dict[str, tuple[str, Path]] = {}
    for file in files:
        known = file.with_name(DATA)
        try:
            records = json.loads(known.read_text()) if known.exists() else []
            found = {record["name"]: record["hash"] for record in records}
        except (ValueError, KeyError, TypeError) as error:
            raise RunFolderError(f"{known} is damaged: {error}; restore it") from error
        for name in found.keys() & set(benchmarks):
            first, where = seen.setdefault(name, (found[name], known))
            if first != found[name]:
                raise RunFolderError(
                    f"{name} is not the same data everywhere: hash {first} in {where}, {found[name]} in {known}; "
                    "evaluate again on one of the two"
                )


if __name__ == "__main__":
    sys.exit(main())
