"""What a solved task costs, failures included."""

import math

from trace_rows import played

from metaagent_x.analysis.cost import by_structure, cost


def spent(calls, tokens, design=0):
    return {"calls": calls, "completion_tokens": tokens, "prompt_tokens": 2 * tokens, "design_tokens": design}


def test_a_solved_task_pays_for_the_failed_ones_too():
    """Three executions, 1 + 3 + 2 calls and 100 + 300 + 200 tokens, one of them right; designs of 30 tokens each."""
    found = cost(
        played(("a", "x", 1, spent(1, 100, 30)), ("b", "x", 0, spent(3, 300, 30)), ("c", "x", 0, spent(2, 200, 30)))
    )
    assert (found.executions, found.solved, found.accuracy.value) == (3, 1, 1 / 3)
    assert (found.calls.value, found.tokens.value, found.prompt_tokens.value) == (2, 200, 400)
    assert (found.calls_per_solved.value, found.tokens_per_solved.value, found.with_design.value) == (6, 600, 690)
    assert found.tokens.low == 100 and found.tokens.high == 300
    assert found.tokens_per_solved.high == math.inf  # a redraw without the one solved task


def test_structures_stand_by_how_often_they_ran_and_one_that_solves_nothing_costs_infinitely_much():
    found = by_structure(
        played(("a", "rare", 0, spent(2, 10)), ("b", "usual", 1, spent(1, 10)), ("c", "usual", 1, spent(1, 30)))
    )
    assert list(found) == ["usual", "rare"] and found["usual"].tokens_per_solved.value == 20
    assert found["rare"].calls_per_solved.value == math.inf


def test_costs_that_were_not_recorded_are_unknown():
    found = cost(played(("a", "x", 1, dict.fromkeys(("calls", "completion_tokens"), math.nan)), ("b", "x", 0)))
    assert math.isnan(found.calls.value) and found.accuracy.value == 0.5


def test_an_accuracy_of_nothing_has_the_bound_of_a_binomial():
    found = cost(played(*((str(i), "x", 0) for i in range(10))))
    assert (found.accuracy.value, found.accuracy.low) == (0, 0) and 0.308 < found.accuracy.high < 0.309
