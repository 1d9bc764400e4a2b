"""Running code that nobody trusts: one run, one contained process (design in `zygote.py`)."""

from metaagent_x.sandbox.client import close
from metaagent_x.sandbox.limits import Limits, Result, SandboxFailure
from metaagent_x.sandbox.python import run_python

__all__ = ["Limits", "Result", "SandboxFailure", "close", "run_python"]
