"""What an execution was, from what ran."""

import pytest
from mas_host import CODE, MATH, Host, program

from metaagent_x.mas import classify
from metaagent_x.mas.prompts import TINY

LONG = " because of a long argument that nobody else would write in this way"


def reply(r):
    """Every agent says something of its own; critics are never content; answers agree on 7."""
    if r.agent in ("critic", "tester"):
        return f"step {r.path} is wrong{LONG} {r.path * 30}\nWRONG"
    return f"by {r.path}{LONG} {r.path * 30} \\boxed{{7}}"


CASES = [
    ("x = 1", "invalid"),
    ("answer = solver()(task)", "single"),
    ("a = solver()(task)\nb = solver()(task)\nanswer = b", "single"),
    ("answer = ensemble([solver(), solver()])(task)", "ensemble"),
    ("answer = vote(together(solver(), [task] * 3))", "ensemble"),
    ("answer = vote([solver()(task), solver('b')(task)])", "ensemble"),
    ("a, b = together([solver(), solver()], task)\nanswer = agent('referee', 'Pick.')(task + a + b)", "ensemble"),
    ("answer = debate([solver(), solver()], rounds=1)(task)", "ensemble"),
    ("answer = debate([solver(), solver(), solver()], rounds=2)(task)", "debate"),
    ("answer = debate([solver(memory=True), solver(memory=True)], rounds=2)(task)", "debate"),
    ("answer = reflect(solver(), critic(), rounds=1)(task)", "reflection"),
    ("answer = reflect(solver(memory=True), critic())(task)", "reflection"),
    ("answer = reflect(solver())(task)", "reflection"),
    ("d = solver()(task)\nc = agent('reader', 'Read.')(d)\nanswer = solver()(task + d + c)", "reflection"),
    ("answer = ensemble([reflect(solver(), critic()), reflect(solver(), critic())])(task)", "ensemble"),
    ("answer = reflect(ensemble([solver(), solver()]), critic(), rounds=1)(task)", "ensemble"),
    ("e = ensemble([solver(), solver()])(task)\nc = critic()(task + e)\nanswer = solver()(task + e + c)", "reflection"),
    ("p = agent('planner', 'Plan.')(task)\nanswer = solver()(task + p)", "other"),
    ("p = agent('planner', 'Plan.')(task)\nanswer = ensemble([solver(), solver()])(task + p)", "ensemble"),
    ("e = ensemble([solver(), solver()])(task)\nanswer = agent('typist', 'Copy.')(e)", "ensemble"),
]


@pytest.mark.parametrize("script,expected", CASES)
async def test_math(script, expected):
    e = await Host(reply).run(script)
    assert e.status == "ok", e.reason
    assert e.structure == expected


@pytest.mark.parametrize("script,expected", [
    ("answer = solve_and_test(solver())(task)", "solver-tester"),
    ("answer = solve_and_test(solver(), tester())(task)", "solver-tester"),
    ("d = solver()(task)\nf = run_tests(d)\nanswer = solver()(task + d + f[0])", "solver-tester"),
    ("answer = solver()(task)\nrun_tests(answer)", "single"),
    ("answer = ensemble([solve_and_test(solver()), solver()])(task)", "ensemble"),
])  # fmt: skip
async def test_code(script, expected):
    def wrong(r):
        return reply(r) if r.agent == "tester" else program(f"print({len(r.path)}, '{r.path} a long enough program')")

    e = await Host(wrong).run(script, CODE)
    assert e.status == "ok", e.reason
    assert e.structure == expected


@pytest.mark.parametrize("script,expected", [
    ("answer = reflect(solver(), critic(), rounds=1)(task)", "reflection"),
    ("answer = solver()(critic()(solver()(task)))", "other"),
    ("answer = ensemble([solver(), solver()], judge())(task)", "ensemble"),
    ("answer = solver('b')(task)", "single"),
])  # fmt: skip
async def test_short_texts_are_known_by_what_structures_report(script, expected):
    """Below 24 characters no overlap can be told from chance."""
    e = await Host(lambda r: "no" if r.agent == "critic" else f"\\boxed{{{r.path[-3:]}}}", TINY).run(script)
    assert e.structure == expected


async def test_phrases_that_every_agent_uses_are_no_edge():
    phrase = "Let us solve the problem step by step. Therefore the final answer is "
    host = Host(lambda r: phrase + f"\\boxed{{{r.path}}}")
    e = await host.run("a = solver()(task)\nb = solver()(a)\nanswer = solver()(task + ' ' + ' '.join(b.split()[:13]))")
    assert e.structure == "single"


async def test_names_do_not_matter():
    script = "critic_of_ensemble = agent('judge', 'You vote and debate.')\nanswer = critic_of_ensemble(task)"
    assert (await Host(reply).run(script)).structure == "single"


async def test_an_echo_of_the_task_is_no_edge():
    task = MATH.__class__("m", "math", "A statement that is longer than twenty-four characters and is repeated")
    e = await Host(lambda r: task.prompt + f" {r.path} \\boxed{{7}}").run(
        "solver()(task)\nanswer = solver()(task)", task
    )
    assert e.structure == "single" and classify(e) == "single"
