"""Intervals, against values worked out from the distributions they are of."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaagent_x.analysis.intervals import mean_over_tasks, paired_gain, proportions, ratios, resample, shares


def bounds(estimate):
    return estimate.value, estimate.low, estimate.high


def test_a_ratio_is_that_of_sums_and_its_interval_is_the_binomials():
    """Of Binomial(4, 1/2), 0 and 4 have a probability of 0.0625 each: no 2.5 % lie outside of them."""
    assert bounds(ratios([[1], [0], [1], [0]], np.ones((4, 1)))[0]) == (0.5, 0.0, 1.0)
    # Binomial(100, 0.06): P(X <= 1) = 0.015, P(X <= 2) = 0.057; P(X >= 12) = 0.017, P(X >= 11) = 0.038.
    found = ratios([[1]] * 6 + [[0]] * 94, np.ones((100, 1)))[0]
    assert bounds(found) == pytest.approx((0.06, 0.02, 0.11), abs=0.0101) and found.units == 100


def test_executions_of_one_task_count_as_one_draw():
    """Ten equal executions a task say no more than one: 40 independent ones would leave [0.35, 0.65]."""
    one, ten = (ratios([[n], [0], [n], [0]], np.full((4, 1), n))[0] for n in (1, 10))
    assert one == ten and (ten.low, ten.high) == (0.0, 1.0)


def test_tasks_weigh_as_many_executions_as_they_have():
    assert ratios([[3], [0]], [[3], [1]])[0].value == 0.75


def test_what_has_no_interval_says_so():
    alone = ratios([[3.0]], [[4.0]])[0]
    assert alone.value == 0.75 and math.isnan(alone.low) and math.isnan(alone.high)
    nothing, unsolved = ratios([[0, 5], [0, 5]], [[0, 0], [0, 0]])
    assert math.isnan(nothing.value) and math.isnan(nothing.low)
    assert unsolved.value == unsolved.high == math.inf


def test_redraws_are_sums_over_as_many_tasks_and_the_same_again():
    columns = np.array([[1.0, 0.0], [1.0, 10.0], [1.0, 100.0]])
    drawn = resample(columns, resamples=500)
    assert drawn.shape == (500, 2) and (drawn[:, 0] == 3).all()
    assert set(drawn[:, 1]) <= {a + b + c for a in (0, 10, 100) for b in (0, 10, 100) for c in (0, 10, 100)}
    assert (drawn == resample(columns, resamples=500)).all()


def test_shares_add_up_and_what_never_happens_has_the_bound_of_a_binomial():
    counts = np.array([[2, 0, 0]] * 5 + [[1, 1, 0]] * 5 + [[0, 0, 0]])
    a, b, never = shares(counts)
    assert (a.value, b.value, never.value) == (0.75, 0.25, 0.0) and a.units == 10
    # 10 tasks, each without it at a share p with probability 1 - p: 0.025 = (1 - p)^10.
    assert (never.low, never.high) == (0.0, pytest.approx(0.3085, abs=1e-4))
    (always,) = shares([[1]] * 10)
    assert (always.low, always.high) == (pytest.approx(0.6915, abs=1e-4), 1.0)


def test_what_every_task_shows_alike_may_be_otherwise_in_one_that_was_not_asked():
    edge = 1 - 0.025 ** (1 / 20)  # 0.1684, as above
    for value in (0.0, 0.5, 1.0, 1 / 3):
        found = mean_over_tasks({str(i): value for i in range(20)})
        assert bounds(found) == pytest.approx((value, value - edge * value, value + edge * (1 - value)))
    half = mean_over_tasks({str(i): 1.0 for i in range(20)}, level=0.5)
    assert half.low == pytest.approx(0.25 ** (1 / 20))
    # Accuracies of executions: tasks without any say nothing.
    (found,) = proportions([[2], [3], [0]], [[2], [3], [0]])
    assert bounds(found) == pytest.approx((1, 0.025 ** (1 / 2), 1)) and found.units == 2
    (alone,) = proportions([[2], [0]], [[2], [0]])
    assert alone.value == 1 and math.isnan(alone.low) and math.isnan(alone.high)


def test_an_interval_holds_the_mean_and_shrinks_with_the_tasks():
    few = mean_over_tasks({f"t/{i}": float(i % 2) for i in range(10)})
    many = mean_over_tasks({f"t/{i}": float(i % 2) for i in range(1000)})
    assert few.value == many.value == 0.5 and (few.units, many.units) == (10, 1000)
    assert few.low < 0.5 < few.high and many.high - many.low < (few.high - few.low) / 5
    # 1000 fair coins: a standard error of 0.0158, so that 95 % lie within 0.031
    assert many.low == pytest.approx(0.469, abs=0.003) and many.high == pytest.approx(0.531, abs=0.003)
    assert mean_over_tasks({"b": 1.0, "a": 0.0}) == mean_over_tasks({"a": 0.0, "b": 1.0})
    with pytest.raises(ValueError, match="no task"):
        mean_over_tasks({})
    with pytest.raises(ValueError, match="level=1"):
        mean_over_tasks({"a": 1.0}, level=1.0)


def test_a_gain_on_every_task_or_none_has_the_bound_of_a_binomial():
    """4 tasks: a share of up to 1 - 0.025^(1/4) = 0.6024 may be otherwise, by 2 at most after a gain of 1."""
    none, all_ = (dict.fromkeys("abcd", outcome) for outcome in (0, 1))
    found = paired_gain(none, all_)
    assert (found.before, found.after, found.gain.units) == (0, 1, 4)
    assert bounds(found.gain) == pytest.approx((1, 1 - 2 * 0.6024, 1), abs=1e-4)
    assert bounds(paired_gain(all_, none).gain) == pytest.approx((-1, -1, 2 * 0.6024 - 1), abs=1e-4)
    assert bounds(paired_gain(all_, all_).gain) == pytest.approx((0, -0.6024, 0.6024), abs=1e-4)
    alone = paired_gain({"a": 0}, {"a": 1}).gain
    assert alone.value == 1 and math.isnan(alone.low) and math.isnan(alone.high)


def test_pairing_removes_what_both_sides_share():
    """Ten tasks differ by luck alone; the second side gets two more right. Unpaired, the interval would hold 0."""
    before = {str(i): i % 2 for i in range(100)}
    after = before | {"0": 1, "2": 1, "4": 1, "6": 1, "8": 1, "10": 1}
    gain = paired_gain(before, after).gain
    assert gain.value == pytest.approx(0.06) and gain.low > 0
    # Binomial(100, 0.06) / 100: 2.5 % and 97.5 % points are 0.02 and 0.11.
    assert (gain.low, gain.high) == pytest.approx((0.02, 0.11), abs=0.0101)


def test_only_common_tasks_count_and_order_does_not():
    before, after = {"a": 1, "b": 0, "c": 0, "x": 1}, {"c": 1, "b": 0, "a": 1, "y": 0}
    found = paired_gain(before, after)
    assert found.gain.units == 3 and found.gain.value == pytest.approx(1 / 3)
    assert found == paired_gain(dict(reversed(before.items())), after)


@given(st.dictionaries(st.integers(), st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40))
def test_bounds_enclose_the_gain_and_mirror(pairs):
    before, after = {str(k): a for k, (a, _) in pairs.items()}, {str(k): b for k, (_, b) in pairs.items()}
    there, back = (paired_gain(x, y, resamples=400).gain for x, y in ((before, after), (after, before)))
    assert there.low - 1e-9 <= there.value <= there.high + 1e-9 or there.units < 8
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low), nan_ok=True)


@pytest.mark.parametrize(("sides", "level"), [(({"a": 1}, {"b": 1}), 0.95), (({"a": 1}, {"a": 1}), 1.0)])
def test_what_cannot_be_compared_is_refused(sides, level):
    with pytest.raises(ValueError, match=r"no task in common|level=1.0"):
        paired_gain(*sides, level=level)
