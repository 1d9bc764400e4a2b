"""From tasks to rollout trees: M designs a task, N executions a design, all at once, each graded when it ends."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import ml_collections

from metaagent_x import mas
from metaagent_x.mas import prompts as prompt_sets
from metaagent_x.mas.records import Budget, Call, CallRequest, Execution
from metaagent_x.rollout.chat import Chat
from metaagent_x.rollout.engine import Engine, EngineFailure, Sampling
from metaagent_x.rollout.scripted import ScriptedEngine
from metaagent_x.rollout.seeds import call_seed
from metaagent_x.rollout.tree import UNREADABLE, Design, RolloutTree
from metaagent_x.rollout.vllm_engine import Guest, VllmEngine
from metaagent_x.tasks.task import Rubric, Task, Verdict

Settings = Any  # an ml_collections.ConfigDict of `metaagent_x.config.base`: its fields have no static types
# Ended by its own doing, not by ours: reward 0, whatever text it left behind.
FAILED = ("wall", "cpu", "memory", "crash")


class GraderProtocol(Protocol):
    async def grade(self, rubric: Rubric, text: str) -> Verdict: ...


@functools.lru_cache(maxsize=4)
def chat_for(folder: str) -> Chat:
    """The tokenizer and template of a folder, read once a process."""
    return Chat(folder)


async def collect(
    tasks: Sequence[tuple[Task, Rubric]],
    engines: Mapping[str, Engine],
    grader: GraderProtocol,
    *,
    designs: int,
    executions: int,
    config: Settings,
    step: int,
) -> list[RolloutTree]:
    """Samples, runs and grades designs; waits for nothing but what it needs next.

    Args:
      tasks: B pairs of a task and its rubric; the rubric goes to the grader and nowhere else.
      engines: the engine of each role, "designer" and "executor"; both may be the same object.
      grader: `async grade(rubric, text) -> Verdict`.
      designs: M, designs per task. executions: N, executions per design.
      config: settings as made by `metaagent_x.config.base` (`seed`, `tokenizer`, `rollout`).
      step: part of every seed. The same (config.seed, step, tasks) gives the same requests and seeds.

    Returns:
      B trees in the order of `tasks`. A failing engine or grader makes an execution (or a design) void, never wrong.

    Raises:
      ValueError: designs or executions below 1.
      Exception: whatever a defect (not an EngineFailure) in an engine or grader raised, after all else has ended.
    """
    if designs < 1 or executions < 1:
        raise ValueError(f"designs={designs}, executions={executions}; both must be at least 1")
    job = _Collector(engines, grader, config, step)
    trees = await asyncio.gather(
        *(job.tree(q, task, rubric, designs, executions) for q, (task, rubric) in enumerate(tasks))
    )
    if job.defect is not None:
        raise job.defect
    return list(trees)


class _Collector:
    """What all trees of one `collect` share: engines, limits, the place in the queue."""

    def __init__(self, engines: Mapping[str, Engine], grader: GraderProtocol, config: Settings, step: int):
        r = config.rollout
        self.engines, self.grader, self.step, self.seed = engines, grader, step, config.seed
        self.settings, self.chat = r, chat_for(config.tokenizer)
        self.budget = Budget(**r.budget)
        self.prompts = prompt_sets.get(r.prompts).within(self.budget)
        self.places = asyncio.Semaphore(r.concurrency)
        self.defect: BaseException | None = None
        self.limits = {"designer": r.max_designer_tokens, "executor": r.max_executor_tokens}
        for engine in engines.values():
            if isinstance(engine, ScriptedEngine) and engine.chat is None:
                engine.chat = self.chat

    @property
    def outages(self) -> int:
        return sum(e.outages for e in self.engines.values() if isinstance(e, VllmEngine | Guest))

    async def tree(self, q: int, task: Task, rubric: Rubric, m: int, n: int) -> RolloutTree:
        made = await asyncio.gather(*(self.design(task, rubric, i, n) for i in range(m)))
        return RolloutTree(task, list(made), question=q, step=self.step, executions=n)

    async def design(self, task: Task, rubric: Rubric, i: int, n: int) -> Design:
        request = CallRequest("", "designer", self.prompts.designer_system, "", (self.prompts.designer_user(task),))
        try:
            call = await self.call(task, "designer", i, -1, request, {})
        except EngineFailure as failure:
            return Design(None, problem=f"engine: {failure}", void=True)
        except Exception as defect:
            self.defect = self.defect or defect
            return Design(None, problem=f"engine: {defect!r}", void=True)
        script, design = _read(call)
        if script is not None and design.valid:
            design.executions += await asyncio.gather(*(self.execute(task, rubric, script, i, j) for j in range(n)))
        return design

    async def execute(self, task: Task, rubric: Rubric, script: mas.Script, i: int, j: int) -> Execution:
        memories: dict[str, tuple[int, ...]] = {}

        async def ask(request: CallRequest) -> Call:
            try:
                return await self.call(task, "executor", i, j, request, memories)
            except (EngineFailure, mas.CallRefused):
                raise
            except Exception as defect:
                self.defect = self.defect or defect
                raise

        async with self.places:
            outages = self.outages
            execution = await mas.run_script(
                script, task, ask, budget=self.budget, prompts=self.prompts, brief=self.chat.brief
            )
        if execution.status == "wall" and self.outages != outages:  # it may have waited for a server, not for itself
            execution.status, execution.reason = "void", f"{execution.reason}, while a server was away"
        if execution.status != "void":
            execution.verdict = await self.judge(rubric, execution)
        try:
            execution.structure = await asyncio.to_thread(mas.classify, execution)
        except Exception as defect:  # one odd text among thousands must not end a run
            execution.structure = "other"
            execution.flags.add("unclassified")
            execution.reason = "; ".join(filter(None, (execution.reason, f"classify: {defect!r}")))
        return execution

    async def call(
        self, task: Task, role: str, i: int, j: int, request: CallRequest, memories: dict[str, tuple[int, ...]]
    ) -> Call:
        """One request to the role's engine. A conversation with memory goes on as token ids, never rendered again."""
        text = "\n".join(request.messages)
        limit, room = self.settings.max_prompt_tokens, self.limits[role]
        so_far = memories.get(request.conversation) if request.conversation else None
        ids = self.chat.extend(so_far, text) if so_far is not None else None
        cut = False
        if ids is None or len(ids) > limit:  # A memory that no longer fits starts again from its newest message.
            try:
                ids, cut = self.chat.fit(request.role_prompt, text, limit)
            except ValueError as too_long:  # A script wrote the role prompt, so this must not end the run.
                raise mas.CallRefused(f"role prompt of agent {request.agent!r}: {too_long}") from too_long
            cut = cut or so_far is not None
        s = self.settings
        sampling = Sampling(
            max_tokens=room, temperature=s.temperature, top_p=s.top_p, top_k=s.top_k, min_p=s.min_p,
            repetition_penalty=s.repetition_penalty, stop_ids=tuple(self.chat.stop_ids),
        )  # fmt: skip
        seed = call_seed(self.seed, self.step, task.id, i, j, request.path)
        done = await self.engines[role].generate(tuple(ids), sampling, seed, request=request)
        reply = self.chat.decode(done.ids) if done.text is None else done.text
        if request.conversation:  # an engine that gives no ids is told again what it said
            said = done.ids if done.text is None else (*self.chat.encode(done.text), self.chat.stop_ids[0])
            memories[request.conversation] = (*ids, *said)
        return Call(
            path=request.path, agent=request.agent, role_prompt=request.role_prompt, prompt_ids=tuple(ids),
            completion_ids=tuple(done.ids), logprobs=tuple(done.logprobs), finish_reason=done.finish_reason,
            version=done.version, text=reply, seed=seed, conversation=request.conversation,
            messages=request.messages, prompt_cut=cut,
        )  # fmt: skip

    async def judge(self, rubric: Rubric, execution: Execution) -> Verdict:
        """The grader's verdict, after the rules that no answer can get around."""
        if execution.status in FAILED:
            return Verdict(False, 0.0, 0.0, 0.0, execution.status)
        for flag in ("no_calls", "answer_not_from_agents"):
            if flag in execution.flags:
                return Verdict(False, 0.0, 0.0, 0.0, flag)
        if "answer_in_script" in execution.flags and self.settings.forbid_answer_in_script:
            return Verdict(False, 0.0, 0.0, 0.0, "answer_in_script")
        try:
            return await self.grader.grade(rubric, execution.answer)
        except EngineFailure as failure:
            return Verdict(False, 0.0, 0.0, 0.0, f"grader: {failure}", void=True)
        except Exception as defect:
            self.defect = self.defect or defect
            return Verdict(False, 0.0, 0.0, 0.0, f"grader: {defect!r}", void=True)


def _read(call: Call) -> tuple[mas.Script | None, Design]:
    """The script of a completion and the design that it makes: invalid if reading it fails, whatever the reason."""
    design = Design(call)
    try:
        script = mas.parse_completion(call.text)
        if script is None:
            design.problem = "no_script"
            return None, design
        design.script, design.own_imports = script.text, mas.own_imports(script)
        if problems := mas.lint(script):
            p = problems[0]
            design.problem = f"line {p.line}: {p.word}: {p.hint}"
        return script, design
    except Exception as defect:  # ours, not the Designer's; `step_metrics` counts it
        design.problem = UNREADABLE + repr(defect)
        return None, design


def with_temperature(config: Settings, temperature: float) -> Settings:
    """A copy of the settings that samples at another temperature (0 = greedy): for evaluation only."""
    copy = ml_collections.ConfigDict(config)
    with copy.unlocked():
        copy.rollout = ml_collections.ConfigDict(config.rollout)
        copy.rollout.temperature = float(temperature)
    return copy
