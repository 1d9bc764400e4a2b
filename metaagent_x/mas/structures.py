"""Agents and the patterns over them. All are functions from text to text; a pattern is used like an agent."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from metaagent_x.mas.line import Branch, Joined, Sources, passed, path_of, paths_of
from metaagent_x.mas.records import NO_PUBLIC_TESTS

if TYPE_CHECKING:
    from metaagent_x.mas.language import Language


class Agent:
    """One role of the policy. Calling it costs one call; with memory its earlier turns are sent again as token ids."""

    def __init__(self, language: Language, name: str, role: str, memory: bool):
        self.language, self.name, self.role = language, name, role
        self.conversation = f"m{next(language.memories)}" if memory else ""

    def __call__(self, *texts: Any) -> str:
        return self.language.call(self, _text(texts))

    def __repr__(self) -> str:
        return f"<agent {self.name}>"


class Structure(abc.ABC):
    """A pattern over agents; itself used like an agent. Each use opens branches under one number."""

    def __init__(self, language: Language):
        self.language, self.prompts = language, language.prompts

    def __call__(self, *texts: Any) -> str:
        outer = self.language.branch
        number = outer.take()
        sources, outer.sources = outer.sources, ()
        return self.run(_text(texts), lambda i: Branch((*number, i), outer, sources))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    @abc.abstractmethod
    def run(self, task: str, open_branch: Callable[[int], Branch]) -> str:
        """Plays the pattern on a task; `open_branch(i)` starts its branch number i. Returns the final text."""

    def step(self, branch: Branch, member: Callable, message: str, sources: Sources | None = None) -> str:
        """One use of a member inside a branch; `sources` are the completions that the message passes on."""
        return _checked(member, self.language.within(branch, member, message, sources))

    def at_once(self, members: list[Callable], messages: list[str], branches: list[Branch]) -> list[str]:
        """One use of each member, in branches of their own."""
        texts = self.language.parallel(members, messages, branches)
        return [_checked(member, text) for member, text in zip(members, texts, strict=True)]

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
        draft = self.step(branch, self.agent, task)
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
        texts = self.at_once(self.agents, [task] * n, [open_branch(i) for i in range(n)])
        return self.settle(task, texts, self.judge, open_branch(n))


class Debate(Structure):
    def __init__(self, language: Language, agents: list[Callable], judge: Callable | None, rounds: int):
        super().__init__(language)
        self.agents, self.judge, self.rounds = agents, judge, rounds

    def run(self, task: str, open_branch: Callable[[int], Branch]) -> str:
        n = len(self.agents)
        branches = [open_branch(i) for i in range(n)]
        texts = self.at_once(self.agents, [task] * n, branches)
        for _ in range(self.rounds - 1):
            shown = [self.language.brief(t) for t in texts]
            asks = []
            for i, member in enumerate(self.agents):
                branches[i].sources = _sources(texts, "pass")
                others = [t for j, t in enumerate(shown) if j != i]
                asks.append(self.prompts.debate(task, shown[i], others, _remembers(member)))
            texts = self.at_once(self.agents, asks, branches)
        return self.settle(task, texts, self.judge, open_branch(n))


class SolveAndTest(Structure):
    def __init__(self, language: Language, agent: Callable, tester: Callable | None, rounds: int):
        super().__init__(language)
        self.agent, self.tester, self.rounds = agent, tester, rounds

    def run(self, task: str, open_branch: Callable[[int], Branch]) -> str:
        branch, language = open_branch(0), self.language
        text = self.step(branch, self.agent, task)
        for _ in range(self.rounds - 1):
            failures = language.within(branch, language.run_tests, language.code_of(text))
            if not failures or failures == [NO_PUBLIC_TESTS]:
                break
            shown, advice = language.brief(text), ""
            if self.tester is not None:
                ask = self.prompts.tester(task, shown, failures)
                advice = self.step(branch, self.tester, ask, _sources([text], "pass"))
            ask = self.prompts.retry(task, shown, failures, language.brief(advice), _remembers(self.agent))
            sources = _sources([text], "tests") + _sources([advice], "pass")
            text = self.step(branch, self.agent, ask, sources)
        return text


def _checked(member: Callable, text: Any) -> str:
    """What a member gave. A function of the script may have forgotten to return, or return an agent."""
    if not isinstance(text, str):
        name = getattr(member, "__name__", type(member).__name__)
        raise TypeError(f"{name}, a member of a structure, gave {type(text).__name__}; it must give a text")
    return text


def memories_of(member: Any) -> set[str]:
    """Conversations that a use of a member goes on with, those of nested structures included.

    What a function of the script uses is not seen here; the host refuses a conversation that is being answered.
    """
    if isinstance(member, Agent):
        return {member.conversation} - {""}
    if isinstance(member, Structure):
        return {memory for part in vars(member).values() for memory in memories_of(part)}
    return {memory for part in member for memory in memories_of(part)} if isinstance(member, list) else set()


def _sources(texts: Sequence[str], how: str) -> Sources:
    return passed(map(path_of, texts), how)


def _remembers(member: Callable) -> bool:
    return isinstance(member, Agent) and bool(member.conversation)


def _last_line(text: str) -> str:
    lines = text.split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _text(texts: tuple[Any, ...]) -> str:
    """One message out of what a script passed: texts, or lists of texts, joined by blank lines; with their paths."""
    flat = [t for item in texts for t in (item if isinstance(item, (list, tuple)) else [item])]
    if not flat:
        raise TypeError("an agent needs a text: agent(task)")
    if any(callable(t) for t in flat):  # as text it would be a memory address, another one in every run
        raise TypeError("an agent or structure was passed where a text is needed; apply it first: agent(task)")
    if len(flat) == 1 and isinstance(flat[0], str):
        return flat[0]
    message = Joined("\n\n".join(map(str, flat)))
    message.paths = tuple(path for text in flat for path in paths_of(text))
    return message
