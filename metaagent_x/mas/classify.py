"""Which pattern an execution used, from what ran and not from names."""

from __future__ import annotations

import itertools
from collections import defaultdict

from metaagent_x.mas.messages import order
from metaagent_x.mas.provenance import answer_call
from metaagent_x.mas.records import OVERLAP_CHARS, Call, Execution
from metaagent_x.mas.tools import code_key
from metaagent_x.tasks.code import extract_code
from metaagent_x.tasks.math import extract_answer

STRUCTURES = ("invalid", "single", "ensemble", "debate", "solver-tester", "reflection", "other")
PAPER_NAMES = {"debate": "ensemble", "solver-tester": "reflection"}  # the paper's table has no rows for these

Edges = dict[str, dict[str, str]]  # path of a call -> path of a completion that it knew -> how


def classify(execution: Execution) -> str:
    """The pattern nearest to the answer, going back along edges from the call that gave the answer.

    An edge leads from a completion to a later call that knew it: a structure reports it, or at least 24 characters of
    it stand in that call's messages, or it is an earlier turn of the same memory. Patterns, in this order at each call:

    - "ensemble": it won a vote over two or more texts, or read two or more candidates that did not know each other.
      "debate": the candidates had been shown one another's earlier texts.
    - "solver-tester": it knew a program that had been tested.
    - "reflection": it knew an earlier version of its text, and what another call said of that.

    No call at all is "invalid". One completion, or one agent alone with its memory, is "single". What is left is
    "other": chains in which nothing is revised, plans, parts put together.
    """
    if not execution.calls:
        return "invalid"
    graph = _Graph(execution)
    seen, front, alone = set(), [graph.last], True
    while front:
        for path in front:
            pattern = graph.pattern(path)
            if pattern:
                return pattern
            alone = alone and set(graph.edges[path].values()) <= {"turn"}
        seen.update(front)
        front = sorted({source for path in front for source in graph.edges[path]} - seen)
    return "single" if alone else "other"


def lineage(execution: Execution) -> tuple[Edges, set[str]]:
    """What each call knew (path -> {path of a completion: how}), and the paths on the answer's way: its own call and,
    going back, every call that one of them knew. Of a vote, only the winner."""
    if not execution.calls:
        return {}, set()
    graph = _Graph(execution)
    way: set[str] = set()
    front = [graph.last]
    while front:
        path = front.pop()
        if path not in way:
            way.add(path)
            front += graph.edges[path]
    return dict(graph.edges), way


def paper_name(structure: str) -> str:
    """The row of the paper's table in which a structure is counted."""
    return PAPER_NAMES.get(structure, structure)


class _Graph:
    """Who knew what: calls by path, edges, votes, and programs that were run."""

    def __init__(self, execution: Execution):
        self.calls = {call.path: call for call in execution.calls}
        self.edges = edges_of(execution)
        self.votes: dict[str, set[str]] = defaultdict(set)  # winner -> members
        for member, winner, how in execution.links:
            if how == "vote":
                self.votes[winner].add(member)
        self.tested = {code_key(run.program) for run in execution.tools if run.tool == "run_tests"}
        self.runs = [run for run in execution.tools if run.tool == "run_python"]
        given = [path for path, _, how in execution.links if how == "answer" and path in self.calls]
        last = self.calls[given[-1]] if given else answer_call(execution)
        assert last is not None  # there are calls
        self.last = last.path

    def pattern(self, path: str) -> str:
        """The pattern that ends at a call, "" if none does."""
        siblings = self._voted(path) or self._candidates(path)
        if siblings:
            return "debate" if self._crossed(siblings) else "ensemble"
        if self._is_repair(path):
            return "solver-tester"
        return "reflection" if self._is_revision(path) else ""

    def _voted(self, path: str) -> list[str]:
        """The members of a vote that this text won (or that nobody won); [] if there were not two."""
        undecided = self.votes[""] if path in self.votes[""] else set()
        members = sorted(self.votes[path] | undecided)
        return members if len(members) > 1 else []

    def _candidates(self, path: str) -> list[str]:
        """The texts among which this call decided; [] if it read fewer than two.

        They are those given to it as a judge, else the versions of its text that knew none of the others.
        """
        sources = self.edges[path]
        judged = [s for s, how in sources.items() if how == "judge"]
        first = [s for s in sources if not self.edges[s].keys() & sources.keys() and self._is_version(s, path)]
        return next((found for found in (judged, first) if len(found) > 1), [])

    def _crossed(self, siblings: list[str]) -> bool:
        """True if two of them answered each other: each was shown an earlier text of the other's author."""
        for i, j in itertools.combinations(siblings, 2):
            both = self.edges[i].keys() & self.edges[j].keys()
            for x, y in itertools.product(self.edges[j], self.edges[i]):
                apart = x != y and x not in self.edges[y] and y not in self.edges[x]
                theirs = self._author(x) == self._author(i) and self._author(y) == self._author(j)
                # Of one author's texts none is the other's, unless both were shown both.
                if apart and theirs and (self._author(i) != self._author(j) or {x, y} <= both):
                    return True
        return False

    def _is_repair(self, path: str) -> bool:
        """True if the call knew a program that `run_tests` had run; or wrote one after `run_python` had run one that it
        was shown, or after its author or a reviewer had used that tool."""
        sources = self.edges[path]
        if any(how == "tests" or self._program(source) in self.tested for source, how in sources.items()):
            return True
        shown = [source for source, how in sources.items() if how != "turn"]
        ran = {code_key(run.program) for run in self.runs}
        tried = any(self._program(source) in ran or self._used_tool(source) for source in shown)
        tried = tried or (self._used_tool(path) and any(map(self._program, shown)))
        return tried and self._program(path) is not None

    def _used_tool(self, path: str) -> bool:
        """True if something was run between the turns of this memory."""
        turns = sorted(map(order, self._turns(path)))
        return any(turns[0] < order(run.path) < order(path) for run in self.runs if turns)

    def _is_revision(self, path: str) -> bool:
        """True if the call was shown a review, and knew the text that the review is about, a version of its own."""
        sources = self.edges[path]
        return any(
            how != "turn" and about != "turn" and draft in sources and self._is_version(draft, path)
            for review, how in sources.items()
            for draft, about in self.edges[review].items()
        )

    def _is_version(self, source: str, path: str) -> bool:
        """False for what cannot be an earlier form of a call's text: it holds no answer, unlike that, and is another
        agent's (a plan, a hint, a part). A text that was cut may have been about to give one."""
        same = self._author(source) == self._author(path)
        return same or self._answers(source) or not self._answers(path) or self.calls[source].finish_reason == "length"

    def _turns(self, path: str) -> list[str]:
        """Earlier turns of the same memory."""
        return [source for source, how in self.edges[path].items() if how == "turn"]

    def _author(self, path: str) -> tuple[str, str]:
        return self.calls[path].agent, self.calls[path].role_prompt

    def _answers(self, path: str) -> bool:
        text = self.calls[path].text
        return bool(extract_answer(text) or extract_code(text))

    def _program(self, path: str) -> str | None:
        program = extract_code(self.calls[path].text)
        return code_key(program) if program else None


def edges_of(execution: Execution) -> Edges:
    """Who knew whose text; `classify` says what makes an edge. `how` is that of a link, or "turn" within a memory."""
    edges: Edges = defaultdict(dict)
    paths = {call.path for call in execution.calls}
    for source, target, how in execution.links:
        if source in paths and target in paths and how != "vote":
            edges[target][source] = how
    for i, call in enumerate(execution.calls):  # in the order of their paths: what stands earlier can be known
        known, earlier = edges[call.path], execution.calls[:i]
        turns = [c for c in earlier if call.conversation and c.conversation == call.conversation]
        for turn in turns:
            known.setdefault(turn.path, "turn")
        if call.messages != execution.calls[0].messages:  # what the first call was told holds nobody's text
            grams = _grams(_whole_texts("\n".join(call.messages), earlier, known))
            shared = [c.path for c in earlier if c.path not in known and _shares(c, grams, earlier)]
            known |= dict.fromkeys(shared, "pass")
        if turns and set(known.values()) == {"turn"}:  # told nothing new but what a tool said: it goes on with the same
            known |= {source: how for source, how in edges[turns[-1].path].items() if how != "turn"}
    return edges


def _whole_texts(shown: str, earlier: list[Call], known: dict[str, str]) -> str:
    """Notes whose whole text stands in a prompt, and returns the prompt without them.

    The longest go first, so that what a review quotes is not taken for the draft itself. Of equal texts as many are
    noted as there are, the nearest ones.
    """
    for text in sorted({call.text.strip() for call in earlier}, key=lambda text: (-len(text), text)):
        if len(text) < OVERLAP_CHARS or text not in shown:
            continue
        authors = [c.path for c in earlier if c.text.strip() == text and text not in _prompt(c)]
        if not known.keys() & set(authors):
            known |= dict.fromkeys(authors[-shown.count(text) :], "pass")
        if authors:
            shown = shown.replace(text, "\n")
    return shown


def _shares(source: Call, grams: set[str], earlier: list[Call]) -> bool:
    """True if the prompt of these grams shows a part of a completion that stood neither in the completion's own prompt
    nor in another one."""
    own, others = _prompt(source), [c.text for c in earlier if c.text != source.text]
    shared = grams & _grams(source.text)
    return any(gram not in own and not any(gram in text for text in others) for gram in shared)


def _grams(text: str) -> set[str]:
    return {text[i : i + OVERLAP_CHARS] for i in range(len(text) - OVERLAP_CHARS + 1)}


def _prompt(call: Call) -> str:
    return "\n".join((call.role_prompt, *call.messages))
