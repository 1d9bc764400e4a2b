"""The two prompt sets: what they say, what they cost."""

import dataclasses
import pathlib

import pytest

from metaagent_x.mas import prompts
from metaagent_x.mas.language import NAMES
from metaagent_x.mas.parse import lint, parse_completion
from metaagent_x.mas.prompts import FULL, TINY, PromptSet

TOKENIZER = pathlib.Path(__file__).parents[3] / "shared/tokenizer_qwen3/tokenizer.json"


def test_the_designer_is_told_every_name_in_under_700_tokens():
    assert all(name in FULL.designer_system for name in NAMES)
    if not TOKENIZER.exists():
        pytest.skip("the Qwen3 tokenizer is not at ../shared/tokenizer_qwen3")
    tokenizers = pytest.importorskip("tokenizers")
    ids = tokenizers.Tokenizer.from_file(str(TOKENIZER)).encode(FULL.designer_system, add_special_tokens=False).ids
    assert len(ids) < 700


def test_the_examples_in_the_documentation_are_valid_scripts():
    blocks = FULL.designer_system.split("```python\n")[1:]
    assert len(blocks) == 3
    for block in blocks:
        script = parse_completion("```python\n" + block)
        assert script is not None and lint(script) == []


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


def test_a_set_survives_the_way_to_the_script_process():
    for prompts_set in (FULL, TINY):
        there = PromptSet(**prompts_set.for_script())
        assert there.designer_system == "" and there.judge("T", ["a"]) == prompts_set.judge("T", ["a"])


def test_an_unknown_set_is_named_with_the_choices():
    with pytest.raises(ValueError, match="'huge' does not exist; choose one of full, tiny"):
        prompts.get("huge")
    assert prompts.get("tiny") is TINY
