import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_samples import call, execution, rewards_tree, trajectories, tree

from metaagent_x.learner.credit import assign, flat_groups, split
from metaagent_x.learner.packing import pack
from metaagent_x.mas.records import Execution

BOTH = frozenset({"designer", "executor"})


def advantages(trees, role, **how) -> list[float]:
    return [round(t.advantage, 4) for t in assign(trees, frozenset({role}), **how)]


@pytest.mark.fault("F048")
def test_groups_are_questions_for_both_roles() -> None:
    """PeterGriffinJin/Search-R1#39. Two questions, M = N = 2; the second one is flat."""
    trees = [rewards_tree([[1, 1], [0, 1]]), rewards_tree([[0, 0], [0, 0]], question=1)]
    assert advantages(trees, "designer") == [0.7071, -0.7071, 0, 0]
    assert advantages(trees, "executor") == [0.5, 0.5, -1.5, 0.5, 0, 0, 0, 0]
    both = assign(trees, BOTH)
    assert [t.role for t in both if t.question == 0] == ["designer"] * 2 + ["executor"] * 4
    assert {t.question for t in both} == {0, 1}


def test_with_one_fixed_design_the_group_of_a_task_is_its_executions() -> None:
    """4 of 16 are right: mean 1/4, variance (4 x 9/16 + 12 x 1/16) / 15 = 1/5."""
    one = rewards_tree([[1.0] * 4 + [0.0] * 12])
    one.designs[0].call = None  # nobody was asked
    rows = assign([one, rewards_tree([[1.0] * 16], question=1)], frozenset({"executor"}))
    right, wrong, std = 0.75, -0.25, 0.2**0.5 + 1e-6
    assert [t.advantage for t in rows if t.question == 0] == pytest.approx([right / std] * 4 + [wrong / std] * 12)
    assert [t.advantage for t in rows if t.question == 1] == [0.0] * 16
    assert assign([one], frozenset({"designer"})) == [] and flat_groups([one], "designer") == 0.0


@given(st.lists(st.floats(0, 2, width=32), min_size=4, max_size=4), st.integers(0, 5))
@settings(max_examples=30, deadline=None)
@pytest.mark.fault("F047")
def test_rewards_stay_with_their_rows_through_packing(rewards, seed) -> None:
    """verl-project/verl#2185: rows permuted between reward and loss train on another row's signal."""
    rows = assign([rewards_tree([rewards[:2], rewards[2:]])], BOTH)
    parts = split(rows, 2, seed)
    for part in parts:
        batch = pack(part, 8)
        for k, t in enumerate(part, 1):
            assert set(batch.advantages[batch.trajectory == k]) == {np.float32(t.advantage)}
    mean, std = np.mean(rewards), np.std(rewards, ddof=1)
    for t in rows:
        if t.role == "executor" and np.ptp(rewards) > 1e-9:
            assert t.advantage == pytest.approx((rewards[2 * t.design + t.execution] - mean) / (std + 1e-6))


@pytest.mark.fault("F166")
def test_crashed_executions_count_with_reward_zero() -> None:
    """The public reference drops them: its Designer is paid too much and its Executor never sees the failure."""
    crash = execution(0.0, calls=2, status="crash")
    rows = assign([tree([[execution(1.0), crash], [execution(1.0), execution(1.0)]])], BOTH)
    assert [t.reward for t in rows if t.role == "designer"] == [0.5, 1.0]
    assert [t.reward for t in rows if t.role == "executor" and (t.design, t.execution) == (0, 1)] == [0.0, 0.0]


def test_invalid_designs_count_and_void_ones_do_not() -> None:
    engine_failed = [execution(0.0, void=True), execution(0.0, void=True)]
    ok, half_void = [execution(1.0), execution(1.0)], [execution(1.0), execution(0.0, void=True)]
    rows = assign([tree([ok, None, engine_failed, half_void])], BOTH)
    designers = {t.design: t for t in rows if t.role == "designer"}
    assert sorted(designers) == [0, 1, 3]
    assert [designers[i].reward for i in (0, 1, 3)] == [1.0, 0.0, 1.0]
    assert [round(designers[i].advantage, 3) for i in (0, 1, 3)] == [0.577, -1.155, 0.577]
    assert [(t.design, t.execution) for t in rows if t.role == "executor"] == [(0, 0), (0, 1), (3, 0)]


@pytest.mark.fault("F046")
def test_rows_without_sampled_ids_do_not_shift_their_peers() -> None:
    """OpenRLHF/OpenRLHF#1239: rewards [100, 1], the first row empty; the second one's advantage is 0, not -49.5."""
    silent = execution(100.0)
    silent.calls = [call(())]
    one = tree([[silent, execution(1.0)]])
    assert [(t.execution, t.advantage) for t in assign([one], frozenset({"executor"}))] == [(1, 0.0)]
    mute = tree([[execution(100.0)], [execution(1.0)]])
    mute.designs[0].call = call(())
    assert [(t.design, t.advantage) for t in assign([mute], frozenset({"designer"}))] == [(1, 0.0)]


@pytest.mark.fault("F165")
def test_weigh_decides_how_chatty_executions_count() -> None:
    """microsoft/agent-lightning#111."""
    one = [tree([[execution(1.0, calls=1), execution(0.0, calls=3)]])]
    assert advantages(one, "executor", weigh="execution") == [0.7071] + [-0.7071] * 3
    assert advantages(one, "executor") == [1.5, -0.5, -0.5, -0.5]


@pytest.mark.parametrize("cost", [0.1, 0.25])
def test_calls_cost_the_designer_only(cost) -> None:
    one = [tree([[execution(1.0, 1), execution(1.0, 3)], [execution(1.0, 1), execution(1.0, 1)], None])]
    rows = assign(one, BOTH, call_cost=cost)
    assert [t.reward for t in rows if t.role == "designer"] == pytest.approx([1 - 2 * cost, 1 - cost, 0.0])
    assert {t.reward for t in rows if t.role == "executor"} == {1.0}
    two = [rewards_tree([[1.0], [1.0]])]
    two[0].designs[1].executions[0].calls = execution(1.0, 4).calls
    assert advantages(two, "designer") == [0, 0]
    assert advantages(two, "designer", call_cost=cost) == [0.7071, -0.7071]
    assert (flat_groups(two, "designer"), flat_groups(two, "designer", call_cost=cost)) == (1.0, 0.0)


@pytest.mark.fault("F053")
@pytest.mark.fault("F076")
def test_truncated_rows_train_or_leave_the_loss_but_stay_in_the_statistics() -> None:
    """huggingface/trl#6369. The flag is the engine's word, not a comparison of cut lengths (NovaSky-AI/SkyRL#81)."""
    cut = execution(0.0)
    cut.calls = [call((5,) * 8, finish_reason="length")]
    ended = execution(1.0)
    ended.calls = [call((5,) * 8)]
    rows = assign([tree([[cut, ended]])], frozenset({"executor"}))
    assert [(t.truncated, round(t.advantage, 4)) for t in rows] == [(True, -0.7071), (False, 0.7071)]
    (left,) = assign([tree([[cut, ended]])], frozenset({"executor"}), truncated="mask")
    assert (left.truncated, round(left.advantage, 4)) == (False, 0.7071)
    with pytest.raises(ValueError, match="truncated='drop'"):
        assign([], BOTH, truncated="drop")  # type: ignore[arg-type]


@pytest.mark.fault("F162")
def test_flat_groups_are_counted_per_role() -> None:
    """huggingface/trl#5777. Three dead Designer groups of eight; within two of them executions still differ."""
    lively, dead, level = [[1, 1], [0, 0]], [[1, 1], [1, 1]], [[1, 0], [0, 1]]
    trees = [rewards_tree(r, q) for q, r in enumerate([lively] * 5 + [dead] + [level] * 2)]
    assert flat_groups(trees, "designer") == 0.375
    assert flat_groups(trees, "executor") == 0.125
    gone = rewards_tree(lively, 8)
    for design in gone.designs:
        design.executions = [Execution(status="void"), Execution(status="void")]
    assert flat_groups([*trees, gone], "designer") == 0.375
    assert flat_groups([gone], "executor") == 0.0


def test_flat_groups_keep_their_rows_for_the_normalisation() -> None:
    rows = assign([rewards_tree([[1, 1], [0, 1]]), rewards_tree([[1, 1], [1, 1]], 1)], frozenset({"executor"}))
    assert len(rows) == 8
    assert pack(rows, 8).weights[pack(rows, 8).mask].tolist() == pytest.approx([1 / 24] * 24)


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(0, 20), st.integers(0, 2**63))
@settings(max_examples=60, deadline=None)
def test_split_loses_and_doubles_nothing(seed, updates, count, deal) -> None:
    rows = [dataclasses.replace(t, path=str(i)) for i, t in enumerate(trajectories(seed, count))]
    parts = split(rows, updates, deal)
    assert parts == split(rows, updates, deal)
    assert len(parts) == updates
    assert sorted(t.path for part in parts for t in part) == sorted(t.path for t in rows)
    for role in BOTH:
        mine = [[len(t.tokens) for t in part if t.role == role] for part in parts]
        longest = max((n for part in mine for n in part), default=0)
        assert max(map(sum, mine)) - min(map(sum, mine)) <= longest, "as even as one row allows"
    with pytest.raises(ValueError, match="updates=0"):
        split(rows, 0, deal)
