"""From traces and evaluations to one row an execution."""

import numpy as np
import pytest
import trace_rows
from trace_rows import call, designer

from metaagent_x.analysis.executions import Executions, of_evaluation, of_traces
from metaagent_x.run_folder import RunFolderError


def by_place(played):
    return {(t, d, e): i for i, (t, d, e) in enumerate(zip(played.task, played.design, played.execution, strict=True))}


def test_calls_of_one_execution_are_one_row(tmp_path):
    rows = [
        designer(0, completion_tokens=7, trained=True, advantage=0.5), designer(1, completion_tokens=9),
        call(0, 0, True, structure="ensemble", path="0.0", difficulty="6/8"),
        call(0, 0, True, structure="ensemble", path="0.1", completion_tokens=5, difficulty="6/8"),
        call(0, 1, False, trained=True, advantage=-1.5, reward=0.25), call(1, 0, True), call(1, 1, True),
    ]  # fmt: skip
    found = of_traces([trace_rows.write(tmp_path, 12, [r | {"difficulty": "6/8"} for r in rows])], executions=2)
    played = found.executions
    at = by_place(played)
    assert set(at) == {("t/0", d, e) for d in (0, 1) for e in (0, 1)} and set(played.benchmark) == {"t"}
    first, second = at["t/0", 0, 0], at["t/0", 0, 1]
    fields = ("structure", "correct", "reward", "calls", "prompt_tokens", "completion_tokens", "design_tokens")
    assert [getattr(played, f)[first] for f in fields] == ["ensemble", 1.0, 1.0, 2, 6, 7, 7]
    assert [getattr(played, f)[second] for f in fields] == ["single", 0.0, 0.25, 1, 3, 2, 7]
    assert set(played.difficulty) == {"6/8"} and set(played.step) == {12}
    assert found.lengths["designer"].tolist() == [8] and found.lengths["executor"].tolist() == [13 / 5]
    assert found.advantages["designer"].tolist() == [0.5] and found.advantages["executor"].tolist() == [-1.5]


def test_invalid_designs_count_as_so_many_executions_and_void_ones_as_none(tmp_path):
    rows = [
        designer(0, "no_script"),
        designer(1), call(1, 0, True), call(1, 1, status="void", correct=None), call(1, 2, status="crash"),
        designer(2, status="void"),
    ]  # fmt: skip
    played = of_traces([trace_rows.write(tmp_path, 1, rows)], executions=4).executions
    at = by_place(played)
    # Execution 3 of design 1 left no call behind.
    assert set(at) == {("t/0", 0, e) for e in range(4)} | {("t/0", 1, 0), ("t/0", 1, 2), ("t/0", 1, 3)}
    invalid = [("t/0", 0, e) for e in range(4)] + [("t/0", 1, 3)]
    assert all(played.structure[at[p]] == "invalid" and played.calls[at[p]] == 0 for p in invalid)
    assert [played.correct[at["t/0", 1, e]] for e in (0, 2)] == [1.0, 0.0]


def test_traces_from_before_the_lengths_are_counted_by_their_ids(tmp_path):
    rows = [designer(0), call(0, 0, completion_ids=[1] * 6)]
    old = ("prompt_tokens", "completion_tokens", "difficulty")
    played = of_traces([trace_rows.write(tmp_path, 1, rows, without=old)], executions=1).executions
    assert (played.completion_tokens[0], played.prompt_tokens[0], played.difficulty[0]) == (6, 3, "")


def test_steps_follow_in_order_and_an_empty_one_is_passed_over(tmp_path):
    files = [trace_rows.write(tmp_path, 1, [call()]), trace_rows.write(tmp_path, 2, [])]
    files.append(trace_rows.write(tmp_path, 3, [designer(0, "no_script")]))
    seen = []
    found = of_traces(files, 1, progress=lambda paths: (seen.append(p) or p for p in paths))
    assert found.steps.tolist() == [1, 3] and seen == files and found.executions.step.tolist() == [1, 3]
    assert np.isnan(found.lengths["designer"][0]) and found.lengths["designer"][1] == 2
    assert len(of_traces([], 4).executions) == 0


def test_what_is_no_trace_is_named(tmp_path):
    (tmp_path / "step_000001.parquet").write_bytes(b"PAR1")
    lacking = trace_rows.write(tmp_path, 2, [call()], without=["correct"])
    for path in (tmp_path / "step_000001.parquet", lacking):
        with pytest.raises(RunFolderError, match=path.name):
            of_traces([path], 1)


def test_an_evaluation_is_one_execution_a_task():
    record = {
        "step": 64, "outcomes": {"a/1": 1, "a/2": 0}, "structures_by_task": {"a/1": "single", "a/2": "debate"},
        "difficulty_by_task": {"a/2": "hard"},
    }  # fmt: skip
    played = of_evaluation(record)
    assert (played.task.tolist(), played.structure.tolist()) == (["a/1", "a/2"], ["single", "debate"])
    assert (played.correct.tolist(), played.difficulty.tolist()) == ([1, 0], ["", "hard"])
    assert set(played.benchmark) == {"a"} and np.isnan(played.calls).all()
    assert of_evaluation({"step": 0, "outcomes": {"a": 1}}) is None


def test_totals_are_sums_over_the_executions_of_each_task():
    played = Executions.of([{"task": t, "correct": c} for t, c in (("b", 1), ("a", 1), ("b", 1), ("b", 0))])
    assert played.tasks[0].tolist() == ["a", "b"]
    assert played.totals(played.correct, np.ones(4)).tolist() == [[1, 1], [2, 3]]
