"""Which tasks are asked, and that none of a benchmark is."""

import pytest

from metaagent_x.distillation.plan import Plan, clean
from metaagent_x.tasks.datasets import DatasetError
from metaagent_x.tasks.task import Rubric, Task

LONG = "A train leaves the old station at noon and meets seven slow carts on the narrow road before it arrives"


def pairs(*prompts, name="a"):
    return [(Task(f"{name}/{i}", "math", p), Rubric(f"{name}/{i}", "math", gold=("1",))) for i, p in enumerate(prompts)]


def always(*_):
    return True


def names(drawn):
    return [name for name, *_ in drawn]


def test_every_task_is_drawn_once_by_shares_and_a_full_dataset_no_more():
    sources = {"a": pairs(*"pqrstu"), "b": pairs(*"vwxyz", name="b")}
    plan = Plan(sources, {"a": 0.75, "b": 0.25}, seed=0)
    first = plan.draw(4, always)
    assert sorted(names(first)) == ["a", "a", "a", "b"]
    rest = plan.draw(99, always)
    ids = [task.id for _, task, _ in (*first, *rest)]
    assert sorted(ids) == sorted({t.id for p in sources.values() for t, _ in p}) and plan.draw(1, always) == []


def test_what_has_no_room_is_passed_over():
    plan = Plan({"a": pairs(*"pqrstu"), "b": pairs(*"vwxyz", name="b")}, {"a": 0.75, "b": 0.25}, seed=0)
    drawn = plan.draw(99, lambda name, task: name == "b" and task.prompt != "x")
    assert sorted(task.prompt for _, task, _ in drawn) == ["v", "w", "y", "z"]


def test_the_order_follows_from_the_seed():
    def order(seed):
        return [task.id for _, task, _ in Plan({"a": pairs(*"pqrstuvw")}, {"a": 1.0}, seed).draw(8, always)]

    assert order(0) == order(0) != order(1)


def test_tasks_that_a_benchmark_asks_are_left_out():
    sources = {"a": pairs("What is $3 + 4$?", f"{LONG}. How late?", "What is 5 + 4?")}
    benchmark = pairs("what is 3+4?", f"{LONG} today. When?", name="bench")
    left, counts = clean(sources, [("bench", benchmark)])
    assert [task.id for task, _ in left["a"]] == ["a/2"] and counts == {("a", "bench"): 2}


def test_a_set_that_is_all_benchmark_is_refused():
    with pytest.raises(DatasetError, match="every task of 'a'"):
        clean({"a": pairs("What is 3 + 4?")}, [("bench", pairs("What is 3 + 4?", name="bench"))])
