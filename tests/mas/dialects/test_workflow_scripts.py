"""Whole scripts in the form of the published checkpoint: which calls they make, what is shown, what the answer is."""

import dataclasses
from pathlib import Path

import pytest
from mas_host import CODE, MATH, Host, program

from metaagent_x.mas import Script, lint

SCRIPTS = Path(__file__).parent / "scripts"
SEVEN, EIGHT, NONE = "so \\boxed{7}", "hence \\boxed{8}", "I do not know."
DOUBLE, TRIPLE = program("print(2 * int(input()))"), program("n = input()\nfor _ in range(3):\n    print(n)")
DOUBLE_TOO = program("print( 2*int(input()) )  # twice")
RIGHT, WRONG = "All steps hold.\nVERDICT: CORRECT", "Step 1 fails.\nVERDICT: INCORRECT"
CALL = '<tool_call>{"name": "%s", "arguments": %s}</tool_call>'


@dataclasses.dataclass
class Case:
    """`replies`: by path, else by agent, in the order of its calls. `calls`: paths and agents, sorted by path.

    `shown`, `hidden`: by path, what must and what must not stand in the message.
    """

    name: str
    replies: dict
    calls: list[str]
    answer: str
    structure: str = "single"
    code: bool = False
    shown: dict = dataclasses.field(default_factory=dict)
    hidden: dict = dataclasses.field(default_factory=dict)
    tools: list[str] = dataclasses.field(default_factory=list)
    flags: set = dataclasses.field(default_factory=set)


CASES = [
    Case("single_solver", {"MathSolver": SEVEN}, ["0 MathSolver"], SEVEN),
    Case(
        "main_guard",
        {"Solver": SEVEN, "Checker": "checked: \\boxed{7}"},
        ["0 Solver", "1 Checker"],
        "checked: \\boxed{7}",
        "other",
        shown={"1": [MATH.prompt, "Solver:\n" + SEVEN]},
    ),
    Case("nested_parentheses", {"Solver": SEVEN}, ["0 Solver"], SEVEN),
    Case(
        "vote_unanimous",
        {"ForwardSolver": SEVEN, "BackwardSolver": "thus \\boxed{7.0}", "CaseAnalyzer": "and \\boxed{7}"},
        ["0.0.0 ForwardSolver", "0.1.0 BackwardSolver", "0.2.0 CaseAnalyzer"],
        SEVEN,
        "ensemble",
    ),
    Case(
        "vote_split_asks_judge",
        {"ForwardSolver": SEVEN, "BackwardSolver": EIGHT, "CaseAnalyzer": SEVEN, "MathJudge": "It is \\boxed{7}."},
        ["0.0.0 ForwardSolver", "0.1.0 BackwardSolver", "0.2.0 CaseAnalyzer", "0.3.0 MathJudge"],
        "It is \\boxed{7}.",
        "ensemble",
        shown={"0.3.0": [MATH.prompt, SEVEN, EIGHT]},
    ),
    Case(
        "vote_plurality",
        {
            "Solver_0": EIGHT,
            "Solver_1": NONE,
            "Solver_2": SEVEN,
            "Solver_3": "x \\boxed{9}",
            "Solver_4": "y \\boxed{7}",
        },
        [f"0.{i}.0 Solver_{i}" for i in range(5)],
        SEVEN,
        "ensemble",
    ),
    Case("vote_without_answers", {"A": "Add.", "B": "Count."}, ["0.0.0 A", "0.1.0 B"], "Add.", "ensemble"),
    Case(
        "weighted_vote",
        {"Novice": EIGHT, "Amateur": "eight: \\boxed{8}", "Professor": SEVEN},
        ["0.0.0 Novice", "0.1.0 Amateur", "0.2.0 Professor"],
        SEVEN,
        "ensemble",
    ),
    Case(
        "consensus_always_asks",
        {"Algebra": SEVEN, "Counting": SEVEN, "Chair": "Both say \\boxed{7}."},
        ["0.0.0 Algebra", "0.1.0 Counting", "0.2.0 Chair"],
        "Both say \\boxed{7}.",
        "ensemble",
    ),
    Case(
        "reflection_with_critic",
        {"MathSolver": [EIGHT, SEVEN], "Verifier": [WRONG, RIGHT]},
        ["0.0.0 MathSolver", "0.0.1 Verifier", "0.0.2 MathSolver", "0.0.3 Verifier"],
        SEVEN,
        "reflection",
        shown={"0.0.1": [MATH.prompt, EIGHT], "0.0.2": [MATH.prompt, EIGHT, WRONG], "0.0.3": [SEVEN]},
        hidden={"0.0.3": [EIGHT, WRONG]},
    ),
    Case(
        "self_reflection",
        {"Thinker": [EIGHT, "That was wrong.\nINCORRECT", SEVEN, "Now it is fine: CORRECT."]},
        ["0.0.0 Thinker", "0.0.1 Thinker", "0.0.2 Thinker", "0.0.3 Thinker"],
        SEVEN,
        "reflection",
    ),
    Case(
        "reflection_stops_when_nothing_changes",
        {"Solver": ["three plus four is \\boxed{7}", "three plus four is \\boxed{7}!"], "Critic": "Not convinced."},
        ["0.0.0 Solver", "0.0.1 Critic", "0.0.2 Solver"],
        "three plus four is \\boxed{7}!",
        "reflection",
    ),
    Case(
        "reflection_own_prompts",
        {"Solver": [EIGHT, SEVEN], "Critic": "No."},
        ["0.0.0 Solver", "0.0.1 Critic", "0.0.2 Solver"],
        SEVEN,
        "reflection",
        shown={
            "0.0.1": [
                f"Problem:\n{MATH.prompt}\nProposal:\n{EIGHT}\nIs \\boxed{{\\frac{{1}}{{2}}}} written well? {{unknown}}"
            ],
            "0.0.2": [f"Problem:\n{MATH.prompt}\nYou said:\n{EIGHT}\nThey say:\nNo.\nAnswer in \\boxed{{}}."],
        },
    ),
    Case(
        "reflection_with_history",
        {"Solver": ["first \\boxed{5}", "second \\boxed{6}", SEVEN], "Critic": ["Too small.", "Nearly.", "CORRECT"]},
        ["0.0.0 Solver", "0.0.1 Critic", "0.0.2 Solver", "0.0.3 Critic", "0.0.4 Solver", "0.0.5 Critic"],
        SEVEN,
        "reflection",
        shown={"0.0.4": ["first", "Too small.", "second", "Nearly."]},
        hidden={"0.0.3": ["first"]},
    ),
    Case(
        "debate_first_debater_judges",
        {"Pro": [SEVEN, SEVEN, "I stay with \\boxed{7}."], "Con": [EIGHT, "fine, \\boxed{7}"]},
        ["0.0.0 Pro", "0.0.1 Pro", "0.1.0 Con", "0.1.1 Con", "0.2.0 Pro"],
        "I stay with \\boxed{7}.",
        "debate",
        shown={"0.0.1": [SEVEN, EIGHT], "0.1.1": [SEVEN, EIGHT], "0.2.0": [MATH.prompt, SEVEN, "fine, \\boxed{7}"]},
        hidden={"0.2.0": [EIGHT]},
    ),
    Case(
        "debate_three_rounds",
        {
            "Left": ["L1 \\boxed{1}", "L2 \\boxed{2}", "L3 \\boxed{3}"],
            "Right": ["R1 \\boxed{4}", "R2 \\boxed{5}", "R3 \\boxed{6}"],
            "Judge": SEVEN,
        },
        ["0.0.0 Left", "0.0.1 Left", "0.0.2 Left", "0.1.0 Right", "0.1.1 Right", "0.1.2 Right", "0.2.0 Judge"],
        SEVEN,
        "debate",
        shown={"0.0.2": ["L2", "R1", "R2"], "0.2.0": ["L3", "R3"]},
        hidden={"0.0.1": ["L2", "R2"]},
    ),
    Case(
        "ensemble_then_verifier",
        {
            "Forward": SEVEN,
            "Backward": SEVEN,
            "Cases": EIGHT,
            "Verifier": "verified \\boxed{7}",
            "Judge": "Long thoughts.\n<delivery>Two of three say seven.</delivery>\nFINAL ANSWER: \\boxed{7}",
        },
        ["0.0.0 Forward", "0.1.0 Backward", "0.2.0 Cases", "0.3.0 Judge", "1 Verifier"],
        "verified \\boxed{7}",
        "ensemble",
        shown={"1": [MATH.prompt, "Team:\nTwo of three say seven.\n\n\\boxed{7}"]},
        hidden={"1": ["Long thoughts", EIGHT]},
    ),
    Case(
        "ensemble_then_reflection",
        {"Quick": EIGHT, "Slow": SEVEN, "Editor": ["edited \\boxed{8}", SEVEN], "Critic": WRONG},
        ["0.0.0 Quick", "0.1.0 Slow", "1.0.0 Editor", "1.0.1 Critic", "1.0.2 Editor"],
        SEVEN,
        "reflection",
        shown={"1.0.0": [MATH.prompt, "First stage:\n" + EIGHT], "1.0.1": ["First stage:\n" + EIGHT, "edited"]},
    ),
    Case(
        "ensemble_of_reflections",
        {"By algebra": [EIGHT, SEVEN], "0.0.0.0.1": WRONG, "By pictures": "pictures: \\boxed{7}", "0.1.0.0.1": RIGHT},
        [
            "0.0.0.0.0 By algebra",
            "0.0.0.0.1 Critic",
            "0.0.0.0.2 By algebra",
            "0.1.0.0.0 By pictures",
            "0.1.0.0.1 Critic",
        ],
        SEVEN,
        "ensemble",
        shown={"0.0.0.0.2": [EIGHT, WRONG]},
        hidden={"0.1.0.0.1": [EIGHT]},
    ),
    Case(
        "reflection_on_an_ensemble",
        {"A": [EIGHT, SEVEN], "B": [EIGHT, "b \\boxed{7}"], "Critic": WRONG},
        ["0.0.0.0.0 A", "0.0.0.1.0 B", "0.0.1 Critic", "0.0.2.0.0 A", "0.0.2.1.0 B"],
        SEVEN,
        "ensemble",
        shown={"0.0.1": [EIGHT], "0.0.2.1.0": [EIGHT, WRONG]},
    ),
    Case(
        "router_by_keyword",
        {"Adder": SEVEN, "Counter": "counted \\boxed{7}"},
        ["0.0.0 Adder", "0.1.0 Counter"],
        SEVEN,
        "ensemble",
    ),
    Case(
        "router_falls_back",
        {"Fallback": SEVEN, "Checker": "ok \\boxed{7}"},
        ["0 Fallback", "1 Checker"],
        "ok \\boxed{7}",
        "other",
        shown={"1": ["Fallback:\n" + SEVEN]},
    ),
    Case(
        "python_tool",
        {"Programmer": ["I compute.\n" + program("print(3 + 4)"), SEVEN]},
        ["0 Programmer", "2 Programmer"],
        SEVEN,
        shown={"2": ["Result of python_execute:\n7"]},
        hidden={"2": [MATH.prompt]},
        tools=["1 print(3 + 4)"],
    ),
    Case(
        "own_tools",
        {
            "Caller": [
                CALL % ("add_many", '{"numbers": [3, 4]}') + "\n" + CALL % ("factorial", '"{\\"n\\": 3}"'),
                CALL % ("add_many", '{"wrong": 1}'),
                CALL % ("divide", "{}"),
                "<tool_call>{'name': add}",
                SEVEN,
            ]
        },
        ["0 Caller", "1 Caller", "2 Caller", "3 Caller", "4 Caller"],
        SEVEN,
        shown={
            "1": ["Result of add_many:\n7\n\nResult of factorial:\n6"],
            "2": ["TypeError", "wrong"],
            "3": ["there is no tool 'divide'; there are: factorial, add_many"],
            "4": ['{"name": ..., "arguments": {...}}'],
        },
    ),
    Case(
        "search_tool",
        {"Researcher": [CALL % ("google-search", '{"query": "3 + 4"}'), CALL % ("fetch_data", '{"url": "x"}'), SEVEN]},
        ["0 Researcher", "1 Researcher", "2 Researcher"],
        SEVEN,
        shown={"1": ["google-search", "no network"], "2": ["fetch_data", "no network"]},
    ),
    Case("latex_in_strings", {"Latex": SEVEN}, ["0 Latex"], SEVEN),
    Case("prints_and_catches", {"Solver": SEVEN}, ["0 Solver"], SEVEN),
    Case(
        "two_workflows",
        {"Drafter": "My draft says \\boxed{8}", "Examiner": SEVEN},
        ["0 Drafter", "1 Examiner"],
        SEVEN,
        "other",
        shown={"1": [MATH.prompt, "A colleague wrote:\nMy draft says \\boxed{8}"]},
    ),
    Case(
        "same_question_twice",
        {"Solver_short": EIGHT, "Solver_long": SEVEN},
        ["0 Solver_short", "1 Solver_long"],
        SEVEN,
        hidden={"1": ["Please", EIGHT]},
    ),
    Case(
        "conditional_workflow",
        {"Solver": "not sure, \\boxed{8}", "Repairer": SEVEN},
        ["0 Solver", "1 Repairer"],
        SEVEN,
        "other",
    ),
    Case(
        "loop_workflow",
        {"Worker": ["three ...", "and four ...", SEVEN]},
        ["0 Worker", "1 Worker", "2 Worker"],
        SEVEN,
        "reflection",
        shown={"2": ["Worker:\nthree ...", "Worker:\nand four ..."]},
    ),
    Case(
        "agent_graph",
        {"Triage": "HARD, I think", "HardSolver": [EIGHT, SEVEN], "Checker": ["AGAIN: \\boxed{8}", "OK: \\boxed{7}"]},
        ["0 Triage", "1 HardSolver", "2 Checker", "3 HardSolver", "4 Checker"],
        "OK: \\boxed{7}",
        "reflection",
        shown={"3": ["Triage:\nHARD", "HardSolver:\n" + EIGHT, "Checker:\nAGAIN"]},
    ),
    Case(
        "simple_chain",
        {"Planner": "First add, then box.", "Solver": SEVEN},
        ["0 Planner", "1 Solver"],
        SEVEN,
        "other",
        shown={"1": [MATH.prompt, "Planner:\nFirst add, then box."]},
    ),
    Case("custom_node", {"Long": "at length \\boxed{7}", "Short": SEVEN}, ["0 Long", "1 Short"], SEVEN),
    Case(
        "own_messages",
        {"Helper": "Numbers can be swapped.", "Solver": SEVEN},
        ["0 Helper", "1 Solver"],
        SEVEN,
        "other",
        shown={
            "0": ["Name one useful fact about this problem: " + MATH.prompt],
            "1": [MATH.prompt, "Numbers can be swapped."],
        },
    ),
    Case("truncated_question", {"CodeSolver": DOUBLE}, ["0 CodeSolver"], DOUBLE, code=True),
    Case("code_block_is_the_answer", {"CodeSolver": DOUBLE}, ["0 CodeSolver"], DOUBLE, code=True),
    Case(
        "execute_code_by_file",
        {
            "CodeSolver": [
                CALL % ("execute_code", '{"code": "print(int(input()) * 2)", "input_data": "21"}'),
                CALL % ("execute_code", '{"code": "print(1 / 0)"}'),
                "<solution>\nprint(int(input()) * 2)\n</solution>",
            ]
        },
        ["0 CodeSolver", "2 CodeSolver", "4 CodeSolver"],
        "<solution>\nprint(int(input()) * 2)\n</solution>",
        code=True,
        shown={"2": ["Output:\n42\n"], "4": ["Error:\nZeroDivisionError: division by zero"]},
        tools=["1 print(int(input()) * 2)", "3 print(1 / 0)"],
    ),
    Case(
        "solver_and_unit_tester",
        {
            "CodeSolver": [TRIPLE, DOUBLE],
            "UnitTestAgent": [CALL % ("execute_code", '{"code": "print(3 * input())", "stdin": "5"}'), WRONG, RIGHT],
        },
        ["0.0.0 CodeSolver", "0.0.1 UnitTestAgent", "0.0.3 UnitTestAgent", "0.0.4 CodeSolver", "0.0.5 UnitTestAgent"],
        DOUBLE,
        "solver-tester",
        code=True,
        tools=["0.0.2 print(3 * input())"],
        shown={"0.0.3": ["Result of execute_code:\n555"], "0.0.4": [TRIPLE, WRONG]},
    ),
    Case(
        "code_ensemble_judge",
        {"BruteForceSolver": DOUBLE, "OptimalSolver": DOUBLE_TOO, "EdgeCaseSolver": TRIPLE, "CodeJudge": DOUBLE},
        ["0.0.0 BruteForceSolver", "0.1.0 OptimalSolver", "0.2.0 EdgeCaseSolver", "0.3.0 CodeJudge"],
        DOUBLE,
        "ensemble",
        code=True,
        shown={"0.3.0": [CODE.prompt, DOUBLE, DOUBLE_TOO, TRIPLE]},
    ),
    Case(
        "exec_helper",
        {
            "Hacker": [
                CALL % ("run_snippet", '{"snippet": "print(3 + 4)"}'),
                CALL % ("run_snippet", '{"snippet": "1 / 0"}'),
                SEVEN,
            ]
        },
        ["0 Hacker", "1 Hacker", "2 Hacker"],
        SEVEN,
        shown={"1": ["run_snippet:\n7"], "2": ["ZeroDivisionError"]},
    ),
    Case(
        "class_based_builder",
        {"Induction": [EIGHT, "CORRECT"], "Symmetry": SEVEN, "Judge": SEVEN},
        ["0.0.0.0.0 Induction", "0.0.0.0.1 Induction", "0.1.0 Symmetry", "0.2.0 Judge"],
        SEVEN,
        "ensemble",
    ),
    Case("failing_member", {"Good": SEVEN}, ["0.1.0 Good"], SEVEN),
    Case("client_in_a_node", {"client": SEVEN}, ["0 client"], SEVEN),
    Case("no_agents", {}, [], "", "invalid", flags={"no_calls", "answer_unset", "answer_not_from_agents"}),
]


def replies(case):
    """Path first; an agent's texts are used in the order of its own calls (one list in one branch is deterministic)."""
    left = {k: iter(v) for k, v in case.replies.items() if isinstance(v, list)}

    def reply(r):
        key = r.path if r.path in case.replies else r.agent
        return next(left[key]) if key in left else case.replies[key]

    return reply


def test_every_script_has_a_case_and_there_are_many():
    assert {c.name for c in CASES} == {path.stem for path in SCRIPTS.glob("*.txt")}
    assert len(CASES) >= 30


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
async def test_script(case):
    script = Script.of((SCRIPTS / f"{case.name}.txt").read_text())
    assert script.dialect == "workflow" and lint(script) == []
    host = Host(replies(case))
    e = await host.run(script.source, CODE if case.code else MATH)
    assert (e.status, e.reason) == ("ok", "")
    assert [f"{c.path} {c.agent}" for c in e.calls] == case.calls
    assert e.answer == case.answer and e.flags == case.flags
    for path, texts in case.shown.items():
        assert all(text in host.request(path).messages[0] for text in texts), host.request(path).messages
    for path, texts in case.hidden.items():
        assert not any(text in host.request(path).messages[0] for text in texts), host.request(path).messages
    assert [f"{t.path} {t.program.strip()}" for t in e.tools] == case.tools
    assert e.structure == case.structure
    first = [r for r in host.requests if r.path in ("0", "0.0.0", "0.1.0", "0.0.0.0.0")]
    assert all((CODE if case.code else MATH).prompt in r.messages[0] for r in first)


async def test_latex_in_ordinary_strings_reaches_the_agent_as_it_was_written():
    host = Host(lambda r: SEVEN)
    await host.run((SCRIPTS / "latex_in_strings.txt").read_text())
    written = "Write \\frac{p}{q}, \\sqrt{2}, \\times, \\text{so}, \\nu and finally \\boxed{answer}.\nOne line each."
    assert host.requests[0].role_prompt.startswith(written)
