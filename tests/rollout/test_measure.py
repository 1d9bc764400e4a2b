"""What a step shows of a policy that collapses, of time limits, and of infrastructure that fails."""

import pytest

from metaagent_x.mas.records import Call, Execution, ToolRun
from metaagent_x.rollout.measure import STATUSES, ends_in_repetition, step_metrics
from metaagent_x.rollout.tree import Design, RolloutTree
from metaagent_x.tasks.task import Task, Verdict


def call(ids=(5, 6, 7), finish="stop", version=4):
    return Call("0", "solver", "", (1, 2), tuple(ids), (-1.0,) * len(ids), finish, version, "text")


def execution(*calls, status="ok", void=False, structure="single", tools=()):
    verdict = None if status == "void" else Verdict(True, 1.0, 0.0, 1.0, "ok", void)
    ran = [ToolRun("0", "run_python", "", "", "", t) for t in tools]
    return Execution(list(calls), ran, status=status, structure=structure, verdict=verdict)


def metrics(*designs, executions=2):
    return step_metrics([RolloutTree(Task("t", "math", "?"), list(designs), 0, 4, executions)], format_bonus=0.0)


@pytest.mark.parametrize(
    ("ids", "repeats"),
    [
        ([], False),
        ([7] * 15, False),
        ([7] * 16, True),
        ([*range(100), *[7] * 16], True),
        ([*[7] * 16, 8], False),
        ([1, 2] * 8, True),
        ([1, 2] * 7 + [1], False),  # 15 ids
        ([9, *[1, 2, 3, 4, 5] * 4], True),
        ([1, 2, 3, 4, 5] * 3 + [1, 2, 3, 4], False),  # not yet 4 times
        ([9, 1, 2, 3, 4, 5] + [1, 2, 3, 4, 5] * 3 + [1, 2], True),  # cut within the last repeat
        ([*range(64)] * 4, True),
        ([*range(64)] * 3 + [*range(63)], False),
        ([*range(65)] * 8, False),
        ([*range(256)], False),
    ],
)
def test_repetition_is_a_block_of_at_most_64_ids_four_times_in_a_row_over_at_least_16(ids, repeats):
    assert ends_in_repetition(tuple(ids)) is repeats


def test_repetition_and_truncation_are_shares_of_the_completions_of_both_roles():
    loop = [3] * 40
    m = metrics(
        Design(call(loop, "length"), executions=[execution(call(), call([*loop, 99])), execution(call([*loop, 1, 2]))]),
        Design(call(), problem="no_script"),
    )
    assert (m["completions/repetition"], m["completions/truncated"]) == (2 / 5, 1 / 5)
    void = metrics(Design(None, void=True), Design(call(), executions=[execution(call(loop), status="void")] * 2))
    assert (void["completions/repetition"], void["completions/truncated"]) == (0.0, 0.0)


def test_completions_of_other_weights_than_the_steps_own_are_stale():
    good = Design(call(), executions=[execution(call())] * 2)
    assert metrics(good)["calls/stale"] == 0.0
    old = Design(call(version=3), executions=[execution(call(), call(version=5))] * 2)
    assert metrics(old)["calls/stale"] == 3 / 5


def test_the_top_share_is_among_valid_designs():
    one, other = execution(call()), execution(call(), structure="ensemble")
    invalid = Design(call(), problem="no_script")
    assert metrics(Design(call(), executions=[one, other]), invalid)["structures/top_share"] == 0.5
    assert metrics(Design(call(), executions=[one, one]), invalid, invalid)["structures/top_share"] == 1.0
    assert metrics(invalid)["structures/top_share"] == 0.0


def test_how_executions_ended_are_shares_of_all_of_them_and_always_there():
    runs = [execution(call(), status=s) for s in ("ok", "ok", "budget", "wall", "cpu", "memory", "crash", "void")]
    m = metrics(Design(call(), executions=[*runs, execution(call(), void=True), execution(call())]), executions=10)
    shares = {k: v for k, v in m.items() if k.startswith("status/")}
    assert set(shares) == {f"status/{s}" for s in STATUSES}
    assert shares.pop("status/ok") == 0.3 and shares.pop("status/void") == 0.2 and set(shares.values()) == {0.1}
    empty = metrics(Design(call(), problem="no_script"))
    assert {v for k, v in empty.items() if k.startswith("status/")} == {0.0}


def test_what_infrastructure_spoilt_is_told_apart_and_tool_runs_are_counted_by_their_end():
    m = metrics(
        Design(None, void=True),
        Design(call(), executions=[execution(status="void", tools=("ok", "wall")), execution(call(), void=True)]),
        Design(call(), executions=[execution(call(), tools=("wall",)), execution(call(), void=True)]),
    )
    assert (m["void/designer"], m["void/executor"], m["void/grader"]) == (1.0, 1.0, 2.0)
    assert (m["tools/wall"], m["tools/ok"]) == (2.0, 1.0)
