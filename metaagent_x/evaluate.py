"""Plays benchmarks with the trained system and with what it is compared with, and makes the tables.

  python -m metaagent_x.evaluate --config=configs/eval.py --model=runs/tiny --benchmarks=tiny_math,tiny_code
  python -m metaagent_x.evaluate --config=configs/eval.py --model=models/qwen3-4b --engine=vllm \\
      --methods=metaagent_x,single,single_majority:like=metaagent_x --benchmarks=aime24,aime25,olympiadbench
  python -m metaagent_x.evaluate --config=configs/eval.py --model=http://127.0.0.1:8000/v1 \\
      --config.engine.model=NAME --config.tokenizer=FOLDER --benchmarks=aime24 --limit=5

`--model` is a run folder (its newest checkpoint, or `--step`), a Hugging Face folder (an engine is started for it), or
the URL of an endpoint. What is written, and how things are counted: docs/evaluation.md.

Exit codes: 0 done, 2 bad input, 3 interrupted (the same command goes on), 1 anything else, void results among them.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags
from ml_collections import config_flags
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from metaagent_x import accelerators, assemble, config, policies
from metaagent_x.baselines.method import MethodError
from metaagent_x.command import console, ending, override, say
from metaagent_x.evaluation import benchmarks, job, summary, tables
from metaagent_x.evaluation.journal import Journal
from metaagent_x.evaluation.play import Unit, missing, play, units
from metaagent_x.evaluation.scorer import scorer
from metaagent_x.interruption import to_the_end
from metaagent_x.rollout.engine import EngineRefused
from metaagent_x.run_folder import RunFolder
from metaagent_x.tasks.datasets import DatasetError
from metaagent_x.tasks.grader import Grader

_CONFIG = config_flags.DEFINE_config_file("config", None, "Settings: a file of configs/.")
_OVERRIDES = {
    "evaluate.model": flags.DEFINE_string("model", None, "A run folder, a Hugging Face folder, or a URL."),
    "evaluate.step": flags.DEFINE_integer("step", None, "Checkpoint of a run folder; the newest by default."),
    "evaluate.methods": flags.DEFINE_string("methods", None, "Comma-separated: metaagent_x,single,..."),
    "evaluate.benchmarks": flags.DEFINE_string("benchmarks", None, "Comma-separated: aime24,apps@FILE,..."),
    "evaluate.limit": flags.DEFINE_integer("limit", None, "Tasks of each benchmark, for a quick look."),
    "evaluate.samples": flags.DEFINE_integer("samples", None, "How often every task is played."),
    "evaluate.temperature": flags.DEFINE_float("temperature", None, "Of all methods; 0: greedy."),
    "engine.kind": flags.DEFINE_enum("engine", None, config.CHOICES["engine.kind"], "What samples the tokens."),
    "sandbox": flags.DEFINE_enum("sandbox", None, config.CHOICES["sandbox"], "How scripts and programs are contained."),
    "seed": flags.DEFINE_integer("seed", None, "Seed of everything."),
    "workdir": flags.DEFINE_string("workdir", None, "Folder of the results; by default one named after the model."),
}
_LISTS = {"evaluate.methods": job.split_methods, "evaluate.benchmarks": benchmarks.parse}


def main(_: list[str]) -> None:
    c = _CONFIG.value
    bad_input = (DatasetError, EngineRefused, MethodError, summary.MixedScorers)
    with ending(c, *bad_input, goes_on="with what is") as interruption:
        if "evaluate" not in c:
            raise config.ConfigError("these settings are of another job; give --config=configs/eval.py")
        override(c, _OVERRIDES, _LISTS)
        policy = policies.adopt(c, _OVERRIDES["engine.kind"].value)
        c.workdir = c.workdir or f"runs/evaluations/{policy.label}"
        config.validate(c)
        accelerators.prepare(c)
        assemble.check_vocabulary(c, assemble.model_config(c))
        job.make_methods(c, {}, {})
        sets = benchmarks.open_all(c.evaluate.benchmarks, generated=c.evaluate.generated, limit=c.evaluate.limit)
        folder = RunFolder(c.workdir, c)
        folder.check_data(job.origins(folder.path, sets))
        journal = Journal(folder.path)
        summary.check_scorer(journal.rows.values(), scorer())
        plan = units(c.evaluate.methods, sets, functools.partial(job.times, c))
        todo, how = missing(plan, journal), job.header(c, str(policy))
        for one in sets:
            dropped = "".join(f"; left out: {n} {why}" for why, n in one.dropped.items())
            say(f"{one.name}: {len(one.pairs)} of {one.available} tasks, {job.times(c, one)} x each{dropped}")
        say(how)
        say(f"{len(plan) - len(todo)} of {len(plan)} results are there, in {folder.path}")
        if todo:
            say("sandbox:", assemble.contain(c))
            interruption.run(evaluate(c, policy, todo, journal))
        rows = [journal.rows[unit.key] for unit in plan if unit.key in journal.rows]
        model, size = dataclasses.asdict(policy), policies.published_size(c, policy)
        tables.show(job.write(folder.path, job.results(c, model, size, sets, rows, how)), console)
        say(f"written: {folder.path / 'results.md'}, and results.json beside it")
        if void := job.told_of_void(rows):
            say(void)
            sys.exit(1)


async def evaluate(c: config.Settings, policy: policies.Policy, todo: Sequence[Unit], journal: Journal) -> None:
    """Plays what is missing, with a bar for each method on each benchmark."""
    engines = await policies.engines(c, policy, Path(c.workdir))
    grader = Grader(format_bonus=0.0, code="all")
    methods, means = job.make_methods(c, engines, journal.rows)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console) as progress:
            counts = collections.Counter((unit.method, unit.benchmark) for unit in todo)
            bars = {pair: progress.add_task(escape(" ".join(pair)), total=count) for pair, count in counts.items()}
            await play(
                todo, methods, means, grader, journal, scorer=scorer(), in_flight=c.evaluate.in_flight,
                forbid_answer_in_script=c.rollout.forbid_answer_in_script,
                ended=lambda unit: progress.advance(bars[unit.method, unit.benchmark]),
            )  # fmt: skip
    finally:
        grader.close()
        for engine in {id(one): one for one in engines.values()}.values():
            await to_the_end(engine.close())


if __name__ == "__main__":
    app.run(main, flags_parser=config.parse_flags)
