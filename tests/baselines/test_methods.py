"""Methods on a scripted engine: which calls they make, what they keep, and what is counted against them."""

import pytest

from metaagent_x import config
from metaagent_x.baselines import majority, registry
from metaagent_x.baselines.method import Means, MethodError
from metaagent_x.mas.records import Call, Execution
from metaagent_x.rollout.chat import Chat
from metaagent_x.rollout.collect import judge
from metaagent_x.rollout.engine import Completion, EngineFailure
from metaagent_x.rollout.scripted import ScriptedEngine
from metaagent_x.tasks.task import Task

TASK = Task("t/0", "math", "What is 1 + 3?")
FOUR, FIVE = "\\boxed{4}", "\\boxed{5}"  # 9 bytes and the stop id: 10 tokens
DESIGN = "Two solvers.\n```python\nanswer = vote(together([solver(), solver('backward')], task))\n```"


def means(reply, temperature=1.0, **more):
    c = config.base("evaluate")
    c.rollout.max_prompt_tokens = 8192
    c.rollout.temperature = temperature
    engine = ScriptedEngine(reply)
    return Means({"designer": engine, "executor": engine}, c, **more), engine


def in_turn(*texts):
    rest = list(texts)
    return lambda request: rest.pop(0)


async def test_single_is_one_call_of_the_plain_solver_through_the_runtime():
    given, engine = means(lambda request: FOUR)
    execution = await registry.make("single", given).solve(TASK)
    assert (execution.answer, execution.status, execution.structure) == (FOUR, "ok", "single")
    assert len(execution.calls) == 1 and execution.designer is None
    assert execution.script == "answer = solver()(task)"
    assert engine.requests[0].messages == (TASK.prompt,)


async def test_samples_of_a_task_have_seeds_of_their_own_and_the_same_ones_again():
    given, engine = means(lambda request: FOUR)
    single = registry.make("single", given)
    for sample in (0, 1, 0):
        await single.solve(TASK, sample)
    assert engine.seeds[0] != engine.seeds[1] and engine.seeds[0] == engine.seeds[2]


async def test_a_vote_is_won_by_the_most_frequent_answer_of_so_many_samples():
    given, engine = means(lambda request: FIVE if request.path.startswith("1") or "0.1" in request.path else FOUR)
    execution = await registry.make("single_majority:members=3", given).solve(TASK)
    assert len(execution.calls) == 3 and execution.structure == "ensemble"
    said = [call.text for call in execution.calls]
    assert execution.answer == max(said, key=said.count)
    assert len(set(engine.seeds)) == 3
    assert len((await registry.make("single_majority", given).solve(TASK)).calls) == given.members == 5


@pytest.mark.parametrize(("asked", "votes_at"), [(0.0, 0.7), (1.0, 1.0)])
async def test_votes_are_never_over_copies(asked, votes_at):
    given, engine = means(lambda request: FOUR, asked)
    await registry.make("single_majority:members=2", given).solve(TASK)
    assert [s.temperature for s in engine.samplings] == [votes_at] * 2
    await registry.make("single", given).solve(TASK)
    assert engine.samplings[-1].temperature == asked


@pytest.mark.parametrize(("tokens", "calls"), [(1, 1), (10, 1), (11, 2), (25, 3), (30, 3), (31, 4)])
@pytest.mark.parametrize("gives_ids", [True, False])
async def test_a_matched_vote_draws_while_it_has_sampled_less_than_the_other_method(tokens, calls, gives_ids):
    """Each reply is 10 tokens: after c of them 10 c are sampled, and another is begun while that is below the budget.
    An endpoint that gives no ids is counted by its text."""
    text_only = Completion((), (), "stop", 0, text=FOUR)
    given, engine = means(
        lambda request: FOUR if gives_ids else text_only,
        spent=lambda method, task, sample: {("metaagent_x", "t/0", 2): tokens}.get((method, task, sample)),
    )  # fmt: skip
    method = registry.make("single_majority:like=metaagent_x", given)
    assert method.needs == "metaagent_x"
    execution = await method.solve(TASK, 2)
    assert len(execution.calls) == calls == len(engine.requests)
    assert sum(call.sampled for call in execution.calls) == 10 * calls
    assert execution.answer == FOUR and execution.verdict is None
    void = await method.solve(TASK, 0)
    assert void.void and "metaagent_x has no result" in void.reason and len(engine.requests) == calls


async def test_a_matched_vote_counts_all_samples_before_the_budget_ended():
    given, _ = means(in_turn(FIVE, FOUR, FOUR), spent=lambda *_: 25)
    assert (await registry.make("single_majority:like=metaagent_x", given).solve(TASK)).answer == FOUR


async def test_a_matched_vote_shows_its_members_as_branches_and_is_void_if_one_of_them_is():
    given, engine = means(in_turn(FIVE, FOUR, FOUR), spent=lambda *_: 25)
    execution = await registry.make("single_majority:like=metaagent_x", given).solve(TASK)
    assert [call.path for call in execution.calls] == ["0.0", "1.0", "2.0"] and execution.structure == "ensemble"
    assert [link for link in execution.links if link[2] == "vote"] == [(f"{i}.0", "1.0", "vote") for i in range(3)]
    assert len(set(engine.seeds)) == 3

    rest = [FOUR]

    def once(request):
        if not rest:
            raise EngineFailure("away")
        return rest.pop()

    given, engine = means(once, spent=lambda *_: 100)
    execution = await registry.make("single_majority:like=metaagent_x", given).solve(TASK)
    assert execution.void and "away" in execution.reason and len(engine.requests) == 2


def test_a_member_without_calls_does_not_make_a_won_vote_wrong():
    def member(answer, *flags, calls=True):
        said = Call("0", "solver", "", (), (), (), "stop", 0, answer, messages=("q",))
        return Execution(answer=answer, calls=[said] if calls else [], flags=set(flags))

    silent = member("", "no_calls", "answer_unset", calls=False)
    assert majority.voted(TASK, [member(FOUR), silent]).flags == {"answer_unset"}
    assert "no_calls" in majority.voted(TASK, [silent, silent]).flags
    own = member(FIVE, "answer_not_from_agents")
    assert not majority.voted(TASK, [member(FOUR), own, member(FOUR)]).flags
    assert majority.voted(TASK, [own, member(FOUR), own]).flags == {"answer_not_from_agents"}


async def test_a_matched_vote_takes_no_more_samples_than_there_may_be(monkeypatch):
    monkeypatch.setattr(majority, "MOST", 3)
    given, engine = means(lambda request: FOUR, spent=lambda *_: 10_000)
    method = registry.make("single_majority:like=metaagent_x", given)
    assert len((await method.solve(TASK)).calls) == len((await method.solve(TASK, 1)).calls) == 3
    assert len(set(engine.seeds)) == 6  # no sample of one vote is one of another


async def test_the_designers_completion_and_script_are_kept_with_the_execution():
    given, engine = means(lambda request: DESIGN if request.agent == "designer" else FOUR)
    execution = await registry.make("metaagent_x", given).solve(TASK)
    assert execution.designer is not None and execution.designer.text == DESIGN
    assert execution.script.startswith("answer = vote(") and len(execution.calls) == 2
    assert execution.answer == FOUR and len(engine.requests) == 3


class Nobody:
    async def grade(self, rubric, text):
        raise AssertionError("there is nothing to grade")


async def test_a_design_that_cannot_be_run_is_invalid_and_wrong_and_its_completion_counts():
    given, _ = means(lambda request: "I would ask several experts.")
    execution = await registry.make("metaagent_x", given).solve(TASK)
    assert (execution.status, execution.structure, execution.reason) == ("invalid", "invalid", "no_script")
    assert execution.designer is not None and not execution.calls and not execution.void
    verdict = await judge(Nobody(), None, execution)
    assert (verdict.correct, verdict.reason, verdict.void) == (False, "invalid", False)


async def test_what_an_engine_spoils_is_void_and_a_defect_is_raised():
    def away(request):
        raise EngineFailure("away")

    given, _ = means(away)
    for name in ("metaagent_x", "single", "single_majority"):
        assert (await registry.make(name, given).solve(TASK)).void
    given.check()

    def broken(request):
        raise ZeroDivisionError("a defect")

    given, _ = means(broken)
    assert (await registry.make("metaagent_x", given).solve(TASK)).void
    with pytest.raises(ZeroDivisionError, match="a defect"):
        given.check()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("aflow", "no method 'aflow'; there are metaagent_x, single, single_majority"),
        ("single:members=3", "'members=3' is not an option; single takes no options"),
        ("single_majority:votes=3", "single_majority takes members=..., like=..."),
        ("single_majority:members=1", "a vote takes 2 to 64 samples"),
        ("single_majority:members=x", "a vote takes 2 to 64 samples"),
        ("single_majority:members=3,like=single", "not both"),
        ("single_majority:members", "'members' is not an option"),
    ],
)
def test_a_method_that_does_not_exist_is_refused_with_what_there_is(spec, words):
    with pytest.raises(MethodError, match=words.replace("(", "\\(")):
        registry.make(spec, means(lambda request: FOUR)[0])


async def test_all_methods_write_to_a_solver_in_the_same_words():
    """A comparison is of systems, not of prompts."""
    given, engine = means(lambda request: DESIGN if request.agent == "designer" else FOUR)
    for name in ("metaagent_x", "single", "single_majority:members=2"):
        await registry.make(name, given).solve(TASK)
    plain = [r for r in engine.requests if r.agent == "solver" and "How to work" not in r.role_prompt]
    assert len(plain) == 4 and len({(r.role_prompt, r.messages) for r in plain}) == 1
    lengths = {(s.max_tokens, s.temperature, s.top_p, s.top_k) for s in engine.samplings}
    assert lengths == {(8192, 1.0, 1.0, -1)} and Chat().stop_ids == engine.samplings[0].stop_ids
