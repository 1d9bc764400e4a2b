"""Variance between and within designs, on groups small enough to compute by hand."""

import math

import numpy as np
import pytest
from trace_rows import played

from metaagent_x.analysis.spread import groups_of, spread


@pytest.mark.parametrize(
    ("group", "within", "between", "share"),
    [
        # Means 1 and 0 have variance 1/2, and nothing varies within.
        ([[1, 1], [0, 0]], 0, 0.5, 1),
        # Equal means; variance 1/2 within either.
        ([[1, 0], [1, 0]], 0.5, 0, 0),
        # Means 1 and 1/2 have variance 1/8; chance alone gives within / 2 = (0 + 1/2) / 2 / 2 = 1/8.
        ([[1, 1], [1, 0]], 0.25, 0, 0),
        # Means 1 and 1/3: 2/9. Within: (2/3) / 4 = 1/6, of which chance among three makes 1/18. 2/9 - 1/18 = 1/6.
        ([[1, 1, 1], [0, 0, 1]], 1 / 6, 1 / 6, 0.5),
    ],
)
def test_components_of_one_group(group, within, between, share):
    found = spread([group])
    assert (found.within, found.between, found.share.value) == pytest.approx((within, between, share))
    assert found.groups == 1 and math.isnan(found.share.low)


def test_sums_of_squares_are_pooled_and_uninformative_groups_left_out():
    """Groups 1 and 2 above: within (0 + 1) / 4; between ((1 + 0) - 2 x 1/4) / (2 + 2)."""
    found = spread([[[1, 1], [0, 0]], [[1, 0], [1, 0]], [[1, 0, 1]], [[], [1]]])
    assert (found.within, found.between, found.groups) == pytest.approx((0.25, 0.125, 2))
    assert found.share.value == pytest.approx(1 / 3) and found.share.low == 0 and found.share.high == 1


def test_pure_luck_of_executions_is_not_taken_for_a_signal_of_designs():
    """The share of the sums of squares would be 3 / 15 here; the components' share is near 0."""
    rng = np.random.default_rng(0)
    found = spread([(rng.random((4, 4)) < 0.5).tolist() for _ in range(2000)])
    assert found.share.value < 0.02 and found.within == pytest.approx(0.25, abs=0.01)


def test_known_components_are_found_again():
    """Designs of success rates 0.2 and 0.8: variance of the rates 0.36 / 2 = 0.09 as drawn, 0.16 within."""
    rng = np.random.default_rng(1)
    rates = rng.choice([0.2, 0.8], size=(3000, 4, 1))
    found = spread((rng.random((3000, 4, 4)) < rates).astype(float).tolist())
    assert (found.within, found.between) == (pytest.approx(0.16, abs=0.005), pytest.approx(0.09, abs=0.005))
    assert found.share.low < 0.36 < found.share.high


def test_nothing_to_compare_is_not_a_number():
    assert math.isnan(spread([]).share.value) and math.isnan(spread([[[1, 1], [1, 1]]]).share.value)


def test_groups_are_tasks_of_a_step_with_designs_in_rows():
    rows = [
        ("b", "single", 1, {"step": 2, "design": 1, "execution": 0}),
        ("a", "single", 1, {"step": 1, "design": 0, "execution": 1}),
        ("a", "invalid", 0, {"step": 1, "design": 1, "execution": 0}),
        ("a", "single", 0, {"step": 1, "design": 0, "execution": 0}),
        ("a", "single", 1, {"step": 2, "design": 0, "execution": 0}),
        ("b", "single", 0, {"step": 2, "design": 0, "execution": 0}),
    ]
    assert list(groups_of(played(*rows))) == [(1, [[0, 1], [0]]), (2, [[1]]), (2, [[0], [1]])]
    assert next(groups_of(played(*rows), valid_only=True)) == (1, [[0, 1]])
    assert list(groups_of(played())) == []
