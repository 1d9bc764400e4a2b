"""The report on a dataset: what it counts, what it finds, what a cleaned set leaves out; and the real rows."""

import json

import pytest

from metaagent_x.tasks import datasets
from metaagent_x.tasks.datasets import check, reading
from metaagent_x.tasks.datasets.__main__ import main
from metaagent_x.tasks.task import Rubric

WORDS = "Seven large green boats sail slowly over an old quiet lake while nine tired birds watch from above"


def sums(*numbers):
    return [{"problem": f"What is {n} + 1?", "answer": str(n + 1), "difficulty": "1/8"} for n in numbers]


def apps(number, tests, question="Add two numbers.", **more):
    inputs, outputs = [t[0] for t in tests], [t[1] for t in tests]
    packed = json.dumps({"inputs": inputs, "outputs": outputs})
    return {"problem_id": number, "question": f"{question} ({number})", "input_output": packed} | more


def report(name, path, **more):
    return check.examine(name, reading.read(name, path), **more)


def test_rows_tasks_and_drops_are_counted_with_the_first_place(write):
    rows = [*sums(1, 2), {"problem": "Why?", "answer": "\\frac{}{2}"}, {"problem": "How?", "answer": "\\frac{}{3}"}]
    path = write(*rows)
    found = report("polaris", path)
    assert (found.rows, found.tasks) == (4, 2)
    assert found.dropped == {"gold is incomplete": {"rows": 2, "first": f"polaris: {path} line 3"}}


def test_a_task_id_counts_once(write):
    path = write(
        apps(1, [("1", "1"), ("2", "2")]), apps(1, [("3", "3"), ("4", "4")]), apps(2, [("1", "1"), ("2", "2")])
    )
    found = report("apps", path)
    assert found.tasks == 2 and found.dropped["row repeated"]["rows"] == 1


@pytest.mark.parametrize("gold", ["\\frac{1}{2}}{", "{", "}"])
def test_golds_that_are_not_right_themselves_are_found(gold):
    """Unbalanced braces: no box can hold such a gold. (EleutherAI/lm-evaluation-harness#3475)"""
    found = check.grade_golds([Rubric("good", "math", gold=("7", "C")), Rubric("bad", "math", gold=(gold,))])
    assert found["graded"] == 2 and found["failed"] == [{"id": "bad", "gold": gold}]
    assert found["next_integer"] == {"graded": 1, "accepted": []}


def test_a_gold_that_only_equal_text_meets_is_found(monkeypatch):
    """Such a gold gives reward 0 to every answer that is written by another hand."""
    monkeypatch.setattr(check, "is_equivalent", lambda answer, gold: answer == gold)
    found = check.grade_golds([Rubric("a", "math", gold=("\\frac{1}{2}+x",))])
    assert found["failed"] == [] and found["respelled"] == [{"id": "a", "gold": "\\frac{1}{2}+x"}]
    assert check.respelled("\\frac{1}{2}+x") == "$ \\dfrac{1}{2} + x $."


def test_a_grader_that_takes_the_next_integer_is_found(monkeypatch):
    monkeypatch.setattr(check, "is_equivalent", lambda answer, gold: abs(int(answer.strip("$ .")) - int(gold)) <= 1)
    found = check.grade_golds([Rubric("a", "math", gold=("204",))])
    assert found["next_integer"] == {"graded": 1, "accepted": ["a"]}


@pytest.mark.fault("F148")
@pytest.mark.parametrize(
    "name", ["polaris", "gsm8k:split=all", "math500", "aime24", "aime25", "amc23", "olympiadbench"]
)
def test_every_real_gold_grades_its_own_answer(real, name):
    """All of them, after the repairs of the converters; gold plus one never does."""
    items = reading.read(name, str(real(name.partition(":")[0])))
    golds = check.grade_golds([item.rubric for item in items if item.rubric])
    assert golds["graded"] == sum(item.task is not None for item in items) >= 20
    assert golds["failed"] == golds["respelled"] == [] and golds["next_integer"]["accepted"] == []


@pytest.mark.fault("F148")
def test_reference_programs_are_judged_on_the_tasks_own_tests(write):
    """A right program, one that fails a hidden test, and a task without one."""
    tests, add = [("1 2", "3"), ("5 5", "10")], "print(sum(map(int, input().split())))"
    path = write(
        apps(1, tests, solutions=json.dumps([add])), apps(2, tests, solutions=json.dumps(["print(3)"])), apps(3, tests)
    )
    programs = dict(datasets.solutions("apps", path))
    found = report("apps", path, programs=programs)
    assert found.programs["judged"] == 2 and found.programs["without"] == 1
    (failed,) = found.programs["failed"]
    assert failed["id"] == "apps/train/2" and failed["total"] == 2 and "wrong_answer" in failed["reason"]
    assert found.rejected() == {"apps/train/2": "reference program fails"}


def test_tests_are_counted_by_task_and_kind(write):
    shown = "Add.\n\nInput\n\n1 2\n\nOutput\n\n3\n"
    path = write(apps(1, [("1 2", "3"), ("3 4", "7"), ("5 6", "11")], shown), apps(2, [("1", "1"), ("2", "2")]))
    found = report("apps", path)
    assert found.tests["public"] == {"min": 0, "median": 0.5, "max": 1}
    assert found.tests["judged"] == {"min": 2, "median": 2.0, "max": 2}
    assert found.tests["kinds"] == {"stdin": 5} and found.tests["public_only"] == []


def test_tasks_that_are_judged_on_public_tests_only_are_named(write, capsys):
    """LiveCodeBench is also published without its private tests."""
    public = json.dumps([{"input": "1", "output": "1", "testtype": "stdin"}])
    row = {"question_id": "a", "question_content": "Echo.", "public_test_cases": public}
    more = json.dumps([{"input": "2", "output": "2", "testtype": "stdin"}])
    path = write(row, row | {"question_id": "b", "question_content": "Echo it.", "private_test_cases": more})
    assert report("livecodebench", path).tests["public_only"] == ["livecodebench/a"]
    assert main(["check", "livecodebench", "--path", path]) == 0
    assert "judged on public tests only 1 of 2: livecodebench/a" in " ".join(capsys.readouterr().out.split())


def test_lengths_name_the_prompts_over_the_limit(write):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rows = [{"problem": " ".join(["word"] * n), "answer": "1"} for n in (3, 10, 20)]
    found = report("polaris", write(*rows), tokenizer=words, limit=10)
    assert found.lengths["unit"] == "tokens" and found.lengths["over"] == ["polaris/2"]
    assert found.lengths["percentiles"] == {"50": 10, "90": 20, "99": 20, "100": 20}
    assert report("polaris", write(*rows)).lengths["percentiles"]["100"] == len(" ".join(["word"] * 20))


def test_a_cleaned_set_leaves_out_what_was_found_and_loads_again(write, tmp_path):
    rows = [
        *sums(1, 2),
        {"problem": "What is 1 + 1? ", "answer": "2"},  # duplicate
        {"problem": "what is $2+1$?", "answer": "3"},  # near duplicate
        {"problem": "Dropped", "answer": "\\frac{}{2}"},
        {"problem": WORDS, "answer": "4", "extra": {"kept": [1, None, "é\u2028"]}},
        {"problem": f"Imagine this. {WORDS}. How many boats?", "answer": "5"},
    ]  # fmt: skip
    path, out = write(*rows), tmp_path / "clean.jsonl"
    items = reading.read("polaris", path)
    found = check.examine("polaris", items, against={"bench": [("b", f"Look! {WORDS} at noon.")]})
    left_out = check.write_clean("polaris", path, items, found, out)
    assert left_out == {"duplicate": 1, "near duplicate": 1, "gold is incomplete": 1, "overlaps with bench": 2}
    assert [json.loads(line) for line in out.read_text(encoding="utf-8").split("\n")[:-1]] == rows[:2]
    assert [task.prompt for task, _ in datasets.load("polaris", str(out))] == [row["problem"] for row in rows[:2]]
    again = reading.read("polaris", str(out))
    assert check.examine("polaris", again).rejected() == {} and not list(tmp_path.glob("*.partial"))


def test_a_cleaned_set_keeps_rows_as_they_were(write, tmp_path):
    """Fields that nothing here reads, and text that JSON could cut or escape."""
    row = {"problem": "What?", "answer": "4", "extra": {"kept": [1, None, "é\u2028\ud7ff"]}}
    path, out = write(row), tmp_path / "clean.jsonl"
    items = reading.read("polaris", path)
    check.write_clean("polaris", path, items, check.examine("polaris", items), out)
    assert json.loads(out.read_text(encoding="utf-8")) == row


def test_a_dataset_that_changes_meanwhile_is_not_written(write, tmp_path):
    path, out = write(*sums(1, 2, 3)), tmp_path / "clean.jsonl"
    items = reading.read("polaris", path)
    write(*sums(1))
    with pytest.raises(datasets.DatasetError, match="changed while it was read"):
        check.write_clean("polaris", path, items, check.examine("polaris", items), out)
    assert not out.exists()


def test_columns_that_conversion_skips_are_written_too(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet

    rows = [apps(n, [("1", "1"), ("2", "2")], solutions='["print(input())"]', difficulty="interview") for n in (1, 2)]
    path, out = tmp_path / "train.parquet", tmp_path / "clean.jsonl"
    pa.parquet.write_table(pa.Table.from_pylist(rows), path)
    items = reading.read("apps", str(path))
    check.write_clean("apps", str(path), items, check.examine("apps", items), out)
    assert [json.loads(line) for line in out.read_text().splitlines()] == rows


def test_the_command_prints_a_table_and_writes_both_files(write, tmp_path, capsys):
    path = write(*sums(1, 2, 2))
    bench = write({"problem": "what is  2 + 1?", "answer": 3}, name="bench/test.jsonl")
    clean, full = tmp_path / "clean.jsonl", tmp_path / "report.json"
    arguments = ["check", "polaris", "--path", path, "--against", f"aime25:split=test={bench}"]
    assert main([*arguments, "--write", str(clean), "--json", str(full)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "rows read 3" in out and "duplicates 1 of 3: polaris/2 = polaris/1" in out
    assert "1 of 3 rows" in out and "left out: " in out
    found = json.loads(full.read_text())
    assert found["overlap"]["aime25:split=test"]["tasks"] == 1
    assert [match["training"] for match in found["overlap"]["aime25:split=test"]["exact"]] == ["polaris/1", "polaris/2"]
    assert len(clean.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["no_such_set"], "unknown dataset"),
        (["polaris", "--path", "/nowhere"], "does not exist"),
        (["polaris", "--against", "no_such_set=/nowhere"], "unknown dataset"),
        (["apps", "--split", "dev"], "has the splits"),
        (["polaris", "--tokenizer", "/nowhere"], "tokenizer.json is not there"),
        (["polaris", "--run-programs"], "no reference programs"),
        (["polaris", "--write", "/nowhere/clean.jsonl"], "--write: the folder /nowhere is not there"),
        (["polaris", "--json", "/nowhere/report.json"], "--json: the folder /nowhere is not there"),
    ],
)
def test_bad_input_ends_with_code_2_and_a_reason(write, capsys, arguments, message):
    path = write(*sums(1))
    assert main(["check", *arguments, *([] if "--path" in arguments else ["--path", path])]) == 2
    assert "bad input: " in (out := capsys.readouterr().out) and message in out and "Traceback" not in out


@pytest.mark.parametrize("arguments", [["--limit", "-4"], ["--limit", "many"], ["--least-share", "7"]])
def test_numbers_that_cannot_be_meant_are_refused(write, capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        main(["check", "polaris", "--path", write(*sums(1)), *arguments])
    assert ended.value.code == 2 and arguments[0] in capsys.readouterr().err


def test_an_interrupted_check_ends_with_code_3(write, capsys, monkeypatch):
    def interrupt(*args, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(check, "examine", interrupt)
    assert main(["check", "polaris", "--path", write(*sums(1))]) == 3
