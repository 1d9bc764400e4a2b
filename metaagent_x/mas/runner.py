"""`run_script`: one execution of a design. The host's side of the line: it owns budgets, records and the answer.

Nothing that the script process says becomes a record by itself: a Call is what `chat` returned, a ToolRun is what the
sandbox returned, and the final answer must be found among them (`provenance.py`).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

from metaagent_x import sandbox
from metaagent_x.mas import messages, tools
from metaagent_x.mas.prompts import FULL, PromptSet
from metaagent_x.mas.provenance import as_said, from_agents, whispered, whole
from metaagent_x.mas.records import TEST_RUNS, Budget, Call, CallRefused, CallRequest, Execution, ToolRun
from metaagent_x.mas.script import Script
from metaagent_x.mas.shares import NEEDS, Ledger, Share
from metaagent_x.tasks.math import is_equivalent
from metaagent_x.tasks.task import Task

ENTRY = "metaagent_x.mas.child:main"
FORMS = {"applied": "answer_applied", "main": "answer_from_main"}  # flags of answers that are not given as text
MAX_MESSAGES = 20_000
MAX_PENDING = 128
STOP_GRACE_S = 2.0  # for a script that was told to stop and has nothing left to wait for
END_GRACE_S = 1.0  # for a process that has hung up
BACKSTOP_S = 30.0  # the zygote's own wall limit, should this process be unable to act

Chat = Callable[[CallRequest], Awaitable[Call]]
Work = Callable[[Share], Awaitable[dict[str, Any]]]
Request = tuple[int, Work]


async def run_script(
    script: str | Script,
    task: Task,
    chat: Chat,
    *,
    budget: Budget | None = None,
    prompts: PromptSet | None = None,
    run_tests: Callable[[Task, str], list[str]] | None = None,
    brief: Callable[[str], str] | None = None,
    equivalent: Callable[[str, str], bool] = is_equivalent,
    watch: Callable[[ToolRun], object] | None = None,
) -> Execution:
    """Runs a script in a process of its own and returns what happened. Never raises for what the script does.

    Args:
      script: what to run. Lint it first: this runs whatever it is given.
      task: the task. The script sees its prompt and kind, nothing else.
      chat: answers one call. Its CallRefused is raised in the script; any other exception makes the execution void.
      budget: limits; counts of calls, tokens, depth and tool runs are kept here, and dealt out among branches
        (`shares.py`), so that which calls are made does not depend on who is quick. Calls in flight when the tokens
        run out are finished; `Budget` says how far the sum may exceed the budget.
      prompts: wording of roles and messages; FULL by default.
      run_tests: (task, program) -> failures, called in a thread; by default the public tests on standard input.
      brief: text -> text short enough to be passed on; by default at most 4,096 characters.
      equivalent: (answer, answer) -> same, for math votes, called in a thread; by default the math grader's.
      watch: told of every tool run when it ends.

    Returns:
      An ungraded Execution; `status`, `reason` and `flags` as described in `records.py`.
    """
    script = Script.of(script) if isinstance(script, str) else script
    run = _Run(
        task, chat, budget or Budget(), prompts or FULL, run_tests or tools.run_public_tests, brief or tools.brief,
        equivalent, watch or (lambda _: None),
    )  # fmt: skip
    return await run.execute(script)


class _Run:
    """State of one execution."""

    def __init__(
        self, task: Task, chat: Chat, budget: Budget, prompts: PromptSet, run_tests: Callable[[Task, str], list[str]],
        brief: Callable[[str], str], equivalent: Callable[[str, str], bool], watch: Callable[[ToolRun], object],
    ):  # fmt: skip
        self.task, self.chat, self.budget, self.prompts = task, chat, budget, prompts
        self.run_tests, self.brief, self.equivalent, self.watch = run_tests, brief, equivalent, watch
        self.execution = Execution()
        b = self.budget
        self.ledger: Ledger[Request] = Ledger(calls=b.calls, tokens=b.tokens, tools=b.tool_runs, tests=TEST_RUNS)
        self.stopped = ""
        self.failure: BaseException | None = None
        self.pending: set[asyncio.Task] = set()
        self.paths: set[str] = set()
        self.talking: set[str] = set()
        self.allowance = messages.Allowance(self.budget.calls)
        self.reading = asyncio.Lock()
        self.tools_at_once = asyncio.Semaphore(tools.AT_ONCE)
        self.said_end: dict[str, Any] | None = None
        self.session: sandbox.Session

    async def execute(self, script: Script) -> Execution:
        limits = sandbox.Limits(
            cpu_s=self.budget.cpu_s, wall_s=self.budget.wall_s + BACKSTOP_S, memory_mb=self.budget.memory_mb
        )
        try:
            self.session = await sandbox.open_session(ENTRY, limits=limits)
        except sandbox.SandboxFailure as failure:
            return self._finish("void", str(failure))
        problem = ("", "")
        try:
            async with asyncio.timeout(self.budget.wall_s):
                await self._converse(script)
        except TimeoutError:
            problem = ("wall", f"wall limit of {self.budget.wall_s:g} s")
        except (sandbox.MalformedMessage, messages.Malformed) as bad:
            problem = ("crash", f"malformed message: {bad}")
        finally:
            for pending in self.pending:
                pending.cancel()
            await asyncio.gather(*self.pending, return_exceptions=True)
            hung_up = not any(problem) and self.said_end is None and not self.stopped and self.failure is None
            try:
                ending = await self.session.end(END_GRACE_S if hung_up else 0.0)
            except sandbox.SandboxFailure as failure:
                self.failure = self.failure or failure
                ending = sandbox.Ending("crash", str(failure))
        try:
            return await asyncio.to_thread(self._conclude, problem, ending)
        except Exception as failure:  # no text that a model wrote may end a step; nor may it void its reward
            self.execution.status, self.execution.reason = "crash", f"unreadable answer: {failure!r}"[:1000]
            self.execution.answer = ""
            return self.execution

    # The conversation

    async def _converse(self, script: Script) -> None:
        task = {"task": self.task.prompt, "kind": self.task.kind}
        await self.session.send({"script": script.text, **task, "prompts": self.prompts.for_script()})
        for _ in range(MAX_MESSAGES):
            before = self.session.received_bytes
            message = await self.session.receive()
            if message is None or self.failure is not None:
                return
            self.allowance.spend("bytes", self.session.received_bytes - before)
            if message.get("do") == "end":
                self.said_end = message
                return
            await self._handle(message)
        raise messages.Malformed(f"more than {MAX_MESSAGES} messages")

    async def _handle(self, message: dict[str, Any]) -> None:
        what = message.get("do")
        if what == "links":
            self._link(messages.links(message.get("links")))
            return
        if what == "open":
            self.ledger.open(messages.path(message), messages.count(message))
            return
        if what == "ended":
            await self._go_on(self.ledger.end(messages.path(message)))
            return
        number = messages.number(message)
        if len(self.pending) >= MAX_PENDING:
            raise messages.Malformed(f"more than {MAX_PENDING} requests wait for a reply")
        if what == "brief":
            text = messages.readable(messages.text(message, "text"))
            self.allowance.spend("characters", len(text))
            self._spawn(number, self._brief, text)
        elif what == "classes":
            texts = [messages.readable(text) for text in messages.texts(message)]
            self.allowance.spend("characters", sum(map(len, texts)))
            self.allowance.spend("comparisons", len(texts) * (len(texts) - 1) // 2)
            self._spawn(number, self._classes, texts)
        elif what in ("call", "run_python", "run_tests"):
            await self._counted(what, number, message)
        else:
            raise messages.Malformed(f"unknown request {str(what)[:40]!r}")

    async def _counted(self, what: str, number: int, message: dict[str, Any]) -> None:
        """A request that costs something: answered, held or stopped, as its branch's share of the budget says."""
        path = messages.path(message)
        if path in self.paths:
            raise messages.Malformed(f"path {path!r} is used twice")
        self.paths.add(path)
        if self.stopped:
            await self._stop(number, self.stopped)
            return
        work = self._work(what, path, message)
        needs = ("depth",) if messages.depth(path) > self.budget.depth else NEEDS[what]  # nobody has any depth left
        await self._go_on(self.ledger.ask(path, needs, (number, work)))

    def _work(self, what: str, path: str, message: dict[str, Any]) -> Work:
        if what == "call":
            request = messages.request(message)
            self._link(messages.links(message.get("sources"), path))
            return functools.partial(self._call, request)
        code = messages.text(message, "code").strip() + "\n"  # blank lines in front would shift what a program sees
        if what == "run_python":
            return functools.partial(self._python, path, code, messages.text(message, "stdin"))
        return functools.partial(self._tests, path, code)

    async def _go_on(self, decided: list[tuple[Share, Request, str]]) -> None:
        for share, (number, work), reason in decided:
            if reason:
                await self._stop(number, reason)
            else:
                self._spawn(number, self._spend, share, work)

    async def _stop(self, number: int, reason: str) -> None:
        self.stopped = reason
        await self._answer(number, stop=reason)
        self._expect_end()

    def _expect_end(self) -> None:
        """A stopped script that waits for nothing has a moment to end; what ignores that is cut off."""
        if self.stopped and not self.pending:
            asyncio.get_running_loop().call_later(STOP_GRACE_S, self.session.abort)

    async def _answer(self, number: int, **reply: Any) -> None:
        await self.session.send({"id": number, **reply})

    def _spawn(self, number: int, work: Callable[..., Awaitable[dict[str, Any]]], *args: Any) -> None:
        async def job() -> None:
            try:
                await self._answer(number, **await work(*args))
            except Exception as failure:  # of chat, a tool or the host's notion of equality: infrastructure
                self.failure = self.failure or failure
                self.session.abort()

        task = asyncio.ensure_future(job())
        self.pending.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task) -> None:
        self.pending.discard(task)
        self._expect_end()

    # The work

    async def _spend(self, share: Share, work: Work) -> dict[str, Any]:
        try:
            return await work(share)
        finally:
            share.busy = False  # before the reply is sent: the next request may follow at once

    async def _call(self, request: CallRequest, share: Share) -> dict[str, Any]:
        if request.conversation and request.conversation in self.talking:
            return {"error": f"agent {request.agent!r} with memory is used by two branches at once"}
        self.talking.add(request.conversation)
        try:
            call = await self.chat(request)
        except CallRefused as refusal:
            return {"error": str(refusal)}
        finally:
            self.talking.discard(request.conversation)
        share.left["tokens"] -= call.sampled
        self.execution.calls.append(call)
        return {"text": call.text}

    async def _python(self, path: str, code: str, stdin: str, _: Share) -> dict[str, Any]:
        output, status = await self._in_pool(tools.run_program, code, stdin)
        self._record(ToolRun(path, "run_python", code, stdin, output, status))
        return {"text": output, "status": status}

    async def _tests(self, path: str, code: str, _: Share) -> dict[str, Any]:
        failures = await self._in_pool(self.run_tests, self.task, code)
        if failures == [tools.NO_PUBLIC_TESTS]:
            self.execution.flags.add("no_public_tests")
        status = "error" if failures else "ok"
        self._record(ToolRun(path, "run_tests", code, "", "\n\n".join(failures), status))
        return {"failures": failures}

    def _record(self, run: ToolRun) -> None:
        self.execution.tools.append(run)
        self.watch(run)

    async def _in_pool(self, function: Callable, *args: Any) -> Any:
        async with self.tools_at_once:
            return await asyncio.get_running_loop().run_in_executor(tools.POOL, functools.partial(function, *args))

    async def _brief(self, text: str) -> dict[str, Any]:
        async with self.reading:
            return {"text": await asyncio.to_thread(self.brief, text)}

    async def _classes(self, texts: list[str]) -> dict[str, Any]:
        kind, calls = self.task.kind, list(self.execution.calls)

        def classes() -> list[int]:
            return tools.classes(kind, [whole(kind, text, calls) for text in texts], self.equivalent)

        async with self.reading:
            return {"classes": await asyncio.to_thread(classes)}

    def _link(self, links: list[tuple[str, str, str]]) -> None:
        self.allowance.spend("links", len(links))
        self.execution.links += links

    # The end

    def _conclude(self, problem: tuple[str, str], ending: sandbox.Ending) -> Execution:
        """Status and reason, by who spoke last: infrastructure, a limit, a budget, the script."""
        end = self.said_end
        if self.failure is not None:
            return self._finish("void", f"{type(self.failure).__name__}: {self.failure}")
        if problem[0]:
            return self._finish(*problem)
        if end is not None and "error" in end:
            return self._finish("memory" if end.get("memory") else "crash", messages.clean(str(end["error"]))[:1000])
        if end is None and not self.stopped:
            status = ending.status if ending.status in ("cpu", "memory", "wall") else "crash"
            return self._finish(status, f"no answer: {ending.reason}")
        given = end.get("answer") if end is not None else None
        if given is not None and not isinstance(given, str):
            return self._finish("crash", f"malformed message: answer is {type(given).__name__}, not text")
        if given is not None and end is not None:
            self.execution.flags |= {flag for form, flag in FORMS.items() if end.get("form") == form}
        return self._finish(
            "budget" if self.stopped else "ok", f"budget of {self.stopped} reached" if self.stopped else "",
            None if given is None else messages.readable(messages.clean(given)),
        )  # fmt: skip

    def _finish(self, status: str, reason: str, answer: str | None = None) -> Execution:
        e = self.execution
        e.status, e.reason = status, reason
        e.calls.sort(key=lambda c: messages.order(c.path))
        e.tools.sort(key=lambda t: messages.order(t.path))
        known = {c.path for c in e.calls}
        e.links = sorted({link for link in e.links if link[0] in known and (link[1] in known or not link[1])})
        if not e.calls:
            e.flags.add("no_calls")
        if any(c.finish_reason == "length" for c in e.calls):
            e.flags.add("truncated")
        if any(c.prompt_cut for c in e.calls):
            e.flags.add("prompt_cut")
        if self.stopped:
            e.flags.add(f"budget_{self.stopped}")
        if status in ("ok", "budget"):
            if not (answer or "").strip():
                e.flags.add("answer_unset")
                answer = self._last_text()
            e.answer = answer or ""
            e.answer = as_said(self.task, e)
            if not from_agents(self.task, e):
                e.flags.add("answer_not_from_agents")
            if whispered(self.task, e):
                e.flags.add("answer_in_script")
        return e

    def _last_text(self) -> str:
        """The last agent text that holds an answer (a critic's remark does not), else the last one."""
        texts = [c.text for c in self.execution.calls]
        holding = [t for t in texts if tools.key_of(self.task.kind, t) is not None]
        return (holding or texts or [""])[-1]
