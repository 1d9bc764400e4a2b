"""Sessions: a contained process that talks, and what happens when it talks badly."""

import asyncio
import os

import pytest

from metaagent_x import sandbox
from metaagent_x.sandbox import Limits, MalformedMessage, client, open_session

LIMITS = Limits(cpu_s=5, wall_s=30, memory_mb=200)


@pytest.fixture
def zoo(monkeypatch):
    """A zygote that can import the functions below as `session_zoo`."""
    sandbox.close()
    folder = os.path.dirname(__file__)
    monkeypatch.setattr(client, "START", "import sys; sys.path.append(" + repr(folder) + "); " + client.START)
    yield
    sandbox.close()


@pytest.mark.parametrize("name,received", [("echo", {"got": {"x": "ä\n{0}"}}), ("nothing", None)])
async def test_one_object_a_line_both_ways(zoo, name, received):
    session = await open_session(f"session_zoo:{name}", limits=LIMITS)
    await session.send({"x": "ä\n{0}"})
    assert await session.receive() == received
    assert await session.receive() is None
    ending = await session.end(5.0)
    assert ending.status == ("ok" if name == "echo" else "error")
    assert "exit code 7" in ending.reason or name == "echo"


@pytest.mark.parametrize("name", ["not_json", "not_object", "huge_line", "half_line", "binary", "deep"])
async def test_a_malformed_message_is_named(zoo, name):
    session = await open_session(f"session_zoo:{name}", limits=LIMITS)
    with pytest.raises(MalformedMessage):
        for _ in range(3):
            await session.receive()
    await session.end()


async def test_end_kills_at_once_and_cleans(zoo):
    session = await open_session("session_zoo:sleep", limits=LIMITS)
    started = await session.receive()
    assert started is not None and os.path.exists(started["folder"])
    assert (await session.end()).status == "ok"
    assert not os.path.exists(f"/proc/{started['pid']}") and not os.path.exists(started["folder"])


async def test_hanging_up_without_ending_is_not_waited_for(zoo):
    session = await open_session("session_zoo:hang_up", limits=LIMITS)
    assert await session.receive() is None
    assert (await session.end(0.2)).reason == "ended by the host"


async def test_an_unknown_entry_is_refused(zoo):
    session = await open_session("session_zoo:no_such_function", limits=LIMITS)
    assert await session.receive() is None
    with pytest.raises(sandbox.SandboxFailure, match="no_such_function"):
        await session.end(5.0)


async def test_many_sessions_at_once_without_threads(zoo):
    async def one(i):
        session = await open_session("session_zoo:echo", limits=LIMITS)
        await session.send({"i": i})
        reply = await session.receive()
        await session.end()
        return reply

    descriptors = len(os.listdir("/proc/self/fd"))
    assert await asyncio.gather(*(one(i) for i in range(64))) == [{"got": {"i": i}} for i in range(64)]
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2  # the zygote's own, started here


async def test_a_process_that_does_not_read_cannot_fill_our_memory(zoo):
    session = await open_session("session_zoo:sleep", limits=LIMITS)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            for _ in range(200):
                await session.send({"x": "y" * 100_000})
    await session.end()


async def test_the_death_of_the_zygote_is_a_failure_not_an_ending(zoo):
    session = await open_session("session_zoo:sleep", limits=LIMITS)
    await session.receive()
    client.zygote().process.kill()
    assert await session.receive() is None
    with pytest.raises(sandbox.SandboxFailure, match="died"):
        await session.end()
    session = await open_session("session_zoo:echo", limits=LIMITS)
    await session.send({})
    assert await session.receive() == {"got": {}}
    await session.end()
