"""Running code that nobody trusts: one run, one process (`zygote.py`), kept from all others (`containment.py`)."""

from metaagent_x.sandbox.client import MODES, close, use
from metaagent_x.sandbox.limits import Limits, Result, SandboxFailure, SandboxRefused
from metaagent_x.sandbox.python import Program, run_python
from metaagent_x.sandbox.session import Ending, MalformedMessage, Session, open_session

__all__ = [
    "MODES", "Ending", "Limits", "MalformedMessage", "Program", "Result", "SandboxFailure", "SandboxRefused", "Session",
    "close", "open_session", "run_python", "use",
]  # fmt: skip
