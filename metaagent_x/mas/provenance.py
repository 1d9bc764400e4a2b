"""Does the final answer come from an agent? Decided by the host on its own records (design section 5)."""

from __future__ import annotations

from metaagent_x.mas.records import Call, Execution
from metaagent_x.mas.tools import code_key, key_of
from metaagent_x.tasks.code import extract_code


def from_agents(kind: str, execution: Execution) -> bool:
    """True if the extracted answer equals that of a completion, or of the output of a tool run of such a program.

    A text without an answer passes only if an agent said exactly this text.
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
            if final in (output, lines[-1].strip(), key_of(kind, output)):
                return True
    return False


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
