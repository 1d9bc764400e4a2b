"""Which conversations of a right execution should be learned, and the form in which they are kept. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from metaagent_x.mas.parse import THOUGHT
from metaagent_x.mas.records import Call
from metaagent_x.rollout.chat import MARKERS
from metaagent_x.tasks.task import Verdict

NO_ANSWER = ("no_answer", "no_code")  # the grader found nothing to grade: a critic, a plan, a program for a tool
BROKEN = ("unclosed_fence", "syntax_error")


def conversations(calls: Sequence[Call]) -> list[list[Call]]:
    """The calls of an execution by conversation, in the order of their first calls: one call each but for agents with
    memory."""
    rows: dict[str, list[Call]] = {}
    for call in calls:
        rows.setdefault(f"memory {call.conversation}" if call.conversation else f"call {call.path}", []).append(call)
    return list(rows.values())


def why_left_out(
    turns: Sequence[Call], verdicts: Mapping[str, Verdict], edges: Mapping[str, Mapping[str, str]], way: Collection[str]
) -> str:
    """Why a conversation of a right execution should not be learned; "" if it should.

    A right execution holds wrong texts: the member that a vote overruled, the draft before its revision, the critic who
    took that for right. So a text that states an answer must be right itself, wherever it stood. One that states none
    is learned for what it did: it lies on the answer's way, or was about a text that does (the critic who was content),
    and a critic must have said what the grader says of the text before it.

    Args:
      turns: its calls. verdicts: path -> the grader's verdict on that call's text alone.
      edges, way: of `mas.classify.lineage`.
    """
    for call in turns:
        if call.finish_reason == "length":
            return "cut off"
        if call.prompt_cut:
            return "prompt cut"
        if reason := unfit(call.text):
            return reason
        verdict = verdicts[call.path]
        if verdict.void:
            return "grader failed"
        if verdict.reason in BROKEN:
            return "broken form"
        if verdict.reason not in NO_ANSWER and not verdict.correct:
            return "own answer wrong"
    if any(verdicts[call.path].reason not in NO_ANSWER for call in turns):
        return ""
    for call in turns:
        said = reviewed(call.text)
        about = [p for p in edges.get(call.path, {}) if p in verdicts and verdicts[p].reason not in NO_ANSWER]
        if said is not None and about and said != verdicts[about[-1]].correct:
            return "wrong review"
    near = {path for call in turns for path in (call.path, *edges.get(call.path, {}))}
    return "" if near & set(way) else "not on the answer's way"


def learned(text: str) -> str:
    """What is kept of a reply: the student answers without thinking first, so thoughts that begin it are left out."""
    return THOUGHT.sub("", text).lstrip("\n")


def unfit(text: str) -> str:
    """Why a reply is none that the student could give (`metaagent_x.examples` refuses it); "" if it could."""
    kept = learned(text)
    if not kept.strip():
        return "empty"
    return "holds a template marker" if any(marker in kept for marker in MARKERS) else ""


def reviewed(text: str) -> bool | None:
    """What a critic's last line says: CORRECT, WRONG, or (None) neither."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    word = lines[-1].lstrip("*# ") if lines else ""
    return True if word.startswith("CORRECT") else False if word.startswith("WRONG") else None


def chat_messages(system: str, turns: Sequence[str]) -> list[dict[str, str]]:
    """The common chat form: the system turn, if any, then user and assistant by turns (`learned`)."""
    head = [{"role": "system", "content": system}] if system else []
    return head + [
        {"role": "assistant", "content": learned(text)} if i % 2 else {"role": "user", "content": text}
        for i, text in enumerate(turns)
    ]
