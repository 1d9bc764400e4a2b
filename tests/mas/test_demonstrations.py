"""Cold-start examples: a pure function of (seed, index), train content only, in exactly the rollout's prompts."""

import asyncio
import itertools
import re

import pytest

from metaagent_x.mas import Call, lint, parse_completion, run_script
from metaagent_x.mas.demonstrations import SHARES, STRUCTURES, STYLE, Example, example, examples
from metaagent_x.mas.prompts import FULL, TINY
from metaagent_x.tasks.code import extract_code
from metaagent_x.tasks.families import ListProblem, SortProblem, generate, split_of
from metaagent_x.tasks.math import extract_answer

MANY = [example(5, i) for i in range(1500)]


def _problem(e: Example) -> SortProblem | ListProblem:
    """The problem that an example's user message opens with."""
    words = re.findall(r"[a-z]+|\d+", e.user.splitlines()[0])
    if words[0] == "sort":
        numbers = [int(w) for w in words if w.isdigit()]
        return SortProblem(tuple(numbers[:-3]), *numbers[-3:])
    one, i, two, j, result = re.search(r"each (\w+) (\d+), then (\w+) (\d+), print (\w+)", e.user).groups()
    return ListProblem(((one, int(i)), (two, int(j))), result)


def _solved(e: Example) -> bool:
    problem = _problem(e)
    if isinstance(problem, SortProblem):
        return extract_answer(e.completion) == str(problem.answer)
    return extract_code(e.completion) is not None and e.completion in (problem.direct, problem.stepwise)


def test_an_example_depends_on_seed_and_index_only():
    assert list(itertools.islice(examples(7), 40)) == [example(7, i) for i in range(40)]
    assert example(7, 31) == example(7, 31)
    assert [example(8, i) for i in range(40)] != [example(7, i) for i in range(40)]


def test_only_train_content_is_shown():
    held_out = {t.prompt for kind in ("math", "code") for s in ("dev", "test") for t, _ in generate(kind, s, 300)}
    for e in MANY:
        assert _problem(e).prompt == e.user.splitlines()[0]
        assert split_of(_problem(e)) == "train"
        assert not any(prompt in e.user for prompt in held_out)


def test_every_structure_is_shown_for_both_kinds_and_is_a_clean_script():
    designs = [e for i in range(6000) if (e := example(1, i)).role == "designer"]
    assert abs(len(designs) / 6000 - SHARES["design"]) < 0.02
    for kind in (SortProblem, ListProblem):
        seen = [e.completion for e in designs if isinstance(_problem(e), kind)]
        assert set(seen) == set(STRUCTURES.values())
        assert max(map(seen.count, seen)) < 2.5 * min(map(seen.count, seen))
    for script in STRUCTURES.values():
        assert (parsed := parse_completion(script)) is not None and lint(parsed) == []


def test_designer_reads_the_task_as_in_a_rollout():
    for e in (e for e in MANY if e.role == "designer"):
        assert (e.system, e.user) == (TINY.designer_system, TINY.designer_ask + _problem(e).prompt)


def test_every_solution_is_right_and_the_style_decides_its_form():
    plain, styled = TINY.role("solver", "math"), TINY.role("solver", "math", STYLE)
    direct = {plain: 0, styled: 0}
    for e in MANY:
        if e.system in (plain, styled, TINY.role("judge", "math")):
            assert _solved(e), e
        if e.system in direct:
            direct[e.system] += e.completion == _problem(e).direct
    assert direct[styled] == 0
    assert 0.5 < direct[plain] / sum(e.system == plain for e in MANY) < 0.9


def test_critic_says_correct_exactly_for_right_solutions():
    reviews = [e for e in MANY if e.system == TINY.role("critic", "math")]
    for e in reviews:
        shown = e.user.split(TINY.earlier, 1)[1]
        assert e.completion == ("CORRECT" if shown in (_problem(e).direct, _problem(e).stepwise) else "WRONG")
    assert {e.completion for e in reviews} == {"CORRECT", "WRONG"}


def test_corrections_start_from_a_wrong_solution_in_a_readable_form():
    for e in MANY:
        if TINY.review in e.user or e.user.endswith(TINY.failed_plain):
            shown = e.user.split(TINY.earlier, 1)[1].split(TINY.review)[0].removesuffix(TINY.failed_plain)
            problem = _problem(e)
            assert shown not in (problem.direct, problem.stepwise)
            assert extract_answer(shown) if isinstance(problem, SortProblem) else extract_code(shown)


@pytest.mark.parametrize("prompts", [TINY, FULL], ids=lambda p: p.name)
def test_a_rollout_asks_in_the_words_that_were_learned(prompts):
    """Runs every structure on one problem with answers that lead through critic, judge and retries."""
    asked, shown = [], [example(2, i, prompts) for i in range(3000)]
    learned = {e.system for e in shown if e.role == "executor"}
    task, _ = generate("code", "train", 1)[0]
    wrong = itertools.cycle(["print(1)", "print(2)"])

    async def chat(request):
        asked.append(request)
        text = "WRONG" if request.agent == "critic" else next(wrong)
        return Call(request.path, request.agent, request.role_prompt, (1,), (2,), (0.0,), "stop", 0, text)

    for script in STRUCTURES.values():
        asyncio.run(run_script(script, task, chat, prompts=prompts, run_tests=lambda task, program: ["1: 2, not 3"]))
    assert {r.role_prompt for r in asked} <= learned
    tails = {r.messages[0].removeprefix(task.prompt).replace("print(2)", "print(1)") for r in asked}
    expected = {
        "", prompts.critic("", "print(1)"), prompts.revise("", "print(1)", "WRONG"),
        prompts.judge("", ["print(1)", "print(1)"]), prompts.retry("", "print(1)", ["1: 2, not 3"]),
    }  # fmt: skip
    assert tails == expected
