"""The checker of the attack suite sees what it should: programs that escape, where nothing but limits holds them.

All are harmless. They run in mode "process", which contains no file, socket or signal.
"""

import resource
import subprocess
import sys

import attack_scene
import pytest
from attack_programs import Attack
from attack_scene import Scene

from metaagent_x import sandbox

ESCAPES = (  # program, what the checker must say
    ("report(read(CANARY + '/secret.txt'))", "saw the secret 'file secret.txt'"),
    ("raise ValueError(read(CANARY + '/data/rows.jsonl'))", "saw the secret 'file data/rows.jsonl'"),
    ("write(CANARY + '/new')", "the canary folder"),
    ("write(CANARY + '/secret.txt')", "the canary folder"),
    ("os.chmod(CANARY + '/secret.txt', 0o640)", "the canary folder"),
    ("os.utime(CANARY + '/data', (1, 1))", "the canary folder"),
    ("os.link(CANARY + '/secret.txt', CANARY + f'/{WAY}')", "the canary folder"),
    ("write('../' + WAY)", "private folders"),
    ("write('/tmp/' + TAG)", "names of its making"),
    ("socket.create_connection(TCP).close()", "connections"),
    ("socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', ABSTRACT)", "connections"),
    ("socket.socket(socket.AF_UNIX).connect(UNIX)", "connections"),
    ("os.kill(HOST, signal.SIGUSR1)", "signals"),
    ("os.kill(NEIGHBOUR, signal.SIGKILL)", "the neighbour did not finish normally"),
    ("os.kill(ZYGOTE, signal.SIGKILL)", "zygote"),
    ("os.setpriority(0, ZYGOTE, os.getpriority(0, ZYGOTE) + 1)", "the zygote"),
    ("resource.prlimit(HOST, resource.RLIMIT_NOFILE, (200, resource.prlimit(HOST, 7)[1]))", "the host"),
    ("attempt(['os.getpid()'])", "GOT os.getpid()"),
    ("report('hello')", "did not say 'the magic word'"),
    ("os.abort()", "status 'crash', expected 'ok'"),
)


@pytest.fixture
def open_scene(tmp_path, monkeypatch):
    monkeypatch.setattr(attack_scene, "SETTLE_S", 0.5)
    scene, open_files = Scene(tmp_path, "process"), resource.getrlimit(resource.RLIMIT_NOFILE)
    yield scene
    resource.setrlimit(resource.RLIMIT_NOFILE, open_files)
    scene.close()
    sandbox.use("strict")


@pytest.mark.parametrize("program,seen", ESCAPES, ids=[e[0] for e in ESCAPES])
async def test_an_escape_is_seen(open_scene, program, seen):
    says = ("the magic word",) if "magic" in seen else ()
    outcome = await open_scene.run(Attack("escape", "import resource\n" + program, says=says))
    assert any(seen in problem for problem in outcome.problems), outcome.problems


async def test_a_process_that_stays_is_seen(open_scene):
    """The zygote itself hunts down what a program leaves behind, in every mode; this one is not its child."""
    before = open_scene.state()
    code = f"import time; print('up', flush=True); time.sleep(60)  # {open_scene.tag}"
    stray = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert stray.stdout is not None and stray.stdout.readline() == b"up\n"
        assert any(p.startswith("processes") for p in await open_scene._settled(before))
    finally:
        stray.kill()
        stray.wait()


async def test_an_honest_program_is_no_problem(open_scene):
    assert (await open_scene.run(Attack("honest", "report(6 * 7)", says=("42",)))).problems == []
