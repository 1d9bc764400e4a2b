import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from metaagent_x.learner.advantages import designer_advantages, executor_advantages

REWARDS = st.floats(0, 2, width=32)
TABLES = hnp.arrays(np.float64, st.tuples(st.integers(1, 8), st.integers(1, 5)), elements=REWARDS)
GROUPS = hnp.arrays(np.float64, st.integers(1, 20), elements=REWARDS)


@pytest.mark.fault("F041")
@pytest.mark.parametrize("scale", [1.0, 0.3, 7.0])
def test_std_divides_by_n_minus_one_for_both_roles(scale: float) -> None:
    """thinking-machines-lab/tinker-cookbook#579: unstated conventions differ by a factor between modules."""
    rewards = np.array([1.0, 0, 0, 0]) * scale
    expected = [1.5, -0.5, -0.5, -0.5]
    np.testing.assert_allclose(designer_advantages(rewards[:, None]), expected, rtol=1e-5)
    np.testing.assert_allclose(executor_advantages(rewards), expected, rtol=1e-5)
    np.testing.assert_allclose(
        executor_advantages(rewards, ddof=0), np.array([3, -1, -1, -1]) / math.sqrt(3), rtol=1e-5
    )


@pytest.mark.fault("F043")
@pytest.mark.parametrize("value", [0.1, 0.7, 1e6 + 0.1])
@pytest.mark.parametrize("n", [3, 7])
def test_equal_rewards_give_exactly_zero(value: float, n: int) -> None:
    """NVIDIA-NeMo/RL#4158: one-pass variance of equal numbers is noise, and dividing by it gives thousands."""
    same = np.full(n, value, np.float32)
    assert (executor_advantages(same) == 0.0).all()
    assert (designer_advantages(np.stack([same, same], 1)) == 0.0).all()


@pytest.mark.fault("F043")
def test_spread_of_rounding_is_a_tie_and_above_it_is_signal() -> None:
    """The mean of three 0.1 is not 0.1 in float64; sums of test fractions differ in their last bits."""
    assert executor_advantages([0.1, 0.1, 0.1]).tolist() == [0.0, 0.0, 0.0]
    assert designer_advantages([[0.1 + 0.2], [0.3], [0.3]]).tolist() == [0.0, 0.0, 0.0]
    assert executor_advantages([0.5, 0.5 + 9e-10]).tolist() == [0.0, 0.0]
    assert executor_advantages([0.5, 0.5 + 3e-9])[1] > 0


@pytest.mark.fault("F043")
@given(GROUPS)
def test_advantages_are_bounded_centred_and_ordered(rewards: np.ndarray) -> None:
    out = executor_advantages(rewards)
    n = len(rewards)
    assert np.isfinite(out).all()
    assert (np.abs(out) <= (n - 1) / math.sqrt(n) + 1e-9).all()
    assert abs(out.sum()) < 1e-6 * n
    order = np.argsort(rewards, kind="stable")
    assert (np.diff(out[order]) >= 0).all()


@pytest.mark.fault("F044")
@pytest.mark.parametrize("base", [1.0, 2.0])
def test_close_rewards_keep_full_scale(base: float) -> None:
    """verl-project/verl#6348: a floor under the variance shrinks advantages of close rewards 100 times."""
    out = executor_advantages([base, base + 1e-5])
    np.testing.assert_allclose(out, [-0.6195, 0.6195], atol=2e-4)


@pytest.mark.fault("F045")
def test_group_of_one_is_zero_and_finite() -> None:
    """OpenRLHF/OpenRLHF#1250: a standard deviation over one member with n - 1 is NaN."""
    assert designer_advantages([[0.3, 0.9]]).tolist() == [0.0]
    assert executor_advantages([5.0]).tolist() == [0.0]
    assert executor_advantages([5.0, 5.0], [3, 3], weigh="execution").tolist() == [0.0, 0.0]
    assert designer_advantages([[1.0], [0.0]], [[True], [False]]).tolist() == [0.0, 0.0]


@pytest.mark.fault("F048")
def test_groups_are_questions() -> None:
    """PeterGriffinJin/Search-R1#39: a wrong key makes one giant group or only singletons."""
    first, second = [[1, 1], [0, 1]], [[0, 0], [0, 0]]
    np.testing.assert_allclose(designer_advantages(first), [0.70711, -0.70711], atol=1e-4)
    np.testing.assert_allclose(executor_advantages(np.ravel(first)), [0.5, 0.5, -1.5, 0.5], atol=1e-5)
    assert not designer_advantages(second).any()
    assert not executor_advantages(np.ravel(second)).any()


@pytest.mark.fault("F165")
@pytest.mark.parametrize("calls", [2, 3, 9])
def test_chatty_executions_weigh_more_only_if_asked(calls: int) -> None:
    """microsoft/agent-lightning#111: group statistics dominated by executions with many calls."""
    rewards, ids = [1.0] + [0.0] * calls, [4] + [2] * calls
    by_execution = executor_advantages(rewards, ids, weigh="execution")
    np.testing.assert_allclose(by_execution, [0.70711] + [-0.70711] * calls, atol=1e-4)
    n = calls + 1
    by_row = executor_advantages(rewards, ids)
    np.testing.assert_allclose(by_row, [calls / math.sqrt(n)] + [-1 / math.sqrt(n)] * calls, rtol=1e-4)


@given(TABLES, st.data())
def test_void_entries_never_matter(rewards: np.ndarray, data: st.DataObject) -> None:
    counted = data.draw(hnp.arrays(bool, rewards.shape))
    clean = designer_advantages(rewards, counted)
    poisoned = np.where(counted, rewards, np.nan)
    np.testing.assert_array_equal(designer_advantages(poisoned, counted), clean)
    present = counted.any(1)
    assert (clean[~present] == 0.0).all()
    np.testing.assert_array_equal(clean[present], designer_advantages(rewards[present], counted[present]))


@given(GROUPS, st.randoms(use_true_random=False), st.floats(0.5, 3), st.floats(-5, 5))
def test_order_scale_and_shift_do_not_matter(rewards: np.ndarray, random, scale: float, shift: float) -> None:
    assume(np.ptp(rewards) > 1e-2)
    out = executor_advantages(rewards)
    order = list(range(len(rewards)))
    random.shuffle(order)
    np.testing.assert_allclose(executor_advantages(rewards[order]), out[order], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(executor_advantages(rewards * scale + shift), out, rtol=1e-3, atol=1e-6)


@given(hnp.arrays(np.float64, st.integers(1, 6), elements=REWARDS), st.data())
def test_weighing_executions_equals_one_row_each(rewards: np.ndarray, data: st.DataObject) -> None:
    repeats = data.draw(hnp.arrays(int, len(rewards), elements=st.integers(1, 4)))
    ids = np.repeat(np.arange(len(rewards)), repeats)
    out = executor_advantages(rewards[ids], ids, weigh="execution")
    np.testing.assert_allclose(out, executor_advantages(rewards)[ids], rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: designer_advantages([1.0, 2.0]), r"shape \(2,\)"),
        (lambda: designer_advantages([[1.0], [2.0]], [[True, True]]), r"counted has shape \(1, 2\)"),
        (lambda: designer_advantages([[1.0, 0.0], [0.5, np.nan]]), "design 1, execution 1 is nan"),
        (lambda: executor_advantages([[1.0]]), r"shape \(1, 1\)"),
        (lambda: executor_advantages([1.0, np.inf]), "trajectory 1 is inf"),
        (lambda: executor_advantages([1.0, 2.0], weigh="execution"), "needs `execution`"),
        (lambda: executor_advantages([1.0, 2.0], [0], weigh="execution"), r"execution has shape \(1,\)"),
        (lambda: executor_advantages([1.0, 2.0], [7, 7], weigh="execution"), "execution 7 has reward 2.0"),
        (lambda: executor_advantages([1.0], weigh="rows"), "weigh='rows'"),
    ],
)
def test_bad_input_is_named(call, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        call()
