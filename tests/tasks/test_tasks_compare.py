"""What counts as the expected output: printed text, returned values, checkers."""

import math
import time

import pytest

from metaagent_x.tasks.compare import CHECKERS, output_difference, same_output, same_value


@pytest.mark.fault("F134")
@pytest.mark.fault("B036")
@pytest.mark.parametrize(
    ("expected", "got", "same"),
    [
        ("0.333333333333", "0.333333", True),
        ("0.333333333333", "0.3333", False),
        ("1234567.890", "1234567.9", True),
        ("1234567.890", "1234570.1", False),
        ("2.0", "2", True),
        ("3", "4", False),
        ("3", "3.0", False),
        ("10000000", "10000001", False),
        ("1 2", "12", False),
        ("1 2", "1  2 ", True),
        ("a\nb\n", "a\r\nb\r\n", True),
        ("a\nb", "a  \nb\n\n\n", True),
        ("a\nb", "a\n\nb", True),
        ("a b", "a", False),
        ("a", "a b", False),
        ("", "", True),
        ("", " \n", True),
        ("", "x", False),
        ("x", "", False),
        ("NO", "no", False),
        ("YES\n0.5", "YES\n0.50000001", True),
        ("1.5", "nan", False),
        ("1.5", "1_0", False),
        ("1.5", "١.٥", False),
        ("1.5", "1e999", False),
        ("1.x", "1.y", False),
    ],
)
def test_output_comparison(expected, got, same):
    """LiveCodeBench/LiveCodeBench#133, #129, NVIDIA-NeMo/Gym#2956."""
    assert same_output(expected, got) is same


@pytest.mark.parametrize("got", ["1 " * 4_000_000, "1\n" * 4_000_000, "1" * 8_000_000, "\n" * 8_000_000])
def test_a_flood_of_output_is_refused_without_work(got):
    start = time.process_time()
    assert not same_output("1 2.5", got)
    assert output_difference("1 2.5", got)
    assert time.process_time() - start < 10


@pytest.mark.fault("F137")
@pytest.mark.parametrize(
    ("expected", "got", "same"),
    [
        ([[0.3]], [[0.1 + 0.2]], True),
        ([[0.3]], [[0.4]], False),
        ([1, [2, 3]], (1, (2, 3)), True),
        ([1, 2], [1, 2, 3], False),
        ([1, 2], [2, 1], False),
        ({"a": [0.3]}, {"a": (0.1 + 0.2,)}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"1": "x"}, {1: "x"}, True),
        ({"1": "x"}, {2: "x"}, False),
        (3, 3.0, True),
        (3, 3.0000000001, False),
        (3.0, 3, True),
        (3.0, 10**400, False),
        (1e17, 10**17, True),
        (True, 1, True),
        (True, 2, False),
        (1.0, True, True),
        (None, None, True),
        (None, 0, False),
        (None, [], False),
        (0, None, False),
        ("a", "a ", False),
        ("a", "A", False),
        ("12", 12, False),
        ([1], {1}, False),
        ({1, 2}, frozenset({2, 1}), True),
        (10**30, 10**30, True),
        (10**30, 10**30 + 1, False),
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (math.inf, math.inf, True),
        (math.inf, 1e300, False),
        (1e-9, 0.0, True),
    ],
)
def test_values_are_compared_through_nested_data(expected, got, same):
    """NVIDIA-NeMo/Gym#2956: lists of reals were compared exactly."""
    assert same_value(expected, got) is same


@pytest.mark.parametrize(
    ("name", "expected", "got", "same"),
    [
        ("unordered_lines", "a b\nc\n", "c\na  b", True),
        ("unordered_lines", "a\na\nb", "a\nb\nb", False),
        ("unordered_lines", "a b", "b a", False),
        ("any_case", "YES\n0.5", "yes\n0.50000001", True),
        ("any_case", "YES", "NO", False),
    ],
)
def test_checkers(name, expected, got, same):
    assert CHECKERS[name]("", expected, got) is same
