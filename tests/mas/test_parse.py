"""From completion to script, and what lint says before anything runs."""

import pytest
from mas_host import Host

from metaagent_x.mas import Script, lint, parse_completion
from metaagent_x.mas.script import protect_latex

S = "answer = solver()(task)"
OLD = "answer = critic()(task)"


@pytest.mark.parametrize("text,script", [
    (f"Easy.\n```python\n{S}\n```\nDone.", S),
    (f"```\n{S}\n```", S),
    (f"```py\n{OLD}\n```\nBetter:\n```python\n{S}\n```", S),
    (f"Plan.\n<code>\n```python\n{S}\n```\n</code>", S),
    (f"<code>{S}</code>", S),
    (f"<code>{OLD}</code> or <code>\n{S}\n</code> rest", S),
    (S, S),
    ("answer=solver()(task)", "answer=solver()(task)"),
    (f"<think>\n```python\n{OLD}\n```</think>\n\n{S}", S),
    (f"```python\n{S}\n```\n```python\nanswer = solver(", S),
    (f"```python\n{S}\n```\n```\nsome output, no Python!\n```", S),
    (f"```python\r\n{S}\r\n```\r\n", S),
    (f"```python\n{S}\n```\nIt prints:\n```text\ndone\n```", S),
    (f"```python\n{S}\n```\n```json\n{{}}\n```", S),
    (f"```metaagent\n{S}\n```", S),
    (f"```python\n{S}", S),
    ("answer = solver(", "answer = solver("),
    ("```python\nanswer = (\n```", "answer = ("),
    ('```python\na = agent("x", """End with\n```python\ncode\n```\n""")\nanswer = a(task)\n```',
     'a = agent("x", """End with\n```python\ncode\n```\n""")\nanswer = a(task)'),
])  # fmt: skip
def test_the_last_complete_script_wins(text, script):
    found = parse_completion(text)
    assert found is not None and found.text.strip() == script and found.source.strip() == script


@pytest.mark.parametrize(
    "text", ["", "  \n", "I would ask several experts and compare.", "```\n```", "```python\nanswer = s("]
)
def test_no_script_is_none(text):
    assert parse_completion(text) is None


@pytest.mark.parametrize("source,value", [
    (r'"use \boxed{} and \frac{1}{2}"', r"use \boxed{} and \frac{1}{2}"),
    (r'"\text{a} \neq \nu \right) \theta"', r"\text{a} \neq \nu \right) \theta"),
    (r'"\vec{v} \alpha \xi \tau"', r"\vec{v} \alpha \xi \tau"),
    (r'"\(x\) \{1\} \, \sqrt \pi \unit \Unit \Nat"', r"\(x\) \{1\} \, \sqrt \pi \unit \Unit \Nat"),
    (r'"a\nb\tc \nend \table \rest \\boxed \' \" \x41 \u0041 \N{DIGIT ONE} \101"',
     "a\nb\tc \nend \table \rest \\boxed ' \" A A 1 A"),
    (r"r'\boxed\n'", "\\boxed\\n"),
    ('"""\\boxed\n"x" \\text"""', '\\boxed\n"x" \\text'),
    (r"f'\boxed{{{1 + 1}}}'", "\\boxed{2}"),
    (r"'a' '\boxed' # '\boxed", "a\\boxed"),
    (r"b'\x00\n'", b"\x00\n"),
])  # fmt: skip
def test_latex_in_ordinary_strings_survives(source, value):
    assert eval(protect_latex(source)) == value


async def test_latex_reaches_the_agent_as_written():
    script = parse_completion("```python\nanswer = solver('write \\boxed{\\frac{1}{2}} \\text{ok}')(task)\n```")
    host = Host(lambda r: "x")
    await host.run(script)  # type: ignore[arg-type]
    assert host.requests[0].role_prompt.endswith("write \\boxed{\\frac{1}{2}} \\text{ok}")


@pytest.mark.parametrize("source", [
    S,
    "while True:\n    answer = solver()(task)",
    "def f(t, *a, k=1, **w):\n    return [t + str(i) for i in range(k)]\nanswer = f(task)[0]",
    "try:\n    x = 1\nexcept ValueError as e:\n    print(e)\nfor i, (a, *b) in enumerate([(1, 2)]): print(i, a, b)",
    "if (n := 3) > 2: answer = (lambda z: solver()(z))(task)",
    "match kind:\n    case [x, *y]: a = x or y\n    case {'k': v, **r}: a = v or r\n    case w: a = w",
    "from metaagent_x.mas import solver, ensemble as many\nimport metaagent_x\nanswer = many([solver()])(task)",
    "class Plan:\n    text = task\nanswer = solver()(Plan.text.strip().upper())",
    "with open_nothing as f: print(f)\nopen_nothing = 1",
])  # fmt: skip
def test_ordinary_scripts_have_no_problem(source):
    assert lint(Script.of(source)) == []


@pytest.mark.fault("B005")
@pytest.mark.parametrize("source,line,word,hint", [
    ('s = agent("s", SOLVE_PROMPT)\nanswer = s(task)', 1, "SOLVE_PROMPT", "solve"),
    ("x = 1\nanswer = ensembel([solver()])(task)", 2, "ensembel", "nearest word: ensemble"),
    ("answer = solver()(tsk)", 1, "tsk", "nearest word: task"),
    ("answer = run_code(task)", 1, "run_code", "unknown name run_code"),
    ("import os\nanswer = solver()(task)", 1, "os", "imports nothing"),
    ("from os.path import join\nanswer = join(task)", 1, "os.path", "imports nothing"),
    ("from workflow import AgentNode\nanswer = AgentNode(task)", 2, "AgentNode", "unknown name"),
    ("answer = open('x').read()", 1, "open", "not allowed"),
    ("answer = eval(task)", 1, "eval", "not allowed"),
    ("answer = __import__('os').name", 1, "__import__", "not allowed"),
    ("a = 1\nanswer = task.__class__", 2, "__class__", "not allowed"),
    ("answer = f'{task.__class__}'", 1, "__class__", "not allowed"),
    ("answer = ().__class__.__mro__", 1, "__class__", "not allowed"),
    ("answer = solver(\n", 1, "answer = solver(", "syntax error"),
    ("x = 1\n  y = 2", 2, "y = 2", "syntax error"),
    ("async def f(): pass", 1, "async", "not needed"),
    ("x = '\x00'", 1, "", "syntax error"),
    ("x = " + "(" * 5000, 1, "", "syntax error"),
])  # fmt: skip
def test_lint_names_line_word_and_way_out(source, line, word, hint):
    """FoundationAgents/MetaGPT#1549: a graph referred to a prompt that was never generated, found at run time."""
    first = lint(Script.of(source))[0]
    assert first.line == line and hint in first.hint
    assert not word or first.word == word
    assert str(first).endswith(f", line {line}")


def test_every_unknown_name_is_listed_once_in_order():
    problems = lint(Script.of("a = beta\nc = alpha + alpha\nd = task.__dict__"))
    assert [(p.line, p.word) for p in problems] == [(1, "beta"), (2, "alpha"), (3, "__dict__")]
    assert str(problems[0]).startswith("unknown name beta")


def test_a_prompt_slot_of_the_tiny_set_is_never_a_script():
    assert parse_completion("\\boxed{4}") is None and parse_completion("review") is None
