"""Generated families: pure, disjoint splits, statements that decide the answer, both forms of solution right."""

import contextlib
import io
import random
import re

import pytest

from metaagent_x.tasks import families
from metaagent_x.tasks.code import extract_code
from metaagent_x.tasks.math import extract_answer


def _run(program: str, stdin: str) -> str:
    """Runs a program of ours in this process."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(program, {"input": lambda: stdin.rstrip("\n")})
    return out.getvalue()


def _draws(kind: str, n: int = 120) -> list[families.Problem]:
    rng = random.Random(11)
    return [families.problem(kind, "train", rng) for _ in range(n)]


@pytest.mark.parametrize("kind", ["math", "code"])
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_same_arguments_give_the_same_distinct_tasks(kind, split):
    tasks = families.generate(kind, split, 60, seed=3)
    assert tasks == families.generate(kind, split, 60, seed=3)
    assert tasks != families.generate(kind, split, 60, seed=4)
    assert len({t.prompt for t, _ in tasks}) == len({t.id for t, _ in tasks}) == 60
    assert all(t.id == r.task_id and t.kind == r.kind == kind for t, r in tasks)


def test_other_random_numbers_of_the_program_change_nothing():
    random.seed(1)
    first = families.generate("code", "dev", 5)
    random.seed(2)
    assert families.generate("code", "dev", 5) == first


@pytest.mark.parametrize("kind", ["math", "code"])
def test_splits_share_no_content(kind):
    content = {
        split: {t.metadata["content"] for seed in (0, 1) for t, _ in families.generate(kind, split, 300, seed)}
        for split in ("train", "dev", "test")
    }
    assert not content["train"] & content["dev"]
    assert not content["train"] & content["test"]
    assert not content["dev"] & content["test"]


def test_order_of_the_digits_does_not_carry_a_set_into_another_split():
    rng = random.Random(0)
    for drawn in _draws("math"):
        digits = list(drawn.digits)
        rng.shuffle(digits)
        other = families.SortProblem(tuple(digits), drawn.high, drawn.middle, drawn.low)
        assert families.split_of(other) == "train"


def test_math_gold_follows_from_the_statement_alone():
    for task, rubric in families.generate("math", "test", 200):
        digits, *items = re.fullmatch(
            r"sort ([\d ]+) ascending, item (\d) - item (\d) \+ item (\d)", task.prompt
        ).groups()
        high, middle, low = (sorted(map(int, digits.split()))[int(i) - 1] for i in items)
        assert rubric.gold == (str(high - middle + low),)
        assert 0 <= high - middle <= 9 and 0 <= high - middle + low <= 9
        assert task.public_tests == () and rubric.tests == ()


def test_code_tests_follow_from_the_statement_alone():
    for task, rubric in families.generate("code", "test", 200):
        pattern = r"read integers, to each (\w+) (\d+), then (\w+) (\d+), print (\w+)"
        one, i, two, j, result = re.fullmatch(pattern, task.prompt).groups()
        for test in (*task.public_tests, *rubric.tests):
            numbers = [int(x) for x in test["input"].split()]
            for name, k in ((one, int(i)), (two, int(j))):
                numbers = [{"add": x + k, "times": x * k}[name] for x in numbers]
            expected = {"sum": [sum(numbers)], "max": [max(numbers)], "min": [min(numbers)], "all": numbers}[result]
            assert [int(x) for x in test["output"].split()] == expected


def test_hidden_tests_are_not_public():
    for task, rubric in families.generate("code", "train", 200):
        assert (len(task.public_tests), len(rubric.tests)) == (families.PUBLIC_TESTS, families.HIDDEN_TESTS)
        assert not {t["input"] for t in task.public_tests} & {t["input"] for t in rubric.tests}
        assert rubric.gold == ()


@pytest.mark.parametrize("form", ["direct", "stepwise"])
def test_both_forms_of_solution_are_right_and_found(form):
    for drawn in _draws("math"):
        assert extract_answer(getattr(drawn, form)) == str(drawn.answer)
    for drawn in _draws("code"):
        program = getattr(drawn, form)
        assert extract_code(program).strip() == program.strip()
        assert _run(program, "4 -7 12\n").split() == drawn.output([4, -7, 12]).split()


def test_forms_differ_and_every_level_occurs():
    math, code = _draws("math"), _draws("code")
    assert {d.level for d in math} == set(families.SORT_SIZES)
    assert {d.level for d in code} == {1, 2}
    assert all(len(d.direct) < len(d.stepwise) for d in [*math, *code])


def test_folding_keeps_the_order_of_the_operations():
    first = families.ListProblem((("add", 3), ("times", 5)), "max")
    second = families.ListProblem((("times", 5), ("add", 3)), "max")
    assert "x*5+15 " in first.direct and "x*5+3 " in second.direct
    assert first.output([2, -1]) == "25" and second.output([2, -1]) == "13"


def test_too_many_tasks_are_refused_with_the_number(monkeypatch):
    monkeypatch.setattr(families, "SORT_SIZES", (3,))
    monkeypatch.setattr(families.random.Random, "sample", lambda self, population, k: sorted(population)[:k])
    with pytest.raises(ValueError, match=r"2 distinct math tasks asked for split '\w+', about 1 exist; ask for fewer"):
        families.generate("math", families.split_of(families.SortProblem((0, 1, 2), 3, 2, 1)), 2)


@pytest.mark.parametrize(("kind", "split"), [("chess", "train"), ("math", "validation")])
def test_unknown_kind_or_split_is_refused(kind, split):
    with pytest.raises(ValueError, match=rf"'{kind}'.*'{split}'; known: math, code; train, dev, test"):
        families.generate(kind, split, 1)
