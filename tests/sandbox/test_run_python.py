"""`run_python`: what a program gets, how it ends, what stays behind (nothing)."""

import concurrent.futures
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from metaagent_x import sandbox
from metaagent_x.sandbox import Limits, client, run_python

QUICK = Limits(cpu_s=1, memory_mb=100, output_bytes=20_000)


def children_of(pid: int) -> set[int]:
    return {int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def open_fds(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.fixture
def process_mode():
    """Runs with limits only: what strict mode forbids must still leave nothing behind."""
    sandbox.use("process")
    yield
    sandbox.use("strict")


def test_reads_input_and_prints():
    r = run_python("n = int(input())\nprint(sum(map(int, input().split())) * n)", "3\n4 5\n")
    assert (r.stdout, r.stderr, r.status, r.exit_code) == ("27\n", "", "ok", 0)


def test_large_input_and_output_do_not_deadlock():
    text = "abc " * 200_000
    r = run_python("import sys\ns = sys.stdin.read()\nsys.stdout.write(s)", text, limits=Limits(output_bytes=1 << 20))
    assert r.status == "ok" and r.stdout == text


def test_binary_output_and_bad_bytes():
    assert run_python("import sys; sys.stdout.buffer.write(b'hi\\n'); sys.stdout.buffer.flush()").stdout == "hi\n"
    assert run_python("import os; os.write(1, b'\\xff\\xfe!')").stdout.endswith("!")


@pytest.mark.fault("B018")
@pytest.mark.parametrize("code,status,text", [
    ("print(input())", "error", "EOFError"),
    ("import sys\nprint(len(sys.stdin.read()))", "ok", "0\n"),
    ("print(repr(open(0).readline()))", "ok", "''\n"),
])  # fmt: skip
def test_without_input_a_program_sees_the_end_of_file(code, status, text):
    """langchain-ai/deepagents PR#2427: a tool that inherited stdin blocked for ever."""
    r = run_python(code)
    assert r.status == status and text in (r.stdout or r.stderr)


@pytest.mark.fault("B021")
@pytest.mark.parametrize("code,status,exit_code,out", [
    ("import os\nprint('x')\nos._exit(0)", "ok", 0, "x\n"),
    ("print('y')\nexit()", "ok", 0, "y\n"),
    ("raise SystemExit(0)", "ok", 0, ""),
    ("import sys\nsys.exit(3)", "error", 3, ""),
    ("import sys\nsys.exit('bad')", "error", 1, ""),
    ("import os\nos.kill(os.getpid(), 11)", "crash", -signal.SIGSEGV, ""),
])  # fmt: skip
def test_exits_end_the_program_and_nothing_else(code, status, exit_code, out):
    """cuga-project/cuga-agent#629: exit() in generated code ended the evaluation."""
    r = run_python(code)
    assert (r.status, r.exit_code, r.stdout) == (status, exit_code, out)
    assert run_python("print(1)").stdout == "1\n"


@pytest.mark.fault("B029")
def test_module_scope_is_one_dict():
    """langchain-ai/langchain#5035: separate globals and locals broke recursion and comprehensions."""
    code = """
k = 3
def f(n):
    return 1 if n == 0 else n * f(n - 1)
class Point:
    scale = k
    def twice(self):
        return [f(3) * k for _ in range(2)]
if __name__ == "__main__":
    print([k * i for i in range(3)], f(5), Point().twice(), globals() is locals())
"""
    assert run_python(code).stdout == "[0, 3, 6] 120 [18, 18] True\n"


def test_dataclasses_pickle_and_exit_handlers_work():
    code = """
import atexit, dataclasses, pickle, threading
@dataclasses.dataclass
class A:
    x: int = 1
atexit.register(print, "bye")
threading.Timer(0.02, lambda: print(pickle.loads(pickle.dumps(A(4))))).start()
"""
    assert run_python(code).stdout == "A(x=4)\nbye\n"


def test_traceback_names_line_and_source_and_keeps_its_tail():
    r = run_python("x = 1\ndef f():\n    return x / 0\nf()")
    assert r.status == "error"
    assert "line 3, in f" in r.stderr and "return x / 0" in r.stderr and "metaagent_x" not in r.stderr
    assert r.stderr.endswith("ZeroDivisionError: division by zero\n")
    r = run_python("raise ValueError('a' * 100_000 + 'END')")
    assert r.stderr.endswith("END\n") and len(r.stderr) < 10_000


@pytest.mark.parametrize("code", ["x = (", "print('\x00')", "x = '\ud800'", "return 1", "  y = 1"])
def test_text_that_is_no_program_is_an_error(code):
    assert run_python(code).status == "error"
    assert run_python("print('ä', '\\n' == chr(10))").stdout == "ä True\n"


@pytest.mark.parametrize("code,status", [
    ("while True: pass", "cpu"),
    ("print(len(str(10 ** 10 ** 8)))", "cpu"),
    ("import time\nprint('so far')\ntime.sleep(60)", "wall"),
    ("print('so far')\na = []\nwhile True: a.append(' ' * 10**6)", "memory"),
    ("x = bytearray(1 << 40)", "memory"),
    ("while True: print('so far' * 100)", "output"),
    ("open('f', 'wb').write(b'x' * 100_000)", "output"),
])  # fmt: skip
def test_limits_end_a_program_with_their_name(code, status):
    r = run_python(code, limits=dataclasses.replace(QUICK, wall_s=1.0 if status == "wall" else 30.0))
    assert r.status == status
    assert ("so far" in r.stdout) == ("so far" in code)
    assert len(r.stdout) <= QUICK.output_bytes


FLOODS = {
    "many files": "n = 0\nwhile True:\n    open(str(n), 'w').close()\n    n += 1",
    "few big ones": "n = 0\nwhile True:\n    open(str(n), 'w').write('x' * 10**6)\n    n += 1",
    "files that are gone": "while True:\n    open('f', 'w').write('x' * 10**6)\n    os.unlink('f')",
}  # fmt: skip


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_of_the_folder_ends_the_run(flood):
    r = run_python("import os\n" + FLOODS[flood], limits=Limits(cpu_s=20, wall_s=60))
    assert r.status == "output" and r.cpu_s < 10
    assert os.listdir(client.zygote().folder) == []


@pytest.mark.slow
def test_starved_programs_reach_their_own_limit_and_nothing_else():
    """Twelve want a core for a second, and have two between them: none is late for lack of one, and nobody dies."""
    zygote = client.zygote()
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        runs = pool.map(lambda _: run_python("while True: pass", limits=Limits(cpu_s=1, wall_s=1.5)), range(12))
    assert [r.status for r in runs] == ["cpu"] * 12
    assert client.zygote() is zygote and run_python("print(3)").stdout == "3\n"


def test_threads_without_end_end_the_run():
    code = """
import threading, time
threading.stack_size(32768)
while True: threading.Thread(target=time.sleep, args=(60,)).start()
"""
    assert run_python(code, limits=Limits(cpu_s=20, wall_s=60)).status == "threads"


def test_a_name_that_is_no_text_does_not_end_the_zygote():
    zygote = client.zygote()
    code = """
import ctypes, time
ctypes.CDLL(None).prctl(15, b"\\xff) \\xfe", 0, 0, 0)
end = time.time() + 0.5
while time.time() < end: pass
"""
    assert run_python(code).status == "ok"
    assert client.zygote() is zygote and run_python("print(3)").stdout == "3\n"


def test_what_the_sandbox_forbids_is_the_programs_own_failure():
    """A program that could void its verdict would have a way out of every wrong answer."""
    assert run_python("open('/etc/passwd')").status == "refused"
    assert run_python("import os\nos.kill(os.getpid(), 31)").status == "crash"


@pytest.mark.fault("B024")
def test_ignored_sigterm_does_not_survive_the_wall_limit():
    """verl-project/verl PR#7267: the child survived terminate and the timeout returned anyway."""
    code = "import os, signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint(os.getpid())\ntime.sleep(60)"
    r = run_python(code, limits=Limits(wall_s=0.4))
    assert r.status == "wall"
    assert not os.path.exists(f"/proc/{int(r.stdout)}")


@pytest.mark.fault("B017")
@pytest.mark.parametrize("session", [False, True])
def test_a_grandchild_that_holds_the_output_is_not_waited_for(session, process_mode):
    """openai/codex#4337: the timeout killed the shell only, and readers waited for the pipe that its child held."""
    code = f"import subprocess\np = subprocess.Popen(['sleep', '77'], start_new_session={session})\nprint(p.pid)"
    r = run_python(code, limits=Limits(wall_s=30))
    assert r.status == "ok" and gone(int(r.stdout))


def gone(pid: int) -> bool:
    """Strays are killed before the reply; the kernel may need a moment to take them away."""
    for _ in range(200):
        if not os.path.exists(f"/proc/{pid}"):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    "detach",
    [
        "", "os.setsid()", "os.setsid()\n    if os.fork(): os._exit(0)",
        "os.setsid()\n    if os.fork(): time.sleep(600)",  # becomes a stray only when its own parent was hunted down
    ],
)  # fmt: skip
def test_what_a_program_leaves_running_is_killed(detach, process_mode):
    code = f"""
import os, time
read, write = os.pipe()
if os.fork() == 0:
    {detach or "pass"}
    os.write(write, str(os.getpid()).encode())
    time.sleep(600)
print(os.read(read, 20).decode())
"""
    r = run_python(code)
    assert r.status == "ok" and gone(int(r.stdout))


def test_a_program_gets_no_environment_no_descriptors_and_a_folder_of_its_own(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    code = """
import os
print(dict(os.environ))
print([fd for fd in range(64) if is_open(fd)])
print(os.getcwd(), os.listdir("."))
os.mkdir("a"); open("a/b", "w").write("x")
"""
    is_open = """
def is_open(fd):
    import os
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
"""
    lines = run_python(is_open + code).stdout.split("\n")
    assert lines[0] == "{}"
    assert lines[1] == "[0, 1, 2]"
    folder, listing = lines[2].split(" ", 1)
    assert listing == "[]" and not os.path.exists(folder)
    assert "No module" in run_python("import metaagent_x").stderr


@pytest.mark.parametrize("shape", [
    "for i in range(3000):\n    os.mkdir('d')\n    os.chdir('d')",  # deeper than recursion and path names go
    "os.makedirs('a/b'); open('a/b/c', 'w'); os.chmod('a/b', 0); os.chmod('a', 0)",
    "for i in range(1, 60): os.makedirs(f'\\x01{i}/k/k')",  # names that a fixed mark could meet
    "os.symlink('/', 'root'); os.mkdir('x'); os.symlink('..', 'x/up'); os.mkfifo('f')",
])  # fmt: skip
def test_the_folder_goes_whatever_a_program_made_of_it(shape, process_mode):
    assert run_python("import os\n" + shape).status in ("ok", "output")
    assert os.listdir(client.zygote().folder) == []
    assert os.path.isdir("/tmp")


def test_the_zygote_has_no_jax():
    assert run_python("import sys\nprint([m for m in sys.modules if 'jax' in m or 'numpy' in m])").stdout == "[]\n"


def test_same_program_same_output():
    code = "import random\nprint(random.random(), hash('abc'), {'x', 'y', 'z'})"
    assert len({run_python(code).stdout for _ in range(4)}) == 1


@pytest.mark.fault("B030")
def test_parallel_runs_do_not_mix():
    """lsdefine/GenericAgent#665: files named by the second; 11 of 283 runs got another run's content."""
    seen: dict[int, list[str]] = {}

    def work(i):
        code = f"open('f', 'w').write('{i}')\nprint({i}, open('f').read(), input())"
        seen[i] = [run_python(code, str(i)).stdout for _ in range(2)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(32)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert seen == {i: [f"{i} {i} {i}\n"] * 2 for i in range(32)}
    assert os.listdir(client.zygote().folder) == []


def runs_leave_nothing(count):
    """verl-project/verl PR#7254: a server process leaked per scored sample, EMFILE after hundreds."""
    run_python("print(0)")
    zygote = client.zygote().process.pid
    before = open_fds(), open_fds(zygote), threading.active_count()
    for i in range(count):
        code = f"print({i})" if i % 10 else "import os\nos.kill(os.getpid(), 9)"
        assert run_python(code).status == ("ok" if i % 10 else "crash")
    for _ in range(100):
        if open_fds(zygote) <= before[1]:
            break
        time.sleep(0.01)  # it closes its end of the last run after the report
    assert open_fds() == before[0] and open_fds(zygote) <= before[1] and threading.active_count() == before[2]
    assert children_of(zygote) == set() and client.zygote().process.pid == zygote
    assert os.listdir(client.zygote().folder) == []


@pytest.mark.fault("B025")
def test_hundred_runs_leak_nothing():
    runs_leave_nothing(100)


@pytest.mark.slow
@pytest.mark.fault("B025")
def test_two_thousand_runs_leak_nothing():
    runs_leave_nothing(2000)


@pytest.mark.fault("B022")
def test_memory_bombs_side_by_side_end_each_with_its_verdict():
    """LiveCodeBench/LiveCodeBench PR#103: memory grew until the server died."""
    bomb = "a = []\nwhile True: a.append(' ' * 10**6)"
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        runs = pool.map(
            lambda code: run_python(code, limits=Limits(memory_mb=60, wall_s=60)), [bomb] * 8 + ["print(1)"]
        )
    assert [r.status for r in runs] == ["memory"] * 8 + ["ok"]


def test_a_dead_zygote_is_an_infrastructure_failure_and_is_replaced():
    first = client.zygote()
    killer = threading.Timer(0.3, first.process.kill)
    killer.start()
    with pytest.raises(sandbox.SandboxFailure, match="died"):
        run_python("import time\ntime.sleep(30)")
    killer.join()
    assert run_python("print(2)").stdout == "2\n"
    assert client.zygote().process.pid != first.process.pid
    assert not os.path.exists(first.folder)


@pytest.mark.fault("F095")
def test_works_beside_threads_without_forking_the_host():
    """jax-ml/jax#18989: a grader pool that forked a process with JAX threads hung at random. Only the zygote forks."""
    code = """
import os, threading, warnings
warnings.simplefilter("error")
def no_fork(): raise AssertionError("the host forked")
threading.Thread(target=threading.Event().wait, daemon=True).start()
from metaagent_x.sandbox import run_python, close
os.register_at_fork(before=no_fork)
results = []
ts = [threading.Thread(target=lambda: results.append(run_python("print(1)").stdout)) for _ in range(4)]
[t.start() for t in ts]; [t.join() for t in ts]
print(results)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "['1\\n', '1\\n', '1\\n', '1\\n']\n" and done.stderr == ""


def test_everything_goes_when_the_host_ends():
    code = """
import threading, time
from metaagent_x.sandbox import run_python, client
threading.Thread(target=run_python, args=("import time; time.sleep(99)",), daemon=True).start()
while not (pids := open(f"/proc/{client.zygote().process.pid}/task/{client.zygote().process.pid}/children").read()):
    time.sleep(0.01)
print(client.zygote().folder, client.zygote().process.pid, pids)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    folder, *pids = done.stdout.split()
    assert not os.path.exists(folder) and len(pids) == 2
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


@pytest.mark.parametrize("field,value", [("cpu_s", 0), ("wall_s", -1.0), ("memory_mb", 0), ("output_bytes", 0)])
def test_a_limit_of_nothing_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"Limits.{field}"):
        Limits(**{field: value})
