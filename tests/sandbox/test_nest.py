"""`Program`: many runs of one program. What holds of a run by itself holds of each."""

import os
import pathlib
import signal
import socket
import threading
import time

import pytest
import test_run_python
from test_run_python import children_of, open_fds

from metaagent_x import sandbox
from metaagent_x.sandbox import Limits, Program, Result, SandboxFailure, client

QUICK = Limits(cpu_s=1, wall_s=1.5, memory_mb=100, output_bytes=20_000)


@pytest.fixture
def nested(monkeypatch):
    """In the tests of `run_python`, that is the second run of a nest."""

    def second(code: str, stdin: str = "", *, limits: Limits | None = None) -> Result:
        with Program(code, limits=limits) as program:
            program.run(stdin)
            return program.run(stdin)

    monkeypatch.setattr(test_run_python, "run_python", second)


HOLDS = [
    test_run_python.test_reads_input_and_prints,
    test_run_python.test_large_input_and_output_do_not_deadlock,
    test_run_python.test_binary_output_and_bad_bytes,
    test_run_python.test_module_scope_is_one_dict,
    test_run_python.test_dataclasses_pickle_and_exit_handlers_work,
    test_run_python.test_traceback_names_line_and_source_and_keeps_its_tail,
    test_run_python.test_what_the_sandbox_forbids_is_the_programs_own_failure,
    test_run_python.test_ignored_sigterm_does_not_survive_the_wall_limit,
    test_run_python.test_same_program_same_output,
    test_run_python.test_parallel_runs_do_not_mix,
]


@pytest.mark.parametrize("test", HOLDS, ids=lambda test: test.__name__)
def test_a_run_in_a_nest_is_a_run(test, nested):
    test()


@pytest.mark.parametrize("code,status", [
    ("while True: pass", "cpu"), ("import time; time.sleep(60)", "wall"), ("x = ' ' * 10**9", "memory"),
    ("while True: print('x' * 1000)", "output"), ("import os; os.abort()", "crash"), ("exit(3)", "error"),
    ("import os; os.fork()", "refused"), ("def f(:", "error"), ("raise SystemExit", "ok"),
    ("import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,)).start()", "wall"),
    ("import os\nfor i in range(2000): open(str(i), 'w').write('x' * 50_000)", "output"),
])  # fmt: skip
def test_every_run_ends_by_its_own_limit_and_the_next_one_runs(code, status):
    source = f"if input() == 'go':\n    exec({code!r})\nprint('ran')"
    with Program(source, limits=QUICK) as program:
        seen = [program.run(stdin) for stdin in ("go", "no")]
    assert seen[0].status == status
    assert (seen[1].status, seen[1].stdout, seen[1].stderr) == ("ok", "ran\n", "")


def test_nothing_goes_from_one_run_to_the_next():
    leaves_traces = """
import builtins, json, os, sys
seen = [os.listdir('.'), hasattr(builtins, 'trace'), 'trace' in sys.modules, len(sys.path), json.dumps(1), os.umask(18)]
open('trace', 'w').write(input())
os.mkdir('folder'); open('folder/trace', 'w'); os.mkdir('shut', 0)
builtins.trace = sys.modules['trace'] = seen
sys.path.clear(); json.dumps = str; builtins.print = print
os.umask(0)
sys.stdout.write(repr(seen))
"""
    with Program(leaves_traces) as program:
        first, second, third = (program.run(f"input {i}") for i in range(3))
    assert first.status == "ok" and first.stdout.startswith("[[], False, False")
    assert first.stdout == second.stdout == third.stdout


def test_a_run_sees_its_own_input_alone_and_no_descriptor_of_ours():
    looks = """
import gc, os, sys
found = []
for fd in range(3, 1000):
    try: found.append(os.fstat(fd) and fd)
    except OSError: pass
memory = repr([o for o in gc.get_objects() if isinstance(o, (dict, list, tuple))])
print(input(), found, [f'MARK{i}' in memory for i in range(3)], dict(os.environ), os.lseek(1, 0, 1))
"""
    with Program(looks) as program:
        for i in range(3):
            held = [False] * 3
            assert program.run(f"MARK{i}").stdout == f"MARK{i} [] {held} {{}} 0\n"


def test_random_numbers_are_those_of_every_run():
    with Program("import random\nprint(random.random())") as program:
        assert program.run().stdout == program.run().stdout == sandbox.run_python(program.code).stdout


def test_input_and_output_can_be_descriptors():
    doubles = "import sys\nfor line in sys.stdin:\n    print(2 * int(line), flush=True)"
    ours, theirs = socket.socketpair()
    with Program(doubles) as program, ours, ours.makefile("r") as lines:
        results = []
        run = threading.Thread(target=lambda: results.append(program.run(theirs.fileno(), theirs.fileno())))
        run.start()
        for n in (3, 21):
            ours.sendall(f"{n}\n".encode())
            assert lines.readline() == f"{2 * n}\n"
        theirs.close()
        ours.shutdown(socket.SHUT_WR)
        run.join()
        assert (results[0].status, results[0].stdout) == ("ok", "") and lines.readline() == ""
        assert program.run("1\n").stdout == "2\n"  # and the next run has files again


def test_a_program_that_takes_too_long_to_compile_is_one_that_takes_too_long():
    with Program("x = [" + "f(1, 2), " * 400_000 + "]", limits=QUICK) as program:
        assert [program.run().status in ("cpu", "memory") for _ in range(2)] == [True, True]


def test_a_program_that_is_too_large_for_its_memory_is_told_so():
    with Program("x = [" + "f(1, 2), " * 100_000 + "]", limits=Limits(cpu_s=20, memory_mb=5)) as program:
        assert program.run().status == "memory"


def test_a_nest_that_dies_takes_one_run_with_it():
    with Program("import time; time.sleep(float(input()))") as program:
        assert program.run("0").status == "ok"
        zygote = client.zygote("").process.pid
        (nest,) = children_of(zygote)
        threading.Timer(0.2, os.kill, (nest, signal.SIGKILL)).start()
        assert program.run("5").status == "crash"
        assert program.run("0").status == "ok"
        assert len(children_of(zygote)) == 1


def test_a_zygote_that_dies_is_infrastructure():
    with Program("import time; time.sleep(float(input()))") as program:
        assert program.run("0").status == "ok"
        threading.Timer(0.2, client.zygote("").process.kill).start()
        with pytest.raises(SandboxFailure):
            program.run("5")
        assert program.run("0").status == "ok"


def test_programs_leave_nothing_behind():
    def left() -> tuple:
        zygote = client.zygote("")
        return open_fds(), open_fds(zygote.process.pid), children_of(zygote.process.pid), os.listdir(zygote.folder)

    Program("print(1)").close()
    with Program("print(1)") as program:
        program.run()
    wait_for(lambda: not children_of(client.zygote("").process.pid))
    before = left()
    for _ in range(30):
        with Program("print(input())") as program:
            assert program.run("1").stdout == program.run("1").stdout
    wait_for(lambda: left() == before)


def test_strays_of_an_uncontained_run_are_gone_before_the_next():
    spawns = "import os, sys\nif os.fork() == 0:\n    os.setsid()\n    while True: pass\nprint(os.getppid())"
    sandbox.use("process")
    try:
        with Program(spawns, limits=QUICK) as program:
            nest = int(program.run().stdout)
            assert children_of(nest) == set()
            assert program.run().status == "ok" and children_of(nest) == set()
    finally:
        sandbox.use("strict")


def test_where_an_end_cannot_be_waited_for_it_is_looked_for(monkeypatch):
    monkeypatch.setattr(client, "START", "import os; del os.pidfd_open; " + client.START)
    client.close()
    try:
        with Program("import time; time.sleep(0.05); print(1)") as program:
            assert program.run().stdout == "1\n"
    finally:
        monkeypatch.undo()
        client.close()


def wait_for(condition, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


def test_a_nest_has_nothing_in_memory_that_forks_need_not():
    with Program("print(1)") as program:
        program.run()
        (nest,) = children_of(client.zygote("").process.pid)
        maps = pathlib.Path(f"/proc/{nest}/maps").read_text()
    assert "_ssl" not in maps and "numpy" not in maps and "_asyncio" not in maps
