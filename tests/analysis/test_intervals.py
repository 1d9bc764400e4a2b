"""Intervals and tests, against values worked out from the distributions they are of."""

import math

import numpy as np
import pytest

from metaagent_x.analysis.intervals import mcnemar, mean_over_runs, ratios, resample, runs_differ, shares


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


def test_the_interval_over_runs_is_students():
    """Mean 2, standard deviation 1, three runs: 4.303 / sqrt(3) on either side."""
    assert bounds(mean_over_runs([1, 2, 3])) == pytest.approx((2, 2 - 2.4841, 2 + 2.4841), abs=1e-3)
    one = mean_over_runs([0.4])
    assert one.value == 0.4 and math.isnan(one.low)
    assert mean_over_runs([]).units == 0


@pytest.mark.parametrize(
    ("won", "lost", "p"),
    [(5, 0, 2 / 32), (0, 5, 2 / 32), (3, 1, 2 * (1 + 4) / 16), (2, 2, 1.0), (0, 0, 1.0)],
)
def test_mcnemar_counts_only_tasks_that_came_out_differently(won, lost, p):
    before = {f"w{i}": 0 for i in range(won)} | {f"l{i}": 1 for i in range(lost)} | {"same": 1, "gone": 1}
    after = {k: 1 - v for k, v in before.items() if k not in ("same", "gone")} | {"same": 1, "new": 0}
    assert mcnemar(before, after) == pytest.approx(p)


def test_mcnemar_refuses_means():
    with pytest.raises(ValueError, match=r"0\.5 is neither 0 nor 1"):
        mcnemar({"a": 0.5}, {"a": 1})


def test_runs_are_paired_by_seed_where_they_can_be():
    """Gains 1, 2, 3: t = 2 sqrt(3), and with 2 degrees of freedom p = 1 - t / sqrt(2 + t^2) = 1 - sqrt(12 / 14)."""
    before = {0: 10.0, 1: 20.0, 2: 30.0}
    assert runs_differ(before, {0: 11.0, 1: 22.0, 2: 33.0}) == pytest.approx(1 - math.sqrt(12 / 14))
    # The same figures under other seeds: Welch's test, which the scatter of the runs drowns.
    assert runs_differ(before, {5: 11.0, 6: 22.0, 7: 33.0}) > 0.5
    assert math.isnan(runs_differ(before, {0: 11.0, 1: 22.0}))
    assert math.isnan(runs_differ(before, before))
    # Equal gains, and equal figures, but for rounding.
    before = {0: 0.1, 1: 0.2, 2: 0.7}
    assert math.isnan(runs_differ(before, {seed: value + 0.1 for seed, value in before.items()}))
    assert math.isnan(runs_differ(dict.fromkeys((0, 1, 2), 0.3), {3: 0.4, 4: 0.1 + 0.2 + 0.1, 5: 0.4 + 1e-16}))
