"""Exact values: what is read, what is not, and that equality is decided and not estimated."""

import pytest

from metaagent_x.tasks import math_exact
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
        (r"e^{-\pi i/3}", r"\frac{1-i\sqrt3}{2}"),
        (r"e^{11\pi i/4}", r"\frac{i-1}{\sqrt2}"),
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


@pytest.mark.fault("B033")
@pytest.mark.parametrize(
    "text",
    [
        "(a+b)^{60}" * 30, "(a+b+c)^9" * 40, "(a+b+c+d)(a-b+c-d)" * 20, "((a+b)^{-1}+c)^{-1}" * 20,
        "(2^{160}x+3^{100})^{60}(2^{160}x-3^{100})^{60}", "+".join(f"1/(x+{n})" for n in range(40)),
        "(" + "+".join("abcdfghjklmnopqrstuv") + ")^{9}",
    ],
)  # fmt: skip
def test_a_short_text_cannot_ask_for_much_work(monkeypatch, text):
    """Products of monomials, not seconds. What would need more is left to a worker, which can be killed."""
    steps = 0
    times = math_exact._times

    def counted(a, b):
        nonlocal steps
        steps += 1
        return times(a, b)

    monkeypatch.setattr(math_exact, "_times", counted)
    assert read.__wrapped__(text) is None
    assert steps <= math_exact.MAX_WORK


def test_long_digits_take_linear_time():
    """A pattern that can split digits in two places needs the cube of their number of steps."""
    digits = "1234567890" * 2_000
    for text in (rf"\frac{{{digits}}}{{{digits}!}}", f"{digits}/{digits}!", f"{digits}!"):
        assert math_exact.read_rational(text) is None


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
