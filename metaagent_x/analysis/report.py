"""`report.html`: what a run did, on one page that needs no network, made from the files of its folder alone.

What needs a Designer is left out of the page of a run with a fixed design.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from metaagent_x.analysis import beside, figures, tree_view
from metaagent_x.analysis.beside import in_points
from metaagent_x.analysis.html import Markup, document, join, table, tag
from metaagent_x.analysis.intervals import paired_gain
from metaagent_x.analysis.read import Run, read_run
from metaagent_x.analysis.style import CSS
from metaagent_x.rollout import traces
from metaagent_x.run_folder import flatten


def write_report(run_folder: str | os.PathLike[str], others: Sequence[str | os.PathLike[str]] = ()) -> Path:
    """Builds the report of a run, finished or not, from its files.

    Args:
      run_folder: a folder as `RunFolder` writes it.
      others: folders of runs whose held-out accuracy is shown beside its own.

    Returns:
      the path of `report.html` in it.

    Raises:
      RunFolderError: not a run folder, or a damaged file (named, with the line).
      ValueError: a damaged trace (named).
    """
    run, runs = read_run(run_folder), [read_run(other) for other in others]
    above, below = (_headline, _curve), (_structures, _tables, _course, _tree, _settings)
    compared = beside.section([run, *runs]) if runs else None
    sections = [*(section(run) for section in above), compared, *(section(run) for section in below)]
    page = document(f"{run.path.name}: run report", CSS, *sections)
    path = run.path / "report.html"
    draft = path.with_name(".report.html.draft")
    draft.write_text(page, encoding="utf-8")
    os.replace(draft, path)
    return path


def _headline(run: Run) -> Markup:
    c = run.config
    how = [f"{c.get('policy', 'shared')} policy", f"{c.get('schedule', '')} schedule, K = {c.get('stage_length', '?')}",
           f"{c.get('batch', '?')} tasks a step, M × N = {c.get('designs', '?')} × {c.get('executions', '?')}",
           *([join("fixed design ", tag("code", run.design))] if run.design else []),
           f"seed {c.get('seed', '?')}", f"sandbox={c.get('sandbox', 'process')}"]  # fmt: skip
    done, wanted, limit = len(run.metrics), c.get("steps", 0), c.get("tokens", 0)
    over = done >= wanted or 0 < limit <= run.tokens
    state = f"{done} steps" if over else f"{done} of {wanted} steps so far"
    state += f", {run.tokens:,} sampled tokens"
    tiles = [_gain_tile(run, "Held-out accuracy, T = 1", 1.0), _gain_tile(run, "Held-out accuracy, greedy", 0.0)]
    if run.metrics:
        valid, calls = run.column("designs/valid"), run.column("calls")
        if not run.design:
            tiles.append(_tile("Valid designs", _arrow(_ends(valid), percent=True), "first and last 5 steps"))
        tiles.append(_tile("Agent calls a step", _arrow(_ends(calls), percent=False), "first and last 5 steps"))
    warning = None
    if c.get("sandbox", "process") != "strict":
        warning = tag("p", tag("b", "sandbox=process: "), "programs were not kept from files, network and other "
                      "processes, and could have reached what they were judged by.", class_="warn")  # fmt: skip
    if run.gate and not run.gate["passed"]:
        warning = join(warning, tag("p", tag("b", "Headroom gate not passed: "), run.gate["message"], class_="warn"))
    return join(
        tag("h1", run.path.name), tag("p", state, *(join("; ", one) for one in how), ".", class_="note"), warning,
        tag("div", *tiles, class_="tiles"),
    )  # fmt: skip


def _gain_tile(run: Run, label: str, temperature: float) -> Markup | None:
    before = run.evaluation("cold", temperature=temperature)
    after = run.evaluation("final", temperature=temperature)
    if before is None:
        return None
    if after is None:
        return _tile(
            label, f"{before['accuracy']:.1%}", f"cold start, {before['tasks']} tasks; no final evaluation yet"
        )
    gain = paired_gain(before["outcomes"], after["outcomes"]).gain
    return _tile(label, _arrow((before["accuracy"], after["accuracy"]), percent=True),
                 join(in_points(gain), f", {gain.units} tasks"))  # fmt: skip


def _tile(label: str, value: object, detail: object) -> Markup:
    lines = {"label": label, "value": value, "detail": detail}
    return tag("div", *(tag("div", text, class_=name) for name, text in lines.items()), class_="tile")


def _arrow(ends: tuple[float, float], *, percent: bool) -> Markup:
    first, last = (f"{v:.1%}" if percent else f"{v:.0f}" for v in ends)
    return join(tag("small", f"{first} → "), last)


def _ends(values: list[float]) -> tuple[float, float]:
    """Means of the first and of the last 5 known values."""
    known = [v for v in values if not math.isnan(v)] or [float("nan")]
    return sum(known[:5]) / len(known[:5]), sum(known[-5:]) / len(known[-5:])


def learning_figure(run: Run) -> Markup | None:
    """Accuracy over steps and at the evaluations; None before there is any."""
    if not run.metrics and not run.evaluations:
        return None
    kept = _own_evaluations(run)
    points = {
        "T = 1": [(e["step"], e["accuracy"]) for e in kept if e["temperature"] == 1.0],
        "greedy": [(e["step"], e["accuracy"]) for e in kept if e["temperature"] == 0.0],
    }
    return figures.learning_curve(_steps(run), _active(run), run.column("accuracy"), points)


def structures_figure(run: Run) -> Markup | None:
    """Shares of the structures over steps; None before there is any, and where the design is fixed."""
    shares = {name: run.column(f"structure/{name}") for name in run.names("structure/")}
    return figures.structure_shares(_steps(run), shares) if shares and not run.design else None


def _own_evaluations(run: Run) -> list[dict[str, Any]]:
    """Those of the policies as they stood, without the cross table."""
    return [e for e in run.evaluations if e["name"] in ("cold", "stage", "final")]


def _curve(run: Run) -> Markup | None:
    if (figure := learning_figure(run)) is None:
        return None
    learn = [role for role in figures.ROLE if [role] in _active(run)]
    keys = [("dot", "held-out tasks, T = 1"), ("ring", "held-out tasks, greedy"),
            ("line", f"training tasks, mean of {figures.WINDOW} steps"),
            *((role, f"{role.capitalize()} learns") for role in learn)]  # fmt: skip
    legend = tag("div", *(tag("span", tag("i", class_=name), text, class_="key") for name, text in keys))
    caption = _stage_sizes(_own_evaluations(run))
    return join(tag("h2", "Accuracy"), legend, tag("figure", figure), tag("p", caption, class_="note"))


def _stage_sizes(kept: list[dict[str, Any]]) -> str:
    sizes = {name: {e["tasks"] for e in kept if e["name"] == name} for name in ("cold", "stage", "final")}
    said = [f"{name} on {'/'.join(map(str, sorted(s)))} tasks" for name, s in sizes.items() if s]
    return f"Share of tasks answered entirely right. Evaluations: {', '.join(said)}." if said else ""


def _structures(run: Run) -> Markup | None:
    if (figure := structures_figure(run)) is None:
        return None
    note = f"What ran, judged by its calls. Mean of {figures.WINDOW} steps; the last shares stand at the right."
    return join(tag("h2", "Structures that the Designer chose"), tag("p", note, class_="note"), tag("figure", figure))


def _tables(run: Run) -> Markup | None:
    parts = [p for p in (_cross(run), _gate(run)) if p is not None]
    return tag("div", *parts, class_="columns") if parts else None


def _cross(run: Run) -> Markup | None:
    """Cold or RL Designer with cold or RL Executor: which role gained."""
    cells = {
        ("cold", "cold"): run.evaluation("cold"),
        ("rl", "rl"): run.evaluation("final"),
        ("rl", "cold"): run.evaluation("cross", designer="rl", executor="cold"),
        ("cold", "rl"): run.evaluation("cross", designer="cold", executor="rl"),
    }
    start = cells["cold", "cold"]
    if start is None or cells["rl", "rl"] is None or run.design:
        return None

    def cell(record: Mapping[str, Any] | None) -> Markup:
        if record is None:
            return tag("td", "–")
        gain = (
            tag("small", "start")
            if record is start
            else tag("small", in_points(paired_gain(start["outcomes"], record["outcomes"]).gain))
        )
        return _heat(record["accuracy"], join(f"{record['accuracy']:.1%}", gain))

    rows: list[list[object]] = [
        [f"{label} Designer", cell(cells[d, "cold"]), cell(cells[d, "rl"])]
        for d, label in (("cold", "Cold"), ("rl", "RL"))
    ]
    note = "Accuracy at T = 1 with each role before and after RL. Gains: paired bootstrap, 95 %."
    return tag("div", tag("h2", "Who learned?"), tag("p", note, class_="note"),
               table(["", "Cold Executor", "RL Executor"], rows, class_="cross"))  # fmt: skip


def _gate(run: Run) -> Markup | None:
    if not run.gate:
        return None
    order = sorted(run.gate["table"].items(), key=lambda item: -sum(item[1].values()))
    rows: list[list[object]] = [
        [name, *(_heat(row[k], f"{row[k]:.0%}") for k in ("math", "code"))] for name, row in order
    ]
    own = run.gate["accuracy"]
    whose = tag("code", run.design) if run.design else "Designer's own choice"
    rows.append([whose, *(_heat(own[k], tag("b", f"{own[k]:.0%}")) for k in ("math", "code"))])
    passed = "passed" if run.gate["passed"] else "not passed"
    of = "the fixed design" if run.design else "every structure forced on every task"
    note = f"Accuracy of {of} before RL. Gate: {passed}."
    return tag(
        "div",
        tag("h2", "Headroom at the start"),
        tag("p", note, class_="note"),
        table(["structure", "math", "code"], rows),
    )


def _heat(value: float, content: object) -> Markup:
    return tag("td", content, class_="heat", style=f"--level: {0.04 + 0.5 * value:.3f}")


def _course(run: Run) -> Markup | None:
    """Small charts of what should stay healthy, and figures that should stay near 0."""
    if not run.metrics:
        return None
    steps = _steps(run)
    shown = ["executor"] if run.design else ["executor", "designer"]
    valid = figures.small_curve(steps, {"designer": run.column("designs/valid")}, "valid", percent=True)
    charts = [
        *([] if run.design else [("Valid designs", valid)]),
        ("Agent calls a step", figures.small_curve(steps, {"executor": run.column("calls")}, "calls")),
        ("Sampled tokens a step", figures.small_curve(steps, {r: run.column(f"tokens/{r}") for r in shown}, "tokens")),
    ]
    panels = tag("div", *(tag("figure", tag("h3", name), chart) for name, chart in charts), class_="charts")
    roles = [tag("span", tag("i", class_=r), r.capitalize(), class_="key") for r in shown]
    health = [("engine and learner log-probs, mean difference, largest", "mismatch/mean"),
              ("importance ratio away from 1, largest", "ratio/max_dev"), ("gradient norm, largest", "grad_norm"),
              ("void executions, most in a step", "executions/void")]  # fmt: skip
    rows: list[list[object]] = []
    for label, key in health:
        known = [v for v in run.column(key) if not math.isnan(v)]
        if known:
            rows.append([label, f"{max(known):.3g}"])
    return join(
        tag("h2", "Course of the run"), tag("div", *roles), panels, table(["health", ""], rows) if rows else None
    )


def _tree(run: Run) -> Markup | None:
    if not run.traces:
        return None
    rows = traces.read(run.traces[-1])
    if not rows:
        return None
    differ, told, credited = "designs", "what the Designer wrote, what executions did with it", "a design or a call"
    if run.design:
        differ, told, credited = "executions", "what every execution of the design did", "a call"
    note = (
        f"One task of the last recorded step, the one whose {differ} differ most in reward: {told}, and what each was "
        "credited. A call is named by its branch and its number there, and says after which step the weights stood "
        f"that sampled it. The advantage says how much better than its group {credited} did, in standard deviations."
    )
    tree = tree_view.render(tree_view.telling_tree(rows), script=run.design)
    return join(tag("h2", "One rollout tree"), tag("p", note, class_="note"), tree)


def _settings(run: Run) -> Markup:
    rows: list[list[object]] = [[k, tag("td", repr(v), class_="text")] for k, v in flatten(run.config).items()]
    return join(
        tag("h2", "Settings"), tag("details", tag("summary", f"{len(rows)} fields"), table(["field", "value"], rows))
    )


def _steps(run: Run) -> list[int]:
    return [line["step"] for line in run.metrics]


def _active(run: Run) -> list[list[str]]:
    return [line.get("role/active", []) for line in run.metrics]
