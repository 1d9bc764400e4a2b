"""Every text that a Designer or an agent reads besides the task itself, in sets: FULL, TINY and PUBLISHED.

(Scripts of the workflow dialect add what is said about their tools: `dialects/nodes.py`.)

Messages are built by concatenation only: tasks and replies are full of braces, percent signs and backslashes, and reach
the policy unchanged (SWE-agent/SWE-agent#1019).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from metaagent_x.mas.records import NO_PUBLIC_TESTS, TEST_RUNS, Budget
from metaagent_x.tasks.task import Task

DEFAULT = Budget()


def limits(budget: Budget) -> str:
    """The line that tells the Designer what it may spend."""
    return f"Limits: {budget.calls} calls, {budget.tool_runs} tool runs, {TEST_RUNS} of them run_tests."


@dataclasses.dataclass(frozen=True)
class PromptSet:
    """Text slots. A message is the task followed by pieces, each a slot and then a text.

    Attributes:
      name: "full", "tiny", ...
      designer_system: system text of the Designer. designer_ask: stands before the task in its user message.
      roles: kind -> role -> system text of `solver`, `critic`, `judge`, `tester`.
      style: stands between a role's text and a style. styles: kind -> short word -> the strategy that it stands for.
      own: kind -> what is appended to the role text of `agent(name, role)`.
      earlier: before the text that is discussed. review: before a critic's text.
      critic_ask, self_ask, revise_ask, judge_ask, debate_ask, tester_ask: end the message of that step.
      candidate: before a candidate's number (judge); candidate_end: after it. Without numbers: `candidate_end` is None.
      other: before another debater's answer.
      failed: before failures; failed_plain: instead of them when none is shown. failures_shown: how many are.
      advice: before a tester's advice.
      budget: the limits of which `designer_system` speaks.
    """

    name: str
    designer_system: str
    designer_ask: str
    roles: Mapping[str, Mapping[str, str]]
    style: str
    styles: Mapping[str, Mapping[str, str]]
    own: Mapping[str, str]
    earlier: str
    review: str
    critic_ask: str
    self_ask: str
    revise_ask: str
    candidate: str
    candidate_end: str | None
    judge_ask: str
    other: str
    debate_ask: str
    failed: str
    failed_plain: str
    failures_shown: int
    tester_ask: str
    advice: str
    budget: Budget = DEFAULT

    def for_script(self) -> dict[str, Any]:
        """All slots but the Designer's, as plain values for the script process."""
        slots = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {k: v for k, v in slots.items() if k != "budget"} | {"designer_system": "", "designer_ask": ""}

    def within(self, budget: Budget) -> PromptSet:
        """The set that tells the Designer of this budget."""
        told = self.designer_system.replace(limits(self.budget), limits(budget))
        return dataclasses.replace(self, designer_system=told, budget=budget)

    def designer_user(self, task: Task) -> str:
        """The Designer's user message."""
        return self.designer_ask + task.prompt

    def role(self, role: str, kind: str, style: str = "") -> str:
        """System text of a template role, with its style: a word of `styles`, or any other text as it is."""
        text = self.roles[kind][role]
        style = self.styles[kind].get(style.strip().lower(), style)
        return text + self.style + style if style else text

    def own_role(self, role: str, kind: str) -> str:
        """System text of an agent whose role the script wrote."""
        return role + self.own[kind]

    def critic(self, task: str, text: str, *, own: bool = False) -> str:
        return task + self.earlier + text + (self.self_ask if own else self.critic_ask)

    def revise(self, task: str, text: str, review: str, remembers: bool = False) -> str:
        """An agent with memory is told only what is new to it."""
        return ("" if remembers else task + self.earlier + text) + self.review + review + self.revise_ask

    def judge(self, task: str, texts: Sequence[str]) -> str:
        def head(i: int) -> str:
            return self.candidate if self.candidate_end is None else self.candidate + str(i + 1) + self.candidate_end

        return task + "".join(head(i) + text for i, text in enumerate(texts)) + self.judge_ask

    def debate(self, task: str, text: str, others: Sequence[str], remembers: bool = False) -> str:
        start = "" if remembers else task + self.earlier + text
        return start + "".join(self.other + other for other in others) + self.debate_ask

    def tester(self, task: str, text: str, failures: Sequence[str]) -> str:
        return task + self.earlier + text + self._failed(failures) + self.tester_ask

    def retry(self, task: str, text: str, failures: Sequence[str], advice: str = "", remembers: bool = False) -> str:
        start = "" if remembers else task + self.earlier + text
        return start + self._failed(failures) + (self.advice + advice if advice else "")

    def _failed(self, failures: Sequence[str]) -> str:
        shown = list(failures[: self.failures_shown])
        return self.failed + "\n".join(shown) if shown else self.failed_plain


MATH = "Put the final answer in \\boxed{}."
CODE = (
    "Write a complete Python 3 program in a final ```python block. It reads standard input and prints the answer, "
    "unless the problem asks for a function or a class: then it defines that."
)

STYLES = {
    "math": {
        "forward": "Reason from what is given: fix the notation, derive what follows, check each step before the next.",
        "backward": (
            "Start from what is asked: say what would be enough to know, then what would give that, until you reach "
            "what is given. Then write the argument in the right order."
        ),
        "cases": (
            "Split the problem into cases that cover everything and do not overlap. Settle each one, look hard at the "
            "borders between them, then put the results together."
        ),
        "small cases": (
            "Work out the smallest cases by hand and list the results. Find the pattern and a reason for it, test that "
            "on one more case, then apply it to the question."
        ),
        "invariant": (
            "Look for what does not change or what is extreme: a symmetry, a remainder, a conserved sum, a bound, a "
            "largest element. Build the argument on it."
        ),
        "program": (
            "First reply with one complete Python program, in a ```python block, that computes the result exactly and "
            "prints it. When you are shown what it printed, say whether that can be right, and give the final answer."
        ),
        "verify": (
            "The message contains a proposed solution. Check every step, and its result by another way. Then give the "
            "right solution, whether that is the same or not."
        ),
    },
    "code": {
        "brute force": (
            "Write the most direct program that is certainly right, trying all possibilities, however slow it is."
        ),
        "optimal": (
            "Read the limits first. Choose the algorithm and the data structures whose running time fits them, state "
            "the complexity, then write the program."
        ),
        "edge cases": (
            "First list the smallest, largest, empty, equal and other odd inputs and what each must give. Then write "
            "a program that is right on all of them."
        ),
        "invariant": (
            "For every loop or recursion say what holds at each step and why it ends. Write the program so that its "
            "correctness follows from this."
        ),
        "trace": (
            "Write the program, then trace it by hand on the examples of the statement, value by value. Repair it "
            "before you give the final one."
        ),
        "verify": (
            "The message contains a proposed program. Trace it on the examples and on edge cases, and judge its "
            "running time. Then give the right program in full, whether that is the same or not."
        ),
    },
}

# What the Designer is told about the language. All of it must be exact; a test holds it against the code.
LANGUAGE = f"""You design a multi-agent system that solves the task. Say in two sentences what the task needs, \
then write one short Python script in a ```python block. These names are ready to use; import nothing.

task: the task's text. kind: "math" or "code".

Agents and structures are functions from text to text. An agent sees only the text that it is given.
solver(style="", memory=False): solves. critic(style="", memory=False): finds errors.
judge(style="", memory=False): decides among solutions. tester(style="", memory=False): explains failed tests.
style: how to work, in your words or one of
- math: forward, backward, cases, small cases, invariant, program, verify
- code: brute force, optimal, edge cases, invariant, trace, verify
agent(name, role, memory=False): your own agent; role is its instruction. With memory it keeps its earlier turns.
reflect(agent, critic=None, rounds=2): drafts; each round criticises and revises, until the critic says CORRECT. \
Without critic: self-critique.
ensemble(agents, judge=None): all in parallel, then a vote; a judge decides instead if they differ.
debate(agents, judge=None, rounds=2): after the first round each sees the others' answers. Ends like ensemble.
solve_and_test(agent, tester=None, rounds=3): for code; up to that many programs, until the public tests pass.

Tools:
together(agents, messages): list of replies, in parallel; one agent or one message may serve all.
vote(texts): the text with the most frequent answer. agree(texts): True if all answers are the same.
answer_of(text): its last \\boxed{{}} content. code_of(text): its last program. "" if none.
run_python(code, stdin=""): what the program prints, or "error: ...".
run_tests(code): list of failed public tests; [] if all pass, ["{NO_PUBLIC_TESTS}"] if there are none.

Set `answer` to the final text, or to an agent or structure, which is then applied to task.
The answer must be an agent's: stand in its reply, or be printed by its program. What only the script says earns \
nothing.
Each use of an agent is a call. {limits(DEFAULT)}
Use one solver for an easy task, more agents where they help.

```python
answer = reflect(solver("cases"), critic("check every step"), rounds=2)(task)
```
```python
draft = solve_and_test(solver("optimal"), tester(), rounds=3)(task)
answer = solver("verify")(task + "\\n\\nProgram:\\n" + draft) if run_tests(draft) else draft
```
```python
a, b = together([solver("forward"), solver("backward")], task)
answer = a if agree([a, b]) else ensemble([solver()] * 3, judge())(task)
```"""

FULL = PromptSet(
    name="full",
    designer_system=LANGUAGE,
    designer_ask="Design a multi-agent system for this task:\n\n",
    roles={
        "math": {
            "solver": "You are a careful mathematician. Solve the problem step by step. " + MATH,
            "critic": (
                "You check solutions of mathematical problems. Look for wrong steps, missing cases, misread words; "
                "check the result another way. Name the first error and how to repair it. "
                "End with a line that says CORRECT or WRONG."
            ),
            "judge": (
                "You are given a problem and several solutions. Check where they differ, decide what is right, and "
                "state the full final answer yourself. " + MATH
            ),
            "tester": (
                "You test solutions of mathematical problems: substitute the result, try small cases and limits. "
                "Say what fails and what to try next."
            ),
        },
        "code": {
            "solver": "You are an expert programmer. Think of the algorithm and the edge cases first. " + CODE,
            "critic": (
                "You review programs for programming problems. Look for wrong logic, missed edge cases, slow "
                "algorithms, wrong input or output format. Name the first error and how to repair it. "
                "End with a line that says CORRECT or WRONG."
            ),
            "judge": (
                "You are given a programming problem and several programs. Decide which one is right and fast enough, "
                "repair it if needed, and give it in full. " + CODE
            ),
            "tester": (
                "You explain why a program fails its tests. Trace the failing input, name the faulty lines and say "
                "what to change. Do not write the whole program."
            ),
        },
    },
    style="\nHow to work: ",
    styles=STYLES,
    own={
        "math": "\nIf you state a final answer, put it in \\boxed{}.",
        "code": "\nIf you write the program, give it in full in one ```python block at the end.",
    },
    earlier="\n\nEarlier solution:\n",
    review="\n\nReview of it:\n",
    critic_ask="\n\nIs this solution correct? End with a line that says CORRECT or WRONG.",
    self_ask="\n\nCheck this solution of yours for errors. End with a line that says CORRECT or WRONG.",
    revise_ask="\n\nWrite the corrected solution in full.",
    candidate="\n\nSolution ",
    candidate_end=":\n",
    judge_ask="\n\nGive the right final solution in full.",
    other="\n\nAnother agent's solution:\n",
    debate_ask="\n\nCompare the solutions, correct what is wrong in yours, and give your full solution.",
    failed="\n\nThe program failed its tests:\n",
    failed_plain="\n\nThe program failed its tests.",
    failures_shown=3,
    tester_ask="\n\nWhy does it fail, and what should be changed?",
    advice="\n\nAdvice of a tester:\n",
)

# A few tokens each: for the small models of configs/tiny.py, which learn them from examples.
TINY = PromptSet(
    name="tiny",
    designer_system="",
    designer_ask="",
    roles={
        "math": {"solver": "solve", "critic": "review", "judge": "choose", "tester": "test"},
        "code": {"solver": "solve", "critic": "review", "judge": "choose", "tester": "test"},
    },
    style=" ",
    styles={"math": {}, "code": {}},
    own={"math": "", "code": ""},
    earlier="\nearlier: ",
    review="\nreview: ",
    critic_ask="",
    self_ask="",
    revise_ask="",
    candidate="\nearlier: ",
    candidate_end=None,
    judge_ask="",
    other="\nearlier: ",
    debate_ask="",
    failed="\nfailed: ",
    failed_plain="\nfailed, try again",
    failures_shown=0,
    tester_ask="",
    advice="\nreview: ",
)

# For the published checkpoint: it learned its dialect from examples, and is told nothing of it. What a script's agents
# are told besides is the form in which they hand on an answer.
PUBLISHED = dataclasses.replace(
    FULL,
    name="published",
    designer_system="You are an expert Python developer for multi-agent workflow systems.",
    designer_ask="Design Multi Agent System for the Question: ",
    own={
        "math": (
            "\n\nPut what the next agent needs between <delivery> and </delivery>, and end with the line\n"
            "FINAL ANSWER: \\boxed{your answer}"
        ),
        "code": (
            "\n\nPut what the next agent needs between <delivery> and </delivery>, and the complete Python program "
            "between <solution> and </solution>."
        ),
    },
)

SETS = {prompts.name: prompts for prompts in (FULL, TINY, PUBLISHED)}


def get(name: str) -> PromptSet:
    """The set of that name.

    Raises:
      ValueError: no such set.
    """
    if name not in SETS:
        raise ValueError(f"prompt set {name!r} does not exist; choose one of {', '.join(sorted(SETS))}")
    return SETS[name]
