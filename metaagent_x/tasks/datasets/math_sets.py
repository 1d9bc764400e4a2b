"""From a row of a maths dataset to its task and rubric, with the known oddities of the real rows repaired.

`Rubric.gold` lists answers of which any one is right. Where several values are asked for, they stand in one gold,
separated by ", ", and all of them must be given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from metaagent_x.tasks.datasets.rows import Dropped, Row
from metaagent_x.tasks.math import choice_label, extract_answer, gold_problem, split_choice
from metaagent_x.tasks.task import Rubric, Task

Pair = tuple[Task, Rubric]


def polaris(row: Row) -> Pair:
    """Polaris-53K. About 1 % of the golds are a choice label glued to a value, or a label only: both are repaired."""
    problem, gold = row.text("problem"), row.answer("answer")
    golds = split_choice(gold)
    if len(golds) == 1 and (label := choice_label(gold)):
        if not (choices := shown_choices(problem)):
            raise Dropped("gold is a choice label, the problem shows no choices")
        if label not in choices:
            raise Dropped("gold is a choice label that the problem does not show")
        golds = tuple(filter(None, (choices[label], label)))
    return _pair(f"polaris/{row.number}", problem, golds, row.plain("difficulty"))


_CHOICE = re.compile(
    r"(?:\\(?:textbf|mathrm|mathbf|text|textrm)\s*\{?|\{\\(?:rm|bf)\s*|(?<![A-Za-z]))\s*\(([A-J])\)\s*\\?[ ~]*\}?"
)
_BETWEEN = re.compile(r"\\(?:q?quad|hspace\{[^{}]*\})(?![A-Za-z])|\\\\|\\ |\\newline|\n|~")


def shown_choices(problem: str) -> dict[str, str]:
    """Label -> value of the choices "(A) 6 (B) 7 ..." that a problem ends with; "" where the value cannot be read."""
    marks = list(_CHOICE.finditer(problem))
    start = next((i for i in reversed(range(len(marks))) if marks[i].group(1) == "A"), len(marks))
    choices = {}
    for i, mark in enumerate(marks[start:], start):
        end = marks[i + 1].start() if i + 1 < len(marks) else len(problem)
        value = _BETWEEN.sub(" ", problem[mark.end() : end]).replace("$", " ").strip().rstrip(".,; ")
        sound = value.count("{") == value.count("}") and len(value) <= 60 and gold_problem(value) is None
        choices[mark.group(1)] = value if sound else ""
    return choices if len(choices) >= 2 else {}


def math500(row: Row) -> Pair:
    task_id = f"math500/{row.ident('unique_id')}"
    return _pair(task_id, row.text("problem"), (row.answer("answer"),), row.plain("subject", "level", "difficulty"))


def gsm8k(row: Row) -> Pair:
    """GSM8K: the gold is the number after "####", without the commas of "1,234"."""
    _, mark, gold = row.text("answer").rpartition("####")
    if not mark or not gold.strip():
        raise row.error("answer", "has no '#### number' at its end: a row without an answer")
    return _pair(f"gsm8k/{row.split}/{row.number}", row.text("question"), (gold.strip().replace(",", ""),), {})


def strip_calculator_marks(solution: str) -> str:
    """A GSM8K solution as plain text, without `<<48/2=24>>` (OpenBioLink/ThoughtSource#1)."""
    return re.sub(r"<<[^<>]*>>", "", solution)


def _aime(year: str) -> Callable[[Row], Pair]:
    def convert(row: Row) -> Pair:
        if row.has("answer", "Answer"):
            gold = row.answer("answer", "Answer")
        else:  # one published form gives the answer only inside the solution
            gold = extract_answer(row.text("solution", "Solution"))
            if gold is None:
                raise row.error("answer", "is missing, and the solution has no boxed answer: a row without an answer")
        gold = re.sub(r"\^\{?\\circ\}?$", "", gold.strip().strip("$")).strip()
        if not re.fullmatch(r"[0-9]{1,3}", gold):
            raise row.error("answer", f"is {gold[:40]!r}; answers of the AIME are integers from 0 to 999")
        task_id = f"aime{year}/{row.ident('id', 'ID', 'problem_idx')}"
        return _pair(task_id, row.text("problem", "Problem", "question"), (gold,), {})

    return convert


aime24, aime25 = _aime("24"), _aime("25")


def amc23(row: Row) -> Pair:
    """AMC 12 2023. The answers are floats in every published form, 36.0 for 36."""
    return _pair(f"amc23/{row.ident('id')}", row.text("problem", "question"), (row.answer("answer"),), {})


def olympiadbench(row: Row) -> Pair:
    """OlympiadBench, open-ended, text only.

    `is_multiple_answer` says that all values must be given; without it several entries are forms of one answer. Dollar
    signs inside are dropped (one row has an odd number of them), a context stands before the question, and an answer
    may carry the unit of the `unit` column or not.
    """
    entries = row.texts("final_answer")
    if not entries:
        raise row.error("final_answer", "is an empty list: a row without an answer")
    several = row.flag("is_multiple_answer")
    spaced = several or row.optional_text("answer_type") in ("Tuple", "Interval")
    golds = [_olympiad_gold(entry, spaced) for entry in entries]
    if several:
        golds = [", ".join(golds)]
    if unit := row.optional_text("unit").strip().strip("$").strip():
        shown = r"\%" if unit in ("%", r"\%") else rf"\text{{ {unit}}}" if "^" not in unit else rf"\mathrm{{~{unit}}}"
        golds += [gold + shown for gold in golds]
    context = row.optional_text("context").strip()
    prompt = "\n\n".join(filter(None, (context, row.text("question"))))
    return _pair(f"olympiadbench/{row.ident('id')}", prompt, tuple(golds), row.plain("subfield", "error"))


def _olympiad_gold(entry: str, spaced: bool) -> str:
    """One spelling of an entry. `spaced`: its commas separate values ("100,200" would be read as one number)."""
    gold = re.sub(r"(?<!\\)\$", "", entry).strip().removeprefix(r"\quad").strip().rstrip(".").strip()
    return re.sub(r"\s*,\s*", ", ", gold) if spaced else gold


def _pair(task_id: str, prompt: str, golds: tuple[str, ...], metadata: Mapping[str, Any]) -> Pair:
    for gold in golds:
        if problem := gold_problem(gold):
            raise Dropped(problem)
    return Task(task_id, "math", prompt, metadata=dict(metadata)), Rubric(task_id, "math", gold=golds)
