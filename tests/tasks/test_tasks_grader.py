"""The grader: rewards, memory, failures that are not verdicts."""

import asyncio
import threading

import pytest

from metaagent_x.tasks import grader as module
from metaagent_x.tasks.grader import Grader
from metaagent_x.tasks.math_pool import VerifierFailure
from metaagent_x.tasks.task import Rubric

MATH = Rubric("m", "math", gold=("25", "C"))
TESTS = tuple({"kind": "stdin", "input": str(i), "output": str(i * i)} for i in range(4))
CODE = Rubric("c", "code", tests=TESTS, time_limit_s=2.0)
SQUARE, DOUBLE = "print(int(input())**2)", "print(int(input())*2)"


def fenced(program):
    return f"Here it is.\n```python\n{program}\n```"


@pytest.fixture
def grader():
    grader = Grader()
    yield grader
    grader.close()


@pytest.mark.parametrize(
    ("text", "correct", "reward", "form", "reason"),
    [
        (r"\boxed{25}", True, 1.4, 1.0, "ok"),
        (r"so \boxed{(C)}", True, 1.4, 1.0, "ok"),
        (r"\boxed{26}", False, 0.4, 1.0, "wrong_answer"),
        ("25", False, 0.0, 0.0, "no_answer"),
        (r"\boxed{25", False, 0.0, 0.0, "no_answer"),
    ],
)
async def test_math_rewards(grader, text, correct, reward, form, reason):
    verdict = await grader.grade(MATH, text)
    assert (verdict.correct, verdict.format, verdict.reason, verdict.void) == (correct, form, reason, False)
    assert verdict.reward == pytest.approx(reward) and verdict.fraction == float(correct)


@pytest.mark.parametrize(
    ("text", "fraction", "form", "reason"),
    [
        (fenced(SQUARE), 1.0, 1.0, "ok"),
        (fenced(DOUBLE), 0.5, 1.0, "test 1: wrong_answer"),
        (fenced("raise ValueError"), 0.0, 1.0, "test 0: error"),
        (fenced("print(1"), 0.0, 0.0, "syntax_error"),
        ("```python\nprint(1)", 0.0, 0.0, "unclosed_fence"),
        ("I cannot.", 0.0, 0.0, "no_code"),
    ],
)
async def test_code_rewards(text, fraction, form, reason):
    for code in ("fraction", "all"):
        grader = Grader(code=code, format_bonus=0.25)
        verdict = await grader.grade(CODE, text)
        share = min(fraction, 0.25) if code == "all" and fraction < 1 else fraction  # nothing runs after a failure
        assert (verdict.fraction, verdict.format, verdict.reason) == (share, form, reason)
        assert verdict.correct is (fraction == 1.0)
        correctness = fraction if code == "fraction" else float(fraction == 1.0)
        assert verdict.reward == pytest.approx(correctness + 0.25 * form)
        grader.close()


async def test_call_and_assert_tests_and_checkers_are_graded(grader):
    call = {"kind": "call", "input": [3], "output": [9], "entry_point": "f"}
    asserting = {"kind": "assert", "input": "assert f(3) == 9", "output": "", "entry_point": "f"}
    mixed = Rubric("c", "code", tests=(call, asserting))
    assert (await grader.grade(mixed, fenced("def f(x): return x * x"))).correct
    assert (await grader.grade(mixed, fenced("def f(x): return x"))).reason == "test 0: wrong_answer"
    yes = ({"kind": "stdin", "input": "", "output": "YES"},)
    for checker, correct in (("", False), ("any_case", True)):
        verdict = await grader.grade(Rubric("c", "code", tests=yes, checker=checker), fenced("print('yes')"))
        assert verdict.correct is correct and not verdict.void
    assert (await grader.grade(Rubric("c", "code", tests=yes, checker="no"), fenced("print('yes')"))).void


async def test_equal_answers_are_graded_once_also_at_the_same_time(grader, monkeypatch):
    runs = []
    judge = module.code_grader.judge
    monkeypatch.setattr(module.code_grader, "judge", lambda *a, **k: runs.append(a) or judge(*a, **k))
    texts = [fenced(SQUARE), "Another preface.\n" + fenced(SQUARE), fenced(DOUBLE)] * 3
    verdicts = await asyncio.gather(*(grader.grade(CODE, text) for text in texts))
    assert len(runs) == 2 and [v.correct for v in verdicts] == [True, True, False] * 3
    other = Rubric("c", "code", tests=TESTS[:1])
    assert (await grader.grade(other, fenced(DOUBLE))).correct  # another rubric of the same id is another question
    assert grader.counts == {"graded": 3, "kept": 7}


async def test_memory_is_bounded(grader):
    grader.remember = 2
    for n in range(5):
        await grader.grade(MATH, rf"\boxed{{{n}}}")
    assert len(grader._known) == 2


@pytest.mark.fault("B032")
async def test_a_failure_of_the_grader_is_void_and_counted_and_tried_again(grader, monkeypatch):
    """verl-project/verl PR#5635: swallowed errors became a score of 0 for every answer."""

    def broken(answer, gold):
        raise VerifierFailure("no worker")

    with monkeypatch.context() as patch:
        patch.setattr(module, "is_equivalent", broken)
        verdict = await grader.grade(MATH, r"\boxed{25}")
    assert verdict.void and verdict.reward == 0.0 and "no worker" in verdict.reason
    assert grader.counts["void"] == 1
    assert (await grader.grade(MATH, r"\boxed{25}")).correct
    for rubric, text in ((Rubric("e", "math"), r"\boxed{1}"), (Rubric("e", "code"), fenced(SQUARE))):
        assert (await grader.grade(rubric, text)).void


async def test_a_caller_that_gives_up_takes_no_verdict_from_others(monkeypatch):
    """Two wait for a verdict that has not begun (the only thread is busy); one of them is cancelled."""
    go, grader = threading.Event(), Grader(workers=1)
    monkeypatch.setattr(module, "is_equivalent", lambda answer, gold: go.wait(30))
    busy = asyncio.ensure_future(grader.grade(MATH, r"\boxed{1}"))
    first, second = (asyncio.ensure_future(grader.grade(MATH, r"\boxed{25}")) for _ in range(2))
    await asyncio.sleep(0.05)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    go.set()
    assert (await second).correct and (await busy).correct
    grader.close()


async def test_a_closed_grader_says_so():
    grader = Grader()
    grader.close()
    grader.close()
    with pytest.raises(RuntimeError):
        await grader.grade(MATH, r"\boxed{25}")


def test_one_grader_serves_several_event_loops(grader):
    assert asyncio.run(grader.grade(MATH, r"\boxed{25}")) == asyncio.run(grader.grade(MATH, r"\boxed{25}"))


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="code='some'"):
        Grader(code="some")
    with pytest.raises(ValueError, match="workers=0"):
        Grader(workers=0)
