"""Running code that nobody trusts: one run, one process (`zygote.py`), kept from all others (`containment.py`)."""

import importlib

TYPE_CHECKING = False  # as type checkers know it; what `typing` brings in would be copied by every fork
if TYPE_CHECKING:
    from metaagent_x.sandbox.client import MODES, close, use
    from metaagent_x.sandbox.limits import Limits, Result, SandboxFailure, SandboxRefused
    from metaagent_x.sandbox.python import Program, run_python
    from metaagent_x.sandbox.session import Ending, MalformedMessage, Session, open_session

__all__ = [
    "MODES", "Ending", "Limits", "MalformedMessage", "Program", "Result", "SandboxFailure", "SandboxRefused", "Session",
    "close", "open_session", "run_python", "use",
]  # fmt: skip
_PLACES = {
    "client": ("MODES", "close", "use"),
    "limits": ("Limits", "Result", "SandboxFailure", "SandboxRefused"),
    "python": ("Program", "run_python"),
    "session": ("Ending", "MalformedMessage", "Session", "open_session"),
}


def __getattr__(name: str) -> object:
    """Imported when asked for: the zygote needs none of it."""
    for place, names in _PLACES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{place}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
