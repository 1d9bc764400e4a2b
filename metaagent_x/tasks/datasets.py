"""The datasets: from rows of local files to pairs of a `Task` and its `Rubric`.

Each dataset is one function from a row to a pair. A row that no grader could judge is dropped and counted; a row that
breaks the dataset's own form is an error that names the file, the line and the field. The known oddities of the real
rows are repaired where they are read: choice labels glued to values (Polaris), "#### 1,234" (GSM8K), integer and
zero-padded answers (AIME), tests as JSON text (APPS), time limits that may be null (CodeContests).
"""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from metaagent_x.tasks.math import extract_answer, gold_problem, split_choice
from metaagent_x.tasks.task import Rubric, Task

Pairs = list[tuple[Task, Rubric]]

PUBLIC_TESTS = 2  # of APPS, at most; the others of the statement stay hidden
DEFAULT_TIME_LIMIT_S = 4.0
DEFAULT_MEMORY_MB = 512


class DatasetError(ValueError):
    """A dataset that cannot be used as asked. The message names the dataset, the file, the line and the field."""


class Dropped(Exception):
    """A sound row that cannot be graded; the argument is the reason under which it is counted."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One row and where it stands.

    Attributes:
      place: "polaris: /data/train.jsonl line 17", for messages.
      number: position among all rows read, from 0; part of the task id where rows have no id of their own.
    """

    place: str
    number: int
    values: Mapping[str, Any]

    def error(self, field: str, problem: str) -> DatasetError:
        return DatasetError(f"{self.place}: field {field!r}: {problem}")

    def text(self, *fields: str) -> str:
        """The first of the fields that is there, which must be a non-empty string."""
        for field in fields:
            if field in self.values:
                value = self.values[field]
                if not isinstance(value, str):
                    raise self.error(field, f"is {type(value).__name__}, it must be text")
                if not value.strip():
                    raise self.error(field, "is empty")
                return value
        raise self.error(fields[0], f"is missing; the row has {', '.join(sorted(self.values)) or 'no fields'}")

    def answer(self, *fields: str) -> str:
        """The first of the fields that is there, as text; integers are accepted.

        Raises:
          DatasetError: "a row without an answer".
        """
        for field in fields:
            value = self.values.get(field)
            if value is None or (isinstance(value, str) and not value.strip()):
                continue
            if isinstance(value, bool) or not isinstance(value, str | int):
                raise self.error(field, f"is {type(value).__name__}, it must be text or an integer")
            return str(value).strip()
        raise self.error(fields[0], "is missing or empty: a row without an answer")


def _math_pair(task_id: str, prompt: str, gold: str, metadata: Mapping[str, Any]) -> tuple[Task, Rubric]:
    if problem := gold_problem(gold):
        raise Dropped(problem)
    return Task(task_id, "math", prompt, metadata=dict(metadata)), Rubric(task_id, "math", gold=split_choice(gold))


def _polaris(row: Row) -> tuple[Task, Rubric]:
    metadata = {"difficulty": row.values.get("difficulty", "")}
    return _math_pair(f"polaris/{row.number}", row.text("problem"), row.answer("answer"), metadata)


def _math500(row: Row) -> tuple[Task, Rubric]:
    metadata = {key: row.values[key] for key in ("subject", "level", "difficulty") if key in row.values}
    name = row.values.get("unique_id", row.number)
    return _math_pair(f"math500/{name}", row.text("problem"), row.answer("answer"), metadata)


def _gsm8k(row: Row) -> tuple[Task, Rubric]:
    solution = row.text("answer")
    _, mark, gold = solution.rpartition("####")
    if not mark or not gold.strip():
        raise row.error("answer", "has no '#### number' at its end: a row without an answer")
    return _math_pair(f"gsm8k/{row.number}", row.text("question"), gold.strip().replace(",", ""), {})


def strip_calculator_marks(solution: str) -> str:
    """A GSM8K solution as plain text, without `<<48/2=24>>` (OpenBioLink/ThoughtSource#1)."""
    return re.sub(r"<<[^<>]*>>", "", solution)


def _aime(year: str) -> Callable[[Row], tuple[Task, Rubric]]:
    def convert(row: Row) -> tuple[Task, Rubric]:
        if "answer" in row.values or "Answer" in row.values:
            gold = row.answer("answer", "Answer")
        else:  # one published form gives the answer only inside the solution
            gold = extract_answer(row.text("solution", "answer")) or ""
        if not gold:
            raise row.error("answer", "is missing, and the solution has no boxed answer: a row without an answer")
        name = next((row.values[key] for key in ("id", "ID", "problem_idx") if key in row.values), row.number)
        return _math_pair(f"aime{year}/{name}", row.text("problem", "Problem", "question"), gold, {"source": "AIME"})

    return convert


def _code_pair(
    task_id: str, prompt: str, public: list[dict], hidden: list[dict], metadata: Mapping[str, Any],
    time_limit_s: float = DEFAULT_TIME_LIMIT_S, memory_mb: int = DEFAULT_MEMORY_MB,
) -> tuple[Task, Rubric]:  # fmt: skip
    """Public and hidden tests have no input in common: a hidden test that the statement shows is not hidden."""
    seen = {test["input"].strip() for test in public}
    unique: list[dict] = []
    for test in hidden:
        if test["input"].strip() not in seen:
            seen.add(test["input"].strip())
            unique.append(test)
    if not unique:
        raise Dropped("no hidden tests")
    task = Task(task_id, "code", prompt, public_tests=tuple(public), metadata=dict(metadata))
    return task, Rubric(task_id, "code", tests=tuple(unique), time_limit_s=time_limit_s, memory_mb=memory_mb)


def _tests(row: Row, field: str, inputs: Any, outputs: Any) -> list[dict]:
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise row.error(field, "inputs and outputs must be two lists of equal length")
    return [{"kind": "stdin", "input": _joined(row, field, i), "output": _joined(row, field, o)}
            for i, o in zip(inputs, outputs, strict=True)]  # fmt: skip


def _joined(row: Row, field: str, value: Any) -> str:
    """Some APPS rows hold a text as a list of its lines."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise row.error(field, f"a test is {type(value).__name__}, it must be text")
    return value


def _apps(row: Row) -> tuple[Task, Rubric]:
    name, prompt = row.values.get("problem_id", row.number), row.text("question")
    packed = row.values.get("input_output")
    if not packed:
        raise Dropped("no tests")
    try:
        cases = json.loads(packed) if isinstance(packed, str) else packed
    except json.JSONDecodeError as problem:
        raise row.error("input_output", f"unreadable JSON: {problem}") from None
    if not isinstance(cases, dict):
        raise row.error("input_output", f"holds {type(cases).__name__}, it must be an object")
    if cases.get("fn_name"):
        raise Dropped("tests of kind 'call' are not supported")
    tests = _tests(row, "input_output", cases.get("inputs"), cases.get("outputs"))
    shown = [i for i, test in enumerate(tests) if stands_in(test["input"], prompt)][:PUBLIC_TESTS]
    public, hidden = [tests[i] for i in shown], [test for i, test in enumerate(tests) if i not in shown]
    return _code_pair(f"apps/{name}", prompt, public, hidden, {"difficulty": row.values.get("difficulty", "")})


def stands_in(test_input: str, statement: str) -> bool:
    """True if the statement shows an input: the same whole lines in a row. ("3" inside a sentence is no sample.)"""

    def lines(text: str) -> str:
        return "\n" + "\n".join(line.rstrip() for line in text.strip().split("\n")) + "\n"

    return bool(test_input.strip()) and lines(test_input) in lines(statement)


def _code_contests(row: Row) -> tuple[Task, Rubric]:
    if row.values.get("input_file") or row.values.get("output_file"):
        raise Dropped("reads or writes a file")
    groups = {}
    for field in ("public_tests", "private_tests", "generated_tests"):
        group = row.values.get(field) or {"input": [], "output": []}
        if not isinstance(group, dict):
            raise row.error(field, f"is {type(group).__name__}, it must be an object of two lists")
        groups[field] = _tests(row, field, group.get("input"), group.get("output"))
    limit = row.values.get("time_limit") or {}
    seconds = (limit.get("seconds") or 0) + (limit.get("nanos") or 0) / 1e9
    memory_mb = int(row.values.get("memory_limit_bytes") or 0) >> 20
    metadata = {key: row.values[key] for key in ("source", "difficulty", "cf_rating") if key in row.values}
    return _code_pair(
        f"code_contests/{row.text('name')}", row.text("description"), groups["public_tests"],
        groups["private_tests"] + groups["generated_tests"], metadata, seconds or DEFAULT_TIME_LIMIT_S,
        memory_mb or DEFAULT_MEMORY_MB,
    )  # fmt: skip


DATASETS: dict[str, Callable[[Row], tuple[Task, Rubric]]] = {
    "polaris": _polaris,
    "apps": _apps,
    "code_contests": _code_contests,
    "gsm8k": _gsm8k,
    "math500": _math500,
    "aime24": _aime("24"),
    "aime25": _aime("25"),
}


def load(name: str, path: str | None = None) -> Pairs:
    """All usable tasks of a dataset, in file order. See `load_report`."""
    return load_report(name, path)[0]


def load_report(name: str, path: str | None = None) -> tuple[Pairs, collections.Counter[str]]:
    """Reads a dataset and says what it left out.

    Args:
      name: a key of `DATASETS`.
      path: a `.jsonl` file, a `.json` file with a list, or a folder, of which all such files are read in the order of
        their names (so keep training and test files in different folders).

    Returns:
      The pairs, ids unique; and how many rows were dropped, by reason.

    Raises:
      DatasetError: unknown name, no path, nothing there, an unreadable file, a row that breaks the dataset's form.
    """
    if name not in DATASETS:
        raise DatasetError(f"unknown dataset {name!r}; known: {', '.join(DATASETS)}")
    pairs: Pairs = []
    dropped: collections.Counter[str] = collections.Counter()
    ids: set[str] = set()
    questions: set[str] = set()
    for row in _rows(name, path):
        try:
            task, rubric = DATASETS[name](row)
        except Dropped as reason:
            dropped[str(reason)] += 1
            continue
        if task.id in ids or task.prompt.strip() in questions:
            dropped["duplicate"] += 1
            continue
        ids.add(task.id)
        questions.add(task.prompt.strip())
        pairs.append((task, rubric))
    return pairs, dropped


def _rows(name: str, path: str | None) -> Iterator[Row]:
    number = 0
    for file in _files(name, path):
        for where, values in _json_lines(name, file) if file.suffix == ".jsonl" else _json_list(name, file):
            place = f"{name}: {file} {where}"
            if not isinstance(values, dict):
                raise DatasetError(f"{place}: holds {type(values).__name__}, it must be an object")
            yield Row(place, number, values)
            number += 1


def _files(name: str, path: str | None) -> list[pathlib.Path]:
    if not path:
        raise DatasetError(f"{name}: needs a path, a .jsonl or .json file or a folder of such files; none was given")
    at = pathlib.Path(path).expanduser()
    if at.is_dir():
        files = sorted(file for file in at.iterdir() if file.suffix in (".jsonl", ".json"))
        if not files:
            raise DatasetError(f"{name}: {at} holds no .jsonl or .json file")
        return files
    if not at.exists():
        raise DatasetError(f"{name}: {at} does not exist; looked for a .jsonl or .json file or a folder of such files")
    if at.suffix not in (".jsonl", ".json"):
        raise DatasetError(f"{name}: {at} is a {at.suffix or 'nameless'} file; .jsonl and .json can be read")
    return [at]


def _read(name: str, file: pathlib.Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise DatasetError(f"{name}: {file} cannot be read: {problem}") from None


def _json_lines(name: str, file: pathlib.Path) -> Iterator[tuple[str, Any]]:
    # Not splitlines(): JSON text may hold U+2028, at which that would cut.
    for number, line in enumerate(_read(name, file).split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield f"line {number}", json.loads(line)
        except json.JSONDecodeError as problem:
            raise DatasetError(f"{name}: {file} line {number}: unreadable JSON: {problem}") from None


def _json_list(name: str, file: pathlib.Path) -> Iterator[tuple[str, Any]]:
    try:
        rows = json.loads(_read(name, file))
    except json.JSONDecodeError as problem:
        raise DatasetError(f"{name}: {file} line {problem.lineno}: unreadable JSON: {problem}") from None
    if not isinstance(rows, list):
        raise DatasetError(f"{name}: {file} holds {type(rows).__name__}; a .json file must hold a list of rows")
    yield from ((f"row {number}", values) for number, values in enumerate(rows, 1))
