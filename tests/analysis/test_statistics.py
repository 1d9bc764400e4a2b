"""Means and intervals, on values worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaagent_x.analysis.statistics import paired_bootstrap, rolling_mean, stages


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


def test_a_gain_on_every_task_has_no_spread():
    gain = paired_bootstrap(dict.fromkeys("abcd", 0), dict.fromkeys("abcd", 1))
    assert (gain.before, gain.after, gain.gain, gain.low, gain.high, gain.tasks) == (0, 1, 1, 1, 1, 4)


def test_pairing_removes_what_both_sides_share():
    """Ten tasks differ by luck alone; the second side gets two more right. Unpaired, the interval would hold 0."""
    before = {str(i): i % 2 for i in range(100)}
    after = before | {"0": 1, "2": 1, "4": 1, "6": 1, "8": 1, "10": 1}
    gain = paired_bootstrap(before, after)
    assert gain.gain == pytest.approx(0.06) and gain.low > 0
    # Binomial(100, 0.06) / 100: 2.5 % and 97.5 % points are 0.02 and 0.11.
    assert (gain.low, gain.high) == pytest.approx((0.02, 0.11), abs=0.0101)


def test_only_common_tasks_count_and_order_does_not():
    before, after = {"a": 1, "b": 0, "c": 0, "x": 1}, {"c": 1, "b": 0, "a": 1, "y": 0}
    gain = paired_bootstrap(before, after)
    assert gain.tasks == 3 and gain.gain == pytest.approx(1 / 3)
    assert gain == paired_bootstrap(dict(reversed(before.items())), after)


@given(st.dictionaries(st.integers(), st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40))
def test_bounds_enclose_the_gain_and_mirror(pairs):
    before, after = {str(k): a for k, (a, _) in pairs.items()}, {str(k): b for k, (_, b) in pairs.items()}
    there, back = (paired_bootstrap(x, y, resamples=400) for x, y in ((before, after), (after, before)))
    assert there.low - 1e-9 <= there.gain <= there.high + 1e-9 or there.tasks < 8
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))


@pytest.mark.parametrize(("sides", "level"), [(({"a": 1}, {"b": 1}), 0.95), (({"a": 1}, {"a": 1}), 1.0)])
def test_what_cannot_be_compared_is_refused(sides, level):
    with pytest.raises(ValueError, match=r"no task in common|level=1.0"):
        paired_bootstrap(*sides, level=level)


def test_stages_are_runs_of_equal_roles():
    e, d = ["executor"], ["designer"]
    assert stages([e, e, d, e]) == [(0, 1, ("executor",)), (2, 2, ("designer",)), (3, 3, ("executor",))]
    assert stages([]) == []
