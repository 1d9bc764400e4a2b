"""From a row of a code dataset to its task and rubric.

Rows to train on keep public and hidden tests apart: no hidden test has the input of a public one, and a row without
hidden tests is dropped. Rows of benchmarks are judged on the official list, which holds the public tests too
(`metadata["hidden_tests"]` counts the others). Which of the two a row is follows from its split: "test" is a benchmark.

A task that asks for a function says so at the end of its prompt, with the code to begin with. Reference programs never
stand in a task or its metadata; `registry.solutions` reads them.
"""

from __future__ import annotations

import ast
import base64
import builtins
import collections
import dataclasses
import datetime
import doctest
import io
import json
import pickletools
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from metaagent_x.tasks.datasets.rows import Dropped, Row, parse_json
from metaagent_x.tasks.task import Rubric, Task

Pair = tuple[Task, Rubric]
Tests = list[dict[str, Any]]

PUBLIC_TESTS = 2  # of those that a statement shows, at most; the others stay hidden
TIME_LIMIT_S = 4.0  # where the dataset names none; APPS' own limit
LIVECODEBENCH_TIME_LIMIT_S = 6.0  # of its official grader
MEMORY_MB = 512
DECODED_BYTES = 1 << 30  # the largest known private tests of one LiveCodeBench row are far below
CONTRADICTED = ("HumanEval/47",)  # its doctest has 15.0 for a median that its own test and program have as 8.0
PYTHON_3 = 3  # in CodeContests' column `language`


def _pair(
    row: Row, task_id: str, prompt: str, public: Tests, others: Tests, metadata: Mapping[str, Any], *,
    benchmark: bool, time_limit_s: float = TIME_LIMIT_S, memory_mb: int = MEMORY_MB,
) -> Pair:  # fmt: skip
    """A task and its rubric: for training the others only, for a benchmark all of them. Equal inputs count once."""
    shown = {_key(test) for test in public}
    hidden = _distinct(test for test in others if _key(test) not in shown)
    metadata = dict(metadata)
    if benchmark:
        tests = _distinct([*public, *others])
        metadata["hidden_tests"] = len(hidden)
    else:
        tests = hidden
    if not tests:
        raise Dropped("no tests" if benchmark or not public else "no hidden tests")
    task = Task(task_id, "code", prompt, public_tests=tuple(public), metadata=metadata)
    return task, Rubric(task_id, "code", tests=tuple(tests), time_limit_s=time_limit_s, memory_mb=memory_mb)


def _distinct(tests: Iterable[dict[str, Any]]) -> Tests:
    """The first test of every input."""
    first: dict[str, dict[str, Any]] = {}
    for test in tests:
        first.setdefault(_key(test), test)
    return list(first.values())


def _key(test: Mapping[str, Any]) -> str:
    value = test["input"]
    return value.strip() if isinstance(value, str) else json.dumps(value)


def _stdin_tests(row: Row, field: str, inputs: Any, outputs: Any) -> Tests:
    pairs = _paired(row, field, inputs, outputs)
    return [{"kind": "stdin", "input": _joined(row, field, i), "output": _joined(row, field, o)} for i, o in pairs]


def _paired(row: Row, field: str, inputs: Any, outputs: Any) -> Iterable[tuple[Any, Any]]:
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise row.error(field, "inputs and outputs must be two lists of equal length")
    return zip(inputs, outputs, strict=True)


def _joined(row: Row, field: str, value: Any) -> str:
    """Some APPS rows hold a text as a list of its lines."""
    if isinstance(value, list):
        return "\n".join(_test_text(row, field, line) for line in value)
    return _test_text(row, field, value)


def _test_text(row: Row, field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise row.error(field, f"a test is {type(value).__name__}, it must be text")
    return row.as_text(field, value)


def _json(row: Row, field: str, text: str) -> Any:
    try:
        return parse_json(text)
    except json.JSONDecodeError as problem:
        raise row.error(field, f"unreadable JSON: {problem}") from None
    except ValueError as problem:
        if "integer string conversion" in str(problem):  # some APPS tests have answers of 9,000 digits
            raise Dropped("a test holds an integer of more than 4,300 digits") from None
        raise row.error(field, f"unreadable JSON: {problem}") from None


def ask_for(name: str, begin: str = "", *, container: str = "") -> str:
    """What the prompt of a task that is not a whole program ends with.

    Args:
      name: of the function or method. begin: the code to begin with. container: the class that it is a method of.
    """
    what = f"the class `{container}` with its method `{name}`" if container else f"the function `{name}`"
    start = f" It begins with:\n```python\n{begin.strip(chr(10)).rstrip()}\n```" if begin.strip() else ""
    return (
        f"\n\nWrite {what}, complete with all that it needs. It is called by the tests: it gets its arguments and "
        f"returns its result, it does not read standard input.{start}"
    )


def _container(starter: str) -> str:
    return "Solution" if re.search(r"^class\s+Solution\b", starter, re.MULTILINE) else ""


# APPS


def apps(row: Row) -> Pair:
    """APPS. Public are at most two tests whose input stands in the statement. The test split is a benchmark.

    Both splits count their problems from 0, so the split is part of the id.
    """
    name, prompt = row.ident("problem_id", "id"), row.text("question")
    metadata = row.plain("difficulty")
    packed = row.values.get("input_output")
    if packed is None or packed == "":
        raise Dropped("no tests")
    cases = _json(row, "input_output", packed) if isinstance(packed, str) else packed
    if not isinstance(cases, dict):
        raise row.error("input_output", f"holds {type(cases).__name__}, it must be an object")
    inputs, outputs = cases.get("inputs"), cases.get("outputs")
    if function := cases.get("fn_name"):
        function = _function_name(row, "input_output", function)
        starter = row.optional_text("starter_code")
        tests = _call_tests(row, inputs, outputs, function)
        shown = [i for i, test in enumerate(tests) if call_stands_in(test["input"], function, prompt)][:PUBLIC_TESTS]
        prompt += ask_for(function, starter, container=_container(starter))
    else:
        tests = _stdin_tests(row, "input_output", inputs, outputs)
        shown = [i for i, test in enumerate(tests) if stands_in(test["input"], prompt)][:PUBLIC_TESTS]
    others = [test for i, test in enumerate(tests) if i not in shown]
    public = [tests[i] for i in shown]
    return _pair(row, f"apps/{row.split}/{name}", prompt, public, others, metadata, benchmark=row.split == "test")


def _function_name(row: Row, field: str, name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise row.error(field, f"{name!r:.40} is not the name of a function")
    return name


def _call_tests(row: Row, inputs: Any, outputs: Any, function: str) -> Tests:
    tests = []
    for arguments, expected in _paired(row, "input_output", inputs, outputs):
        if not isinstance(arguments, list):
            raise row.error("input_output", f"the arguments of a call are {type(arguments).__name__}, not a list")
        tests.append({"kind": "call", "input": arguments, "output": expected, "entry_point": function})
    return tests


def stands_in(test_input: str, statement: str) -> bool:
    """True if the statement shows an input: the same whole lines in a row. ("3" inside a sentence is no sample.)"""

    def lines(text: str) -> str:
        return "\n" + "\n".join(line.rstrip() for line in text.strip().split("\n")) + "\n"

    return bool(test_input.strip()) and lines(test_input) in lines(statement)


def call_stands_in(arguments: Sequence[Any], function: str, statement: str) -> bool:
    """True if the statement shows a call: `function(1, [2])`, or `Input: k = 1, numbers = [2]`."""
    text = _compact(statement)
    values = [_compact(json.dumps(value, ensure_ascii=False)) for value in arguments]
    if not values or sum(map(len, values)) > len(text):
        return False
    if f"{function}({','.join(values)})" in text:
        return True
    named = r"[,;]?\w+=".join(map(re.escape, values))
    return re.search(rf"Input:?\w+={named}[,;]?(?:Output|$)", text) is not None


def _compact(text: str) -> str:
    return re.sub(r"\s+", "", text.replace("'", '"'))


def apps_options(options: Mapping[str, str]) -> None:
    _check_choice(options, "difficulty", ("introductory", "interview", "competition"))


def _check_choice(options: Mapping[str, str], option: str, known: Sequence[str]) -> None:
    for value in options[option].split("+") if option in options else ():
        if value not in known:
            raise ValueError(f"{option}={value!r}; choose of {', '.join(known)}, several joined by '+'")


def apps_select(row: Row, options: Mapping[str, str]) -> bool:
    return "difficulty" not in options or row.text("difficulty") in options["difficulty"].split("+")


def apps_solutions(row: Row) -> list[str]:
    packed = row.optional_text("solutions")
    programs = _json(row, "solutions", packed) if packed.strip() else []
    if not isinstance(programs, list):
        raise row.error("solutions", f"holds {type(programs).__name__}, it must be a list")
    return [row.as_text("solutions", program) for program in programs]


# CodeContests


def code_contests(row: Row) -> Pair:
    """CodeContests: hidden are private and generated tests. The test split is a benchmark.

    44 of the 165 test rows have no private test; they stay in the benchmark, which then judges on the others.
    """
    if row.optional_text("input_file") or row.optional_text("output_file"):
        raise Dropped("reads or writes a file")
    public, private, generated = (_group(row, field) for field in ("public_tests", "private_tests", "generated_tests"))
    limit = row.values.get("time_limit")
    if limit is not None and not isinstance(limit, dict):
        raise row.error("time_limit", f"is {type(limit).__name__}, it must be an object of seconds and nanos, or null")
    parts = [row.number_of("time_limit", (limit or {}).get(part)) for part in ("seconds", "nanos")]
    seconds = parts[0] + parts[1] / 1e9
    memory_mb = int(row.number_of("memory_limit_bytes", row.values.get("memory_limit_bytes"))) >> 20
    metadata = row.plain("source", "difficulty", "cf_rating")
    return _pair(
        row, f"code_contests/{row.text('name')}", row.text("description"), public, private + generated, metadata,
        benchmark=row.split == "test", time_limit_s=seconds or TIME_LIMIT_S,
        memory_mb=memory_mb or MEMORY_MB,
    )  # fmt: skip


def _group(row: Row, field: str) -> Tests:
    """A column of tests: an object of two lists, or a list of objects."""
    group = row.values.get(field)
    if group is None:
        return []
    if isinstance(group, list) and all(isinstance(test, dict) for test in group):
        group = {key: [test.get(key) for test in group] for key in ("input", "output")}
    if not isinstance(group, dict):
        raise row.error(field, f"is {type(group).__name__}, it must be an object of two lists")
    return _stdin_tests(row, field, group.get("input"), group.get("output"))


def code_contests_solutions(row: Row) -> list[str]:
    """The programs in Python 3."""
    group = row.values.get("solutions") or {}
    if not isinstance(group, dict):
        raise row.error("solutions", f"is {type(group).__name__}, it must be an object of two lists")
    programs = _paired(row, "solutions", group.get("language", []), group.get("solution", []))
    return [row.as_text("solutions", program) for language, program in programs if language == PYTHON_3]


# LiveCodeBench


def livecodebench(row: Row) -> Pair:
    """LiveCodeBench, a benchmark: judged on public and private tests. Read in the hub's form and in rllm's.

    rllm's file joins the private tests of one problem to every row. Those of the wrong kind for a row are left out here
    (`metadata["foreign_tests"]` counts them), the others by `livecodebench_review`.
    """
    starter = row.optional_text("starter_code")
    function = _livecodebench_function(row, starter)
    metadata = row.plain("platform", "difficulty", "contest_date", "contest_id", "question_title")
    if row.has("tests"):
        prompt = row.text("problem")
        tests = _livecodebench_tests(row, "tests", row.values["tests"], function)
        kind = "call" if function else "stdin"
        own = [test for test in tests if test["kind"] == kind]
        metadata["foreign_tests"] = len(tests) - len(own)
        public = [test for test in own if _is_shown(test, prompt)][:PUBLIC_TESTS]
        private = [test for test in own if test not in public]
    else:
        prompt = row.text("question_content")
        public, private = (
            _livecodebench_tests(row, field, _decoded(row, field), function)
            for field in ("public_test_cases", "private_test_cases")
        )
        kinds = {test["kind"] for test in public + private}
        if len(kinds) > 1:
            raise row.error("private_test_cases", "the tests are of two kinds, stdin and functional")
        kind = kinds.pop() if kinds else ""
        if kind == "call" and not function:
            raise row.error("metadata", "names no function, nor does the starter code, but the tests are calls")
    if kind == "call":
        prompt += ask_for(function, starter, container=_container(starter))
    return _pair(
        row, f"livecodebench/{row.ident('question_id')}", prompt, public, private, metadata, benchmark=True,
        time_limit_s=LIVECODEBENCH_TIME_LIMIT_S,
    )  # fmt: skip


def _livecodebench_function(row: Row, starter: str) -> str:
    metadata = row.values.get("metadata")
    if isinstance(metadata, str):
        metadata = _json(row, "metadata", metadata) if metadata.strip() else None
    if metadata is not None and not isinstance(metadata, dict):
        raise row.error("metadata", f"holds {type(metadata).__name__}, it must be an object")
    if name := (metadata or {}).get("func_name"):
        return _function_name(row, "metadata", name)
    found = re.search(r"^\s*def\s+(?!__)(\w+)\s*\(", starter, re.MULTILINE)
    return found.group(1) if found else ""


def _livecodebench_tests(row: Row, field: str, cases: Any, function: str) -> Tests:
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        raise row.error(field, "must be a list of objects with input, output and testtype")
    tests = []
    for case in cases:
        test = {
            "kind": "stdin",
            "input": row.as_text(field, case.get("input")),
            "output": row.as_text(field, case.get("output")),
        }
        if case.get("testtype") == "functional":
            test |= {"kind": "call", "entry_point": function}
        elif case.get("testtype") != "stdin":
            raise row.error(field, f"testtype is {case.get('testtype')!r:.40}, it must be 'stdin' or 'functional'")
        tests.append(test)
    return tests


def _is_shown(test: Mapping[str, Any], statement: str) -> bool:
    if test["kind"] == "stdin":
        return stands_in(test["input"], statement)
    try:
        arguments = [parse_json(line) for line in test["input"].split("\n")]
    except ValueError:
        return False
    return call_stands_in(arguments, test["entry_point"], statement)


def _decoded(row: Row, field: str) -> Any:
    """Tests as JSON text, or as base64 of zlib of a pickled JSON text; a row without the column has none."""
    value = row.values.get(field)
    if value is None or value == "":
        return []
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith(("[", "{")):
        return _json(row, field, value)
    try:
        text = unpickled_text(_inflated(base64.b64decode(value, validate=True)))
    except (ValueError, zlib.error) as problem:
        raise row.error(field, f"is neither JSON nor base64 of zlib of a pickled text: {problem}") from None
    return _json(row, field, text)


class Undecodable(ValueError):
    """Packed tests that hold something else than one text, or too much of it."""


def _inflated(packed: bytes) -> bytes:
    stream = zlib.decompressobj()
    content = stream.decompress(packed, DECODED_BYTES)
    if stream.unconsumed_tail:
        raise Undecodable(f"more than {DECODED_BYTES} bytes after decompression")
    if not stream.eof:
        raise Undecodable("cut short")
    return content


_TEXT_OPCODES = frozenset(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"))
_IDLE_OPCODES = frozenset(("PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP"))


def unpickled_text(pickled: bytes) -> str:
    """The text in a pickle of one text. Nothing is unpickled: any opcode that could build something else is refused.

    Raises:
      Undecodable: the pickle holds something else.
    """
    texts = []
    try:
        for opcode, value, _ in pickletools.genops(io.BytesIO(pickled)):
            if opcode.name in _TEXT_OPCODES:
                texts.append(value)
            elif opcode.name not in _IDLE_OPCODES:
                raise Undecodable(f"the pickle holds the opcode {opcode.name}; only a text is accepted")
    except (ValueError, UnicodeDecodeError, OverflowError) as problem:
        raise problem if isinstance(problem, Undecodable) else Undecodable(f"broken pickle: {problem}") from None
    if len(texts) != 1:
        raise Undecodable(f"the pickle holds {len(texts)} texts, not one")
    return texts[0]


def livecodebench_review(pairs: list[Pair]) -> list[Pair]:
    """Without the private tests of another problem that rllm's file joins to its rows.

    Those are the tests that at least half of its tasks with calls, five or more, have in common.

    A task that loses all its tests is given back without any.
    """
    suspects = {task.id for task, rubric in pairs if _is_rllm_call(task, rubric)}
    held = collections.Counter(
        (_key(test), test["output"]) for task, rubric in pairs if task.id in suspects for test in rubric.tests
    )
    common = {test for test, count in held.items() if count >= 5 and 2 * count >= len(suspects)}
    return [_without(pair, common) if pair[0].id in suspects else pair for pair in pairs]


def _is_rllm_call(task: Task, rubric: Rubric) -> bool:
    return "foreign_tests" in task.metadata and rubric.tests[0]["kind"] == "call"


def _without(pair: Pair, common: set[tuple[str, str]]) -> Pair:
    task, rubric = pair

    def kept(tests: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
        return tuple(test for test in tests if (_key(test), test["output"]) not in common)

    tests, public = kept(rubric.tests), kept(task.public_tests)
    foreign = task.metadata["foreign_tests"] + len(rubric.tests) - len(tests)
    metadata = dict(task.metadata) | {"hidden_tests": len(tests) - len(public), "foreign_tests": foreign}
    return dataclasses.replace(task, public_tests=public, metadata=metadata), dataclasses.replace(rubric, tests=tests)


def livecodebench_options(options: Mapping[str, str]) -> None:
    _releases(options.get("release", "release_v6"))
    _check_choice(options, "platform", ("atcoder", "codeforces", "leetcode"))
    for end in ("from", "to"):
        if end in options and not _is_date(options[end]):
            raise ValueError(f"{end}={options[end]!r} is not a date like 2025-01-31")
    if options.get("from", "") > options.get("to", "9999"):
        raise ValueError(f"from={options['from']} is later than to={options['to']}")


def _is_date(text: str) -> bool:
    """True for the one form of a date that compares as text. (`fromisoformat` alone accepts 20250131 too.)"""
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _releases(release: str) -> range:
    """Numbers of the files of a release, named as the benchmark names them: "v6" is the sixth addition alone,
    "v4_v6" three of them, "release_v6" all six."""
    found = re.fullmatch(r"(?:release_v(?P<all>[1-6])|v(?P<first>[1-6])(?:_v(?P<last>[1-6]))?)", release)
    if not found:
        raise ValueError(f"release={release!r}; v6 is the sixth addition alone, v4_v6 three, release_v6 all six")
    if found["all"]:
        return range(1, int(found["all"]) + 1)
    return range(int(found["first"]), int(found["last"] or found["first"]) + 1)


def livecodebench_file(name: str, options: Mapping[str, str]) -> bool:
    if "release" not in options:
        return True
    found = re.fullmatch(r"test([2-6]?)\.\w+(?:\.gz)?", name)
    if not found:
        raise ValueError(
            f"{name} is not one of test.jsonl to test6.jsonl, its release is unknown; choose by from= and to="
        )
    return int(found.group(1) or 1) in _releases(options["release"])


def livecodebench_select(row: Row, options: Mapping[str, str]) -> bool:
    if "platform" in options and row.text("platform") not in options["platform"].split("+"):
        return False
    if "from" not in options and "to" not in options:
        return True
    day = row.text("contest_date")[:10]
    if not _is_date(day):
        raise row.error("contest_date", f"is {day!r}, it must begin with a date like 2025-01-31")
    return options.get("from", day) <= day <= options.get("to", day)


# HumanEval, MBPP


def humaneval(row: Row) -> Pair:
    """HumanEval, a benchmark: one test, the row's own. Public are the doctest examples of the prompt.

    Some tests call helpers that the prompt defines. They stand in the test, lest a program brings easier ones.
    """
    entry, begin = _function_name(row, "entry_point", row.text("entry_point")), row.text("prompt")
    helpers = _helpers(row, begin, entry)
    source = f"{helpers}\n{row.text('test')}\ncheck({entry})".lstrip()
    test = {"kind": "assert", "input": source, "output": "", "entry_point": entry}
    shown = [] if row.ident("task_id") in CONTRADICTED else examples(begin, entry)
    public = [{"kind": "assert", "input": source, "output": "", "entry_point": entry} for source in shown]
    prompt = "Complete this function." + ask_for(entry, begin)
    return _pair(row, f"humaneval/{row.ident('task_id')}", prompt, public, [test], {}, benchmark=False)


def _helpers(row: Row, begin: str, entry: str) -> str:
    """The functions that stand in a prompt before the one to write, and what they import."""
    body = _tree(row, "prompt", begin).body
    own = [node for node in body if not (isinstance(node, ast.FunctionDef) and node.name == entry)]
    return ast.unparse(ast.Module(own, [])) if any(isinstance(node, ast.FunctionDef) for node in own) else ""


def examples(code: str, function: str) -> list[str]:
    """The doctest examples of a function in its docstring, as assertions: `>>> add(1, 2)` and `3` below it."""
    try:
        definitions = [node for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]
        docstring = next(ast.get_docstring(node) for node in definitions if node.name == function)
        found = doctest.DocTestParser().get_examples(docstring or "")
    except (StopIteration, SyntaxError, ValueError, MemoryError, RecursionError):  # broken code, or no doctest
        return []
    asserts = []
    for example in found:
        source, want = example.source.strip(), example.want.strip()
        try:
            call = ast.parse(source, mode="eval").body
            ast.literal_eval(want)
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            continue
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == function:
            asserts.append(f"assert {source} == {want}")
    return asserts[:PUBLIC_TESTS]


def humaneval_solutions(row: Row) -> list[str]:
    return [row.text("prompt") + row.text("canonical_solution")]


def mbpp(row: Row) -> Pair:
    """MBPP. The first assertion is public, since only it names the function. The test split is a benchmark.

    The columns of the sanitized form are read too. `challenge_test_list` is not part of the official list.
    """
    asserts = row.texts("test_list")
    if not asserts:
        raise Dropped("no tests")
    imports = row.texts("test_imports") if row.has("test_imports") else []
    setup = "\n".join([*imports, row.optional_text("test_setup_code")]).replace("\r\n", "\n").strip()
    entry = _tested_function(row, asserts, setup)
    tests = [
        {"kind": "assert", "input": f"{setup}\n{test}".strip(), "output": "", "entry_point": entry} for test in asserts
    ]
    prompt = f"{row.text('text', 'prompt').strip()}{ask_for(entry)} It must pass:\n```python\n{tests[0]['input']}\n```"
    task_id = f"mbpp/{row.ident('task_id')}"
    return _pair(row, task_id, prompt, tests[:1], tests[1:], {}, benchmark=row.split == "test")


def _tested_function(row: Row, asserts: Sequence[str], setup: str) -> str:
    """The function that all assertions call; if they share several, the first that the reference program defines.

    It may have the name of a builtin (`sum` of row 126), but then only the reference program tells.
    """
    called = [_called(row, "test_list", test) for test in asserts]
    own = {node.name for node in ast.walk(_tree(row, "test_setup_code", setup)) if isinstance(node, _DEFINITIONS)}
    shared = [name for name in called[0] if all(name in names for names in called) and name not in own]
    program = row.optional_text("code")
    defined = [name for name in shared if re.search(rf"^\s*def\s+{name}\b", program, re.MULTILINE)]
    candidates = defined or [name for name in shared if not hasattr(builtins, name)]
    if not candidates:
        raise row.error("test_list", "the assertions call no function in common")
    return candidates[0]


_DEFINITIONS = ast.FunctionDef | ast.ClassDef


def _called(row: Row, field: str, source: str) -> list[str]:
    """Names of the functions that a piece of code calls, in order."""
    nodes = ast.walk(_tree(row, field, source))
    return [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]


def _tree(row: Row, field: str, source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as problem:
        raise row.error(field, f"is not Python: {problem}") from None


def mbpp_split(row: Row) -> str:
    """MBPP is published as one file; the ids tell the split (its README)."""
    number = row.values.get("task_id")
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 974:
        raise row.error("task_id", f"is {number!r:.40}, it must be an integer from 1 to 974")
    return "prompt" if number <= 10 else "test" if number <= 510 else "validation" if number <= 600 else "train"


def mbpp_solutions(row: Row) -> list[str]:
    return [row.text("code").replace("\r\n", "\n")]
