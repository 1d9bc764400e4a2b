"""What is on disk after a kill, and what is played again."""

import json

import pytest

from metaagent_x.evaluation import journal as journals
from metaagent_x.evaluation.journal import Journal
from metaagent_x.evaluation.rows import row_of
from metaagent_x.mas.records import Call, Execution
from metaagent_x.rollout import traces
from metaagent_x.tasks.task import Task, Verdict


def result(i, method="single", sample=0, void=False):
    call = Call("0", "solver", "", (1, 2), (3, 4), (-1.0, -1.0), "stop", 0, f"\\boxed{{{i}}}")
    execution = Execution([call], answer=call.text, verdict=Verdict(True, 1.0, 1.0, 1.0, "ok", void), script="s")
    task = Task(f"t/{i}", "math", "?")
    row = row_of(execution, task, method=method, benchmark="b", sample=sample, scorer="s/1", wall_s=1.0)
    return row, execution, task


async def fill(folder, count, **fields):
    journal = Journal(folder)
    for i in range(count):
        journal.add(*result(i, **fields))
    await journal.flush()
    return journal


def files(folder):
    return sorted(path.name for path in (folder / "traces").glob("*"))


async def test_every_row_names_the_trace_that_holds_its_calls(tmp_path, monkeypatch):
    monkeypatch.setattr(journals, "PART", 4)
    journal = await fill(tmp_path, 6)
    journal.add(*result(0, "other"))
    await journal.flush()
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert len(rows) == 7 and len({(r["method"], r["task_id"]) for r in rows}) == 7
    for row in rows:
        found = traces.read(traces.path_of(tmp_path / "traces", row["trace"]))
        (call,) = [x for x in found if x["task_id"] == row["task_id"]]
        assert call["run"] == f"{row['method']} b 0" and call["verdict"] == "ok" and call["answer"] == call["text"]
    assert Journal(tmp_path).rows == {journals.key_of(r): r for r in rows}


async def test_a_trace_without_its_rows_is_removed_and_its_number_is_used_again(tmp_path):
    await fill(tmp_path, 2)
    orphan = traces.path_of(tmp_path / "traces", 7)
    orphan.write_bytes(traces.path_of(tmp_path / "traces", 0).read_bytes())
    journal = Journal(tmp_path)
    assert files(tmp_path) == ["step_000000.parquet"] and len(journal.rows) == 2
    journal.add(*result(2))
    await journal.flush()
    assert files(tmp_path) == ["step_000000.parquet", "step_000001.parquet"]


@pytest.mark.parametrize("whole_lines", [0, 1])
async def test_a_part_that_was_half_written_is_played_again_as_a_whole(tmp_path, whole_lines):
    await fill(tmp_path, 2)
    kept = (tmp_path / "results.jsonl").read_bytes()
    journal = Journal(tmp_path)
    for i in (2, 3):
        journal.add(*result(i))
    await journal.flush()
    lines = (tmp_path / "results.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "results.jsonl").write_bytes(b"".join(lines[: 2 + whole_lines]) + lines[2 + whole_lines][:20])
    again = Journal(tmp_path)
    assert {key[3] for key in again.rows} == {"t/0", "t/1"} and files(tmp_path) == ["step_000000.parquet"]
    again.add(*result(2))
    await again.flush()
    assert (tmp_path / "results.jsonl").read_bytes().startswith(kept) and len(Journal(tmp_path).rows) == 3


async def test_the_later_of_two_results_counts(tmp_path):
    await fill(tmp_path, 1, void=True)
    assert [row["void"] for row in Journal(tmp_path).rows.values()] == [True]
    await fill(tmp_path, 1)
    assert [row["void"] for row in Journal(tmp_path).rows.values()] == [False]


async def test_what_ended_long_ago_is_written_before_a_part_is_full(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    journal.add(*result(0))
    assert not (tmp_path / "results.jsonl").exists()
    monkeypatch.setattr(journals, "EVERY_S", -1.0)
    journal.add(*result(1))
    await journal._writing
    assert len(Journal(tmp_path).rows) == 2


async def test_a_disk_that_is_full_is_heard_of(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journals, "PART", 1)
    monkeypatch.setattr(journals, "append_lines", full)
    journal = Journal(tmp_path)
    journal.add(*result(0))
    with pytest.raises(OSError, match="No space"):
        await journal.flush()
