"""What the viewer says of a run: worked out from records that are made here."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from viewer_runs import HOSTILE, SCRIPT, write_run

from metaagent_x.rollout.traces import SCHEMA
from metaagent_x.viewer.answers import Answers
from metaagent_x.viewer.store import Damaged, NotThere, Store


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run")


@pytest.fixture
def ask(run):
    return Answers(Store(run)).get


def test_the_start_page_knows_the_steps_their_metrics_and_the_settings(ask):
    answer = ask("run")
    assert (answer["name"], answer["steps"], answer["wanted"], answer["problems"]) == ("run", [1, 2, 3], 3, [])
    assert [line["accuracy"] for line in answer["metrics"]] == pytest.approx([0.5, 0.6, 0.7])
    assert [e["name"] for e in answer["evaluations"]] == ["cold", "final"] and "outcomes" not in answer["evaluations"][
        0
    ]
    assert answer["config"]["rollout.top_p"] == "0.5"
    assert [a["message"] for a in answer["alerts"]] == [HOSTILE]


def test_a_step_has_a_line_for_each_design_and_each_execution(ask):
    answer = ask("1")
    assert [t["task"] for t in answer["tasks"]] == [0, 1] and answer["tasks"][0]["task_id"] == "math/1"
    assert answer["executions"] == 3
    lines = {(r["task"], r["design"], r["execution"]): r for r in answer["rows"]}
    assert sorted(lines) == [
        (0, 0, -1), (0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, -1), (0, 1, 0), (0, 1, 1), (0, 2, -1), (1, 0, -1),
        (1, 0, 0),
    ]  # fmt: skip
    judged = lines[0, 0, 0]
    assert (judged["structure"], judged["reward"], judged["verdict"]) == ("ensemble", 0.4, "wrong_answer")
    assert (judged["paths"], judged["agents"]) == (["0.0.0", "0.1.0", "0.2.0"], ["solver", "judge"])
    assert judged["flags"] == ["answer_not_from_agents", "truncated"]
    assert lines[0, 1, 0]["flags"] == ["prompt_cut"]
    assert lines[0, 0, 2]["flags"] == ["void"] and lines[0, 2, -1]["flags"] == ["invalid"]
    # The Executor learns at odd steps: its trajectories have 0.5, -0.5, -1.5 ... in order.
    assert (judged["trained"], judged["advantages"]) == (True, [-1.5, 0.5])
    assert (lines[0, 0, -1]["trained"], lines[0, 0, -1]["advantages"]) == (False, [])


def test_a_task_has_its_question_and_its_designs_with_their_scripts(ask):
    answer = ask("1/0")
    assert (answer["question"], answer["kind"], answer["tasks"]) == ("What is 3 + 4?", "math", 2)
    assert [d["design"] for d in answer["designs"]] == [0, 1, 2] and answer["designs"][0]["script"] == SCRIPT
    assert [[e["reward"] for e in d["executions"]] for d in answer["designs"]] == [[0.4, 1.0, 0.0], [1.0, 1.0], []]
    assert [d["line"]["reward"] for d in answer["designs"]] == pytest.approx([0.7, 2 / 3, 0.0])


def test_a_design_shows_its_script_line_by_line_and_what_lint_finds(ask):
    answer = ask("1/0/2")
    assert answer["lint"][0]["line"] == 1 and answer["lint"][0]["word"] == "SOLVE"
    assert answer["lines"][0] == [["word", "answer"], ["", " = SOLVE("], ["word", "task"], ["", ")"]]
    assert answer["messages"] == ["What is 3 + 4?"] and answer["told"] == "Design."
    assert ask("1/0/0")["lint"] == []


def test_an_execution_has_lanes_turns_tool_runs_and_who_saw_what(ask):
    answer = ask("1/0/0/0")
    places = [(c["path"], c["lane"], c["turn"]) for c in answer["calls"]]
    assert places == [("0.0.0", 0, 0), ("0.1.0", 1, 0), ("0.2.0", 2, 1)]
    assert answer["lanes"] == ["solver", "solver", "judge"]
    seen = {(e["source"], e["target"], e["how"]) for e in answer["edges"]}
    assert seen == {("0.0.0", "0.2.0", "judge"), ("0.1.0", "0.2.0", "judge")}
    assert answer["answered"] == ["0.2.0"] and answer["calls"][2]["messages"] == ["Which one? 6 or 7?"]
    run = answer["tools"][0]
    assert (run["tool"], run["output"], run["after"]) == ("run_python", "7\n", "0.1.0")
    turns = [(c["lane"], c["turn"]) for c in ask("1/0/1/0")["calls"]]
    assert turns == [(0, 0), (0, 1)], "one agent with memory has one lane"


def test_a_call_has_its_tokens_log_probs_and_the_request_that_it_was(ask):
    answer = ask("1/0/0/0/0.0.0")
    text = "a first draft with \\boxed{6} in it"
    assert "".join(answer["sampled"]["pieces"]) == text and answer["sampled"]["ids"] == list(text.encode())
    assert answer["sampled"]["logprobs"][:3] == pytest.approx([-0.01, -0.02, -0.03])
    assert answer["sampled"]["old_logprobs"][:3] == pytest.approx([-0.009, -0.02, -0.031])
    assert answer["request"] == {"temperature": 1.0, "top_p": 0.5, "seed": 7, "max_tokens": 64}
    assert (answer["version"], answer["finish_reason"], answer["advantage"]) == (4, "stop", 0.5)
    designer = ask("1/0/0/design")
    assert designer["role"] == "designer" and designer["sampled"]["old_logprobs"] is None


def test_what_an_agent_with_memory_said_before_is_in_the_loss(ask):
    answer = ask("1/0/1/0/1")
    prompt, first = answer["prompt"], "I think \\boxed{6}"
    assert "".join(prompt["pieces"][place] for place in prompt["learned"]) == first
    assert ask("1/0/1/0/0")["prompt"]["learned"] == []


def test_the_same_task_is_found_in_other_steps(ask):
    found = ask("same/2/0")
    assert [(s["step"], s["task"]) for s in found["steps"]] == [(1, 0), (2, 0), (3, 0)]
    assert found["steps"][0]["reward"] == pytest.approx((0.4 + 1 + 1 + 1) / 4)  # the void one does not count
    assert [s["step"] for s in ask("same/2/1")["steps"]] == [2]


def test_the_figures_are_those_of_the_report(ask, run):
    from metaagent_x.analysis.report import write_report

    page = write_report(run).read_text()
    for name in ("learning", "structures"):
        svg = ask(f"figure/{name}")["svg"]
        assert svg.startswith("<svg ") and svg in page


@pytest.mark.parametrize("address", ["9", "1/7", "1/0/9", "1/0/0/9", "1/0/2/0", "1/0/0/0/5", "x", "", "1/0/0/0/0/0",
                                     "-1", "../config.json", "figure/secret", "1/²"])  # fmt: skip
def test_an_address_that_names_nothing_is_said_to(ask, address):
    with pytest.raises(NotThere):
        ask(address)


def test_a_damaged_or_half_written_file_is_named_and_the_rest_still_works(run, ask):
    whole = (run / "traces" / "step_000002.parquet").read_bytes()
    (run / "traces" / "step_000002.parquet").write_bytes(whole[: len(whole) // 2])
    (run / "traces" / "step_000004.parquet.tmp").write_bytes(whole[:100])
    with pytest.raises(Damaged, match=r"step_000002\.parquet.*other steps are not affected"):
        ask("2")
    assert ask("run")["steps"] == [1, 2, 3] and len(ask("3")["rows"]) == 10
    same = ask("same/1/0")
    assert [s["step"] for s in same["steps"]] == [1, 3] and "step_000002" in same["problems"][0]
    # Pages that are damaged in the middle: the footer is whole, so it opens, and then cannot be read.
    (run / "traces" / "step_000003.parquet").write_bytes(b"PAR1" + b"\xff" * (len(whole) - 4 - 8000) + whole[-8000:])
    with pytest.raises(Damaged, match="step_000003"):
        ask("3/0/0/0/0.0.0")


def test_a_text_that_is_damaged_is_told_too(run, ask):
    file = run / "traces" / "step_000001.parquet"
    table = pq.read_table(file)
    pq.write_table(table, file, compression="none", use_dictionary=False)
    file.write_bytes(file.read_bytes().replace(b"wrong_answer", b"wrong\xffanswer"))
    with pytest.raises(Damaged, match=r"step_000001\.parquet: 'utf-8' codec"):
        ask("1")
    with pytest.raises(Damaged, match=r"step_000001\.parquet: 'utf-8' codec"):
        Store(run).rows(1, [1])


def test_a_damaged_line_of_metrics_is_told_and_the_steps_still_open(run, ask):
    (run / "metrics.jsonl").write_text('{"step": 1}\nnot json\n')
    answer = ask("run")
    assert answer["metrics"] == [] and "metrics.jsonl, line 2" in answer["problems"][0]
    assert ask("1")["step"] == 1
    (run / "config.json").write_text("{")
    assert "config.json" in ask("run")["problems"][0] and ask("1/0/0/0")["calls"]


def test_a_file_that_changes_is_read_again(run, ask):
    assert ask("1")["tasks"][0]["task_id"] == "math/1"
    before = ask("pulse")["mark"]
    (run / "traces" / "step_000001.parquet").write_bytes((run / "traces" / "step_000002.parquet").read_bytes())
    (run / "traces" / "step_000004.parquet").write_bytes((run / "traces" / "step_000002.parquet").read_bytes())
    assert ask("1")["tasks"][1]["task_id"].startswith("odd/2/") and ask("pulse")["mark"] != before


def test_traces_of_older_versions_and_folders_without_a_run_open(tmp_path, run):
    """As `solve` leaves one: nothing but traces; and the columns of before."""
    alone = tmp_path / "alone"
    (alone / "traces").mkdir(parents=True)
    old = pq.read_table(run / "traces" / "step_000001.parquet").drop_columns(
        ["conversation", "old_logprobs", "tools", "links", "correct", "flags", "seed"]
    )
    pq.write_table(old, alone / "traces" / "step_000001.parquet")
    answers = Answers(Store(alone))
    assert answers.get("run")["steps"] == [1] and answers.get("figure/learning")["svg"] == ""
    for address in answers.addresses(1):
        json.dumps(answers.get(address), allow_nan=False)
    execution = answers.get("1/0/0/0")
    assert execution["recorded"] is False and execution["tools"] == []
    assert answers.get("1/0/0/0/0.0.0")["sampled"]["pieces"][:2] == ["⟨97⟩", "⟨32⟩"]  # no tokenizer: ids


def test_a_parquet_file_that_is_no_trace_is_named(run, ask):
    pq.write_table(pq.read_table(run / "traces" / "step_000001.parquet").drop_columns(["path"]),
                   run / "traces" / "step_000001.parquet")  # fmt: skip
    with pytest.raises(Damaged, match=r"step_000001\.parquet is no trace: it lacks the column 'path'"):
        ask("1")


def test_any_row_of_a_large_file_is_found_whatever_its_row_groups(run):
    """Rows 0 to 5,000 of one task, in row groups of 700: what is decoded at once begins and ends within groups."""
    path = run / "traces" / "step_000009.parquet"
    table = pq.read_table(run / "traces" / "step_000001.parquet").slice(1, 1).to_pylist()
    rows = [table[0] | {"execution": n, "text": f"text {n}"} for n in range(5000)]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path, row_group_size=700)
    store = Store(run)
    for number in (0, 127, 128, 699, 700, 701, 1399, 1400, 4999):
        assert store.rows(9, [number])[0]["text"] == f"text {number}"
    assert [r["execution"] for r in store.rows(9, [4000, 3, 650, 710])] == [4000, 3, 650, 710]


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(NotThere, match=r"neither traces/ nor config\.json"):
        Store(tmp_path)


def test_a_reward_that_is_no_number_is_null(run, ask):
    table = pq.read_table(run / "traces" / "step_000001.parquet").to_pylist()
    rows = [row | {"reward": float("nan"), "advantage": float("inf")} for row in table]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), run / "traces" / "step_000001.parquet")
    assert json.loads(json.dumps(ask("1"), allow_nan=False))["rows"][0]["reward"] is None


def settings(run, **fields):
    values = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(values | fields))


def test_an_evaluation_has_its_own_sampling_and_none_of_trainings_sizes(run, ask):
    settings(run, evaluate={"temperature": 0.0, "top_p": 0.9, "level": 0.95}, steps=400, executions=8)
    request = ask("1/0/0/0/0.0.0")["request"]
    assert (request["temperature"], request["top_p"], request["max_tokens"]) == (0.0, 0.9, 64)
    assert ask("1")["executions"] == ask("1/0")["executions"] == 3, "as many as were seen"
    assert (ask("run")["wanted"], ask("run")["executions"]) == (None, None)


def test_a_run_that_ends_by_its_tokens_has_no_number_of_steps_to_reach(run, ask):
    settings(run, tokens=1000)
    assert ask("run")["wanted"] is None and ask("1")["executions"] == 3


def test_a_half_written_tokenizer_is_none(run, ask):
    (run / "model" / "tokenizer.json").write_text('{"version": "1.0", "mod')
    assert ask("1/0/0/0/0.0.0")["sampled"]["pieces"][0] == "⟨97⟩"


def test_a_file_with_another_name_than_a_steps_is_no_step(run, ask):
    (run / "traces" / "step_7.parquet").write_bytes(b"")
    assert ask("run")["steps"] == [1, 2, 3]
