"""A host for scripts: answers calls by a rule and keeps the requests. Shared by the tests of the language."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from metaagent_x.mas import Call, CallRequest, Execution, classify, run_script
from metaagent_x.tasks.task import Task

MATH = Task("m/1", "math", "What is 3 + 4?")
CODE = Task(
    "c/1", "code", "Double the number.",
    ({"kind": "stdin", "input": "2\n", "output": "4\n"}, {"kind": "stdin", "input": "5\n", "output": " 10"}),
)  # fmt: skip


def program(code: str) -> str:
    return "```python\n" + code + "\n```"


class Host:
    """`reply` gives a completion's text; `delay` its seconds; `barrier` how many calls must be in flight first."""

    def __init__(
        self, reply: Callable[[CallRequest], str], prompts=None, *, delay: Callable[[CallRequest], float] | None = None,
        barrier: int = 0, tokens: int = 2, finish: Literal["stop", "length"] = "stop",
    ):  # fmt: skip
        self.reply, self.prompts, self.delay, self.tokens, self.finish = reply, prompts, delay, tokens, finish
        self.barrier = asyncio.Barrier(barrier) if barrier else None
        self.requests: list[CallRequest] = []

    async def chat(self, request: CallRequest) -> Call:
        self.requests.append(request)
        if self.barrier is not None and len(self.requests) <= self.barrier.parties:
            await self.barrier.wait()
        if self.delay is not None:
            await asyncio.sleep(self.delay(request))
        ids = tuple(range(self.tokens))
        return Call(
            request.path, request.agent, request.role_prompt, (1, 2), ids, (-1.0,) * len(ids), self.finish, 0,
            self.reply(request), conversation=request.conversation, messages=request.messages,
        )  # fmt: skip

    async def run(self, script: str, task: Task = MATH, **options) -> Execution:
        e = await run_script(script, task, self.chat, prompts=self.prompts, **options)
        e.structure = classify(e)
        return e

    def request(self, path: str) -> CallRequest:
        return next(r for r in self.requests if r.path == path)
