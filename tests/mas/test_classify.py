"""What an execution was, from what ran: scripts in both forms, played by agents that follow a rule."""

import random
import string
from collections.abc import Callable
from typing import NamedTuple

import pytest
from mas_host import CODE, MATH, Host, program

from metaagent_x.mas import Budget, Call, CallRequest, Execution, classify
from metaagent_x.mas.classify import STRUCTURES, paper_name
from metaagent_x.mas.prompts import FULL, TINY
from metaagent_x.tasks.task import Task

LONG_TASK = Task("m/2", "math", "A statement that is longer than twenty-four characters and that agents like to repeat")
ASKS_FOR_REVIEW = (FULL.critic_ask, FULL.self_ask, FULL.tester_ask, "What is wrong?")


# How agents reply


def thoughts(path):
    """A text that no other call writes."""
    letters = random.Random(path)
    return " ".join("".join(letters.choices(string.ascii_lowercase, k=6)) for _ in range(40))


def reviews(r):
    return any(ask in r.messages[-1] for ask in ASKS_FOR_REVIEW)


def agreed(r):
    """Answers agree, reviews find fault."""
    return thoughts(r.path) + ("\nWRONG" if reviews(r) else "\n\\boxed{7}")


def split(r):
    """Every answer is another one."""
    return agreed(r) if reviews(r) else thoughts(r.path) + f"\n\\boxed{{{r.path}}}"


def content(r):
    """Reviews find nothing."""
    return "CORRECT" if reviews(r) else agreed(r)


def speechless(r):
    """Nobody gives an answer."""
    return thoughts(r.path)


def late(r):
    """The first who speak give no answer."""
    return agreed(r) if len(r.messages[-1]) > 100 else thoughts(r.path)


def short(r):
    return "no" if r.agent == "critic" else f"\\boxed{{{r.path[-3:]}}}"


def alike(r):
    """All answer in the same words."""
    return agreed(r) if reviews(r) else "The sum of three and four is \\boxed{7}."


def quoting(r):
    """A review repeats what it reviews before it says what is wrong."""
    return (r.messages[-1] + "\n" if reviews(r) else "") + agreed(r)


def growing(r):
    """Everybody repeats what was said and adds something."""
    return r.messages[-1] + "\n" + agreed(r)


def parroting(r):
    """Nobody says anything new."""
    return r.messages[-1]


def echoing(r):
    """An answer repeats task and role first."""
    return f"{LONG_TASK.prompt}\n{r.role_prompt}\n{agreed(r)}"


def phrases(r):
    """Everybody begins with the same words."""
    return f"Let us solve the problem step by step. Therefore the answer of {r.path} is \\boxed{{{r.path}}}"


def planning(r):
    """Planners plan, the others answer."""
    return thoughts(r.path) if "You plan" in r.role_prompt else agreed(r)


def programs(r):
    """Programs fail, reviews find fault."""
    return thoughts(r.path) + "\nWRONG" if reviews(r) else program(f"print('{thoughts(r.path)}')")


def late_programs(r):
    return programs(r) if len(r.messages[-1]) > 100 else thoughts(r.path)


def right(r):
    return program("print(int(input()) * 2)")


def with_tool(r):
    """An agent with a tool runs something before it says what it has to say."""
    if "execute_code" in r.role_prompt and "Result" not in r.messages[-1]:
        return '<tool_call>{"name": "execute_code", "arguments": {"code": "assert False"}}</tool_call>'
    return programs(r)


def computing(r):
    """Whoever can have a program run writes one first."""
    return program("print(sum([3, 4]))") if "rogram" in r.role_prompt and "Result" not in r.messages[-1] else agreed(r)


class Case(NamedTuple):
    script: str
    expected: str
    say: Callable[[CallRequest], str] | None = None
    why: str = ""
    task: Task = MATH


# Our language

MATH_CASES = [
    Case("x = 1", "invalid"),
    Case("answer = solver()(task)", "single"),
    Case("a = solver()(task)\nb = solver()(task)\nanswer = b", "single", why="a is not on the answer's path"),
    Case("ensemble([solver(), solver()])(task)\nanswer = solver()(task)", "single", why="nor is a team"),
    Case("answer = solver()(task)\nreflect(solver(), critic(), 1)(task)", "single", alike,
         "an unused team said the same words later; the script's process says which reply became the answer"),
    Case("a = solver()(task)\nx = critic()(a)\nanswer = a", "single", why="nobody acted on the review"),
    # Votes and judges
    Case("answer = ensemble([solver(), solver()])(task)", "ensemble"),
    Case("answer = vote(together(solver(), [task] * 3))", "ensemble"),
    Case("answer = vote([solver()(task), solver('b')(task)])", "ensemble", why="one after the other is a team too"),
    Case("answer = vote([solver()(task)])", "single", why="one of one"),
    Case("a = vote([solver()(task)])\nanswer = vote([solver()(task)])", "single", why="one of one, twice"),
    Case("d = debate([solver(), solver()])(task)\nanswer = vote([solver()(task), solver()(task)])", "ensemble",
         why="the other vote has nothing to do with it"),
    Case("answer = ensemble([solver(), solver()])(task)", "ensemble", speechless, "also if nobody wins the vote"),
    Case("answer = ensemble([solver(), solver()], judge())(task)", "ensemble", why="they agree: a vote"),
    Case("answer = ensemble([solver(), solver()], judge())(task)", "ensemble", split),
    Case("answer = ensemble([solver(), solver('b')], judge())(task)", "ensemble", late, "only the judge has an answer"),
    Case("answer = ensemble([solver()], judge())(task)", "other", speechless, "a judge of one goes over a text"),
    Case("a, b = together([solver(), solver()], task)\nanswer = agent('x', 'Pick.')(task + a + b)", "ensemble"),
    Case("a, b = together([solver(), solver()], task)\nanswer = agent('x', 'Pick.')(task + a + b)", "ensemble", alike),
    Case("a, b = solver()(task), solver()(task)\nanswer = agent('x', 'Pick.')(a[-24:] + '/' + b[5:29])", "ensemble",
         why="24 characters of each"),
    Case("a = solver()(task)\nanswer = agent('x', 'Copy.')(a[5:29])", "other", why="24 characters are an edge"),
    Case("a = solver()(task)\nanswer = agent('x', 'Copy.')(a[5:28])", "single", why="23 are not"),
    Case("a, b = together([solver(), solver()], task)\nanswer = agent('x', 'Improve.')(a)", "other", alike,
         "one of two equal texts, passed on as it is"),
    Case("a, b = together([solver(), solver()], task)\nanswer = agent('x', 'Improve.')(task + a)", "other", alike,
         "it stands there once"),
    Case("e = ensemble([solver(), solver()])(task)\nanswer = agent('typist', 'Copy.')(e)", "ensemble"),
    Case("e = ensemble([solver(), solver()])\nanswer = ensemble([e, solver(), e])(task)", "ensemble"),
    Case("p = agent('p', 'You plan.')(task)\nanswer = ensemble([solver(), solver()])(task + p)", "ensemble"),
    Case("a, b = together([solver(), solver()], task)\nr, s = together(critic(), [task + a, task + b])\n"
         "answer = agent('x', 'Pick.')(task + a + r + b + s)", "ensemble", why="two candidates, though both reviewed"),
    # Debates
    Case("answer = debate([solver(), solver()], rounds=1)(task)", "ensemble", why="nothing was exchanged"),
    Case("answer = debate([solver(), solver(), solver()], rounds=2)(task)", "debate"),
    Case("answer = debate([solver(), solver('b')], judge(), rounds=3)(task)", "debate", split),
    Case("answer = debate([solver(memory=True), solver(memory=True)])(task)", "debate"),
    Case("s, t = solver(), solver('other way')\na, b = together([s, t], task)\n"
         "c, d = together([s, t], [task + b, task + a])\nanswer = vote([c, d])", "debate", why="each saw the other's"),
    Case("p = agent('p', 'You plan.')(task)\nq = agent('q', 'You plan otherwise.')(task)\n"
         "answer = ensemble([solver(), solver()])(task + p + q)", "ensemble", why="they saw two plans, none of theirs"),
    Case("a = solver()(task)\nb = solver()(task + a)\nanswer = ensemble([solver(), solver()])(task + a + b)",
         "ensemble", why="a chain of two texts before it is no exchange"),
    # Reflection
    Case("answer = reflect(solver(), critic(), rounds=1)(task)", "reflection"),
    Case("answer = reflect(solver(), critic())(task)", "single", content, "it stopped at once"),
    Case("answer = reflect(solver())(task)", "reflection", why="a reading of one's own is another call"),
    Case("answer = reflect(solver(memory=True))(task)", "reflection"),
    Case("answer = reflect(solver(memory=True), critic())(task)", "reflection"),
    Case("m = solver(memory=True)\nd = m(task)\nanswer = m('Errors:' + critic()(task + d))", "reflection",
         why="it remembers the draft"),
    Case("d = solver()(task)\nc = agent('r', 'Read.')(d)\nanswer = solver()(task + d + c)", "reflection"),
    Case("d = solver()(task)\nc = critic()(d + 'What is wrong?')\nanswer = solver()(task + d + c)", "reflection",
         quoting),
    Case("d = solver()(task)\nc = critic()(d[9:60])\nanswer = solver('b')(task + d[:90] + c[:40])", "reflection"),
    Case("d = solver()(task)\nc, e = together([critic(), critic('b')], task + d)\nanswer = solver()(task + d + c + e)",
         "reflection", why="two reviews are no candidates"),
    Case("d = solver()(task)\nc = critic()(task + d)\nanswer = solver()(task + d + c)", "reflection", late,
         "the same agent's draft, though without an answer"),
    Case("d = solver()(task)\nc = critic()(task + d)\nanswer = solver('b')(task + d + c)", "reflection", speechless),
    Case("m = judge(memory=True)\na, b = together([solver(), solver()], task)\nd = m(task + a + b)\n"
         "answer = m('Errors:' + critic()(task + d))", "reflection", why="nearer to the answer than what it judged"),
    Case("e = ensemble([solver(), solver()])(task)\nc = critic()(task + e)\nanswer = solver()(task + e + c)",
         "reflection", why="nearer to the answer than the team"),
    Case("answer = reflect(ensemble([solver(), solver()]), critic(), rounds=1)(task)", "ensemble",
         why="the revised text won a vote"),
    Case("answer = ensemble([reflect(solver(), critic()), reflect(solver(), critic())])(task)", "ensemble"),
    # Neither
    Case("p = agent('p', 'You plan.')(task)\nanswer = solver()(task + p)", "other"),
    Case("p, q = agent('p', 'You plan.')(task), agent('q', 'You plan the rest.')(task)\n"
         "answer = solver()(task + p + q)", "other", planning, "without answers they are no candidates"),
    Case("p = agent('p', 'You plan.')(task)\ns = solver()(task + p)\nanswer = agent('v', 'Verify.')(task + p + s)",
         "other", planning, "the plan is no draft of the answer"),
    Case("answer = solver()(critic()(solver()(task)))", "other", why="the last one never saw the draft"),
    Case("a = solver()(task)\nb = solver('improve')(task + a)\nanswer = solver('again')(task + b)", "other"),
    Case("a = solver()(task)\nb = solver('improve')(task + a)\nanswer = solver('again')(b + task)", "other", growing,
         "the last one saw the first text only as part of the second"),
    # Memory and tools
    Case("m = solver(memory=True)\nm(task)\nanswer = m('Go on.')", "single", why="one agent alone"),
    Case("m = solver('program', memory=True)\nanswer = m('Result: ' + run_python(m(task)))", "single", computing,
         "one agent and its tool"),
    Case("p = solver('program')(task)\nanswer = solver()(task + 'Result: ' + run_python(p))", "single", computing,
         "no text of the first agent was passed on"),
    Case("p = solver('program')(task)\nanswer = agent('x', 'Say it.')(task + p + 'Result: ' + run_python(p))", "other",
         computing, "a program was run, but none was revised"),
    Case("m = solver(memory=True)\na = m(task)\nb = m('Go on.')\nanswer = solver()(task + a + b)", "other",
         why="going on is no reading by another"),
    Case("m = solver(memory=True)\nm(task)\nanswer = m('Another solution: ' + solver('b')(task))", "ensemble",
         why="it decides between two texts, its own among them"),
    Case("m = solver(memory=True)\nm(ensemble([solver(), solver()])(task))\nanswer = m('In short?')", "ensemble",
         why="the second turn is about the same"),
    # What is no edge
    Case("solver()(task)\nanswer = solver('b')(task)", "single", parroting, task=LONG_TASK),
    Case("role = 'You are known for very short solutions.'\nagent('a', role)(task)\nanswer = solver()(task + role)",
         "single", echoing, "the role was in the agent's own prompt", LONG_TASK),
    Case("solver()(task)\nanswer = solver()(task)", "single", echoing, "all repeat the task and their role", LONG_TASK),
    Case("a = solver()(task)\nb = solver()(a)\nanswer = solver()(task + ' '.join(b.split()[:9]))", "single", phrases),
    Case("a = solver()(task)\nanswer = solver()(task + a[:])", "single", short, "too short to be told from chance"),
    Case("answer = solver()(critic()(solver()(task)))", "other", short, "a reply passed on as it is is reported"),
    Case("answer = solver()(task, critic()(task, solver()(task)))", "other", short, "also one of several arguments"),
    Case("a = solver()(task)\nanswer = reflect(solver(), critic(), 1)([task, a])", "reflection", short),
    Case("a, b = together([solver('x'), solver('y')], task)\nanswer = ensemble([solver()])(task, [a, b])", "ensemble",
         short, "a structure's members read them too"),
    Case("answer = solver()(answer_of(critic()(solver()(task))) or critic()(task, answer_of(solver()(task))))", "other",
         short, "what was taken out of a text is still its call's"),
    Case("answer = reflect(solver(), critic(), rounds=1)(task)", "reflection", short, "and so is what structures show"),
    Case("answer = ensemble([solver(), solver()], judge())(task)", "ensemble", short),
    # Names
    Case("answer = agent('critic', 'You vote, judge and debate.')(task)", "single"),
    Case("answer = reflect(agent('critic', 'Solve.'), agent('solver', 'Find errors.'), 1)(task)", "reflection"),
    Case("debate = lambda agents: agents[0]\nanswer = debate([solver(), solver()])(task)", "single"),
    Case("reflect = vote\nanswer = reflect([judge()(task), critic()(task)])", "ensemble"),
]  # fmt: skip

CODE_CASES = [
    Case("answer = solve_and_test(solver())(task)", "solver-tester"),
    Case("answer = solve_and_test(solver(), tester())(task)", "solver-tester"),
    Case("answer = solve_and_test(solver(), tester())(task)", "single", right, "it passed at once"),
    Case("answer = solve_and_test(solver(), rounds=2)(task)", "solver-tester", late_programs, "the first try had none"),
    Case("d = solver()(task)\nf = run_tests(d)\nanswer = solver()(task + d + f[0])", "solver-tester"),
    Case("d = solver()(task)\nf = run_tests(d)\nanswer = solver()(task + code_of(d) + f[0])", "solver-tester"),
    Case("m = solver(memory=True)\nf = run_tests(m(task))\nanswer = m('Failed: ' + f[0])", "solver-tester"),
    Case("d = solver()(task)\no = run_python(d, '2')\nanswer = solver()(task + d + 'On 2: ' + o)", "solver-tester",
         why="a trial on an input is a test run"),
    Case("answer = solver()(task)\nrun_tests(answer)", "single", why="tested, but not revised"),
    Case("d = solver()(task)\nrun_tests(d)\nanswer = solver('b')(task)", "single", why="a new start"),
    Case("answer = ensemble([solve_and_test(solver()), solver()])(task)", "ensemble"),
    Case("a, b = together([solver(), solver()], task)\nf, g = run_tests(a), run_tests(b)\n"
         "answer = judge()(task + a + f[0] + b + g[0])", "ensemble", why="a judge of two, though tested"),
    Case("answer = reflect(solver(), critic(), rounds=1)(task)", "reflection", why="nothing was run"),
    Case("answer = debate([solver(), solver('b')], judge())(task)", "debate"),
    Case("p = agent('p', 'You plan.')(task)\nanswer = solver()(task + p)", "other"),
]  # fmt: skip

# The dialect: what a case adds to a workflow

BEFORE = """
from workflow import AgentNode, ToolRegistry, Workflow
from workflow.nodes import DebateNode, EnsembleNode, ReflectionNode, RouterNode
from utils.environments.math_env import MathEnvironment
question = "something else"
tools = ToolRegistry()
tools.register("execute_code", MathEnvironment().execute, "runs a program")
s, t, u = AgentNode("S", "Solve."), AgentNode("T", "Solve backwards."), AgentNode("U", "Solve by cases.")
c, j, p = AgentNode("C", "Find errors."), AgentNode("J", "Decide."), AgentNode("P", "You plan.")
w = Workflow(name="w")
"""
AFTER = "\nresult = w.run(question)\nprint(result.content)\n"

DIALECT_MATH_CASES = [
    Case("w.add_node(s)", "single"),
    Case("w.add_node(AgentNode('Ensemble of critics and judges', 'Debate with yourself.'))", "single"),
    Case("w.add_node(RouterNode('x', {'a': s, 'b': t}, lambda context: 'b', 'a'))", "single"),
    Case("w.add_node(AgentNode('X', 'Write a program.', tool_registry=tools))", "single", computing, "one agent"),
    Case("Workflow('v').add_node(EnsembleNode('e', [s, t])).run(question)\nw.add_node(u)", "single", why="unused"),
    Case("w.add_node(EnsembleNode('e', [s]))", "single", why="one of one"),
    Case("w.add_node(EnsembleNode('e', [s, t, u]))", "ensemble"),
    Case("w.add_node(EnsembleNode('e', [s, t]))", "ensemble", speechless),
    Case("w.add_node(EnsembleNode('e', [s, t, u], consensus_agent=j))", "ensemble", split),
    Case("w.add_node(EnsembleNode('e', [s, s, s], consensus_agent=j))", "ensemble", why="they agree: a vote"),
    Case("w.add_node(EnsembleNode('e', [s, t], strategy='consensus', consensus_agent=j))", "ensemble"),
    Case("w.add_node(EnsembleNode('e', [s, t], strategy='weighted_vote', weights=[2, 1]))", "ensemble", split),
    Case("w.add_node(DebateNode('d', [s, t], judge=j, num_rounds=1))", "ensemble", why="nothing was exchanged"),
    Case("w.add_nodes([p, EnsembleNode('e', [s, t])])", "ensemble", planning),
    Case("w.add_nodes([EnsembleNode('e', [s, t]), j])", "ensemble", why="the result is verified, not revised"),
    Case("w.add_node(EnsembleNode('e', [ReflectionNode('r', x, 1, critic_agent=c) for x in (s, t)]))", "ensemble"),
    Case("w.add_node(ReflectionNode('r', EnsembleNode('e', [s, t]), 1, critic_agent=c))", "ensemble"),
    Case("w.add_node(DebateNode('d', [s, t], judge=j))", "debate"),
    Case("w.add_node(DebateNode('d', [s, t, u]))", "debate", split),
    Case("w.add_node(ReflectionNode('r', agent=s, critic_agent=c))", "reflection"),
    Case("w.add_node(ReflectionNode('r', agent=s, critic_agent=c))", "single", content, "it stopped at once"),
    Case("w.add_node(ReflectionNode('r', agent=s, num_iterations=1))", "reflection"),
    Case("w.add_node(ReflectionNode('r', agent=c, critic_agent=s, num_iterations=1))", "reflection", why="names"),
    Case("w.add_nodes([EnsembleNode('e', [s, t]), ReflectionNode('r', u, critic_agent=c)])", "reflection"),
    Case("w.add_nodes([s, c, t])", "reflection", why="the third sees the draft and what the second says of it"),
    Case("w.add_nodes([s, j])", "other", why="a chain of two: nothing is revised after another's reading"),
    Case("w.add_nodes([p, s])", "other", planning),
    Case("w.add_nodes([p, s, j])", "other", planning, "the plan is no draft of the answer"),
]  # fmt: skip

DIALECT_CODE_CASES = [
    Case("w.add_node(s)", "single"),
    Case("w.add_node(ReflectionNode('r', s, critic_agent=c))", "reflection", why="nothing was run"),
    Case("w.add_node(ReflectionNode('r', s, critic_agent=AgentNode('X', 'Test.', tools)))", "solver-tester", with_tool,
         "the reviewer ran something between its turns"),
    Case("w.add_nodes([EnsembleNode('e', [s, t]), AgentNode('X', 'Repair.', tools)])", "solver-tester", with_tool,
         "it ran something, then wrote the program anew"),
    Case("w.add_node(EnsembleNode('e', [s, t], 'consensus', AgentNode('X', 'Decide.', tools)))", "ensemble", with_tool,
         "a judge may run what it judges"),
]  # fmt: skip

ALL_CASES = [
    *(case._replace(say=case.say or agreed) for case in MATH_CASES),
    *(case._replace(say=case.say or programs, task=CODE) for case in CODE_CASES),
    *(case._replace(say=case.say or agreed, script=BEFORE + case.script + AFTER) for case in DIALECT_MATH_CASES),
    *(
        case._replace(say=case.say or programs, script=BEFORE + case.script + AFTER, task=CODE)
        for case in DIALECT_CODE_CASES
    ),
]


@pytest.mark.parametrize("case", ALL_CASES, ids=range(len(ALL_CASES)))
async def test_executed(case):
    e = await Host(case.say, TINY if case.say is short else None).run(case.script, case.task)
    assert e.status == "ok", e.reason
    assert e.structure == case.expected, case.script + "\n" + case.why


async def test_a_script_that_was_stopped_is_what_it_was_so_far():
    e = await Host(agreed).run("answer = reflect(solver(), critic(), rounds=9)(task)", budget=Budget(calls=4))
    assert (e.status, e.structure) == ("budget", "reflection")


def call(path, text, *messages, **more):
    return Call(
        path, path, "", (1,), (1,), (-1.0,), more.pop("finish_reason", "stop"), 0, text, messages=messages, **more
    )


def test_a_draft_that_was_cut_may_have_been_about_to_answer():
    """Neither draft holds an answer; a judge of plans would be "other"."""
    a, b = thoughts("a"), thoughts("b")
    for finish_reason, expected in [("length", "ensemble"), ("stop", "other")]:
        drafts = [call("0", a, "task", finish_reason=finish_reason), call("1", b, "task", finish_reason=finish_reason)]
        e = Execution(calls=[*drafts, call("2", "so \\boxed{7}", f"task {a} {b}")], answer="so \\boxed{7}")
        assert classify(e) == expected


def test_what_a_script_process_reports_falsely_does_no_harm():
    calls = [call("0", thoughts("a"), "task"), call("1", thoughts("b"), "task")]
    circle = [("0", "1", "pass"), ("1", "0", "pass")]
    assert classify(Execution(calls=calls, links=circle, answer=calls[1].text)) == "other"
    odd = [("0", "0", "tests"), ("0", "7", "vote"), ("9", "", "answer"), ("9", "1", "judge")]
    assert classify(Execution(calls=calls, links=odd, answer=calls[1].text)) == "single"


def test_the_paper_has_rows_for_fewer_structures():
    assert {paper_name(s) for s in STRUCTURES} == {"invalid", "single", "ensemble", "reflection", "other"}
    assert (paper_name("debate"), paper_name("solver-tester")) == ("ensemble", "reflection")
