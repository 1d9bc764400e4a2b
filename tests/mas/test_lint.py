"""What lint says before anything runs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mas_host import Host

from metaagent_x.mas import Script, child, lint, own_imports
from metaagent_x.mas.lint import MAIN_FUNCTIONS, MODULES

S = "answer = solver()(task)"


@pytest.mark.parametrize("source", [
    S,
    "while True:\n    answer = solver()(task)",
    "def f(t, *a, k=1, **w):\n    return [t + str(i) for i in range(k)]\nanswer = f(task)[0]",
    "try:\n    x = 1\nexcept ValueError as e:\n    print(e)\nfor i, (a, *b) in enumerate([(1, 2)]): answer = i, a, b",
    "if (n := 3) > 2: answer = (lambda z: solver()(z))(task)",
    "match kind:\n    case [x, *y]: a = x or y\n    case {'k': v, **r}: a = v or r\n    case w: a = w\nanswer = a",
    "from metaagent_x.mas import solver, ensemble as many\nimport metaagent_x\nanswer = many([solver()])(task)",
    "class Plan:\n    text = task\nanswer = solver()(Plan.text.strip().upper())",
    "class Plan:\n    def __init__(self, t): self.t = t\nx: str = Plan(task).t\nanswer = solver()(x)",
    "def main(t): return solver()(t)\nif __name__ == '__main__': answer = main(task)",
    "def f(n: int):\n    global z\n    z = n\n    def g():\n        nonlocal n\n        n += z\n\nanswer = f(1)",
    "answer = ''\nfor t in [task]: answer = answer + solver()(t)",
    "with open_nothing as f: answer = f\nopen_nothing = 1",
])  # fmt: skip
def test_ordinary_scripts_have_no_problem(source):
    assert lint(Script.of(source)) == []


@pytest.mark.fault("B005")
@pytest.mark.parametrize("source,line,word,hint", [
    ('s = agent("s", SOLVE_PROMPT)\nanswer = s(task)', 1, "SOLVE_PROMPT", "solve"),
    ("x = 1\nanswer = ensembel([solver()])(task)", 2, "ensembel", "nearest word: ensemble"),
    ("answer = solver()(tsk)", 1, "tsk", "nearest word: task"),
    ("answer = run_code(task)", 1, "run_code", "unknown name run_code"),
    ("import os\nanswer = solver()(task)", 1, "os", "may import only re, math, json"),
    ("from os.path import join\nanswer = join(task)", 1, "os.path", "run_python(code) runs code that may import more"),
    ("from mas import AgentNode\nanswer = AgentNode(task)", 2, "AgentNode", "nearest word: agent"),
    ("def f():\n    x = 1\n    return x\nanswer = x", 4, "x", "unknown name x"),
    ("class A:\n    x = task\n    def f(self): return x", 3, "x", "unknown name x"),
    ("answer = [y for y in task] + y", 1, "y", "unknown name y"),
    ("solver()(task)\nprint(answer)", 2, "answer", "unknown name answer"),
    ("answer = solver()(tasks if kind == 'math' else task)", 1, "tasks", "nearest word: task"),
    ("answer = open('x').read()", 1, "open", "not allowed"),
    ("answer = eval(task)", 1, "eval", "use run_python"),
    ("answer = getattr(task, 'x')", 1, "getattr", "use plain values"),
    ("answer = __import__('os').name", 1, "__import__", "not allowed"),
    ("a = 1\nanswer = task.__class__", 2, "__class__", "not allowed"),
    ("answer = f'{task.__class__}'", 1, "__class__", "not allowed"),
    ("answer = ().__class__.__mro__", 1, "__class__", "not allowed"),
    ("return solver()(task)", 1, "", "set answer instead"),
    ("for x in task: pass\ncontinue", 2, "", "syntax error: 'continue'"),
    ("def f(a, a): pass", 1, "", "syntax error: duplicate argument"),
    ("answer = solver(\n", 1, "answer = solver(", "syntax error"),
    ("x = 1\n  y = 2", 2, "y = 2", "syntax error"),
    ("async def f(): pass", 1, "async", "not needed"),
    ("match task:\n    case str(__class__=c): answer = c", 2, "__class__", "not allowed"),
    ("answer = solver()._private", 1, "_private", "names without _"),
    ("answer = (x for x in task).gi_frame.f_back", 1, "f_back", "not allowed"),
    ("__builtins__ = 3", 1, "__builtins__", "choose a name"),
    ("x = 1\ndef __getattr__(n): return n", 2, "__getattr__", "choose a name"),
    ("class __A__: pass", 1, "__A__", "choose a name"),
    ("x = '\x00'", 1, "", "syntax error"),
    ("x = " + "(" * 5000, 1, "", "syntax error"),
])  # fmt: skip
def test_lint_names_line_word_and_way_out(source, line, word, hint):
    """FoundationAgents/MetaGPT#1549: a graph referred to a prompt that was never generated, found at run time."""
    first = lint(Script.of(source))[0]
    assert first.line == line and hint in first.hint
    assert not word or first.word == word
    assert str(first).endswith(f", line {line}")


@pytest.mark.fault("B015")
@pytest.mark.parametrize("source,line,word", [
    ("import ctypes\nanswer = ctypes.string_at(0)", 1, "ctypes"),
    ("class Bomb:\n    def __del__(self): print(task)\nanswer = solver()(task)", 2, "__del__"),
    ('answer = solver()(task)\nanswer += "{0.__class__.__mro__}".format(task)', 2, "0.__class__.__mro__"),
    ('answer = "{t.__class__}".format(t=task)', 1, "t.__class__"),
    ('answer = "{:{w.__class__}}".format(1, w=task)', 1, "w.__class__"),
    ('answer = "{0[__class__]}".format_map([task])', 1, "0[__class__]"),
    ('text = "{0.__class__}"\nanswer = text.format(task)', 2, "0.__class__"),
    ('text = "{x}"\nfor text in [task]: answer = text.format(x=1)', 2, "format"),
    ('answer = ("{0.__cla" + "ss__}").format(task)', 1, "format"),
    ('import string\nanswer = string.Formatter().vformat("{0.__class__}", [task], {})', 2, "format"),
    ("import os\nanswer = os.name", 1, "os"),
    ("import sys\nanswer = sys.path[0]", 1, "sys"),
    ("import re, subprocess\nanswer = subprocess.run(task)", 1, "subprocess"),
    ("import importlib.util as math\nanswer = math", 1, "importlib.util"),
    ("from . import re\nanswer = re", 1, "."),
    ("from json import codecs\nanswer = codecs", 1, "codecs"),
    ("from random import _os\nanswer = _os", 1, "_os"),
    ("import statistics\nanswer = statistics.sys", 2, "sys"),
    ('answer = str.format("{0.__class__}", task)', 1, "format"),
    ('answer = "".join(map("{0.__class__}".format, [task]))', 1, "format"),
    ('answer = "{".format(task)', 1, "format"),
    ("answer = ().__class__", 1, "__class__"),
    ("answer = solver()(task)\nanswer += f'{task.__class__}'", 2, "__class__"),
    ("answer = f'{task:{kind.__class__}}'", 1, "__class__"),
])  # fmt: skip
def test_ways_into_the_interpreter_are_refused_by_name(source, line, word):
    """huggingface/smolagents#2094, #2395: imports, __del__ and str.format walked out of an in-process sandbox."""
    found = [(p.line, p.word) for p in lint(Script.of(source))]
    assert (line, word) in found and {w for _, w in found} <= {word, "ctypes", "__mro__"}


@pytest.mark.parametrize("source", [
    "import re, math\nanswer = str(math.pi) + re.sub('a', 'b', task)",
    "import json, random, itertools, functools, string, statistics, fractions, textwrap\nanswer = json.dumps(1)",
    "from __future__ import annotations\nfrom typing import List as L, Any\ndef f(x: L[Any]): return x\nanswer = f(1)",
    "from collections import Counter, abc\nimport collections.abc as c\nanswer = Counter(task), abc, c",
    "from math import *\nanswer = sqrt(gcd(4, 8))",
    "from random import choice as vote\nanswer = vote('text')",
    "answer = task if type(task) is str else object()",
    "try: raise NotImplementedError\nexcept (OverflowError, LookupError): answer = callable(task)",
])  # fmt: skip
def test_modules_that_only_compute_and_harmless_builtins_are_allowed(source):
    assert lint(Script.of(source)) == []


async def test_allowed_imports_are_there_when_the_script_runs():
    lines = ["from __future__ import annotations", *(f"import {m}" for m in MODULES if m != "__future__")]
    script = Script.of("\n".join([*lines, "from math import *", "answer = str(sqrt(math.factorial(3) - 2))"]))
    assert lint(script) == []
    execution = await Host(lambda r: "x").run(script.text)
    assert (execution.status, execution.answer) == ("ok", "2.0")


@pytest.mark.parametrize("source,line,word,hint", [
    ('{"script": "answer = solver()(task)"}', 1, "answer", "nothing sets answer and no agent is used"),
    ("x = task\nprint(x)", 1, "answer", "write answer = solver()(task)"),
    ("def helper(t): return t", 1, "answer", "nothing sets answer"),
    ("from math import nosuch\nanswer = 1", 1, "nosuch", "math has no nosuch"),
])  # fmt: skip
def test_programs_without_effect_and_names_that_a_module_has_not(source, line, word, hint):
    (problem,) = lint(Script.of(source))
    assert (problem.line, problem.word) == (line, word) and hint in problem.hint


@pytest.mark.parametrize("source", [
    *(f"def {name}(task): return task" for name in MAIN_FUNCTIONS),
    "solver()(task)",
    "def f():\n    global answer\n    answer = task\nf()",
    "for answer in [task]: pass",
    "import math as answer",
])  # fmt: skip
def test_every_form_of_an_answer_counts_as_effect(source):
    assert lint(Script.of(source)) == []


def test_the_main_functions_are_those_that_run():
    assert MAIN_FUNCTIONS == child.MAIN_FUNCTIONS


@given(st.text(max_size=200) | st.recursive(
    st.sampled_from(["1", "task", "'{:{}}'.format(1)", "f'{task}'", "0x" + "f" * 5000, "-" * 99 + "1"]),
    lambda part: st.builds(
        "{}{}{}".format, st.sampled_from(["(", "[", "f(", "lambda: (", "f'{"]), part, st.sampled_from([")", "]", "}'"])
    ) | st.builds("{}{}{}".format, part, st.sampled_from(["+", "\n", ";answer=", ".x", "if 1 else"]), part),
    max_leaves=12,
))  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_lint_never_raises(text):
    script = Script.of("answer=" + text)
    assert all(str(problem) for problem in lint(script)) and own_imports(script) == 0


N = 6000


@pytest.mark.parametrize("source,hint", [
    ("answer=0x" + "f" * 5000, None),
    ("answer=" + "9" * 5000, "syntax error"),
    ("answer='" + "{:" * N + "}" * N + "'.format(1)", "more than 2 levels deep"),
    ("answer='" + "{:{}" * N + "}" * N + "'.format(1)", "more than 2 levels deep"),
    ("answer=reflect(solver(), rounds=-0x" + "f" * 5000 + ")", "rounds must be"),
    ("answer=" + "(" * N, "syntax error"),
    ("answer=" + "-" * N + "1", "syntax error"),
    ("answer=1" + "+1" * N, "syntax error"),
    ("answer=task" + ".x" * N, "syntax error"),
    ("answer=task" + "()" * N, "syntax error"),
    ("answer=" + "lambda:" * N + "1", "syntax error"),
    ("answer=" + "1 if 1 else " * N + "1", "syntax error"),
    ("if 1: pass\n" + "elif 1: pass\n" * N + "\nanswer=1", "syntax error"),
    ("answer='\ud800'", "syntax error"),
])  # fmt: skip
def test_huge_numbers_and_deep_nesting_are_read_or_named(source, hint):
    problems = lint(Script.of(source))
    assert [hint in p.hint for p in problems] == [True] if hint else problems == []
    assert own_imports(Script.of(source)) == 0


@pytest.mark.slow
def test_names_beyond_one_byte_of_the_code_are_read():
    source = "\n".join(f"a{i} = {i}" for i in range(70_000)) + "\nanswer = a69999 + wrong"
    assert [p.word for p in lint(Script.of(source))] == ["wrong"]


@pytest.mark.timeout(20)
def test_many_functions_take_no_time_of_their_square():
    assert lint(Script.of("answer=1\n" + "".join(f"def f{i}():f{i}\n" for i in range(15_000)))) == []


@pytest.mark.parametrize("source", [
    'answer = solver()("{} and {:>{w}} {x!r}".format(task, kind, x=1, w=3))',
    'answer = solver()("{0} {1:.2f}".format(task, 0.5))',
    'text = "Solve {task} {{exactly}}"\nanswer = solver()(text.format(task=task))',
    'answer = solver()("{task}".format_map({"task": task}))',
    "answer = solver()(format(0.5, '.1f') + '%s' % task)",
])  # fmt: skip
def test_format_with_plain_fields_is_allowed(source):
    assert lint(Script.of(source)) == []


@pytest.mark.parametrize("source,word,hint", [
    ("answer = reflect(solver(), iterations=3)(task)", "iterations",
     "reflect has no argument iterations (nearest word: rounds); write reflect(agent, critic=None, rounds=2)"),
    ("answer = solver(prompt='x')(task)", "prompt", "nearest word: style"),
    ("agent('a')", "agent", "agent needs role; write agent(name, role, memory=False)"),
    ("agent(role='r')", "agent", "agent needs name"),
    ("ensemble(solver(), solver(), judge())", "ensemble", "ensemble takes at most 2 arguments, not 3"),
    ("ensemble([solver()], agents=[solver()])", "agents", "ensemble is given agents twice"),
    ("run_python(code=task, input='3')", "input", "nearest word: stdin"),
    ("together([solver()])", "together", "together needs messages"),
    ("def f(): return vote()", "vote", "vote needs texts; write vote(texts)"),
    ("reflect(*[solver()], iteration=1)", "iteration", "nearest word: "),
    ("ensemble([solver, critic()])", "solver", "solver is not an agent yet: write solver()"),
    ("debate(agents=[solver()] + [solver] * 2)", "solver", "write solver()"),
    ("reflect(solver(), critic)", "critic", "write critic()"),
    ("reflect(solver(), critic=critic)", "critic", "write critic()"),
    ("answer = solver", "solver", "write solver()"),
    ("answer = reflect(solver(), rounds=0)", "rounds", "rounds must be a whole number of at least 1"),
    ("answer = debate([solver()], None, -2)", "rounds", "write debate(agents, judge=None, rounds=2)"),
    ("answer = solve_and_test(solver(), rounds='3')", "rounds", "whole number"),
    ("answer = vote('text')", "texts", "vote takes a list of texts, as in vote([a, b])"),
    ("answer = agree(texts=f'{task}')", "texts", "agree takes a list of texts"),
])  # fmt: skip
def test_arguments_of_our_own_names_are_checked(source, word, hint):
    (problem,) = lint(Script.of(source))
    assert problem.word == word and hint in problem.hint


@pytest.mark.parametrize("source", [
    "def reflect(a, iterations): return a\nanswer = reflect(solver(), iterations=3)(task)",
    "from mas import reflect as ensemble\nanswer = ensemble(solver(), rounds=1)(task)",
    "options = {'rounds': 1}\nanswer = reflect(*[solver()], **options)(task)",
    "answer = ensemble(list(map(solver, ['a', 'b'])))(task)",
    "make = solver\nanswer = ensemble([make(), critic()], judge())(task)",
    "def solver(text): return text\nanswer = ensemble([solver])(task)",
    "answer = together(code_of, [solver()(task)])[0]",
    "answer = solver(style='a', memory=True)(task)",
    "n = 0\nanswer = reflect(solver(), rounds=n)(vote([task]))",
    "answer = reflect(solver(), None, 1)(task)",
])  # fmt: skip
def test_what_only_a_run_can_tell_or_the_script_redefines_is_left_alone(source):
    assert lint(Script.of(source)) == []


WORKFLOW = "import os, subprocess\nfrom workflow import AgentNode\n"


@pytest.mark.parametrize("source,words", [
    ("class A:\n    def __del__(self): print(self.__class__, open)\na = AgentNode('{0.x}'.format(os), os._exit)", []),
    ("result = AgentNode(qestion).run(subprocess)", ["qestion"]),
    ("def f():\n    hidden = 1\nprint(hidden, AgentNod)", ["AgentNod", "hidden"]),
    ("from math import *\nprint(sqrt(2), nothing)", []),
    ("x = (", ["x = ("]),
    ("reflect(solver(), iterations=3)", []),
])  # fmt: skip
def test_another_dialect_may_import_and_use_what_it_likes_but_names_must_be_bound(source, words):
    assert [p.word for p in lint(Script.of(WORKFLOW + source))] == words


@pytest.mark.parametrize("source,count", [
    (S, 0),
    ("from metaagent_x.mas import solver, judge\nimport mas\n" + S, 2),
    ("from workflow import solver\n" + S, 1),
    ("def f():\n    import metaagent_x.mas\n" + S, 1),
    ("import os\n" + S, 0),
    ("from workflow import AgentNode, Workflow\nimport workflow", 0),
    ("import mas\nx = (", 0),
])  # fmt: skip
def test_imports_of_our_own_names_are_counted(source, count):
    assert own_imports(Script.of(source)) == count


def test_of_very_many_unknown_names_the_first_are_listed():
    """To find the nearest word for thousands of them would hold up all other designs."""
    problems = lint(Script.of("\n".join(f"a{i} = b{i}" for i in range(3000))))
    assert [(p.line, p.word) for p in problems] == [(i + 1, f"b{i}") for i in range(20)]


def test_every_unknown_name_is_listed_once_in_order():
    problems = lint(Script.of("a = beta\nc = alpha + alpha\nd = task.__dict__"))
    assert [(p.line, p.word) for p in problems] == [(1, "beta"), (2, "alpha"), (3, "__dict__")]
    assert str(problems[0]).startswith("unknown name beta")
