"""The script language: what a Designer's script can name. Runs in the contained process, holds nothing worth stealing.

One type rule: agents and structures are both functions from text to text. Whatever needs the policy, a tool or the
grader's notion of equality is a request on the line to the host, which owns budgets, records and verdicts.

Every call has a path: numbers and branch indices from the outside in ("0.2.1": the structure that is number 0 of the
script, its branch 2, call number 1 there). It depends on the script alone, never on which reply came first.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from metaagent_x.mas.prompts import PromptSet
from metaagent_x.tasks.code import extract_code
from metaagent_x.tasks.math import extract_answer

ROLES = ("solver", "critic", "judge", "tester")
SHORT_BYTES = 1024  # such a text has at most 1,024 tokens under any byte-level vocabulary: no need to ask for a brief
THREAD_STACK = 1 << 19
Sources = tuple[tuple[str, str], ...]  # (path of the completion that is passed on, "pass" | "judge" | "tests")


class Stop(BaseException):
    """A budget is used up. Not an Exception, so that a script's own `except` does not swallow it by accident."""


class Reply(str):
    """A completion's text that remembers the path of its call."""

    path = ""

    def __new__(cls, text: str, path: str) -> Reply:
        self = super().__new__(cls, text)
        self.path = path
        return self


def path_of(text: str) -> str:
    return text.path if isinstance(text, Reply) else ""


class Line:
    """Requests to the host and their replies, matched by id; any thread may ask."""

    def __init__(self, connection: socket.socket):
        self.file = connection.makefile("rb")
        self.connection, self.lock = connection, threading.Lock()
        self.waiting: dict[int, queue.SimpleQueue] = {}
        self.ids = itertools.count()

    def tell(self, **message: Any) -> None:
        data = json.dumps(message).encode() + b"\n"
        with self.lock:
            self.connection.sendall(data)

    def ask(self, sent: Callable[[], None], **message: Any) -> dict[str, Any]:
        """Sends a request, calls `sent`, waits for the reply.

        Raises:
          Stop: a budget is used up.
          RuntimeError: the host refused the request; the message says why.
        """
        number, box = next(self.ids), queue.SimpleQueue()
        self.waiting[number] = box
        self.tell(id=number, **message)
        sent()
        reply = box.get()
        if "stop" in reply:
            raise Stop(reply["stop"])
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply

    def read(self) -> None:
        """Delivers replies until the host hangs up, which ends the process."""
        for line in self.file:
            reply = json.loads(line)
            self.waiting.pop(reply["id"]).put(reply)
        os._exit(1)


class Branch:
    """A sequence of steps with its own numbering. `sources` say what the next message passes on."""

    def __init__(self, prefix: tuple[int, ...] = (), parent: Branch | None = None, sources: Sources = ()):
        self.prefix, self.parent, self.sources = prefix, parent, sources
        self.started, self.number = threading.Event(), 0

    def take(self) -> tuple[int, ...]:
        self.number += 1
        return (*self.prefix, self.number - 1)

    def mark(self) -> None:
        """The first request of this branch is on its way."""
        branch: Branch | None = self
        while branch is not None:
            branch.started.set()
            branch = branch.parent


class Language:
    """All names of the language, bound to one line, one task and one set of prompts."""

    def __init__(self, line: Line, task: str, kind: str, prompts: PromptSet):
        self.line, self.task, self.kind, self.prompts = line, task, kind, prompts
        self.local = threading.local()
        self.memories = itertools.count(1)

    @property
    def branch(self) -> Branch:
        if not hasattr(self.local, "branch"):
            self.local.branch = Branch()
        return self.local.branch

    def names(self) -> dict[str, Any]:
        """What a script sees: exactly the names in `NAMES`, less `answer`, which it sets."""
        roles = {role: self._template(role) for role in ROLES}
        own = {name: getattr(self, name) for name in NAMES if name not in (*ROLES, "task", "kind", "answer")}
        return {"task": self.task, "kind": self.kind, **roles, **own}

    # Agents and structures

    def _template(self, role: str) -> Callable[..., Agent]:
        def make(style: str = "", memory: bool = False) -> Agent:
            return Agent(self, role, self.prompts.role(role, self.kind, str(style)), memory)

        make.__name__ = role
        return make

    def agent(self, name: str, role: str, memory: bool = False) -> Agent:
        return Agent(self, str(name), self.prompts.own_role(str(role), self.kind), memory)

    def reflect(self, agent: Callable, critic: Callable | None = None, rounds: int = 2) -> Callable[..., str]:
        return Reflect(self, _callable(agent), critic, _rounds(rounds))

    def ensemble(self, agents: Sequence[Callable], judge: Callable | None = None) -> Callable[..., str]:
        return Ensemble(self, _agents(agents), judge)

    def debate(self, agents: Sequence[Callable], judge: Callable | None = None, rounds: int = 2) -> Callable[..., str]:
        return Debate(self, _agents(agents), judge, _rounds(rounds))

    def solve_and_test(self, agent: Callable, tester: Callable | None = None, rounds: int = 3) -> Callable[..., str]:
        return SolveAndTest(self, _callable(agent), tester, _rounds(rounds))

    def together(self, agents: Callable | Sequence[Callable], messages: str | Sequence[str]) -> list[str]:
        several = list(agents) if isinstance(agents, (list, tuple)) else None
        texts = list(messages) if isinstance(messages, (list, tuple)) else None
        count = len(several if several is not None else texts if texts is not None else [messages])
        members = _agents(several) if several is not None else [_callable(agents)] * count
        texts = texts if texts is not None else [messages] * count
        if len(members) != len(texts):
            raise ValueError(f"together: {len(members)} agents but {len(texts)} messages; give one for each, or one")
        number = self.branch.take()
        branches = [Branch((*number, i), self.branch) for i in range(count)]
        return self.parallel(members, texts, branches)

    def parallel(self, members: Sequence[Callable], texts: Sequence[str], branches: Sequence[Branch]) -> list[str]:
        """Applies members[i] to texts[i] in branches[i], all at once; the results in order.

        A branch is started when the one before it has sent its first request, so that requests that a budget must
        turn away are the same ones in every run.
        """
        remembering = [m.conversation for m in members if isinstance(m, Agent) and m.conversation]
        if len(set(remembering)) < len(remembering):
            raise ValueError("the same agent with memory cannot take part twice at once; make a second agent")
        if len(members) == 1:
            return [self.within(branches[0], members[0], texts[0])]
        results: list[Any] = [None] * len(members)

        def work(i: int) -> None:
            try:
                results[i] = (True, self.within(branches[i], members[i], texts[i]))
            except BaseException as problem:
                results[i] = (False, problem)
            finally:
                branches[i].mark()

        threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(len(members))]
        for thread, branch in zip(threads, branches, strict=True):
            branch.started.clear()
            thread.start()
            branch.started.wait()
        for thread in threads:
            thread.join()
        problems = [value for good, value in results if not good]
        if problems:
            raise next((p for p in problems if isinstance(p, Stop)), problems[0])
        return [value for _, value in results]

    def within(self, branch: Branch, member: Callable, text: str, sources: Sources | None = None) -> str:
        """Applies a member to a text inside a branch."""
        before, self.local.branch = self.branch, branch
        branch.sources = branch.sources if sources is None else sources
        try:
            return member(text)
        finally:
            branch.sources = ()
            self.local.branch = before

    # What the host answers

    def call(self, agent: Agent, text: str) -> Reply:
        branch = self.branch
        path = ".".join(map(str, branch.take()))
        sources, branch.sources = branch.sources, ()
        if path_of(text):
            sources = (*sources, (path_of(text), "pass"))
        reply = self.line.ask(
            branch.mark, do="call", path=path, agent=agent.name, role=agent.role, conversation=agent.conversation,
            messages=[str(text)], sources=sources,
        )  # fmt: skip
        return Reply(reply["text"], path)

    def run_python(self, code: str, stdin: str = "") -> str:
        path = ".".join(map(str, self.branch.take()))
        program = self.code_of(code) or str(code)
        return self.line.ask(self.branch.mark, do="run_python", path=path, code=program, stdin=str(stdin))["text"]

    def run_tests(self, code: str) -> list[str]:
        path = ".".join(map(str, self.branch.take()))
        program = self.code_of(code) or str(code)
        return self.line.ask(self.branch.mark, do="run_tests", path=path, code=program)["failures"]

    def brief(self, text: str) -> str:
        if len(text.encode("utf-8", "replace")) <= SHORT_BYTES:
            return text
        return self.line.ask(_nothing, do="brief", text=text)["text"]

    def classes(self, texts: Sequence[str]) -> list[int]:
        """The class of each text by its answer; -1 for a text without one."""
        return self.line.ask(_nothing, do="classes", texts=[str(t) for t in texts])["classes"] if texts else []

    # Plain functions

    def vote(self, texts: Sequence[str]) -> str:
        if isinstance(texts, str):
            raise TypeError("vote takes a list of texts, got one text")
        texts = list(texts)
        classes = self.classes(texts)
        self.line.tell(do="links", links=[[path_of(t), "", "vote"] for t in texts if path_of(t)])
        best = max((c for c in classes if c >= 0), key=lambda c: (classes.count(c), -classes.index(c)), default=None)
        return texts[classes.index(best)] if best is not None else ""

    def agree(self, texts: Sequence[str]) -> bool:
        if isinstance(texts, str):
            raise TypeError("agree takes a list of texts, got one text")
        return bool(texts) and set(self.classes(list(texts))) == {0}

    def answer_of(self, text: str) -> str:
        return extract_answer(str(text)) or ""

    def code_of(self, text: str) -> str:
        return extract_code(str(text)) or ""


NAMES = (
    "task", "kind", "solver", "critic", "judge", "tester", "agent", "reflect", "ensemble", "debate", "solve_and_test",
    "together", "vote", "agree", "answer_of", "code_of", "run_python", "run_tests", "answer",
)  # fmt: skip


class Agent:
    """One role of the policy. Calling it costs one call; with memory its earlier turns are sent again as token ids."""

    def __init__(self, language: Language, name: str, role: str, memory: bool):
        self.language, self.name, self.role = language, name, role
        self.conversation = f"m{next(language.memories)}" if memory else ""

    def __call__(self, *texts: Any) -> str:
        return self.language.call(self, _text(texts))


class Structure:
    """A pattern over agents; itself used like an agent. Each use opens branches under one number."""

    def __init__(self, language: Language):
        self.language, self.prompts = language, language.prompts

    def __call__(self, *texts: Any) -> str:
        outer = self.language.branch
        number = outer.take()
        sources, outer.sources = outer.sources, ()
        return self.run(_text(texts), lambda i: Branch((*number, i), outer, sources))

    def run(self, task: str, open_branch: Callable[[int], Branch]) -> str:
        raise NotImplementedError

    def step(self, branch: Branch, member: Callable, message: str, sources: Sources) -> str:
        return self.language.within(branch, member, message, sources)

    def settle(self, task: str, texts: list[str], judge: Callable | None, branch: Branch) -> str:
        """One text out of several: by vote, or by the judge where they differ."""
        if judge is None or self.language.agree(texts):
            return self.language.vote(texts) or texts[0]
        shown = [self.language.brief(t) for t in texts]
        return self.step(branch, judge, self.prompts.judge(task, shown), _sources(texts, "judge"))


class Reflect(Structure):
    def __init__(self, language: Language, agent: Callable, critic: Callable | None, rounds: int):
        super().__init__(language)
        self.agent, self.rounds = agent, rounds
        self.critic = critic or (agent if isinstance(agent, Agent) else language._template("critic")())

    def run(self, task: str, open_branch: Callable[[int], Branch]) -> str:
        branch, brief = open_branch(0), self.language.brief
        draft = self.language.within(branch, self.agent, task)
        for _ in range(self.rounds):
            shown = brief(draft)
            ask = self.prompts.critic(task, shown, own=self.critic is self.agent)
            review = self.step(branch, self.critic, ask, _sources([draft], "pass"))
            if _last_line(review).lstrip("*# ").startswith("CORRECT"):
                break
            ask = self.prompts.revise(task, shown, brief(review), _remembers(self.agent))
            draft = self.step(branch, self.agent, ask, _sources([draft, review], "pass"))
        return draft


class Ensemble(Structure):
    def __init__(self, language: Language, agents: list[Callable], judge: Callable | None):
        super().__init__(language)
        self.agents, self.judge = agents, judge

    def run(self, task: str, open_branch: Callable[[int], Branch]) -> str:
        n = len(self.agents)
        texts = self.language.parallel(self.agents, [task] * n, [open_branch(i) for i in range(n)])
        return self.settle(task, texts, self.judge, open_branch(n))


class Debate(Structure):
    def __init__(self, language: Language, agents: list[Callable], judge: Callable | None, rounds: int):
        super().__init__(language)
        self.agents, self.judge, self.rounds = agents, judge, rounds

    def run(self, task: str, open_branch: Callable[[int], Branch]) -> str:
        n = len(self.agents)
        branches = [open_branch(i) for i in range(n)]
        texts = self.language.parallel(self.agents, [task] * n, branches)
        for _ in range(self.rounds - 1):
            shown = [self.language.brief(t) for t in texts]
            asks = []
            for i, member in enumerate(self.agents):
                branches[i].sources = _sources(texts, "pass")
                others = [t for j, t in enumerate(shown) if j != i]
                asks.append(self.prompts.debate(task, shown[i], others, _remembers(member)))
            texts = self.language.parallel(self.agents, asks, branches)
        return self.settle(task, texts, self.judge, open_branch(n))


class SolveAndTest(Structure):
    def __init__(self, language: Language, agent: Callable, tester: Callable | None, rounds: int):
        super().__init__(language)
        self.agent, self.tester, self.rounds = agent, tester, rounds

    def run(self, task: str, open_branch: Callable[[int], Branch]) -> str:
        branch, language = open_branch(0), self.language
        text = language.within(branch, self.agent, task)
        for _ in range(self.rounds - 1):
            language.local.branch, before = branch, language.branch
            try:
                failures = language.run_tests(text) if language.code_of(text) else ["no program in the reply"]
            finally:
                language.local.branch = before
            if not failures or failures == ["no public tests"]:
                break
            shown, advice = language.brief(text), ""
            if self.tester is not None:
                ask = self.prompts.tester(task, shown, failures)
                advice = self.step(branch, self.tester, ask, _sources([text], "pass"))
            ask = self.prompts.retry(task, shown, failures, language.brief(advice), _remembers(self.agent))
            sources = _sources([text], "tests") + _sources([advice], "pass")
            text = self.step(branch, self.agent, ask, sources)
        return text


def _sources(texts: Sequence[str], how: str) -> Sources:
    return tuple((path_of(t), how) for t in texts if path_of(t))


def _remembers(member: Callable) -> bool:
    return isinstance(member, Agent) and bool(member.conversation)


def _last_line(text: str) -> str:
    lines = text.split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _nothing() -> None:
    return None


def _text(texts: tuple[Any, ...]) -> str:
    """One message out of what a script passed: texts, or lists of texts, joined by blank lines."""
    flat = [t for item in texts for t in (item if isinstance(item, (list, tuple)) else [item])]
    if not flat:
        raise TypeError("an agent needs a text: agent(task)")
    return flat[0] if len(flat) == 1 and isinstance(flat[0], str) else "\n\n".join(map(str, flat))


def _callable(member: Any) -> Callable:
    if not callable(member):
        raise TypeError(f"an agent or structure is needed here, got {type(member).__name__} {str(member)[:40]!r}")
    return member


def _agents(members: Any) -> list[Callable]:
    if callable(members) or isinstance(members, str) or not members:
        raise TypeError("a list of at least one agent is needed here, as in ensemble([solver(), solver()])")
    return [_callable(m) for m in members]


def _rounds(rounds: Any) -> int:
    if not isinstance(rounds, int) or rounds < 1:
        raise ValueError(f"rounds is {rounds!r}; it must be a whole number of at least 1")
    return rounds
