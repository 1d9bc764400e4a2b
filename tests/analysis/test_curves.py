"""Curves of several seeds, and gains by stages."""

import math

import numpy as np
import pytest

from metaagent_x.analysis.curves import band, stage_gains


def test_a_band_is_the_mean_and_range_of_smoothed_runs():
    found = band([{1: 0.0, 2: 2.0, 3: 4.0}, {1: 2.0, 2: 4.0}], window=2)
    # Smoothed: 0, 1, 3 and 2, 3; the third step has one run only.
    assert found.steps.tolist() == [1, 2, 3] and found.mean.tolist() == [1, 2, 3]
    assert found.low.tolist() == [0, 1, 3] and found.high.tolist() == [2, 3, 3]


def test_unknown_values_are_left_out_of_a_band():
    found = band([{1: math.nan, 2: 1.0}, {1: math.nan, 2: math.nan}], window=1)
    assert np.isnan([found.mean[0], found.low[0], found.high[0]]).all()
    assert (found.mean[1], found.low[1], found.high[1]) == (1, 1, 1)
    assert len(band([], 3).steps) == len(band([{}], 3).steps) == 0


def test_gains_of_stages_add_up_to_that_of_the_run():
    steps, values = range(11, 17), [1.0, 3.0, 5.0, 9.0, 10.0, 20.0]
    active = [["executor"]] * 4 + [["designer"]] * 2
    first, second = stage_gains(steps, active, values, window=2)
    # The run begins at (1 + 3) / 2; the stages end at (5 + 9) / 2 and (10 + 20) / 2.
    assert (first.before, first.after, first.gain) == (2, 7, 5) and (second.before, second.gain) == (7, 8)
    assert (first.roles, first.first, first.last) == (("executor",), 11, 14)
    assert (second.roles, second.first, second.last) == (("designer",), 15, 16)
    assert first.gain + second.gain == (10 + 20) / 2 - (1 + 3) / 2


@pytest.mark.parametrize("window", [1, 3, 50])
def test_a_stage_never_looks_into_its_neighbours(window):
    gains = stage_gains([1, 2], [["executor"], ["designer"]], [0.25, 0.75], window)
    assert [(g.before, g.after) for g in gains] == [(0.25, 0.25), (0.25, 0.75)]
