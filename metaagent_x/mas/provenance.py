"""Does the final answer come from an agent? Decided by the host on its own records .

An agent that repeats what a script told it has said it: that cannot be told from agreement. It is counted instead
(`whispered`), and can be forbidden.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence

from metaagent_x.mas.records import Call, Execution, ToolRun
from metaagent_x.mas.tools import key_of
from metaagent_x.tasks.code import extract_code
from metaagent_x.tasks.math import extract_answer
from metaagent_x.tasks.task import Task

WHISPER_CHARS = 3


def as_said(task: Task, execution: Execution) -> str:
    """The text to grade: the completion (or output) itself whose answer the final one is, else the answer unchanged.

    So a comment that the script writes into an agent's program, which could read it, is not graded. Of several such
    completions it is one that has the answer to the letter if there is one, and the last of those. A bare answer, as
    `answer_of`, `code_of` and `run_python` give it, stands for its completion, or for what was printed, in a box.
    """
    kind, calls = task.kind, execution.calls
    if any(call.text == execution.answer for call in calls):
        return execution.answer
    answer = whole(kind, execution.answer, calls)
    key = key_of(kind, answer)
    if key is not None:
        said = [*(run.output for run in _own_runs(task, execution)), *(call.text for call in calls)]
        same = [text for text in said if key_of(kind, text) == key]
        exact = [text for text in same if _given(kind, text) == _given(kind, answer)]
        return (exact or same or [answer])[-1]
    bare = answer.strip()
    if kind == "math" and bare and any(run.output.strip() == bare for run in _own_runs(task, execution)):
        return "\\boxed{" + bare + "}"
    return answer


def whole(kind: str, text: str, calls: Sequence[Call]) -> str:
    """The last completion whose answer (box, program) is exactly this text, if it holds none itself; else the text."""
    bare = text.strip()
    if not bare or _given(kind, text):
        return text
    return next((call.text for call in reversed(calls) if _given(kind, call.text) == bare), text)


@functools.lru_cache(maxsize=1024)
def _given(kind: str, text: str) -> str:
    """What stands in the box of a text, or its program; "" if there is none."""
    return ((extract_code if kind == "code" else extract_answer)(text) or "").strip()


def from_agents(task: Task, execution: Execution) -> bool:
    """True if the extracted answer is that of a completion, or of what a program of an agent printed.

    Programs are compared by their syntax, other answers as text: 0.5 is not 1/2 here. What was printed counts as a
    whole or by its last line. A text without an answer passes only if an agent said exactly this text.
    """
    kind, final = task.kind, key_of(task.kind, execution.answer)
    if final is None:
        return any(call.text == execution.answer for call in execution.calls)
    if any(key_of(kind, call.text) == final for call in execution.calls):
        return True
    printed = (run.output.strip() for run in _own_runs(task, execution))
    return any(final in (text, text.rpartition("\n")[2].strip(), key_of(kind, text)) for text in printed)


def _own_runs(task: Task, execution: Execution) -> Iterator[ToolRun]:
    """The runs of `run_python` whose output is the agents' doing: the script chose neither the program nor its input.

    The program is the `code_of` of a completion, to the letter: a program can read its own comments and line numbers.
    The input is empty, or as a whole one of: the task, a public test's input, a completion, its answer or its program.
    Any other text, however it is disguised, could tell the program what to print. So could the output of another run:
    a script that may feed one program with another's output computes what it likes by its choice of the programs. (A
    script that wants a program run on a value of its own asks an agent to write the value into the program.)
    """
    texts = [call.text for call in execution.calls]
    codes = [extract_code(text) or "" for text in texts]
    answers = [extract_answer(text) or "" for text in texts]
    tests = [str(test.get("input", "")) for test in task.public_tests]
    inputs = {form for text in ("", task.prompt, *tests, *texts, *codes, *answers) for form in (text, text.strip())}
    programs = {code.strip() for code in codes if code}
    for run in execution.tools:
        known = run.stdin in inputs or run.stdin.removesuffix("\n") in inputs
        if run.tool == "run_python" and run.program.strip() in programs and known:
            yield run


def whispered(task: Task, execution: Execution) -> bool:
    """True if no agent said the answer that had not read it in its prompt: the script must have put it there.

    Of answers of 3 characters or more, with a digit, that do not stand in the task: a shorter one stands in many a text
    by chance, and words stand in our own prompts too. An agent's program that printed the answer and does not spell it
    has found it.
    """
    answer = _given(task.kind, execution.answer)
    if len(answer) < WHISPER_CHARS or answer in task.prompt or not any(c.isdigit() for c in answer):
        return False
    told = [answer in _heard(execution.calls[: i + 1]) for i, c in enumerate(execution.calls) if answer in c.text]
    said = "\n".join(call.text for call in execution.calls)  # a program may stand in a tool call, in JSON
    printed = [run for run in execution.tools if run.tool == "run_python" and answer in run.output]
    programs = {run.program.strip() for run in printed if answer not in run.program}
    found = any(form in said for p in programs for form in (p, json.dumps(p, ensure_ascii=False)[1:-1]))
    return bool(told) and all(told) and not found


def _heard(calls: Sequence[Call]) -> str:
    """What the agent of the last of these calls had read by then, in its role or from others."""
    last = calls[-1]
    turns = [c for c in calls if c is last or (c.conversation and c.conversation == last.conversation)]
    return "\n".join((last.role_prompt, *(message for turn in turns for message in turn.messages)))


def answer_call(execution: Execution) -> Call | None:
    """The answer's call: the last one with the same text, else with the same answer, else the last."""
    calls = execution.calls
    for same in (
        lambda call: call.text == execution.answer,
        lambda call: _same_key(call.text, execution.answer),
    ):
        found = [call for call in calls if same(call)]
        if found:
            return found[-1]
    return calls[-1] if calls else None


def _same_key(a: str, b: str) -> bool:
    return any((key := key_of(kind, a)) is not None and key == key_of(kind, b) for kind in ("math", "code"))
