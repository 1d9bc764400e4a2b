"""Structure shares, attribution of improvement and the cross table, counted by hand."""

import pytest
from trace_rows import played

from metaagent_x.analysis.structures import attribute, by_group, distribution, effects, over_steps


def values(shares):
    return {name: e.value for name, e in shares.items()}


MIXED = [
    ("a/1", "single", 1), ("a/1", "debate", 0), ("a/2", "ensemble", 1), ("a/2", "solver-tester", 0),
    ("a/3", "reflection", 1), ("a/3", "other", 0), ("a/4", "single", 0), ("a/4", "single", 0),
    ("a/5", "invalid", 0), ("a/5", "invalid", 0),
]  # fmt: skip


def test_shares_are_among_what_ran_and_invalid_ones_stand_apart():
    full = distribution(played(*MIXED), folded=False)
    eighth = 1 / 8
    assert values(full.shares) == {
        "single": 3 * eighth, "ensemble": eighth, "debate": eighth, "solver-tester": eighth, "reflection": eighth,
        "other": eighth,
    }  # fmt: skip
    assert (full.invalid.value, full.executions, full.tasks) == (0.2, 10, 5)


def test_the_folded_form_counts_debate_as_ensemble_and_solver_tester_as_reflection():
    folded = distribution(played(*MIXED), folded=True)
    assert values(folded.shares) == {"single": 3 / 8, "reflection": 2 / 8, "ensemble": 2 / 8, "other": 1 / 8}


def test_the_interval_of_a_share_is_over_tasks():
    """Four tasks of 50 executions, each task of one structure: two draws of each kind are all that is known."""
    rows = [(t, s, 1) for t, s in (("a/1", "single"), ("a/2", "single"), ("a/3", "ensemble"), ("a/4", "ensemble"))]
    share = distribution(played(*(rows * 50)), folded=True).shares["single"]
    assert (share.value, share.low, share.high, share.units) == (0.5, 0.0, 1.0, 4)


def test_groups_are_benchmarks_and_their_difficulties_in_order():
    levels = ("hard", "easy", "10", "9", "")
    rows = [("a/1", "single", 1, {"difficulty": d}) for d in levels] + [("b/1", "single", 1, {"difficulty": "x"})]
    groups = by_group(played(*rows))
    assert list(groups) == [
        ("a", ""), ("a", "easy"), ("a", "hard"), ("a", "9"), ("a", "10"), ("a", "not stated"), ("b", "")
    ]  # fmt: skip
    assert len(groups["a", ""]) == 5 and len(groups["a", "9"]) == 1


def test_shares_over_steps_are_of_all_executions_of_a_window():
    rows = [("a/1", "debate", 1, {"step": s}) for s in (1, 2)] + [("a/2", "invalid", 0, {"step": 2})]
    rows += [("a/3", "single", 0, {"step": 4})]
    found = over_steps(played(*rows), window=2)
    assert [(first, last, e.value) for first, last, e in found["ensemble"]] == [(1, 2, 2 / 3), (4, 4, 0.0)]
    assert [e.value for _, _, e in found["invalid"]] == [1 / 3, 0.0]
    assert [e.value for _, _, e in found["single"]] == [0.0, 1.0]


BEFORE = [("a", "single", 0), ("b", "single", 0), ("c", "single", 0), ("d", "ensemble", 1), ("e", "ensemble", 1),
          ("f", "single", 1), ("g", "invalid", 0), ("h", "debate", 0), ("x", "single", 0)]  # fmt: skip
AFTER = [("a", "single", 1), ("b", "reflection", 1), ("c", "single", 0), ("d", "ensemble", 0), ("e", "single", 0),
         ("f", "single", 1), ("g", "single", 1), ("h", "ensemble", 1), ("y", "single", 1)]  # fmt: skip


def test_improvement_is_by_execution_where_the_structure_stayed_and_by_design_where_it_changed():
    """a: same; b, g: changed; h: the same in the folded form only; d lost alike, e lost with another."""
    found = attribute(played(*BEFORE), played(*AFTER))
    counts = (found.solved_same, found.solved_changed, found.lost_same, found.lost_changed)
    assert counts == (2, 2, 1, 1) and (found.kept_right, found.kept_wrong) == (1, 1)
    assert (found.pairs, found.tasks, found.execution_share.value) == (8, 8, 0.5)
    assert (found.net_execution.value, found.net_design.value) == (1 / 8, 1 / 8)
    full = attribute(played(*BEFORE), played(*AFTER), folded=False)
    assert (full.solved_same, full.solved_changed, full.execution_share.value) == (1, 3, 0.25)


def test_net_shares_add_up_to_the_gain():
    before, after = played(*BEFORE), played(*AFTER)
    found = attribute(before, after)
    gain = (after.correct[:-1].sum() - before.correct[:-1].sum()) / 8
    assert found.net_execution.value + found.net_design.value == gain


def test_samples_of_one_task_are_compared_one_by_one_and_drawn_together():
    before, after = (played(*([("a", "single", r)] * 3 + [("b", "single", 0)] * 3)) for r in (0, 1))
    found = attribute(before, after)
    assert (found.pairs, found.tasks, found.solved_same) == (6, 2, 3)
    assert (found.net_execution.low, found.net_execution.high) == (0.0, 1.0)


def test_checkpoints_on_different_tasks_are_not_compared():
    with pytest.raises(ValueError, match="no task in common"):
        attribute(played(("a", "single", 1)), played(("b", "single", 1)))


def test_effects_of_the_roles_add_up_to_the_whole_gain():
    """Of ten tasks cold solves 2; the new Designer 5, the new Executor 4, both 9: (3 + 5) / 2 and (2 + 4) / 2, and 2
    more than 3 + 2."""
    solved = {("cold", "cold"): 2, ("rl", "cold"): 5, ("cold", "rl"): 4, ("rl", "rl"): 9}
    cells = {cell: {str(i): float(i < n) for i in range(10)} for cell, n in solved.items()}
    found = effects(cells)
    assert (found.designer.value, found.executor.value) == (pytest.approx(0.4), pytest.approx(0.3))
    assert (found.interaction.value, found.total.value) == (pytest.approx(0.2), pytest.approx(0.7))
    assert found.designer.units == 10 and found.total.low < 0.7 < found.total.high


def test_a_cross_table_with_a_hole_is_refused():
    cells = {("cold", "cold"): {"a": 1}, ("rl", "rl"): {"a": 1}, ("rl", "cold"): {"a": 1}}
    with pytest.raises(ValueError, match="lacks Designer cold with Executor rl"):
        effects(cells)
    with pytest.raises(ValueError, match="no task is in all four"):
        effects(cells | {("cold", "rl"): {"b": 1}})
