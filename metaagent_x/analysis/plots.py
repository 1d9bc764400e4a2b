"""The figures of `analyze`: drawn once, shown on its page in the page's colours, and written as SVG and PNG."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from metaagent_x.analysis.ablation import Comparison
from metaagent_x.analysis.cost import Cost
from metaagent_x.analysis.curves import Band
from metaagent_x.analysis.figures import INK, MUTED, PAPER, ROLE, SERIES, STYLE, shade, spread
from metaagent_x.analysis.intervals import Estimate
from metaagent_x.analysis.structures import Attribution

COLORS = {
    "single": SERIES[0], "ensemble": SERIES[1], "reflection": SERIES[2], "solver-tester": SERIES[3],
    "debate": SERIES[5], "other": SERIES[7], "invalid": MUTED,
}  # fmt: skip
_WIDTH = 10.2  # inches, that of the page
_NUMBER = ticker.FuncFormatter(lambda value, _: f"{value / 1000:g}k" if abs(value) >= 1000 else f"{value:g}")
Window = tuple[float, float, Estimate]
Stages = tuple[Sequence[int], Sequence[Sequence[str]]]  # steps, and who learned at each


def _styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    @functools.wraps(draw)
    def styled(*args: Any, **kwargs: Any) -> Figure:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return styled


@_styled
def structure_bars(rows: Sequence[tuple[str, Mapping[str, float], str]]) -> Figure:
    """Stacked shares, one bar a row.

    Args:
      rows: (label, structure -> share, what stands at the right end, e.g. how many tasks). A label that begins with
        "published" is drawn pale.
    """
    left = _room(label for label, _, _ in rows)
    figure, (axes,) = _panels(1, 1, height=0.55 + 0.36 * len(rows), left=left, head=0.2, right=0.88)
    names = [name for name in COLORS if any(shares.get(name, 0) for _, shares, _ in rows)]
    _legend(figure, {name: COLORS[name] for name in names}, left - 0.01, columns=len(names))
    for y, (label, shares, note) in enumerate(rows):
        begin, pale = 0.0, label.startswith("published")
        for name, share in shares.items():
            color = COLORS.get(name, MUTED)
            axes.barh(y, share, left=begin, height=0.72, color=color, alpha=0.45 if pale else 1, edgecolor=PAPER)
            if share >= 0.07:
                place: Any = {"ha": "center", "va": "center", "fontsize": 9}
                axes.text(begin + share / 2, y, f"{share:.0%}", color=INK if pale else PAPER, **place)
            begin += share
        axes.text(1.01, y, note, va="center", fontsize=9, color=MUTED)
    axes.set_yticks(range(len(rows)), [label for label, _, _ in rows], color=INK)
    axes.set(xlim=(0, 1), ylim=(len(rows) - 0.45, -0.55))
    axes.grid(False)
    axes.xaxis.set_major_formatter(ticker.PercentFormatter(1, decimals=0))
    return figure


@_styled
def structures_over_steps(panels: Mapping[str, Mapping[str, Sequence[Window]]], stages: Stages | None) -> Figure:
    """Share of each structure in windows of steps, with the 95 % interval as a band; a panel for each benchmark."""
    figure, axes = _panels(len(panels), min(2, len(panels)), height=2.9)
    for one, (title, shares) in zip(axes, panels.items(), strict=False):
        if stages:
            shade(one, *stages)
        ends = []
        for name, windows in shares.items():
            if all(e.value == 0 for _, _, e in windows):
                continue
            at = [(first + last) / 2 for first, last, _ in windows]
            values, low, high = (np.array([getattr(e, k) for _, _, e in windows]) for k in ("value", "low", "high"))
            one.fill_between(at, low, high, color=COLORS[name], alpha=0.18, linewidth=0)
            one.plot(at, values, color=COLORS[name], linewidth=1.8, marker="o" if len(at) < 3 else None, markersize=4)
            ends.append((values[-1], f"{name} {values[-1]:.0%}", COLORS[name]))
        _end_labels(one, ends)
        one.set_title(title, loc="left", fontsize=10, color=INK, pad=18 if stages else 6)
        one.set_ylim(0, 1)
        _steps(one)
    return figure


@_styled
def learning_curves(panels: Sequence[tuple[str, Mapping[str, Band], bool]], stages: Stages | None) -> Figure:
    """Small multiples over steps.

    Args:
      panels: (title, label of a line -> the line, whether it is a share). A line of several runs has its range as a
        band. A label that is a role has the role's colour; others are coloured in order, the same in every panel.
      stages: shaded, if all runs have the same ones.
    """
    labels = [label for label in dict.fromkeys(k for _, lines, _ in panels for k in lines) if label not in ROLE]
    color = dict(zip(labels, (INK,) if len(labels) == 1 else itertools.cycle(SERIES), strict=False))
    figure, axes = _panels(len(panels), 3, height=2.05, head=0.25 * math.ceil(len(color) / 2) if len(color) > 1 else 0)
    if len(color) > 1:
        _legend(figure, color, 0.045, columns=2)
    for one, (title, lines, percent) in zip(axes, panels, strict=False):
        if stages:
            shade(one, *stages, named=False)
        top = 0.0
        for label, line in lines.items():
            if np.isnan(line.mean).all():
                continue
            own = {**ROLE, **color}[label]
            if not np.allclose(line.low, line.high, equal_nan=True):
                one.fill_between(line.steps, line.low, line.high, color=own, alpha=0.18, linewidth=0)
            alone = len(line.mean) < 2 or np.isnan(line.mean).any()  # a line alone would not show every step
            points = "." if alone else None
            one.plot(line.steps, line.mean, color=own, linewidth=1.5, marker=points, markersize=3)
            top = max(top, float(np.nanmax(line.high)))
        one.set_title(title, loc="left", fontsize=9.5, color=INK)
        one.set_ylim(0, 1.03 if percent and top > 0.4 else (top * 1.12 or 1.0))
        _steps(one, percent)
    return figure


@_styled
def attribution_bars(rows: Sequence[tuple[str, Attribution]]) -> Figure:
    """Newly solved to the right, newly lost to the left: with the same structure (execution), with another (design)."""
    figure, (axes,) = _panels(1, 1, height=0.75 + 0.42 * len(rows), left=_room(label for label, _ in rows))
    for y, (_, a) in enumerate(rows):
        for side, execution, design in ((1, a.solved_same, a.solved_changed), (-1, a.lost_same, a.lost_changed)):
            begin = 0
            for count, role in ((execution, "executor"), (design, "designer")):
                axes.barh(y, side * count, left=begin, height=0.62, color=ROLE[role], alpha=1 if side > 0 else 0.55)
                if count:
                    middle = begin + side * count / 2
                    axes.text(middle, y, str(count), ha="center", va="center", fontsize=9, color=PAPER)
                begin += side * count
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows], color=INK)
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.grid(False)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(8, integer=True))
    axes.xaxis.set_major_formatter(lambda value, _: f"{abs(value):.0f}")
    return figure


@_styled
def variant_dots(rows: Sequence[tuple[str, Comparison, Sequence[float]]]) -> Figure:
    """Accuracy of each variant with its interval; (label, what is known, the figure of each of its runs)."""
    figure, (axes,) = _panels(1, 1, height=0.6 + 0.4 * len(rows), left=_room(label for label, _, _ in rows))
    for y, (_, known, runs) in enumerate(rows):
        axes.plot(runs, [y] * len(runs), "o", color=MUTED, alpha=0.55, markersize=4)
        _dot(axes, known.figure, y, SERIES[0])
    axes.set_yticks(range(len(rows)), [label for label, _, _ in rows], color=INK)
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.grid(axis="x")
    axes.xaxis.set_major_formatter(ticker.PercentFormatter(1, decimals=0))
    return figure


@_styled
def credit(
    share: Sequence[Window], flat: Mapping[str, Band], advantages: Mapping[str, np.ndarray], stages: Stages | None
) -> Figure:
    """Where the signal is.

    Args:
      share: in windows of steps, of the reward's variance within a task what lies between designs.
      flat: role -> share of groups without any signal. advantages: role -> of what was trained on.
    """
    figure, (left, right, *histograms) = _panels(4, 2, height=2.6)
    for one in (left, right):
        if stages:
            shade(one, *stages)
        one.set_ylim(0, 1)
    at = [(first + last) / 2 for first, last, _ in share]
    low, high = (np.array([getattr(e, k) for _, _, e in share], float) for k in ("low", "high"))
    left.fill_between(at, low, high, color=ROLE["designer"], alpha=0.18, linewidth=0)
    left.plot(at, [e.value for _, _, e in share], color=ROLE["designer"], linewidth=1.8, marker="o", markersize=3)
    for role, line in flat.items():
        right.plot(line.steps, line.mean, color=ROLE[role], linewidth=1.6)
    _end_labels(
        right, [(line.mean[-1], role.capitalize(), ROLE[role]) for role, line in flat.items() if len(line.mean)]
    )
    pad = 18 if stages else 6
    left.set_title("variance of rewards that lies between designs", loc="left", fontsize=10, color=INK, pad=pad)
    right.set_title("groups in which all rewards are equal", loc="left", fontsize=10, color=INK, pad=pad)
    _steps(left)
    _steps(right)
    edges = np.linspace(-4, 4, 65)
    for one, (role, values) in zip(histograms, advantages.items(), strict=True):
        flat_share = float(np.mean(values == 0)) if len(values) else math.nan
        one.hist(np.clip(values, -4, 4), bins=edges.tolist(), color=ROLE[role], alpha=0.85)
        title = f"{role.capitalize()}: {len(values):,} advantages, {flat_share:.0%} exactly 0"
        one.set_title(title, loc="left", fontsize=10, color=INK)
        one.set_xlim(-4, 4)
        one.yaxis.set_major_formatter(_NUMBER)
    return figure


@_styled
def costs(by_structure: Mapping[str, Cost]) -> Figure:
    """Accuracy, tokens and calls per solved task of each structure, with intervals."""
    figure, axes = _panels(3, 3, height=0.75 + 0.34 * len(by_structure), left=0.12, right=0.98)
    fields = (("accuracy", "accuracy"), ("tokens_per_solved", "sampled tokens per solved task"),
              ("calls_per_solved", "agent calls per solved task"))  # fmt: skip
    for i, (one, (field, title)) in enumerate(zip(axes, fields, strict=True)):
        for y, (name, cost) in enumerate(by_structure.items()):
            _dot(one, getattr(cost, field), y, COLORS.get(name, MUTED))
        one.set_title(title, loc="left", fontsize=10, color=INK)
        one.set_yticks(range(len(by_structure)), list(by_structure) if i == 0 else [""] * len(by_structure), color=INK)
        one.set_ylim(len(by_structure) - 0.5, -0.5)
        one.set_xlim(left=0)
        one.grid(axis="x")
        one.xaxis.set_major_formatter(ticker.PercentFormatter(1) if field == "accuracy" else _NUMBER)
        one.xaxis.set_major_locator(ticker.MaxNLocator(5))
    return figure


def _panels(
    count: int, columns: int, *, height: float, left: float = 0.055, head: float = 0.0, right: float = 0.0
) -> tuple[Figure, list[Axes]]:
    """A transparent figure of so many panels, each of this height in inches.

    Args:
      left: share of the width for the labels of the first column. head: inches above all panels.
      right: the right end as a share of the width; by default two columns leave room for labels at the lines' ends,
        others none.
    """
    rows = math.ceil(count / columns)
    tall = rows * height + head
    figure = Figure(figsize=(_WIDTH, tall))
    figure.patch.set_alpha(0)
    between = (1.6 if columns == 2 else 0.65) / _WIDTH
    right = right or (0.875 if columns == 2 else 0.985)
    width = (right - left - (columns - 1) * between) / columns
    inside = height - (0.5 if count == 1 else 0.8)  # without title and numbers of the axis
    out = []
    for i in range(count):
        row, column = divmod(i, columns)
        bottom = (tall - head - (row + 1) * height + 0.32) / tall
        axes = figure.add_axes((left + column * (width + between), bottom, width, inside / tall))
        axes.patch.set_alpha(0)
        out.append(axes)
    return figure, out


def _legend(figure: Figure, colors: Mapping[str, str], left: float, *, columns: int) -> None:
    """Names with their colours, above all panels."""
    handles = [Line2D([], [], color=color, linewidth=5) for color in colors.values()]
    figure.legend(
        handles, list(colors), loc="upper left", bbox_to_anchor=(left, 1), ncols=max(1, columns), frameon=False,
        handlelength=1, borderaxespad=0.2, fontsize=9.5,
    )  # fmt: skip


def _room(labels: Iterable[str]) -> float:
    """The share of the width that row labels take."""
    return min(0.6, 0.03 + 0.0078 * max(map(len, labels), default=0))


def _dot(axes: Axes, estimate: Estimate, y: float, color: str) -> None:
    if not math.isfinite(estimate.value):
        axes.text(0.02, y, "none solved" if estimate.value == math.inf else "not known", va="center", fontsize=9,
                  color=MUTED, transform=axes.get_yaxis_transform())  # fmt: skip
        return
    if math.isfinite(estimate.low) and math.isfinite(estimate.high):
        axes.plot([estimate.low, estimate.high], [y, y], color=color, linewidth=2.2, solid_capstyle="round")
    axes.plot([estimate.value], [y], "o", color=color, markersize=7)


def _end_labels(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names at the right edge of axes from 0 to 1, moved apart where they would touch."""
    ordered = sorted((e for e in ends if not math.isnan(e[0])), key=lambda e: e[0])
    for (_, text, color), y in zip(ordered, spread(np.array([e[0] for e in ordered]), 0.085), strict=True):
        axes.annotate(text, (1.02, y), xycoords="axes fraction", va="center", fontsize=9, color=color,
                      annotation_clip=False)  # fmt: skip


def _steps(axes: Axes, percent: bool = True) -> None:
    axes.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
    axes.yaxis.set_major_locator(ticker.MaxNLocator(5))
    axes.yaxis.set_major_formatter(ticker.PercentFormatter(1) if percent else _NUMBER)
