"""What of a right execution is learned: every case by hand, then whole executions of real scripts."""

import pytest

from metaagent_x import mas
from metaagent_x.distillation.attempt import executor_examples
from metaagent_x.distillation.examples import chat_messages, conversations, reviewed, why_left_out
from metaagent_x.mas.records import Call
from metaagent_x.rollout.rehearsal import right_answer
from metaagent_x.tasks.grader import Grader
from metaagent_x.tasks.task import Rubric, Task, Verdict

RIGHT, WRONG = Verdict(True, 1.0, 1.0, 1.0, "ok"), Verdict(False, 0.0, 1.0, 0.0, "wrong_answer")
NONE, OPEN = Verdict(False, 0.0, 0.0, 0.0, "no_answer"), Verdict(False, 0.0, 0.0, 0.0, "unclosed_fence")
SUM = Task("t", "math", "What is 3 + 4?"), Rubric("t", "math", gold=("7",))


def call(path="0", text="so it is", **fields):
    given = {"finish_reason": "stop", "prompt_cut": False, "conversation": ""} | fields
    return Call(path, "agent", "role", (), (), (), version=0, text=text, messages=("asked",), **given)


@pytest.mark.parametrize(
    ("turns", "verdicts", "edges", "way", "why"),
    [
        ([call()], {"0": RIGHT}, {}, {"0"}, ""),
        ([call()], {"0": RIGHT}, {}, {"1"}, ""),  # right is right, wherever it stood
        ([call()], {"0": WRONG}, {}, {"0"}, "own answer wrong"),
        ([call()], {"0": OPEN}, {}, {"0"}, "broken form"),
        ([call(finish_reason="length")], {"0": RIGHT}, {}, {"0"}, "cut off"),
        ([call(prompt_cut=True)], {"0": RIGHT}, {}, {"0"}, "prompt cut"),
        ([call(text=" \n")], {"0": NONE}, {}, {"0"}, "empty"),
        ([call(text="<think>so \\boxed{7}</think>\n")], {"0": RIGHT}, {}, {"0"}, "empty"),
        ([call(text="So.\n</think>\n\n\\boxed{7}")], {"0": RIGHT}, {}, {"0"}, "holds a template marker"),
        ([call(text="\\boxed{7}<|im_end|>")], {"0": RIGHT}, {}, {"0"}, "holds a template marker"),
        ([call(text="<think>so</think>\n\n\\boxed{7}")], {"0": RIGHT}, {}, {"0"}, ""),
        ([call()], {"0": Verdict(False, 0.0, 0.0, 0.0, "x", void=True)}, {}, {"0"}, "grader failed"),
        ([call()], {"0": NONE}, {}, {"0"}, ""),  # a plan that was followed
        ([call()], {"0": NONE}, {}, {"1"}, "not on the answer's way"),
        ([call("1", "fine\nCORRECT")], {"0": RIGHT, "1": NONE}, {"1": {"0": "pass"}}, {"0"}, ""),  # was content
        ([call("1", "CORRECT")], {"0": WRONG, "1": NONE}, {"1": {"0": "pass"}}, {"0"}, "wrong review"),
        ([call("1", "**WRONG**")], {"0": RIGHT, "1": NONE}, {"1": {"0": "pass"}}, {"0", "1"}, "wrong review"),
        ([call("1", "WRONG")], {"0": WRONG, "1": NONE}, {"1": {"0": "pass"}}, {"0", "1"}, ""),
        ([call("0"), call("1")], {"0": WRONG, "1": RIGHT}, {}, {"1"}, "own answer wrong"),  # a turn of its memory
        ([call("0"), call("1")], {"0": NONE, "1": RIGHT}, {}, {"1"}, ""),
    ],
)
def test_a_conversation_is_left_out_for_what_it_would_teach(turns, verdicts, edges, way, why):
    assert why_left_out(turns, verdicts, edges, way) == why


def test_a_critic_says_correct_or_wrong_in_its_last_line():
    assert reviewed("The CORRECT way\n\n## CORRECT.\n\n") is True
    assert reviewed("CORRECT\nWRONG") is False
    assert reviewed("It is CORRECT") is None and reviewed("") is None


def test_turns_of_one_memory_are_one_conversation_and_a_missing_system_text_is_none():
    calls = [call("0", conversation="a"), call("1"), call("2", conversation="a"), call("3")]
    assert [[c.path for c in turns] for turns in conversations(calls)] == [["0", "2"], ["1"], ["3"]]
    assert chat_messages("", ["q", "a", "q2", "a2"]) == [
        {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"},
        {"role": "user", "content": "q2"}, {"role": "assistant", "content": "a2"},
    ]  # fmt: skip


def test_thoughts_before_a_reply_are_not_taught():
    (_, said) = chat_messages("", ["q", "<think>\nwell, well\n</think>\n\nIt is 7. <think>not this</think>"])
    assert said["content"] == "It is 7. <think>not this</think>"


async def learned(script, reply):
    """(agent, last text) of what is learned from a script whose agents answer by `reply(request)`, and what is not."""

    async def chat(request):
        return Call(
            request.path, request.agent, request.role_prompt, (), (), (), "stop", 0, reply(request),
            conversation=request.conversation, messages=request.messages,
        )  # fmt: skip

    grader = Grader()
    execution = await mas.run_script(mas.Script.of(script), SUM[0], chat)
    assert (await grader.grade(SUM[1], execution.answer)).correct
    examples, left_out = await executor_examples(grader, SUM[1], execution)
    grader.close()
    return [(e["agent"], e["messages"][-1]["content"]) for e in examples], dict(left_out)


async def test_the_member_that_lost_the_vote_is_not_taught():
    def reply(request):
        return "I say \\boxed{8}" if request.path.split(".")[-2] == "1" else "I say \\boxed{7}"

    kept, left_out = await learned("answer = ensemble([solver()] * 3)(task)", reply)
    assert [text for _, text in kept] == ["I say \\boxed{7}"] * 2 and left_out == {"own answer wrong": 1}


async def test_draft_review_and_revision_of_a_reflection():
    def reply(request):
        if request.agent == "critic":
            return "The sum is off.\nWRONG" if "boxed{8}" in request.messages[-1] else "All fine.\nCORRECT"
        return "Then \\boxed{7}" if "off" in request.messages[-1] else "It is \\boxed{8}"

    kept, left_out = await learned("answer = reflect(solver(), critic(), rounds=2)(task)", reply)
    assert left_out == {"own answer wrong": 1}  # the draft
    assert kept == [
        ("critic", "The sum is off.\nWRONG"),
        ("solver", "Then \\boxed{7}"),
        ("critic", "All fine.\nCORRECT"),
    ]


async def test_a_plan_that_nobody_read_is_not_taught():
    script = "agent('idle', 'plan')(task)\nplan = agent('planner', 'plan')(task)\nanswer = solver()(task + plan)"

    def reply(request):
        return (
            "It is \\boxed{7}." if request.agent == "solver" else f"{request.agent}: add the tens first, then the ones."
        )

    kept, left_out = await learned(script, reply)
    assert [who for who, _ in kept] == ["planner", "solver"] and left_out == {"not on the answer's way": 1}


async def test_a_memory_is_learned_as_one_conversation_in_the_turns_that_it_had():
    script = "a = agent('a', 'add', memory=True)\nplan = a('plan: ' + task)\nanswer = a('now do it')"
    conversation = await learned(script, lambda r: right_answer(SUM[1]) if r.messages == ("now do it",) else "a plan")
    assert conversation == ([("a", "The answer is \\boxed{7}.")], {})
