"""One table in three forms."""

import math

import pytest

from metaagent_x.analysis.intervals import Estimate
from metaagent_x.analysis.tables import Table, said

TABLE = Table(
    "t", "Title", [("what", "text"), ("share", "percent"), ("n", "number")],
    [["a|b", Estimate(0.5, 0.25, 0.75, 4), 1234], ["<i>", 0.125, None], ["c", Estimate(0.1, math.nan, math.nan, 1), 2]],
    "A note.",
)  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "form", "text"),
    [
        (0.552, "percent", "55.2 %"), (Estimate(0.552, 0.5, 0.604, 9), "percent", "55.2 % [50.0, 60.4]"),
        (Estimate(-0.02, -0.05, 0.013, 9), "points", "-2.0 [-5.0, +1.3]"), (0.0004, "p", "< 0.001"),
        (0.04, "p", "0.040"), (1234567, "number", "1,234,567"), (0.12345, "number", "0.123"),
        (3.14159, "number", "3.14"), (31.4159, "number", "31.4"), (314.159, "number", "314"), (math.inf, "number", "∞"),
        (None, "number", "-"),
        (math.nan, "percent", "-"), (Estimate(math.nan, math.nan, math.nan, 0), "percent", "-"), ("x", "text", "x"),
        (Estimate(20.0, 10.0, math.inf, 3), "number", "20.0 [10.0, ∞]"),
    ],
)  # fmt: skip
def test_cells_are_said_as_a_person_reads_them(cell, form, text):
    assert said(cell, form) == text


def test_markdown_is_a_pipe_table_with_title_and_note():
    assert TABLE.markdown().splitlines() == [
        "### Title", "", "| what | share | n |", "| --- | ---: | ---: |", "| a\\|b | 50.0 % [25.0, 75.0] | 1,234 |",
        "| <i> | 12.5 % | - |", "| c | 10.0 % | 2 |", "", "A note.",
    ]  # fmt: skip


def test_csv_has_plain_numbers_and_the_bounds_in_columns_of_their_own():
    assert TABLE.csv().splitlines() == [
        "what,share,share low,share high,n", "a|b,0.5,0.25,0.75,1234", "<i>,0.125,,,", "c,0.1,,,2"
    ]  # fmt: skip


def test_html_is_escaped_and_has_the_interval_below():
    text = TABLE.html()
    assert "&lt;i&gt;" in text and "<i>" not in text
    assert "<td>50.0 %<small>[25.0, 75.0]</small></td>" in text
