"""Limits per minute: nobody too early, nobody later than needed."""

import asyncio

import pytest

from metaagent_x.rollout import pace
from metaagent_x.rollout.pace import Pace


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.now, self.waiting = 1000.0, []

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        until = self.now + seconds
        while self.now < until:
            self.waiting.append(until)
            await REAL(0)
            if self.now < until == min(self.waiting):  # the first of all that sleep
                self.now = until
            self.waiting.remove(until)


REAL = asyncio.sleep


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(pace.asyncio, "sleep", clock.sleep)
    return clock


async def sent(line, clock, *tokens):
    """When requests with so many prompt tokens, all asked at once, were let go; seconds from now."""
    began = clock()

    async def one(n):
        await line.turn(n)
        return round(clock() - began, 6)

    return await asyncio.gather(*map(one, tokens))


async def test_without_limits_nobody_waits(clock):
    assert await sent(Pace(clock=clock), clock, 1, 10**6, 10**6) == [0, 0, 0]


async def test_requests_are_spread_over_the_minute(clock):
    assert await sent(Pace(requests=30, clock=clock), clock, 1, 1, 1) == [0, 2, 4]


async def test_tokens_are_counted_and_the_stricter_limit_decides(clock):
    line = Pace(requests=60, tokens=600, clock=clock)  # a request takes 1 s, a token 0.1 s
    assert await sent(line, clock, 5, 50, 1) == [0, 1, 6]


async def test_tokens_of_completions_delay_who_comes_after(clock):
    line = Pace(tokens=600, clock=clock)
    assert await sent(line, clock, 10) == [0]
    line.used(30)
    assert await sent(line, clock, 1) == [4]  # 1 s for the prompt before, 3 s for its completion


async def test_patience_that_is_asked_for_holds_also_those_who_wait(clock):
    line = Pace(requests=60, clock=clock)
    waiting = asyncio.ensure_future(sent(line, clock, 1, 1))
    await REAL(0)
    line.hold(10)
    assert (await waiting)[1] == 10 and clock() == 1010
