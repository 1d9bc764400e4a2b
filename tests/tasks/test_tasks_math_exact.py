"""Exact values: what is read, what is not, and that equality is decided and not estimated."""

import pytest

from metaagent_x.tasks.math_exact import proportional, read, same
from metaagent_x.tasks.math_units import split


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (r"\sqrt{8}", r"2\sqrt2"),
        (r"\frac{1}{\sqrt2}", r"\frac{\sqrt2}{2}"),
        (r"\sqrt[3]{-8}", "-2"),
        (r"\sqrt{-4}", "2i"),
        (r"2^{1/2}\cdot 2^{1/3}", "2^{5/6}"),
        (r"\frac{\sqrt3}{1-\sqrt3}", r"-\frac{3+\sqrt{3}}{2}"),
        (r"(1+i)^4", "-4"),
        (r"e^{i\pi}", "-1"),
        (r"e^{\frac{3\pi i}{2}}", "-i"),
        (r"0.1\overline{6}", r"\frac{1}{6}"),
        (r"-1\frac12", "-1.5"),
        ("2 1/2", "2.5"),
        (r"\frac{x^2-1}{x-1}", "x+1"),
        (r"\binom{5}{2}+3!", "16"),
        ("2^{2008}-2", "2(2^{2007}-1)"),
    ],
)
def test_equal_values(a, b):
    assert same(a, b) is True
    assert same(a, f"({b})+10^{{-50}}") is False


@pytest.mark.parametrize(
    "text",
    [
        "", "+", "1+", "(1", "1)", "1 2", "1,2", "2 x 3", r"\sin x", "2^n", r"\sqrt{x}", r"\sqrt{1+\sqrt2}", "1/0",
        r"2\frac{3}{2}", "9^{9^9}", "(a+b+c)^{99}", "5000!", r"\frac{1}", "0^{-1}", "(" * 50 + "1" + ")" * 50, "x'",
        "1.2.3", r"\sqrt{10000000000000000000000000061}",
    ],
)  # fmt: skip
def test_what_is_not_of_this_kind_is_not_read(text):
    assert read(text) is None
    assert same(text, "1") is None


def test_equations_are_compared_up_to_a_factor():
    assert proportional("y-(2x+1)", "4x-2y+2")
    assert proportional("x-1", "x-2") is False
    assert proportional("x-1", "0") is False
    assert proportional("x-1", r"\sin x") is None


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        (r"12\text{ cm}^2", "12", "cm^2"),
        (r"12\text{ square centimeters}", "12", "cm^2"),
        (r"5\mathrm{km}/\mathrm{h}", "5", "kph"),
        ("5 kilometers per hour", "5", "kph"),
        (r"\$5", "5", "dollar"),
        (r"5\%", "5", "percent"),
        ("5°", "5", "degree"),
        (r"5\text{ apples}", "5", "apples"),
        (r"5\text{ thousand}", r"5\text{ thousand}", ""),
        (r"5\text{ or more}", r"5\text{ or more}", ""),
        ("5m", "5m", ""),
        ("27n^2", "27n^2", ""),
        (r"\sin 30°", r"\sin 30°", ""),
    ],
)
def test_units(text, value, unit):
    assert split(text, trusted=False) == (value, unit)


def test_words_behind_a_gold_are_its_unit():
    assert split(r"5\text{ red marbles}", trusted=True) == ("5", "red marbles")
    assert split(r"5\text{ red marbles}", trusted=False) == (r"5\text{ red marbles}", "")
