"""The script process's end of the line: requests and replies, and the paths that number them."""

from __future__ import annotations

import itertools
import json
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

Sources = tuple[tuple[str, str], ...]  # (path of the completion that is passed on, "pass" | "judge" | "tests")


class Stop(BaseException):
    """A budget is used up. Not an Exception, so that a script's own `except` does not swallow it by accident."""


class Reply(str):
    """A completion's text that remembers the path of its call."""

    path = ""

    def __new__(cls, text: str, path: str) -> Reply:
        self = super().__new__(cls, text)
        self.path = path
        return self


class Joined(str):
    """A message that was put together, with the paths of the completions in it."""

    paths: tuple[str, ...] = ()


def paths_of(text: Any) -> tuple[str, ...]:
    """The paths of all completions that a message is known to hold."""
    if isinstance(text, Joined):
        return text.paths
    return (text.path,) if path_of(text) else ()


def path_of(text: Any) -> str:
    return text.path if isinstance(text, Reply) else ""


def passed(paths: Iterable[str], how: str = "pass") -> Sources:
    """What a message passes on: the completions of these paths, "" for a text that is none."""
    return tuple((path, how) for path in paths if path)


class Line:
    """Requests to the host and their replies, matched by id; any thread may ask."""

    def __init__(self, connection: socket.socket):
        self.file = connection.makefile("rb")
        self.connection, self.lock = connection, threading.Lock()
        self.waiting: dict[int, queue.SimpleQueue] = {}
        self.ids = itertools.count()

    def tell(self, **message: Any) -> None:
        data = json.dumps(message).encode() + b"\n"
        with self.lock:
            self.connection.sendall(data)

    def ask(self, sent: Callable[[], None], **message: Any) -> dict[str, Any]:
        """Sends a request, calls `sent`, waits for the reply.

        Raises:
          Stop: a budget is used up.
          RuntimeError: the host refused the request; the message says why.
        """
        number, box = next(self.ids), queue.SimpleQueue()
        self.waiting[number] = box
        self.tell(id=number, **message)
        sent()
        reply = box.get()
        if "stop" in reply:
            raise Stop(reply["stop"])
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply

    def read(self) -> None:
        """Delivers replies until the host hangs up, or memory runs out: nobody may wait for a reply for ever."""
        try:
            for line in self.file:
                reply = json.loads(line)
                if (box := self.waiting.pop(reply["id"], None)) is not None:  # else a script asked behind our back
                    box.put(reply)
        finally:
            os._exit(1)


class Branch:
    """A sequence of steps with its own numbering. `sources` say what the next message passes on."""

    def __init__(self, prefix: tuple[int, ...] = (), parent: Branch | None = None, sources: Sources = ()):
        self.prefix, self.parent, self.sources = prefix, parent, sources
        self.started, self.number = threading.Event(), 0

    def take(self) -> tuple[int, ...]:
        self.number += 1
        return (*self.prefix, self.number - 1)

    def mark(self) -> None:
        """The first request of this branch is on its way."""
        branch: Branch | None = self
        while branch is not None:
            branch.started.set()
            branch = branch.parent
