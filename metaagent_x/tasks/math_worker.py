"""Worker side of `math_pool`: reads pairs of answers, writes verdicts. Runs in its own process, never in the host.

`math_forms` takes the answers apart; math-verify reads and compares expressions, with two changes:

- the whole text is read, or nothing: its search for something readable inside a text turns "(-oo, 0) U {1}." into 0;
- numbers are compared exactly: its rounding to 6 places and `evalf(chop=True)` make 1/2004! equal to 1/2006!
  (huggingface/Math-Verify#14).
"""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import signal
import sys
from typing import Any

from metaagent_x.tasks import math_exact, math_forms

EXACT_DIGITS = 60  # irrational numbers that agree to so many digits and cannot be told apart symbolically are equal


def main(cpu_s: float, memory_mb: int) -> None:
    """Serves until stdin ends. A comparison that uses more than `cpu_s` CPU seconds ends the process (SIGPROF)."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a library prints must not look like a verdict
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    try:
        verify = make_verifier()
        verify("2", "1+1")
    except Exception as problem:
        out.write(json.dumps({"error": repr(problem)}).encode() + b"\n")
        return
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    sys.set_int_max_str_digits(0)
    out.write(b"{}\n")
    for line in sys.stdin.buffer:
        gold, answer = json.loads(line)
        # By the kernel, not by a Python handler: one big-integer operation never returns to the interpreter.
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        try:
            equal = verify(gold, answer)
        except (MemoryError, RecursionError):
            equal = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        out.write(json.dumps({"equal": equal}).encode() + b"\n")


def make_verifier() -> Any:
    """Imports math-verify and returns `verify(gold, answer) -> bool` on normalised texts."""
    from math_verify import grader

    for name in ("sympy_numeric_eq", "verify"):
        if not hasattr(grader, name):
            raise ImportError(f"math_verify.grader has no {name}: this version of math-verify is not supported")
    grader.sympy_numeric_eq = exact_numeric_eq  # called for every number, also inside sets, tuples and intervals

    def same(answer: str, gold: str) -> bool:
        if (verdict := math_exact.same(answer, gold)) is not None:
            return verdict
        g, a = read(gold), read(answer)
        if g is None or a is None:
            return False
        return grader.verify([g], [a], timeout_seconds=None)

    return lambda gold, answer: bool(math_forms.equal(answer, gold, same))


def read(text: str) -> Any:
    """The sympy object that the whole text denotes, decimals as exact rationals; None if it denotes none."""
    from latex2sympy2_extended import NormalizationConfig, normalize_latex
    from math_verify.parser import parse_latex_cached
    from sympy import Float, Rational

    if "'" in text or r"\phantom" in text:  # math-verify would drop a prime, and read what is not shown
        return None
    config = NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
    )
    try:
        value: Any = parse_latex_cached(normalize_latex(re.sub(r"([0-9.]+)°", r"\\frac{\1\\pi}{180}", text), config))
        floats = value.atoms(Float)
        return value.xreplace({f: Rational(str(f)) for f in floats}) if floats else value
    except MemoryError:
        raise
    except Exception:  # the parser raises bare Exception for text that is not LaTeX of its grammar
        return None


def exact_numeric_eq(a: Any, b: Any, float_rounding: int, numeric_precision: int) -> bool:
    """Replaces math-verify's comparison of numbers (same signature; the two precisions are not used).

    Rationals are compared as such. Other numbers are equal if they agree to `EXACT_DIGITS` significant digits and
    sympy does not prove their difference to be other than zero.
    """
    from math_verify.grader import safe_sympy_doit
    from sympy import MatrixBase, Rational

    a, b = safe_sympy_doit(a), safe_sympy_doit(b)
    if isinstance(a, MatrixBase) or isinstance(b, MatrixBase):
        if not (isinstance(a, MatrixBase) and isinstance(b, MatrixBase)) or a.shape != b.shape:
            return False
        pairs = zip(a.flat(), b.flat(), strict=True)
        return all(exact_numeric_eq(x, y, float_rounding, numeric_precision) for x, y in pairs)
    if a == b or (isinstance(a, Rational) and isinstance(b, Rational)):
        return bool(a == b)
    try:
        if a.free_symbols or b.free_symbols:
            return False  # math-verify's symbolic comparison decides
        difference = a - b
        size = max(abs(a.evalf(EXACT_DIGITS)), abs(b.evalf(EXACT_DIGITS)))
        close = bool(abs(difference.evalf(EXACT_DIGITS)) <= size * Rational(1, 10 ** (EXACT_DIGITS - 10)))
        return close and difference.is_zero is not False
    except (TypeError, ValueError, AttributeError):
        return False
