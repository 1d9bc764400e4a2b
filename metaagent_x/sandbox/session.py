"""A contained process that the host talks to: one JSON object a line, both ways. For asyncio; no thread per session."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
from typing import Any

from metaagent_x.sandbox import client, folders
from metaagent_x.sandbox.limits import Limits, SandboxFailure
from metaagent_x.sandbox.python import GRACE_S, status_of

LINE_BYTES = 1 << 20


class MalformedMessage(ValueError):
    """The contained process sent something that is not one JSON object on one line of bounded length."""


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a session's process ended.

    Attributes:
      status: as in `Result`; "ok" also when the host ended it.
      reason: one line for a person.
    """

    status: str
    reason: str


class Session:
    """The host's end. Made by `open_session`; use `receive`, `send`, then always `end`."""

    def __init__(
        self, zygote: client.Zygote, folder: str, report: socket.socket, limits: Limits,
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
    ):  # fmt: skip
        self._zygote, self._folder, self._report, self._limits = zygote, folder, report, limits
        self._reader, self._writer = reader, writer
        self.received_bytes = 0  # so far

    async def receive(self) -> dict[str, Any] | None:
        """The next message, or None when the process has closed its end.

        Raises:
          MalformedMessage: not JSON, not an object, longer than 1 MiB, or cut by the end of the process.
        """
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        except ValueError as problem:
            raise MalformedMessage(f"a line of more than {LINE_BYTES} bytes") from problem
        if not line:
            return None
        self.received_bytes += len(line)
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as problem:
            raise MalformedMessage(f"{line[:80]!r} is not JSON") from problem
        if not isinstance(message, dict):
            raise MalformedMessage(f"{line[:80]!r} is not a JSON object")
        return message

    async def send(self, message: dict[str, Any]) -> None:
        """Sends one message; waits while the process does not read, so that it cannot fill our memory."""
        with contextlib.suppress(ConnectionError):
            self._writer.write(json.dumps(message).encode() + b"\n")
            await self._writer.drain()

    def abort(self) -> None:
        """Closes the line at once: a pending `receive` returns None."""
        self._writer.transport.abort()

    async def end(self, grace_s: float = 0.0) -> Ending:
        """Waits up to `grace_s` for the process to end by itself, kills its group, reaps it, removes its folder.

        Raises:
          SandboxFailure: the zygote died, and what the process did is unknown; or the process never started.
        """
        self.abort()
        loop = asyncio.get_running_loop()
        waiting = asyncio.ensure_future(loop.sock_recv(self._report, 4096))
        try:
            await asyncio.wait([waiting], timeout=grace_s)
            if not waiting.done():
                # Not a message: one that the zygote had no time to read would cost us its report (ECONNRESET).
                with contextlib.suppress(OSError):
                    self._report.shutdown(socket.SHUT_WR)
            message = await asyncio.wait_for(waiting, GRACE_S)
            if not message:
                self._zygote.lose()  # the next use starts another one
        except (TimeoutError, ConnectionError):
            message = b""
        finally:
            waiting.cancel()
            self._report.close()
            await _remove(self._folder)
        if not message:
            raise SandboxFailure(f"the sandbox process {self._zygote.process.pid} died during a session")
        ending = json.loads(message.split(b"\n")[0])
        if "refused" in ending:
            raise SandboxFailure(f"the sandbox could not start a session: {ending['refused']}")
        if ending["killed"] == "host":
            return Ending("ok", "ended by the host")
        status = status_of(ending, self._limits)
        return Ending(status, f"{status}: exit code {ending['exit']} after {ending['cpu_s']:.1f} CPU s")


async def _remove(folder: str) -> None:
    """`folders.remove` without holding up the event loop when there is something to remove."""
    try:
        os.rmdir(folder)
    except OSError:
        await asyncio.get_running_loop().run_in_executor(None, folders.remove, folder)


async def open_session(entry: str, *, limits: Limits) -> Session:
    """Starts a contained process that runs `entry` and nothing else.

    Args:
      entry: "module:function" of this package; imported once in the zygote. The function gets descriptor 3, its end of
        the line, and returns the exit code.
      limits: `wall_s` is a backstop; the host normally ends a session itself.

    Raises:
      SandboxFailure: the zygote could not be started.
    """
    zygote = client.zygote()
    folder = zygote.new_folder()
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            while (report := zygote.submit(folder, [theirs.fileno()], limits, entry)) is None:
                await asyncio.sleep(0.002)
        except BaseException:
            ours.close()
            folders.remove(folder)
            raise
    report.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=ours, limit=LINE_BYTES)
    return Session(zygote, folder, report, limits, reader, writer)
