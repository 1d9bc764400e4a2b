"""Makes supervised examples of both roles from a teacher's right answers.

  OPENAI_API_KEY=... python -m metaagent_x.distill --config=configs/distill.py \\
    --config.teacher.url=https://HOST/v1 --config.teacher.model=NAME

For every task the teacher writes some designs, shown a few workflow templates, and plays each as Executor. What the
grader calls right is kept: the Designer's message under the student's own short prompt, and every agent's conversation.
The folder then holds designer.jsonl and executor.jsonl, which `sft.py` reads, and summary.html.

Nothing is begun after `distill.budget` is spent; the attempts in flight, at most `teacher.concurrency`, still end and
may exceed it. Exit codes: 0 done (also: budget spent, or no tasks left), 2 bad input, 3 interrupted, 1 anything else,
an endpoint that is away among it. The same command goes on and pays for no finished attempt again.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from ml_collections import config_flags
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from metaagent_x import assemble, config, data, loop
from metaagent_x.command import console, ending, override, say
from metaagent_x.distillation import summary
from metaagent_x.distillation.cost import Meter, Prices
from metaagent_x.distillation.job import Job
from metaagent_x.distillation.journal import Journal, JournalError
from metaagent_x.distillation.plan import Plan, clean
from metaagent_x.distillation.selection import ROLES
from metaagent_x.interruption import to_the_end
from metaagent_x.run_folder import RunFolder
from metaagent_x.tasks import datasets
from metaagent_x.tasks.datasets import DatasetError

STOPPED = "stopped"  # by a signal or a failure

_CONFIG = config_flags.DEFINE_config_file("config", None, "Settings: a file of configs/.")
_OVERRIDES = {"workdir": flags.DEFINE_string("workdir", None, "Folder of the examples.")}
_ALLOW = flags.DEFINE_multi_string("allow_change", [], "Go on although this field differs from the job's; repeatable.")


def main(_: list[str]) -> None:
    c = _CONFIG.value
    override(c, _OVERRIDES)
    with ending(c, DatasetError, JournalError, goes_on="with what is", player="teacher") as interruption:
        config.validate(c)
        if "distill" not in c:
            raise config.ConfigError("these settings have no group 'distill'; give a file such as configs/distill.py")
        assemble.check_tokenizer(c)
        pools = data.open_pools(c)
        folder = RunFolder(c.workdir, c, _ALLOW.value)
        folder.check_data([dataclasses.asdict(origin) for origin in pools.origins])
        folder.log_changes(0)
        loop.show_data(pools)
        plan = Plan(uncontaminated(c, pools), {name: share for name, _, share in c.data.train}, c.seed)
        say("sandbox:", assemble.contain(c))
        interruption.run(distill(c, plan, folder.path))


def uncontaminated(c: config.Settings, pools: data.Pools) -> dict[str, datasets.Pairs]:
    """The training tasks that no benchmark of `distill.benchmarks` asks; tells how many it does."""
    sources = pools.train.sources
    if not c.distill.benchmarks:
        return dict(sources)
    sources, counts = clean(sources, [(name, datasets.load(name, path or None)) for name, path in c.distill.benchmarks])
    for (name, benchmark), count in counts.items():
        say(f"{name}: {count} tasks left out, which {benchmark} asks too")
    return sources


async def distill(c: config.Settings, plan: Plan, folder: Path) -> None:
    """The whole job: attempts until enough is chosen, then the files. They are written whatever ends it, unless it is
    stopped before it has come as far as the files that are there."""
    began, journal, grader, teacher = time.perf_counter(), Journal(folder), assemble.grader(c), assemble.teacher(c)
    prices = Prices(c.teacher.prompt_price, c.teacher.completion_price)
    meter = Meter(prices, c.distill.budget, journal.usage, note=journal.spend)
    if journal.found:
        say(f"found {journal.found} attempts, which are not made again")
    ended = STOPPED
    with progress(c) as bars:
        job = Job(c, plan, teacher, grader, journal, meter, tell=functools.partial(show, bars))
        try:
            ended = await job.run()
        finally:
            beyond = len(journal.attempts) - len(job.folded)
            figures = summary.summarise(job.folded, job.selection, meter.usage, prices, ended=ended, beyond=beyond)
            if ended != STOPPED or figures["tasks"] >= tasks_written(folder):
                write(folder, figures, job.selection.examples)
            journal.close()
            grader.close()
            await to_the_end(teacher.close())
    for title, head, rows in summary.tables(figures):
        if rows:
            view = Table(*head, title=title)
            for row in rows:
                view.add_row(*row)
            console.print(view)
    say(f"{summary.headline(figures)}   ({time.perf_counter() - began:.0f} s)")
    say(f"summary: {folder / 'summary.html'}")


def progress(c: config.Settings) -> Progress:
    """Bars of both roles' examples, and what was made and spent."""
    bars = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    for role, number in zip(ROLES, (c.distill.designers, c.distill.executors), strict=True):
        bars.add_task(f"{role} examples", total=number)
    bars.add_task("attempts", total=None)
    return bars


def show(bars: Progress, job: Job, made: bool | None) -> None:
    """Moves the bars; after a round, a line."""
    if made is not None:
        bars.advance(bars.task_ids[-1])
        return
    for bar, role in zip(bars.task_ids, ROLES, strict=False):
        bars.update(bar, completed=len(job.selection.examples[role]))
    u, chosen = job.meter.usage, {role: len(job.selection.examples[role]) for role in ROLES}
    right = sum(a.right for a in job.folded)
    bars.console.print(
        f"{job.selection.tasks:6d} tasks, {right} of {len(job.folded)} attempts right, chosen {chosen['designer']} + "
        f"{chosen['executor']}, {(u.prompt + u.completion) / 1e6:.2f} M tokens, cost {job.meter.spent:.2f}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def tasks_written(folder: Path) -> int:
    """How many tasks the files in the folder were chosen from."""
    path = folder / "summary.json"
    return json.loads(path.read_text())["tasks"] if path.exists() else 0


def write(folder: Path, figures: Mapping[str, Any], examples: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """The examples of both roles, and the summary; each file is whole or the earlier one."""
    files = {
        f"{role}.jsonl": "".join(json.dumps(e, ensure_ascii=False) + "\n" for e in examples[role]) for role in ROLES
    }
    files["summary.json"] = json.dumps(figures, indent=2) + "\n"
    files["summary.html"] = summary.page(dict(figures), examples, folder.name)
    for name, text in files.items():
        draft = folder / f".{name}.draft"
        draft.write_text(text, encoding="utf-8", errors="replace")
        os.replace(draft, folder / name)


if __name__ == "__main__":
    app.run(main, flags_parser=config.parse_flags)
