"""A small run in which nobody learns: a rule plays both roles, and its preferences are moved by hand from step to step.

It has the files of a real run and everything in it is real but the policy: scripts run in the sandbox, answers are
graded, structures are classified by what ran. So it shows what the figures look like, and nothing about learning.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from metaagent_x import config, sandbox
from metaagent_x.learner import credit
from metaagent_x.learner.schedule import active_roles
from metaagent_x.mas.records import CallRequest
from metaagent_x.rollout import measure, traces
from metaagent_x.rollout.collect import collect
from metaagent_x.rollout.scripted import ScriptedEngine
from metaagent_x.run_folder import RunFolder
from metaagent_x.tasks import families
from metaagent_x.tasks.grader import Grader
from metaagent_x.tasks.mixture import Mixture

SCRIPTS = {
    "single": "answer = solver()(task)",
    "reflection": "answer = reflect(solver(), critic(), rounds=1)(task)",
    "ensemble": "answer = ensemble([solver()] * 3)(task)",
    "solver-tester": "answer = solve_and_test(solver(), rounds=3)(task)",
    "invalid": "answer = SOLVE(task)",
}
# Weights of the scripts at the first and at the last step.
BEFORE = {"single": 6, "reflection": 2, "ensemble": 2, "solver-tester": 2, "invalid": 1}
AFTER = {"math": {"single": 1, "reflection": 2, "ensemble": 7}, "code": {"single": 2, "solver-tester": 8}}
SKILL = {"math": (0.45, 0.65), "code": (0.35, 0.55)}  # chance of a right solution, at the first and at the last step
ROLES = ("designer", "executor")


class Rule:
    """Answers as a Designer or as an agent. `designer` and `executor` say how far each has come, from 0 to 1."""

    def __init__(self, pairs: Iterable):
        self.gold = {task.prompt: rubric.gold[0] for task, rubric in pairs if task.kind == "math"}
        self.progress = dict.fromkeys(ROLES, 0.0)
        self.engine = ScriptedEngine(self.reply)

    def reply(self, request: CallRequest) -> str:
        """A text that depends on the request and its seed alone."""
        rng = random.Random(self.engine.seeds[-1])
        task = request.messages[0].split("\n")[0]
        kind = "math" if task.startswith("sort") else "code"
        if request.agent == "designer":
            at = self.progress["designer"]
            weights = [BEFORE[name] * (1 - at) + AFTER[kind].get(name, 0) * at for name in SCRIPTS]
            return rng.choices(list(SCRIPTS.values()), weights)[0]
        right = self.solution(task, kind, right=True)
        if request.role_prompt == "review":
            truly, sees = right in request.messages[-1], rng.random() < 0.8
            return "CORRECT" if truly == sees else "WRONG"
        low, high = SKILL[kind]
        return right if rng.random() < low + (high - low) * self.progress["executor"] else self.solution(task, kind)

    def solution(self, task: str, kind: str, *, right: bool = False) -> str:
        """A solution of a generated task, right or wrong."""
        if kind == "math":
            return f"\\boxed{{{int(self.gold[task]) + (not right)}}}"
        first, second = re.findall(r"(add|times) (\d+)", task)
        lines = [f"a=[x{'+' if name == 'add' else '*'}{number} for x in a]" for name, number in (first, second)]
        shown, _ = families.REDUCTIONS[task.rsplit(" ", 1)[1]]
        return "\n".join([families.READ.strip(), *(lines if right else lines[:1]), f"print({shown})"])


def settings(folder: Path, steps: int) -> config.Settings:
    """Of this run: two stages of each role, 4 tasks a step, M x N = 4 x 2."""
    c = config.base()
    c.workdir, c.steps, c.stage_length = str(folder), steps, max(1, steps // 4)
    c.batch, c.designs, c.executions = 4, 4, 2
    c.engine.kind, c.rollout.prompts, c.reward.format_bonus = "scripted", "tiny", 0.0
    c.rollout.max_designer_tokens = c.rollout.max_executor_tokens = 512
    c.data.train = (("tiny_math", "", 0.5), ("tiny_code", "", 0.5))
    return c


def make(folder: str | Path, *, steps: int = 24, held_out: int = 48, say=print) -> Path:
    """Plays the run and writes its folder.

    Args:
      folder: must not hold a run yet. steps: how many. held_out: tasks of each evaluation.

    Raises:
      SandboxFailure: scripts can run neither contained nor in processes of their own.
    """
    folder = Path(folder)
    c = settings(folder, steps)
    try:
        sandbox.use("strict")
    except sandbox.SandboxFailure:  # a host without Landlock
        c.sandbox = "process"
        sandbox.use("process")
    with ThreadPoolExecutor(1) as thread:  # a notebook has an event loop already in its own
        thread.submit(asyncio.run, _play(c, folder, held_out, say)).result()
    return folder


async def _play(c: config.Settings, folder: Path, held_out: int, say) -> None:
    train, test = (
        {f"tiny_{kind}": families.generate(kind, split, size) for kind in ("math", "code")}
        for split, size in (("train", 200), ("test", held_out // 2))
    )
    judged = [pair for pairs in test.values() for pair in pairs]
    rule = Rule([*judged, *(pair for pairs in train.values() for pair in pairs)])
    engines = dict.fromkeys(ROLES, rule.engine)
    batches = Mixture(train, dict.fromkeys(train, 0.5), c.batch, c.seed)
    run, grader = RunFolder(folder, c), Grader(format_bonus=0.0)

    async def evaluate(name: str, step: int, designer: str = "rl", executor: str = "rl") -> None:
        before = dict(rule.progress)
        rule.progress = {"designer": float(designer == "rl"), "executor": float(executor == "rl")}
        record = await measure.evaluate(judged, engines, grader, c)
        rule.progress = before
        run.log_evaluation({"name": name, "step": step, "designer": designer, "executor": executor} | record)

    try:
        await evaluate("cold", 0, "cold", "cold")
        for step in range(c.steps):
            roles = active_roles(step, c.schedule, c.stage_length, c.first)
            trees = await collect(
                batches.batch_at(step), engines, grader, designs=c.designs, executions=c.executions, config=c, step=step
            )
            trained = credit.assign(trees, roles)
            metrics = measure.step_metrics(trees, format_bonus=0.0)
            metrics |= {f"groups/flat/{role}": credit.flat_groups(trees, role) for role in ROLES}
            run.log(step + 1, roles, metrics)
            traces.write(folder / "traces", trees, trained, run=run.name, step=step + 1)
            for role in roles:
                rule.progress[role] = min(1.0, rule.progress[role] + 2 / c.steps)
            if (step + 1) % 6 == 0:
                say(f"step {step + 1} of {c.steps}: accuracy {metrics['accuracy']:.2f}")
        await evaluate("final", c.steps)
        await evaluate("cross", c.steps, "rl", "cold")
        await evaluate("cross", c.steps, "cold", "rl")
    finally:
        grader.close()
