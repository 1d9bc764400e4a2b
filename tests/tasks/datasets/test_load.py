"""All datasets: the real rows, rows that are broken in any field, speed-free facts of `load`."""

import collections
import copy
import json
import pathlib
import random

import pytest

from metaagent_x.tasks.datasets import DATASETS, DatasetError, Dropped, Row, load, load_report, solutions

# Rows in the files of the split, of which are dropped, by reason; judged tests of the others, by kind.
REAL = {
    "polaris": (857, {"gold is incomplete": 22}, {}),
    "apps:split=train": (4, {"no hidden tests": 3}, {"call": 8}),
    "apps:split=test": (110, {"row repeated": 16}, {"stdin": 545, "call": 671}),
    "code_contests:split=train": (19, {}, {"stdin": 189}),
    "code_contests:split=test": (107, {}, {"stdin": 881}),
    "livecodebench": (492, {"row repeated": 41}, {"stdin": 735, "call": 449}),
    "humaneval": (101, {}, {"assert": 101}),
    "mbpp": (349, {}, {"assert": 1043}),
    "mbpp:split=train": (243, {}, {"assert": 485}),
    "gsm8k": (628, {}, {}),
    "gsm8k:split=test": (396, {}, {}),
    "math500": (344, {}, {}),
    "aime24": (20, {}, {}),
    "aime25": (20, {}, {}),
    "amc23": (27, {}, {}),
    "olympiadbench": (441, {"gold is a sentence": 1}, {}),
}
BENCHMARK = ("apps:split=test", "code_contests:split=test", "livecodebench", "mbpp")


def test_every_dataset_has_real_rows():
    assert {spec.partition(":")[0] for spec in REAL} == set(DATASETS)


@pytest.mark.fault("F147")
@pytest.mark.parametrize("spec", REAL)
def test_real_rows_become_pairs(real, spec):
    """Every task stands beside its own rubric; ids are unique and the same at every reading."""
    path = str(real(spec.partition(":")[0]))
    pairs, dropped = load_report(spec, path)
    kinds = collections.Counter(test["kind"] for _, rubric in pairs for test in rubric.tests)
    assert (len(pairs) + sum(dropped.values()), dropped, kinds) == REAL[spec]
    assert len({task.id for task, _ in pairs}) == len(pairs)
    assert all(task.id == rubric.task_id and task.kind == rubric.kind for task, rubric in pairs)
    assert all(rubric.gold if rubric.kind == "math" else rubric.tests for _, rubric in pairs)
    assert pairs == load(spec, path)


@pytest.mark.parametrize("spec", [spec for spec in REAL if DATASETS[spec.partition(":")[0]].kind == "code"])
def test_public_and_hidden_tests_of_real_rows(real, spec):
    """Training: no input in common. Benchmarks: every public test is judged too."""
    for task, rubric in load(spec, str(real(spec.partition(":")[0]))):
        public = {json.dumps(test["input"]) for test in task.public_tests}
        judged = {json.dumps(test["input"]) for test in rubric.tests}
        assert public <= judged if spec in BENCHMARK else not public & judged
        asked = rubric.tests[0].get("entry_point", "")
        assert asked in task.prompt and ("does not read standard input" in task.prompt) is bool(asked)


@pytest.mark.fault("F147")
def test_no_real_test_of_another_problem_is_judged(real):
    """Every row of this file ends with the tests of its last problem."""
    pairs = load("livecodebench", str(real("livecodebench") / "rllm_schema_2024-08_2025-01.jsonl"))
    assert len(pairs) == 170 and {task.metadata["foreign_tests"] for task, _ in pairs} == {12}
    held = collections.Counter(test["input"] for _, rubric in pairs for test in rubric.tests)
    assert max(held.values()) < 10 and '"7"' not in held


@pytest.mark.parametrize(
    ("spec", "tasks", "programs"),
    [
        ("apps:split=train", 1, 8), ("code_contests", 19, 19), ("humaneval", 101, 101), ("mbpp:split=all", 657, 657),
    ],
)  # fmt: skip
def test_reference_programs_of_real_rows(real, spec, tasks, programs):
    path = str(real(spec.partition(":")[0]))
    found = dict(solutions(spec, path))
    assert list(found) == [task.id for task, _ in load(spec, path)] and len(found) == tasks
    assert sum(map(len, found.values())) == programs


def test_benchmarks_keep_every_official_row_and_training_sets_no_question_twice(write):
    """MBPP 347 asks what 76 asks, and official results count both."""
    rows = [{"question": "How many?", "answer": f"so #### {n}"} for n in (1, 2)]
    assert len(load("gsm8k", write(*rows, name="test.jsonl"))) == 2
    pairs, dropped = load_report("gsm8k", write(*rows, name="train.jsonl"))
    assert len(pairs) == 1 and dropped == {"question of an earlier row": 1}


def test_ids_of_different_splits_differ(write):
    """Both splits of APPS count their problems from 0, and GSM8K has no ids."""
    packed = json.dumps({"inputs": ["1", "2"], "outputs": ["1", "2"]})
    for split in ("train", "test"):
        write({"problem_id": 0, "question": f"Of {split}", "input_output": packed}, name=f"apps/{split}.jsonl")
        write({"question": f"Of {split}", "answer": "#### 1"}, name=f"gsm8k/{split}.jsonl")
    folder = pathlib.Path(write({}, name="x")).parent
    assert [task.id for task, _ in load("apps:split=all", str(folder / "apps"))] == ["apps/test/0", "apps/train/0"]
    ids = {load(f"gsm8k:split={split}", str(folder / "gsm8k"))[0][0].id for split in ("train", "test")}
    assert ids == {"gsm8k/train/0", "gsm8k/test/0"}


def test_a_set_without_a_single_row_is_an_error(write, tmp_path):
    """A download cut at its first byte, or options that want nothing, must not look like a small dataset."""
    for name, content in (("empty.jsonl", ""), ("blank.jsonl", "\n\n"), ("list.json", "[]")):
        (tmp_path / name).write_text(content)
        with pytest.raises(DatasetError, match=f"{name} holds no rows"):
            load("polaris", str(tmp_path / name))
    path = write({"question": "q", "input_output": "", "difficulty": "interview"})
    with pytest.raises(DatasetError, match=r"none of its 1 rows is of difficulty=introductory"):
        load("apps:difficulty=introductory", path)


FILES = {
    "apps": "test_selected150_hf_schema.jsonl", "code_contests": "train_with_solutions.jsonl",
    "livecodebench": "test_private_reencoded.jsonl",
}  # fmt: skip
VALUES = (
    None, True, 0, -1, 10**30, 0.5, float("nan"), float("inf"), "", " ", "x", "\ud800", "[", "[1]", "{}", '{"a": 1}',
    "1e999", [], [1], [None], ["x"], [[]], [{}], {}, {"input": 1}, {"input": ["1"], "output": [1]}, {"func_name": 1},
    {"seconds": "x"}, {"language": 3}, "9" * 5000, 10**20, "[" * 5000,
)  # fmt: skip


def mutants(row, random):
    """Copies of a row with one value changed, at the top, inside its lists and objects, or inside its JSON texts."""
    for field in row:
        for value in VALUES:
            yield row | {field: value}
        for _ in range(15):
            yield row | {field: changed(copy.deepcopy(row[field]), random)}
        yield {key: value for key, value in row.items() if key != field}


def changed(value, random):
    if isinstance(value, str) and value[:1] in "[{" and value:
        try:
            return json.dumps(changed(json.loads(value), random))
        except ValueError:
            return value[: random.randrange(len(value))]
    if isinstance(value, dict) and value and random.random() < 0.8:
        key = random.choice(list(value))
        return value | {key: changed(value[key], random)}
    if isinstance(value, list) and value and random.random() < 0.8:
        i = random.randrange(len(value))
        return [*value[:i], changed(value[i], random), *value[i + 1 :]]
    return random.choice(VALUES)


@pytest.mark.parametrize("name", DATASETS)
def test_rows_that_are_broken_in_any_field_are_named_or_read(real, name):
    """No change of a value's type or content gives anything but a sound pair, a counted drop or a `DatasetError`."""
    file = real(name) / FILES.get(name, "")
    file = file if file.is_file() else sorted(file.glob("*.jsonl"))[0]
    lines = file.read_text().splitlines()
    random_ = random.Random(5)
    outcomes = collections.Counter()
    for line in random_.sample(lines, 4):
        for mutant in mutants(json.loads(line), random_):
            outcomes[outcome(name, mutant, file)] += 1
    assert outcomes["error"] > 50 and outcomes["pair"] > 30, outcomes


def outcome(name, values, file):
    """What comes of one row, by way of `convert` alone: files are tested elsewhere."""
    place = f"{name}: {file} line 7"
    dataset = DATASETS[name]
    try:
        row = Row(place, 6, values, "train")
        if dataset.split_of:
            dataset.split_of(row)
        task, rubric = dataset.convert(row)
        if dataset.solutions:
            assert all(isinstance(program, str) for program in dataset.solutions(row))
    except Dropped as reason:
        assert str(reason)
        return "dropped"
    except DatasetError as problem:
        assert str(problem).startswith(f"{place}: field '")
        return "error"
    assert task.id == rubric.task_id and task.prompt.strip() and (rubric.gold or rubric.tests)
    assert all(isinstance(gold, str) and gold.strip() for gold in rubric.gold)
    assert 0 < rubric.time_limit_s < 1e12 and rubric.memory_mb > 0
    repr(task).encode(), json.dumps([dict(task.metadata), *map(dict, (*task.public_tests, *rubric.tests))]).encode()
    for test in (*task.public_tests, *rubric.tests):
        assert isinstance(test["input"], str | list)
        assert (test["kind"] == "stdin") is ("entry_point" not in test) and test.get("entry_point", "f")
    return "pair"


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
        ("apps", {"question": "q", "input_output": "{"}, r"line 2: field 'input_output': unreadable JSON"),
        (
            "apps", {"question": "q", "input_output": '{"inputs": ["1"], "outputs": []}'},
            r"line 2: field 'input_output': .*equal length",
        ),
        (
            "apps", {"question": "q", "input_output": {"inputs": [1], "outputs": ["1"]}},
            r"line 2: field 'input_output': a test is int",
        ),
    ],
)  # fmt: skip
def test_broken_rows_are_named(write, name, row, message):
    good = {
        "polaris": {"problem": "a", "answer": "1"}, "gsm8k": {"question": "q", "answer": "#### 1"},
        "aime24": {"problem": "q", "answer": 1}, "apps": {"question": "a", "input_output": ""},
    }[name]  # fmt: skip
    path = write(good, row)
    with pytest.raises(DatasetError, match=message) as problem:
        load(name, path)
    assert str(problem.value).startswith(f"{name}: {path}")


@pytest.mark.fault("F145")
@pytest.mark.parametrize("name", DATASETS)
def test_files_of_other_columns_are_told_apart(write, name):
    """huggingface/datasets#7676: the message names what is there and what was expected."""
    with pytest.raises(DatasetError, match=r"line 1: field '\w+': is missing; the row has a, b; a row of \w+ has \w+"):
        load(name, write({"b": 1, "a": 2}))


def test_two_questions_under_one_id_are_refused_and_a_repeated_row_is_dropped(write):
    """Two files that both number their rows from 1 would lose half of a benchmark."""
    row = {"id": 1, "problem": "How much is 1 + 1?", "answer": 2}
    _, dropped = load_report("aime25", write(row, row))
    assert dropped == {"row repeated": 1}
    with pytest.raises(DatasetError, match=r"line 2: asks something else than .* line 1 under the same id, 'aime25/1'"):
        load("aime25", write(row, row | {"problem": "How much is 1 + 2?", "answer": 3}))
