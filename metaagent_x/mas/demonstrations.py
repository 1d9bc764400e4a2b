"""Examples for the cold start of a small model: what a Designer and each agent should write, in the rollout's prompts.

Example i of a seed is a pure function of (seed, i), so a cold start can stop and go on anywhere. All content is of the
train split. `solver()` is shown both forms of solution, mostly the direct one; `solver("step by step")` always the
stepwise one: the policy starts with a habit that can be improved and with a style that a Designer can ask for.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Literal

from metaagent_x.mas.prompts import TINY, PromptSet
from metaagent_x.tasks.families import Problem, SortProblem, problem
from metaagent_x.tasks.task import Kind, Task

STYLE = "step by step"
STRUCTURES: Mapping[str, str] = {  # name: script; the cold start writes all of them equally often, whatever the task
    "single": "answer = solver()(task)",
    "single_steps": f'answer = solver("{STYLE}")(task)',
    "reflect": "answer = reflect(solver(), critic(), rounds=1)(task)",
    "ensemble": "answer = ensemble([solver()] * 3)(task)",
    "ensemble_steps": f'answer = ensemble([solver("{STYLE}")] * 3)(task)',
    "judge": "answer = ensemble([solver()] * 2, judge())(task)",
    "test": "answer = solve_and_test(solver(), rounds=3)(task)",
    "test_steps": f'answer = solve_and_test(solver("{STYLE}"), rounds=2)(task)',
}
SHARES = {"design": 0.1, "solve": 0.68, "review": 0.06, "revise": 0.05, "choose": 0.05, "retry": 0.06}
MATH_SHARE = 0.6  # math is learned more slowly than code
STEPS_SHARE = 0.35  # of the solutions are by `solver("step by step")`
DIRECT_SHARE = 0.7  # of the solutions by `solver()` are direct


@dataclasses.dataclass(frozen=True)
class Example:
    """One prompt and the completion to learn."""

    role: Literal["designer", "executor"]
    system: str
    user: str
    completion: str


def examples(seed: int, prompts: PromptSet = TINY) -> Iterator[Example]:
    """All examples of a seed, without end."""
    return (example(seed, i, prompts) for i in itertools.count())


def example(seed: int, index: int, prompts: PromptSet = TINY) -> Example:
    """Example `index` of a seed."""
    rng = random.Random(f"demonstration/{seed}/{index}")
    activity = rng.choices(list(SHARES), list(SHARES.values()))[0]
    kind: Kind = "code" if activity == "retry" or rng.random() >= MATH_SHARE else "math"
    drawn = problem(kind, "train", rng)
    if activity == "design":
        task = Task("", kind, drawn.prompt)
        script = rng.choice(list(STRUCTURES.values()))
        return Example("designer", prompts.designer_system, prompts.designer_user(task), script)
    if activity == "review":
        right = rng.random() < 0.5
        user = prompts.critic(drawn.prompt, _solution(drawn, rng) if right else _wrong(drawn, rng))
        return Example("executor", prompts.role("critic", kind), user, "CORRECT" if right else "WRONG")
    if activity == "choose":
        drafts = [_solution(drawn, rng), _wrong(drawn, rng)]
        rng.shuffle(drafts)
        user = prompts.judge(drawn.prompt, drafts)
        return Example("executor", prompts.role("judge", kind), user, _solution(drawn, rng))
    stepwise = rng.random() < STEPS_SHARE
    user = drawn.prompt
    if activity == "revise":
        user = prompts.revise(drawn.prompt, _wrong(drawn, rng), "WRONG")
    elif activity == "retry":
        user = prompts.retry(drawn.prompt, _wrong(drawn, rng), [])
    system = prompts.role("solver", kind, STYLE if stepwise else "")
    return Example("executor", system, user, drawn.stepwise if stepwise else _solution(drawn, rng))


def _solution(drawn: Problem, rng: random.Random) -> str:
    """A right solution as `solver()` writes it."""
    return drawn.direct if rng.random() < DIRECT_SHARE else drawn.stepwise


def _wrong(drawn: Problem, rng: random.Random) -> str:
    """A solution with one digit changed, in its last line for math."""
    text = drawn.direct if rng.random() < 0.85 else drawn.stepwise
    start = text.rfind("{") if isinstance(drawn, SortProblem) else text.find("\n")
    at = rng.choice([i for i, c in enumerate(text) if c.isdigit() and i > start])
    digit = rng.choice([d for d in "123456789" if d != text[at]])
    return text[:at] + digit + text[at + 1 :]
