"""Seeds of requests: pure, stable, distinct."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaagent_x.rollout.seeds import call_seed

ARGUMENTS = st.tuples(
    st.integers(0, 2**40), st.integers(-1, 10**6), st.text(), st.integers(0, 64), st.integers(-1, 64), st.text()
)


@pytest.mark.fault("F023")
def test_every_request_of_a_run_has_its_own_seed():
    """One seed for a group makes clones with reward std 0 (vllm-project/vllm#10852)."""
    tasks = ["polaris/1", "polaris/11"]
    grid = list(itertools.product([0, 1], [0, 1], tasks, range(4), range(-1, 4), ["", "0", "0.1", "1.0", "01"]))
    seeds = [call_seed(*place) for place in grid]
    assert len(set(seeds)) == len(grid)
    assert seeds == [call_seed(*place) for place in grid]


@given(ARGUMENTS, ARGUMENTS)
def test_seed_is_a_positive_31_bit_number_and_a_function_of_its_arguments(a, b):
    assert 0 <= call_seed(*a) < 2**31
    assert (call_seed(*a) == call_seed(*b)) == (a == b)


def test_arguments_do_not_run_into_each_other():
    assert call_seed(1, 2, "t", 3, 4, "5") != call_seed(12, 2, "t", 3, 4, "5")
    assert call_seed(0, 1, "a", 11, 1, "") != call_seed(0, 1, "a1", 1, 1, "")


def test_seeds_never_change_between_versions():
    """A resumed run must draw what the uninterrupted one would have drawn."""
    assert [call_seed(0, 0, "t", 0, -1, ""), call_seed(3, 12, "polaris/17", 2, 1, "0.2.1")] == [1346956778, 1994920381]
