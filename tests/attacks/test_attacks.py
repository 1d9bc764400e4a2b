"""Programs that try to escape, to hurt others, or never to end: as a script and as tool code, beside a neighbour."""

import asyncio
import json
import random

import pytest
from attack_messages import LIES, MALFORMED_MESSAGES
from attack_programs import ENDS, FINDS_NOTHING, REFUSED
from attack_scene import execute, in_a_nest


def named(attacks):
    cases = [pytest.param(a, id=a.name, marks=[pytest.mark.slow] if a.slow else []) for a in attacks]
    return pytest.mark.parametrize("attack", cases)


@named(REFUSED)
@pytest.mark.fault("B017")
@pytest.mark.fault("B027")
async def test_what_is_refused(scene, attack):
    """openai/codex#4337: a grandchild in a session of its own outlived the timeout. HackSoftware/HackGrader PR#33: a
    fork bomb took the server down."""
    assert (await scene.run(attack)).problems == []


@named(FINDS_NOTHING)
@pytest.mark.fault("B015")
async def test_what_is_not_there_to_be_found(scene, attack):
    """huggingface/smolagents#2094: walks from a value to the objects of the process that runs the code."""
    assert (await scene.run(attack)).problems == []


@pytest.mark.slow
@named(ENDS)
@pytest.mark.fault("B014")
@pytest.mark.fault("B018")
@pytest.mark.fault("B021")
@pytest.mark.fault("B022")
@pytest.mark.fault("B023")
@pytest.mark.fault("B024")
@pytest.mark.fault("B027")
async def test_how_it_ends(scene, attack):
    """huggingface/smolagents#2473: one big-integer power held all threads. mito-ds/mito#1527: waits for input.
    cuga-project/cuga-agent#629: exit() ended the host. LiveCodeBench PR#103, PR#56: memory bombs, deep recursion,
    segmentation faults. verl-project/verl PR#7267: a child that ignored SIGTERM. pushkar8723/aurora#11: fork bombs."""
    assert (await scene.run(attack)).problems == []


@pytest.mark.slow
@named([a for a in [*REFUSED, *FINDS_NOTHING, *ENDS] if a.tool])
async def test_in_a_nest_as_in_a_process_of_its_own(scene, attack, monkeypatch):
    monkeypatch.setattr(scene, "run_program", in_a_nest)
    assert (await scene.run(attack)).problems == []


@named(MALFORMED_MESSAGES)
async def test_malformed_messages_end_the_script(scene, attack):
    assert (await scene.run(attack)).problems == []


@named(LIES)
async def test_lies_on_the_line_change_nothing(scene, attack):
    assert (await scene.run(attack)).problems == []


VALUES = (
    None, True, -1, 0, 1, 3, 2**70, 1.5, float("nan"), "", "0", "1", "0.0", "0.0.0", "0.1.0", "m1", "call", "9999.9999",
    "\ud800", "\0", "x" * 3000, "\\boxed{9^{9^9}}", "\\boxed{" * 300, "```python\n" + "(" * 3000 + "\n```", "-" * 9000,
    [], ["x"], [[]], [["0", "pass"]], [["0", "1", "vote"]], [["0", "", "answer"]], ["\\boxed{1}", "\\boxed{1/1}"], {},
)  # fmt: skip
REQUESTS = ("call", "run_python", "run_tests", "brief", "classes", "links", "open", "ended", "end")


def random_message(random: random.Random) -> str:
    """Mostly in good form, so that it gets past the first check."""
    path = random.choice(("0", "1", "2", "3.0", "0.0.0", "0.0.1", "0.1.0", "1.0.1"))
    fields = {
        "do": random.choice(REQUESTS), "id": random.randrange(99), "path": path, "agent": "a", "role": "r", "text": "x",
        "conversation": random.choice(("", "m1")), "messages": ["x"], "sources": [], "texts": ["x", "y"], "links": [],
        "count": 2, "code": "print(1)", "stdin": "", "answer": r"\boxed{7}",
    }  # fmt: skip
    for name in random.sample(sorted(fields), random.randrange(4)):
        fields[name] = random.choice(VALUES)
    return json.dumps(fields)


@pytest.mark.parametrize("seed", range(3))
async def test_random_messages_are_answered_or_end_the_script(seed):
    """Never an exception here, never a void execution: that would be a way out of a bad reward."""
    draw, scripts = random.Random(seed), []
    for _ in range(24):
        lines = [random_message(draw) for _ in range(8)]
        scripts.append(f"""
import os, socket, time
line = socket.socket(fileno=os.dup(3))
for text in {lines!r}:
    line.sendall(text.encode() + b"\\n")
    time.sleep(0.02)
os._exit(0)
""")
    done = await asyncio.gather(*(execute(script, "What is 3 + 4?", lambda _: r"\boxed{7}") for script in scripts))
    assert {e.status for e in done} <= {"ok", "crash", "budget"}
