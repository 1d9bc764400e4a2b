"""The report's figures, as SVG text that takes its colours from the page, and so follows its light or dark theme."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb, to_rgba_array
from matplotlib.figure import Figure

from metaagent_x.analysis.html import Markup, escape
from metaagent_x.analysis.statistics import rolling_mean, stages
from metaagent_x.analysis.style import CSS

WINDOW = 5  # steps in a rolling mean

# Stand-ins that matplotlib draws with; the page's variable of the same name replaces them.
INK, MUTED, GRID, PAPER = "#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04"
ROLE = {"executor": "#0a0b05", "designer": "#0a0b06"}
SERIES = tuple(f"#0a0b1{i}" for i in range(8))
_VARIABLES = {
    INK: "--ink", MUTED: "--muted", GRID: "--grid", PAPER: "--paper", ROLE["executor"]: "--executor",
    ROLE["designer"]: "--designer", **{color: f"--series-{i}" for i, color in enumerate(SERIES)},
}  # fmt: skip
STYLE: Any = {
    "svg.fonttype": "none", "text.parse_math": False, "font.family": "sans-serif", "font.size": 10, "text.color": INK,
    "axes.edgecolor": MUTED, "axes.labelcolor": MUTED, "axes.linewidth": 0.8, "axes.spines.top": False,
    "axes.spines.right": False, "axes.spines.left": False, "axes.grid": True, "axes.grid.axis": "y",
    "axes.axisbelow": True, "grid.color": GRID, "grid.linewidth": 0.8, "xtick.color": MUTED, "ytick.color": MUTED,
    "xtick.major.size": 3, "ytick.major.size": 0,
}  # fmt: skip


def learning_curve(
    steps: Sequence[int],
    active: Sequence[Sequence[str]],
    accuracy: Sequence[float],
    points: Mapping[str, Sequence[tuple[int, float]]],
) -> Markup:
    """Accuracy over steps, the stages shaded by the role that learns.

    Args:
      steps, active, accuracy: one entry a step: its number, who learned, share of right executions.
      points: label -> (step, accuracy) of evaluations on held-out tasks; the first series is drawn as a line.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes(10.2, 3.9, right=0.90)
        shade(axes, steps, active)
        if steps:
            axes.plot(steps, accuracy, ".", color=MUTED, alpha=0.45, markersize=4, clip_on=False)
            axes.plot(steps, rolling_mean(accuracy, WINDOW), color=MUTED, linewidth=1.6)
        for i, (label, series) in enumerate(points.items()):
            _held_out(axes, label, series, filled=i == 0)
        values = [v for v in [*accuracy, *(v for s in points.values() for _, v in s)] if not np.isnan(v)]
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        axes.set_ylim(max(0, np.floor(low * 10 - 0.2) / 10), min(1.02, np.ceil(high * 10 + 0.2) / 10))
        last = max([*steps, *(s for series in points.values() for s, _ in series), 1])
        axes.set_xlim(-0.012 * last, last * 1.012)
        axes.set_xlabel("step")
        axes.yaxis.set_major_locator(ticker.MaxNLocator(8, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_locator(ticker.MaxNLocator(9, integer=True))
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(1, decimals=0))
        return to_svg(figure, "learning", "Accuracy over training steps")


def token_curves(runs: Sequence[Sequence[tuple[int, float]]], greedy: Sequence[Sequence[tuple[int, float]]]) -> Markup:
    """Held-out accuracy of several runs over the tokens that they sampled, each in the colour `SERIES` of its place.

    Args:
      runs: of each run, (tokens, accuracy) at T = 1, drawn as a line whose last value stands at the right.
      greedy: the same of greedy evaluations, drawn as rings.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes(10.2, 3.9, right=0.92)
        every = [point for series in (*runs, *greedy) for point in series]
        low, high = min(v for _, v in every), max(v for _, v in every)
        bottom, top = max(0, np.floor(low * 10 - 0.2) / 10), min(1.02, np.ceil(high * 10 + 0.2) / 10)
        last = max(1, *(tokens for tokens, _ in every))
        ends: list[tuple[float, str, str]] = []
        for i, (series, rings) in enumerate(zip(runs, greedy, strict=True)):
            color = SERIES[i % len(SERIES)]
            line: Any = {"color": color, "marker": "o", "clip_on": False}
            axes.plot(*_columns(rings), markerfacecolor=PAPER, markersize=6, linestyle="none", zorder=6, **line)
            if points := sorted(series):
                axes.plot(*_columns(points), markersize=4.5, linewidth=2.0, zorder=5, **line)
                ends.append(((points[-1][1] - bottom) / (top - bottom), f"{points[-1][1]:.1%}", color))
        ends.sort()
        heights = spread(np.array([height for height, _, _ in ends]), gap=0.06)
        place: Any = {"xycoords": "axes fraction", "va": "center", "annotation_clip": False, "fontweight": "bold"}
        for at, (_, text, color) in zip(heights, ends, strict=True):
            axes.annotate(text, (1.022, at), color=color, **place)
        axes.set(ylim=(bottom, top), xlim=(-0.012 * last, last * 1.012), xlabel="sampled tokens")
        axes.yaxis.set_major_locator(ticker.MaxNLocator(8, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_locator(ticker.MaxNLocator(9))
        axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(1, decimals=0))
        return to_svg(figure, "tokens", "Held-out accuracy over sampled tokens")


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def structure_shares(steps: Sequence[int], shares: Mapping[str, Sequence[float]]) -> Markup:
    """Stacked shares of the structures that ran, smoothed over a few steps, labelled at the right edge."""
    names = sorted(shares, key=lambda n: (n == "invalid", -float(np.nansum(shares[n]))))
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes(10.2, 3.3, right=0.80)
        layers = np.array([rolling_mean(np.nan_to_num(np.asarray(shares[n], float)), WINDOW) for n in names])
        if len(steps) == 1:  # an area needs two edges
            steps, layers = (steps[0] - 1, steps[0]), np.repeat(layers, 2, axis=1)
        colors = [MUTED if n == "invalid" else SERIES[i % len(SERIES)] for i, n in enumerate(names)]
        axes.stackplot(steps, layers, colors=colors, edgecolor=PAPER, linewidth=0.8)
        _edge_labels(axes, names, layers[:, -1], colors)
        axes.xaxis.set_major_locator(ticker.MaxNLocator(9, integer=True))
        axes.set(ylim=(0, 1), xlim=(steps[0], steps[-1]), xlabel="step")
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(1, decimals=0))
        axes.grid(False)
        return to_svg(figure, "structures", "Share of each structure over training steps")


def small_curve(
    steps: Sequence[int], series: Mapping[str, Sequence[float]], name: str, *, percent: bool = False
) -> Markup:
    """One small chart; several series are told apart by colour and a label at their end."""
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes(3.3, 1.9, left=0.15, right=0.97, bottom=0.2)
        for label, values in series.items():
            color = ROLE.get(label, INK)
            axes.plot(steps, rolling_mean(values, WINDOW), color=color, linewidth=1.6)
            axes.plot(steps, values, ".", color=color, alpha=0.3, markersize=3)
        top = max((float(np.nanmax(v)) for v in series.values() if not np.all(np.isnan(v))), default=1.0)
        axes.set_ylim(0, 1.03 if percent else (top * 1.1 or 1.0))
        axes.yaxis.set_major_locator(ticker.MultipleLocator(0.25) if percent else ticker.MaxNLocator(4))
        axes.xaxis.set_major_locator(ticker.MaxNLocator(4, integer=True))
        form = ticker.PercentFormatter(1, decimals=0) if percent else ticker.EngFormatter(sep="")
        axes.yaxis.set_major_formatter(form)
        return to_svg(figure, name, name)


def new_axes(width: float, height: float, *, left=0.055, right=0.985, bottom=0.13, top=0.93) -> tuple[Figure, Axes]:
    """A figure of this size in inches, transparent, with one pair of axes at these fractions of it."""
    figure = Figure(figsize=(width, height))
    figure.patch.set_alpha(0)
    axes = figure.add_axes((left, bottom, right - left, top - bottom))
    axes.patch.set_alpha(0)
    return figure, axes


def shade(axes: Axes, steps: Sequence[int], active: Sequence[Sequence[str]], *, named: bool = True) -> None:
    """Bands by role that learns; each is named at its top if there is room."""
    for first, last, roles in stages(active):
        begin, end = steps[first] - 1, steps[last]
        color = ROLE.get("".join(roles), MUTED)
        axes.axvspan(begin, end, color=color, alpha=0.10, linewidth=0)
        inches = axes.get_position().width * axes.figure.get_figwidth() * (end - begin) / max(1, steps[-1])  # type: ignore[union-attr]
        if named and inches > 0.7:
            axes.text(
                (begin + end) / 2, 1.015, " and ".join(roles).capitalize(), color=color, ha="center", va="bottom",
                fontsize=9, transform=axes.get_xaxis_transform(),
            )  # fmt: skip


def _held_out(axes: Axes, label: str, series: Sequence[tuple[int, float]], *, filled: bool) -> None:
    """Evaluation points; the value of the first stands below it, label and value of the last to its right."""
    if not series:
        return
    points = sorted(series)
    weight = "bold" if filled else "normal"
    axes.plot(
        [p[0] for p in points], [p[1] for p in points], marker="o", color=INK, clip_on=False, zorder=5,
        markerfacecolor=INK if filled else PAPER, markersize=7 if filled else 6,
        linewidth=2.2, linestyle="-" if filled else "none",  # greedy is measured at the ends only
    )  # fmt: skip
    # The filled series is labelled below its points, the other above: they often lie close together.
    place: Any = {"textcoords": "offset points", "zorder": 6, "fontweight": weight, "annotation_clip": False}
    if len(points) > 1:
        axes.annotate(f"{points[0][1]:.0%}", points[0], (6, -12 if filled else 11), va="center", **place)
    axes.annotate(f"{points[-1][1]:.0%}  {label}", points[-1], (10, -4 if filled else 4), va="center", **place)


def _edge_labels(axes: Axes, names: Sequence[str], heights: np.ndarray, colors: Sequence[str]) -> None:
    """Names at the right edge, at the height of their area, moved apart where they would touch."""
    middles = np.cumsum(heights) - heights / 2
    for i, at in zip(np.argsort(middles, kind="stable"), spread(np.sort(middles), gap=0.075), strict=True):
        axes.plot(
            [1, 1.035], [middles[i], at], transform=axes.transAxes, color=colors[i], linewidth=2.5, clip_on=False
        )  # fmt: skip
        label = f"{names[i]}  {heights[i]:.0%}"
        place: Any = {"xycoords": "axes fraction", "va": "center", "annotation_clip": False}
        axes.annotate(label, (1.045, at), fontsize=9.5, color=INK, **place)


def spread(wanted: np.ndarray, gap: float) -> np.ndarray:
    """Rising heights moved apart to at least `gap`, upwards first and then down from 1.0, the top of the figure."""
    out = np.array(wanted, float)
    for i in range(1, len(out)):
        out[i] = max(out[i], out[i - 1] + gap)
    top = 1.0
    for i in reversed(range(len(out))):
        out[i] = min(out[i], top)
        top = out[i] - gap
    return out


def to_svg(figure: Figure, name: str, title: str) -> Markup:
    """The figure as an inline SVG element: page colours, page font, no ids that another figure could have too.

    `data-plot` says where it plots: left, top, width and height as shares of the figure, then the ends of the x axis.
    """
    axes = figure.axes[0]
    place = axes.get_position()
    plot = (place.x0, 1 - place.y1, place.width, place.height, *axes.get_xlim())
    return inline(draw(figure, name), title, " ".join(f"{number:.6g}" for number in plot))


def draw(figure: Figure, name: str) -> str:
    """The figure as an SVG element in stand-in colours, the same for the same figure and name."""
    out = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = out.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def inline(drawn: str, title: str, plot: str = "") -> Markup:
    """What `draw` gave, for a page. `plot`: its `data-plot`."""
    text = drawn
    for stand_in, variable in _VARIABLES.items():
        text = text.replace(stand_in, f"var({variable})")
    text = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", text)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)  # it would style the whole page
    text = re.sub(r"font-family: [^;\"]*", "font-family: var(--font)", text)
    text = re.sub(r"font: ((?:[a-z0-9]+ )*)([\d.]+)px [^;\"]*", r"font: \1\2px var(--font)", text)
    at = f' data-plot="{plot}"' if plot else ""
    head = rf'<svg role="img" viewBox="\1"{at} aria-label="{escape(title)}">'
    text = re.sub(r"<svg [^>]*?viewBox=\"([^\"]*)\"[^>]*>", head, text)
    return Markup(text)


def save(figure: Figure, drawn: str, path: Path) -> None:
    """Writes `path` with the endings .svg and .png, in the colours of the light theme, which the figure then keeps.

    Args:
      figure: as it is after `draw`. drawn: what that gave.
    """
    light = dict(re.findall(r"(--[a-z0-9-]+): (#[0-9a-f]{6})", CSS.split("@media")[0]))
    colors = {stand_in: light[variable] for stand_in, variable in _VARIABLES.items()}
    text = drawn.replace(">", f'>\n<rect width="100%" height="100%" fill="{light["--paper"]}"/>', 1)
    for stand_in, color in colors.items():
        text = text.replace(stand_in, color)
    path.with_suffix(".svg").write_text(text, encoding="utf-8")
    with matplotlib.rc_context(STYLE):
        _repaint(figure, colors)
        figure.patch.set_facecolor(light["--paper"])
        figure.patch.set_alpha(1)
        figure.savefig(path.with_suffix(".png"), dpi=160, metadata={"Software": None})


def _repaint(figure: Figure, colors: Mapping[str, str]) -> None:
    """Exchanges colours in all that has been drawn; transparency stays."""
    known = {to_hex(old): to_rgb(new) for old, new in colors.items()}
    for artist in figure.findobj():
        for name in ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor"):
            get, put = getattr(artist, f"get_{name}", None), getattr(artist, f"set_{name}", None)
            if get is None or put is None:
                continue
            rows = to_rgba_array(get())
            if found := [(i, new) for i, row in enumerate(rows) if (new := known.get(to_hex(row[:3]))) is not None]:
                for i, new in found:
                    rows[i, :3] = new
                put(rows if len(rows) > 1 else tuple(rows[0]))
