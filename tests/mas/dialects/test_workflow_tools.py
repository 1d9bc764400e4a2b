"""Tools of the dialect: the loop of an agent with tools, and programs in place of subprocesses."""

import pytest
from mas_host import CODE, MATH, Host, program

from metaagent_x.mas import Budget, tools
from metaagent_x.sandbox import Limits

SEVEN = "so \\boxed{7}"
CALL = '<tool_call>{"name": "%s", "arguments": %s}</tool_call>'
AGENT = """
from workflow import *
registry = ToolRegistry()
%s
agent = AgentNode("A", "You are A.", registry, max_turns=%d)
Workflow("w").add_node(agent).run(question)
"""
PYTHON = 'registry.register("python_execute", MathEnvironment().execute, "Runs code.", {"code": {"type": "string"}})'
ADD = 'registry.register("add", lambda x, y=1: x + y, "Adds.", {"properties": {"x": {}, "y": {}}})'


def in_turn(*texts):
    left = iter(texts)
    return lambda r: next(left)


# The loop


async def test_turns_extend_one_conversation_and_tell_only_what_is_new():
    host = Host(in_turn("I run\n" + program("print(3)"), CALL % ("python_execute", '{"code": "print(4)"}'), SEVEN))
    e = await host.run(AGENT % (PYTHON, 5))
    assert [(c.path, c.conversation, c.messages) for c in e.calls] == [
        ("0", "m0", (MATH.prompt,)), ("2", "m0", ("Result of python_execute:\n3",)),
        ("4", "m0", ("Result of python_execute:\n4",)),
    ]  # fmt: skip
    assert [(t.path, t.program) for t in e.tools] == [("1", "print(3)\n"), ("3", "print(4)\n")]
    assert e.answer == SEVEN and e.structure == "single" and len({r.role_prompt for r in host.requests}) == 1


async def test_every_use_of_an_agent_begins_a_conversation_of_its_own():
    script = AGENT % (ADD, 2) + "EnsembleNode('e', [agent, agent]).run(question)"
    e = await Host(lambda r: SEVEN if "Result" in r.messages[0] else CALL % ("add", '{"x": 6}')).run(script)
    assert [(c.path, c.conversation) for c in e.calls] == [
        ("0", "m0"), ("1", "m0"), ("2.0.0", "m2.0.0"), ("2.0.1", "m2.0.0"), ("2.1.0", "m2.1.0"), ("2.1.1", "m2.1.0"),
    ]  # fmt: skip
    assert e.status == "ok"


@pytest.mark.parametrize("task,runs", [(MATH, True), (CODE, False)])
async def test_an_agent_is_told_its_tools(task, runs):
    host = Host(lambda r: SEVEN)
    await host.run(AGENT % (PYTHON + "\n" + ADD, 2), task)
    role = host.requests[0].role_prompt
    assert "- python_execute(code): Runs code.\n- add(x, y): Adds.\n" in role and "<tool_call>" in role
    assert ("```python block in a turn without a final answer is run" in role) == runs


@pytest.mark.parametrize("turns,calls,runs", [(0, 2, 0), (1, 3, 1), (3, 5, 3)])
async def test_after_its_turns_an_agent_must_answer(turns, calls, runs):
    host = Host(lambda r: CALL % ("python_execute", '{"code": "print(1)"}'))
    e = await host.run(AGENT % (PYTHON, turns))
    assert (len(e.calls), len(e.tools)) == (calls, runs)
    assert host.requests[-1].messages == ("No further tool is run. Give your final answer now.",)


@pytest.mark.parametrize("setup,task,reply", [
    ("", MATH, program("print(7)")),
    ("", MATH, CALL % ("add", '{"x": 6}')),
    (PYTHON, MATH, program("print(7)") + "\n" + SEVEN),
    (PYTHON, MATH, "```\nno program\n```"),
    (PYTHON, MATH, "```python\nprint(7)  # never closed"),
    (PYTHON, CODE, program("print(7)")),
    (PYTHON, CODE, "<solution>print(7)</solution>"),
])  # fmt: skip
async def test_what_is_no_tool_call(setup, task, reply):
    """pettingllms-ai/PettingLLMs: every Python block was run, so a program given as the answer never was one."""
    e = await Host(lambda r: reply).run(AGENT % (setup, 3), task)
    assert len(e.calls) == 1 and not e.tools and e.answer == reply


@pytest.mark.parametrize("reply,result", [
    (CALL % ("add", '{"x": 6}'), "Result of add:\n7"),
    ('<tool_call>{"name": "add", "parameters": {"x": 6, "y": 2}}', "Result of add:\n8"),
    ('<tool_call>\n{"name": "add",\n "arguments": "{\\"x\\": 1}"}\n</tool_call>', "Result of add:\n2"),
    (CALL % ("add", '{"x": "a", "y": "\n"}'), "Result of add:\na\n"),
    (CALL % ("add", "{}"), "error: TypeError"),
    (CALL % ("add", "[1]"), "error: ValueError"),
    (CALL % ("subtract", "{}"), "there is no tool 'subtract'; there are: add"),
    ("<tool_call></tool_call>", 'it has not the form {"name": ..., "arguments": {...}}'),
    ('<tool_call>{"arguments": {}}</tool_call>', "it has not the form"),
    ("<tool_call>[1]</tool_call>", "it has not the form"),
    (CALL % ("add", '{"x": [], "y": %s}' % ([0] * 5000)), "characters ..."),
    ("By a program:\n" + program("print(7)"), "Result of the program:\n7"),
])  # fmt: skip
async def test_tool_results_and_errors_are_told_as_text(reply, result):
    host = Host(in_turn(reply, SEVEN))
    e = await host.run(AGENT % (ADD, 3))
    assert result in host.requests[1].messages[0] and len(host.requests[1].messages[0]) < 5000
    assert (e.status, e.answer) == ("ok", SEVEN)


async def test_tools_are_counted_and_a_spent_budget_ends_the_script():
    host = Host(lambda r: CALL % ("python_execute", '{"code": "print(1)"}'))
    e = await host.run(AGENT % (PYTHON, 9), budget=Budget(tool_runs=2))
    assert e.status == "budget" and "tools" in e.reason and len(e.tools) == 2


async def test_an_answer_that_only_a_tool_of_the_script_knows_is_not_an_agents():
    setup = 'registry.register("oracle", lambda: "\\boxed{7}", "Knows.")'
    script = AGENT % (setup, 3) + "print(registry.call_tool('oracle', {}))"
    e = await Host(in_turn(CALL % ("oracle", "{}"), "It refuses.")).run(script)
    assert e.answer == "It refuses." and e.flags == set()


@pytest.mark.parametrize("setup", [
    "registry.register(add)", "@registry.register\ndef other(x): pass\nregistry.register('add', add)",
    "registry.register('add')(add)", "registry.register(name='add', func=add, description='Adds.', parameters=None)",
])  # fmt: skip
async def test_ways_to_register(setup):
    script = 'def add(x, y=1):\n    "Adds."\n    return x + y\n' + setup
    host = Host(in_turn(CALL % ("add", '{"x": 6}'), SEVEN))
    await host.run(AGENT % (script, 3))
    assert "add(): Adds." in host.requests[0].role_prompt and host.requests[1].messages == ("Result of add:\n7",)


# Programs in place of subprocesses

VALUE = """
import io, os, subprocess, sys, tempfile, workflow
from subprocess import PIPE, STDOUT, run

def py(code, *more, **options):
    return run([sys.executable, "-c", code, *more], **options)

def attempt(f):
    try:
        return f()
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"

def write(name, text):
    with open(name, "w") as file:
        file.write(text)
    return name

%s
workflow.AgentNode("A", repr(%s)).run("")
"""


async def value(expression, before="", **options):
    """What an expression is in a script, by way of an agent's role; and the execution."""
    host = Host(lambda r: SEVEN)
    e = await host.run(VALUE % (before, expression), **options)
    assert e.status == "ok", e.reason
    return host.requests[-1].role_prompt.rpartition("\nIf you state")[0], e


@pytest.mark.parametrize("expression,expected", [
    ("py('print(input())', input='hi', capture_output=True, text=True).stdout", "hi\n"),
    ("py('print(1)', stdout=PIPE).stdout", b"1\n"),
    ("py('print(1)').stdout", None),
    ("py('import sys; print([sys.stdin.read()])', stdout=PIPE).stdout", b"['']\n"),
    ("[os.mkdir('sub'), write('sub/p', 'print(4)'), run(['python', 'p'], cwd='sub', stdout=PIPE).stdout][2]", b"4\n"),
    ("py('raise SystemExit(4)', capture_output=True).returncode", 4),
    ("py('print(1)\\n1/0', capture_output=True, text=True).stdout", "1\n"),
    ("py('1/0', capture_output=True, text=True).stderr", "ZeroDivisionError: division by zero (line 1)"),
    ("py('print(1)\\n[][0]', stdout=PIPE, stderr=STDOUT, text=True).stdout[:12]", "1\nIndexError"),
    ("py('import sys; print(sys.argv)', 'a', 'b c', capture_output=True, text=True).stdout", "['-c', 'a', 'b c']\n"),
    ("run(['python', '-u', write('p', 'import sys\\nprint(sys.argv)'), '5'], stdout=PIPE).stdout", b"['p', '5']\n"),
    ("run(['python3'], input='print(5)', capture_output=True, text=True).stdout", "5\n"),
    ("run(['python', '-'], input=b'print(5)', capture_output=True).stdout", b"5\n"),
    ("run('python3 -c \"print(6)\"', shell=True, capture_output=True, text=True).stdout", "6\n"),
    ("subprocess.check_output(['/usr/bin/python3.11', '-c', 'print(2)'], text=True)", "2\n"),
    ("subprocess.getoutput('python3 -c \"print(6)\"')", "6"),
    ("subprocess.call(['python', '-c', 'exit(3)'])", 3),
    ("os.popen('python -c \"print(7)\"').read()", "7\n"),
    ("os.system('python -c \"import sys; sys.exit(3)\"')", 768),
    ("attempt(lambda: run(['python', '-c', '1/0'], check=True))",
     "CalledProcessError: Command '['python', '-c', '1/0']' returned non-zero exit status 1."),
    ("py('print(input())', stdin=open(write('in', 'of a file')), stdout=PIPE, text=True).stdout", "of a file\n"),
    ("[py('print(8)', stdout=open('out.txt', 'w')), open('out.txt').read()][1]", "8\n"),
])  # fmt: skip
async def test_python_programs_are_run_by_the_host(expression, expected):
    got, e = await value(expression)
    assert got == repr(expected)
    assert len(e.tools) == 1


POPEN = "p = subprocess.Popen([sys.executable, '-c', 'print(int(input()) * 2)'], stdin=PIPE, stdout=PIPE, text=True)\n"


@pytest.mark.parametrize("before,expression,expected", [
    (POPEN, "(p.communicate('4', timeout=5), p.returncode, p.poll())", (("8\n", None), 0, 0)),
    (POPEN + "p.stdin.write('5')\np.stdin.close()", "(p.stdout.read(), p.wait())", ("10\n", 0)),
    (POPEN + "p.stdin.write('6')", "p.communicate()[0]", "12\n"),
    ("with " + POPEN[4:-1] + " as p:\n    out = p.communicate(input='7')[0]\np.kill()", "out", "14\n"),
    ("p = subprocess.Popen(['python', '-c', 'print(1)'], stdout=PIPE)\np.wait()", "list(p.stdout)", [b"1\n"]),
])  # fmt: skip
async def test_popen(before, expression, expected):
    got, e = await value(expression, before)
    assert got == repr(expected) and len(e.tools) == 1


@pytest.mark.parametrize("kill", ["os.killpg(p.pid, 9)", "os.kill(p.pid, 9)", "os.killpg(os.getpgid(p.pid), 9)"])
async def test_a_script_that_kills_its_program_does_not_end_itself(kill):
    """The usual way on a timeout. The program has no process here, and its number is nobody's."""
    got, _ = await value(f"attempt(lambda: {kill})[:7]", POPEN)
    assert got in (repr("Process"), repr("Permiss"))
    got, _ = await value("p.pid != os.getpid() and not os.path.exists(f'/proc/{p.pid}')", POPEN)
    assert got == "True"


@pytest.mark.parametrize("ending", ["for i in iter(int, 1): pass", "import time; time.sleep(60)"])
async def test_a_program_at_a_limit_is_a_timeout(ending, monkeypatch):
    monkeypatch.setattr(tools, "LIMITS", Limits(cpu_s=1, wall_s=2))
    got, e = await value(f"attempt(lambda: py('print(1, flush=True)\\n{ending}', capture_output=True, timeout=9))")
    assert "TimeoutExpired" in got and "timed out after 9 seconds" in got
    assert e.tools[0].status in ("cpu", "wall")
    before = f"p = subprocess.Popen(['python', '-c', {ending!r}])\ntry: p.wait(timeout=1)\nexcept Exception: p.kill()"
    got, _ = await value("(p.wait(timeout=1), py('import os; os.kill(os.getpid(), 9)').returncode)", before)
    assert got == "(-9, 1)"


@pytest.mark.parametrize("expression,words", [
    ("run(['ls', '-l'])", "'ls -l' is not started: only Python programs are"),
    ("os.system('touch made')", "'touch made' is not started"),
    ("os.popen('cat /etc/passwd').read()", "'cat /etc/passwd' is not started"),
    ("run('echo 1 | python3', shell=True)", "only Python programs are"),
    ("run('python3 a.py < in.txt', shell=True)", "there is no shell"),
    ("run(['python3', '-m', 'http.server'])", "no module to run"),
    ("run(['bash', '-c', 'python3 -c 1'])", "only Python programs are"),
    ("run([])", "is not started"),
    ("run(['pythonista', '-c', '1'])", "only Python programs are"),
    ("run(['python', 'missing.py'])", "FileNotFoundError"),
])  # fmt: skip
async def test_other_commands_are_refused_by_name(expression, words):
    got, e = await value(f"attempt(lambda: {expression})")
    assert words in got and not e.tools
    assert "PermissionError" in got or "FileNotFoundError" in got


async def test_temporary_files_lie_in_the_private_folder():
    before = "there = tempfile.tempdir\nt = tempfile.NamedTemporaryFile('w+')\nt.write('kept')\nt.seek(0)"
    got, _ = await value("(there == os.getcwd() == os.path.dirname(t.name), t.read(), os.environ['TASK_TYPE'])", before)
    assert got == repr((True, "kept", "math"))


async def test_environments_and_functions_of_the_package():
    before = (
        "from utils.environments.code_env import CodeEnvironment as C\nfrom workflow import python_execute\nc = C()"
    )
    expression = (
        "(c.write_file('a', 'bc'), c.read_file('a'), c.execute('print(9)', timeout=3), python_execute('x = 1'))"
    )
    got, _ = await value(expression, before)
    assert got == repr(("2 characters written to a", "bc", "9", "The program printed nothing."))


async def test_threads_of_a_script_may_compute_but_use_no_agent_or_program():
    setup = """
from concurrent.futures import ThreadPoolExecutor
def add(x):
    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(int, [x, 1]))
def run_many(code):
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(python_execute, [code, code]))
registry.register(add)
registry.register(run_many)
"""
    host = Host(in_turn(CALL % ("add", '{"x": 6}'), CALL % ("run_many", '{"code": "print(1)"}'), SEVEN))
    e = await host.run(AGENT % (setup, 3))
    assert host.requests[1].messages == ("Result of add:\n7",)
    assert "threads of the script's own" in host.requests[2].messages[0] and not e.tools
    assert (e.status, e.answer) == ("ok", SEVEN)
