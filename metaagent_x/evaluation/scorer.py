"""Who says what is right: results of different scorers must not stand in one table (MASWorks/MASLab#6)."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import json
import platform
import types

from metaagent_x.mas import provenance
from metaagent_x.rollout import collect
from metaagent_x.tasks import (
    code,
    compare,
    contained,
    grader,
    kinds,
    math,
    math_exact,
    math_forms,
    math_pool,
    math_units,
    math_worker,
    syntax,
)

NAME = "metaagent_x"
SOURCES: tuple[types.ModuleType, ...] = (
    code, collect, compare, contained, grader, kinds, math, math_exact, math_forms, math_pool, math_units, math_worker,
    provenance, syntax,
)  # fmt: skip
LIBRARIES = ("math-verify", "latex2sympy2-extended", "sympy")  # that decide what is the same in mathematics


@functools.cache
def scorer() -> str:
    """Name and version of the grader: a hash of its source, the libraries and the Python that it judges with.

    Grading itself has no settings here: an answer is right if all of it is, and the format earns nothing.
    """
    libraries = {name: importlib.metadata.version(name) for name in LIBRARIES}
    python = ".".join(platform.python_version_tuple()[:2])
    parts = json.dumps([[inspect.getsource(module) for module in SOURCES], libraries, python])
    return f"{NAME}/{hashlib.sha256(parts.encode()).hexdigest()[:12]}"
