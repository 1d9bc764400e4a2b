"""What nodes of the workflow dialect share: messages, contexts, and what an agent is shown of them."""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import Any

from metaagent_x.mas.language import Language
from metaagent_x.mas.line import Sources, passed, path_of
from metaagent_x.mas.records import OVERLAP_CHARS

DELIVERY = re.compile(r"<delivery>(.*?)</delivery>", re.DOTALL)
NOTES = "\n\nResults so far:\n"


class Play:
    """The one script that this process runs.

    Attributes:
      language: its names. replies: all completions so far. result: what the last run of a workflow gave, if any.
    """

    language: Language

    def __init__(self) -> None:
        self.replies: list[str] = []
        self.result: Message | None = None


PLAY = Play()


class MessageType(enum.Enum):
    USER_INPUT = "user_input"
    AGENT_RESPONSE = "agent_response"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    INTERMEDIATE = "intermediate"
    FINAL_RESULT = "final_result"
    ERROR = "error"


SHOWN = (MessageType.AGENT_RESPONSE, MessageType.INTERMEDIATE, MessageType.FINAL_RESULT)


@dataclasses.dataclass
class Message:
    """What a node gives. `problem` is the exception behind an ERROR."""

    content: Any
    message_type: MessageType = MessageType.AGENT_RESPONSE
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    sender: str | None = None
    recipient: str | None = None
    problem: Exception | None = dataclasses.field(default=None, repr=False)

    def __str__(self) -> str:
        return str(self.content)


@dataclasses.dataclass
class Context:
    """The messages and the state that the nodes of a workflow share."""

    messages: list[Message] = dataclasses.field(default_factory=list)
    state: dict[str, Any] = dataclasses.field(default_factory=dict)
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)

    def add_message(self, message: Message) -> None:
        self.messages.append(message)

    def get_messages_by_type(self, message_type: MessageType) -> list[Message]:
        return [m for m in self.messages if m.message_type is message_type]

    def get_latest_message(self, message_type: MessageType | None = None) -> Message | None:
        kept = self.messages if message_type is None else self.get_messages_by_type(message_type)
        return kept[-1] if kept else None

    def set_state(self, key: str, value: Any) -> None:
        self.state[key] = value

    def get_state(self, key: str, default: Any = None) -> Any:
        return self.state.get(key, default)

    def copy(self) -> Context:
        return Context([*self.messages], dict(self.state), dict(self.metadata))


class Ask(str):
    """A message to an agent that was put together here; `sources` are the completions that it passes on."""

    sources: Sources

    def __new__(cls, text: str, sources: Sources = ()) -> Ask:
        self = super().__new__(cls, text)
        self.sources = sources
        return self


def question(given: Any) -> Ask:
    """What a workflow is run on: the task; besides it what the script gave, if that goes back to earlier replies."""
    given = given.content if isinstance(given, Message) else given
    text, language = str(given), PLAY.language
    paths = [path_of(reply) for reply in PLAY.replies if reply is given or _quotes(text, reply)]
    return Ask(language.task + NOTES + language.brief(text), passed(paths)) if paths else Ask(language.task)


def _quotes(text: str, reply: str) -> bool:
    """True if 24 characters of a reply, all of a shorter one, or its answer stand in a text and not in the task."""
    task, answer = PLAY.language.task, PLAY.language.answer_of(reply)
    own, n = reply.replace(task, "\0"), min(len(reply), OVERLAP_CHARS)
    if any(piece.strip() not in task for piece in _pieces(text, n) & _pieces(own, n)):
        return True
    alone = re.compile(rf"(?<!\w){re.escape(answer)}(?!\w)")
    return bool(answer and alone.search(text) and not alone.search(task))


def _pieces(text: str, n: int) -> set[str]:
    return {text[i : i + n] for i in range(len(text) - n + 1)}


def view(context: Context) -> Ask:
    """What an agent is asked in a context: the question, and what each earlier agent delivers.

    The question is the first message of the user. If a node of the script wrote it, the task must stand in it.
    """
    asked = next((m.content for m in context.messages if m.message_type is MessageType.USER_INPUT), "")
    if not isinstance(asked, Ask):
        asked = Ask(str(asked)) if PLAY.language.task in str(asked) else question(asked)
    earlier = [m for m in context.messages if m.message_type in SHOWN]
    shown = "".join(f"\n\n{m.sender or 'Agent'}:\n{_deliverable(str(m.content))}" for m in earlier)
    return Ask(asked + shown, (*asked.sources, *passed(path_of(m.content) for m in earlier)))


def _deliverable(text: str) -> str:
    """What is passed on of a reply: what it says to deliver and its answer; else as much of it as a brief holds."""
    language, told = PLAY.language, DELIVERY.findall(text)
    if not told:
        return language.brief(text)
    if language.kind == "code":
        final = language.code_of(text).strip()
        shown = f"```python\n{final}\n```"
    else:
        final = language.answer_of(text)
        shown = f"\\boxed{{{final}}}"
    return language.brief(told[-1].strip() + ("\n\n" + shown if final not in told[-1] else ""))
