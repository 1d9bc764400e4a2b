"""When what a program printed or returned is what was expected. Runs in the parent, on text and plain data only."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable
from typing import Any

FLOAT_TOLERANCE = 1e-6  # absolute below 1, relative above

_REAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)

# (input, expected output, printed output) -> right?
Checker = Callable[[str, str, str], bool]


def same_output(expected: str, got: str) -> bool:
    """True if a printed text is the expected one.

    Line ends (CRLF), trailing blanks and empty lines at the end never count. If the lines differ, tokens separated by
    white space are compared one by one: equal, case and all, or, for an expected token with a decimal point, a number
    within `FLOAT_TOLERANCE` of it (absolute below 1, relative above). An expected integer must be printed as it is.
    """
    if expected.count("\n", 0, len(expected.rstrip())) == got.count("\n", 0, len(got.rstrip())) and (
        _lines(expected) == _lines(got)
    ):
        return True
    wanted = expected.split()
    printed = got.split(None, len(wanted))  # a flood of tokens is not read to its end
    return len(wanted) == len(printed) and all(_same_token(w, p) for w, p in zip(wanted, printed, strict=True))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _same_token(wanted: str, printed: str) -> bool:
    if wanted == printed:
        return True
    if "." not in wanted or not (_REAL.fullmatch(wanted) and _REAL.fullmatch(printed)):
        return False
    return _near(float(wanted), float(printed))


def _near(wanted: float, got: float) -> bool:
    """Never for an infinity or nan but the same infinity."""
    return wanted == got or abs(wanted - got) <= FLOAT_TOLERANCE * max(1.0, abs(wanted)) < float("inf")


def output_difference(expected: str, got: str) -> str:
    """One line for a person: the first token that differs."""
    wanted = expected.split()
    printed = got.split(None, len(wanted))
    for number, (w, p) in enumerate(zip(wanted, printed, strict=False)):
        if not _same_token(w, p):
            return f"token {number}: expected {w[:60]!r}, got {p[:60]!r}"
    more = "more" if len(printed) > len(wanted) else len(printed)
    return f"expected {len(wanted)} tokens, got {more}"


def same_value(expected: Any, got: Any) -> bool:
    """True if returned plain data are the expected ones.

    Lists and tuples are one kind. A float expected anywhere allows a number within `FLOAT_TOLERANCE` (nan equals nan);
    all other numbers must be equal as Python has it: 3 == 3.0, 1 == True. Text is exact, case and blanks too. None
    equals None only, a set a set only (a list has an order). Keys of an expected dict are text if they come from JSON,
    where 1 is written "1": so a returned key that is an int matches its digits.
    """
    if isinstance(expected, (list, tuple)):
        return (
            isinstance(got, (list, tuple))
            and len(expected) == len(got)
            and all(same_value(e, g) for e, g in zip(expected, got, strict=True))
        )
    if isinstance(expected, dict):
        if not isinstance(got, dict) or len(expected) != len(got):
            return False
        if all(isinstance(key, str) for key in expected):
            got = {_digits(key): value for key, value in got.items()}
        return expected.keys() == got.keys() and all(same_value(value, got[key]) for key, value in expected.items())
    if isinstance(expected, float) and isinstance(got, (int, float)):
        if expected != expected:
            return got != got
        try:
            return _near(expected, float(got))
        except OverflowError:
            return False
    return expected == got


def _digits(key: Any) -> Any:
    small = type(key) is int and abs(key) < 10**18
    return str(key) if small else key


def unordered_lines(given: str, expected: str, got: str) -> bool:
    """The same lines in any order; blanks count as in `same_output`."""
    wanted, printed = (collections.Counter(" ".join(line.split()) for line in _lines(t)) for t in (expected, got))
    return wanted == printed


def any_case(given: str, expected: str, got: str) -> bool:
    """`same_output`, capital or small letters."""
    return same_output(expected.lower(), got.lower())


CHECKERS: dict[str, Checker] = {"unordered_lines": unordered_lines, "any_case": any_case}
