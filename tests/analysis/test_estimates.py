"""Intervals of one mean, pass@k and majority@k, against values worked out by hand."""

import itertools

import pytest

from metaagent_x.analysis.statistics import bootstrap, majority_at_k, pass_at_k


def test_an_interval_holds_the_mean_and_shrinks_with_the_tasks():
    few = bootstrap({f"t/{i}": float(i % 2) for i in range(10)})
    many = bootstrap({f"t/{i}": float(i % 2) for i in range(1000)})
    assert few.mean == many.mean == 0.5 and (few.tasks, many.tasks) == (10, 1000)
    assert few.low < 0.5 < few.high and many.high - many.low < (few.high - few.low) / 5
    # 1000 fair coins: a standard error of 0.0158, so that 95 % lie within 0.031
    assert many.low == pytest.approx(0.469, abs=0.003) and many.high == pytest.approx(0.531, abs=0.003)
    assert bootstrap({"b": 1.0, "a": 0.0}) == bootstrap({"a": 0.0, "b": 1.0})
    assert bootstrap({"a": 1.0, "b": 1.0}).low == 1.0
    with pytest.raises(ValueError, match="no task"):
        bootstrap({})
    with pytest.raises(ValueError, match="level=1"):
        bootstrap({"a": 1.0}, level=1.0)


@pytest.mark.parametrize(
    ("samples", "correct", "k", "value"),
    [
        (4, 1, 1, 1 / 4),
        (4, 1, 2, 1 / 2),  # 3 of the 6 pairs hold the right one
        (4, 2, 2, 5 / 6),  # one pair of six holds none of them
        (4, 0, 3, 0.0),
        (4, 2, 3, 1.0),  # three samples always hold one of two
        (5, 5, 5, 1.0),
    ],
)
def test_pass_at_k_is_the_share_of_subsets_that_hold_a_right_one(samples, correct, k, value):
    assert pass_at_k(samples, correct, k) == pytest.approx(value)
    outcomes = [i < correct for i in range(samples)]
    subsets = list(itertools.combinations(outcomes, k))
    assert pass_at_k(samples, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize(("samples", "correct", "k"), [(4, 1, 0), (4, 1, 5), (4, 5, 1), (4, -1, 1)])
def test_pass_at_k_of_what_there_is_not_is_refused(samples, correct, k):
    with pytest.raises(ValueError, match=f"samples={samples}, correct={correct}, k={k}"):
        pass_at_k(samples, correct, k)


@pytest.mark.parametrize(
    ("classes", "correct", "k", "value"),
    [
        ([0, 1, 1], [1, 0, 0], 3, 0.0),  # the wrong answer has two votes
        ([0, 1, 0], [1, 0, 1], 3, 1.0),
        ([0, 1], [1, 0], 2, 1.0),  # a tie goes to the earlier one
        ([0, 1], [0, 1], 2, 0.0),
        ([-1, -1, 0], [0, 0, 1], 3, 1.0),  # no answer never wins
        ([-1, -1], [0, 0], 2, 0.0),
        ([0, 0, 1, 1, 1, 0], [1, 1, 0, 0, 0, 1], 3, 0.5),  # blocks 0,0,1 and 1,1,0
        ([0, 1, 1, 0], [1, 0, 0, 1], 3, 0.0),  # what is left over is not used
        ([0, 1, 1, 0], [1, 0, 0, 1], 1, 0.5),  # of one: the mean
    ],
)
def test_majority_at_k_is_the_mean_over_blocks_in_order(classes, correct, k, value):
    assert majority_at_k(classes, [bool(c) for c in correct], k) == value


def test_a_vote_without_enough_samples_is_refused():
    for classes, correct, k in (([0], [True], 2), ([0, 0], [True], 1), ([0], [True], 0)):
        with pytest.raises(ValueError, match=f"k={k}"):
            majority_at_k(classes, correct, k)
