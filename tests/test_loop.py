"""The stations of a run: topping up, the gate that stops, rehearsed engines."""

import asyncio
import itertools
import types

import pytest

from metaagent_x import config as settings
from metaagent_x import data, loop
from metaagent_x.rollout.engine import EngineFailure
from metaagent_x.rollout.fleet import Attached, Weights
from metaagent_x.rollout.rehearsal import right_answer, wrong_answer
from metaagent_x.rollout.scripted import ScriptedEngine
from metaagent_x.rollout.vllm_engine import VllmEngine
from metaagent_x.run_folder import RunFolder
from metaagent_x.tasks.grader import Grader
from metaagent_x.tasks.mixture import Mixture
from metaagent_x.tasks.task import Rubric, Task

EXECUTOR = frozenset({"executor"})


def pairs(n):
    return [(Task(f"t/{i}", "math", f"compute {i}+0"), Rubric(f"t/{i}", "math", gold=(str(i),))) for i in range(n)]


class Handover:
    """A transfer that is not used (Transfer protocol)."""

    async def write(self, params, version): ...

    async def push(self, client, in_flight): ...

    def close(self): ...


def job(flat_groups, informative):
    """A step of 2 tasks whose rewards differ within the group only for the tasks in `informative`."""
    c = settings.base()
    c.rollout.prompts, c.batch, c.designs, c.executions = "tiny", 2, 2, 2
    c.learner.flat_groups = flat_groups
    turn = itertools.count()

    def answer(request):
        number = request.messages[0].split()[1].split("+")[0]
        wrong = int(number) in informative and next(turn) % 2
        return f"\\boxed{{{'x' if wrong else number}}}"

    engines = {"designer": ScriptedEngine(lambda r: "answer = solver()(task)"), "executor": ScriptedEngine(answer)}
    pools = data.Pools(Mixture({"m": pairs(20)}, {"m": 1.0}, 2, 0), [], [])
    grader = Grader(format_bonus=0.0)
    try:
        return asyncio.run(loop.gather(c, pools, engines, grader, 0, 0, EXECUTOR))
    finally:
        grader.close()


def test_flat_groups_are_kept_by_default():
    trees, draws = job("keep", informative=())
    assert (len(trees), draws) == (2, 1)


def test_topping_up_draws_further_tasks_until_enough_carry_a_signal_and_at_most_three_times():
    trees, draws = job("top_up", informative=())
    assert draws == 1 + loop.MAX_TOP_UPS and len(trees) == 2 * draws
    assert [t.question for t in trees] == list(range(len(trees)))
    assert len({t.task.id for t in trees}) == len(trees)
    trees, draws = job("top_up", informative=range(20))
    assert (len(trees), draws) == (2, 1)


@pytest.mark.parametrize("enforce", [True, False])
def test_the_gate_stops_a_policy_that_has_nothing_to_learn_unless_told_not_to(tmp_path, monkeypatch, enforce):
    async def perfect(*args, **kwargs):
        return {"accuracy/math": 1.0, "accuracy/code": 1.0, "valid": 1.0, "tasks": 8, "void": 0}

    async def same(*args, **kwargs):
        return {"single": {"math": 1.0, "code": 1.0}, "ensemble": {"math": 1.0, "code": 1.0}}

    monkeypatch.setattr(loop.measure, "evaluate", perfect)
    monkeypatch.setattr(loop.measure, "structure_table", same)
    c = settings.base()
    c.gate.enforce = enforce
    folder = RunFolder(tmp_path / "run", c)
    pools = types.SimpleNamespace(dev=[])
    if enforce:
        with pytest.raises(loop.Stopped, match=r"above 0\.70"):
            asyncio.run(loop.gate(c, pools, {}, None, folder))
    else:
        asyncio.run(loop.gate(c, pools, {}, None, folder))
    assert '"passed": false' in (tmp_path / "run" / "gate.json").read_text()


@pytest.mark.parametrize("tasks", [0, 3])
def test_what_lost_servers_did_not_answer_is_not_recorded_as_an_evaluation(tmp_path, monkeypatch, tasks):
    """The run would go on from "accuracy 0.000", and a resumed one would take it for known."""

    async def outage(*args, **kwargs):
        return {"accuracy": 0.0, "accuracy/math": 0.0, "accuracy/code": 0.0, "valid": 0.0, "tasks": tasks, "void": 5}

    monkeypatch.setattr(loop.measure, "evaluate", outage)
    engine = VllmEngine([Attached("http://a:1")], Handover(), {"max_model_len": 9, "vocab_size": 9},
                        Weights({}, 0))  # fmt: skip
    engines = {"designer": engine, "executor": engine.playing({}, 0)}
    if tasks:
        engine._fleet.seats[0].lost = "gone"
    folder = RunFolder(tmp_path / "run", settings.base())
    with pytest.raises(EngineFailure, match="gone" if tasks else "none of 5 tasks"):
        asyncio.run(loop.evaluate(settings.base(), [], engines, None, folder, "final", 3))
    assert folder.evaluations() == []


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_pools_interleave_the_kinds_so_that_any_head_is_balanced(split):
    from configs import smoke

    pools = data.open_pools(smoke.get_config())
    tasks = pools.train.batch_at(0) if split == "train" else getattr(pools, split)
    for size in (2, len(tasks)):
        assert sum(t.kind == "math" for t, _ in tasks[:size]) == size // 2


async def test_rehearsed_answers_are_graded_right_and_wrong():
    stdin = [{"kind": "stdin", "input": i, "output": o} for i, o in (("1 2\n", "3\n"), ("5", "{'7\U0001f600'}"))]
    call = [
        {"kind": "call", "entry_point": "f", "input": i, "output": o}
        for i, o in (([1, "a"], [[None]]), ('2\n"b"', "true"))
    ]
    rubrics = [Rubric("m", "math", gold=("\\frac{1}{2}",))]
    rubrics += [Rubric(name, "code", tests=tuple(tests)) for name, tests in (("stdin", stdin), ("call", call))]
    grader = Grader()
    try:
        for rubric in rubrics:
            assert (await grader.grade(rubric, right_answer(rubric))).correct
            assert not (await grader.grade(rubric, wrong_answer(rubric))).correct
    finally:
        grader.close()


def test_a_rehearsal_says_what_it_has_no_answer_to():
    test = {"kind": "assert", "input": "assert f() == 1", "output": "", "entry_point": "f"}
    with pytest.raises(ValueError, match="no answer to tests of kind 'assert'"):
        right_answer(Rubric("mbpp/1", "code", tests=(test,)))


@pytest.mark.parametrize(("best", "saved"), [(False, {10, 20, 24}), (True, {8, 10, 16, 20, 24})])
@pytest.mark.parametrize("limits", [(24, 0), (100, 2400)])
def test_checkpoints_are_due_regularly_at_the_end_and_where_the_best_is_chosen(best, saved, limits):
    """100 tokens a step: 24 steps sample 2,400."""
    c = settings.base()
    c.stage_length, c.checkpoint.every, c.checkpoint.best = 8, 10, best
    c.steps, c.tokens = limits
    assert {step for step in range(1, 25) if loop.is_saved(c, step, 100 * step)} == saved


@pytest.mark.parametrize("schedule", settings.CHOICES["schedule"])
def test_the_policy_is_measured_after_the_same_steps_under_every_schedule(schedule):
    c = settings.base()
    c.stage_length, c.schedule = 3, schedule
    assert [step for step in range(10) if loop.begins_stage(c, step)] == [3, 6, 9]


def test_a_run_is_over_with_the_step_in_which_its_tokens_were_sampled():
    c = settings.base()
    c.steps, c.tokens = 5, 131
    assert [loop.is_over(c, 2, tokens) for tokens in (130, 131, 132)] == [False, True, True]
    c.tokens = 0
    assert [loop.is_over(c, step, 10**9) for step in (4, 5)] == [False, True]
