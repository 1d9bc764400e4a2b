"""The parts of an evaluation that follow from its settings and its rows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from metaagent_x.analysis import published
from metaagent_x.baselines import registry
from metaagent_x.baselines.method import Means, Method, MethodError
from metaagent_x.evaluation import summary, tables
from metaagent_x.evaluation.benchmarks import Benchmark
from metaagent_x.evaluation.rows import Key
from metaagent_x.rollout.engine import Engine, RequestRefused
from metaagent_x.rollout.play import Settings, with_rollout

SAMPLING = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}  # and what is plain
Row = Mapping[str, Any]


def make_methods(
    c: Settings, engines: Mapping[str, Engine], rows: Mapping[Key, Row], **more: Any
) -> tuple[dict[str, Method], Means]:  # fmt: skip
    """The methods of `evaluate.methods` by name, and what they were made with.

    Args:
      engines: of each role; none to find out only whether the methods can be made. rows: the results so far, as they
        grow. more: further fields of `Means`.

    Raises:
      MethodError: one does not exist, or needs the results of another that does not come before it.
    """
    e = c.evaluate
    if not e.methods:
        raise MethodError(f"no method is named; there are {', '.join(registry.METHODS)}")
    means = Means(engines, sampled(c), e.members, e.vote_temperature, spent(rows), **more)
    methods = {name: registry.make(name, means) for name in e.methods}
    for name, method in methods.items():
        other = methods.get(method.needs)
        if method.needs and (other is None or other.needs):
            raise MethodError(
                f"{name!r} needs the results of {method.needs!r}, which must be one of the methods "
                f"({', '.join(methods)}) and need none itself"
            )
    return methods, means


def sampled(c: Settings) -> Settings:
    """The settings with the sampling of the evaluation in place of that of training."""
    return with_rollout(c, **{name: c.evaluate[name] for name in SAMPLING})


def spent(rows: Mapping[Key, Row]) -> Callable[[str, str, int], int | None]:
    """(method, task id, sample) -> tokens that it sampled; the mean over its other samples where that one is void."""

    def tokens(method: str, task_id: str, sample: int) -> int | None:
        own = [r for r in rows.values() if r["method"] == method and r["task_id"] == task_id and not r["void"]]
        found = [row for row in own if row["sample"] == sample] or own
        return round(sum(row["sampled_tokens"] for row in found) / len(found)) if found else None

    return tokens


def times(c: Settings, benchmark: Benchmark) -> int:
    """How often every task of a benchmark is played."""
    return max(dict(c.evaluate.runs).get(benchmark.base, 1), c.evaluate.samples)


def header(c: Settings, who: str) -> str:
    """How was played, in one line: who, sampling, engine, lengths, budget of an answer."""
    e, r, b = c.evaluate, c.rollout, c.rollout.budget
    how = "greedy" if e.temperature == 0 else f"temperature {e.temperature:g}"
    more = [f"{name} {e[name]:g}" for name, plain in SAMPLING.items() if name != "temperature" and e[name] != plain]
    return (
        f"{who}: {', '.join([how, *more])}, seed {c.seed}, engine {c.engine.kind}, prompts {r.prompts!r} of up to "
        f"{r.max_prompt_tokens:,} tokens, replies of up to {r.max_executor_tokens:,} (Designer "
        f"{r.max_designer_tokens:,}), at most {b.calls} calls and {b.tokens:,} sampled tokens an answer"
    )


def results(
    c: Settings, model: Mapping[str, Any], size: str, benchmarks: Sequence[Benchmark], rows: Sequence[Row], how: str
) -> dict[str, Any]:  # fmt: skip
    """What `results.json` holds: the job, and the summary of its rows, with the paper's figures for a model of `size`
    beside benchmarks that are played as a whole.

    Raises MixedScorers.
    """
    e = c.evaluate
    base = {benchmark.name: benchmark.base for benchmark in benchmarks if benchmark.whole}
    if len(base) == len(benchmarks) and sorted(base.values()) == sorted(published.BENCHMARKS):
        base[published.AVERAGE] = published.AVERAGE
    figures = published.MAIN.get(size, {})
    return {
        "model": dict(model), "size": size, "header": how, "seed": c.seed,
        "sampling": {name: e[name] for name in (*SAMPLING, "vote_temperature")},
        "benchmarks": [benchmark.origin() for benchmark in benchmarks],
        **summary.summarise(
            rows, methods=e.methods, benchmarks=[benchmark.name for benchmark in benchmarks],
            sampled=e.temperature > 0, level=e.level, resamples=e.resamples,
            published=lambda method, name: figures.get(method, {}).get(base.get(name, "")),
        ),
    }  # fmt: skip


def told_of_void(rows: Sequence[Row]) -> str:
    """How many results are void and what can be done; "" if none are."""
    void = [row for row in rows if row["void"]]
    refused = sum(row["reason"].startswith(RequestRefused.__name__) for row in void)
    again = f"; {refused} of them the endpoint refused to answer, and will refuse again unless it is changed"
    told = f"{len(void)} results are void (an engine or the grader failed); the same command plays them again"
    return told + again * (refused > 0) if void else ""


def write(folder: Path, made: Mapping[str, Any]) -> list[tables.Table]:
    """Writes `results.json` and `results.md`, each as a whole. Returns the tables."""
    shown = tables.tables(made)
    text = f"# Evaluation\n\n{made['header']}. Judged by {made['scorer'] or 'nobody yet'}.\n\n"
    for name, content in (
        ("results.json", json.dumps(made, indent=2, allow_nan=False) + "\n"),
        ("results.md", text + "\n".join(table.markdown() for table in shown)),
    ):
        draft = folder / f".{name}.draft"
        draft.write_text(content)
        os.replace(draft, folder / name)
    return shown


def origins(folder: Path, opened: Sequence[Benchmark]) -> list[dict[str, Any]]:
    """The records of these benchmarks, and of those that the folder knows from before and that are not played now."""
    now = [benchmark.origin() for benchmark in opened]
    file, names = folder / "data.json", {record["name"] for record in now}
    before = json.loads(file.read_text()) if file.exists() else []
    return [*now, *(record for record in before if record["name"] not in names)]


def split_methods(text: str) -> tuple[str, ...]:
    """Names of a comma-separated list, each once."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
