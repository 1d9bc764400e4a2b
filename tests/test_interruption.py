"""A signal ends a job where it can bear it: at an await, never inside a block that belongs together."""

import asyncio
import gc
import os
import signal
import time

import pytest

from metaagent_x import interruption
from metaagent_x.interruption import Interruption


@pytest.fixture
def stop():
    before = {one: signal.getsignal(one) for one in interruption.SIGNALS}
    one = Interruption(lambda text: None)
    one.install()
    yield one
    for name, handler in before.items():
        signal.signal(name, handler)


def soon(name=signal.SIGTERM, after=0.05):
    """Sends the signal from outside, while the coroutine is in `select`."""
    asyncio.get_running_loop().run_in_executor(None, lambda: (time.sleep(after), os.kill(os.getpid(), name)))


@pytest.mark.parametrize("name", interruption.SIGNALS)
def test_a_signal_ends_a_wait_and_what_was_opened_is_closed(stop, name):
    closed = []

    async def job():
        try:
            soon(name)
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.01)  # closing may wait, too
            closed.append(True)

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        stop.run(job())
    assert closed and stop.asked and time.monotonic() - began < 10


def test_a_signal_waits_for_the_end_of_a_held_block_and_comes_at_the_next_await(stop):
    seen = []

    async def job():
        with stop.held():
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)
            seen.append(stop.asked)
        seen.append("code that does not wait")
        await asyncio.sleep(0)
        seen.append("never")

    with pytest.raises(KeyboardInterrupt):
        stop.run(job())
    assert seen == [True, "code that does not wait"]


def test_a_signal_just_before_a_held_block_comes_after_it(stop):
    seen = []

    async def job():
        os.kill(os.getpid(), signal.SIGTERM)
        with stop.held():
            await asyncio.sleep(0.05)
            seen.append("whole")
        await asyncio.sleep(30)

    with pytest.raises(KeyboardInterrupt):
        stop.run(job())
    assert seen == ["whole"]


def test_a_signal_inside_a_library_callback_is_not_lost(stop):
    """JAX's callback at garbage collection swallowed the exception, and the run went on to its end."""

    def callback(phase, info):
        if not stop.asked:
            os.kill(os.getpid(), signal.SIGTERM)

    async def job():
        gc.callbacks.append(callback)
        try:
            gc.collect()
        finally:
            gc.callbacks.remove(callback)
        await asyncio.sleep(30)

    with pytest.raises(KeyboardInterrupt):
        stop.run(job())


def test_a_signal_that_was_swallowed_before_the_job_began_ends_it_at_once(stop):
    async def job():
        await asyncio.sleep(30)

    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    with pytest.raises(KeyboardInterrupt):
        stop.run(job())


def test_an_echo_is_ignored_and_a_second_signal_does_not_wait(stop, monkeypatch):
    seen = []

    async def job():
        with stop.held():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)  # at once: the same wish
            seen.append("echo")
            monkeypatch.setattr(interruption, "AT_ONCE_S", 0.0)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
            seen.append("never")

    with pytest.raises(KeyboardInterrupt):
        stop.run(job())
    assert seen == ["echo"]


def test_a_job_that_nobody_stops_returns_its_value_and_its_errors(stop):
    async def job(fails):
        if fails:
            raise asyncio.CancelledError("its own")
        return 7

    assert stop.run(job(False)) == 7
    with pytest.raises(asyncio.CancelledError, match="its own"):
        stop.run(job(True))


@pytest.mark.parametrize("name", interruption.SIGNALS)
def test_a_signal_that_comes_while_its_stream_is_being_written_is_not_lost(stop, name):
    """Rich raises in the handler if the main thread is inside a write to the same stream."""

    def say(text):
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stdout>'>")

    stop._say = say

    async def job():
        os.kill(os.getpid(), name)
        await asyncio.sleep(30)

    with pytest.raises(KeyboardInterrupt):
        stop.run(job())


def test_a_held_block_that_fails_is_not_taken_for_an_interruption(stop):
    closed = []

    async def job():
        try:
            with stop.held():
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.05)
                raise OSError("the push failed")
        finally:
            await asyncio.sleep(0.01)
            closed.append(True)

    with pytest.raises(OSError, match="the push failed"):
        stop.run(job())
    assert closed


async def test_closing_goes_on_to_its_end_however_often_the_caller_is_cancelled():
    done = []

    async def close():
        for _ in range(5):
            await asyncio.sleep(0.01)
        done.append(True)
        return 7

    task = asyncio.create_task(interruption.to_the_end(close()))
    for _ in range(3):
        await asyncio.sleep(0.005)
        task.cancel()
    assert await task == 7 and done

    async def fails():
        await asyncio.sleep(0.01)
        raise OSError("cannot be closed")

    with pytest.raises(OSError, match="cannot be closed"):
        await interruption.to_the_end(fails())


def test_nohup_stays_in_force(stop):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop.install()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
