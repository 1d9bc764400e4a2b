"""Code rows: which tests are public, hidden or official, how calls are asked for, and packed tests that are hostile."""

import base64
import json
import pickle
import zlib

import pytest

from metaagent_x.tasks.code import judge
from metaagent_x.tasks.datasets import DatasetError, code_sets, load, load_report, solutions
from metaagent_x.tasks.datasets.code_sets import Undecodable, call_stands_in, examples, stands_in, unpickled_text


def apps(tests, question="Add.\n", function="", **more):
    cases = {"inputs": [t[0] for t in tests], "outputs": [t[1] for t in tests]}
    cases |= {"fn_name": function} if function else {}
    return {"problem_id": 1, "question": question, "input_output": json.dumps(cases), "starter_code": ""} | more


def contest(name="1_A. Add", public=(), private=(), generated=(), **more):
    def columns(tests):
        return {"input": [t[0] for t in tests], "output": [t[1] for t in tests]}

    return {
        "name": name, "description": f"Statement of {name}", "public_tests": columns(public),
        "private_tests": columns(private), "generated_tests": columns(generated), "time_limit": None,
        "memory_limit_bytes": 0,
    } | more  # fmt: skip


def case(input, output, testtype="stdin"):
    return {"input": input, "output": output, "testtype": testtype}


def packed(cases):
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


def livecodebench(public=(), private=(), number=1, **more):
    return {
        "question_id": str(number), "question_content": f"Question {number}.", "platform": "atcoder",
        "contest_date": "2025-01-04T00:00:00", "starter_code": "", "difficulty": "easy", "metadata": "{}",
        "public_test_cases": json.dumps(list(public)), "private_test_cases": packed(list(private)),
    } | more  # fmt: skip


def mbpp(number=20, **more):
    return {
        "task_id": number, "text": f"Write function {number}.", "test_setup_code": "",
        "test_list": ["assert add(1, 2) == 3", "assert set(add(0, 0)) == 0"], "code": "def add(a, b): return a + b\r\n",
    } | more  # fmt: skip


def inputs(tests):
    return [test["input"] for test in tests]


# APPS


def test_apps_shows_at_most_two_tests_of_the_statement(write):
    question = "Add 3 numbers.\n-----Input-----\n1 2 3\n\n-----Input-----\n4 5 6  \n7\n-----Input-----\n8 8 8\n"
    tests = [
        ("3\n", "0\n"),
        ("3\n", "1\n"),
        ("1 2 3\n", "6\n"),
        ("4 5 6\n7\n", "22\n"),
        ("8 8 8", "24"),
        (["9", "9"], ["1", "8"]),
    ]
    ((task, rubric),) = load("apps", write(apps(tests, question)))
    assert inputs(task.public_tests) == ["1 2 3\n", "4 5 6\n7\n"] and task.prompt == question
    assert [(t["input"], t["output"]) for t in rubric.tests] == [("3\n", "0\n"), ("8 8 8", "24"), ("9\n9", "1\n8")]
    assert not stands_in("3", question) and not stands_in("", question)


def test_calls_keep_their_arguments_and_the_prompt_asks_for_the_function(write):
    tests = [([1, [2]], [100]), (["a b", None], True), ([[], {"k": 0.5}], {"player": [[1]]})]
    question = "Score it.\nget_score(1, [2]) returns 100"
    row = apps(tests, question, "get_score", starter_code="\ndef get_score(dice, more):\n\t")
    ((task, rubric),) = load("apps", write(row))
    (public,) = task.public_tests
    assert public == {"kind": "call", "input": [1, [2]], "output": [100], "entry_point": "get_score"}
    assert [(t["input"], t["output"]) for t in rubric.tests] == tests[1:]
    assert task.prompt.startswith(question + "\n\nWrite the function `get_score`")
    assert "does not read standard input" in task.prompt
    assert task.prompt.endswith("```python\ndef get_score(dice, more):\n```")
    method = apps(tests, "q", "find", starter_code="class Solution:\n    def find(self, a):\n        ")
    ((task, _),) = load("apps", write(method))
    assert "Write the class `Solution` with its method `find`" in task.prompt


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([5, [[2, 4]]], True), ([4, [[0, 3]]], False), ([5], False), ([[[2, 4]]], False), (["a'b c"], False),
        ([], False), (["abc", -1], True), ([7], True),
    ],
)  # fmt: skip
def test_calls_that_a_statement_shows(arguments, shown):
    statement = "Input: n = 5, queries = [[2,4]]\nOutput: 3\n>>> f('abc', -1)\nInput: n = 55, r = [[0,3]]\nInput: n = 7"
    assert call_stands_in(arguments, "f", statement) is shown


def test_the_test_split_of_apps_is_judged_on_all_tests(write):
    row = apps([("1 2", "3"), ("3 4", "7"), ("3 4", "7")], "Input\n1 2\n")
    ((task, rubric),) = load("apps:split=test", write(row))
    assert inputs(task.public_tests) == ["1 2"] and inputs(rubric.tests) == ["1 2", "3 4"]
    assert task.metadata["hidden_tests"] == 1
    ((_, rubric),) = load("apps:split=train", write(row))
    assert inputs(rubric.tests) == ["3 4"]


def test_apps_rows_that_cannot_be_judged_are_counted(write):
    huge = '{"inputs": [[1]], "outputs": [%s], "fn_name": "f"}' % ("9" * 5000)
    rows = [
        apps([], "q3", problem_id=3, input_output=""),
        apps([], "q5", problem_id=5),
        apps([("q4", "1")], "q4", problem_id=4),
        apps([], "q6", problem_id=6, input_output=huge),
    ]
    pairs, dropped = load_report("apps", write(*rows))
    assert not pairs
    assert dropped == {"no tests": 2, "no hidden tests": 1, "a test holds an integer of more than 4,300 digits": 1}


def test_apps_levels_can_be_chosen(write):
    levels = ("introductory", "interview", "competition")
    path = write(*(apps([("1", "1")], f"q{i}", problem_id=i, difficulty=level) for i, level in enumerate(levels)))

    def chosen(spec):
        return [task.metadata["difficulty"] for task, _ in load(spec, path)]

    assert chosen("apps") == list(levels)
    assert chosen("apps:difficulty=introductory") == ["introductory"]
    assert chosen("apps:difficulty=introductory+competition") == ["introductory", "competition"]
    with pytest.raises(DatasetError, match="difficulty='easy'; choose of introductory, interview, competition"):
        load("apps:difficulty=easy", path)


# CodeContests


@pytest.mark.parametrize("file", ["train.jsonl", "valid.jsonl"])
def test_code_contests_hides_private_and_generated_tests(write, file):
    """Also in the split for validation, which may be trained on: only the test split follows an official list."""
    rows = [
        contest(
            "a", [("1", "1")], [("2", "2"), ("1\n", "1")], [("3", "3"), ("2", "2")], memory_limit_bytes=256_000_000
        ),
        contest("b", [], [("2", "2")], time_limit={"seconds": 1, "nanos": 500_000_000}),
        contest("c", [("1", "1")]),
        contest("d", [], [("2", "2")], input_file="in.txt"),
    ]
    pairs, dropped = load_report("code_contests", write(*rows, name=file))
    (a, hidden), (_, b) = pairs
    assert inputs(a.public_tests) == ["1"] and inputs(hidden.tests) == ["2", "3"]
    assert (hidden.time_limit_s, hidden.memory_mb) == (4.0, 244) and (b.time_limit_s, b.memory_mb) == (1.5, 512)
    assert dropped == {"no hidden tests": 1, "reads or writes a file": 1}


def test_code_contests_benchmarks_keep_rows_without_private_tests(write):
    path = write(contest("c", [("1", "1")]), contest("d", [("1", "1")], [("2", "2")]), name="test.jsonl")
    pairs, dropped = load_report("code_contests", path)
    assert [inputs(rubric.tests) for _, rubric in pairs] == [["1"], ["1", "2"]] and not dropped
    assert [task.metadata["hidden_tests"] for task, _ in pairs] == [0, 1]


def test_tests_may_be_a_list_of_objects(write):
    tests = [{"input": "1", "output": "2"}, {"input": "3", "output": "4"}]
    ((_, rubric),) = load("code_contests", write(contest(private_tests=tests)))
    assert [(t["input"], t["output"]) for t in rubric.tests] == [("1", "2"), ("3", "4")]


# LiveCodeBench


@pytest.mark.parametrize("encode", [packed, json.dumps, list], ids=["pickled", "json", "plain"])
def test_both_encodings_of_private_tests(write, encode):
    private = [case("3 4\n", "7\n"), case("ü\n", "ü\n")]
    row = livecodebench([case("1 2\n", "3\n")], private_test_cases=encode(private))
    ((task, rubric),) = load("livecodebench", write(row))
    assert inputs(task.public_tests) == ["1 2\n"] and inputs(rubric.tests) == ["1 2\n", "3 4\n", "ü\n"]
    assert task.prompt == "Question 1." and task.metadata["hidden_tests"] == 2


@pytest.mark.parametrize(
    "metadata", ['{"func_name": "count"}', {"func_name": "count"}, "{}", None], ids=["text", "plain", "empty", "null"]
)
def test_functional_rows_are_calls(write, metadata):
    """The name stands in the metadata, or else in the starter code."""
    starter = "class Solution:\n    def count(self, details: List[str], k: int) -> int:\n        "
    private = [case('["a"]\n1', "2", "functional")]
    row = livecodebench([], private, metadata=metadata, starter_code=starter)
    ((task, rubric),) = load("livecodebench", write(row))
    assert rubric.tests == ({"kind": "call", "input": '["a"]\n1', "output": "2", "entry_point": "count"},)
    assert "Write the class `Solution` with its method `count`" in task.prompt
    assert starter.rstrip() in task.prompt


def test_the_kind_of_a_row_is_that_of_its_tests(write):
    """A stdin row may come with starter code; calls must name their function; two kinds in one row are an error."""
    starter = "class Solution:\n    def __init__(self):\n        pass\n    def f(self, n):\n        "
    stdin, call = case("1", "1"), case("1", "1", "functional")
    ((task, rubric),) = load("livecodebench", write(livecodebench([stdin], starter_code=starter)))
    assert task.prompt == "Question 1." and rubric.tests[0]["kind"] == "stdin"
    ((_, rubric),) = load("livecodebench", write(livecodebench([call], starter_code=starter)))
    assert rubric.tests[0]["entry_point"] == "f"
    with pytest.raises(DatasetError, match="field 'metadata': names no function, nor does the starter code"):
        load("livecodebench", write(livecodebench([call])))
    with pytest.raises(DatasetError, match="field 'private_test_cases': the tests are of two kinds"):
        load("livecodebench", write(livecodebench([stdin], [call], starter_code=starter)))


def test_windows_platforms_and_releases(write, tmp_path):
    days = ["2024-12-31T00:00:00", "2025-01-01", "2025-05-01T10:00:00"]
    for number, day in enumerate(days, 4):
        row = livecodebench([case("1", "1")], number=number, contest_date=day)
        write(row | {"platform": "leetcode" if number == 4 else "atcoder"}, name=f"lcb/test{number}.jsonl")

    def chosen(options):
        return [task.id.rpartition("/")[2] for task, _ in load(f"livecodebench:{options}", str(tmp_path / "lcb"))]

    assert chosen("") == ["4", "5", "6"]
    assert chosen("from=2025-01-01") == ["5", "6"]
    assert chosen("from=2025-01-01,to=2025-04-30") == ["5"]
    assert chosen("to=2025-05-01") == ["4", "5", "6"]
    assert chosen("release=v6") == ["6"]
    assert chosen("release=v4_v5") == ["4", "5"]
    assert chosen("release=release_v5") == ["4", "5"]
    assert chosen("platform=leetcode") == ["4"]
    for options, message in (
        ("release=6", "release='6'; v6 is the sixth addition alone"),
        ("from=May", "from='May' is not a date like 2025-01-31"),
        ("from=20250101", "from='20250101' is not a date like 2025-01-31"),  # a date, but not as text
        ("to=2025-W01-1", "to='2025-W01-1' is not a date like 2025-01-31"),
        ("from=2025-05-01,to=2025-01-01", "from=2025-05-01 is later than to=2025-01-01"),
        ("platform=leet", "platform='leet'; choose of atcoder, codeforces, leetcode"),
        ("platform=leetcode+", "platform=''; choose of"),
        ("release=v2", "holds nothing of split"),
    ):
        with pytest.raises(DatasetError, match=message):
            chosen(options)
    path = write(livecodebench([case("1", "1")]), name="all.jsonl")
    with pytest.raises(DatasetError, match=r"all.jsonl is not one of test.jsonl to test6.jsonl"):
        load("livecodebench:release=v6", path)


class Hostile:
    def __reduce__(self):
        return (exec, ("raise SystemExit('ran')",))


@pytest.mark.parametrize(
    "pickled",
    [
        pickle.dumps(Hostile()), pickle.dumps(["x"]), pickle.dumps(b"x"), pickle.dumps(1), pickle.dumps(("a", "b")),
        pickle.dumps("x" * 1000)[:500], pickle.dumps("x")[:-1], b"", b"garbage", b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x8d" + (1 << 62).to_bytes(8, "little") + b"x.", b"\x80\x04r\xff\xff\xff\x7f.",
        b"\x80\x04\x8c\x01[\x8c\x01].",
    ],
)  # fmt: skip
def test_pickles_of_anything_but_one_text_are_refused(write, pickled):
    with pytest.raises(Undecodable):
        unpickled_text(pickled)
    row = livecodebench(private_test_cases=base64.b64encode(zlib.compress(pickled)).decode())
    with pytest.raises(DatasetError, match="line 1: field 'private_test_cases': is neither JSON nor base64"):
        load("livecodebench", write(row))


@pytest.mark.parametrize("protocol", range(1, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_text_of_every_protocol_is_read(protocol):
    assert unpickled_text(pickle.dumps("[1, 'ü\u2028']", protocol)) == "[1, 'ü\u2028']"


def test_packed_tests_that_swell_are_refused(write, monkeypatch):
    monkeypatch.setattr(code_sets, "DECODED_BYTES", 1000)
    row = livecodebench(private=[case("1" * 5000, "1")])
    with pytest.raises(DatasetError, match="more than 1000 bytes after decompression"):
        load("livecodebench", write(row))
    row = livecodebench(private_test_cases=row["private_test_cases"][:-8])
    with pytest.raises(DatasetError, match="'private_test_cases': is neither JSON nor base64"):
        load("livecodebench", write(row))


def rllm(number, own, foreign, starter=""):
    return {"problem": f"Problem {number}", "starter_code": starter, "tests": [*own, *foreign]}


@pytest.mark.fault("F147")
def test_tests_of_another_problem_are_left_out(write):
    """rllm's LiveCodeBench file ends every row with the private tests of its last problem."""
    foreign = [case('"7"', "1", "functional"), case('"88"', "2", "functional")]
    starter = "class Solution:\n    def f(self, n):\n        "
    calls = [rllm(i, [case(str(i), str(i), "functional")], foreign, starter) for i in range(6)]
    pairs, dropped = load_report(
        "livecodebench", write(*calls, rllm(6, [case("5\n", "5\n")], foreign), rllm(7, [], foreign))
    )
    assert [inputs(rubric.tests) for _, rubric in pairs] == [*([str(i)] for i in range(6)), ["5\n"]]
    assert [task.metadata["foreign_tests"] for task, _ in pairs] == [2] * 7
    assert dropped == {"no tests": 1}


# HumanEval, MBPP


def test_humaneval_has_one_official_test(write):
    prompt = 'def add(a, b):\n    """Adds.\n    >>> add(1, 2)\n    3\n    """\n'
    row = {
        "task_id": "HumanEval/53", "prompt": prompt, "entry_point": "add", "canonical_solution": "    return a + b\n",
        "test": "def check(candidate):\n    assert candidate(2, 3) == 5\n",
    }  # fmt: skip
    path = write(row)
    ((task, rubric),) = load("humaneval", path)
    (test,) = rubric.tests
    assert test["input"] == row["test"] + "\ncheck(add)" and test["entry_point"] == "add" and test["kind"] == "assert"
    assert inputs(task.public_tests) == ["assert add(1, 2) == 3"]
    assert prompt.rstrip() in task.prompt and "does not read standard input" in task.prompt
    assert "return a + b" not in repr(task) + repr(rubric)
    assert list(solutions("humaneval", path)) == [("humaneval/HumanEval/53", [prompt + "    return a + b\n"])]


def test_helpers_of_a_prompt_are_those_of_its_test(write):
    """HumanEval 32, 38 and 50: a program that brings an easier helper must not pass."""
    helper = "import math\n\ndef poly(xs, x):\n    return sum(c * x**i for i, c in enumerate(xs))\n\n"
    row = {
        "task_id": "HumanEval/32", "entry_point": "zero", "canonical_solution": "    return 2\n",
        "prompt": helper + "def zero(xs):\n    'Where it is 0.'\n",
        "test": "def check(candidate):\n    xs = [-4, 2]\n    assert poly(xs, candidate(xs)) == 0\n",
    }  # fmt: skip
    ((_, rubric),) = load("humaneval", write(row))
    programs = helper + "def zero(xs): return 2\n", "def poly(*_): return 0\n\ndef zero(xs): return 7\n"
    assert [judge(program, rubric.tests).passed for program in programs] == [1, 0]


def test_an_example_that_the_official_test_contradicts_is_not_shown_as_a_test(write):
    prompt = 'def median(l: list):\n    """\n    >>> median([1])\n    1\n    >>> median([1, 9])\n    15.0\n    """\n'
    row = {"prompt": prompt, "entry_point": "median", "canonical_solution": "    return 1\n",
           "test": "def check(candidate):\n    assert candidate([1]) == 1\n"}  # fmt: skip
    path = write(row | {"task_id": "HumanEval/47"}, row | {"task_id": "HumanEval/48", "prompt": "import re\n" + prompt})
    assert [len(task.public_tests) for task, _ in load("humaneval", path)] == [0, 2]


def test_examples_are_calls_of_the_function_with_a_plain_result():
    def code(*lines):
        return "def f(x):\n" + "".join(f"    {line}\n" for line in ('"""', *lines, '"""'))

    text = code(
        ">>> f(1)", "[1]", ">>> g(1)", "1", ">>> f(2)", "Traceback", ">>> x = f(3)", ">>> f(4)", "'a'", ">>> f(5)", "5"
    )
    assert examples(text, "f") == ["assert f(1) == [1]", "assert f(4) == 'a'"]
    for broken in (code(">>> f(1)", "1")[:-5], code(">>> f(1)", "  >>>f(2)"), "def f(x):\n    pass\n", ""):
        assert examples(broken, "f") == []


def test_mbpp_shows_the_first_assertion(write):
    path = write(mbpp(700), mbpp(20), mbpp(3, text="", prompt="x") | {"text": "Prompt split"})
    (train, hidden), (test, official), _ = load("mbpp", path)
    assert inputs(train.public_tests) == inputs(test.public_tests) == ["assert add(1, 2) == 3"]
    assert inputs(hidden.tests) == ["assert set(add(0, 0)) == 0"]
    assert inputs(official.tests) == ["assert add(1, 2) == 3", "assert set(add(0, 0)) == 0"]
    assert hidden.tests[0]["entry_point"] == "add"
    assert "Write the function `add`" in train.prompt and "assert add(1, 2) == 3" in train.prompt
    assert "return a + b" not in repr(load("mbpp", path))
    assert dict(solutions("mbpp", path))["mbpp/20"] == ["def add(a, b): return a + b\n"]


def test_mbpp_splits_by_id(write, tmp_path):
    path = write(*(mbpp(i) for i in (1, 10, 11, 510, 511, 600, 601, 974)))

    def chosen(spec, at=path):
        return [int(task.id.rpartition("/")[2]) for task, _ in load(spec, at)]

    assert chosen("mbpp:split=prompt") == [1, 10] and chosen("mbpp:split=train") == [601, 974]
    assert chosen("mbpp:split=test") == [11, 510] and chosen("mbpp:split=validation") == [511, 600]
    assert len(chosen("mbpp")) == 8, "a file that is named itself is read whole"
    assert chosen("mbpp", str(tmp_path)) == [11, 510], "of a folder the default split is read"
    with pytest.raises(DatasetError, match="field 'task_id': is 975"):
        chosen("mbpp", write(mbpp(975)))


def test_mbpp_in_its_sanitized_form(write):
    row = mbpp(20, test_imports=["import math"], test_list=["assert math.isclose(area(2), 4)", "assert area(0) == 0"])
    row["prompt"] = row.pop("text")
    ((task, rubric),) = load("mbpp", write(row))
    assert inputs(rubric.tests) == ["import math\nassert math.isclose(area(2), 4)", "import math\nassert area(0) == 0"]
    assert task.prompt.startswith("Write function 20.") and rubric.tests[0]["entry_point"] == "area"


def test_functions_of_the_setup_code_are_not_asked_for(write):
    setup = "def tree(*values):\n    return values"
    row = mbpp(
        20, test_setup_code=setup, test_list=["assert tree(1) == depth(tree(1))", "assert tree() != depth(tree(1))"]
    )
    ((_, rubric),) = load("mbpp", write(row | {"code": ""}))
    assert rubric.tests[0]["entry_point"] == "depth"


def test_setup_code_stands_before_every_assertion(write):
    row = mbpp(
        20, test_setup_code="root = Node(1)\r\n", test_list=["assert depth(root) == 1", "assert depth(root) != 2"]
    )
    ((_, rubric),) = load("mbpp", write(row))
    assert inputs(rubric.tests) == [
        "root = Node(1)\nassert depth(root) == 1",
        "root = Node(1)\nassert depth(root) != 2",
    ]


def test_solutions_are_those_in_python_3(write):
    path = write(contest("a", [], [("1", "1")], solutions={"language": [2, 3, 1, 3], "solution": ["c", "p", "q", "r"]}))
    assert list(solutions("code_contests", path)) == [("code_contests/a", ["p", "r"])]
    path = write(apps([("1", "1")], solutions='["a", "b"]'), apps([("1", "1")], "q", problem_id=2, solutions=""))
    assert list(solutions("apps", path)) == [("apps/train/1", ["a", "b"]), ("apps/train/2", [])]
    with pytest.raises(DatasetError, match=r"polaris: has no reference programs; these have: apps, code_contests"):
        list(solutions("polaris", path))


def test_mbpp_may_ask_for_a_function_with_the_name_of_a_builtin(write):
    """Row 126 asks for `sum`, which is not Python's."""
    tests = ["assert sum(10, 15) == 6", "assert sum(100, 150) == 93"]
    program = "def sum(a, b):\n    return 1"
    ((task, rubric),) = load("mbpp", write(mbpp(126, test_list=tests, code=program)))
    assert "the function `sum`" in task.prompt and rubric.tests[0]["entry_point"] == "sum"
    with pytest.raises(DatasetError, match="no function in common"):
        load("mbpp", write(mbpp(126, test_list=tests, code="")))
