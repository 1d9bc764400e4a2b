"""Starting and ending server processes, with a small program in the place of vLLM."""

import asyncio
import dataclasses
import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest

from metaagent_x.rollout import vllm_server
from metaagent_x.rollout.vllm_client import ServerError
from metaagent_x.rollout.vllm_server import ServerSettings, VllmServer, cache_gib, command, environment, find_python

# Listens where it is told, answers everything with 200, and has a child that ignores polite requests.
PROGRAM = """#!{python} -S
import os, signal, socket, sys
print("arguments", sys.argv[1:], flush=True)
MODE
if not os.fork():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pause()
server = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
while True:
    connection, _ = server.accept()
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
    connection.close()
"""


@pytest.fixture
def settings(tmp_path):
    network = {"num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 32}
    (tmp_path / "config.json").write_text(json.dumps(network))

    def make(mode="", **changes):
        program = tmp_path / "python"
        program.write_text(PROGRAM.format(python=sys.executable).replace("MODE", mode))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return dataclasses.replace(
            ServerSettings(str(program), str(tmp_path), "fingerprint", "float32", 192, 64), **changes
        )

    return make


def group_is_gone(group):
    # Zombies count for `ps`, too, until they are taken away.
    states = subprocess.run(["ps", "-e", "-o", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
    return [line for line in states.splitlines() if line.split()[0] == str(group) and line.split()[1][0] != "Z"] == []


async def test_a_server_starts_again_and_leaves_no_process(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(vllm_server, "PATIENCE_S", 0.2)
    server = VllmServer(settings(), tmp_path / "log")
    first, one = await server.start(), server.pid
    assert server.alive() and first == server.url
    second, other = await server.restart(), server.pid
    assert server.alive() and other != one and second.startswith("http://127.0.0.1:") and group_is_gone(one)
    os.kill(other, signal.SIGKILL)  # its child lives on
    while server.alive():
        await asyncio.sleep(0.01)
    assert server.pid is None
    await server.stop()
    assert group_is_gone(other)
    await server.stop()
    log = (tmp_path / "log").read_text()
    assert log.count("arguments") == 2 and log.startswith(f"$ {settings().python} -m metaagent_x_vllm.serve --model")


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        (
            "print('no GPU here', file=sys.stderr); sys.exit(3)",
            r"ended with code 3 before it answered; the end of .*log",
        ),
        ("signal.pause()", r"does not answer after 0.5 s; the end of .*log"),
    ],
)
async def test_a_server_that_does_not_come_up_shows_its_log(settings, tmp_path, mode, says):
    server = VllmServer(settings(mode), tmp_path / "log", start_timeout_s=0.5)
    with pytest.raises(ServerError, match=says) as failed:
        await server.start()
    assert ("no GPU here" if "GPU" in mode else "arguments") in str(failed.value)
    assert not server.alive()


def test_a_program_that_is_not_there_is_named(settings, tmp_path):
    server = VllmServer(settings(python="/nowhere/python"), tmp_path / "log")
    with pytest.raises(ServerError, match="cannot start /nowhere/python"):
        asyncio.run(server.start())


async def test_a_start_that_is_given_up_leaves_no_process(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(vllm_server, "PATIENCE_S", 0.2)
    server = VllmServer(settings("signal.pause()"), tmp_path / "log")
    job = asyncio.create_task(server.start())
    while server.pid is None:
        await asyncio.sleep(0.01)
    group = server.pid
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert group_is_gone(group)


async def test_an_end_that_is_cut_short_can_be_asked_for_again(settings, tmp_path, monkeypatch):
    server = VllmServer(settings(), tmp_path / "log")
    await server.start()
    group = server.pid
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await server.stop()
    monkeypatch.setattr(vllm_server, "PATIENCE_S", 0.1)
    await server.stop()
    assert group_is_gone(group)


def option(line, name):
    return line[line.index(name) + 1]


def test_the_command_line_keeps_weights_and_defaults_of_the_folder_out(settings):
    for device in ("cpu", "cuda"):
        line = command(settings(device=device, gpus=(5, 6) if device == "cuda" else ()), 1234)
        assert option(line, "--load-format") == "dummy" and option(line, "--generation-config") == "vllm"
        assert option(line, "--logprobs-mode") == "processed_logprobs" and option(line, "--host") == "127.0.0.1"
        assert json.loads(option(line, "--hf-overrides")) == {"head_dtype": "float32"}
        assert json.loads(option(line, "--additional-config")) == {"metaagent_x_fingerprint": "fingerprint"}


def test_gpus_and_their_share_go_to_cuda_alone(settings):
    gpu = settings(device="cuda", gpus=(5, 6), memory_share=0.4)
    line, variables = command(gpu, 1), environment(gpu, {"PATH": "/bin"})
    assert (option(line, "--gpu-memory-utilization"), option(line, "--tensor-parallel-size")) == ("0.4", "2")
    assert (variables["CUDA_VISIBLE_DEVICES"], variables["PATH"]) == ("5,6", "/bin")
    assert "--enforce-eager" not in line and "OMP_NUM_THREADS" not in variables
    on_cpu = environment(settings(threads=3), {"CUDA_VISIBLE_DEVICES": "7"})
    assert (on_cpu["OMP_NUM_THREADS"], on_cpu["VLLM_CPU_KVCACHE_SPACE"]) == ("3", "1")


def test_every_slot_has_room_for_a_whole_sequence(settings, tmp_path):
    # 3 layers of 2 heads of 32, keys and values in float32: 1,536 bytes a token.
    tokens = 2 * 4096 * (16_384 + 32)
    assert cache_gib(settings(slots=4096, max_model_len=16_384)) == -(-tokens * 1536 // 2**30)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ServerError, match=r"config.json: KeyError 'num_hidden_layers'"):
        cache_gib(settings())


def test_the_environment_is_found_where_it_is_said_to_be(settings, monkeypatch, tmp_path):
    python = settings().python
    monkeypatch.setenv(vllm_server.PYTHON_VARIABLE, python)
    assert find_python() == python and find_python(sys.executable) == sys.executable
    monkeypatch.setenv(vllm_server.PYTHON_VARIABLE, str(tmp_path / "other"))
    with pytest.raises(FileNotFoundError, match=r"other is not an interpreter; run launch/setup_vllm.sh, or set"):
        find_python()
    monkeypatch.delenv(vllm_server.PYTHON_VARIABLE)
    monkeypatch.setattr(vllm_server, "ROOT", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"\.venv-vllm/bin/python"):
        find_python()


WATCHED = """
import importlib.util, sys, time
spec = importlib.util.spec_from_file_location("watch", sys.argv[1])
watch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(watch)
watch.die_with_parent()
print("watching", flush=True)
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys, time
environment = {**os.environ, "METAAGENT_X_PARENT": str(os.getpid())}
subprocess.Popen([sys.executable, "-S", *sys.argv[1:]], env=environment, start_new_session=True)
time.sleep(60)
"""


def test_a_server_does_not_outlive_the_program_that_started_it():
    watch = vllm_server.WORKER / "metaagent_x_vllm" / "watch.py"
    parent = subprocess.Popen(
        [sys.executable, "-S", "-c", PARENT, "-c", WATCHED, str(watch)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None and parent.stdout.readline() == "watching\n"
    began = time.monotonic()
    parent.kill()
    parent.wait()
    assert parent.stdout.read() == ""  # comes when the server, which holds the other end, is gone
    assert time.monotonic() - began < 30
