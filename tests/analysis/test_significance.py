"""Figures over runs, and tests, against values worked out from the distributions they are of."""

import math

import pytest

from metaagent_x.analysis.significance import mcnemar, mean_over_runs, runs_differ


def test_the_interval_over_runs_is_students():
    """Mean 2, standard deviation 1, three runs: 4.303 / sqrt(3) on either side."""
    found = mean_over_runs([1, 2, 3])
    assert (found.value, found.low, found.high) == pytest.approx((2, 2 - 2.4841, 2 + 2.4841), abs=1e-3)
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
