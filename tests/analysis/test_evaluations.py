"""Reading what `evaluate` writes."""

import json

import pytest
import trace_rows

from metaagent_x.analysis.evaluations import is_evaluation, read_evaluation
from metaagent_x.analysis.material import gather
from metaagent_x.run_folder import RunFolderError


def row(task, right, sample=0, **fields):
    return {
        "method": "metaagent_x", "benchmark": "aime24", "sample": sample, "task_id": task, "kind": "math",
        "correct": right, "void": False, "structure": "reflection", "calls": 4, "prompt_tokens": 100,
        "sampled_tokens": 50, "designer_tokens": 20, "invalid": False, "scorer": "s1",
    } | fields  # fmt: skip


def write(folder, *rows):
    folder.mkdir(exist_ok=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return folder


def test_rows_are_executions_by_method(tmp_path):
    single = {"method": "single", "structure": "single", "calls": 1, "sampled_tokens": 30, "designer_tokens": 0}
    folder = write(tmp_path / "e", row("aime24/1", True), row("aime24/1", False, 1), row("aime24/1", True, **single))
    found = read_evaluation(folder)
    assert is_evaluation(folder) and not is_evaluation(tmp_path) and list(found.methods) == ["metaagent_x", "single"]
    ours, other = found.methods.values()
    assert (ours.correct.tolist(), ours.execution.tolist(), set(ours.benchmark)) == ([1, 0], [0, 1], {"aime24"})
    # The Designer's call and tokens are told apart.
    assert (ours.calls[0], ours.completion_tokens[0], ours.design_tokens[0]) == (3, 30, 20)
    assert (other.calls[0], other.completion_tokens[0], other.design_tokens[0]) == (1, 30, 0)


def test_a_later_row_replaces_an_earlier_one_and_void_ones_are_counted(tmp_path):
    void = row("aime24/2", None, void=True)
    folder = write(tmp_path, row("aime24/1", None, void=True), row("aime24/1", True), void)
    found = read_evaluation(folder)
    assert found.methods["metaagent_x"].task.tolist() == ["aime24/1"] and found.void == 1


def test_a_design_that_could_not_be_run_is_invalid(tmp_path):
    folder = write(tmp_path, row("aime24/1", False, invalid=True, structure="", calls=1, sampled_tokens=20))
    played = read_evaluation(folder).methods["metaagent_x"]
    assert (played.structure[0], played.calls[0], played.completion_tokens[0]) == ("invalid", 0, 0)


def test_difficulties_come_from_the_traces(tmp_path):
    folder = write(tmp_path / "e", row("apps/1", True), row("apps/2", True))
    calls = [trace_rows.call(task_id="apps/1", difficulty="interview")]
    trace_rows.write(folder / "traces", 0, calls)
    trace_rows.write(folder / "traces", 1, calls, without=["difficulty"])
    assert read_evaluation(folder).methods["metaagent_x"].difficulty.tolist() == ["interview", ""]


def test_folders_of_one_name_are_told_apart(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    folders = [write(tmp_path / place / "tiny", row("aime24/1", True)) for place in "ab"]
    assert [e.name for e in gather(folders).evaluations] == [str(f) for f in folders]
    assert [e.name for e in gather(folders[:1]).evaluations] == ["tiny"]


def test_results_of_different_scorers_are_not_put_together(tmp_path):
    one = write(tmp_path / "one", row("aime24/1", True))
    other = write(tmp_path / "other", row("aime24/1", True, scorer="s2"))
    with pytest.raises(RunFolderError, match=r"one was judged by scorer s1 and .*other by s2"):
        gather([one, other])
    with pytest.raises(RunFolderError, match=r"different scorers \(s1, s2\)"):
        read_evaluation(write(tmp_path / "both", row("aime24/1", True), row("aime24/2", True, scorer="s2")))


@pytest.mark.parametrize(("text", "named"), [("{}\n", "line 1: not a result"), ("[1]\n", "line 1"), ("{\n", "line 1")])
def test_a_damaged_row_is_named(tmp_path, text, named):
    (tmp_path / "results.jsonl").write_text(text)
    with pytest.raises(RunFolderError, match=named):
        read_evaluation(tmp_path)
