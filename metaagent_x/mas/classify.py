"""Which pattern an execution used, from what ran and not from names (design section 5)."""

from __future__ import annotations

from collections import defaultdict

from metaagent_x.mas.provenance import answer_call
from metaagent_x.mas.records import Call, Execution
from metaagent_x.mas.tools import code_key
from metaagent_x.tasks.code import extract_code

OVERLAP_CHARS = 24
STRUCTURES = ("invalid", "single", "ensemble", "debate", "solver-tester", "reflection", "other")


def classify(execution: Execution) -> str:
    """The pattern nearest to the answer.

    An edge leads from a completion to a later call that was shown it: reported by a structure, or seen as at least 24
    characters of it in that call's messages which stood neither in its own prompt nor in another completion. Starting
    at the answer's call and going back along edges: a vote or a judge over two or more siblings is "ensemble"
    ("debate" if the siblings had been shown one another's texts); a program revised after a test run is
    "solver-tester"; a text revised after another agent read it is "reflection". No call is "invalid"; one completion
    on the path is "single"; anything else is "other".
    """
    if not execution.calls:
        return "invalid"
    by_path = {call.path: call for call in execution.calls}
    edges = _edges(execution, by_path)
    votes = [source for source, target, how in execution.links if how == "vote" and not target and source in by_path]
    last = answer_call(execution)
    assert last is not None  # there are calls
    seen, front = set(), [last.path]
    while front:
        for path in front:
            pattern = _pattern(path, edges, votes, by_path)
            if pattern:
                return pattern
        seen.update(front)
        front = sorted({source for path in front for source in edges[path]} - seen)
    return "single" if not edges[last.path] else "other"


def _edges(execution: Execution, by_path: dict[str, Call]) -> dict[str, dict[str, str]]:
    """target path -> source path -> how."""
    edges: dict[str, dict[str, str]] = defaultdict(dict)
    for source, target, how in execution.links:
        if target in by_path and source in by_path:
            edges[target][source] = how
    texts = {call.text for call in execution.calls}
    for call in execution.calls:
        shown = "\n".join(call.messages)
        for other in execution.calls:
            known = other.path in edges[call.path] or call.path in edges[other.path]
            if other is not call and not known and _shares(other, shown, [t for t in texts if t != other.text]):
                edges[call.path][other.path] = "pass"
    tested = {code_key(run.program) for run in execution.tools if run.tool == "run_tests"}
    for sources in edges.values() if tested else ():
        for source, how in sources.items():
            program = extract_code(by_path[source].text)
            if how == "pass" and program and code_key(program) in tested:
                sources[source] = "tests"
    return edges


def _shares(source: Call, shown: str, others: list[str]) -> bool:
    """At least 24 characters of the completion, and of no other text, stand in the prompt."""
    text, own = source.text, "\n".join(source.messages)
    for start in range(0, len(text) - OVERLAP_CHARS + 1, OVERLAP_CHARS // 2):
        piece = text[start : start + OVERLAP_CHARS]
        if piece in shown and piece not in own and not any(piece in other for other in others):
            return True
    return False


def _pattern(path: str, edges: dict[str, dict[str, str]], votes: list[str], by_path: dict[str, Call]) -> str:
    siblings: list[str] = []
    if path in votes and len(set(votes)) > 1:
        siblings = sorted(set(votes))
    else:
        sources = edges[path]
        judged = [source for source, how in sources.items() if how == "judge"]
        independent = [s for s in sources if not any(s in edges[other] for other in sources)]
        # Two or more texts, none of which saw another, read by one call: a judge, whatever it is called.
        if len(judged) > 1:
            siblings = judged
        elif len(independent) > 1 and not _is_revision(path, edges, by_path):
            siblings = independent
    if len(siblings) > 1:
        return "debate" if _crossed(siblings, edges) else "ensemble"
    if "tests" in edges[path].values():
        return "solver-tester"
    return "reflection" if _is_revision(path, edges, by_path) else ""


def _crossed(siblings: list[str], edges: dict[str, dict[str, str]]) -> bool:
    """True if two siblings were shown the same two earlier texts, neither of which had seen the other."""
    for i, first in enumerate(siblings):
        for second in siblings[i + 1 :]:
            shared = sorted(edges[first].keys() & edges[second].keys())
            for a in shared:
                if any(a != b and a not in edges[b] and b not in edges[a] for b in shared):
                    return True
    return False


def _is_revision(path: str, edges: dict[str, dict[str, str]], by_path: dict[str, Call]) -> bool:
    """True if the call was shown a review, and the review's call had been shown a text that the call knows."""
    conversation = by_path[path].conversation
    for review in edges[path]:
        for draft in edges[review]:
            if draft in edges[path] or (conversation and by_path[draft].conversation == conversation):
                return True
    return False
