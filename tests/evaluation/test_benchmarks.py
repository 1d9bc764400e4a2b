"""Names, options and paths of benchmarks, and the tasks that they give."""

import json

import pytest

from metaagent_x.evaluation.benchmarks import open_all, open_benchmark, parse
from metaagent_x.tasks import families
from metaagent_x.tasks.datasets import DatasetError


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("aime24,aime25", (("aime24", ""), ("aime25", ""))),
        ("apps:split=test,difficulty=introductory,aime24",
         (("apps:split=test,difficulty=introductory", ""), ("aime24", ""))),
        ("livecodebench:release=v6,from=2025-01-01@data/lcb,math500@x.jsonl",
         (("livecodebench:release=v6,from=2025-01-01", "data/lcb"), ("math500", "x.jsonl"))),
        (" aime24 , ,tiny_math", (("aime24", ""), ("tiny_math", ""))),
        ("aime24@hub:math-ai/aime24@main", (("aime24", "hub:math-ai/aime24@main"),)),
        ("aime24@a=b/rows.jsonl,aime25", (("aime24", "a=b/rows.jsonl"), ("aime25", ""))),
        ("", ()),
    ],
)  # fmt: skip
def test_a_list_of_names_with_options_and_paths_is_taken_apart(text, entries):
    assert parse(text) == entries


def test_a_generated_family_gives_the_tasks_that_a_run_is_judged_on():
    found = open_benchmark(("tiny_math", ""), generated=8, limit=0)
    assert found.pairs == families.generate("math", "test", 8) and found.available == 8
    first = open_benchmark(("tiny_math", ""), generated=8, limit=3)
    assert first.pairs == found.pairs[:3] and first.hash == found.hash and first.available == 8


def apps_row(i):
    tests = json.dumps({"inputs": [""], "outputs": [str(i)]})
    return {
        "problem_id": i, "question": f"Print {i}.", "solutions": "", "url": "", "starter_code": "",
        "difficulty": "introductory", "input_output": tests,
    }  # fmt: skip


def test_of_a_dataset_whose_first_split_trains_the_benchmark_split_is_read(tmp_path, monkeypatch):
    for i, split in enumerate(("train", "test")):
        (tmp_path / "apps").mkdir(exist_ok=True)
        (tmp_path / "apps" / f"{split}.jsonl").write_text(json.dumps(apps_row(i)) + "\n")
    monkeypatch.setenv("METAAGENT_X_DATA", str(tmp_path))
    for name in ("apps", "apps:difficulty=introductory", "apps:split=test"):
        assert [task.prompt for task, _ in open_benchmark((name, ""), generated=1, limit=0).pairs] == ["Print 1."]
    ((task, _),) = open_benchmark(("apps:split=train", ""), generated=1, limit=0).pairs
    assert task.prompt == "Print 0."


def test_what_is_no_benchmark_or_named_twice_is_refused(tmp_path):
    with pytest.raises(DatasetError, match=r"no benchmark 'aime23'; there are tiny_math, tiny_code, .*aime24"):
        open_benchmark(("aime23", ""), generated=1, limit=0)
    with pytest.raises(DatasetError, match="'tiny_math' is named twice"):
        open_all((("tiny_math", ""), ("tiny_math", "")), generated=1, limit=0)
    with pytest.raises(DatasetError, match="no benchmark is named"):
        open_all((), generated=1, limit=0)
    with pytest.raises(DatasetError, match="does not exist"):
        open_benchmark(("aime24", str(tmp_path / "none.jsonl")), generated=1, limit=0)
