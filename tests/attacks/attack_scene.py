"""The checker of the attack suite: what stands around an attack, and what may not change or be seen there.

A `Scene` lays out a folder of canary files, listeners of every kind of socket, and secrets: in files, in this process's
environment and memory, in earlier runs of the same zygote, in a neighbour that runs at the same time. `run` lets an
attack loose as a script and as tool code at once and returns every trace that it left, in words; an empty list means
that it was contained and ended as the table allows.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
import re
import secrets
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from attack_programs import PRELUDE, VOICE, Attack

from metaagent_x import sandbox
from metaagent_x.mas import Budget, Call, CallRequest, Execution, Script, run_script
from metaagent_x.sandbox import Limits, Program, Result, client, run_python
from metaagent_x.tasks.task import Task

ROOT = Path(sandbox.__file__).parents[2]
MEMORY_MB, OUTPUT_BYTES = 150, 1 << 20
NEIGHBOUR = """
import os
note = solver()(f"pid {os.getpid()}")
output = run_python("print(6 * 7)")
answer = critic()(output)
"""
SETTLE_S = 5.0  # within which what is left of a killed process must be gone
SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGIO, signal.SIGALRM, signal.SIGURG)
PLACES = (
    "/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run", "/", "/usr/lib", sys.prefix, str(ROOT), str(Path.home()),
)  # fmt: skip
POOLS = ("asyncio", "tools")  # names of threads that wait for the next job
EARLIER = ("earlier program", "earlier input", "earlier script", "earlier reply")


@dataclasses.dataclass
class Outcome:
    """How one attack went: `problems` in words, and what each way of running it gave."""

    problems: list[str]
    tool: Result | None = None
    script: Execution | None = None


class Scene:
    """What attacks may not touch; makes itself at home in `folder` and in the process (`close` undoes it)."""

    def __init__(self, folder: Path, mode: str = "strict"):
        self.folder, self.before = folder, Path.cwd()
        self.tag = f"attack-{secrets.token_hex(8)}"  # in every name that an attack makes outside its folder
        self.secrets: dict[str, str] = {}
        os.environ["ATTACK_SECRET"] = self.secret("environment of the host")
        sandbox.close()
        sandbox.use(mode)
        self._lay_out()
        os.chdir(folder)
        self._listen()
        self.signals: list[int] = []
        self.handlers = {n: signal.signal(n, lambda number, _: self.signals.append(number)) for n in SIGNALS}
        for name in (*EARLIER, "neighbour's task", "neighbour's reply"):
            self.secret(name)
        run_python(f"x = input(), {self.secrets['earlier program']!r}", self.secrets["earlier input"])
        asyncio.run(self._earlier_script())
        self.run_program: Callable[..., Result] = run_python
        self.descriptors = _descriptors(client.zygote().process.pid)

    def secret(self, name: str) -> str:
        self.secrets[name] = "MARK-" + secrets.token_hex(16)
        return self.secrets[name]

    def _lay_out(self) -> None:
        (self.folder / "data").mkdir()
        for name in ("secret.txt", "data/rows.jsonl"):
            (self.folder / name).write_text(self.secret(f"file {name}") + "\n")
            os.chmod(self.folder / name, 0o666)
            os.utime(self.folder / name, (1e9, 1e9))

    def _listen(self) -> None:
        kinds = {"TCP": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
                 "UDP": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
                 "UNIX": (socket.AF_UNIX, socket.SOCK_STREAM, str(self.folder / "s")),
                 "UNIX_DATAGRAM": (socket.AF_UNIX, socket.SOCK_DGRAM, str(self.folder / "d"))}  # fmt: skip
        if os.uname().sysname == "Linux":
            kinds["ABSTRACT"] = (socket.AF_UNIX, socket.SOCK_DGRAM, "\0" + self.tag)
        self.listeners: dict[str, socket.socket] = {}
        for name, (family, kind, address) in kinds.items():
            self.listeners[name] = listener = socket.socket(family, kind)
            listener.bind(address)
            listener.setblocking(False)
            if kind == socket.SOCK_STREAM:
                listener.listen()

    async def _earlier_script(self) -> None:
        script = f"note = {self.secrets['earlier script']!r}\nanswer = solver()(note)"
        await execute(script, "What is 3 + 4?", lambda _: self.secrets["earlier reply"])

    def close(self) -> None:
        os.chdir(self.before)
        del os.environ["ATTACK_SECRET"]
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        for listener in self.listeners.values():
            listener.close()
        for path in self._files():
            os.unlink(path)
        sandbox.close()

    # One attack

    async def run(self, attack: Attack) -> Outcome:
        """Lets an attack loose, as a script and as tool code where the table says so, beside a neighbour."""
        # The zygote closes its end of the run before after it has told us of it.
        before = self.state() | {"descriptors of the zygote": self.descriptors}
        neighbour = _Neighbour(self)
        running = asyncio.create_task(neighbour.run())
        await asyncio.wait_for(asyncio.shield(neighbour.started), 30)
        outcome = Outcome([])
        ways = []
        if attack.tool:
            ways.append(self._as_tool(attack, neighbour.pid, outcome))
        if attack.script and self.run_program is run_python:
            ways.append(self._as_script(attack, neighbour.pid, outcome))
        await asyncio.gather(*ways)
        neighbour.release.set()
        outcome.problems += neighbour.problems(await running)
        outcome.problems += await self._settled(before)
        return outcome

    def source(self, attack: Attack, way: str, neighbour: int) -> str:
        """The program with what it may know: where the canaries are, whom it may shoot at, how to report."""
        known = {
            "CANARY": str(self.folder), "TAG": self.tag, "ROOT": str(ROOT), "HOST": os.getpid(),
            "ZYGOTE": client.zygote().process.pid, "NEIGHBOUR": neighbour, "WAY": way,
            **{name: listener.getsockname() for name, listener in self.listeners.items()},
        }  # fmt: skip
        lines = [f"{name} = {value!r}" for name, value in known.items()]
        return "\n".join([*lines, VOICE[way], PRELUDE, attack.program])

    async def _as_tool(self, attack: Attack, neighbour: int, outcome: Outcome) -> None:
        limits = Limits(cpu_s=1, wall_s=attack.wall_s, memory_mb=MEMORY_MB, output_bytes=OUTPUT_BYTES)
        source = self.source(attack, "tool", neighbour)
        try:
            result = outcome.tool = await asyncio.to_thread(self.run_program, source, limits=limits)
        except sandbox.SandboxFailure as failure:
            outcome.problems.append(f"as tool: infrastructure failed: {failure}")
            return
        text = result.stdout + result.stderr
        outcome.problems += self._judged("tool", attack.tool, result.status, text, result.stdout, attack)

    async def _as_script(self, attack: Attack, neighbour: int, outcome: Outcome) -> None:
        source = self.source(attack, "script", neighbour)
        try:
            e = outcome.script = await execute(source, "What is 3 + 4?", lambda _: r"\boxed{7}", attack.wall_s)
        except BaseException as failure:
            outcome.problems.append(f"as script: run_script raised {failure!r}")
            return
        said = "\n".join(message for call in e.calls for message in call.messages)
        outcome.problems += self._judged("script", attack.script, e.status, repr(e), said, attack, e.reason)
        if attack.reason not in e.reason or len(e.reason) > 1100:
            outcome.problems.append(f"as script: reason {e.reason[:200]!r}, expected {attack.reason!r}")
        if missing := set(attack.flags) - e.flags:
            outcome.problems.append(f"as script: not flagged with {missing}")

    def _judged(
        self, way: str, allowed: str, status: str, text: str, said: str, attack: Attack, reason: str = ""
    ) -> Iterator[str]:
        """What is wrong with an attack's end and with what it said."""
        if status not in allowed.split():
            yield f"as {way}: status {status!r}, expected {allowed!r}: {reason or text[-500:]}"
        yield from (f"as {way}: {line}" for line in re.findall(r"^GOT .*", said, re.MULTILINE))
        yield from (f"as {way}: did not say {word!r}: {said[-500:]}" for word in attack.says if word not in said)
        yield from (f"as {way}: saw the secret {name!r}" for name, marker in self.secrets.items() if marker in text)

    # What may not change

    def state(self) -> dict[str, object]:
        """Everything that must be the same after an attack."""
        zygote, nests = client.zygote(), client.zygote("")
        return {
            "the canary folder": _tree(self.folder), "working directory": os.getcwd(), "umask": _umask(),
            "zygote": zygote.process.pid, "the host": _vitals(os.getpid()), "the zygote": _vitals(zygote.process.pid),
            "descriptors of the host": _descriptors("self"),
            "descriptors of the zygote": max(self.descriptors, _descriptors(zygote.process.pid)),
            "threads of the host": [t.name for t in threading.enumerate() if not t.name.startswith(POOLS)],
            # Whether each is set, and its interval: that of the test's own time limit runs on.
            "timers of the host": [(left > 0, again) for left, again in map(signal.getitimer, (0, 1, 2))],
            "hostname": socket.gethostname(),
            "the zygote of nests": (nests.process.pid, _vitals(nests.process.pid)),
            "private folders": os.listdir(zygote.folder) + os.listdir(nests.folder),
            "processes": self._processes(zygote) + self._processes(nests),
            "names of its making": self._names(), "signals": list(self.signals), "connections": self._received(),
        }  # fmt: skip

    async def _settled(self, before: dict[str, object]) -> list[str]:
        """What differs from before once the dust has settled, and whether the sandbox still works."""
        deadline = time.monotonic() + SETTLE_S
        changed = {}
        while True:
            changed |= {k: v for k, v in self.state().items() if k in ("signals", "connections") and v != before[k]}
            now = self.state() | changed
            if (same := now == before) or changed or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.02)
        problems = [] if same else [f"{k}: {before[k]} became {now[k]}" for k in now if now[k] != before[k]]
        healthy = await asyncio.to_thread(run_python, "print(6 * 7)")
        return problems + ([] if healthy.stdout == "42\n" else [f"the sandbox no longer works: {healthy}"])

    def _processes(self, zygote: client.Zygote) -> list[str]:
        """Children of the zygote, and other processes of the sandbox or with the attack's mark, but not the zygote."""
        pid = zygote.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        marks = (zygote.folder.encode(), self.tag.encode())
        marked = [p for p in os.listdir("/proc") if p.isdigit() and int(p) != pid and _has(f"/proc/{p}/cmdline", marks)]
        return sorted({*children, *marked})

    def _names(self) -> list[str]:
        """Files, sockets and shared memory anywhere that carry the attack's mark."""
        found = self._files()
        own = "@" + self.tag  # the abstract listener
        sockets = [x.split()[-1] for x in Path("/proc/net/unix").read_text().split("\n") if self.tag in x]
        shared = [f"{kind} {line.split()[0]}" for kind in ("shm", "sem", "msg") for line in _system_v(kind)]
        return sorted(found) + [name for name in sockets if name != own] + shared

    def _files(self) -> list[str]:
        return [f"{p}/{n}" for p in PLACES if os.access(p, os.R_OK) for n in os.listdir(p) if self.tag in n]

    def _received(self) -> list[str]:
        """Listeners that somebody reached."""
        out = []
        for name, listener in self.listeners.items():
            try:
                if listener.type == socket.SOCK_STREAM:
                    listener.accept()[0].close()
                else:
                    listener.recv(100)
                out.append(name)
            except BlockingIOError:
                pass
        return out


def in_a_nest(source: str, *, limits: Limits) -> Result:
    """The second run of a program in one nest; the first may have prepared for it."""
    with Program(source, limits=limits) as program:
        program.run()
        return program.run()


class _Neighbour:
    """A harmless script that is in the middle of a call while the attack runs, and then goes on."""

    def __init__(self, scene: Scene):
        self.task, self.reply = scene.secrets["neighbour's task"], scene.secrets["neighbour's reply"]
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.release, self.pid = asyncio.Event(), 0

    async def run(self) -> Execution:
        return await execute(NEIGHBOUR, self.task, self._chat, wall_s=300)

    async def _chat(self, request: CallRequest) -> str:
        if request.agent == "critic":
            return r"\boxed{42}"
        self.pid = int(request.messages[0].split()[1])
        self.started.set_result(None)
        await self.release.wait()
        return self.reply

    def problems(self, e: Execution) -> list[str]:
        right = e.status == "ok" and e.answer == r"\boxed{42}" and [t.output for t in e.tools] == ["42\n"]
        return [] if right else [f"the neighbour did not finish normally: {e.status} {e.reason} {e.tools}"]


async def execute(source: str, prompt: str, reply: Callable, wall_s: float = 30.0) -> Execution:
    """Runs a script as it is, not linted, against a host that answers by a rule."""

    async def chat(request: CallRequest) -> Call:
        text = reply(request)
        text = await text if asyncio.iscoroutine(text) else text
        return Call(
            request.path, request.agent, request.role_prompt, (1,), (1,), (-1.0,), "stop", 0, text,
            conversation=request.conversation, messages=request.messages,
        )  # fmt: skip

    budget = Budget(calls=64, wall_s=wall_s, cpu_s=1, memory_mb=MEMORY_MB)
    return await run_script(Script(source, source), Task("t/1", "math", prompt), chat, budget=budget)


def _tree(folder: Path) -> dict[str, tuple]:
    """Path -> kind, mode, owner, links, size, time of change, content of everything in a folder."""
    out = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        s = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(s.st_mode) else ""
        about = (oct(s.st_mode), s.st_uid, s.st_gid, s.st_nlink, s.st_size, s.st_mtime_ns, content)
        out[str(path.relative_to(folder))] = about
    return out


def _vitals(pid: int) -> dict[str, object]:
    """What others could do to a process: limits, priority, cores, group."""

    def read(name: str) -> str:
        return Path(f"/proc/{pid}/{name}").read_text()

    return {
        "limits": read("limits"), "priority": os.getpriority(os.PRIO_PROCESS, pid), "cores": os.sched_getaffinity(pid),
        "scheduler": os.sched_getscheduler(pid), "group": os.getpgid(pid), "session": os.getsid(pid),
        "out of memory": read("oom_score_adj"), "tracer": re.findall(r"TracerPid:\s*(\d+)", read("status")),
    }  # fmt: skip


def _descriptors(pid: int | str) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _umask() -> int:
    mask = os.umask(0o77)
    os.umask(mask)
    return mask


def _has(path: str, marks: tuple[bytes, ...]) -> bool:
    try:
        content = Path(path).read_bytes()
    except OSError:
        return False
    return any(mark in content for mark in marks)


def _system_v(kind: str) -> list[str]:
    path = Path(f"/proc/sysvipc/{kind}")
    return path.read_text().split("\n")[1:-1] if path.exists() else []
