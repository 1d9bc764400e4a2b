import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaagent_x.learner.schedule import active_roles

E, D = frozenset({"executor"}), frozenset({"designer"})


@pytest.mark.fault("F173")
@pytest.mark.parametrize(("length", "steps"), [(30, (0, 29, 30, 59, 60)), (8, (0, 7, 8, 15, 16)), (1, (0, 0, 1, 1, 2))])
def test_stages_change_exactly_at_multiples_of_their_length(length: int, steps: tuple[int, ...]) -> None:
    """Stages of K+1 or K-1 steps are the usual slip; a run resumed at the boundary must be in the new stage."""
    assert [active_roles(t, stage_length=length) for t in steps] == [E, E, D, D, E]
    assert [active_roles(t, stage_length=length, first="designer") for t in steps] == [D, D, E, E, D]


@given(step=st.integers(0, 10**6), length=st.integers(1, 500))
def test_stagewise_trains_one_role_and_alternates(step: int, length: int) -> None:
    now, later = active_roles(step, stage_length=length), active_roles(step + length, stage_length=length)
    assert now | later == E | D
    assert not now & later


@pytest.mark.parametrize(("kind", "roles"), [("coupled", E | D), ("designer_only", D), ("executor_only", E)])
def test_constant_kinds_never_change(kind, roles) -> None:
    assert {active_roles(t, kind, stage_length=2) for t in range(9)} == {roles}


@pytest.mark.parametrize(
    ("given_", "named"),
    [
        ({"step": -1}, "step=-1"),
        ({"stage_length": 0}, "stage_length=0"),
        ({"kind": "both"}, "kind='both'"),
        ({"first": "judge"}, "first='judge'"),
    ],
)
def test_bad_input_is_named(given_, named) -> None:
    with pytest.raises(ValueError, match=named):
        active_roles(**{"step": 3} | given_)
