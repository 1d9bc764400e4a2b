"""Nodes and workflows of the dialect: rules at their edges, order, budgets, errors."""

import asyncio

import pytest
from mas_host import CODE, MATH, Host, program

from metaagent_x.mas import Budget, runner
from metaagent_x.mas.prompts import FULL, TINY
from metaagent_x.tasks.task import Task

SEVEN, EIGHT = "so \\boxed{7}", "hence \\boxed{8}"
IMPORTS = "from workflow import *\n"  # line 1 of every script here
TEAM = IMPORTS + "a, b, c, j = (AgentNode(name, 'You are ' + name) for name in 'ABCJ')\nw = Workflow('w')\n"


def by_agent(**texts):
    left = {name: iter(text) for name, text in texts.items() if isinstance(text, list)}
    return lambda r: next(left[r.agent]) if r.agent in left else texts[r.agent]


# What agents are shown


@pytest.mark.parametrize("task", [MATH, CODE])
async def test_the_role_is_the_system_prompt_and_our_own_output_rule(task):
    host = Host(lambda r: SEVEN)
    e = await host.run(TEAM + "w.add_node(a).run('anything')", task)
    assert host.requests[0].role_prompt == FULL.own_role("You are A", task.kind)
    assert host.requests[0].messages == (task.prompt,) and host.requests[0].conversation == ""
    assert e.status == "ok" and e.structure == "single"


@pytest.mark.parametrize("given", ["'What is 3 * 4 ?'", "''", "None", "task", "question", "'3 + 4 = 7, so say 7'"])
async def test_the_first_run_is_on_the_task_whatever_is_given(given):
    host = Host(lambda r: SEVEN)
    await host.run(TEAM + f"w.add_node(a).run({given})")
    assert host.requests[0].messages == (MATH.prompt,)


@pytest.mark.parametrize("reply,given,shown", [
    (EIGHT, "first", EIGHT),
    (EIGHT, "first.content", EIGHT),
    ("is 3 + 4?", "first.content", "is 3 + 4?"),
    (EIGHT, "f'Is {first.content} right?'", f"Is {EIGHT} right?"),
    (EIGHT, "'Is 8 right?'", "Is 8 right?"),
    (EIGHT, "'Is 18 right?'", ""),
    (EIGHT, "question + ' Think again.'", ""),
    ("I am asked: " + MATH.prompt + " We will see what comes out of it.", "question", ""),
    ("I am asked: " + MATH.prompt + " We will see what comes out of it.", "'We will see what comes out of it!'",
     "We will see what comes out of it!"),
    ("so \\boxed{4}", "'What is 4 and 3?'", ""),
])  # fmt: skip
async def test_a_later_run_is_shown_what_goes_back_to_a_reply(reply, given, shown):
    host = Host(by_agent(A=reply, B=SEVEN))
    e = await host.run(TEAM + f"first = w.add_node(a).run(question)\nWorkflow('v').add_node(b).run({given})")
    assert host.requests[1].messages == (MATH.prompt + ("\n\nResults so far:\n" + shown if shown else ""),)
    assert (("0", "1", "pass") in e.links) == bool(shown)


async def test_a_reply_that_repeats_the_question_does_not_make_the_question_a_quotation():
    task = Task("m/2", "math", "What is the sum of the two numbers three and four?")
    host = Host(by_agent(A=f"I am asked: {task.prompt} Let me think.", B=SEVEN))
    await host.run(TEAM + "w.add_node(a).run(question)\nWorkflow('v').add_node(b).run(task + ' Think.')", task)
    assert host.requests[1].messages == (task.prompt,)


@pytest.mark.parametrize("reply,shown", [
    ("Long thoughts. <delivery> Seven it is. </delivery> \\boxed{7}", "Seven it is.\n\n\\boxed{7}"),
    ("<delivery>Seven: \\boxed{7}</delivery> FINAL ANSWER: \\boxed{7}", "Seven: \\boxed{7}"),
    ("<delivery>one</delivery><delivery>two</delivery>", "two"),
    ("no tags, \\boxed{7}", "no tags, \\boxed{7}"),
])  # fmt: skip
async def test_a_later_agent_is_shown_what_an_earlier_one_delivers(reply, shown):
    host = Host(by_agent(A=reply, B=SEVEN))
    e = await host.run(TEAM + "w.add_nodes([a, b]).run(question)")
    assert host.requests[1].messages == (f"{MATH.prompt}\n\nA:\n{shown}",)
    assert ("0", "1", "pass") in e.links and e.answer == SEVEN


async def test_a_delivered_summary_keeps_the_program():
    reply = "<delivery>Reads and doubles.</delivery>\n<solution>\nprint(2 * int(input()))\n</solution>"
    host = Host(by_agent(A=reply, B=program("print(1)")))
    await host.run(TEAM + "w.add_nodes([a, b]).run(question)", CODE)
    shown = "Reads and doubles.\n\n" + program("print(2 * int(input()))")
    assert host.requests[1].messages == (f"{CODE.prompt}\n\nA:\n{shown}",)


async def test_what_is_passed_on_is_brief():
    host = Host(by_agent(A="thoughts\n" * 20_000 + SEVEN, B=SEVEN))
    await host.run(TEAM + "w.add_nodes([a, b]).run(question)")
    assert len(host.requests[1].messages[0]) < 5000 and host.requests[1].messages[0].endswith(SEVEN)


async def test_patterns_are_worded_by_the_prompt_set():
    host = Host(by_agent(A=[EIGHT, SEVEN], C="No.", B=SEVEN, J=SEVEN), TINY)
    script = "w.add_node(ReflectionNode('r', a, critic_agent=c, num_iterations=1))\n"
    script += "w.add_node(EnsembleNode('e', [b], strategy='consensus', consensus_agent=j)).run(question)"
    await host.run(TEAM + script)
    assert host.request("0.0.1").messages == (TINY.critic(MATH.prompt, EIGHT),)
    assert host.request("0.0.2").messages == (TINY.revise(MATH.prompt, EIGHT, "No."),)
    assert host.request("1.1.0").messages == (TINY.judge(f"{MATH.prompt}\n\nr:\n{SEVEN}", [SEVEN]),)


# Ensembles


@pytest.mark.parametrize("script", [
    "w.add_node(EnsembleNode('e', [a, b, c])).run(question)",
    "w.add_node(DebateNode('d', [a, b, c], judge=j)).run(question)",
    "w.add_node(EnsembleNode('e', [ReflectionNode('r', a), DebateNode('d', [b, c])], 'consensus', j)).run(question)",
])  # fmt: skip
async def test_members_really_run_at_once(script):
    """pettingllms-ai/PettingLLMs: the members of an ensemble ran one after another."""
    host = Host(lambda r: SEVEN, barrier=3)
    e = await host.run(TEAM + script, budget=Budget(wall_s=20))
    assert e.status == "ok" and len({r.path for r in host.requests[:3]}) == 3


async def test_nothing_depends_on_who_is_quick():
    script = (
        TEAM
        + """
tools = ToolRegistry()
tools.register("add", lambda x, y: x + y)
t = AgentNode("T", "You use tools.", tools)
r = ReflectionNode("r", t, critic_agent=c)
w.add_nodes([EnsembleNode("e", [r, t, a], consensus_agent=j), DebateNode("d", [r, EnsembleNode("f", [t, t])])])
w.run(question)
"""
    )
    replies = lambda r: (  # noqa: E731
        '<tool_call>{"name": "add", "arguments": {"x": 1, "y": 2}}</tool_call>'
        if r.agent == "T" and "Result" not in r.messages[0]
        else f"by {r.path} \\boxed{{{len(r.path)}}}"
    )
    seen = []
    for fast in (0, 1):
        host = Host(replies, delay=lambda r, fast=fast: 0.01 * (int(r.path[2:3] or 0) % 2 == fast))
        e = await host.run(script, budget=Budget(calls=100))
        assert e.status == "ok" and len(e.calls) > 30
        seen.append([(c.path, c.agent, c.conversation, c.messages) for c in e.calls])
    assert seen[0] == seen[1]


@pytest.mark.fault("F133")
@pytest.mark.parametrize("script,replies", [
    ("w.add_node(a).run(question)", {"A": "first \\boxed{7}, no, \\boxed{8}, after all \\boxed{7}"}),
    ("w.add_node(ReflectionNode('r', a, critic_agent=c)).run(question)",
     {"A": [SEVEN, EIGHT, SEVEN], "C": "No, \\boxed{8}."}),
    ("w.add_node(EnsembleNode('e', [a, b, c])).run(question)", {"A": SEVEN, "B": EIGHT, "C": "\\boxed{7}"}),
    ("w.add_nodes([a, b, c]).run(question)", {"A": SEVEN, "B": EIGHT, "C": SEVEN}),
])  # fmt: skip
async def test_answers_a_b_a_give_a(script, replies):
    """pettingllms-ai/PettingLLMs: of all boxes in the output the last distinct one was graded."""
    e = await Host(by_agent(**replies)).run(TEAM + script)
    assert runner.tools.key_of("math", e.answer) == "7" and e.flags == set()


@pytest.mark.parametrize("texts,calls,answer", [
    ([SEVEN, "no idea", "\\boxed{7}"], 3, SEVEN),
    (["no idea", EIGHT, "nor I"], 3, EIGHT),
    (["no idea", EIGHT, SEVEN], 4, "judged"),
])  # fmt: skip
async def test_members_without_an_answer_do_not_split_a_vote(texts, calls, answer):
    host = Host(by_agent(**dict(zip("ABC", texts, strict=True)), J="judged"))
    e = await host.run(TEAM + "w.add_node(EnsembleNode('e', [a, b, c], consensus_agent=j)).run(question)")
    assert len(e.calls) == calls and e.answer == answer and e.structure == "ensemble"


@pytest.mark.parametrize("weights,answer", [
    ("[1, 1, 1]", "a \\boxed{1}"),
    ("[1, 2, 1]", "b \\boxed{2}"),
    ("[1, 1.5, 0.6]", "b \\boxed{2}"),
    ("[0.9, 1, 3]", "b \\boxed{2}"),
    ("None", "a \\boxed{1}"),
])  # fmt: skip
async def test_weights_count_answers_and_ties_go_to_the_first(weights, answer):
    host = Host(by_agent(A="a \\boxed{1}", B="b \\boxed{2}", C="nothing", J="c \\boxed{2}"))
    script = f"w.add_node(EnsembleNode('e', [a, b, c], 'weighted_vote', j, {weights})).run(question)"
    e = await host.run(TEAM + script)
    assert e.answer == answer and {link[2] for link in e.links} == {"vote", "answer"}


async def test_programs_vote_by_their_syntax():
    host = Host(by_agent(A=program("print(1)"), B=program("x = 2\nprint(x)"), C=program("x=2 # two\nprint( x )")))
    e = await host.run(TEAM + "w.add_node(EnsembleNode('e', [a, b, c])).run(question)", CODE)
    assert e.answer == program("x = 2\nprint(x)")


# Reflection

ADDED = "We add three and four on our fingers, one after another, and find: "


@pytest.mark.parametrize("review,stops", [
    ("FINAL VERDICT: CORRECT\nNothing else.", True),
    ("Verdict: **correct**", True),
    ("VERDICT: INCORRECT", False),
    ("VERDICT: INCORRECT ... on second thought VERDICT: CORRECT", True),
    ("VERDICT: CORRECT? No. VERDICT: INCORRECT", False),
    ("Everything holds.\n\nCORRECT.\n", True),
    ("It is CORRECT", True),
    ("INCORRECT", False),
    ("This is NOT CORRECT", False),
    ("CORRECT?\nNo, step 2 is wrong.", False),
    ("Please make it correct", False),
])  # fmt: skip
async def test_reflection_stops_by_the_verdict(review, stops):
    host = Host(by_agent(A=[EIGHT, SEVEN, SEVEN], C=[review, "CORRECT"]))
    e = await host.run(TEAM + "w.add_node(ReflectionNode('r', a, critic_agent=c)).run(question)")
    assert (len(e.calls) == 2) == stops


@pytest.mark.parametrize("first,second,calls,answer", [
    (ADDED + "\\boxed{7}", ADDED + "\\boxed{7}.", 3, ADDED + "\\boxed{7}."),
    (ADDED + "\\boxed{7}", ADDED + "it is 7", 3, ADDED + "\\boxed{7}"),
    (ADDED + "\\boxed{7}", "something else: \\boxed{8}", 5, "something else: \\boxed{8}!"),
    ("7", "7", 5, "7!"),
])  # fmt: skip
async def test_reflection_stops_when_a_revision_repeats(first, second, calls, answer):
    host = Host(by_agent(A=[first, second, answer], C="Hm."))
    e = await host.run(TEAM + "w.add_node(ReflectionNode('r', a, critic_agent=c, num_iterations=2)).run(question)")
    assert len(e.calls) == calls and e.answer == answer


async def test_reflection_shows_earlier_rounds_only_if_it_shall():
    for history in (False, True):
        host = Host(by_agent(A=["first \\boxed{1}", "second \\boxed{2}", SEVEN], C=["Bad.", "Poor."]))
        script = f"w.add_node(ReflectionNode('r', a, critic_agent=c, include_history={history})).run(question)"
        await host.run(TEAM + script)
        older = FULL.earlier + "first \\boxed{1}" + FULL.review + "Bad." if history else ""
        assert host.request("0.0.4").messages == (FULL.revise(MATH.prompt + older, "second \\boxed{2}", "Poor."),)


async def test_who_criticises_itself_is_told_so():
    host = Host(by_agent(A=[SEVEN, "CORRECT"]))
    await host.run(TEAM + "w.add_node(ReflectionNode('r', a)).run(question)")
    assert host.request("0.0.1").messages == (FULL.critic(MATH.prompt, SEVEN, own=True),)


async def test_debaters_are_shown_their_own_text_and_those_of_the_others():
    host = Host(by_agent(A=[SEVEN, SEVEN], B=[EIGHT, EIGHT], J=SEVEN))
    await host.run(TEAM + "w.add_node(DebateNode('d', [a, b], j)).run(question)")
    assert host.request("0.0.1").messages == (FULL.debate(MATH.prompt, SEVEN, [EIGHT]),)
    assert host.request("0.1.1").messages == (FULL.debate(MATH.prompt, EIGHT, [SEVEN]),)
    assert host.request("0.2.0").messages == (FULL.judge(MATH.prompt, [SEVEN, EIGHT]),)


# Workflows


@pytest.mark.parametrize("first,shown", [
    ("RouterNode('r', {'x': a}, str, 'x')", f"A:\n{SEVEN}"),
    ("Workflow('inner').add_node(c).add_node(a)", f"A:\n{SEVEN}"),
    ("AgentGraph().add_node('a', a).set_entry_point('a')", f"A:\n{SEVEN}"),
    ("EnsembleNode('e', [a, c])", f"e:\n{SEVEN}"),
])  # fmt: skip
async def test_of_a_pattern_only_its_result_is_passed_on(first, shown):
    host = Host(lambda r: SEVEN)
    await host.run(TEAM + f"w.add_nodes([{first}, b]).run(question)")
    assert host.requests[-1].messages == (f"{MATH.prompt}\n\n{shown}",)


async def test_the_client_answers_chats():
    host = Host(lambda r: SEVEN)
    chat = "[{'role': 'system', 'content': 'Be kind.'}, {'role': 'user', 'content': 'Again: ' + task}]"
    await host.run(TEAM + f"b.system_prompt = str(ai_client.chat({chat}))\nb.run('')")
    assert host.requests[0].role_prompt == FULL.own_role("Be kind.", "math")
    assert host.requests[0].messages == ("Again: " + MATH.prompt,)
    assert host.requests[1].role_prompt.startswith(str((SEVEN, 0, 0)))


async def test_a_workflow_is_a_node_and_its_names_are_one_package():
    """pettingllms-ai/PettingLLMs: two copies of the package had two MessageType, which were never equal."""
    script = (
        TEAM
        + """
import workflow.core, workflow.nodes.agent_node, utils.environments.math_env
from workflow.core import MessageType as other
assert MessageType is other is workflow.core.MessageType and AgentNode is workflow.nodes.agent_node.AgentNode
inner = Workflow("inner").add_node(a).add_node(b)
result = w.add_node(EnsembleNode("e", [inner, c])).run(question)
assert result.message_type == other.AGENT_RESPONSE and result.sender == "e" and w.nodes[0].name == "e"
"""
    )
    host = Host(lambda r: SEVEN)
    e = await host.run(script)
    assert (e.status, e.reason) == ("ok", "")
    assert [f"{c.path} {c.agent}" for c in e.calls] == ["0.0.0 A", "0.0.1 B", "0.1.0 C"]


PAIR = "w = AgentGraph().add_node('a', a).add_node('b', b)\n"


@pytest.mark.parametrize("script,calls", [
    ("w = LoopWorkflow(max_iterations=3).add_node(a)\nw.set_loop_condition(lambda c: True)", 3),
    ("w = LoopWorkflow().add_node(a)\nw.set_loop_condition(lambda c: True)", 10),
    ("w = LoopWorkflow().add_node(a)\nw.set_loop_condition(lambda c: 1 / 0)", 1),
    ("w = AgentGraph(max_steps=4).add_node('a', a).add_edge('a', 'a').set_entry_point('a')", 4),
    (PAIR + "w.set_entry_point('a').add_edge('a', 'b')", 2),
    (PAIR + "w.set_entry_point('a').add_conditional_edges('a', lambda c: 'nowhere')", 1),
    (PAIR + "w.set_entry_point('a').add_conditional_edges('a', lambda c: 'b')", 2),
    (PAIR + "w.set_entry_point('a').add_edge('a', 'b', lambda c: False)", 1),
    (PAIR + "w.set_entry_point('a').add_edge('a', 'b', lambda c: False).add_edge('a', 'b')", 2),
    (PAIR + "w.set_entry_point('a').add_edge('a', 'b').set_finish_point('a')", 1),
])  # fmt: skip
async def test_loops_and_graphs_end(script, calls):
    """pettingllms-ai/PettingLLMs: agents in these raised, since they never got a client."""
    e = await Host(lambda r: SEVEN).run(TEAM + script + "\nw.run(question)")
    assert (e.status, len(e.calls), e.answer) == ("ok", calls, SEVEN)


async def test_the_answer_is_the_last_run_and_not_what_is_printed():
    script = (
        "Workflow('v').add_node(a).run(question)\nr = w.add_node(b).run(question)\nprint('\\boxed{9}')\nanswer = 'x'"
    )
    e = await Host(by_agent(A=EIGHT, B=SEVEN)).run(TEAM + script)
    assert e.answer == SEVEN and e.flags == set()
    e = await Host(by_agent(A=EIGHT)).run(TEAM + "a(Context())\nprint('\\boxed{9}')")
    assert e.answer == EIGHT and e.flags == {"answer_unset"}


async def test_a_main_function_that_nobody_calls_is_called():
    script = "def main():\n    return w.add_node(a).run(question).content"
    e = await Host(lambda r: SEVEN).run(TEAM + script)
    assert (e.status, e.answer, len(e.calls)) == ("ok", SEVEN, 1)


async def test_an_answer_made_by_a_node_of_the_script_is_flagged():
    script = "class N(WorkflowNode):\n    def process(self, context):\n        return 'told: \\boxed{7}'\n"
    e = await Host(by_agent(A=EIGHT)).run(TEAM + script + "w.add_nodes([a, N()]).run(question)")
    assert e.answer == "told: \\boxed{7}" and e.flags == {"answer_not_from_agents"}


# Budgets


async def test_a_budget_ends_the_script_and_the_last_finished_run_is_graded():
    script = (
        "w.add_node(a).run(question)\ntry:\n    EnsembleNode('e', [b, c, b]).run(question)\nexcept Exception:\n    pass"
    )
    e = await Host(by_agent(A=SEVEN, B=EIGHT, C=EIGHT)).run(TEAM + script, budget=Budget(calls=3))
    assert (e.status, e.answer, len(e.calls)) == ("budget", SEVEN, 3) and e.flags == {"budget_calls"}
    e = await Host(by_agent(A=[EIGHT, SEVEN, SEVEN], C="No.")).run(
        TEAM + "w.add_node(ReflectionNode('r', a, critic_agent=c)).run(question)", budget=Budget(calls=3)
    )
    assert (e.status, e.answer) == ("budget", SEVEN) and e.flags == {"budget_calls", "answer_unset"}


async def test_nesting_has_a_limit():
    script = "n = a\nfor i in range(8):\n    n = EnsembleNode('e', [n])\nw.add_node(n).run(question)"
    e = await Host(lambda r: SEVEN).run(TEAM + script, budget=Budget(depth=4))
    assert e.status == "budget" and "depth" in e.reason and not e.calls


# Errors


@pytest.mark.parametrize("script,line,words", [
    ("w.add_node(a).run(question)\nx = 1 / 0", 5, "ZeroDivisionError"),
    ("EnsembleNode('e', [])", 4, "ValueError: ensemble 'e' has no agents"),
    ("EnsembleNode('e', [a], 'best')", 4, "majority_vote, weighted_vote, consensus"),
    ("EnsembleNode('e', [a], 'consensus')", 4, "needs a consensus_agent"),
    ("EnsembleNode('e', [a, b], weights=[1])", 4, "2 agents but 1 weights"),
    ("DebateNode('d', [])", 4, "no debaters"),
    ("RouterNode('r', {'x': a}, str)", 4, "no route 'default'"),
    ("AgentGraph().add_edge('x', 'y')", 4, "no node 'x'"),
    ("w.add_node(AgentGraph()).run(question)", 4, "no entry point"),
    ("LoopWorkflow().run(question)", 4, "set_loop_condition"),
    ("w.add_node(None)\nw.run(question)", 5, "TypeError"),
    ("class N(WorkflowNode):\n    def process(self, context):\n        return [][3]\nw.add_node(N()).run(question)", 6,
     "IndexError"),
    ("w.add_node(EnsembleNode('e', [WorkflowNode('x')])).run(question)", 4, "does not define process"),
])  # fmt: skip
async def test_a_crash_names_the_line(script, line, words):
    e = await Host(lambda r: SEVEN).run(TEAM + script)
    assert e.status == "crash" and e.reason.startswith(f"line {line}: ") and words in e.reason


async def test_a_workflow_ends_at_the_first_error_and_the_script_may_go_on():
    script = "m = w.add_nodes([WorkflowNode('x'), a]).run(question)\nassert m.message_type is MessageType.ERROR\n"
    script += "assert m.content['node'] == 'x' and m.sender == 'x'\n"
    host = Host(lambda r: SEVEN)
    e = await host.run(TEAM + script)
    assert e.status == "crash" and "does not define process" in e.reason and not e.calls
    e = await host.run(TEAM + script + "a.run(question)")
    assert (e.status, e.answer, len(e.calls)) == ("ok", SEVEN, 1)


async def test_a_refused_call_is_an_error_of_its_agent():
    class Refusing(Host):
        async def chat(self, request):
            if request.agent == "A":
                raise runner.CallRefused("the role prompt is too long")
            return await super().chat(request)

    e = await Refusing(lambda r: SEVEN).run(TEAM + "w.add_node(EnsembleNode('e', [a, b])).run(question)")
    assert (e.status, e.answer) == ("ok", SEVEN)
    e = await Refusing(lambda r: SEVEN).run(TEAM + "w.add_node(a).run(question)")
    assert e.status == "crash" and e.reason == "line 4: RuntimeError: the role prompt is too long"


async def test_scripts_of_both_forms_run_side_by_side():
    host = Host(lambda r: SEVEN, delay=lambda r: 0.01)
    native = "answer = ensemble([solver(), solver()])(task)"
    runs = [host.run(TEAM + "w.add_node(EnsembleNode('e', [a, b])).run(question)"), host.run(native)] * 1
    for e in await asyncio.gather(*runs):
        assert (e.status, e.answer, e.structure) == ("ok", SEVEN, "ensemble")
    mixed = "from workflow import solver, AgentNode\nanswer = solver()(task)"
    e = await host.run(mixed)
    assert (e.status, e.answer, e.flags) == ("ok", SEVEN, set())
