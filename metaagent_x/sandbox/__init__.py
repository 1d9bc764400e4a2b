"""Running code that nobody trusts: one run, one contained process (design in `zygote.py`)."""

from metaagent_x.sandbox.client import close
from metaagent_x.sandbox.limits import Limits, Result, SandboxFailure
from metaagent_x.sandbox.python import run_python
from metaagent_x.sandbox.session import Ending, MalformedMessage, Session, open_session

__all__ = [
    "Ending", "Limits", "MalformedMessage", "Result", "SandboxFailure", "Session", "close", "open_session",
    "run_python",
]  # fmt: skip
