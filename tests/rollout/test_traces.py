"""Trace files: columns, what was trained, whole or nothing."""

import dataclasses

import pyarrow.parquet as pq
import pytest

from metaagent_x.mas.records import Call, Execution, ToolRun
from metaagent_x.rollout import traces
from metaagent_x.rollout.tree import Design, RolloutTree, Trajectory
from metaagent_x.tasks.task import Task, Verdict

CONTRACT = [
    "run",
    "step",
    "task_id",
    "kind",
    "design",
    "execution",
    "path",
    "role",
    "agent",
    "structure",
    "prompt_ids",
    "completion_ids",
    "logprobs",
    "finish_reason",
    "version",
    "text",
    "reward",
    "advantage",
    "trained",
]
EXTRA = ["status", "reason", "answer", "problem", "flags", "seed", "role_prompt", "messages", "verdict", "prompt_cut"]
EXTRA += ["correct", "fraction", "format", "prompt_tokens", "completion_tokens", "difficulty"]
EXTRA += ["conversation", "old_logprobs", "tools", "links"]


def call(path: str, prompt: tuple[int, ...], completion: tuple[int, ...], conversation: str = "", **fields) -> Call:
    values = {
        "text": f"text {path}",
        "seed": 2**31 - 1,
        "messages": ("one", "two"),
        "finish_reason": "stop",
        "version": 4,
    }
    return Call(
        path=path, agent="solver", role_prompt="Solve.", prompt_ids=prompt, completion_ids=completion,
        logprobs=(-0.25,) * len(completion), conversation=conversation, **(values | fields),
    )  # fmt: skip


@pytest.fixture
def tree() -> RolloutTree:
    right = Verdict(True, 1.0, 1.0, 1.4, "ok")
    memory = [call("0", (1, 2), (3,), "a#0"), call("1", (1, 2), (3,), "b#0"), call("2", (1, 2, 3, 9), (4, 5), "a#0")]
    good = Execution(
        [*memory, call("3", (1, 2), (3,))], answer="42", structure="debate", verdict=right, flags={"z", "y"}
    )
    void = Execution([call("0", (1, 2), (8,))], status="void", reason="engine: HTTP 500")
    designs = [
        Design(call("", (7,), (8, 9), text="```python\nx\n```"), "x", executions=[good, void]),
        Design(call("", (7,), (6,), finish_reason="length"), None, problem="no_script"),
        Design(None, problem="engine: gone", void=True),
    ]
    return RolloutTree(Task("polaris/3", "math", "2+2?"), designs, question=5, step=11, executions=2)


def trained(tree: RolloutTree) -> list[Trajectory]:
    rows = [*tree.designer_trajectories(), *tree.executor_trajectories()]
    return [dataclasses.replace(t, advantage=0.5 + i) for i, t in enumerate(rows)]


def test_every_call_is_a_row_with_the_columns_of_the_contract(tmp_path, tree):
    path = traces.write(tmp_path / "traces", [tree], trained(tree), run="tiny", step=12)
    assert path.name == "step_000012.parquet" and [p.name for p in path.parent.iterdir()] == [path.name]
    assert pq.read_schema(path).names == CONTRACT + EXTRA
    rows = traces.read(path)
    assert [(r["design"], r["execution"], r["path"], r["role"]) for r in rows] == [
        (0, -1, "", "designer"), *[(0, 0, p, "executor") for p in "0123"], (0, 1, "0", "executor"),
        (1, -1, "", "designer"),
    ]  # fmt: skip
    assert {(r["run"], r["step"], r["task_id"], r["kind"]) for r in rows} == {("tiny", 12, "polaris/3", "math")}
    third = rows[3]
    assert (third["prompt_ids"], third["completion_ids"], third["logprobs"]) == ([1, 2, 3, 9], [4, 5], [-0.25, -0.25])
    assert (third["answer"], third["flags"], third["verdict"], third["structure"]) == ("42", ["y", "z"], "ok", "debate")
    assert (third["seed"], third["messages"], third["version"]) == (2**31 - 1, ["one", "two"], 4)
    assert [r["status"] for r in rows] == ["ok"] * 5 + ["void", "invalid"]
    assert (rows[5]["reason"], rows[6]["problem"]) == ("engine: HTTP 500", "no_script")


def test_lengths_and_the_difficulty_of_the_task_can_be_read_without_the_ids(tmp_path, tree):
    tree.task = dataclasses.replace(tree.task, metadata={"difficulty": "6/8", "level": 2})
    rows = traces.read(traces.write(tmp_path, [tree], [], run="r", step=0))
    assert [r["prompt_tokens"] for r in rows] == [1, 2, 2, 4, 2, 2, 1]
    assert [r["completion_tokens"] for r in rows] == [2, 1, 1, 2, 1, 1, 1]
    assert {r["difficulty"] for r in rows} == {"6/8"}
    tree.task = dataclasses.replace(tree.task, metadata={"level": 2})
    assert traces.read(traces.write(tmp_path, [tree], [], run="r", step=0))[0]["difficulty"] == "2"


def test_rewards_and_advantages_are_those_that_were_trained(tmp_path, tree):
    rows = traces.read(traces.write(tmp_path, [tree], trained(tree), run="r", step=0))
    # Trajectories in order: two designs, then the memories a and b, then the call without memory.
    assert [r["advantage"] for r in rows] == [0.5, 2.5, 3.5, 2.5, 4.5, 0.0, 1.5]
    assert [r["trained"] for r in rows] == [True] * 5 + [False, True]
    assert [r["reward"] for r in rows] == [1.4] * 5 + [0.0, 0.0]


def test_the_components_of_a_reward_are_kept_and_are_null_where_nothing_was_graded(tmp_path, tree):
    tree.designs[0].executions[0].verdict = Verdict(False, 0.25, 1.0, 0.65, "test 1: wrong")
    rows = traces.read(traces.write(tmp_path, [tree], [], run="r", step=0))
    components = [(r["correct"], r["fraction"], r["format"], r["verdict"]) for r in rows]
    graded, none = (False, 0.25, 1.0, "test 1: wrong"), (None, None, None, "")
    assert components == [none, *[graded] * 4, none, none]
    spoilt = Verdict(False, 0.0, 0.0, 0.0, "grader: gone", void=True)
    tree.designs[0].executions[0].verdict = spoilt
    rows = traces.read(traces.write(tmp_path, [tree], [], run="r", step=0))
    assert (rows[1]["correct"], rows[1]["fraction"], rows[1]["verdict"]) == (None, None, "grader: gone")


def test_an_inactive_role_and_another_question_are_not_marked_as_trained(tmp_path, tree):
    only = [t for t in trained(tree) if t.role == "designer"]
    rows = traces.read(traces.write(tmp_path, [tree], only, run="r", step=0))
    assert [r["trained"] for r in rows] == [r["role"] == "designer" for r in rows]
    elsewhere = [dataclasses.replace(t, question=6) for t in trained(tree)]
    assert not any(r["trained"] for r in traces.read(traces.write(tmp_path, [tree], elsewhere, run="r", step=0)))


def test_each_call_has_its_own_part_of_what_the_learner_scored(tmp_path, tree):
    """The third call goes on with the memory of the first: one trajectory of the ids 3, then 4 and 5."""
    scored = trained(tree)
    memory = next(t for t in scored if t.execution == 0 and t.path == "0")
    assert [i for i, sampled in zip(memory.tokens, memory.mask, strict=True) if sampled] == [3, 4, 5]
    memory.old_logprobs = (-0.5, -0.75, -1.0)
    rows = traces.read(traces.write(tmp_path, [tree], scored, run="r", step=0))
    assert [r["old_logprobs"] for r in rows] == [None, [-0.5], None, [-0.75, -1.0], None, None, None]
    assert [r["conversation"] for r in rows] == ["", "a#0", "b#0", "a#0", "", "", ""]


def test_tool_runs_and_links_stand_on_the_first_row_of_their_execution(tmp_path, tree):
    execution = tree.designs[0].executions[0]
    execution.tools = [ToolRun("1", "run_python", "print(2)", "", "2\ud800", "ok")]
    execution.links = [("0", "2", "pass"), ("2", "", "answer")]
    rows = traces.read(traces.write(tmp_path, [tree], [], run="r", step=0))
    run = {"path": "1", "tool": "run_python", "program": "print(2)", "stdin": "", "output": "2?", "status": "ok"}
    links = [{"source": "0", "target": "2", "how": "pass"}, {"source": "2", "target": "", "how": "answer"}]
    assert [r["tools"] for r in rows] == [None, [run], None, None, None, [], None]
    assert [r["links"] for r in rows] == [None, links, None, None, None, [], None]


def test_a_large_step_is_written_in_groups_of_rows_that_can_be_read_alone(tmp_path, tree, monkeypatch):
    monkeypatch.setattr(traces, "ROW_GROUP", 3)
    file = pq.ParquetFile(traces.write(tmp_path, [tree], [], run="r", step=0))
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [3, 3, 1]


def test_text_that_utf8_cannot_hold_is_stored(tmp_path, tree):
    tree.designs[0].executions[0].answer = "a\ud800b"
    assert traces.read(traces.write(tmp_path, [tree], [], run="r", step=0))[1]["answer"] == "a?b"


def test_a_write_that_fails_leaves_the_old_file_whole(tmp_path, tree, monkeypatch):
    path = traces.write(tmp_path, [tree], [], run="r", step=3)
    before = path.read_bytes()

    def full(table, where, **_):
        where.write_bytes(b"PAR1 half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(traces.pq, "write_table", full)
    with pytest.raises(OSError, match="No space left"):
        traces.write(tmp_path, [tree], [], run="r", step=3)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_no_trees_make_an_empty_file_and_an_unreadable_one_is_named(tmp_path):
    assert traces.read(traces.write(tmp_path, [], [], run="r", step=1)) == []
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    for name in ("bad.parquet", "absent.parquet"):
        with pytest.raises(ValueError, match=name):
            traces.read(tmp_path / name)
