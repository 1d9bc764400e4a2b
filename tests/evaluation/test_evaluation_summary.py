"""From rows to tables: values worked out by hand, and what must not stand in one table."""

import dataclasses
import io
import json

import pytest
from rich.console import Console

from metaagent_x import compare, config
from metaagent_x.evaluation import job, scorer, summary, tables
from metaagent_x.evaluation.benchmarks import Benchmark
from metaagent_x.evaluation.scorer import scorer as this_scorer

COSTS = {"calls": 2, "prompt_tokens": 30, "sampled_tokens": 20, "designer_tokens": 5, "tools": 0, "time/wall_s": 1.5}


def row(method="a", task="t/0", correct=True, sample=0, benchmark="aime24", **more):
    base = {
        "method": method, "benchmark": benchmark, "sample": sample, "task_id": task, "kind": "math",
        "correct": correct, "void": False, "answer": "4" if correct else "5", "status": "ok", "structure": "single",
        "truncated": 0, "empty": 0, "prompt_cut": 0, "invalid": False, "limits": [], "scorer": "metaagent_x/1", **COSTS,
    }  # fmt: skip
    return base | more


def made(rows, methods=("a",), benchmarks=("aime24",), **more):
    options = {"sampled": False, "resamples": 200} | more
    return summary.summarise(rows, methods=methods, benchmarks=benchmarks, **options)


def cell(rows, **more):
    return made(rows, **more)["cells"][0]


def test_a_tasks_value_is_the_share_of_its_samples_and_void_ones_are_left_out():
    rows = [
        row(), row(correct=False, sample=1), row(correct=False, sample=2),
        row(task="t/1"), row(task="t/1", correct=None, void=True, sample=1),
        row(task="t/2", correct=None, void=True),
    ]  # fmt: skip
    found = cell(rows)
    assert found["accuracy"] == pytest.approx((1 / 3 + 1) / 2)
    assert (found["tasks"], found["samples"], found["rows"], found["void"]) == (2, 3, 4, 2)
    assert found["low"] <= found["accuracy"] <= found["high"]


@pytest.mark.parametrize(("right", "shown"), [(True, "100.0 [97.2, 100.0]"), (False, "0.0 [0.0, 2.8]")])
def test_all_or_none_of_the_tasks_right_leaves_an_interval(right, shown):
    """128 tasks: 0.025^(1/128) = 0.9716. Two methods that are never apart may differ on tasks that were not asked."""
    found = made([row(method, f"t/{i}", right) for method in "ab" for i in range(128)], ("a", "b"))
    assert tables.accuracy(found).rows == [["a", shown], ["b", shown]]
    assert tables.comparisons(found).rows == [["a - b", "aime24", "128", "+0.0 [-2.8, +2.8]"]]


def test_one_task_has_no_interval():
    found = made([row("a"), row("b", correct=False)], ("a", "b"))
    assert tables.accuracy(found).rows == [["a", "100.0"], ["b", "0.0"]]
    assert tables.comparisons(found).rows == [["a - b", "aime24", "1", "+100.0"]]
    assert "NaN" not in json.dumps(found)


def test_costs_are_means_and_faults_are_counts():
    rows = [
        row(calls=1, sampled_tokens=10, truncated=1, **{"time/wall_s": 0.5}),
        row(task="t/1", calls=4, sampled_tokens=31, empty=2, answer="", status="budget", limits=["test cpu"]),
        row(task="t/2", calls=1, sampled_tokens=4, invalid=True, status="invalid", structure="invalid", answer=""),
        row(task="t/3", calls=99, truncated=9, void=True, correct=None),
    ]  # fmt: skip
    found = cell(rows)
    assert found["costs"]["calls"] == 2 and found["costs"]["sampled_tokens"] == 15
    assert found["costs"]["time/wall_s"] == pytest.approx(3.5 / 3)
    assert found["faults"] == {"truncated": 1, "empty": 2, "prompt_cut": 0, "invalid": 1} and found["no_answer"] == 2
    assert found["limits"] == {"test cpu": 1}
    assert found["statuses"] == {"budget": 1, "invalid": 1, "ok": 1}
    assert found["structures"] == {"invalid": 1 / 3, "single": 2 / 3}


def test_several_samples_give_pass_and_majority_where_they_are_draws():
    answers = {"t/0": ("4", "5", "5", "4.0"), "t/1": ("7", "", "7", "8")}
    rows = [
        row(task=task, sample=i, answer=answer, correct=answer in ("4", "4.0", "8"))
        for task, said in answers.items()
        for i, answer in enumerate(said)
    ]
    same = {("4.0", "4")}
    found = cell(rows, sampled=True, equivalent=lambda a, b: (a, b) in same)
    # t/0: 2 of 4 right, t/1: 1 of 4
    assert found["pass@k"] == pytest.approx({"1": (1 / 2 + 1 / 4) / 2, "2": (5 / 6 + 1 / 2) / 2, "4": 1.0})
    # of 4: t/0 ties 4 with 5, the earlier wins; t/1: 7 wins. Of 2: t/0 4 wins, then 5; t/1 7 wins twice.
    assert found["majority@k"] == pytest.approx({"1": (1 / 2 + 1 / 4) / 2, "2": (1 / 2 + 0) / 2, "4": 1 / 2})
    assert "pass@k" not in cell(rows, equivalent=lambda a, b: False)
    half = [r for r in rows if (r["task_id"], r["sample"]) != ("t/1", 3)]
    assert cell(half, sampled=True, equivalent=lambda a, b: (a, b) in same)["pass@k"]["1"] == 1 / 2


def test_two_methods_are_compared_on_the_tasks_that_both_have():
    rows = [row("a", f"t/{i}", i < 3) for i in range(4)] + [row("b", f"t/{i}", i < 2) for i in range(1, 5)]
    (found,) = made(rows, ("a", "b"))["comparisons"]
    # tasks 1, 2, 3: a is right on 1 and 2, b on 1
    assert (found["method"], found["against"], found["tasks"]) == ("a", "b", 3)
    assert found["accuracy"] == pytest.approx(2 / 3) and found["accuracy_against"] == pytest.approx(1 / 3)
    assert found["difference"] == pytest.approx(1 / 3) and found["low"] <= 1 / 3 <= found["high"]


def test_tasks_of_all_benchmarks_are_compared_together_and_averaged_by_benchmark():
    rows = [row(m, "t/0", m == "a", benchmark=b) for m in ("a", "b") for b in ("aime24", "apps")]
    rows += [row(m, "t/1", True, benchmark="apps") for m in ("a", "b")]
    found = made(rows, ("a", "b"), ("aime24", "apps"))
    together = found["comparisons"][-1]
    assert (together["benchmark"], together["tasks"]) == ("all", 3) and together["difference"] == pytest.approx(2 / 3)
    assert [(a["method"], a["accuracy"]) for a in found["averages"]] == [("a", 1.0), ("b", 1 / 4)]
    assert made(rows[:-1], ("a",), ("aime24", "apps", "aime25"))["averages"] == []


@pytest.mark.fault("B009")
def test_one_table_has_one_scorer(tmp_path, capsys):
    """One prediction file, scored twice and merged, is refused by name and version (MASWorks/MASLab#6)."""
    rows = [row("a", f"t/{i}") for i in range(3)]
    assert made(rows)["scorer"] == "metaagent_x/1"
    again = [r | {"method": "b", "scorer": "llm-judge/7"} for r in rows]
    with pytest.raises(summary.MixedScorers, match=r"llm-judge/7 \(b on aime24\); metaagent_x/1 \(a on aime24\)"):
        made(rows + again, ("a", "b"))
    with pytest.raises(summary.MixedScorers, match="unknown"):
        made([{k: v for k, v in rows[0].items() if k != "scorer"}])
    with pytest.raises(summary.MixedScorers, match="what is to come"):
        summary.check_scorer(rows, "metaagent_x/2")
    summary.check_scorer([], "metaagent_x/2")
    for name, content in (("one", rows), ("two", again), ("three", rows)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in content))
    assert compare.main([str(tmp_path / "one"), str(tmp_path / "two")]) == 2
    assert "not all judged by one scorer" in capsys.readouterr().err
    assert compare.main([str(tmp_path / "one"), str(tmp_path / "three"), f"--to={tmp_path / 'both'}"]) == 0
    kept = json.loads((tmp_path / "both" / "results.json").read_text())
    assert kept["scorer"] == "metaagent_x/1" and [c["method"] for c in kept["cells"]] == ["one: a", "three: a"]


def test_the_version_of_the_scorer_follows_from_what_judges(monkeypatch):
    before = this_scorer()
    assert before.startswith("metaagent_x/") and this_scorer() == before
    monkeypatch.setattr(scorer, "SOURCES", scorer.SOURCES[1:])
    assert this_scorer.__wrapped__() != before


def test_comparing_what_has_nothing_in_common_is_refused(tmp_path, capsys):
    for name, content in (("one", [row()]), ("two", [row(benchmark="apps")]), ("none", [])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in content))
    for names, words in (
        (("one", "two"), "no benchmark in common: aime24; apps"),
        (("one", "none"), "holds no results"),
        (("one", "one"), "have one name"),
    ):
        assert compare.main([str(tmp_path / name) for name in names]) == 2
        assert words in capsys.readouterr().err


def test_comparing_different_data_of_one_name_is_refused(tmp_path, capsys):
    for name, digest in (("one", "aa"), ("two", "bb"), ("three", "aa")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.jsonl").write_text(json.dumps(row()) + "\n")
        (tmp_path / name / "data.json").write_text(json.dumps([{"name": "aime24", "hash": digest}]))
    assert compare.main([str(tmp_path / "one"), str(tmp_path / "three")]) == 0
    assert compare.main([str(tmp_path / "one"), str(tmp_path / "two")]) == 2
    assert "aime24 is not the same data everywhere: hash aa in" in capsys.readouterr().err


def settings(*benchmarks):
    c = config.base("evaluate")
    c.evaluate.methods, c.evaluate.resamples = ("metaagent_x", "single", "single_majority"), 100
    rows = [row(m, benchmark=b) for m in c.evaluate.methods for b in benchmarks]
    return c, [Benchmark(b, b.partition(":")[0], [], 0, {}, "") for b in benchmarks], rows


def test_published_figures_stand_beside_the_same_cells_and_are_marked():
    c, sets, rows = settings("aime24", "tiny_math")
    made = job.results(c, {}, "8B", sets, rows, "how")
    assert [(x["method"], x["benchmark"], x["published"]) for x in made["cells"] if x["published"]] == [
        ("metaagent_x", "aime24", 40.0), ("single", "aime24", 18.3)
    ]  # fmt: skip
    text = tables.accuracy(made).markdown()
    assert "| published: MetaAgent-X RL, Qwen3-8B | 40.00 | - | - |" in text
    assert "published: single agent, Qwen3-8B | 18.30" in text and text.count("published:") == 2
    assert all(x["published"] is None for x in job.results(c, {}, "", sets, rows, "how")["cells"])


@pytest.mark.parametrize(
    ("name", "available", "whole"),
    [("apps", 0, True), ("apps", 1, False), ("apps:difficulty=interview", 0, False), ("apps:split=test", 0, True),
     ("apps:split=train", 0, False), ("livecodebench:release=v6", 0, True), ("livecodebench:to=2025-01-01", 0, False)],
)  # fmt: skip
def test_no_published_figure_stands_beside_a_part_of_a_benchmark(name, available, whole):
    c, (one,), rows = settings(name)
    sets = [dataclasses.replace(one, available=available)]
    cells = job.results(c, {}, "8B", sets, rows, "how")["cells"]
    assert any(x["published"] for x in cells) is whole


def test_the_published_average_stands_only_beside_one_of_the_same_six_benchmarks():
    six = ("livecodebench", "apps", "code_contests", "aime24", "aime25", "olympiadbench")
    c, sets, rows = settings(*six)
    assert job.results(c, {}, "8B", sets, rows, "how")["averages"][0]["published"] == 38.33
    c, sets, rows = settings(*six[:5])
    assert job.results(c, {}, "8B", sets, rows, "how")["averages"][0]["published"] is None


def test_the_same_rows_give_the_same_files(tmp_path):
    c, sets, rows = settings("aime24")
    files = []
    for order in (rows, rows[::-1]):
        job.write(tmp_path, job.results(c, {"name": "x"}, "8B", sets, order, "how"))
        files.append([(tmp_path / name).read_text() for name in ("results.json", "results.md")])
    assert files[0] == files[1] and "## What went wrong" in files[0][1]
    assert not list(tmp_path.glob(".*draft"))


def test_a_narrow_terminal_is_told_where_the_wide_tables_are():
    c, sets, rows = settings("aime24")
    shown = tables.tables(job.results(c, {}, "8B", sets, rows, "how"))
    for width, there in ((80, False), (140, True)):
        out = io.StringIO()
        tables.show(shown, Console(file=out, width=width))
        assert "Accuracy" in out.getvalue() and ("limits" in out.getvalue()) is there
        assert ("in results.md" in out.getvalue()) is not there
