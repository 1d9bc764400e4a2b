"""Gold answers and expected outputs stay in this process: nothing that a script, a program or an agent gets holds one.

Every secret is a random mark. What crosses to the sandbox and to the engine is written down as it crosses.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from pathlib import Path

import pytest
from attack_programs import PRELUDE, SEARCH

from metaagent_x import config as settings
from metaagent_x.mas import lint, parse_completion
from metaagent_x.rollout.collect import collect
from metaagent_x.rollout.scripted import ScriptedEngine
from metaagent_x.sandbox import client, python, session
from metaagent_x.tasks import code
from metaagent_x.tasks.grader import Grader
from metaagent_x.tasks.task import Rubric, Task

MARK = re.compile(r"MARK-\w+-[0-9a-f]{24}")
DESIGN = """
draft = solve_and_test(solver(), tester(), rounds=2)(task)
note = run_python("print(input())", "3")
together([solver(), agent("second", "You look again.", memory=True)], [task, note + draft])
answer = ensemble([solver(), solver("case analysis")], judge=judge())(draft)
if not agree([draft, answer]):
    answer = vote([draft, answer])
"""
REVERSE = "```python\nprint(input()[::-1])\n```"


def mark(kind: str) -> str:
    return f"MARK-{kind}-{secrets.token_hex(12)}"


def math_task() -> tuple[Task, Rubric]:
    return Task("m/1", "math", "What is 3 + 4?"), Rubric("m/1", "math", gold=(mark("gold"), mark("gold")))


def code_task() -> tuple[Task, Rubric]:
    """Reverse a line. A hidden input is its expected output backwards, so a right program prints the mark by itself."""
    public = ({"kind": "stdin", "input": "abc\n", "output": "cba\n"},)
    expected = [mark("expected") for _ in range(3)]
    hidden = tuple({"kind": "stdin", "input": text[::-1] + "\n", "output": text + "\n"} for text in expected)
    return Task("c/1", "code", "Print the line backwards.", public), Rubric("c/1", "code", tests=hidden)


@pytest.fixture
def crossed(monkeypatch):
    """Everything that is handed to the sandbox, as text, one entry a hand-over; programs of the grader apart."""
    crossed: dict[str, list[str]] = {"script": [], "program": []}
    submit, send, rerun = client.Zygote.submit, session.Session.send, python._Nest.run

    def submitted(self, folder, fds, limits, entry="", **more):
        texts = [] if entry else fds[1:] if more.get("nest") is not None else fds  # the first of a nest is its line
        files = [os.pread(fd, 1 << 24, 0).decode() for fd in texts]
        about = [folder, str(os.listdir(folder)), repr(limits), entry, repr(more)]
        report = submit(self, folder, fds, limits, entry, **more)
        if report is not None:  # else it is busy and asked again
            crossed["script" if entry else "program"].append("\n".join([*about, *files]))
        return report

    def run(self, stdin, stdout):
        crossed["program"].append(str(stdin))
        return rerun(self, stdin, stdout)

    async def sent(self, message):
        crossed["script"].append(json.dumps(message))
        await send(self, message)

    monkeypatch.setattr(client.Zygote, "submit", submitted)
    monkeypatch.setattr(session.Session, "send", sent)
    monkeypatch.setattr(python._Nest, "run", run)
    return crossed


def memory(pid: int) -> bytes:
    """All that a process holds in memory it can write to."""
    parts = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
        for line in maps:
            start, end = (int(x, 16) for x in line.split()[0].split("-"))
            if line.split()[1].startswith("rw"):
                mem.seek(start)
                parts.append(mem.read(end - start))
    return b"\0".join(parts)


async def test_no_secret_crosses_to_scripts_tools_and_agents(crossed):
    script = parse_completion(DESIGN)
    assert script is not None and lint(script) == []
    pairs, grader = [math_task(), code_task()], Grader()
    config = settings.base()
    config.rollout.prompts = "tiny"
    engine = ScriptedEngine(lambda r: DESIGN if r.agent == "designer" else REVERSE if "backwards" in str(r) else "4")
    trees = await collect(
        pairs, {"designer": engine, "executor": engine}, grader, designs=1, executions=2, config=config, step=0
    )
    grader.close()
    executions = [e for tree in trees for design in tree.designs for e in design.executions]
    assert [e.verdict.reason for e in executions if e.verdict] == ["no_answer"] * 2 + ["ok"] * 2
    assert {t.tool for e in executions for t in e.tools} == {"run_python", "run_tests"}

    assert len(crossed["script"]) > 40 and len(engine.requests) > 20
    shown = [*crossed["script"], *crossed["program"], *map(repr, engine.requests), *map(repr, executions)]
    assert engine.chat is not None
    shown += [engine.chat.decode(c.prompt_ids) for e in executions for c in e.calls]
    assert [text for text in shown if MARK.search(text)] == []

    hidden = [test["input"].strip() for test in pairs[1][1].tests]
    seen = [[text for text in hidden if text in program] for program in crossed["program"]]
    assert sorted(filter(None, seen)) == sorted([text] for text in hidden)  # each once, alone, in the grader's runs
    assert not [text for text in hidden if text in "".join(shown[: len(crossed["script"])])]


async def test_no_secret_is_in_the_process_that_others_are_forked_from(crossed):
    pairs, grader = [math_task(), code_task()], Grader()
    await grader.grade(pairs[0][1], r"\boxed{7}")
    assert (await grader.grade(pairs[1][1], REVERSE)).correct
    grader.close()
    zygote = client.zygote()
    proc = Path(f"/proc/{zygote.process.pid}")
    content = memory(zygote.process.pid)
    assert zygote.folder.encode() in content  # the search works
    for text in (content, (proc / "environ").read_bytes(), (proc / "cmdline").read_bytes()):
        assert not MARK.search(text.decode("latin-1")) and not MARK.search(text.decode("latin-1")[::-1])
    environment = dict(v.split("=", 1) for v in (proc / "environ").read_text().split("\0") if v)
    assert environment.keys() <= client.ENVIRONMENT.keys()
    assert list(Path(zygote.folder).rglob("*")) == []


@pytest.mark.parametrize("kind", ["stdin", "call", "assert"])
def test_a_judged_program_finds_one_input_and_no_output(kind):
    """It answers what its memory holds: the input of this test, and nothing of another test or run."""
    given, expected = ([mark(kind) for _ in range(4)] for kind in ("input", "expected"))
    program = PRELUDE + SEARCH
    program += "print(input(), sorted(found))" if kind == "stdin" else "\nf = lambda text: [text, *sorted(found)]"
    tests = [
        {"kind": kind, "input": x, "output": y} if kind == "stdin" else
        {"kind": kind, "input": [x], "output": y, "entry_point": "f"} if kind == "call" else
        {"kind": kind, "input": f"assert f({x!r}) == {y!r}", "output": "", "entry_point": "f"}
        for x, y in zip(given, expected, strict=True)
    ]  # fmt: skip
    verdict = code.judge(program, tests)
    assert [result.status for result in verdict.per_test] == ["wrong_answer"] * 4
    for x, result in zip(given, verdict.per_test, strict=True):
        assert "planted" in result.got and set(MARK.findall(result.got)) == {x}
