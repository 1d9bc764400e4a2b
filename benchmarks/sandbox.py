"""Cost of containment: scripts and tool runs in strict and process mode, against fresh interpreters, in the same run.

  python -m benchmarks.sandbox              # prints tables
  python -m benchmarks.sandbox --append     # and adds them to benchmarks/RESULTS.md

"start" is the time from the request for 128 scripts, all at once, until the last of them has made its first call. The
alternative is one fresh interpreter for each execution, which connects and sends one line: once bare (`python -S -E`),
once with what a client of a model server imports (json, asyncio, ssl, urllib). "call" is the time for 20 more calls of
each of the 128 scripts, divided by their number, with an engine that answers at once. "tool" is `run_python` of
print(1), one after the other, against `python -c`. "hostile" is the time until 120 honest scripts of four calls are
done while 8 more run: honest ones, or ones that loop, fill memory, start threads, or flood; by how long a call takes.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from metaagent_x import sandbox
from metaagent_x.mas import Budget, Call, CallRequest, run_script
from metaagent_x.sandbox import client
from metaagent_x.tasks.task import Task

SCRIPTS, CALLS, REPEATS = 128, 20, 7
ENGINE_S = (0.0, 0.25, 1.0)
TASK = Task("t", "math", "What is 3 + 4?")
HONEST = "a = solver()\nfor _ in range(4):\n    answer = a(task)"
HOSTILE = (
    "while True: pass",
    "x = []\nwhile True: x.append(' ' * 10**6)",
    "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()",
    "n = 0\nwhile True:\n    open(str(n), 'w').write('x' * 1000)\n    n += 1",
    "while True: answer_of(task)",
    "n = 10 ** 10 ** 8",
    "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "import threading\nfor _ in range(4): threading.Thread(target=eval, args=('[0 for _ in iter(int, 1)]',)).start()",
)
CONNECT = "import socket; s = socket.socket(socket.AF_UNIX); s.connect({path!r}); s.sendall(b'x'); s.recv(1)"
IMPORTS = "import json, asyncio, ssl, urllib.request; "
Chat = Callable[[CallRequest], Awaitable[Call]]


def reply(request: CallRequest) -> Call:
    return Call(request.path, request.agent, request.role_prompt, (1,), (2,), (-1.0,), "stop", 0, "so \\boxed{7}")


class Gate:
    """Answers the first call of each script only when all have made it; notes when that was."""

    def __init__(self, scripts: int):
        self.left, self.open, self.at = scripts, asyncio.Event(), 0.0
        self.measure: Callable[[], float] | None = None
        self.memory = 0.0

    async def __call__(self, request: CallRequest) -> Call:
        if request.path == "0":
            self.left -= 1
            if self.left == 0:
                self.at = time.perf_counter()
                if self.measure is not None:
                    self.memory = self.measure()
                    self.at_after = time.perf_counter()
                self.open.set()
            await self.open.wait()
        return reply(request)


async def scripts(mode: str) -> dict[str, float]:
    """Start, memory and cost of a call of 128 scripts."""
    sandbox.use(mode)
    await run_script("answer = solver()(task)", TASK, Gate(1))  # the zygote has imported the language
    alone, host = memory_of_runs(), resident(os.getpid())
    gate = Gate(SCRIPTS)
    gate.measure = lambda: memory_of_runs() - alone
    text = f"a = solver()\nfor _ in range({CALLS + 1}):\n    answer = a(task)"
    begin = time.perf_counter()
    done = await asyncio.gather(*(run_script(text, TASK, gate) for _ in range(SCRIPTS)))
    end = time.perf_counter()
    assert all(e.status == "ok" and len(e.calls) == CALLS + 1 for e in done)
    return {
        "start": gate.at - begin, "memory": gate.memory / SCRIPTS, "host": (resident(os.getpid()) - host) / SCRIPTS,
        "call": (end - gate.at_after) / (SCRIPTS * CALLS) * 1e3,
    }  # fmt: skip


def memory_of_runs() -> float:
    """MiB of the zygote and its children together, shared pages counted once."""
    zygote = client.zygote().process.pid
    pids = [zygote, *map(int, Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split())]
    return sum(pss(pid) for pid in pids)


def pss(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024


def resident(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


async def interpreters(options: list[str], imports: str) -> dict[str, float]:
    """The same start with a fresh interpreter for each script."""
    with tempfile.TemporaryDirectory() as folder:
        path, count, all_in = os.path.join(folder, "s"), 0, asyncio.Event()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal count
            await reader.read(1)
            count += 1
            if count == SCRIPTS:
                all_in.set()
            await all_in.wait()
            writer.close()

        server = await asyncio.start_unix_server(accept, path, backlog=SCRIPTS)
        begin = time.perf_counter()
        code = imports + CONNECT.format(path=path)
        runs = [subprocess.Popen([sys.executable, *options, "-c", code]) for _ in range(SCRIPTS)]
        await all_in.wait()
        seconds = time.perf_counter() - begin
        for run in runs:
            await asyncio.to_thread(run.wait)
        server.close()
    return {"start": seconds}


def tool(run: Callable[[], object], count: int = 100) -> float:
    """Median milliseconds of one run."""
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3


async def batch(others: tuple[str, ...], engine_s: float = 0.0) -> float:
    """Seconds until 120 honest scripts are done beside these, with an engine that takes so long for a call."""

    async def answer(request: CallRequest) -> Call:
        await asyncio.sleep(engine_s)
        return reply(request)

    budget = Budget(wall_s=8.0, cpu_s=4.0)
    beside = [asyncio.ensure_future(run_script(text, TASK, answer, budget=budget)) for text in others]
    begin = time.perf_counter()
    done = await asyncio.gather(*(run_script(HONEST, TASK, answer) for _ in range(SCRIPTS - len(others))))
    seconds = time.perf_counter() - begin
    assert all(e.status == "ok" for e in done)
    await asyncio.gather(*beside)
    return seconds


def median(rows: list[dict[str, float]], key: str) -> float:
    return statistics.median(row[key] for row in rows)


async def main() -> None:
    rows: dict[str, list[dict[str, float]]] = {"strict": [], "process": [], "bare": [], "client": []}
    for _ in range(REPEATS):
        rows["strict"].append(await scripts("strict"))
        rows["bare"].append(await interpreters(["-S", "-E"], ""))
        rows["process"].append(await scripts("process"))
        rows["client"].append(await interpreters([], IMPORTS))
    base = median(rows["strict"], "start")
    names = {"bare": "fresh interpreter, bare", "client": "fresh interpreter, client imports"}
    lines = ["| 128 scripts | start, s | against strict | MiB each | MiB each in the host | call, ms |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for name, runs in rows.items():
        rest = (
            [f"{median(runs, key):.2f}" for key in ("memory", "host", "call")]
            if name in sandbox.MODES
            else ["", "", ""]
        )
        start = median(runs, "start")
        lines.append(f"| {names.get(name, name)} | {start:.2f} | {start / base:.1f}x | " + " | ".join(rest) + " |")
    lines += ["", "| print(1) | median, ms |", "|---|---|"]
    for mode in sandbox.MODES:
        sandbox.use(mode)
        lines.append(f"| run_python, {mode} | {tool(lambda: sandbox.run_python('print(1)')):.1f} |")
    plain = [sys.executable, "-c", "print(1)"]
    lines.append(f"| python -c | {tool(lambda: subprocess.run(plain, capture_output=True), 30):.1f} |")
    sandbox.use("strict")
    lines += ["", "| 120 honest scripts, a call takes | beside 8 honest ones, s | beside 8 hostile ones, s | ratio |",
              "|---|---|---|---|"]  # fmt: skip
    for engine_s in ENGINE_S:
        beside = (HONEST,) * len(HOSTILE)
        pairs = [(await batch(beside, engine_s), await batch(HOSTILE, engine_s)) for _ in range(REPEATS)]
        honest, hostile = (statistics.median(p[i] for p in pairs) for i in (0, 1))
        ratio = statistics.median(b / a for a, b in pairs)
        lines.append(f"| {engine_s:g} s | {honest:.2f} | {hostile:.2f} | {ratio:.2f} |")
    table = "\n".join(lines)
    print(table)
    if "--append" in sys.argv:
        machine = f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}"
        with open(Path(__file__).with_name("RESULTS.md"), "a") as file:
            file.write(f"\n## Sandbox\n\n`python -m benchmarks.sandbox`, {datetime.date.today()}: {machine}; median of "
                       f"{REPEATS} runs in turn; {', '.join(sandbox.use('strict'))}.\n\n{table}\n")  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main())
