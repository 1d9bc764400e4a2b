"""The patterns of the systems that we compare ourselves with, written in the script language.

Each script is the pattern itself, without a helper of ours: what an operator does beyond a call stands in the script.
AFM is none of them: its agents are tags inside one continuation of another checkpoint, so it is no script but a loop
around raw completions, and belongs beside this language, not in it.
"""

import itertools

import pytest
from mas_host import CODE, MATH, Host, program

from metaagent_x.mas import Script, lint

SINGLE = r"""
expert = agent("expert", "Solve step by step. End with \boxed{answer}.")
answer = expert(task)
"""

REFLECTION = r"""
expert = agent("expert", "Solve step by step. End with \boxed{answer}.")
reviewer = agent("reviewer", "Check the solution. Say CORRECT, or list the errors.")
answer = expert(task)
for attempt in range(2):
    notes = reviewer(f"{task}\n\nSolution:\n{answer}")
    if "CORRECT" in notes:
        break
    answer = expert(f"{task}\n\nEarlier try:\n{answer}\n\nReview:\n{notes}\n\nCorrect it.")
"""

ENSEMBLE = r"""
styles = ["step by step", "backwards from the goal", "by cases"]
texts = together([agent(style, f"Solve {style}. End with \boxed{{answer}}.") for style in styles], task)
if agree(texts):
    answer = texts[0]
else:
    shown = "\n\n".join(f"Solution {i + 1}:\n{text}" for i, text in enumerate(texts))
    answer = agent("chooser", "Decide which solution is right. End with \boxed{answer}.")(f"{task}\n\n{shown}")
"""

DEBATE = r"""
experts = [agent(name, f"You are {name}. End with \boxed{{answer}}.") for name in ("Ann", "Bob", "Cem")]
texts = together(experts, task)
for turn in range(2):
    others = ["\n\n".join(texts[:i] + texts[i + 1:]) for i in range(3)]
    texts = together(experts, [f"{task}\n\nYou said:\n{t}\n\nOthers said:\n{o}" for t, o in zip(texts, others)])
answer = vote(texts)
"""

SOLVER_TESTER = r"""
coder = agent("coder", "Write a Python program that reads standard input.")
answer = coder(task)
for attempt in range(3):
    failures = run_tests(answer)
    if not failures or failures == ["no public tests"]:
        break
    answer = coder(f"{task}\n\nProgram:\n{answer}\n\nIt fails:\n" + "\n".join(failures))
"""

AFLOW_MATH = r"""
programmer = agent("programmer", "Write a Python program that computes and prints the answer.")
code = programmer(task)
output = run_python(code)
for attempt in range(2):
    if not output.startswith("error"):
        break
    code = programmer(f"{task}\n\nProgram:\n{code}\n\nIt fails:\n{output}")
    output = run_python(code)
writer = agent("writer", "Explain the solution, using the output of the program. End with \boxed{answer}.")
detailed = agent("detailed", "Give a detailed and rigorous solution. End with \boxed{answer}.")
stepwise = agent("stepwise", "Solve step by step. End with \boxed{answer}.")
texts = together([writer, detailed, stepwise, stepwise], [f"{task}\n\nCode output: {output}", task, task, task])
chooser = agent("chooser", "Which solution agrees best with the others? End with its letter alone.")
letter = chooser(task + "".join(f"\n\n{name}:\n{text}" for name, text in zip("ABCD", texts))).strip()[-1:]
answer = texts["ABCD".index(letter)] if letter and letter in "ABCD" else vote(texts)
"""

AFLOW_CODE = r"""
coder = agent("coder", "Write a complete Python program for the problem.")
texts = together([coder] * 3, task)
chooser = agent("chooser", "Which program is right? End with its letter alone.")
letter = chooser(task + "".join(f"\n\n{name}:\n{text}" for name, text in zip("ABC", texts))).strip()[-1:]
chosen = texts["ABC".index(letter)] if letter and letter in "ABC" else vote(texts) or texts[0]
answer, untested = chosen, ["no public tests"]
failures = run_tests(answer)
for attempt in range(3):
    if not failures or failures == untested:
        break
    shown = "\n".join(failures)
    answer = agent("repairer", "Say why the tests fail, then write the program anew.")(f"{task}\n\n{answer}\n\n{shown}")
    failures = run_tests(answer)
if failures and failures != untested:
    answer = agent("fixer", "Correct the program.")(f"{task}\n\nProgram:\n{chosen}\n\nLast try:\n{answer}")
"""

ADAS_ROLE_PLAY = r"""
def fields(text, *names):
    return [text.split(f"<{n}>", 1)[1].split(f"</{n}>")[0].strip() if f"<{n}>" in text else "" for n in names]

form = "Answer in the fields "
teacher = agent("teacher", "Explain how to solve the problem. " + form + "<explanation>.")
student = agent("student", "Solve the problem as you were taught. " + form + "<thinking>, <answer> with \boxed{}.")
verifier = agent("verifier", "Check the answer. " + form + "<verdict>, <for_teacher>, <for_student>.")
taught, = fields(teacher(task), "explanation")
thinking, first = fields(student(f"{task}\n\nExplanation:\n{taught}"), "thinking", "answer")
verdict, for_teacher, for_student = fields(
    verifier(f"{task}\n\nThinking:\n{thinking}\n\nAnswer:\n{first}"), "verdict", "for_teacher", "for_student")
taught, = fields(teacher(f"{task}\n\nFeedback:\n{for_teacher}"), "explanation")
answer, = fields(student(f"{task}\n\nExplanation:\n{taught}\n\nFeedback:\n{for_student}"), "answer")
"""

MAAS = r"""
layers = [["direct", "stepwise"], ["refine"], ["choose", "three"], ["stop"], ["direct"]]
roles = {"direct": "Solve the problem.", "stepwise": "Think step by step.", "writer": "Explain the solution.",
         "refine": "Improve the solution.", "chooser": "Which solution is best? End with its number alone."}
ask = {name: agent(name, role + " End with \boxed{answer}.") for name, role in roles.items()}

def choose(texts):
    shown = "".join(f"\n\n{i}:\n{text}" for i, text in enumerate(texts))
    number = ask["chooser"](task + shown).strip()[-1:]
    return texts[int(number)] if number.isdecimal() and int(number) < len(texts) else vote(texts) or texts[-1]

output = run_python(agent("programmer", "Write a Python program that prints the answer.")(task))
texts = [ask["writer"](f"{task}\n\nCode output: {output}")]
for name in [name for layer in layers for name in layer]:
    if name == "stop":
        break
    elif name == "choose":
        texts = [choose(texts)]
    elif name == "refine":
        texts.append(ask[name](f"{task}\n\nSolution:\n{texts[-1]}"))
    else:
        texts += [ask["stepwise" if name == "three" else name](task) for i in range(3 if name == "three" else 1)]
answer = choose(texts) if len(texts) > 1 else texts[0]
"""

SCOREFLOW = r"""
def custom(instruction):
    return agent("custom", instruction + " End with \boxed{answer}.")(task)

def programmer(analysis):
    code = agent("programmer", "Write a Python program that prints the answer.")(f"{task}\n\n{analysis}")
    return agent("writer", "State the answer in \boxed{}.")(f"{task}\n\nCode output: {run_python(code)}")

def sc_ensemble(solutions):
    shown = "".join(f"\n\n{name}:\n{text}" for name, text in zip("ABCDEF", solutions))
    letter = agent("chooser", "Which is the most consistent? End with its letter alone.")(task + shown).strip()[-1:]
    return solutions["ABCDEF".index(letter)] if letter and letter in "ABCDEF"[:len(solutions)] else vote(solutions)

def review(pre_solution):
    return agent("reviewer", "Correct the solution. End with \boxed{answer}.")(f"{task}\n\n{pre_solution}")

plan = custom("Analyse what is asked.")
answer = review(sc_ensemble([custom("Solve it directly."), custom("Solve it by cases."), programmer(plan)]))
"""

REACT = r"""
worker = agent("worker", "Compute with a ```python block, see its output, go on. End with \boxed{answer}.", memory=True)
answer = worker(task)
for turn in range(5):
    if answer_of(answer):
        break
    answer = worker("Output:\n" + run_python(answer) if code_of(answer) else "Write a program or the answer.")
"""

PATTERNS = {
    "single": SINGLE, "reflection": REFLECTION, "ensemble": ENSEMBLE, "debate": DEBATE, "solver-tester": SOLVER_TESTER,
    "aflow-math": AFLOW_MATH, "aflow-code": AFLOW_CODE, "adas": ADAS_ROLE_PLAY, "maas": MAAS, "scoreflow": SCOREFLOW,
    "react": REACT,
}  # fmt: skip
SEVEN, NINE = "so \\boxed{7}", "hence \\boxed{9}"
GOOD, BAD = program("print(2 * int(input()))"), program("print(1)")


def in_turn(**texts):
    """A reply rule: the texts of an agent in turn, the last one for ever."""
    left = {name: itertools.chain(t[:-1], itertools.repeat(t[-1])) for name, t in texts.items()}
    return lambda r: next(left[r.agent])


async def play(script, reply, task=MATH):
    host = Host(reply)
    e = await host.run(script, task)
    assert e.status == "ok" and not e.flags - {"no_public_tests"}, (e.reason, e.flags)
    return e, host, [r.agent for r in host.requests], [r.messages[0].removeprefix(task.prompt) for r in host.requests]


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_is_short_and_without_fault(name):
    assert lint(Script.of(PATTERNS[name])) == []
    assert len(PATTERNS[name].strip().splitlines()) < 25 and "import" not in PATTERNS[name]


async def test_single_is_one_call():
    e, host, agents, asked = await play(SINGLE, lambda r: SEVEN)
    assert (agents, asked, e.answer) == (["expert"], [""], SEVEN)
    assert host.requests[0].role_prompt.startswith("Solve step by step. End with \\boxed{answer}.")


@pytest.mark.parametrize("reviews,calls,answer", [
    (["CORRECT"], 2, NINE), (["step 2 is wrong", "CORRECT"], 4, SEVEN), (["wrong"], 5, SEVEN),
])  # fmt: skip
async def test_reflection_revises_until_the_reviewer_is_content(reviews, calls, answer):
    e, _, agents, asked = await play(REFLECTION, in_turn(expert=[NINE, SEVEN], reviewer=reviews))
    assert agents == ["expert", "reviewer", "expert", "reviewer", "expert"][:calls] and e.answer == answer
    assert asked[1] == f"\n\nSolution:\n{NINE}"
    assert calls == 2 or asked[2] == f"\n\nEarlier try:\n{NINE}\n\nReview:\n{reviews[0]}\n\nCorrect it."


@pytest.mark.parametrize("texts,calls", [([SEVEN, SEVEN, "\\boxed{7}"], 3), ([SEVEN, NINE, SEVEN], 4)])
async def test_ensemble_asks_the_chooser_only_if_members_differ(texts, calls):
    e, host, agents, asked = await play(ENSEMBLE, lambda r: SEVEN if r.agent == "chooser" else texts[int(r.path[2])])
    assert agents == ["step by step", "backwards from the goal", "by cases", "chooser"][:calls] and e.answer == SEVEN
    assert asked[:3] == ["", "", ""] and len({r.role_prompt for r in host.requests}) == calls
    assert calls == 3 or asked[3].index(f"Solution 1:\n{texts[0]}") < asked[3].index(f"Solution 2:\n{texts[1]}")


async def test_debate_of_three_in_three_rounds_is_nine_calls():
    e, host, agents, _ = await play(
        DEBATE, lambda r: f"{r.agent} in {r.path}: \\boxed{{{7 if r.agent != 'Bob' else 9}}}"
    )
    assert agents == ["Ann", "Bob", "Cem"] * 3 and e.answer == "Ann in 2.0.0: \\boxed{7}"
    for turn in (1, 2):
        said = {name: f"{name} in {turn - 1}.{i}.0: " for i, name in enumerate(("Ann", "Bob", "Cem"))}
        for i, name in enumerate(said):
            own, others = host.request(f"{turn}.{i}.0").messages[0].split("Others said:")
            assert said[name] in own and all((other in others) == (n != name) for n, other in said.items())


@pytest.mark.parametrize("tries,calls", [([GOOD], 1), ([BAD, GOOD], 2), ([BAD], 4)])
async def test_solver_tester_repairs_at_most_three_times(tries, calls):
    e, _, agents, asked = await play(SOLVER_TESTER, in_turn(coder=tries), CODE)
    assert agents == ["coder"] * calls and e.answer == tries[-1]
    assert calls == 1 or (BAD in asked[1] and "expected output:\n4" in asked[1])


@pytest.mark.parametrize("programs,choice,calls,answer", [
    (["print(7)"], "It is B", 6, "detailed \\boxed{7}"),
    (["1 / 0", "print(7)"], "A", 7, "writer \\boxed{7}"),
    (["1 / 0"], "none of them?", 8, "writer \\boxed{7}"),
])  # fmt: skip
async def test_aflow_math_runs_a_program_then_chooses_among_four(programs, choice, calls, answer):
    """Programmer with at most 3 programs, write-up, detailed, 2 x stepwise, then one choice: 6 to 8 calls."""
    said = {name: [f"{name} \\boxed{{7}}"] for name in ("writer", "detailed", "stepwise")}
    rule = in_turn(programmer=[program(p) for p in programs], chooser=[choice], **said)
    e, _, agents, asked = await play(AFLOW_MATH, rule)
    tail = ["writer", "detailed", "stepwise", "stepwise", "chooser"]
    assert agents == ["programmer"] * (calls - 5) + tail and e.answer == answer
    output = "7\n" if "7" in programs[-1] else "error: ZeroDivisionError: division by zero (line 1)"
    assert asked[calls - 5] == f"\n\nCode output: {output}" and asked[calls - 4 : calls - 1] == ["", "", ""]
    assert calls == 6 or (program("1 / 0") in asked[1] and "division by zero" in asked[1])
    places = [asked[-1].index(f"\n\n{letter}:\n{name}") for letter, name in zip("ABCD", tail[:4], strict=True)]
    assert places == sorted(places)


@pytest.mark.parametrize("repairs,fixed,calls,answer", [
    (None, None, 4, GOOD), ([GOOD], None, 5, GOOD), ([BAD, GOOD], None, 6, GOOD), ([BAD], GOOD, 8, GOOD),
])  # fmt: skip
async def test_aflow_code_chooses_tests_repairs_and_fixes(repairs, fixed, calls, answer):
    """3 programs, one choice, at most 3 repairs after the public tests, one last fix: 4 to 8 calls."""
    coded = iter([BAD, GOOD if repairs is None else program("print(2)"), BAD])
    rule = in_turn(chooser=["The letter is B"], repairer=repairs or [""], fixer=[fixed or ""])
    e, _, agents, asked = await play(AFLOW_CODE, lambda r: next(coded) if r.agent == "coder" else rule(r), CODE)
    tail = ["repairer"] * min(calls - 4, 3) + ["fixer"] * (calls == 8)
    assert agents == ["coder"] * 3 + ["chooser"] + tail and e.answer == answer
    assert len(e.tools) == min(calls - 4, 3) + 1
    assert calls == 4 or (program("print(2)") in asked[4] and "expected output:\n10" in asked[4])
    assert calls < 8 or asked[-1] == f"\n\nProgram:\n{program('print(2)')}\n\nLast try:\n{BAD}"


async def test_aflow_code_without_public_tests_skips_them():
    task = CODE.__class__("c/2", "code", "No examples.")
    rule = in_turn(coder=[BAD], chooser=["D"], repairer=[""], fixer=[""])
    e, _, agents, _ = await play(AFLOW_CODE, rule, task)
    assert len(agents) == 4 and e.answer == BAD and e.flags == {"no_public_tests"}


async def test_adas_role_play_is_five_calls_that_see_only_what_they_are_given():
    teacher = ["<explanation>add them</explanation>", "<explanation>count on from 3</explanation>"]
    student = [
        "<thinking>3, 4, 5</thinking><answer>\\boxed{5}</answer>",
        "<thinking>x</thinking><answer>\\boxed{7}</answer>",
    ]
    verifier = ["no.\n<verdict>wrong</verdict>\n<for_teacher>be clear</for_teacher>"]  # a field is missing: ""
    e, _, agents, asked = await play(ADAS_ROLE_PLAY, in_turn(teacher=teacher, student=student, verifier=verifier))
    assert agents == ["teacher", "student", "verifier", "teacher", "student"] and e.answer == student[1]
    assert asked == [
        "",
        "\n\nExplanation:\nadd them",
        "\n\nThinking:\n3, 4, 5\n\nAnswer:\n\\boxed{5}",
        "\n\nFeedback:\nbe clear",
        "\n\nExplanation:\ncount on from 3\n\nFeedback:\n",
    ]


async def test_maas_runs_its_layers_until_one_says_stop():
    """Programmer and write-up, then the layers; `choose` collapses the list; a last choice if more than one remains."""
    said = {name: [f"{name} \\boxed{{7}}"] for name in ("writer", "direct", "stepwise", "refine")}
    rule = in_turn(programmer=[program("print(7)")], chooser=["number 3", "I cannot say"], **said)
    e, _, agents, asked = await play(MAAS, rule)
    chosen_from = ["writer", "direct", "stepwise", "refine"]
    assert agents == ["programmer", *chosen_from, "chooser", *["stepwise"] * 3, "chooser"]
    assert asked[1] == "\n\nCode output: 7\n" and asked[4] == "\n\nSolution:\nstepwise \\boxed{7}"
    assert [f"\n\n{i}:\n" in asked[5] for i in range(5)] == [True] * 4 + [False]
    assert asked[9].startswith("\n\n0:\nrefine \\boxed{7}\n\n1:\nstepwise") and e.answer == "refine \\boxed{7}"


async def test_scoreflow_binds_the_problem_in_its_operators():
    said = {"custom": ["plan", SEVEN, NINE], "programmer": [program("print(7)")], "writer": ["w \\boxed{7}"]}
    e, _, agents, asked = await play(SCOREFLOW, in_turn(**said, chooser=["C"], reviewer=["r \\boxed{7}"]))
    assert agents == ["custom", "custom", "custom", "programmer", "writer", "chooser", "reviewer"]
    assert asked == [
        "", "", "", "\n\nplan", "\n\nCode output: 7\n",
        f"\n\nA:\n{SEVEN}\n\nB:\n{NINE}\n\nC:\nw \\boxed{{7}}", "\n\nw \\boxed{7}",
    ]  # fmt: skip
    assert e.answer == "r \\boxed{7}"


async def test_react_goes_on_in_one_conversation_until_it_has_an_answer():
    said = ["Let me see.\n" + program("print(3 + 4)"), "Hm.", program("1 / 0"), SEVEN]
    e, host, agents, asked = await play(REACT, in_turn(worker=said))
    assert agents == ["worker"] * 4 and {r.conversation for r in host.requests} == {"m1"} and e.answer == SEVEN
    assert asked[:3] == ["", "Output:\n7\n", "Write a program or the answer."] and "division by zero" in asked[3]
    assert len(e.tools) == 2
