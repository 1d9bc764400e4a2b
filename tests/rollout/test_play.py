"""What a Player tells whoever watches, and how replies without ids are counted."""

from pathlib import Path

from metaagent_x import config
from metaagent_x.mas.records import Call, CallRequest, ToolRun
from metaagent_x.rollout.engine import Completion
from metaagent_x.rollout.play import Player, read_design, with_rollout
from metaagent_x.rollout.scripted import ScriptedEngine
from metaagent_x.tasks.task import Task

TASK = Task("t/0", "math", "What is 1 + 3?")
FOUR = "\\boxed{4}"  # 9 bytes and the stop id


def player(reply, **fields):
    c = config.base()
    c.rollout.max_prompt_tokens = 16_384
    engine = ScriptedEngine(reply)
    watch = fields.pop("watch", None)
    return Player({"designer": engine, "executor": engine}, with_rollout(c, **fields), 0, watch=watch)


async def test_requests_calls_and_tool_runs_are_told_as_they_happen():
    seen = []
    script = "a = solver()(task)\nprint(run_python('print(2 + 2)'))\nanswer = a"
    design_text = f"```python\n{script}\n```"
    plays = player(lambda r: design_text if r.agent == "designer" else FOUR, watch=seen.append)
    design = await plays.design(TASK, 0)
    execution = await plays.execute(TASK, design, 0, 0)
    assert [type(event) for event in seen] == [CallRequest, Call, CallRequest, Call, ToolRun]
    assert (seen[0].agent, seen[1].text, seen[3], seen[4]) == (
        "designer", design_text, execution.calls[0], execution.tools[0]
    )  # fmt: skip


async def test_a_budget_of_tokens_counts_the_text_of_an_engine_that_gives_no_ids():
    """Two replies of 10 tokens use up 15; a third one is not begun."""
    script = "texts = []\nfor _ in range(9):\n    texts = [*texts, solver()(task)]\n    answer = texts[-1]"
    for reply in (FOUR, Completion((), (), "stop", 0, text=FOUR)):
        plays = player(
            lambda request, reply=reply: reply, budget=config.base().rollout.budget.to_dict() | {"tokens": 15}
        )
        execution = await plays.execute(TASK, read_design(None, script), 0, 0)
        assert (execution.status, len(execution.calls)) == ("budget", 2)
        assert [call.sampled for call in execution.calls] == [10, 10] and execution.answer == FOUR


async def test_a_script_of_the_published_checkpoint_runs_under_its_prompts():
    script = (Path(__file__).parents[1] / "mas" / "dialects" / "scripts" / "vote_plurality.txt").read_text()
    design_text = f"Problem Type: sum\n<code>\n```python\n{script}\n```\n</code>"
    seen = []

    def reply(request):
        seen.append(request)
        return design_text if request.agent == "designer" else f"<delivery>4</delivery>\nFINAL ANSWER: {FOUR}"

    plays = player(reply, prompts="published")
    design = await plays.design(TASK, 0)
    execution = await plays.execute(TASK, design, 0, 0)
    assert seen[0].messages == ("Design Multi Agent System for the Question: " + TASK.prompt,)
    assert design.problem == "" and len(execution.calls) == 5 and execution.structure == "ensemble"
    assert all(r.role_prompt.startswith("Solve step by step") and "FINAL ANSWER" in r.role_prompt for r in seen[1:])
    assert {r.messages for r in seen[1:]} == {(TASK.prompt,)}  # the question is ours, not what the script re-types
    assert "\\boxed{4}" in execution.answer
