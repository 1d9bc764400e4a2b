"""pass@k and majority@k, against values worked out by hand."""

import itertools

import pytest

from metaagent_x.analysis.statistics import majority_at_k, pass_at_k


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
