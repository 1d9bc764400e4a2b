"""Designs of tasks and executions of designs, sampled one by one and not graded yet."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from typing import Any

import ml_collections

from metaagent_x import mas
from metaagent_x.mas import prompts as prompt_sets
from metaagent_x.mas.prompts import PromptSet
from metaagent_x.mas.records import Budget, Call, CallRequest, Execution, ToolRun
from metaagent_x.rollout.chat import Chat
from metaagent_x.rollout.engine import Engine, EngineFailure, Sampling
from metaagent_x.rollout.scripted import ScriptedEngine
from metaagent_x.rollout.seeds import call_seed
from metaagent_x.rollout.tree import UNREADABLE, Design
from metaagent_x.tasks.task import Task

Settings = Any  # an ml_collections.ConfigDict of `metaagent_x.config.base`: its fields have no static types


@functools.lru_cache(maxsize=4)
def chat_for(folder: str) -> Chat:
    """The tokenizer and template of a folder, read once a process."""
    return Chat(folder)


class Player:
    """Plays both roles with the engines that it is given; executions in flight share `rollout.concurrency` places.

    Args:
      engines: the engine of each role, "designer" and "executor"; both may be the same object. A Player with
        `rollout.design` needs no Designer.
      config: settings as made by `metaagent_x.config.base` (`seed`, `tokenizer`, `rollout`).
      step: part of every seed. The same (config.seed, step, task id, indices) gives the same requests and seeds.
      prompts: what the roles are told; None: the set that `rollout.prompts` names.
      watch: told of every request when it is made, of its call when that is finished, and of tool runs likewise.

    Attributes:
      defect: the first exception that an engine raised and that is no EngineFailure: not the policy's doing, nor the
        infrastructure's. What it spoilt is void; whoever plays raises it at the end.
    """

    def __init__(
        self, engines: Mapping[str, Engine], config: Settings, step: int, *, prompts: PromptSet | None = None,
        watch: Callable[[CallRequest | Call | ToolRun], object] | None = None,
    ) -> None:  # fmt: skip
        r = config.rollout
        self.engines, self.step, self.seed = engines, step, config.seed
        self.settings, self.chat = r, chat_for(config.tokenizer)
        self.budget = Budget(**r.budget)
        self.prompts = (prompts or prompt_sets.get(r.prompts)).within(self.budget)
        self.defect: BaseException | None = None
        self._watch = watch or (lambda _: None)
        self._places = asyncio.Semaphore(r.concurrency)
        self._limits = {"designer": r.max_designer_tokens, "executor": r.max_executor_tokens}
        for engine in engines.values():
            if isinstance(engine, ScriptedEngine) and engine.chat is None:
                engine.chat = self.chat

    @property
    def outages(self) -> int:
        """How often a server was away so far."""
        return sum(getattr(engine, "outages", 0) for engine in self.engines.values())

    async def design(self, task: Task, i: int) -> Design:
        """Design `i` of a task, without executions: void if the engine failed, invalid if it cannot be run.

        With `rollout.design`, that script: nobody is asked, and `call` is None.
        """
        if self.settings.design:
            return read_design(None, self.settings.design)
        request = CallRequest("", "designer", self.prompts.designer_system, "", (self.prompts.designer_user(task),))
        try:
            call = await self.call(task, "designer", i, -1, request, {})
        except EngineFailure as failure:
            return Design(None, problem=f"{type(failure).__name__}: {failure}", void=True)
        except Exception as defect:
            self.defect = self.defect or defect
            return Design(None, problem=f"engine: {defect!r}", void=True)
        return read_design(call, call.text)

    async def execute(self, task: Task, design: Design, i: int, j: int) -> Execution:
        """Execution `j` of the valid design `i`: run and classified, not graded. Void if an engine failed meanwhile."""
        assert design.script is not None and design.valid
        script = mas.Script(design.script, design.script)
        memories: dict[str, tuple[int, ...]] = {}

        async def ask(request: CallRequest) -> Call:
            try:
                return await self.call(task, "executor", i, j, request, memories)
            except (EngineFailure, mas.CallRefused):
                raise
            except Exception as defect:
                self.defect = self.defect or defect
                raise

        async with self._places:
            outages = self.outages
            execution = await mas.run_script(
                script, task, ask, budget=self.budget, prompts=self.prompts, brief=self.chat.brief, watch=self._watch
            )
        if execution.status == "wall" and self.outages != outages:  # it may have waited for a server, not for itself
            execution.status, execution.reason = "void", f"{execution.reason}, while a server was away"
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
        limit, room = self.settings.max_prompt_tokens, self._limits[role]
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
        self._watch(request)
        done = await self.engines[role].generate(tuple(ids), sampling, seed, request=request)
        reply = self.chat.decode(done.ids) if done.text is None else done.text
        if request.conversation:  # an engine that gives no ids is told again what it said
            said = done.ids if done.text is None else (*self.chat.encode(done.text), self.chat.stop_ids[0])
            memories[request.conversation] = (*ids, *said)
        call = Call(
            path=request.path, agent=request.agent, role_prompt=request.role_prompt, prompt_ids=tuple(ids),
            completion_ids=tuple(done.ids), logprobs=tuple(done.logprobs), finish_reason=done.finish_reason,
            version=done.version, text=reply, seed=seed, conversation=request.conversation,
            messages=request.messages, prompt_cut=cut,
            text_tokens=0 if done.text is None else len(self.chat.encode(done.text)) + 1,
        )  # fmt: skip
        self._watch(call)
        return call


def read_design(call: Call | None, text: str) -> Design:
    """The design of a text: invalid if reading it fails, whatever the reason. `call`: the completion that it is of."""
    design = Design(call)
    try:
        script = mas.parse_completion(text) if call else mas.Script.of(text)
        if script is None:
            design.problem = "no_script"
            return design
        design.script, design.own_imports = script.text, mas.own_imports(script)
        if problems := mas.lint(script):
            p = problems[0]
            design.problem = f"line {p.line}: {p.word}: {p.hint}"
    except Exception as defect:  # ours, not the Designer's; `step_metrics` counts it
        design.problem = UNREADABLE + repr(defect)
    return design


def with_rollout(config: Settings, **fields: Any) -> Settings:
    """A copy of the settings in which these fields of `rollout` differ, as an evaluation may want: `temperature=0.0` is
    greedy, `design=SCRIPT` gives every task this design."""
    copy = ml_collections.ConfigDict(config)
    with copy.unlocked():
        copy.rollout = ml_collections.ConfigDict(config.rollout)
        copy.rollout.update(fields)
    return copy
