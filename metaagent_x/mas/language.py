"""The script language: what a Designer's script can name. Runs in the contained process, holds nothing worth stealing.

One type rule: agents and structures are both functions from text to text. Whatever needs the policy, a tool or the
grader's notion of equality is a request on the line to the host, which owns budgets, records and verdicts.

Every call has a path: numbers and branch indices from the outside in ("0.2.1": the structure that is number 0 of the
script, its branch 2, call number 1 there). It depends on the script alone, never on which reply came first.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from metaagent_x.mas.line import Branch, Line, Reply, Sources, Stop, path_of, paths_of
from metaagent_x.mas.prompts import PromptSet
from metaagent_x.mas.structures import Agent, Debate, Ensemble, Reflect, SolveAndTest, memories_of
from metaagent_x.tasks.code import extract_code
from metaagent_x.tasks.math import extract_answer

NAMES = (
    "task", "kind", "solver", "critic", "judge", "tester", "agent", "reflect", "ensemble", "debate", "solve_and_test",
    "together", "vote", "agree", "answer_of", "code_of", "run_python", "run_tests", "answer",
)  # fmt: skip
ROLES = ("solver", "critic", "judge", "tester")
SHORT_BYTES = 1024  # such a text has at most 1,024 tokens under any byte-level vocabulary: no need to ask for a brief


class Language:
    """All names of the language, bound to one line, one task and one set of prompts."""

    def __init__(self, line: Line, task: str, kind: str, prompts: PromptSet):
        self.line, self.task, self.kind, self.prompts = line, task, kind, prompts
        self.local = threading.local()
        self.memories = itertools.count(1)

    @property
    def branch(self) -> Branch:
        if not hasattr(self.local, "branch"):
            if threading.current_thread() is not threading.main_thread():
                raise RuntimeError("agents and tools cannot be used in threads of the script's own; together(...) can")
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
        return Reflect(self, _callable(agent), _optional(critic), _rounds(rounds))

    def ensemble(self, agents: Sequence[Callable], judge: Callable | None = None) -> Callable[..., str]:
        return Ensemble(self, _agents(agents), _optional(judge))

    def debate(self, agents: Sequence[Callable], judge: Callable | None = None, rounds: int = 2) -> Callable[..., str]:
        return Debate(self, _agents(agents), _optional(judge), _rounds(rounds))

    def solve_and_test(self, agent: Callable, tester: Callable | None = None, rounds: int = 3) -> Callable[..., str]:
        return SolveAndTest(self, _callable(agent), _optional(tester), _rounds(rounds))

    def together(self, agents: Callable | Sequence[Callable], messages: str | Sequence[str]) -> list[str]:
        members = [_callable(agents)] if callable(agents) else _agents(agents)
        texts = [messages] if isinstance(messages, str) else list(messages)
        count = max(len(members), len(texts)) if texts else 0
        members = members * count if callable(agents) else members
        texts = texts * count if isinstance(messages, str) else texts
        if len(members) != len(texts):
            raise ValueError(f"together: {len(members)} agents but {len(texts)} messages; give one for each, or one")
        number = self.branch.take()
        branches = [Branch((*number, i), self.branch) for i in range(count)]
        return self.parallel(members, texts, branches)

    def parallel(self, members: Sequence[Callable], texts: Sequence[str], branches: Sequence[Branch]) -> list[str]:
        """Applies members[i] to texts[i] in branches[i], all at once; the results in order.

        The host is told when branches open and end: it deals out what is left of the budgets among them (`shares.py`),
        so that it does not matter who is quick. A branch is started when the one before it has sent its first request,
        so that agents made before that are numbered alike in every run.
        """
        remembering = [memory for m in members for memory in memories_of(m)]
        if len(set(remembering)) < len(remembering):
            raise ValueError("the same agent with memory cannot take part twice at once; make a second agent")
        if len(members) <= 1:
            return [self.within(*each) for each in zip(branches, members, texts, strict=True)]
        results: list[Any] = [None] * len(members)

        def work(i: int) -> None:
            self.local.branch = branches[i]
            try:
                results[i] = (True, self.within(branches[i], members[i], texts[i]))
            except BaseException as problem:
                results[i] = (False, problem)
            finally:
                self.line.tell(do="ended", path=_dotted(branches[i].prefix))
                branches[i].mark()

        self.line.tell(do="open", path=_dotted(branches[0].prefix[:-1]), count=len(branches))
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
        path = _dotted(branch.take())
        sources, branch.sources = (*branch.sources, *((p, "pass") for p in paths_of(text))), ()
        reply = self.line.ask(
            branch.mark, do="call", path=path, agent=agent.name, role=agent.role, conversation=agent.conversation,
            messages=[str(text)], sources=sources,
        )  # fmt: skip
        return Reply(reply["text"], path)

    def run_python(self, code: str, stdin: str = "") -> str:
        return self.run_program(code, stdin)[0]

    def run_program(self, code: str, stdin: str = "") -> tuple[str, str]:
        """What `run_python` answers, and the status of the run: "ok", "error", "cpu", ..."""
        path = _dotted(self.branch.take())
        program = self.code_of(code) or str(code)
        ran = self.line.ask(self.branch.mark, do="run_python", path=path, code=program, stdin=str(stdin))
        return ran["text"], ran["status"]

    def run_tests(self, code: str) -> list[str]:
        path = _dotted(self.branch.take())
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
        best = max((c for c in classes if c >= 0), key=lambda c: (classes.count(c), -classes.index(c)), default=None)
        winner = texts[classes.index(best)] if best is not None else ""
        self.line.tell(do="links", links=[[path_of(t), path_of(winner), "vote"] for t in texts if path_of(t)])
        return winner

    def agree(self, texts: Sequence[str]) -> bool:
        if isinstance(texts, str):
            raise TypeError("agree takes a list of texts, got one text")
        return bool(texts) and set(self.classes(list(texts))) == {0}

    def answer_of(self, text: str) -> str:
        return Reply(extract_answer(str(text)) or "", path_of(text))

    def code_of(self, text: str) -> str:
        return Reply(extract_code(str(text)) or "", path_of(text))


def _dotted(path: Sequence[int]) -> str:
    return ".".join(map(str, path))


def _nothing() -> None:
    return None


def _callable(member: Any) -> Callable:
    if not callable(member):
        raise TypeError(f"an agent or structure is needed here, got {type(member).__name__} {str(member)[:40]!r}")
    return member


def _optional(member: Any) -> Callable | None:
    return None if member is None else _callable(member)


def _agents(members: Any) -> list[Callable]:
    if callable(members) or isinstance(members, str) or not members:
        raise TypeError("a list of at least one agent is needed here, as in ensemble([solver(), solver()])")
    return [_callable(m) for m in members]


def _rounds(rounds: Any) -> int:
    if not isinstance(rounds, int) or rounds < 1:
        raise ValueError(f"rounds is {rounds!r}; it must be a whole number of at least 1")
    return rounds
