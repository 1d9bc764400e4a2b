"""Every name of the language: what it returns, which calls it costs, under which paths."""

import pytest
from mas_host import CODE, MATH, Host, program

from metaagent_x.mas import Budget, tools
from metaagent_x.mas.language import NAMES
from metaagent_x.mas.prompts import FULL, TINY
from metaagent_x.mas.tools import REFUSED, error_of
from metaagent_x.sandbox import Program, Result, SandboxFailure, client

RIGHT, WRONG = "so \\boxed{7}", "hence \\boxed{9}"


def by_agent(**texts):
    """A reply rule: one text an agent, or a list of texts used in turn."""
    left = {name: iter(text) if isinstance(text, list) else None for name, text in texts.items()}
    return lambda r: next(left[r.agent]) if left[r.agent] is not None else texts[r.agent]


async def test_task_and_kind_are_plain_text():
    host = Host(lambda r: RIGHT)
    await host.run("solver()(task + kind + type(task).__name__ + str(len(globals())))")
    assert host.requests[0].messages[0].startswith(MATH.prompt + "mathstr")


async def test_no_name_of_the_language_is_missing():
    host = Host(lambda r: RIGHT)
    seen = "answer = solver()(' '.join(sorted(n for n in globals() if not n.startswith('_'))))"
    await host.run(seen)
    assert set(host.requests[0].messages[0].split()) == set(NAMES) - {"answer"}


@pytest.mark.parametrize("role", ["solver", "critic", "judge", "tester"])
@pytest.mark.parametrize("task", [MATH, CODE])
async def test_templates_differ_by_role_kind_and_style(role, task):
    host = Host(lambda r: "x")
    await host.run(f"{role}()(task)\n{role}('slowly')(task)", task)
    plain, styled = (r.role_prompt for r in host.requests)
    assert plain == FULL.roles[task.kind][role]
    assert styled == plain + FULL.style + "slowly"
    assert [r.agent for r in host.requests] == [role, role]
    assert FULL.roles["math"][role] != FULL.roles["code"][role]


async def test_own_agent_and_memory():
    host = Host(lambda r: RIGHT)
    script = """
a = agent('planner', 'You plan.', memory=True)
a(task)
agent('other', 'You.')('x')
answer = a('go on')
"""
    e = await host.run(script)
    assert [(r.path, r.agent, r.conversation, r.messages) for r in host.requests] == [
        ("0", "planner", "m1", (MATH.prompt,)), ("1", "other", "", ("x",)), ("2", "planner", "m1", ("go on",)),
    ]  # fmt: skip
    assert host.requests[0].role_prompt.startswith("You plan.") and "boxed" in host.requests[0].role_prompt
    assert e.status == "ok"


async def test_reflect_asks_critic_and_revises_until_correct():
    host = Host(by_agent(solver=[WRONG, RIGHT], critic=["bad step\nWRONG", "fine.\n\n**CORRECT**\n"]), TINY)
    e = await host.run("answer = reflect(solver(), critic(), rounds=3)(task)")
    assert [(r.path, r.agent) for r in host.requests] == [
        ("0.0.0", "solver"), ("0.0.1", "critic"), ("0.0.2", "solver"), ("0.0.3", "critic"),
    ]  # fmt: skip
    assert host.requests[1].messages == (MATH.prompt + "\nearlier: " + WRONG,)
    assert host.requests[2].messages == (MATH.prompt + "\nearlier: " + WRONG + "\nreview: bad step\nWRONG",)
    assert e.answer == RIGHT and e.structure == "reflection"


@pytest.mark.parametrize("rounds", [1, 2, 3])
async def test_reflect_costs_at_most_one_plus_two_per_round(rounds):
    host = Host(by_agent(solver=RIGHT, critic="CORRECT? No.\nINCORRECT"))
    await host.run(f"answer = reflect(solver(), critic(), rounds={rounds})(task)")
    assert len(host.requests) == 1 + 2 * rounds


async def test_reflect_without_a_critic_asks_the_agent_itself():
    host = Host(lambda r: "CORRECT" if "Check this solution of yours" in r.messages[0] else RIGHT)
    e = await host.run("answer = reflect(agent('me', 'Solve.'))(task)")
    assert [r.agent for r in host.requests] == ["me", "me"] and e.answer == RIGHT


async def test_an_agent_with_memory_is_told_only_what_is_new():
    host = Host(by_agent(solver=RIGHT, critic="WRONG"), TINY)
    await host.run("answer = reflect(solver(memory=True), critic(), rounds=1)(task)")
    assert host.requests[2].messages == ("\nreview: WRONG",) and host.requests[2].conversation == "m1"


async def test_ensemble_votes_without_a_judge():
    host = Host(lambda r: {"0.0.0": WRONG, "0.1.0": RIGHT, "0.2.0": "also \\boxed{7}"}[r.path])
    e = await host.run("answer = ensemble([solver(), solver('a'), solver('b')])(task)")
    assert e.answer == RIGHT and len(e.calls) == 3 and e.structure == "ensemble"


@pytest.mark.parametrize("texts,calls", [([RIGHT, RIGHT], 2), ([RIGHT, WRONG], 3), ([RIGHT, "no idea"], 3)])
async def test_the_judge_is_asked_only_if_members_differ(texts, calls):
    host = Host(lambda r: texts[int(r.path[2])] if r.agent == "solver" else "I say \\boxed{7}")
    e = await host.run("answer = ensemble([solver(), solver()], judge=judge())(task)")
    assert len(e.calls) == calls and e.structure == "ensemble"
    if calls == 3:
        judged = host.request("0.2.0")
        assert judged.agent == "judge" and all(t in judged.messages[0] for t in [MATH.prompt, *texts])
        assert e.answer == "I say \\boxed{7}"


async def test_debate_shows_the_others_answers():
    host = Host(lambda r: f"by {r.path} \\boxed{{{r.path[2]}}}", TINY)
    e = await host.run("answer = debate([solver(), solver('b')], rounds=3)(task)")
    assert sorted(r.path for r in host.requests) == [f"0.{b}.{n}" for b in (0, 1) for n in (0, 1, 2)]
    later = host.request("0.0.2").messages[0]
    assert "by 0.0.1" in later and "by 0.1.1" in later and "by 0.1.0" not in later
    assert e.structure == "debate"
    host = Host(lambda r: f"\\boxed{{{r.path[2]}}}")
    e = await host.run("answer = debate([solver(), solver('b')], judge(), rounds=2)(task)")
    assert len(e.calls) == 5 and e.calls[-1].agent == "judge" and e.structure == "debate"


async def test_solve_and_test_repairs_until_the_public_tests_pass():
    host = Host(by_agent(solver=[program("print(1)"), program("print(int(input()) * 2)")]))
    e = await host.run("answer = solve_and_test(solver())(task)", CODE)
    assert [c.path for c in e.calls] == ["0.0.0", "0.0.2"] and [t.path for t in e.tools] == ["0.0.1", "0.0.3"]
    assert "expected output:\n4" in host.requests[1].messages[0] and "got:\n1" in host.requests[1].messages[0]
    assert e.tools[0].status == "error" and e.tools[1].status == "ok" and e.structure == "solver-tester"
    assert e.status == "ok" and not e.flags


@pytest.mark.parametrize("rounds", [1, 2, 3])
async def test_solve_and_test_with_a_tester_costs_at_most_two_rounds_minus_one(rounds):
    host = Host(by_agent(solver=program("print(1)"), tester="Read the input."))
    e = await host.run(f"answer = solve_and_test(solver(), tester(), rounds={rounds})(task)", CODE)
    assert len(e.calls) == 2 * rounds - 1 and e.status == "ok"
    if rounds > 1:
        assert "Read the input." in host.requests[2].messages[0]


@pytest.mark.parametrize("task", [MATH, CODE.__class__("c/2", "code", "no tests")])
async def test_solve_and_test_without_public_tests_is_one_try_and_counted(task):
    host = Host(lambda r: RIGHT if task.kind == "math" else program("print(1)"))
    e = await host.run("answer = solve_and_test(solver(), tester())(task)", task)
    assert len(e.calls) == 1
    assert task.kind == "math" or "no_public_tests" in e.flags


async def test_a_reply_without_a_program_is_a_failed_test():
    host = Host(by_agent(solver=["I cannot.", program("print(2 * int(input()))")]))
    e = await host.run("answer = solve_and_test(solver())(task)", CODE)
    assert len(e.calls) == 2 and "no program" in host.requests[1].messages[0]


async def test_together_takes_one_or_many_and_keeps_the_order():
    host = Host(lambda r: r.messages[0] + "!")
    script = """
a = together([solver(), critic()], "x")
b = together(solver(), ["1", "2", "3"])
c = together([solver(), solver()], ["p", "q"])
d = together(solver(), []) + together(solver(), "solo")
answer = solver()(repr([a, b, c, d]))
"""
    e = await host.run(script)
    assert e.calls[-1].messages == ("[['x!', 'x!'], ['1!', '2!', '3!'], ['p!', 'q!'], ['solo!']]",)
    assert [c.path for c in e.calls] == ["0.0.0", "0.1.0", "1.0.0", "1.1.0", "1.2.0", "2.0.0", "2.1.0", "4.0.0", "5"]


@pytest.mark.parametrize("script,words", [
    ("together([solver(), solver()], ['a'] * 3)", "2 agents but 3 messages"),
    ("m = solver(memory=True)\ntogether([m, m], task)", "memory"),
    ("m = solver(memory=True)\nensemble([m, solver(), m])(task)", "memory"),
    ("ensemble([])(task)", "at least one agent"),
    ("ensemble('ab')(task)", "at least one agent"),
    ("reflect('x')(task)", "agent or structure"),
    ("reflect(solver(), rounds=0)(task)", "rounds is 0"),
    ("ensemble([solver()], judge='best')", "agent or structure is needed here, got str 'best'"),
    ("reflect(solver(), 'strict')", "got str 'strict'"),
    ("debate([solver()], rounds=2, judge=1)", "got int '1'"),
    ("solve_and_test(solver(), task)", "got str"),
    ("def f(t): print(t)\nensemble([f, f])(task)", "f, a member of a structure, gave NoneType; it must give a text"),
    ("reflect(solver)(task)", "solver, a member of a structure, gave Agent"),
    ("ensemble([lambda t: t], judge=lambda t: 3)('')", "gave int"),
    ("debate([lambda t: 1])(task)", "gave int"),
    ("vote('one text')", "list of texts"),
    ("solver()()", "needs a text"),
])  # fmt: skip
async def test_misuse_crashes_with_a_reason_that_names_line_and_fault(script, words):
    host = Host(lambda r: RIGHT)
    e = await host.run(script)
    assert e.status == "crash" and words in e.reason and e.reason.startswith(f"line {script.count(chr(10)) + 1}: ")
    assert not host.requests


@pytest.mark.parametrize("texts,vote,agree", [
    (["\\boxed{1}", "\\boxed{2}", "x \\boxed{2}"], "\\boxed{2}", False),
    (["a \\boxed{0.5}", "b \\boxed{1/2}"], "a \\boxed{0.5}", True),
    (["none", "\\boxed{3}"], "\\boxed{3}", False),
    (["none", "nothing"], "", False),
    (["\\boxed{4}", "\\boxed{5}"], "\\boxed{4}", False),
    ([], "", False),
])  # fmt: skip
async def test_vote_and_agree_by_the_graders_equality(texts, vote, agree):
    host = Host(lambda r: "x")
    equal = lambda a, b: {a, b} == {"0.5", "1/2"}  # noqa: E731
    await host.run(f"t = {texts!r}\nsolver()(repr((vote(t), agree(t))))", equivalent=equal)
    assert host.requests[0].messages == (repr((vote, agree)),)


async def test_programs_vote_by_their_syntax():
    host = Host(lambda r: "x")
    texts = [program("print(1)"), program("x=1\nprint( x )"), program("x = 1  # one\nprint(x)")]
    await host.run(f"t = {texts!r}\nsolver()(vote(t) + str(agree(t[1:])))", CODE)
    assert host.requests[0].messages == (texts[1] + "True",)


async def test_answer_of_and_code_of():
    host = Host(lambda r: "x")
    code = program("print(1)")
    await host.run(f"solver()(repr((answer_of({RIGHT!r}), answer_of('?'), code_of({code!r}), code_of('?'))))")
    assert host.requests[0].messages[0].replace("\\n", "") == "('7', '', 'print(1)', '')"


@pytest.mark.parametrize("code,stdin,start", [
    ("print(input())", "hi", "hi\n"),
    ("print('before')\n1/0", "", "error: ZeroDivisionError: division by zero (line 2)\noutput so far:\nbefore\n"),
    (program("print(3)"), "", "3\n"),
    ("import sys; sys.exit(4)", "", "error: exit code 4"),
    ("print(input())", "", "error: EOFError: EOF when reading a line (line 1)"),
    ("import sys\nprint(len(sys.stdin.read()))", "", "0\n"),
    ("exit()", "", ""),
    ("print(1)\nraise SystemExit('bye')", "", "error: bye\noutput so far:\n1\n"),
])  # fmt: skip
async def test_run_python(code, stdin, start):
    host = Host(lambda r: "x")
    e = await host.run(f"solver()(run_python({code!r}, {stdin!r}))")
    assert host.requests[0].messages == (start,)
    assert e.tools[0].tool == "run_python" and e.tools[0].path == "0" and e.calls[0].path == "1"


@pytest.mark.parametrize("result,line", [
    (Result("", 'File "main.py", line 3, in <module>\nPermissionError: [Errno 1] no', "refused", 1),
     "PermissionError: [Errno 1] no (line 3): " + REFUSED),
    (Result("", "PermissionError: [Errno 13] Permission denied: '/x'", "refused", 1),
     "PermissionError: [Errno 13] Permission denied: '/x': " + REFUSED),
    (Result("", "PermissionError: no", "refused", 1), "PermissionError: no"),
    (Result("", "", "refused", -31), "exit code -31: " + REFUSED),
    (Result("", "RuntimeError: can't start new thread", "threads", 1), "too many threads"),
    (Result("", "", "wall", -9), "time limit exceeded"),
    (Result("", "", "error", 3), "exit code 3"),
])  # fmt: skip
def test_the_line_that_says_why_a_program_ended(result, line):
    assert error_of(result) == line


@pytest.mark.parametrize("script", ["run_python('print(1)')", "run_tests('print(1)')"])
async def test_a_program_that_could_not_be_started_is_infrastructure(script, monkeypatch):
    def scripts_alone(self, folder, fds, limits, entry="", **more):
        if not entry:
            raise SandboxFailure("no memory to fork")
        return submit(self, folder, fds, limits, entry, **more)

    submit = client.Zygote.submit
    monkeypatch.setattr(client.Zygote, "submit", scripts_alone)
    e = await Host(lambda r: RIGHT).run("solver()(task)\n" + script, CODE)
    assert e.status == "void" and "no memory to fork" in e.reason


async def test_a_program_that_the_sandbox_ended_is_told_to_the_script(monkeypatch):
    refused = Result("so far", "PermissionError: [Errno 1] no", "refused", 1)
    monkeypatch.setattr(Program, "run", lambda *a, **k: refused)
    monkeypatch.setattr(tools, "run_python", lambda *a, **k: refused)
    e = await Host(lambda r: RIGHT).run("run_python('x')\nrun_tests('x')\nanswer = solver()(task)", CODE)
    assert e.status == "ok" and [t.status for t in e.tools] == ["refused", "error"]
    assert e.tools[0].output == f"error: PermissionError: [Errno 1] no: {REFUSED}\noutput so far:\nso far"
    assert e.tools[1].output.count(f"error: PermissionError: [Errno 1] no: {REFUSED}") == 2


@pytest.mark.fault("B030")
async def test_programs_that_run_at_once_see_their_own_files_only():
    """lsdefine/GenericAgent#665: files named by the second were those of another run."""
    code = "import os\nassert not os.path.exists('x')\nopen('x', 'w').write('NUMBER')\nprint(open('x').read())"
    programs = f"[{code!r}.replace('NUMBER', str(i)) for i in range(12)]"
    e = await Host(lambda r: "x").run(f"solver()(' '.join(together(run_python, {programs})))")
    assert e.status == "ok" and e.calls[0].messages == (" ".join(f"{i}\n" for i in range(12)),)


async def test_long_tool_output_keeps_head_and_tail():
    host = Host(lambda r: "x")
    await host.run("solver()(run_python(\"print('HEAD' + 'x' * 90000 + 'TAIL')\"))")
    text = host.requests[0].messages[0]
    assert text.startswith("HEAD") and text.endswith("TAIL\n") and len(text) < 5000


@pytest.mark.parametrize("code,failures", [("print(2 * int(input()))", 0), ("print(4)", 1), ("1/0", 2), ("x = (", 2)])
async def test_run_tests_lists_failures(code, failures):
    host = Host(lambda r: "x")
    await host.run(f"f = run_tests({code!r})\nsolver()(str(len(f)) + ' '.join(f))", CODE)
    assert host.requests[0].messages[0].startswith(str(failures))


async def test_structures_nest_and_paths_are_deterministic():
    script = """
inner = ensemble([reflect(solver(), critic(), rounds=1), solver("b")], judge=judge())
a, b = together([inner, debate([solver(), solver()], rounds=2)], task)
answer = judge()(a + b)
"""
    paths = []
    for delays in ([0.0, 0.02], [0.02, 0.0]):
        texts = lambda r: f"\\boxed{{1{r.path.replace('.', '')}}}" if r.agent != "critic" else "WRONG"  # noqa: E731
        host = Host(texts, delay=lambda r, d=delays: d[len(r.path) % 2])
        e = await host.run(script)
        assert e.status == "ok"
        paths.append([(c.path, c.agent) for c in e.calls])
    assert paths[0] == paths[1]
    assert [p for p, _ in paths[0]] == [
        "0.0.0.0.0.0.0", "0.0.0.0.0.0.1", "0.0.0.0.0.0.2", "0.0.0.1.0", "0.0.0.2.0",
        "0.1.0.0.0", "0.1.0.0.1", "0.1.0.1.0", "0.1.0.1.1", "1",
    ]  # fmt: skip


async def test_branches_really_run_at_once():
    host = Host(lambda r: RIGHT, barrier=3)
    script = "answer = ensemble([solver(), reflect(solver(), rounds=1), solver()])(task)"
    e = await host.run(script, budget=Budget(wall_s=20))
    assert e.status == "ok"


async def test_paths_sort_by_number():
    host = Host(lambda r: RIGHT)
    e = await host.run("answer = ensemble([solver()] * 12)(task)")
    assert [c.path for c in e.calls] == [f"0.{i}.0" for i in range(12)]


async def test_long_texts_are_passed_on_in_brief():
    long = "\n".join(f"step {i}" for i in range(3000)) + "\n\\boxed{7}"
    host = Host(lambda r: long if r.agent == "solver" else "CORRECT")
    await host.run("answer = reflect(solver(), critic())(task)")
    asked = host.requests[1].messages[0]
    assert len(asked) < 5000 and "step 0\n" in asked and "\\boxed{7}" in asked
    host = Host(lambda r: long if r.agent == "solver" else "CORRECT")
    await host.run("answer = reflect(solver(), critic())(task)", brief=lambda t: "SHORT")
    assert "SHORT" in host.requests[1].messages[0] and "step" not in host.requests[1].messages[0]


async def test_answer_may_be_an_agent_or_a_structure():
    for script in ("answer = solver()", "answer = ensemble([solver()])"):
        host = Host(lambda r: RIGHT)
        e = await host.run(script)
        assert e.answer == RIGHT and len(e.calls) == 1 and e.flags == {"answer_applied"}
        assert host.requests[0].messages == (MATH.prompt,)


@pytest.mark.parametrize("script,calls,flags", [
    ("def main(task): return solver()(task)", 1, {"answer_from_main"}),
    ("def workflow(problem):\n    draft = solver()(problem)\n    return draft", 1, {"answer_from_main"}),
    ("def forward(task, kind): return solver()(task) if kind == 'math' else ''", 1, {"answer_from_main"}),
    ("s = solver()\ndef solve(t, s=s): return s(t)", 1, {"answer_from_main"}),
    ("def main(): return ensemble([solver(), solver()])", 2, {"answer_from_main"}),
    ("def main(task): return solver()(task)\nanswer = main(task)", 1, set()),
    ("def main(task): return solver()(task)\nif __name__ == '__main__':\n    print(main(task))", 1, {"answer_unset"}),
    ("def main(task): critic()(task)\nanswer = solver()(task)", 1, set()),
    ("def main(task): solver()(task)", 1, {"answer_unset"}),
    ("def helper(task): return critic()(task)\nsolver()(task)", 1, {"answer_unset"}),
    ("def main(task):\n    solver()(task)\n    exit()", 1, {"answer_unset"}),
    ("main = solver()", 0, {"answer_unset", "no_calls", "answer_not_from_agents"}),
])  # fmt: skip
async def test_a_main_function_that_nobody_called_is_called_once(script, calls, flags):
    host = Host(lambda r: RIGHT)
    e = await host.run(script)
    assert (e.status, len(e.calls), e.flags) == ("ok", calls, flags)
    assert e.answer == (RIGHT if calls else "") and all(r.messages == (MATH.prompt,) for r in host.requests)


async def test_a_main_function_that_fails_or_is_stopped_ends_like_any_script():
    e = await Host(lambda r: RIGHT).run("def main(task):\n    solver()(task)\n    return 1 / 0")
    assert e.status == "crash" and e.reason.startswith("line 3: ZeroDivisionError") and len(e.calls) == 1
    e = await Host(lambda r: RIGHT).run("def main(task):\n    while True: solver()(task)", budget=Budget(calls=2))
    assert (e.status, len(e.calls), e.answer) == ("budget", 2, RIGHT)


async def test_a_rebound_task_changes_nothing_about_the_question():
    host = Host(lambda r: RIGHT)
    await host.run("for task in ['a', 'b']: pass\nanswer = solver()")
    assert host.requests[0].messages == (MATH.prompt,)


@pytest.mark.fault("B029")
@pytest.mark.parametrize("source,value", [
    ("k = 3\nxs = [k * i for i in range(3)]", "xs"),
    ("def f(n): return 1 if n == 0 else n * f(n - 1)\nxs = [f(i) for i in range(4)]", "xs"),
    ("even = lambda n: n == 0 or odd(n - 1)\nodd = lambda n: n > 0 and even(n - 1)", "even(6)"),
    ("k = 2\ndef outer():\n    def inner(n): return n * k if n < 3 else inner(n - 1)\n    return inner(9)", "outer()"),
    ("k = [1, 2]\nclass A:\n    xs = k\n    def f(self): return [x for x in k if x in A.xs]", "A().f()"),
    ("n = 0\ndef add():\n    global n\n    n += 1\nfor _ in 'ab': add()", "n"),
    ("xs = [1]\nys = {x: [x + y for y in xs] for x in xs}", "ys"),
    ("def helper(): return kind\ndef g(): return [helper() for _ in task[:2]]", "g()"),
])  # fmt: skip
async def test_script_and_program_have_one_scope(source, value):
    """langchain-ai/langchain#5035, bojieli/ai-agent-book#85: NameError in recursion and comprehensions."""
    scope: dict = {"task": MATH.prompt, "kind": MATH.kind}
    exec(source, scope)
    wanted = repr(eval(value, scope))
    given = f"task, kind = {MATH.prompt!r}, {MATH.kind!r}\n"
    host = Host(lambda r: RIGHT)
    branch = f"together([lambda t: solver()(t + repr({value}))] * 2, 'in a branch: ')"
    ran = f"solver()(run_python({given + source + chr(10) + f'print(repr({value}))'!r}))"
    e = await host.run(f"{source}\nsolver()(repr({value}))\n{branch}\n{ran}")
    assert e.status == "ok", e.reason
    assert [r.messages[0] for r in host.requests] == [wanted, *["in a branch: " + wanted] * 2, wanted + "\n"]


@pytest.mark.fault("B040")
@pytest.mark.parametrize("prompts", [FULL, TINY], ids=lambda p: p.name)
async def test_braces_percent_and_backslashes_reach_the_model_unchanged(prompts):
    """SWE-agent/SWE-agent#1019: str.format on text with braces."""
    odd = 'Let A = {1; 2}, f(x)=\\frac{x}{2}, print "{0}" 100% %s %(a)s \\n {{}} $x'
    host = Host(lambda r: "{name} %d " + odd if r.agent != "critic" else "{review}", prompts)
    task = MATH.__class__("t", "math", odd)
    script = "reflect(solver('{style}'), critic(), rounds=1)(task)\ndebate([solver(), solver()], judge())(task)"
    await host.run(script, task)
    assert host.request("0.0.0").messages == (odd,)
    assert host.request("0.0.0").role_prompt.endswith("{style}")
    for path in ("0.0.1", "0.0.2", "1.0.1"):
        assert odd in host.request(path).messages[0] and "{name} %d " + odd in host.request(path).messages[0]
    assert "{review}" in host.request("0.0.2").messages[0]


async def test_math_votes_go_by_value_unless_told_otherwise():
    """Two spellings of one half outvote a 7, by the grader's own notion of equality."""
    texts = iter([r"\boxed{7}", r"\boxed{1/2}", r"\boxed{0.5}"])
    e = await Host(lambda r: next(texts)).run("answer = vote([solver(str(i))(task) for i in range(3)])")
    assert e.answer == r"\boxed{1/2}"


@pytest.mark.parametrize("use", [
    "ensemble([reflect(m), reflect(m)])(task)", "together([m, ensemble([solver(), m])], task)[0]",
    "debate([solver(), solve_and_test(solver(), tester=m), reflect(solver(), critic=m)])(task)",
])  # fmt: skip
async def test_one_memory_in_two_branches_is_an_error_before_any_of_them_starts(use):
    """Else whoever came first would decide what the memory holds, and which branch hears of it."""
    host = Host(lambda r: RIGHT)
    e = await host.run(f"m = solver(memory=True)\nanswer = {use}")
    assert (e.status, host.requests) == ("crash", []) and "same agent with memory" in e.reason


@pytest.mark.parametrize("text", ["solver()", "solver", "[task, critic()]", "reflect(solver())", "lambda t: t"])
async def test_an_agent_in_place_of_a_text_is_an_error_not_a_memory_address(text):
    """Its address would stand in the prompt, and differ between two runs of one seed."""
    host = Host(lambda r: RIGHT)
    e = await host.run(f"answer = solver()({text})")
    assert (e.status, host.requests) == ("crash", []) and "where a text is needed" in e.reason


async def test_agents_and_structures_have_names_without_addresses():
    host = Host(lambda r: RIGHT)
    await host.run("m = agent('Ann', 'add')\nsolver()(str([m, critic(), reflect(m), ensemble([m])]))")
    assert host.requests[0].messages == ("[<agent Ann>, <agent critic>, <Reflect>, <Ensemble>]",)


@pytest.mark.parametrize("answer,given", [
    ("together([solver()] * 3, task)", "list"), ("{'answer': solver()(task)}", "dict"), ("solver", "Agent"),
    ("lambda task: [solver()(task)]", "list"), ("(solver()(task),)", "tuple"),
])  # fmt: skip
async def test_an_answer_that_is_no_text_is_refused_with_the_way_out(answer, given):
    """A list would be graded as its repr."""
    e = await Host(lambda r: RIGHT).run(f"answer = {answer}")
    words = f"TypeError: answer is {given}; it must be a text, an agent or a structure"
    assert e.status == "crash" and e.reason.endswith(words), e.reason


@pytest.mark.parametrize("number", ["7", "7.0", "1 / 2", "__import__('fractions').Fraction(7, 2)"])
async def test_a_number_is_an_answer_as_it_is_written(number):
    e = await Host(lambda r: f"\\boxed{{{eval(number)}}}").run(f"solver()(task)\nanswer = {number}")
    assert (e.status, e.flags, e.answer) == ("ok", set(), f"\\boxed{{{eval(number)}}}")
