"""Gets datasets, and says what is in them.

  python -m metaagent_x.tasks.datasets fetch polaris aime25 livecodebench:release=v6 --to data
  python -m metaagent_x.tasks.datasets check polaris --path data/polaris --against aime25 --write clean.jsonl

Exit codes: 0 done, 2 bad input, 3 interrupted (repeat the command), 1 anything else.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import signal
import sys
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TransferSpeedColumn,
)

from metaagent_x.tasks import datasets
from metaagent_x.tasks.datasets.rows import DatasetError

console = Console()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit code."""
    parsed = _parser().parse_args(arguments)
    try:
        return parsed.run(parsed)
    except DatasetError as error:
        _say(f"bad input: {error}")
        return 2
    except (OSError, RuntimeError) as error:
        _say(str(error))
        return 1
    except KeyboardInterrupt:
        _say("interrupted; repeat the command, what was fetched is kept")
        return 3


def _say(text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _fetch(parsed: argparse.Namespace) -> int:
    from metaagent_x.tasks.datasets.fetch import fetch

    wanted = [datasets.parse(name) for name in parsed.names]
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=console) as bars:
        for dataset, options in wanted:
            split = options.pop("split", "all")
            record, fetched = fetch(
                dataset, parsed.to, splits=[] if split == "all" else [split], options=options, update=parsed.update,
                revision=parsed.revision, endpoint=parsed.endpoint, progress=_Bars(bars, f"{dataset.name}/"),
            )  # fmt: skip
            size = sum(file["bytes"] for file in record.files.values()) / 1e6
            news = f"{len(fetched)} fetched" if fetched else "all were here and whole"
            files = f"{len(record.files)} files, {size:,.1f} MB"
            _say(f"{dataset.name}: {record.repo} at {record.revision}, {files}, {news}; {parsed.to / dataset.name}")
    return 0


def _check(parsed: argparse.Namespace) -> int:
    from tokenizers import Tokenizer

    from metaagent_x.tasks.datasets import check, reading
    from metaagent_x.tasks.datasets.fetch import altered
    from metaagent_x.tasks.datasets.files import place_of

    for option, file in (("--write", parsed.write), ("--json", parsed.json)):
        if file and not file.absolute().parent.is_dir():
            raise DatasetError(f"{option}: the folder {file.absolute().parent} is not there")
    name = parsed.name
    if parsed.split:
        name += ("," if ":" in name else ":") + f"split={parsed.split}"
    dataset, options = datasets.parse(name)
    if changed := altered(place := place_of(dataset, parsed.path, options)):
        raise DatasetError(
            f"{name}: {changed[0]} is not what was fetched; repeat: python -m metaagent_x.tasks.datasets fetch "
            f"{dataset.name} --to {place.parent}"
        )
    tokenizer = None
    if parsed.tokenizer:
        file = parsed.tokenizer / "tokenizer.json"
        if not file.is_file():
            raise DatasetError(f"--tokenizer: {file} is not there")
        tokenizer = Tokenizer.from_file(str(file))
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=console, transient=True) as bars:
        show = _Bars(bars)
        against = {}
        for benchmark in parsed.against:
            other, path = _name_and_path(benchmark)
            against[other] = [(task.id, task.prompt) for task, _ in datasets.load(other, path)]
        items = reading.read(name, parsed.path, show)
        report = check.examine(
            name, items, against=against, tokenizer=tokenizer, limit=parsed.limit, least_share=parsed.least_share,
            programs=dict(datasets.solutions(name, parsed.path)) if parsed.run_programs else None, progress=show,
        )  # fmt: skip
    for table in check.tables(report):
        console.print(table, highlight=False, markup=False)
    if parsed.json:
        parsed.json.write_text(json.dumps(dataclasses.asdict(report), indent=1) + "\n", encoding="utf-8")
        _say(f"report: {parsed.json}")
    if parsed.write:
        left_out = check.write_clean(name, parsed.path, items, report, parsed.write)
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in left_out.most_common()) or "nothing"
        _say(f"cleaned: {parsed.write}, {len(items) - left_out.total():,} of {len(items):,} rows; left out: {reasons}")
    return 0


def _name_and_path(benchmark: str) -> tuple[str, str | None]:
    """Splits NAME or NAME=PATH; NAME may have options, which have equals signs of their own."""
    try:
        datasets.parse(benchmark)
        return benchmark, None
    except DatasetError:
        name, _, path = benchmark.rpartition("=")
        datasets.parse(name or benchmark)
        return name, path


class _Bars:
    """One bar for each thing that is reported on."""

    def __init__(self, bars: Progress, prefix: str = "") -> None:
        self.bars, self.prefix = bars, prefix
        self.rows: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self.rows:
            self.rows[what] = self.bars.add_task(self.prefix + what, total=total or None)
        self.bars.update(self.rows[what], completed=done)


def _number(kind: Callable[[str], float], least: float, most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not from {least} to {most}")
        return value

    read.__name__ = kind.__name__  # argparse names it: "invalid int value"
    return read


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m metaagent_x.tasks.datasets", description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(required=True, metavar="fetch | check")
    about = (
        "Downloads datasets from the Hugging Face hub into DIR/NAME, checks every file against the hub's hash, and\n"
        "writes DIR/NAME/dataset.json last. Run again, it checks what is there and fetches what is missing or\n"
        "damaged. HF_TOKEN and HF_ENDPOINT are honoured."
    )
    table = "\n".join(
        f"  {name:<14} {one.hub.repo:<36} {one.hub.revision[:12] or 'newest':<13} {' '.join(one.splits)}"
        for name, one in datasets.DATASETS.items()
    )
    kept = (
        "A dataset whose commit is 'newest' gets the newest one at its first fetch; dataset.json records it, and\n"
        "later fetches keep it."
    )
    get = commands.add_parser(
        "fetch", help="download datasets at fixed commits", formatter_class=raw, description=about,
        epilog=f"datasets, repositories, commits, splits:\n{table}\n\n{kept}",
    )  # fmt: skip
    get.set_defaults(run=_fetch)
    get.add_argument("names", nargs="+", metavar="NAME", help="apps, apps:split=train, livecodebench:release=v6")
    get.add_argument("--to", type=pathlib.Path, required=True, metavar="DIR", help="folder of the datasets")
    get.add_argument("--revision", default="", help="commit, branch or tag in place of the fixed commit")
    get.add_argument("--update", action="store_true", help="replace a folder that holds another commit")
    get.add_argument("--endpoint", default="", metavar="URL", help="a mirror of the hub")
    look = commands.add_parser("check", help="report on a dataset, and write it cleaned")
    look.set_defaults(run=_check)
    add = look.add_argument
    add("name", metavar="NAME", help="apps, apps:difficulty=introductory,split=train")
    add("--path", help="file or folder; without it, where `load` looks")
    add("--split", default="", help="same as NAME:split=...")
    add("--against", action="append", default=[], metavar="NAME[=PATH]", help="a benchmark; may be repeated")
    share = "13-grams in common count from this share of the benchmark task's words on, 0 to 1 (default: any)"
    folder = "folder with tokenizer.json; without it, characters count"
    add("--least-share", type=_number(float, 0, 1), default=0.0, metavar="S", help=share)
    add("--tokenizer", type=pathlib.Path, metavar="DIR", help=folder)
    add("--limit", type=_number(int, 0, 10**9), default=0, metavar="N", help="list the prompts that are longer")
    add("--run-programs", action="store_true", help="judge the rows' own reference programs (contained; slow)")
    add("--write", type=pathlib.Path, metavar="FILE", help="JSONL of the rows without what was found")
    add("--json", type=pathlib.Path, metavar="FILE", help="the whole report")
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    sys.exit(main())
