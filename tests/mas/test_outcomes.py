"""How an execution ends: answers, budgets, limits, crashes, void."""

import asyncio
import os
import pathlib

import pytest
from mas_host import CODE, MATH, Host

from metaagent_x import sandbox
from metaagent_x.mas import Budget, run_script, runner, tools
from metaagent_x.sandbox import client
from metaagent_x.tasks.task import Task

RIGHT = "so \\boxed{7}"


def running() -> str:
    """The contained processes that are alive, of this host."""
    pid = client.zygote().process.pid
    return pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()


async def test_an_unset_answer_is_the_last_agent_text_that_holds_one():
    host = Host(lambda r: "fine, CORRECT" if r.agent == "critic" else f"\\boxed{{{r.path}}}")
    e = await host.run("solver()(task)\nsolver()(task)\ncritic()(task)")
    assert (e.status, e.answer, e.flags) == ("ok", "\\boxed{1}", {"answer_unset"})


@pytest.mark.parametrize("script,flag,calls", [
    ("while True: solver()(task)", "budget_calls", 5),
    ("answer = ensemble([solver()] * 9)(task)", "budget_calls", 5),
    ("while True:\n    try: answer = solver()(task)\n    except Exception: pass", "budget_calls", 5),
    ("for _ in range(9): run_python('print(1)')\nanswer = solver()(task)", "budget_tools", 0),
    ("solver()(task)\nwhile True: run_tests('print(1)')", "budget_tests", 1),
    ("s = solver()\nfor _ in range(4): s = reflect(s, solver(), rounds=1)\nanswer = s(task)", "budget_depth", 0),
])  # fmt: skip
async def test_a_used_up_budget_ends_the_script_and_what_there_is_counts(script, flag, calls):
    budget = Budget(calls=5, tool_runs=8, depth=3)
    e = await Host(lambda r: RIGHT).run(script, MATH, budget=budget)
    assert e.status == "budget" and flag in e.flags and len(e.calls) == calls
    assert len([t for t in e.tools if t.tool == "run_tests"]) <= runner.TEST_RUNS
    assert (e.answer == RIGHT) == (calls > 0) and flag.removeprefix("budget_") in e.reason


DEEP = "s = solver()\nfor _ in range({n}): s = ensemble([s, solver()])\nanswer = s(task)"


@pytest.mark.parametrize("script,allowed", [
    (DEEP.format(n=2), True), (DEEP.format(n=3), False),
    ("answer = together([solver(), reflect(solver(), critic())], task)[0]", True),
    ("answer = together([reflect(reflect(solver())), solver()], task)[1]", False),
    ("f = lambda t: together(solver(), [t, t])[0]\ndef g(t): return together([f, f], t)[0]\nanswer = g(task)", True),
    ("f = lambda t: together(solver(), [t, t])[0]\nanswer = debate([reflect(f), solver()])(task)", False),
])  # fmt: skip
async def test_depth_counts_structures_around_a_call_in_any_branch(script, allowed):
    e = await Host(lambda r: RIGHT).run(script, budget=Budget(depth=2))
    assert e.status == ("ok" if allowed else "budget") and ("budget_depth" in e.flags) != allowed
    assert max(c.path.count(".") for c in e.calls) <= 4


PLACES = (
    "answer = {f}(task)", "answer = ensemble([solver(), {f}])(task)", "together([{f}] * 3, task)",
    "answer = reflect(ensemble([{f}, solver()]), critic())(task)", "answer = debate([{f}, {f}])",
)  # fmt: skip


SOME_PLACES = [PLACES[-1], *(pytest.param(place, marks=pytest.mark.slow) for place in PLACES[:-1])]


@pytest.mark.parametrize("where", SOME_PLACES)
@pytest.mark.parametrize("cost,status", [
    ("[solver()(t) for _ in iter(int, 1)]", "budget"),
    ("[run_python('print(1)') for _ in iter(int, 1)]", "budget"),
    ("[run_tests('print(1)') for _ in iter(int, 1)]", "budget"),
    ("agent('slow', '')(t)", "wall"),
    ("sum(0 for _ in iter(int, 1))", "cpu"),
    ("' ' * 10**10", "memory"),
    ("1 / 0", "crash"),
])  # fmt: skip
async def test_every_limit_holds_in_branches_and_nested_structures(where, cost, status):
    """Whatever ends it, the calls that were finished are kept, and nothing is left running."""
    wall_s = 1.0 if status == "wall" else 60.0
    budget = Budget(calls=7, tokens=100, tool_runs=6, wall_s=wall_s, cpu_s=1, memory_mb=100)
    host = Host(lambda r: RIGHT, delay=lambda r: 60.0 if r.agent == "slow" else 0.0)
    e = await host.run("first = solver()(task)\n" + where.format(f="(lambda t: " + cost + ")"), budget=budget)
    assert e.status == status, e.reason
    assert 1 <= len(e.calls) <= 7 and len(e.tools) <= 6 and e.calls[0].path == "0"
    assert e.answer == (RIGHT if status == "budget" else "") and not running()


@pytest.mark.parametrize("where", SOME_PLACES)
async def test_the_wall_limit_does_not_wait_for_a_program_that_sleeps(where, monkeypatch):
    """The program itself ends at its own limit: it is of no use to anybody, and harms nobody."""
    monkeypatch.setattr(tools, "LIMITS", sandbox.Limits(cpu_s=1, wall_s=2.0))
    sleep = "(lambda t: run_python('import time\\ntime.sleep(60)'))"
    e = await Host(lambda r: RIGHT).run("solver()(task)\n" + where.format(f=sleep), budget=Budget(wall_s=1.0))
    assert (e.status, e.tools, e.answer) == ("wall", [], "") and e.calls
    for _ in range(400):
        if not running():
            return
        await asyncio.sleep(0.02)
    pytest.fail("a program outlived its own limit")


@pytest.mark.fault("B041")
async def test_programs_that_sleep_do_not_hold_up_those_of_other_executions(monkeypatch):
    """google/adk-python#6353: one slow executor froze all sessions. Here 8 executions sleep in 3 branches each."""
    ended, begun, run = [], asyncio.Event(), tools.run_program

    def noted(code, stdin):
        if "sleep" in code:
            loop.call_soon_threadsafe(begun.set)
        result = run(code, stdin)
        ended.append("sleep" if "sleep" in code else "quick")
        return result

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(tools, "LIMITS", sandbox.Limits(cpu_s=1, wall_s=2.0))
    monkeypatch.setattr(tools, "run_program", noted)
    sleep = "together(run_python, ['import time\\ntime.sleep(60)'] * 3)\nanswer = solver()(task)"
    sleepers = [asyncio.ensure_future(Host(lambda r: RIGHT).run(sleep)) for _ in range(8)]
    await begun.wait()
    quick = "answer = solver()(task + run_python('print(1)'))"
    others = await asyncio.gather(*(Host(lambda r: RIGHT).run(quick) for _ in range(24)))
    # On a busy machine a few may end after the first sleeper's limit; held up, all would.
    assert ended[:24].count("quick") >= 12 and {(e.status, e.tools[0].output) for e in others} == {("ok", "1\n")}
    slept = await asyncio.gather(*sleepers)
    assert [t.status for e in slept for t in e.tools] == ["wall"] * 24 and {e.status for e in slept} == {"ok"}


@pytest.mark.parametrize("per_call,cap,calls", [(10, 25, 3), (10, 20, 2), (1, 3, 3)])
async def test_the_token_budget_counts_every_sampled_token(per_call, cap, calls):
    host = Host(lambda r: RIGHT, tokens=per_call)
    e = await host.run("while True: solver()(task)", budget=Budget(tokens=cap))
    assert len(e.calls) == calls and "budget_tokens" in e.flags
    assert sum(len(c.completion_ids) for c in e.calls) < cap + per_call


async def test_a_stopped_script_keeps_the_answer_that_it_had_set():
    host = Host(lambda r: f"\\boxed{{{r.path}}}")
    e = await host.run("answer = solver()(task)\nwhile True: solver()(task)", budget=Budget(calls=3))
    assert e.answer == "\\boxed{0}" and e.status == "budget" and "answer_unset" not in e.flags


async def test_a_script_that_ignores_the_stop_is_cut_off(monkeypatch):
    monkeypatch.setattr(runner, "STOP_GRACE_S", 0.2)
    script = "while True:\n    try: solver()(task)\n    except BaseException: pass"
    e = await Host(lambda r: RIGHT).run(script, budget=Budget(calls=2))
    assert e.status == "budget" and e.answer == RIGHT and len(e.calls) == 2


async def test_which_calls_a_budget_turns_away_does_not_depend_on_who_is_quick():
    slow = "def slow(text):\n    sum(range(10 ** 6))\n    return solver()(text)\n"
    for members in ("[slow] + [solver()] * 7", "[solver()] * 4 + [slow] + [solver()] * 3"):
        e = await Host(lambda r: RIGHT).run(slow + f"answer = ensemble({members})(task)", budget=Budget(calls=5))
        assert [c.path for c in e.calls] == [f"0.{i}.0" for i in range(5)]


AGREE = """
draft = solver()(task)
while True:
    review = critic()(draft)
    if review.startswith("CORRECT"):
        break
    draft = solver()(task + draft + review)
"""
SHARED = """
def pair(text):
    a, b = agent("solver", "", memory=True), agent("critic", "", memory=True)
    while True:
        text = b(a(text))
together([pair, pair], task)
"""


@pytest.mark.fault("B038")
@pytest.mark.parametrize("script", [AGREE, "answer = ''\n" + AGREE, SHARED], ids=["loop", "empty answer", "two pairs"])
@pytest.mark.parametrize("review", ["looks good but improve", "", " \n", "thanks!"])
@pytest.mark.parametrize("budget,flag", [(Budget(calls=8), "budget_calls"), (Budget(tokens=50), "budget_tokens")])
async def test_an_endless_agreement_loop_ends_at_a_budget_with_the_best_text_so_far(script, review, budget, flag):
    """microsoft/autogen#108, #7409: agents exchange blanks or thanks until the credit is gone."""
    host = Host(lambda r: review if r.agent == "critic" else f"\\boxed{{{r.path}}}", tokens=7)
    e = await host.run(script, budget=budget)
    assert e.status == "budget" and e.flags == {flag, "answer_unset"}
    last = [c for c in e.calls if c.agent == "solver"][-1]
    assert e.answer == last.text and len(e.calls) == 8 and sum(len(c.completion_ids) for c in e.calls) <= 56


@pytest.mark.parametrize("script,status,words,calls", [
    ("solver()(task)\nx = 1 / 0", "crash", "line 2: ZeroDivisionError", 1),
    ("solver()(task)\nwhile True: pass", "cpu", "", 1),
    ("solver()(task)\nx = 10 ** 10 ** 8", "cpu", "", 1),
    ("solver()(task)\na = []\nwhile True: a.append(' ' * 10**6)", "memory", "MemoryError", 1),
    ("solver()(task)\nimport time\ntime.sleep(60)", "wall", "wall limit", 1),
    ("solver()(task)\nimport os\nos._exit(0)", "crash", "no answer", 1),
    ("solver()(task)\nimport os\nos.kill(os.getpid(), 9)", "crash", "exit code -9", 1),
    ("x = (", "crash", "line 1: SyntaxError", 0),
    ("def f(n): return f(n + 1)\nf(0)", "crash", "RecursionError", 0),
    ("import socket, time\nsocket.socket(fileno=3).shutdown(2)\ntime.sleep(60)", "crash", "no answer", 0),
])  # fmt: skip
async def test_limits_and_crashes_keep_the_finished_calls(script, status, words, calls):
    limits = Budget(cpu_s=1, wall_s=1.0 if status == "wall" else 30.0, memory_mb=100)
    e = await Host(lambda r: RIGHT).run(script, budget=limits)
    assert e.status == status and words in e.reason and len(e.calls) == calls and e.answer == ""


@pytest.mark.fault("F166")
async def test_a_crash_after_two_calls_keeps_two_calls():
    """pettingllms-ai/PettingLLMs: rows were pickled at the script's end only, so failures vanished."""
    script = "a = solver()(task)\nb = critic()(a)\nanswer = (a + b)[10 ** 6]"
    e = await Host(lambda r: RIGHT).run(script)
    assert e.status == "crash" and "IndexError" in e.reason
    assert [(c.path, c.agent, c.completion_ids) for c in e.calls] == [("0", "solver", (0, 1)), ("1", "critic", (0, 1))]
    assert e.reward == 0.0 and not e.void


@pytest.mark.fault("F167")
async def test_a_crash_before_the_first_call_has_no_calls_of_an_earlier_run(tmp_path):
    """pettingllms-ai/PettingLLMs: a crashed script was given the rows that an earlier question left in the folder."""
    host = Host(lambda r: RIGHT)
    await host.run("open('left_over', 'w').write('rows')\nanswer = solver()(task)")
    e = await host.run("import os\nassert not os.listdir('.')\n1 / 0")
    assert e.status == "crash" and "ZeroDivisionError" in e.reason
    assert (e.calls, e.tools, e.links, e.answer, e.flags) == ([], [], [], "", {"no_calls"})


@pytest.mark.fault("B021")
@pytest.mark.parametrize("script,answer", [
    ("answer = solver()(task)\nexit()", RIGHT),
    ("solver()(task)\nraise SystemExit(0)", RIGHT),
    ("exit()", ""),
    ("solver()(task)\nquit('done')", RIGHT),
    ("def f(t):\n    exit()\nsolver()(task)\nensemble([f, solver()])(task)", RIGHT),
    ("def main(task):\n    draft = solver()(task)\n    raise SystemExit(1)\n    return draft", RIGHT),
    ("try:\n    answer = solver()(task)\nfinally:\n    exit()", RIGHT),
])  # fmt: skip
async def test_exit_ends_the_script_and_not_the_host(script, answer):
    """cuga-project/cuga-agent#629: exit() in generated code ended the evaluation."""
    e = await Host(lambda r: RIGHT).run(script)
    assert e.status == "ok" and e.answer == answer and ("no_calls" in e.flags) == (answer == "")


class EngineDown(RuntimeError):
    pass


@pytest.mark.parametrize("where", ["chat", "run_tests", "brief", "equivalent"])
async def test_a_failure_of_ours_is_void_and_cancels_what_is_in_flight(where):
    cancelled = []

    def fail(*_):
        raise EngineDown("engine 3 is gone")

    class Slow(Host):
        async def chat(self, request):
            if request.path == "0.1.0":
                if where == "chat":
                    await asyncio.sleep(0.05)
                    fail()
                return await super().chat(request)
            if request.path == "0.0.0" and where == "chat":
                try:
                    await asyncio.sleep(60)
                finally:
                    cancelled.append(request.path)
            return await super().chat(request)

    script = {
        "chat": "answer = ensemble([solver()] * 3)(task)", "run_tests": "solver()(task)\nrun_tests('x')",
        "brief": "answer = reflect(solver())(task)", "equivalent": "vote([solver()(task), '\\\\boxed{8}'])",
    }[where]  # fmt: skip
    host = Slow(lambda r: "x" * 2000 + RIGHT)
    e = await host.run(script, budget=Budget(wall_s=20), **({} if where == "chat" else {where: fail}))
    assert e.status == "void" and e.void and "EngineDown: engine 3 is gone" in e.reason
    assert cancelled == (["0.0.0"] if where == "chat" else [])


async def test_a_dead_sandbox_is_void():
    async def kill(_):
        client.zygote().process.kill()
        await asyncio.sleep(30)

    e = await run_script("answer = solver()(task)", MATH, kill)
    assert e.status == "void" and "died" in e.reason
    e = await Host(lambda r: RIGHT).run("answer = solver()(task)")
    assert e.status == "ok"


async def test_cancelling_leaves_no_process_and_no_folder():
    asked = asyncio.Event()

    async def wait(_):
        asked.set()
        await asyncio.sleep(60)

    task = asyncio.ensure_future(run_script("answer = solver()(task)", MATH, wait))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.listdir(client.zygote().folder) == [] and not running()


async def test_truncated_and_cut_calls_are_flagged():
    e = await Host(lambda r: RIGHT, finish="length").run("answer = solver()(task)")
    assert e.flags == {"truncated"}


# A process that speaks the protocol badly

SEND = """
import json, os, socket
s = socket.socket(fileno=os.dup(3))
def send(**m): s.sendall(json.dumps(m).encode() + b"\\n")
"""
CALL = "send(id=1000, do='call', path='9', agent='a', role='r', conversation='', messages=['x'], sources=[]"


@pytest.mark.parametrize("script", [
    "s.sendall(b'garbage\\n')",
    "s.sendall(b'{' + b'\"x\": 1, ' * 10**6)",
    "send(do='end', answer=[1])",
    "send(do='sudo', id=1)",
    "send(do='brief', id='1', text='x')",
    "send(do='brief', id=1)",
    "send(do='classes', id=1, texts='abc')",
    "send(do='links', links=[['0', '1', 'reward']])",
    "send(do='run_python', id=1, path='../../x', code='print(1)', stdin='')",
    "send(do='call', id=1, path='0', agent='a', role='r', conversation='m1; rm', messages=['x'], sources=[])",
    "send(do='call', id=1, path='0', agent='a', role='r', conversation='', messages=[], sources=[])",
    CALL + ")\n" + CALL + ")",
    "while True: send(do='links', links=[])",
    "for i in range(10**6): send(do='classes', id=i, texts=['x'])",
])  # fmt: skip
async def test_a_malformed_message_is_a_crash_with_a_reason(script, monkeypatch):
    monkeypatch.setattr(runner, "MAX_MESSAGES", 500)
    e = await Host(lambda r: RIGHT).run(SEND + script + "\nimport time\ntime.sleep(60)", budget=Budget(wall_s=30))
    assert e.status == "crash" and e.reason.startswith("malformed message: ")
    assert len(e.calls) <= 1 and e.answer == ""


async def test_forged_messages_make_no_records():
    forged = "send(do='result', reward=1.0)\n"
    links = "send(do='links', links=[['77', '', 'vote'], ['78', '', 'vote']])\n"
    e = await Host(lambda r: "\\boxed{12}").run(SEND + links + "solver()(task)\nsend(do='end', answer='\\\\boxed{7}')")
    assert e.links == [] and e.flags == {"answer_not_from_agents"} and e.structure == "single"
    e = await Host(lambda r: RIGHT).run(SEND + forged)
    assert e.status == "crash"


async def test_lone_surrogates_reach_no_record():
    host = Host(lambda r: RIGHT)
    e = await host.run("solver('\\ud800')(task + '\\udfff')\nrun_python('x' + '\\ud800')\nanswer = '\\ud800'")
    for text in (host.requests[0].role_prompt, host.requests[0].messages[0], e.tools[0].program, e.answer):
        text.encode()
    assert e.status == "ok"


@pytest.mark.parametrize("script", [
    "import os\nfor _ in range(3):\n    if os.fork() == 0:\n        while True: pass",
    "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)",
    "import signal, time\nfor n in (1, 2, 13, 15, 24, 25): signal.signal(n, signal.SIG_IGN)\ntime.sleep(600)",
    "import atexit, time\natexit.register(time.sleep, 600)",
    "import sys\nsys.modules['metaagent_x.mas.child']._run = None\nsolver.__self__ = None",
    "import threading\nthreading.Thread(target=exec, args=('while True: pass',), daemon=True).start()",
])  # fmt: skip
async def test_hostile_scripts_leave_nothing_and_harm_no_sibling(script):
    good = Host(lambda r: RIGHT, delay=lambda r: 0.05)
    bad, *others = await asyncio.gather(
        Host(lambda r: RIGHT).run(script + "\nanswer = solver()(task)", budget=Budget(wall_s=1.0, cpu_s=1)),
        *(good.run("answer = ensemble([solver(), solver()])(task)") for _ in range(3)),
    )
    assert bad.status in ("ok", "wall", "cpu", "crash", "budget")
    assert {e.status for e in others} == {"ok"}
    assert os.listdir(client.zygote().folder) == []
    for _ in range(100):  # strays die by SIGKILL; the kernel may need a moment
        if not running():
            return
        await asyncio.sleep(0.02)
    pytest.fail("a process survived")


async def test_a_script_sees_no_secret(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    tests = ({"kind": "stdin", "input": "1", "output": "out-secret"},)
    task = Task("id-secret", "code", "visible", tests, {"source": "meta-secret"})
    host = Host(lambda r: RIGHT)
    objects = "repr([o for o in gc.get_objects() if isinstance(o, (str, dict, list))])[:500_000]"
    await host.run(f"import os, gc\nsolver()({objects} + str(os.environ))", task)
    assert "visible" in host.requests[0].messages[0] and "secret" not in host.requests[0].messages[0]


async def test_defaults_are_those_of_the_records():
    assert Budget() == Budget(32, 131_072, 6, 16, 1200.0, 10.0, 512) and sandbox.Limits(cpu_s=1)


async def test_a_script_process_cannot_write_to_our_terminal():
    """Its threads' tracebacks, and whatever else it says on standard error, would fill a long run's log."""
    host = Host(lambda r: RIGHT)
    await host.run("import os\nsolver()(' '.join(os.readlink(f'/proc/self/fd/{i}') for i in range(3)))")
    assert host.requests[0].messages == ("/dev/null /dev/null /dev/null",)


RAW = """
import json, os, socket
line = socket.socket(fileno=os.dup(3))
def say(**message): line.sendall(json.dumps(message).encode() + b"\\n")
"""


@pytest.mark.parametrize("kind,what,flood", [
    ("code", "characters", "for i in range(200): say(do='brief', id=10**6 + i, text='x = 1\\n' * 20_000)"),
    ("math", "bytes", "while True: say(do='links', links=[], junk=[{}] * 200_000)"),
    ("math", "links", "for i in range(100): say(do='links', links=[['0', '1', 'vote']] * 1000)"),
    ("math", "comparisons", "for i in range(20): say(do='classes', id=10**6 + i, texts=[str(j) for j in range(90)])"),
])  # fmt: skip
async def test_what_a_script_has_the_host_read_is_bounded(kind, what, flood):
    """Parsing on the host holds up every other script, and comparing keeps the graders busy."""
    task = MATH if kind == "math" else CODE
    e = await Host(lambda r: RIGHT).run(RAW + flood + "\nwhile True: pass", task, budget=Budget(cpu_s=5))
    assert e.status == "crash" and f"more {what} than its calls can account for" in e.reason


async def test_only_the_end_of_a_huge_answer_is_read():
    e = await Host(lambda r: "so \\boxed{7}").run("t = solver()(task)\nanswer = 'x' * 10**6 + t")
    assert e.status == "ok" and e.answer == "so \\boxed{7}" and not e.flags
    e = await Host(lambda r: "so \\boxed{7}").run("t = solver()(task)\nanswer = t + 'x' * 10**6")
    assert e.status == "ok" and len(e.answer) == 100_000 and e.flags == {"answer_not_from_agents"}


async def test_an_answer_that_cannot_be_read_ends_neither_the_step_nor_the_reward(monkeypatch):
    def fail(*_):
        raise ValueError("odd text")

    monkeypatch.setattr(runner, "as_said", fail)
    e = await Host(lambda r: RIGHT).run("answer = solver()(task)")
    assert (e.status, e.answer, len(e.calls)) == ("crash", "", 1) and "odd text" in e.reason
