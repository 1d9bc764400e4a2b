"""From completion to script."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mas_host import Host

from metaagent_x.mas import lint, own_imports, parse_completion
from metaagent_x.mas.parse import CLOSING, LABEL, LOOKS_LIKE, OPENING, TAG, THOUGHT
from metaagent_x.mas.script import LITERAL, protect_latex

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
    (f"<think>hm</think>```python\n{S}\n# </think>\n```", f"{S}\n# </think>"),
    (f"```python\n{S}\n```\n```python\nanswer = solver(", S),
    (f"```python\n{S}\n```\n```\nsome output, no Python!\n```", S),
    (f"```python\r\n{S}\r\n```\r\n", S),
    (f"```python\n{S}\n```\nIt prints:\n```text\ndone\n```", S),
    (f"```python\n{S}\n```\n```json\n{{}}\n```", S),
    (f"```metaagent\n{S}\n```", S),
    (f"```python\n{S}\n```\nFor example it prints\n```\n7\n```", S),
    (f"```python\n{S}\n```\nwhich is run as\n```python\nprint(answer)\n```", S),
    (f"```python\n{S}```\nDone.", S),
    (f"```python\n{S}\n  ```  \n", S),
    (f"```python\n{S}\n``` This is it.", S),
    (f"```python\n{S}\n```<|im_end|>", S),
    (f"```python3.11\n{S}\n```", S),
    (f'```python title="x"\n{S}\n```\n```text\nmore\n```', S),
    (f"``` python {{.line}}\n{S}\n```\n```text\nmore\n```", S),
    (f"```{{.python}}\n{S}\n```\n```text\nmore\n```", S),
    (f"````python\n{S}\n````", S),
    (f"~~~python\n{S}\n~~~", S),
    (f"````python\n'''\n```\n'''\n{S}\n````", f"'''\n```\n'''\n{S}"),
    (f"1. Script:\n   ```python\n   if 1:\n       {S}\n   ```", f"if 1:\n    {S}"),
    (f"- ```python\n  {S}\n  ```", S),
    (f"<code lang='python'>\n{S}\n</code>", S),
    (f"<answer>\n{S}\n</answer>", S),
    (f"<python>\n```\n{S}\n```\n</python>", S),
    (f"<workflow>\n{S}\n</workflow>", S),
    (f"<answer>42</answer>\n```python\n{S}\n```", S),
    (f"<answer>print(1)</answer>\n```python\n{S}\n```", S),
    (f"It stands in <code> tags.\n<code>\n{S}\n</code>", S),
    (f"\ufeff{S}", S),
    ("```python\nanswer =\u00a0solver()(task)\n```", S),
    ("```python\ns = solver()\n```\nthen\n```python\nanswer = s(task)\n```", "s = solver()\n\nanswer = s(task)"),
    ("```python\ns = solver()\n```\nthen\n```python\nanswer = t(task)\n```", "answer = t(task)"),
    ("```python\nx = y\n```\n```python\nanswer = x(task)\n```", "answer = x(task)"),
    (f"```python\n{S}", S),
    (f"Two views help.\n\n{S}", S),
    (f"Here it is:\n{S}\n{S}\n\nThis solves it.", f"{S}\n{S}"),
    ("x = 1\n" * 100 + S, "x = 1\n" * 100 + S),
    ("Many words here.\n" * 100 + S, S),
    (f"It's easy (one agent).\nScript:\n{S}\n\nIt isn't costly.", S),
    ("Two steps:\nx = solver()(task)\nanswer = critic(", "Two steps:\nx = solver()(task)\nanswer = critic("),
    ("x = solver()(task)\ny = = 2\nanswer = critic()(x)", "x = solver()(task)\ny = = 2\nanswer = critic()(x)"),
    ("answer = solver()(task)\ny = = 2", "answer = solver()(task)\ny = = 2"),
    ("x = solver()(task)\n\ny = = 2\nanswer = critic()(x)", "x = solver()(task)\n\ny = = 2\nanswer = critic()(x)"),
    ("```python\nprint(task)\n```", "print(task)"),
    ("```python\nanswer = ( ```\nmore\n```", "answer = ( ```\nmore"),
    (f"I put it in <code>tags</code>:\n```python\n{S}\n```", S),
    ("```python\nanswer = agent('a', 'end with <code>x</code>')(task)\n```",
     "answer = agent('a', 'end with <code>x</code>')(task)"),
    (f"<code>\n```python\n{S}\n```", S),
    (f"<code>\n{OLD}\n</code>\n<code>\nanswer = (\n</code>", OLD),
    ("from workflow import Workflow\nWorkflow(name='w')", "from workflow import Workflow\nWorkflow(name='w')"),
    ('```python\na = agent("a", "put it in ```")\nanswer = a(task)\n```',
     'a = agent("a", "put it in ```")\nanswer = a(task)'),
    ("answer = solver(", "answer = solver("),
    ("```python\nanswer = (\n```", "answer = ("),
    ('```python\na = agent("x", """End with\n```python\ncode\n```\n""")\nanswer = a(task)\n```',
     'a = agent("x", """End with\n```python\ncode\n```\n""")\nanswer = a(task)'),
])  # fmt: skip
def test_the_last_complete_script_wins(text, script):
    found = parse_completion(text)
    assert found is not None and found.text.strip() == script and found.source.strip() == script


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  \n",
        "I would ask several experts and compare.",
        "```\n```",
        "```python\nanswer = s(",
        "<answer>42</answer>",
        "answer\n= ( x y",
    ],
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
    (r"'\N{nosuch} \N{DIGIT ONE} \N{R}'", r"\N{nosuch} 1 \N{R}"),
    (r"'x' if 1 else '\''", "x"),
    (r"'\table \rest \nor \nless \title'", "\table \rest \nor \nless \\title"),
])  # fmt: skip
def test_latex_in_ordinary_strings_survives(source, value):
    assert eval(protect_latex(source)) == value


@pytest.mark.parametrize("command", [
    "tag", "textcolor", "triangleq", "notag", "newcommand", "nolimits", "ncong", "nleq", "ngeq", "nsim", "ni", "tiny",
    "nparallel", "nrightarrow", "toprule", "rVert", "rtimes", "nonumber", "noindent", "rightharpoonup", "thinspace",
])  # fmt: skip
def test_commands_that_start_like_an_escape_are_latex(command):
    assert eval(protect_latex(f"'a \\{command}{{1}}'")) == f"a \\{command}{{1}}"


async def test_latex_reaches_the_agent_as_written():
    script = parse_completion("```python\nanswer = solver('write \\boxed{\\frac{1}{2}} \\text{ok}')(task)\n```")
    host = Host(lambda r: "x")
    await host.run(script)  # type: ignore[arg-type]
    assert host.requests[0].role_prompt.endswith("write \\boxed{\\frac{1}{2}} \\text{ok}")


FRAGMENTS = (
    "```", "```python\n", "\n```\n", "<code>", "</code>", "<think>", "</think>", "answer = ", "solver()", "(task)", "'",
    '"""', "f'{", "}'", "\\", "\n", "\t", "    ", "# ", "def f(x):\n", "return ", "class A:\n", "\x00", "\ud800",
    ".format(", "{0.x}", "import os\n", "from workflow import *\n", "match x:\n case ", "lambda: ", "(", ")", "[", ":=",
    "*", "\f", "\r", "0x",
)  # fmt: skip


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join))
@example("answer = \r\r'")
@settings(max_examples=300, deadline=None)
def test_no_completion_breaks_the_reading_or_lint(text):
    script = parse_completion(text)
    if script is not None:
        for problem in lint(script):
            assert problem.line >= 0 and str(problem)
        assert own_imports(script) >= 0


def test_a_prompt_slot_of_the_tiny_set_is_never_a_script():
    assert parse_completion("\\boxed{4}") is None and parse_completion("review") is None


M = 400_000


@pytest.mark.timeout(20)
@pytest.mark.parametrize("pattern", [OPENING, CLOSING, LABEL, TAG, LOOKS_LIKE, THOUGHT, LITERAL])
@pytest.mark.parametrize("unit", [
    "\n", " ", "\t", "`", "~", "``` ", "```\n", "~~~ x", "<code>", "<code ", "</code", "<think>", "answer ", "solver ",
    "from ", "import ", "- ", "1. ", "12", "'", '"', "\\'", "\\'''\n", '\\"""', "'''\\", "{.", "#", "r'", "f\"'",
])  # fmt: skip
@pytest.mark.slow
def test_patterns_take_time_in_proportion_to_the_text(pattern, unit):
    """At this size time that grew with the square of the length would be many minutes."""
    text = unit * (M // len(unit))
    for whole in (text, text + "x", "```" + text + "x", "answer = '" + text):
        end = 0
        for match in pattern.finditer(whole):
            assert match.start() >= end
            end = match.end()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", [
    "\n" * 40_000, "<code>" * 6_666, "<answer>" * 4_000 + "</answer>" * 400, "```" + " " * 39_996,
    "```python\nx=('\n" * 2_600,
    "answer = solver()(task)\n" + "\\'''\n" * 7_500, "```python\nanswer = solver()(task) x\n```\n" * 1_000,
])  # fmt: skip
def test_hostile_completions_are_read(text):
    script = parse_completion(text)
    assert script is None or lint(script)
