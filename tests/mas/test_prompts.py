"""The two prompt sets: what they say, what they cost."""

import dataclasses
import inspect
import pathlib
import re
from typing import Any

import pytest
from mas_host import CODE, MATH, Host, program

from metaagent_x.config import base
from metaagent_x.mas import Budget, lint, parse_completion, prompts
from metaagent_x.mas.language import NAMES, Language
from metaagent_x.mas.prompts import FULL, TINY, PromptSet
from metaagent_x.mas.records import TEST_RUNS

TOKENIZER = pathlib.Path(__file__).parents[3] / "shared/tokenizer_qwen3/tokenizer.json"


def test_the_designer_is_told_every_name_in_under_700_tokens():
    assert all(name in FULL.designer_system for name in NAMES)
    if not TOKENIZER.exists():
        pytest.skip("the Qwen3 tokenizer is not at ../shared/tokenizer_qwen3")
    tokenizers = pytest.importorskip("tokenizers")
    ids = tokenizers.Tokenizer.from_file(str(TOKENIZER)).encode(FULL.designer_system, add_special_tokens=False).ids
    assert len(ids) < 700


def test_the_designer_is_told_every_argument_and_default():
    no_line: Any = None  # nothing is run
    names = Language(no_line, "", "math", FULL).names()
    told = dict(re.findall(r"(?:^|\. )(\w+)\(([^()]*)\): ", FULL.designer_system, re.MULTILINE))
    for name in set(NAMES) - {"task", "kind", "answer"}:
        parameters = inspect.signature(names[name]).parameters.values()
        have = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]
        assert told[name].replace('"', "'").split(", ") == have, name


def test_the_designer_is_told_every_style_and_the_limits():
    told = FULL.designer_system
    for kind in ("math", "code"):
        line = re.search(rf"^- {kind}: (.*)$", told, re.MULTILINE)
        assert line is not None and line[1].split(", ") == list(FULL.styles[kind])
    budget = Budget()
    assert f"Limits: {budget.calls} calls, {budget.tool_runs} tool runs, {TEST_RUNS} of them run_tests." in told
    other = FULL.within(Budget(calls=5, tool_runs=900))
    assert f"Limits: 5 calls, 900 tool runs, {TEST_RUNS} of them run_tests." in other.designer_system
    assert other.within(budget) == FULL and TINY.within(Budget(calls=5)).designer_system == ""
    configured = base().rollout.budget
    assert (configured.calls, configured.tool_runs) == (budget.calls, budget.tool_runs)


@pytest.mark.parametrize("number,task,structure,calls", [
    (0, MATH, "reflection", 5), (1, CODE, "solver-tester", 6), (2, MATH, "ensemble", 6),
])  # fmt: skip
async def test_the_examples_in_the_documentation_are_scripts_that_run(number, task, structure, calls):
    """Every agent says something else, nobody is content: all steps of the examples are taken."""
    blocks = FULL.designer_system.split("```python\n")[1:]
    assert len(blocks) == 3
    script = parse_completion("```python\n" + blocks[number])
    assert script is not None and lint(script) == []

    def reply(r):
        if r.agent in ("critic", "tester"):
            return f"The step before {r.path} is wrong.\nWRONG"
        return program(f"print({r.path!r})") if task is CODE else f"By way {r.path}: \\boxed{{{r.path[2:3]}}}"

    e = await Host(reply).run(script.source, task)
    assert (e.status, e.flags, e.structure, len(e.calls)) == ("ok", set(), structure, calls), e.reason


def test_a_style_is_a_word_for_a_strategy_or_any_text():
    plain = FULL.role("solver", "math")
    assert FULL.role("solver", "math", " Small Cases") == plain + FULL.style + FULL.styles["math"]["small cases"]
    assert FULL.role("solver", "code", "small cases").endswith(FULL.style + "small cases")
    assert FULL.role("critic", "math", "be strict").endswith("\nHow to work: be strict")
    assert FULL.styles["math"]["verify"] != FULL.styles["code"]["verify"]


def test_answers_are_asked_for_in_the_form_that_is_graded():
    for role in ("solver", "judge"):
        assert "\\boxed{}" in FULL.role(role, "math") and "```python" in FULL.role(role, "code")
    assert "CORRECT" in FULL.role("critic", "math") and "CORRECT" in FULL.role("critic", "code")


@pytest.mark.parametrize("role,style,text", [
    ("solver", "", "solve"), ("solver", "steps", "solve steps"), ("critic", "", "review"), ("judge", "", "choose"),
    ("tester", "x", "test x"),
])  # fmt: skip
def test_tiny_roles(role, style, text):
    assert TINY.role(role, "math", style) == TINY.role(role, "code", style) == text


def test_tiny_messages():
    assert TINY.critic("T", "A") == "T\nearlier: A"
    assert TINY.revise("T", "A", "R") == "T\nearlier: A\nreview: R"
    assert TINY.judge("T", ["A", "B"]) == "T\nearlier: A\nearlier: B"
    assert TINY.retry("T", "A", ["f"]) == "T\nearlier: A\nfailed, try again"
    assert dataclasses.replace(TINY, failures_shown=1).retry("T", "A", ["f", "g"]) == "T\nearlier: A\nfailed: f"


def test_the_published_checkpoint_is_asked_with_its_prefix_and_told_nothing_of_any_language():
    published = prompts.get("published")
    assert published.designer_user(MATH) == "Design Multi Agent System for the Question: " + MATH.prompt
    assert "\n" not in published.designer_system and "multi-agent" in published.designer_system
    assert not any(name in published.designer_system for name in ("solver", "answer =", "AgentNode"))
    assert published.own_role("Add.", "math").startswith("Add.\n") and "\\boxed{" in published.own_role("Add.", "math")
    assert "<solution>" in published.own_role("Add.", "code") and "<delivery>" in published.own_role("Add.", "code")


def test_a_set_survives_the_way_to_the_script_process():
    for prompts_set in (FULL, TINY):
        there = PromptSet(**prompts_set.for_script())
        assert there.designer_system == "" and there.judge("T", ["a"]) == prompts_set.judge("T", ["a"])


def test_an_unknown_set_is_named_with_the_choices():
    with pytest.raises(ValueError, match="'huge' does not exist; choose one of full, published, tiny"):
        prompts.get("huge")
    assert prompts.get("tiny") is TINY
