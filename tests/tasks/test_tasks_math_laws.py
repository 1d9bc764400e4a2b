"""What must hold for any value: respelling it changes no verdict, changing it does."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from metaagent_x.tasks.math import is_equivalent

SQUAREFREE = [1, 2, 3, 5, 6, 7, 10, 11]
rationals = st.builds(Fraction, st.integers(-60, 60), st.integers(1, 12))
roots = st.sampled_from(SQUAREFREE)


def frac(value):
    return str(value) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def spellings(a, b, root):
    """Ways to write a + b sqrt(root)."""
    common = a.denominator * b.denominator
    x, y = a * common, b * common
    yield rf"{frac(a)}+({frac(b)})\sqrt{{{root}}}"
    yield rf"\left({frac(b)}\right) \cdot \sqrt{{{root}}} + {frac(a)}"
    yield rf"\dfrac{{{x}+({y})\sqrt{{{root}}}}}{{{common}}}"
    yield rf"$ ({x} + ({y}) {root}^{{1/2}})/{common} $."
    yield rf"x = {frac(a)} + \frac{{({frac(b)})\cdot {root}}}{{\sqrt{{{root}}}}}"
    yield rf"{frac(a)} - (-1)({frac(b / 2)})\sqrt{{{4 * root}}}"


@settings(max_examples=25, deadline=None)
@given(rationals, rationals, roots, rationals)
def test_a_respelt_value_is_equal_and_a_changed_one_is_not(a, b, root, change):
    ways = list(spellings(a, b, root))
    for way in ways:
        assert is_equivalent(way, ways[0]) and is_equivalent(ways[0], way)
    if change:
        for other in spellings(a + change, b, root):
            assert not is_equivalent(other, ways[0]) and not is_equivalent(ways[0], other)
    if b and root > 1:
        for other in spellings(a, -b, root):
            assert not is_equivalent(other, ways[0])


@settings(max_examples=25, deadline=None)
@given(st.lists(rationals, min_size=2, max_size=5, unique=True), st.randoms(use_true_random=False), rationals)
def test_lists_are_sets_and_tuples_are_not(values, random, extra):
    gold = ", ".join(map(frac, values))
    mixed = random.sample(values, len(values))
    plain = list(map(str, mixed))
    for answer in (", ".join(map(frac, mixed)), r"\{" + ", ".join(plain) + r"\}", " or ".join(plain),
                   ", ".join(f"x = {value}" for value in plain), r" \text{ and } ".join(plain)):  # fmt: skip
        assert is_equivalent(answer, gold)
    assert is_equivalent("(" + ", ".join(map(str, mixed)) + ")", f"({gold})") == (mixed == values)
    assert not is_equivalent(", ".join(map(frac, values[1:])), gold)
    assert is_equivalent(f"{gold}, {frac(extra)}", gold) == (extra in values)


@settings(max_examples=25, deadline=None)
@given(rationals, rationals, st.sampled_from("[("), st.sampled_from("])"))
def test_an_interval_is_its_inequality_and_no_other(x, y, left, right):
    low, high = min(x, y), max(x, y) + 1
    gold = f"{left}{frac(low)}, {frac(high)}{right}"
    signs = r" \le " if left == "[" else " < ", r" \leq " if right == "]" else "<"
    flipped = r"\geq" if right == "]" else ">", r"\ge " if left == "[" else " > "
    middle, outside = (low + high) / 2, high + 1
    for answer in (f"{low}{signs[0]}x{signs[1]}{high}", f"{high} {flipped[0]} t {flipped[1]}{low}",
                   rf"x \in \left{left}{low}, {high}\right{right}"):  # fmt: skip
        assert is_equivalent(answer, gold) and is_equivalent(gold, answer)
    other = {"[": "(", "(": "[", "]": ")", ")": "]"}
    for answer in (f"{other[left]}{low}, {high}{right}", f"{left}{low}, {high}{other[right]}",
                   f"{left}{low}, {outside}{right}", f"{left}{high}, {low}{right}"):  # fmt: skip
        assert not is_equivalent(answer, gold) and not is_equivalent(gold, answer)
    hole = rf"{left}{low}, {frac(middle)}) \cup ({frac(middle)}, {high}{right}"
    assert is_equivalent(rf"{gold} \setminus \{{{frac(middle)}\}}", hole)
    assert not is_equivalent(rf"{gold} \setminus \{{{frac(middle)}\}}", gold)
    for point in (low - 1, low, high, outside):
        assert not is_equivalent(rf"{gold} \setminus \{{{frac(point)}\}}", hole)
