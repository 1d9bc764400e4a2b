"""Datasets: the real rows, their known oddities, and rows that are broken."""

import json
import pathlib

import pytest

from metaagent_x.tasks.datasets import DATASETS, DatasetError, load, load_report, stands_in, strip_calculator_marks
from metaagent_x.tasks.math import is_equivalent

DATA = pathlib.Path(__file__).resolve().parents[3] / "shared" / "data"
needs_rows = pytest.mark.skipif(not DATA.is_dir(), reason=f"no real rows at {DATA}")


def write(path, *rows, name="rows.jsonl"):
    (path / name).write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return str(path / name)


def polaris(i, answer="1"):
    return {"problem": f"question {i}", "answer": answer, "difficulty": "1/8"}


def apps(tests, question="Add.\n", **more):
    inputs, outputs = [t[0] for t in tests], [t[1] for t in tests]
    return {
        "problem_id": 1,
        "question": question,
        "input_output": json.dumps({"inputs": inputs, "outputs": outputs}),
    } | more


def contest(name="1_A. Add", public=(), private=(), generated=(), **more):
    def columns(tests):
        return {"input": [t[0] for t in tests], "output": [t[1] for t in tests]}

    return {
        "name": name, "description": f"Statement of {name}", "public_tests": columns(public),
        "private_tests": columns(private), "generated_tests": columns(generated), "time_limit": None,
        "memory_limit_bytes": 0,
    } | more  # fmt: skip


@needs_rows
@pytest.mark.fault("F147")
@pytest.mark.parametrize("name", DATASETS)
def test_real_rows_become_pairs(name):
    """Every task stands beside its own rubric, ids are unique and the same at every reading."""
    pairs, dropped = load_report(name, str(DATA / name))
    rows = sum(len(file.read_text().splitlines()) for file in (DATA / name).glob("*.jsonl"))
    assert pairs and len(pairs) + sum(dropped.values()) == rows
    assert len({task.id for task, _ in pairs}) == len(pairs)
    assert all(task.id == rubric.task_id and task.kind == rubric.kind for task, rubric in pairs)
    assert all(rubric.gold if rubric.kind == "math" else rubric.tests for _, rubric in pairs)
    assert pairs == load(name, str(DATA / name))
    for task, rubric in pairs:
        public = {test["input"].strip() for test in task.public_tests}
        assert not public & {test["input"].strip() for test in rubric.tests}


@needs_rows
def test_real_rows_are_dropped_for_stated_reasons():
    reasons = {reason for name in DATASETS for reason in load_report(name, str(DATA / name))[1]}
    assert reasons <= {
        "gold is incomplete", "gold is a sentence", "tests of kind 'call' are not supported", "duplicate",
        "no hidden tests", "no tests",
    }  # fmt: skip


@pytest.mark.fault("F150")
@pytest.mark.parametrize(("end", "gold"), [("#### 1,234", "1234"), ("#### 72", "72"), ("####-5 ", "-5")])
def test_gsm8k_answers_are_numbers(tmp_path, end, gold):
    """OpenBioLink/ThoughtSource#1."""
    solution = f"She has 1,200 + 34 = <<1200+34=1234>>1,234 clips.\n{end}"
    path = write(tmp_path, {"question": "How many?", "answer": solution})
    ((_, rubric),) = load("gsm8k", path)
    assert rubric.gold == (gold,)
    assert strip_calculator_marks(solution).startswith("She has 1,200 + 34 = 1,234 clips.")


@pytest.mark.parametrize(
    ("row", "gold"),
    [
        ({"id": 60, "problem": "p", "answer": "025"}, "025"),
        ({"problem": "p", "answer": 70, "id": "0"}, "70"),
        ({"ID": "2024-I-1", "Problem": "p", "Solution": "s", "Answer": 204}, "204"),
        ({"id": 1, "problem": "p", "solution": r"so \boxed{073}"}, "073"),
        ({"question": "p", "answer": "0"}, "0"),
    ],
)
def test_aime_in_its_published_forms(tmp_path, row, gold):
    ((task, rubric),) = load("aime24", write(tmp_path, row))
    assert task.prompt == "p" and rubric.gold == (gold,)
    assert is_equivalent(gold.lstrip("0") or "0", gold)


def test_glued_choice_labels_are_repaired(tmp_path):
    ((_, rubric),) = load("polaris", write(tmp_path, polaris(0, r"\textbf{(C)}\25")))
    assert rubric.gold == ("25", "C")


@pytest.mark.fault("F130")
def test_golds_that_cannot_be_graded_are_dropped_with_a_count(tmp_path):
    """huggingface/open-r1#420."""
    rows = [polaris(0), polaris(1, "the proof is given above in full"), polaris(2, "f(x)="), polaris(0, "9")]
    pairs, dropped = load_report("polaris", write(tmp_path, *rows))
    assert [task.id for task, _ in pairs] == ["polaris/0"]
    assert dropped == {"gold is a sentence": 1, "gold is incomplete": 1, "duplicate": 1}


def test_apps_shows_at_most_two_tests_of_the_statement(tmp_path):
    question = "Add 3 numbers.\n-----Input-----\n1 2 3\n\n-----Input-----\n4 5 6  \n7\n-----Input-----\n8 8 8\n"
    tests = [("3\n", "0\n"), ("1 2 3\n", "6\n"), ("4 5 6\n7\n", "22\n"), ("8 8 8", "24"), (["9", "9"], ["1", "8"])]
    ((task, rubric),) = load("apps", write(tmp_path, apps(tests, question)))
    assert [t["input"] for t in task.public_tests] == ["1 2 3\n", "4 5 6\n7\n"]
    assert [(t["input"], t["output"]) for t in rubric.tests] == [("3\n", "0\n"), ("8 8 8", "24"), ("9\n9", "1\n8")]
    assert not stands_in("3", question) and not stands_in("", question)


def test_apps_rows_that_cannot_be_judged_are_counted(tmp_path):
    call = apps([("1", "2")], "q2")
    call["input_output"] = json.dumps({"fn_name": "f", "inputs": [[1]], "outputs": [[2]]})
    rows = [
        call | {"problem_id": 2},
        apps([], "q3", problem_id=3, input_output=""),
        apps([("q4", "1")], "q4", problem_id=4),
    ]
    pairs, dropped = load_report("apps", write(tmp_path, *rows))
    assert not pairs
    assert dropped == {"tests of kind 'call' are not supported": 1, "no tests": 1, "no hidden tests": 1}


def test_code_contests_hides_private_and_generated_tests(tmp_path):
    rows = [
        contest(
            "a", [("1", "1")], [("2", "2"), ("1\n", "1")], [("3", "3"), ("2", "2")], memory_limit_bytes=256_000_000
        ),
        contest("b", [], [("2", "2")], time_limit={"seconds": 1, "nanos": 500_000_000}),
        contest("c", [("1", "1")]),
        contest("d", [], [("2", "2")], input_file="in.txt"),
    ]
    pairs, dropped = load_report("code_contests", write(tmp_path, *rows))
    (a, hidden), (_, b) = pairs
    assert [t["input"] for t in a.public_tests] == ["1"] and [t["input"] for t in hidden.tests] == ["2", "3"]
    assert (hidden.time_limit_s, hidden.memory_mb) == (4.0, 244) and (b.time_limit_s, b.memory_mb) == (1.5, 512)
    assert dropped == {"no hidden tests": 1, "reads or writes a file": 1}


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("polaris", {"problem": "p"}, r"line 2: field 'answer': .*a row without an answer"),
        ("polaris", {"problem": "p", "answer": "  "}, r"line 2: field 'answer': .*a row without an answer"),
        ("polaris", {"problem": "p", "answer": None}, r"line 2: field 'answer': .*a row without an answer"),
        ("polaris", {"problem": "p", "answer": ["1"]}, r"line 2: field 'answer': is list"),
        ("polaris", {"problem": "p", "answer": True}, r"line 2: field 'answer': is bool"),
        ("polaris", {"question": "p", "answer": "1"}, r"line 2: field 'problem': is missing; the row has answer, q"),
        ("polaris", {"problem": "", "answer": "1"}, r"line 2: field 'problem': is empty"),
        ("gsm8k", {"question": "p", "answer": "12"}, r"line 2: field 'answer': .*a row without an answer"),
        ("aime24", {"problem": "p", "solution": "s"}, r"line 2: field 'answer': .*a row without an answer"),
        ("apps", apps([], input_output="{"), r"line 2: field 'input_output': unreadable JSON"),
        ("apps", apps([], input_output='{"inputs": ["1"], "outputs": []}'), r"'input_output': .*equal length"),
        ("apps", apps([(1, "1")]), r"line 2: field 'input_output': a test is int"),
        ("code_contests", contest(private_tests=[]) | {"private_tests": ["x"]}, r"field 'private_tests': is list"),
        ("polaris", [1], r"line 2: holds list"),
    ],
)  # fmt: skip
def test_broken_rows_are_named(tmp_path, name, row, message):
    good = {
        "polaris": polaris(0), "gsm8k": {"question": "q", "answer": "#### 1"}, "aime24": {"problem": "q", "answer": 1},
        "apps": apps([("1", "1")], "q", problem_id=0), "code_contests": contest("z", [], [("1", "1")]),
    }[name]  # fmt: skip
    path = write(tmp_path, good, row)
    with pytest.raises(DatasetError, match=message) as problem:
        load(name, path)
    assert str(problem.value).startswith(f"{name}: {path}")


def test_files_that_cannot_be_read_are_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(polaris(0)) + "\n\n{'problem'\n")
    with pytest.raises(DatasetError, match=r"polaris: .*rows.jsonl line 3: unreadable JSON"):
        load("polaris", str(path))
    path.write_bytes(b'{"problem": "\xff"}')
    with pytest.raises(DatasetError, match=r"rows.jsonl cannot be read"):
        load("polaris", str(path))
    (tmp_path / "rows.json").write_text('{"problem": "p"}')
    with pytest.raises(DatasetError, match="must hold a list"):
        load("polaris", str(tmp_path / "rows.json"))
    with pytest.raises(DatasetError, match=r"absent does not exist; looked for a \.jsonl"):
        load("polaris", str(tmp_path / "absent"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match=r"holds no \.jsonl"):
        load("polaris", str(tmp_path / "empty"))
    (tmp_path / "rows.csv").write_text("a,b")
    with pytest.raises(DatasetError, match=r"\.csv file"):
        load("polaris", str(tmp_path / "rows.csv"))
    with pytest.raises(DatasetError, match="polaris: needs a path"):
        load("polaris")
    with pytest.raises(DatasetError, match="unknown dataset 'polariss'; known: polaris, apps"):
        load("polariss", "x")


def test_folders_and_lists_are_read_in_order(tmp_path):
    write(tmp_path, polaris(2), name="b.jsonl")
    (tmp_path / "a.json").write_text(json.dumps([polaris(0), polaris(1)]))
    (tmp_path / "notes.txt").write_text("not data")
    pairs = load("polaris", str(tmp_path))
    assert [(t.id, t.prompt) for t, _ in pairs] == [(f"polaris/{i}", f"question {i}") for i in range(3)]


def test_line_separators_inside_a_row_do_not_cut_it(tmp_path):
    (tmp_path / "r.jsonl").write_text('{"problem": "a\u2028b", "answer": "1"}\r\n', encoding="utf-8", newline="")
    assert load("polaris", str(tmp_path / "r.jsonl"))[0][0].prompt == "a\u2028b"
