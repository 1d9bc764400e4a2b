"""Agents and workflows to show a teacher model: what a Designer's script can look like, in both forms.

A workflow template exists in our own language (`native`) and in that of the published checkpoint (`dialect`). Both make
the same kind of system out of the same strategies. None holds anything of a task.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

from metaagent_x.mas.prompts import FULL
from metaagent_x.tasks.task import Kind

# Roles that our language has no word for.
PLANNER: Mapping[Kind, str] = {
    "math": (
        "You plan and do not solve. Name the two or three smaller questions whose answers settle the problem, in the "
        "order in which to settle them, and say how they combine."
    ),
    "code": (
        "You plan and write no program. Name the algorithm and its complexity, the data structures, the parts of the "
        "program in order, and the edge cases that each part must get right."
    ),
}
INPUT_WRITER = (
    "Write three small but tricky inputs for the problem, exactly as its program reads them, with a line === between "
    "them. Reply with the inputs alone."
)
UNIT_TESTER = (
    "You test programs. Choose small inputs for which you can work out the output by hand, edge cases among them. Run "
    "the program on each with the tool execute_code and compare. Name the first input on which it fails, and why. End "
    "with a line that says CORRECT or WRONG."
)
RUN_FIRST = "\nRun the programs on small inputs with the tool execute_code before you decide."


@dataclasses.dataclass(frozen=True)
class AgentTemplate:
    """An agent of the dialect: its system prompt, and whether it may run programs. Our own language has its roles and
    styles for this (`prompts.py`), from which the prompts are made."""

    prompt: str
    tool: bool = False


def _role(kind: Kind, role: str, style: str = "") -> AgentTemplate:
    return AgentTemplate(FULL.role(role, kind, style))


AGENTS: Mapping[Kind, Mapping[str, AgentTemplate]] = {  # they differ by strategy, not by subject
    "math": {
        "MathSolver": _role("math", "solver"),
        "ForwardSolver": _role("math", "solver", "forward"),
        "BackwardSolver": _role("math", "solver", "backward"),
        "CaseAnalyzer": _role("math", "solver", "cases"),
        "PatternFinder": _role("math", "solver", "small cases"),
        "InvariantFinder": _role("math", "solver", "invariant"),
        "Programmer": AgentTemplate(FULL.role("solver", "math", "program"), tool=True),
        "Verifier": _role("math", "solver", "verify"),
        "MathCritic": _role("math", "critic"),
        "MathJudge": _role("math", "judge"),
        "Planner": AgentTemplate(PLANNER["math"]),
    },
    "code": {
        "CodeSolver": _role("code", "solver"),
        "BruteForceSolver": _role("code", "solver", "brute force"),
        "OptimalSolver": _role("code", "solver", "optimal"),
        "EdgeCaseSolver": _role("code", "solver", "edge cases"),
        "InvariantSolver": _role("code", "solver", "invariant"),
        "TraceSolver": _role("code", "solver", "trace"),
        "Repairer": AgentTemplate(FULL.role("solver", "code", "verify") + RUN_FIRST, tool=True),
        "UnitTestAgent": AgentTemplate(UNIT_TESTER, tool=True),
        "CodeCritic": _role("code", "critic"),
        "CodeJudge": _role("code", "judge"),
        "TestingJudge": AgentTemplate(FULL.role("judge", "code") + RUN_FIRST, tool=True),
        "Planner": AgentTemplate(PLANNER["code"]),
    },
}


@dataclasses.dataclass(frozen=True)
class Template:
    """One kind of system.

    Attributes:
      name: unique. kind: of the tasks that it is for.
      structure: what `classify` says of it when all its steps are taken; less may be needed ("single" where a critic
        is content at once).
      when: one line for whoever chooses.
      native, dialect: the script in each form. calls, dialect_calls: the most that it can cost.
    """

    name: str
    kind: Kind
    structure: str
    when: str
    native: str
    dialect: str
    calls: int
    dialect_calls: int


# What a script of the dialect needs before its agents can run programs: imports, then statements.
TOOLS: Mapping[Kind, tuple[str, str]] = {
    "math": (
        "from utils.environments.math_env import MathEnvironment",
        """
tools = ToolRegistry()
tools.register(
    "python_execute", MathEnvironment().execute, "runs a Python program, returns what it prints",
    {"code": {"type": "string"}},
)""",
    ),
    "code": (
        "import subprocess\nimport sys",
        """
def execute_code(code, stdin=""):
    done = subprocess.run([sys.executable, "-c", code], input=stdin, capture_output=True, text=True, timeout=10)
    return done.stdout + done.stderr


tools = ToolRegistry()
tools.register(
    "execute_code", execute_code, "runs a Python program on an input, returns what it prints",
    {"code": {"type": "string"}, "stdin": {"type": "string"}},
)""",
    ),
}
MAX_TURNS = 2  # of an agent with a tool: three calls, and a fourth if it still asks for the tool then


def _dialect(name: str, kind: Kind, agents: Mapping[str, str], nodes: str, flow: Sequence[str]) -> str:
    """A script of the published form.

    Args:
      agents: variable -> name in `AGENTS`. nodes: statements that combine them. flow: the workflow's nodes in order.
    """
    made = {variable: (agent, AGENTS[kind][agent]) for variable, agent in agents.items()}
    classes = [name for name in ("EnsembleNode", "ReflectionNode", "DebateNode") if name in nodes]
    imports, tools = TOOLS[kind] if any(template.tool for _, template in made.values()) else ("", "")
    lines = [imports] if imports else []
    lines += ["from workflow import AgentNode, ToolRegistry, Workflow"]
    lines += [f"from workflow.nodes import {', '.join(classes)}"] if classes else []
    lines += ["", 'question = "..."  # the task, word for word']
    lines += [tools] if tools else []
    for variable, (agent, template) in made.items():
        given = f"tool_registry=tools, max_turns={MAX_TURNS}" if template.tool else "max_turns=1"
        lines.append(f'{variable} = AgentNode(name="{agent}", system_prompt={json.dumps(template.prompt)}, {given})')
    lines += [nodes.strip("\n")] if nodes else []
    lines += [f'workflow = Workflow(name="{name}")', *(f"workflow.add_node({node})" for node in flow)]
    return "\n".join([*lines, "result = workflow.run(question)", "print(result.content)"]) + "\n"


def _template(
    name: str, structure: str, *, when: str, native: str, agents: Mapping[str, str], nodes: str = "",
    flow: Sequence[str], calls: int, dialect_calls: int = 0,
) -> Template:  # fmt: skip
    kind: Kind = "code" if name.startswith("code") else "math"
    dialect = _dialect(name, kind, agents, nodes, flow)
    return Template(name, kind, structure, when, native.strip("\n") + "\n", dialect, calls, dialect_calls or calls)


def _team(members: str) -> str:
    """An ensemble whose judge is asked if the members differ."""
    return f'team = EnsembleNode(name="team", agents=[{members}], strategy="majority_vote", consensus_agent=judge)'


_ALL = (
    _template(
        "math_single", "single", calls=1,
        when="The problem is routine: one careful solution is enough.",
        native='answer = solver("forward")(task)',
        agents={"solver": "ForwardSolver"},
        flow=["solver"],
    ),
    _template(
        "math_vote", "ensemble", calls=3,
        when="Several ways lead to a short answer, and slips are the main danger.",
        native='answer = ensemble([solver("forward"), solver("backward"), solver("cases")])(task)',
        agents={"forward": "ForwardSolver", "backward": "BackwardSolver", "cases": "CaseAnalyzer"},
        nodes='team = EnsembleNode(name="team", agents=[forward, backward, cases], strategy="majority_vote")',
        flow=["team"],
    ),
    _template(
        "math_ensemble_judge", "ensemble", calls=4,
        when="Different ideas are plausible; somebody must weigh them when they differ.",
        native='answer = ensemble([solver("forward"), solver("small cases"), solver("invariant")], judge())(task)',
        agents={
            "forward": "ForwardSolver", "pattern": "PatternFinder", "invariant": "InvariantFinder",
            "judge": "MathJudge",
        },
        nodes=_team("forward, pattern, invariant"),
        flow=["team"],
    ),
    _template(
        "math_self_consistency", "ensemble", calls=4,
        when="One method fits, but a single run of it may go wrong.",
        native='answer = ensemble([solver()] * 3, judge())(task)',
        agents={"solver": "MathSolver", "judge": "MathJudge"},
        nodes=_team("solver, solver, solver"),
        flow=["team"],
    ),
    _template(
        "math_reflection", "reflection", calls=5,
        when="A long argument in which single steps are easy to get wrong and to check.",
        native='answer = reflect(solver(), critic(), rounds=2)(task)',
        agents={"solver": "MathSolver", "critic": "MathCritic"},
        nodes='pair = ReflectionNode(name="pair", agent=solver, critic_agent=critic, num_iterations=2)',
        flow=["pair"],
    ),
    _template(
        "math_ensemble_verify", "ensemble", calls=5,
        when="Hard, with room for a shared mistake: solve it in several ways, then check.",
        native=r"""
draft = ensemble([solver("forward"), solver("backward"), solver("cases")], judge())(task)
answer = solver("verify")(task + "\n\nProposed solution:\n" + draft)
""",
        agents={
            "forward": "ForwardSolver", "backward": "BackwardSolver", "cases": "CaseAnalyzer", "judge": "MathJudge",
            "verifier": "Verifier",
        },
        nodes=_team("forward, backward, cases"),
        flow=["team", "verifier"],
    ),
    _template(
        "math_debate", "debate", calls=5,
        when="Two views of the problem compete, and arguments can settle which is right.",
        native='answer = debate([solver("forward"), solver("backward")], judge(), rounds=2)(task)',
        agents={"forward": "ForwardSolver", "backward": "BackwardSolver", "judge": "MathJudge"},
        nodes='talk = DebateNode(name="talk", debaters=[forward, backward], judge=judge, num_rounds=2)',
        flow=["talk"],
    ),
    _template(
        "math_plan", "other", calls=2,
        when="Several smaller questions stand between what is given and what is asked.",
        native=f"""
planner = agent("planner", {json.dumps(PLANNER["math"])})
plan = planner(task)
answer = solver()(task + "\\n\\nPlan:\\n" + plan)
""",
        agents={"planner": "Planner", "solver": "MathSolver"},
        flow=["planner", "solver"],
    ),
    _template(
        "math_program", "single", calls=3, dialect_calls=4,
        when="The result can be counted or computed exactly by a short program.",
        native=r"""
worker = solver("program", memory=True)
output = run_python(worker(task))
if output.startswith("error"):
    output = run_python(worker("The program failed:\n" + output + "\nWrite it anew, in full."))
answer = worker("The program printed:\n" + output + "\nCan that be right? Give the final answer.")
""",
        agents={"programmer": "Programmer"},
        flow=["programmer"],
    ),
    _template(
        "math_program_check", "ensemble", calls=4, dialect_calls=6,
        when="An argument and a computation are both possible and can confirm each other.",
        native=r"""
def by_program(task):
    worker = solver("program", memory=True)
    output = run_python(worker(task))
    return worker("The program printed:\n" + output + "\nCan that be right? Give the final answer.")

answer = ensemble([solver("forward"), by_program], judge())(task)
""",
        agents={"forward": "ForwardSolver", "programmer": "Programmer", "judge": "MathJudge"},
        nodes=_team("forward, programmer"),
        flow=["team"],
    ),
    _template(
        "math_reflections", "ensemble", calls=10,
        when="Very hard: every solution should be corrected before answers are compared.",
        native="""
ways = [solver("forward"), solver("backward"), solver("small cases")]
answer = ensemble([reflect(way, critic(), rounds=1) for way in ways], judge())(task)
""",
        agents={
            "forward": "ForwardSolver", "backward": "BackwardSolver", "pattern": "PatternFinder",
            "critic": "MathCritic", "judge": "MathJudge",
        },
        nodes="""
pairs = [
    ReflectionNode(name="pair", agent=way, critic_agent=critic, num_iterations=1)
    for way in (forward, backward, pattern)
]
team = EnsembleNode(name="team", agents=pairs, strategy="majority_vote", consensus_agent=judge)
""",
        flow=["team"],
    ),
    _template(
        "code_single", "single", calls=1,
        when="A standard algorithm, known limits, few edge cases.",
        native='answer = solver("optimal")(task)',
        agents={"solver": "OptimalSolver"},
        flow=["solver"],
    ),
    _template(
        "code_self_consistency", "ensemble", calls=4,
        when="The task is clear, but one program alone may have a slip.",
        native='answer = ensemble([solver()] * 3, judge())(task)',
        agents={"solver": "CodeSolver", "judge": "CodeJudge"},
        nodes=_team("solver, solver, solver"),
        flow=["team"],
    ),
    _template(
        "code_ensemble_judge", "ensemble", calls=4,
        when="Different algorithms are plausible; the best of them has to be chosen.",
        native='answer = ensemble([solver("optimal"), solver("edge cases"), solver("invariant")], judge())(task)',
        agents={
            "optimal": "OptimalSolver", "edges": "EdgeCaseSolver", "invariant": "InvariantSolver",
            "judge": "CodeJudge",
        },
        nodes=_team("optimal, edges, invariant"),
        flow=["team"],
    ),
    _template(
        "code_reflection", "reflection", calls=5,
        when="Details of the statement are easy to miss, and tests show little of them.",
        native='answer = reflect(solver("trace"), critic(), rounds=2)(task)',
        agents={"solver": "TraceSolver", "critic": "CodeCritic"},
        nodes='pair = ReflectionNode(name="pair", agent=solver, critic_agent=critic, num_iterations=2)',
        flow=["pair"],
    ),
    _template(
        "code_solve_and_test", "solver-tester", calls=5, dialect_calls=11,
        when="Running the program on examples will show what is wrong with it.",
        native='answer = solve_and_test(solver(), tester(), rounds=3)(task)',
        agents={"solver": "CodeSolver", "tester": "UnitTestAgent"},
        nodes='pair = ReflectionNode(name="pair", agent=solver, critic_agent=tester, num_iterations=2)',
        flow=["pair"],
    ),
    _template(
        "code_brute_vs_optimal", "ensemble", calls=4, dialect_calls=6,
        when="The fast algorithm is tricky; a slow one is surely right on small inputs.",
        native=f"""
slow, fast = together([solver("brute force"), solver("optimal")], task)
inputs = agent("input writer", {json.dumps(INPUT_WRITER)})(task).split("===")[:3]
wrong = [i for i in inputs if run_python(slow, i) != run_python(fast, i)] or run_tests(fast)
answer = fast
if wrong:
    programs = "\\n\\nSlow program:\\n" + slow + "\\n\\nFast program:\\n" + fast
    answer = judge()(task + programs + "\\n\\nThe fast one is in doubt because of:\\n" + "\\n".join(wrong))
""",
        agents={"slow": "BruteForceSolver", "fast": "OptimalSolver", "judge": "TestingJudge"},
        nodes='team = EnsembleNode(name="team", agents=[slow, fast], strategy="consensus", consensus_agent=judge)',
        flow=["team"],
    ),
    _template(
        "code_debate", "debate", calls=5,
        when="Two algorithms compete, and it takes arguments about limits to decide.",
        native='answer = debate([solver("optimal"), solver("edge cases")], judge(), rounds=2)(task)',
        agents={"optimal": "OptimalSolver", "edges": "EdgeCaseSolver", "judge": "CodeJudge"},
        nodes='talk = DebateNode(name="talk", debaters=[optimal, edges], judge=judge, num_rounds=2)',
        flow=["talk"],
    ),
    _template(
        "code_plan", "other", calls=2,
        when="The program has several parts that must fit together.",
        native=f"""
planner = agent("planner", {json.dumps(PLANNER["code"])})
plan = planner(task)
answer = solver()(task + "\\n\\nPlan:\\n" + plan)
""",
        agents={"planner": "Planner", "solver": "CodeSolver"},
        flow=["planner", "solver"],
    ),
    _template(
        "code_ensemble_then_test", "solver-tester", calls=4, dialect_calls=7,
        when="Choose among programs first, then repair the chosen one by tests.",
        native=r"""
draft = ensemble([solver("optimal"), solver("edge cases")], judge())(task)
failures = run_tests(draft)
answer = draft
if failures:
    answer = solver("verify")(task + "\n\nProgram:\n" + draft + "\n\nFailed tests:\n" + "\n".join(failures))
""",
        agents={"optimal": "OptimalSolver", "edges": "EdgeCaseSolver", "judge": "CodeJudge", "repairer": "Repairer"},
        nodes=_team("optimal, edges"),
        flow=["team", "repairer"],
    ),
    _template(
        "code_tested_ensemble", "ensemble", calls=7, dialect_calls=19,
        when="Hard: every program should be tested and repaired before one is chosen.",
        native="""
ways = [solver("brute force"), solver("optimal"), solver("edge cases")]
answer = ensemble([solve_and_test(way, rounds=2) for way in ways], judge())(task)
""",
        agents={
            "brute": "BruteForceSolver", "optimal": "OptimalSolver", "edges": "EdgeCaseSolver",
            "tester": "UnitTestAgent", "judge": "CodeJudge",
        },
        nodes="""
pairs = [
    ReflectionNode(name="pair", agent=way, critic_agent=tester, num_iterations=1)
    for way in (brute, optimal, edges)
]
team = EnsembleNode(name="team", agents=pairs, strategy="majority_vote", consensus_agent=judge)
""",
        flow=["team"],
    ),
)  # fmt: skip

TEMPLATES: Mapping[str, Template] = {template.name: template for template in _ALL}
