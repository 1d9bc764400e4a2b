"""Many hostile programs at once, and what becomes of the others."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import time
from pathlib import Path

import pytest
from attack_scene import POOLS

from metaagent_x.mas import Budget, Call, CallRequest, Execution, Script, run_script, tools
from metaagent_x.sandbox import Limits, client, run_python
from metaagent_x.tasks.task import Task

QUICK = Limits(cpu_s=1, wall_s=60, memory_mb=100)
HONEST = "answer = solver()(run_python('print(6 * 7)'))"
HOSTILE = {  # script, how it may end
    "while True: pass": "cpu",
    "n = 10 ** 10 ** 8": "cpu",
    "a = []\nwhile True: a.append(' ' * 10**6)": "memory",
    "import os\nwhile True: os.fork() or os._exit(0)": "crash",
    "import os\nos.kill(os.getpid(), 9)": "crash",
    "import os, time\nos.kill(os.getpid(), 19)\ntime.sleep(60)": "wall",
    "import os\nfor n in range(10**7): open(str(n), 'w').close()": "crash cpu",
    "import os\nos.write(3, b'x' * (3 << 20))": "crash",
}


async def run(script: str, wall_s: float = 60.0) -> Execution:
    async def chat(request: CallRequest) -> Call:
        text = rf"\boxed{{{request.messages[0].strip()}}}"
        return Call(request.path, request.agent, "", (1,), (1,), (-1.0,), "stop", 0, text)

    budget = Budget(wall_s=wall_s, cpu_s=1, memory_mb=100)
    return await run_script(Script(script, script), Task("t/1", "math", "What is 6 * 7?"), chat, budget=budget)


def left() -> tuple[int, int, list[str], list[str]]:
    """Descriptors and threads of this process; folders and children of the zygote."""
    zygote = client.zygote()
    pid = zygote.process.pid
    threads = [t for t in threading.enumerate() if not t.name.startswith(POOLS)]
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return len(os.listdir("/proc/self/fd")), len(threads), os.listdir(zygote.folder), children


def loops_leave_nothing(loops: int, quick: int) -> None:
    run_python("print(1)")
    before = left()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        hogs = list(pool.map(lambda code: run_python(code, limits=QUICK).status, ["while True: pass"] * loops))
        others = list(pool.map(lambda i: run_python(f"print({i})").stdout, range(quick)))
    assert hogs == ["cpu"] * loops and others == [f"{i}\n" for i in range(quick)]
    for _ in range(200):  # the kernel takes a moment
        if left() == before:
            break
        time.sleep(0.01)
    assert left() == before and before[2:] == ([], [])


@pytest.mark.fault("B016")
def test_loops_leave_nothing_behind():
    """TencentCloudADP/youtu-agent#256: threads of timed-out jobs stayed alive until the run stood still."""
    loops_leave_nothing(3, 30)


@pytest.mark.slow
@pytest.mark.fault("B016")
def test_many_loops_leave_nothing_behind():
    loops_leave_nothing(80, 50)


@pytest.mark.fault("B022")
async def test_hostile_and_honest_scripts_side_by_side():
    """LiveCodeBench/LiveCodeBench PR#103: one bomb took its neighbours with it."""
    zygote = client.zygote().process.pid
    hostile = [run(script, 2.0 if "wall" in ends else 60.0) for script, ends in HOSTILE.items()]
    done = await asyncio.gather(*hostile, *(run(HONEST) for _ in range(24)))
    ends = [e.status for e in done[: len(HOSTILE)]]
    assert [end for end, allowed in zip(ends, HOSTILE.values(), strict=True) if end not in allowed] == [], ends
    assert {(e.status, e.answer) for e in done[len(HOSTILE) :]} == {("ok", r"\boxed{42}")}
    assert client.zygote().process.pid == zygote


@pytest.mark.fault("B014")
@pytest.mark.parametrize("hog", ["n = 10 ** 10 ** 8", "run_python('n = 10 ** 10 ** 8')"])
async def test_others_go_on_while_one_number_is_computed(hog, monkeypatch):
    """huggingface/smolagents#2473: the power held the interpreter's lock, and with it every thread of the process."""
    monkeypatch.setattr(tools, "LIMITS", QUICK)
    hostile = asyncio.ensure_future(run(hog))
    for _ in range(10):
        honest = await run(HONEST)
        assert honest.answer == r"\boxed{42}" and not hostile.done()
    assert (await hostile).status == ("cpu" if hog.startswith("n") else "ok")
