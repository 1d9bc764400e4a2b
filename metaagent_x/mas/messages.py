"""Reading what a script process sends. It is hostile: every field is checked before it is used."""

from __future__ import annotations

import re
from typing import Any

from metaagent_x.mas.records import CallRequest

PATH = re.compile(r"(0|[1-9][0-9]{0,3})(\.(0|[1-9][0-9]{0,3})){0,40}")  # one place has one path
CONVERSATION = re.compile(rf"(m{PATH.pattern})?")
MAX_NAME_CHARS = 200
MAX_TEXT_CHARS = 100_000  # of a text to be read for its answer; a completion has fewer
BYTES_A_CALL = 1 << 19  # that a script sends for a call, with all that it asks about the reply
LINK_KINDS = ("pass", "vote", "judge", "tests", "answer")


class Malformed(ValueError):
    """The script process sent something that the language never sends."""


class Allowance:
    """How much a script may have the host read and compare, beyond what calls and tools are counted for.

    An honest script needs a tenth: its texts are those of its calls. Reading and comparing hold up all other scripts.
    """

    def __init__(self, calls: int):
        """For a budget of so many calls."""
        self.left = {
            "bytes": BYTES_A_CALL * (2 + calls), "characters": 2 * MAX_TEXT_CHARS * calls, "links": 1000 * calls,
            "comparisons": 4 * calls * calls,
        }  # fmt: skip

    def spend(self, what: str, amount: int) -> None:
        """Raises Malformed when more is asked for than is left."""
        self.left[what] -= amount
        if self.left[what] < 0:
            raise Malformed(f"more {what} than its calls can account for")


def readable(value: str) -> str:
    """The end of a text, where its answer stands, if it is longer than anything that an agent says."""
    return value[-MAX_TEXT_CHARS:]


def text(message: dict[str, Any], field: str) -> str:
    """A text field, lone surrogates replaced: no tokenizer and no file takes them."""
    value = message.get(field)
    if not isinstance(value, str):
        raise Malformed(f"field {field!r} is {type(value).__name__}, not text")
    return clean(value)


def clean(value: str) -> str:
    return value.encode("utf-8", "replace").decode()


def path(message: dict[str, Any]) -> str:
    value = text(message, "path")
    if not PATH.fullmatch(value):
        raise Malformed(f"path {value[:40]!r} is not numbers with dots")
    return value


def order(path: str) -> tuple[int, ...]:
    """Sort key of a path: "0.10" stands after "0.9"."""
    return tuple(map(int, path.split(".")))


def depth(path: str) -> int:
    """How many structures stand around a call: a structure adds its number and a branch index."""
    return path.count(".") // 2


def number(message: dict[str, Any]) -> int:
    value = message.get("id")
    if not isinstance(value, int) or isinstance(value, bool):
        raise Malformed(f"id is {str(value)[:40]!r}, not a number")
    return value


def count(message: dict[str, Any]) -> int:
    value = message.get("count")
    if not isinstance(value, int) or isinstance(value, bool):
        raise Malformed(f"count is {str(value)[:40]!r}, not a number")
    return value


def request(message: dict[str, Any]) -> CallRequest:
    messages = message.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, str) for m in messages):
        raise Malformed("messages is not a list of texts")
    conversation = text(message, "conversation")
    if not CONVERSATION.fullmatch(conversation):
        raise Malformed(f"conversation {conversation[:40]!r} was never given out")
    return CallRequest(
        path(message), text(message, "agent")[:MAX_NAME_CHARS], text(message, "role"), conversation,
        tuple(clean(m) for m in messages),
    )  # fmt: skip


def links(value: Any, target: str | None = None) -> list[tuple[str, str, str]]:
    """Edges `[source, target, how]`, or `[source, how]` where the target is given."""
    if not isinstance(value, list) or len(value) > 1000:
        raise Malformed("links is not a list")
    out = []
    for item in value:
        if not isinstance(item, list) or not all(isinstance(part, str) for part in item):
            raise Malformed("a link is not a list of texts")
        parts = [item[0], target, item[1]] if target is not None and len(item) == 2 else item
        if len(parts) != 3 or parts[2] not in LINK_KINDS:
            raise Malformed(f"link {str(item)[:80]} has no source, target and kind")
        out.append((parts[0], parts[1], parts[2]))
    return out


def texts(message: dict[str, Any]) -> list[str]:
    value = message.get("texts")
    if not isinstance(value, list) or len(value) > 1000 or not all(isinstance(t, str) for t in value):
        raise Malformed("texts is not a list of texts")
    return [clean(t) for t in value]
