"""Keeps the requests to an endpoint within its limits per minute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Pace:
    """One line for all requests: each starts when those before it have used up their share of the minute.

    Requests and prompt tokens are spread evenly, without bursts, so no minute, wherever it begins, holds more of them
    than the limit. The tokens of a completion are known only when it is there: they delay the requests after it, so a
    minute in which many long ones end may hold more.

    Args:
      requests, tokens: a minute; 0: no limit. clock: seconds.
    """

    def __init__(self, requests: int = 0, tokens: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._request_s = 60.0 / requests if requests else 0.0
        self._token_s = 60.0 / tokens if tokens else 0.0
        self._clock, self._free, self._held = clock, 0.0, 0.0

    async def turn(self, tokens: int) -> None:
        """Waits until a request whose prompt has so many tokens may be sent."""
        begin = max(self._free, self._clock())
        self._free = begin + max(self._request_s, tokens * self._token_s)
        while (wait_s := max(begin, self._held) - self._clock()) > 0:
            await asyncio.sleep(wait_s)

    def used(self, tokens: int) -> None:
        """So many more tokens were used by a request that had its turn."""
        self._free = max(self._free, self._clock()) + tokens * self._token_s if self._token_s else self._free

    def hold(self, seconds: float) -> None:
        """Nobody gets a turn for so long, those who wait already included."""
        self._held = max(self._held, self._clock() + seconds)
