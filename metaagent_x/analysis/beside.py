"""Several runs beside each other: held-out accuracy over the tokens that each has sampled, and the differences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from metaagent_x.analysis import figures
from metaagent_x.analysis.html import Markup, join, table, tag
from metaagent_x.analysis.intervals import Estimate, paired_gain
from metaagent_x.analysis.read import Run

EVALUATIONS = ("cold", "stage", "final")  # what a curve is made of


def section(runs: Sequence[Run]) -> Markup:
    """A figure and a table of all runs; the first is the one that the others are compared with."""
    names = labels(runs)
    curves = [[curve(run, temperature) for run in runs] for temperature in (1.0, 0.0)]
    keys = [
        tag("span", tag("i", style=f"background: var(--series-{i % len(figures.SERIES)})"), name, class_="key")
        for i, name in enumerate(names)
    ]
    ring = tag("span", tag("i", class_="ring"), "greedy", class_="key")
    sizes = " / ".join(
        ", ".join(f"{what} {'/'.join(map(str, sorted(found)))}" for what, found in tasks_of(run).items()) or "none"
        for run in runs
    )
    note = (
        "Share of held-out tasks answered entirely right, at T = 1 unless it says greedy, over the tokens that both "
        f"roles sampled in training. Tasks of the evaluations, run by run: {sizes}."
    )
    rows = [_row(run, name, runs[0]) for run, name in zip(runs, names, strict=True)]
    head: list[object] = ["", "steps", "sampled tokens", "before RL", "after", "after, greedy"]
    head += [f"against {names[0]}", "the same, greedy"]
    paired = (
        "Against: accuracy after RL minus that of the first run, task by task; 95 % intervals by paired bootstrap. "
        "Runs with other held-out tasks are not compared so."
    )
    return join(
        tag("h2", "Beside other runs"), tag("div", *keys, ring),
        tag("figure", figures.token_curves(*curves)) if any(map(any, curves)) else None,
        tag("p", note, class_="note"), table(head, rows), tag("p", paired, class_="note"),
    )  # fmt: skip


def labels(runs: Sequence[Run]) -> list[str]:
    """The name of each run's folder, and the folder above it where two are of one name."""
    often = Counter(run.path.name for run in runs)
    return [run.path.name if often[run.path.name] == 1 else f"{run.path.parent.name}/{run.path.name}" for run in runs]


def curve(run: Run, temperature: float) -> list[tuple[int, float]]:
    """(tokens sampled in training until then, accuracy) of the held-out evaluations at this temperature."""
    sampled = run.sampled()
    return [
        (sampled[e["step"]], e["accuracy"])
        for e in run.evaluations
        if e["name"] in EVALUATIONS and e["temperature"] == temperature and e["step"] in sampled
    ]


def tasks_of(run: Run) -> dict[str, set[int]]:
    """Name of an evaluation -> how many tasks it had."""
    found = {name: {e["tasks"] for e in run.evaluations if e["name"] == name} for name in EVALUATIONS}
    return {name: sizes for name, sizes in found.items() if sizes}


def in_points(gain: Estimate) -> Markup:
    """A gain in points, with its interval if it has one; coloured where that excludes 0."""
    side = "up" if gain.low > 0 else "down" if gain.high < 0 else "note"
    value, interval = f"{100 * gain.value:+.1f} points", None
    if not math.isnan(gain.low):
        interval = join(" ", tag("span", f"[{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]", class_="number"))
    return tag("span", tag("span", value, class_="number"), interval, class_=side)


def _row(run: Run, name: str, first: Run) -> list[object]:
    c = run.config
    how = join("fixed design ", tag("code", run.design)) if run.design else c.get("schedule", "")
    group = f", M × N = {c.get('designs', '?')} × {c.get('executions', '?')}, seed {c.get('seed', '?')}"
    before, *after = (run.evaluation(n, temperature=t) for n, t in (("cold", 1.0), ("final", 1.0), ("final", 0.0)))
    shares = [f"{e['accuracy']:.1%}" if e else "–" for e in (before, *after)]
    return [
        join(name, tag("div", how, group, class_="note")), len(run.metrics), f"{run.tokens:,}", *shares,
        *(_against(run, first, temperature) for temperature in (1.0, 0.0)),
    ]  # fmt: skip


def _against(run: Run, first: Run, temperature: float) -> object:
    ours, theirs = (one.evaluation("final", temperature=temperature) for one in (run, first))
    if run is first or ours is None or theirs is None or not run.held_out or run.held_out != first.held_out:
        return "–"
    return in_points(paired_gain(theirs["outcomes"], ours["outcomes"]).gain)
