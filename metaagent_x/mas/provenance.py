"""Does the final answer come from an agent? Decided by the host on its own records (design section 5)."""

from __future__ import annotations

import re

from metaagent_x.mas.records import Call, Execution
from metaagent_x.mas.tools import code_key, key_of
from metaagent_x.tasks.code import extract_code


def from_agents(kind: str, execution: Execution) -> bool:
    """True if the extracted answer equals that of a completion, or of the output of a tool run of such a program.

    A tool run does not count if the answer stood in its input already: the script chose the input, and an agent that
    says `print(input())` has not found what it prints. A text without an answer passes only if an agent said exactly
    this text.
    """
    final = key_of(kind, execution.answer)
    if final is None:
        return any(call.text == execution.answer for call in execution.calls)
    return any(key_of(kind, call.text) == final for call in execution.calls) or _from_tools(kind, execution, final)


def _from_tools(kind: str, execution: Execution, final: str) -> bool:
    programs = {code_key(code) for call in execution.calls if (code := extract_code(call.text))}
    for run in execution.tools:
        if run.tool == "run_python" and code_key(run.program) in programs:
            output = run.output.strip()
            lines = output.split("\n")
            found = final in (output, lines[-1].strip(), key_of(kind, output))
            if found and not _was_fed_in(kind, execution.answer, final, run.stdin):
                return True
    return False


def _was_fed_in(kind: str, answer: str, final: str, stdin: str) -> bool:
    """True if the answer stands in the input: a program whatever its layout, a number or word not as part of another.

    "7" stands in "so 7." and in "7.0", but not in "17" or "7.5".
    """
    if kind == "code":
        program = extract_code(answer) or answer
        return key_of(kind, stdin) == final or "".join(program.split()) in "".join(stdin.split())
    before = r"(?<!\d)(?<!\d\.)" if final[0].isdigit() else r"(?<![A-Za-z])" if final[0].isalpha() else ""
    after = r"(?!\d)(?!\.\d*[1-9])" if final[-1].isdigit() else r"(?![A-Za-z])" if final[-1].isalpha() else ""
    wanted = re.compile(before + re.escape(final) + after)
    return any(wanted.search(text) for text in (stdin, stdin.replace(",", "")))


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
