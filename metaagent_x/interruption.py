"""SIGINT, SIGTERM and SIGHUP end a job in order, at a place that can bear it.

An exception raised by a signal handler comes up wherever the interpreter happens to be: a library's callback may
swallow it (JAX's at garbage collection does), and one that unwinds through compiled code may leave that broken. So the
first signal only cancels what the main coroutine awaits; inside `held()` it waits for the end of the block, where
weights, metrics and files agree again. A second signal, for whoever cannot wait, raises KeyboardInterrupt on the spot.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AT_ONCE_S = 2.0  # a second signal earlier than this is the first one's echo: a terminal and a launcher both send one


class Interruption:
    """The signals of one process.

    Attributes:
      asked: a signal has come.
    """

    def __init__(self, say: Callable[[str], Any] = print) -> None:
        """`say` tells the person that the signal was heard."""
        self.asked = False
        self._say, self._since, self._held = say, 0.0, False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task | None = None

    def install(self) -> None:
        """From now on the signals come here, but for a SIGHUP that is ignored (nohup). Main thread only."""
        for one in SIGNALS:
            if one != signal.SIGHUP or signal.getsignal(one) is not signal.SIG_IGN:
                signal.signal(one, self._heard)

    def run(self, job: Coroutine[Any, Any, T]) -> T:
        """`asyncio.run`, ended by a signal.

        Raises:
          KeyboardInterrupt: a signal came, also before; everything that `job` opened has been closed.
        """
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            try:
                return runner.run(self._main(job))
            except asyncio.CancelledError:
                if self.asked:
                    raise KeyboardInterrupt from None
                raise
            finally:
                self._loop = self._task = None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keeps a signal waiting until the block ends; it is raised at the next `await` after it, unless the block has
        raised something itself: then the job is on its way out already."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self.asked:
            self._cancel()

    async def _main(self, job: Coroutine[Any, Any, T]) -> T:
        self._task = asyncio.current_task()
        if self.asked:
            self._cancel()
        return await job

    def _cancel(self) -> None:
        """Runs in the event loop only: never in the middle of what the coroutine does between two awaits."""
        if self._task is not None and not self._held:
            self._task.cancel()

    def _heard(self, *_: object) -> None:
        now = time.monotonic()
        if self.asked:
            if now - self._since >= AT_ONCE_S:
                raise KeyboardInterrupt
            return
        self.asked, self._since = True, now
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel)
        with contextlib.suppress(Exception):  # the signal may have come in the middle of a write to the same stream
            self._say("stopping ... (once more: at once)")
        if self._loop is None:  # nothing has been begun that needs an end
            raise KeyboardInterrupt


async def to_the_end(job: Coroutine[Any, Any, T]) -> T:
    """Awaits what must not be left half done, such as closing: a cancellation of the caller neither ends nor follows
    it."""
    task = asyncio.ensure_future(job)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
        except Exception:
            break
    return task.result()
