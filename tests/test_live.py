"""What a person sees while a question is solved, and what a model's text cannot do to the terminal."""

import io

import pytest
from rich.console import Console

from metaagent_x import config
from metaagent_x.config import ConfigError
from metaagent_x.live import Live, guess_kind, printable, question
from metaagent_x.mas.records import Execution
from metaagent_x.rollout.play import Player, read_design
from metaagent_x.rollout.scripted import ScriptedEngine
from metaagent_x.tasks import families
from metaagent_x.tasks.task import Task

SCRIPT = "a, b, c = together([solver()] * 3, task)\nprint(run_python('print(6 * 7)'))\nanswer = vote([a, b, c])"


def view():
    out = io.StringIO()
    return Live(Console(file=out, width=100, force_terminal=False)), out


async def solved(reply, script=SCRIPT, kind="math"):
    shown, out = view()
    c = config.base("evaluate")
    c.rollout.max_prompt_tokens = 8192
    engine = ScriptedEngine(reply)
    player = Player({"designer": engine, "executor": engine}, c, 0, watch=shown.watch)
    task = Task("t", kind, "What is 6 times 7?")
    design = read_design(None, script) if script else await player.design(task, 0)
    shown.design(design)
    execution = await player.execute(task, design, 0, 0) if design.valid else Execution(status="invalid")
    shown.end(execution, kind, 1.0)
    return shown, out.getvalue()


async def test_turns_tool_runs_vote_answer_and_cost_are_shown_in_this_order():
    shown, text = await solved(lambda request: "\\boxed{41}" if request.path.startswith("0.1") else "\\boxed{42}")
    marks = [
        "design",
        "together",
        "lint: nothing to say",
        "solver 0.",
        "run_python",
        "42",
        "vote over",
        "wins",
        "answer",
    ]
    at = 0
    for mark in marks:
        at = text.index(mark, at)
    assert "\\boxed{41}" in text and text.count("11 tokens") == 3
    assert "ensemble: 3 calls, 33 tokens sampled, 1 tool runs" in text and (shown.calls, shown.tokens) == (3, 33)


async def test_the_designers_own_text_and_what_lint_says_of_it_are_shown():
    replies = {"designer": "Ask one.\n```python\nanswer = solve()(task)\n```"}
    _, text = await solved(lambda request: replies[request.agent], script="")
    assert "Ask one." in text and "line 1: solve:" in text and "the design cannot be run" in text


async def test_a_script_that_crashes_says_so_and_there_is_no_answer():
    _, text = await solved(lambda request: "I do not know", script="draft = solver()(task)\nanswer = draft[99999]")
    assert "status crash: " in text and "IndexError" in text and "none" in text


async def test_text_of_models_stays_text_in_the_terminal():
    """No escape sequence of a reply reaches the terminal, and brackets are no markup."""
    hostile = "\x1b[2J\x1b]0;title\x07[bold]red[/bold] \x9b31m \\boxed{42}\r\u202e"
    _, text = await solved(lambda request: hostile)
    assert not {"\x1b", "\x07", "\x9b", "\r", "\u202e"} & set(text)
    assert "[bold]red[/bold]" in text


def test_printable_keeps_text_of_every_language():
    assert printable("π ≈ 3,14\n\tñ 漢字 😀") == "π ≈ 3,14\n\tñ 漢字 😀"
    assert printable("a\x00b\x1b[31mc") == "ab[31mc"


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("What is the sum of the first 100 odd numbers?", "math"),
        ("Find all real x with x^2 = 2x. Let f(x) = x^3 for every x in the class of integers.", "math"),
        ("Write a program that prints the largest of n integers.", "code"),
        ("Given an array of integers, return indices of two that add up to the target.", "code"),
        ("Each test case starts with n. Input Format: one line. Output format: one number.", "code"),
        ("def add(a, b):", "code"),
    ],
)
def test_the_kind_of_a_question_is_guessed_from_its_words(question, kind):
    assert guess_kind(question) == kind


def test_generated_tasks_are_guessed_right():
    for kind in ("math", "code"):
        assert {guess_kind(task.prompt) for task, _ in families.generate(kind, "test", 20)} == {kind}


def test_the_question_comes_from_one_place(tmp_path):
    assert question(["What?"], None) == "What?"
    (tmp_path / "q.txt").write_text("  From a file.\n")
    assert question([], str(tmp_path / "q.txt")) == "From a file."
    for words, file, said in (
        ([], None, "one question, please"),
        (["a"], "b", "one question, please"),
        (["  "], None, "empty"),
        ([], str(tmp_path / "absent"), "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=said):
            question(words, file)
