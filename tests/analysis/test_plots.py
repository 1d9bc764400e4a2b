"""Figures: drawn once, in the page's colours on the page and in the light theme's as files."""

import math
import re

import numpy as np
import pytest
from matplotlib.image import imread

from metaagent_x.analysis import figures, plots
from metaagent_x.analysis.ablation import compare
from metaagent_x.analysis.cost import Cost
from metaagent_x.analysis.curves import band
from metaagent_x.analysis.intervals import Estimate

STAGES = (range(1, 5), [["executor"]] * 2 + [["designer"]] * 2)
LINE = [(1.0, 2.0, Estimate(0.25, 0.1, 0.4, 8)), (3.0, 4.0, Estimate(0.5, 0.4, 0.6, 8))]
NEVER = [(1.0, 2.0, Estimate(0.0, 0.0, 0.0, 8)), (3.0, 4.0, Estimate(0.0, 0.0, 0.0, 8))]


def texts(figure):
    return " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", figures.to_svg(figure, "f", "title")))


def cost(value):
    return Cost(3, 1, *[Estimate(value, value, value, 2)] * 7)


def test_files_have_the_light_themes_colours_in_both_forms(tmp_path):
    advantages = {"designer": np.zeros(3), "executor": np.arange(5.0)}
    figure = plots.credit(LINE, {"executor": band([{1: 0.1, 2: 0.4}], 1)}, advantages, STAGES)
    drawn = figures.draw(figure, "credit")
    assert "#0a0b" in drawn
    figures.save(figure, drawn, tmp_path / "credit")
    svg, pixels = (tmp_path / "credit.svg").read_text(), imread(tmp_path / "credit.png")
    assert "#0a0b" not in svg and 'fill="#ffffff"' in svg and "#0072b2" in svg
    assert (pixels[..., 3] == 1).all() and (pixels[0, 0] == 1).all()
    # Stand-ins are nearly black (10, 11, ...); the darkest colour of the theme, its ink, is (29, 31, 33).
    assert pixels[..., :2].max(-1).min() * 255 >= 28
    assert figures.draw(figure, "credit").count("#0a0b") == 0


def test_structures_that_never_ran_are_neither_in_the_legend_nor_a_line():
    said = texts(plots.structure_bars([("ours", {"single": 0.9, "ensemble": 0.1, "other": 0.0}, "9 tasks")]))
    assert all(word in said for word in ("single", "ensemble", "90%", "9 tasks", "ours")) and "other" not in said
    said = texts(plots.structures_over_steps({"apps": {"single": LINE, "other": NEVER}}, STAGES))
    assert "single 50%" in said and "apps" in said and "other" not in said and "Designer" in said


def test_variants_are_named_once_and_roles_by_their_colour():
    both = {"a": band([{1: 0.0, 2: 1.0}], 1), "b": band([{1: 0.0, 2: 0.5}], 1)}
    said = texts(plots.learning_curves([("reward", both, False), ("accuracy", both, True)], None))
    assert said.split().count("a") == 1 and "reward" in said and "100%" in said
    role = {"designer": band([{1: 0.5, 2: 0.6}], 1)}
    assert "var(--designer)" in figures.to_svg(plots.learning_curves([("valid", role, True)], STAGES), "f", "t")


@pytest.mark.parametrize(("value", "said"), [(math.inf, "none solved"), (math.nan, "not known")])
def test_what_cannot_be_drawn_is_said(value, said):
    assert said in texts(plots.costs({"single": cost(value)}))


def test_what_is_unknown_of_a_variant_leaves_its_row_empty():
    known = compare([{0: {"a": 1, "b": 0}}, {}])
    said = texts(plots.variant_dots([("first", known[0], [0.5]), ("second", known[1], [])]))
    assert "first" in said and "second" in said and "not known" in said
