"""Curves over steps, on values worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaagent_x.analysis.statistics import rolling_mean, stages


def test_rolling_mean_looks_back_only():
    assert rolling_mean([2, 4, 6, 8], 2).tolist() == [2, 3, 5, 7]
    assert rolling_mean([1, 2], 5).tolist() == [1, 1.5]
    assert rolling_mean([3, 1, 2], 1).tolist() == [3, 1, 2]


def test_rolling_mean_leaves_unknown_values_out():
    out = rolling_mean([math.nan, 2, math.nan, math.nan, 6], 2).tolist()
    assert math.isnan(out[0]) and out[1:3] == [2, 2] and math.isnan(out[3]) and out[4] == 6


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30), st.integers(1, 40))
def test_rolling_mean_is_the_plain_mean_of_the_window(values, window):
    plain = [np.mean(values[max(0, i + 1 - window) : i + 1]) for i in range(len(values))]
    np.testing.assert_allclose(rolling_mean(values, window), plain, atol=1e-9)


def test_window_below_one_is_refused():
    with pytest.raises(ValueError, match="window=0"):
        rolling_mean([1.0], 0)


def test_stages_are_runs_of_equal_roles():
    e, d = ["executor"], ["designer"]
    assert stages([e, e, d, e]) == [(0, 1, ("executor",)), (2, 2, ("designer",)), (3, 3, ("executor",))]
    assert stages([]) == []
