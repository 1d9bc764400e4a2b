"""The mixture: exact shares, epochs, and resuming from nothing but the step."""

import collections
import dataclasses
import random

import pytest

from metaagent_x.tasks.datasets import DatasetError
from metaagent_x.tasks.mixture import Mixture, fingerprint
from metaagent_x.tasks.task import Rubric, Task


def source(name, size, kind="math"):
    ids = [f"{name}/{i}" for i in range(size)]
    return [(Task(i, kind, f"question {i}"), Rubric(i, kind, gold=(f"gold {i}",))) for i in ids]


def ids_at(mixture, *steps):
    return [task.id for step in steps for task, _ in mixture.batch_at(step)]


@pytest.mark.fault("F149")
def test_each_epoch_is_shuffled_anew_and_the_shares_are_exact():
    """NVIDIA-NeMo/RL#239: the same order every epoch, or the same subset when sources were mixed."""
    make = lambda: Mixture({"math": source("m", 8), "code": source("c", 8)}, {"math": 0.5, "code": 0.5}, 4, seed=3)  # noqa: E731
    mixture = make()
    epochs = [ids_at(mixture, *range(4 * e, 4 * e + 4)) for e in range(2)]
    for ids in epochs:
        assert len(set(ids)) == 16
        assert all(sum(i.startswith("m/") for i in ids[b : b + 4]) == 2 for b in range(0, 16, 4))
    assert len({tuple(ids) for ids in epochs}) == 2
    assert epochs == [ids_at(make(), *range(4 * e, 4 * e + 4)) for e in range(2)]


@pytest.mark.fault("F149")
@pytest.mark.parametrize(("size", "count"), [(7, 2), (5, 3), (4, 4), (3, 2), (6, 5), (9, 3), (13, 4), (16, 5)])
def test_no_task_twice_in_an_epoch_or_a_batch(size, count):
    """Also where an epoch ends inside a batch."""
    mixture = Mixture({"a": source("a", size)}, {"a": 1.0}, count, seed=size)
    batches = [ids_at(mixture, step) for step in range(3 * size // count + 1)]
    assert all(len(set(batch)) == count for batch in batches)
    stream = [i for batch in batches for i in batch]
    for start in range(0, len(stream) - size + 1, size):
        assert len(set(stream[start : start + size])) == size


@pytest.mark.fault("F106")
@pytest.mark.parametrize(("size", "count"), [(4, 2), (7, 3), (20, 4)])
def test_any_step_can_be_asked_first(size, count):
    """verl-project/verl#5725, #7401: a run resumed at the end of an epoch did nothing. Asked in any order, anew."""
    whole = Mixture({"a": source("a", size)}, {"a": 1.0}, count, seed=1)
    steps = list(range(2 * size))
    straight = {step: ids_at(whole, step) for step in steps}
    random.Random(0).shuffle(steps)
    for step in steps[:4]:
        assert ids_at(Mixture({"a": source("a", size)}, {"a": 1.0}, count, seed=1), step) == straight[step]


@pytest.mark.fault("F147")
def test_tasks_and_rubrics_stay_together():
    """allenai/open-instruct#1484: the index column was out of step after a second shuffle."""
    mixture = Mixture({"a": source("a", 9), "b": source("b", 5)}, {"a": 0.5, "b": 0.5}, 4, seed=0)
    for step in range(20):
        for task, rubric in mixture.batch_at(step):
            assert task.id == rubric.task_id and rubric.gold == (f"gold {task.id}",)


def test_seeds_and_sources_have_orders_of_their_own():
    orders = {seed: ids_at(Mixture({"a": source("a", 20)}, {"a": 1.0}, 4, seed), *range(5)) for seed in (0, 1)}
    assert orders[0] != orders[1]
    both = Mixture({"a": source("a", 20), "b": source("b", 20)}, {"a": 0.5, "b": 0.5}, 8, 0)
    numbers = collections.defaultdict(list)
    for i in ids_at(both, *range(5)):
        numbers[i[0]].append(i[2:])
    assert numbers["a"] != numbers["b"]


@pytest.mark.parametrize(
    ("sizes", "shares", "batch", "message"),
    [
        ({"a": 4, "b": 0}, {"a": 0.5, "b": 0.5}, 4, "source 'b' holds no tasks"),
        ({"a": 4, "b": 4}, {"a": 0.5, "b": 0.5}, 3, r"batch=3 .* multiples of 2 do: 2, 4, 6"),
        ({"a": 4, "b": 4}, {"a": 0.75, "b": 0.25}, 6, r"batch=6 .* multiples of 4 do: 4, 8, 12"),
        ({"a": 4, "b": 4}, {"a": 0.5, "b": 0.4}, 10, "sum to 0.9"),
        ({"a": 4, "b": 4}, {"a": 1.0, "b": 0.0}, 4, "above 0"),
        ({"a": 4}, {"b": 1.0}, 4, r"\['a'\] and shares \['b'\]"),
        ({"a": 3}, {"a": 1.0}, 4, "source 'a' holds 3 tasks; every batch needs 4"),
        ({"a": 3}, {"a": 1.0}, 0, "batch=0"),
    ],
)
def test_mixtures_that_cannot_work_are_refused(sizes, shares, batch, message):
    sources = {name: source(name, size) for name, size in sizes.items()}
    with pytest.raises(DatasetError, match=message):
        Mixture(sources, shares, batch, seed=0)


@pytest.mark.parametrize("hosts", [1, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4, 8))])
def test_hosts_share_out_the_batch_of_one_host(hosts):
    """Whatever their number: no task twice, none lost, and so a run may go on with another number of hosts."""

    def make(host, hosts):
        sources = {"math": source("m", 11), "code": source("c", 9, "code")}
        return Mixture(sources, {"math": 0.5, "code": 0.5}, 8, seed=2, host=host, hosts=hosts)

    alone, parts = make(0, 1), [make(host, hosts) for host in range(hosts)]
    for step in range(12):
        ids = [ids_at(part, step) for part in parts]
        assert sorted(i for part in ids for i in part) == sorted(ids_at(alone, step))
        assert len({i for part in ids for i in part}) == 8
        assert max(map(len, ids)) - min(map(len, ids)) <= 1


@pytest.mark.fault("F106")
def test_an_interrupted_run_goes_on_with_the_tasks_of_an_uninterrupted_one():
    """Nothing but the number of draws is kept; also over epochs of unequal length and on another number of hosts."""

    def make(**place):
        sources = {"math": source("m", 13), "code": source("c", 5, "code")}
        return Mixture(sources, {"math": 0.75, "code": 0.25}, 4, seed=7, **place)

    straight = [ids_at(make(), step) for step in range(20)]
    whole = make()
    begun = [ids_at(whole, step) for step in range(9)]
    resumed = [sorted(ids_at(make(host=0, hosts=2), s) + ids_at(make(host=1, hosts=2), s)) for s in range(9, 20)]
    assert begun + resumed == straight[:9] + [sorted(ids) for ids in straight[9:]]


@pytest.mark.parametrize(("host", "hosts", "error"), [(2, 2, ValueError), (-1, 1, ValueError), (0, 5, DatasetError)])
def test_a_place_that_does_not_exist_and_hosts_without_a_task_are_refused(host, hosts, error):
    with pytest.raises(error, match=rf"host={host} |each of {hosts} hosts"):
        Mixture({"a": source("a", 9)}, {"a": 1.0}, 4, seed=0, host=host, hosts=hosts)


def test_the_fingerprint_sees_every_change_of_question_gold_tests_and_order():
    pairs = source("a", 3)
    task, rubric = pairs[0]
    changes = [
        pairs[:2],
        pairs[::-1],
        [(dataclasses.replace(task, prompt="another"), rubric), *pairs[1:]],
        [(dataclasses.replace(task, id="b"), rubric), *pairs[1:]],
        [(task, dataclasses.replace(rubric, gold=("another",))), *pairs[1:]],
        [(task, dataclasses.replace(rubric, tests=({"kind": "stdin"},))), *pairs[1:]],
        [(task, dataclasses.replace(rubric, tests=({"kind": "call"},))), *pairs[1:]],
        [(dataclasses.replace(task, public_tests=({"kind": "stdin"},)), rubric), *pairs[1:]],
        [(task, dataclasses.replace(rubric, time_limit_s=1.0)), *pairs[1:]],
    ]
    assert fingerprint(source("a", 3)) == fingerprint(pairs)
    assert len({fingerprint(p) for p in [pairs, *changes]}) == 1 + len(changes)


def test_ids_must_be_unique_over_all_sources():
    with pytest.raises(DatasetError, match="'x/0' occurs twice, in 'a' and in 'b'"):
        Mixture({"a": source("x", 2), "b": source("x", 2)}, {"a": 0.5, "b": 0.5}, 2, seed=0)
    with pytest.raises(ValueError, match="step=-1"):
        Mixture({"a": source("a", 2)}, {"a": 1.0}, 2, seed=0).batch_at(-1)
