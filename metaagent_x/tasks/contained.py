"""What runs beside a judged program, inside contained processes: it calls the program, or asks another process to.

`call`, `serve` and `check` are drivers of `sandbox.Program`; the module uses the standard library alone. It is trusted
only where it runs without the program: what `call` and `serve` write is what the program says it returned, never a
verdict. The host imports it for the form of plain data (`encode`, `decode`).

Plain data are None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict, also nested, and Python's
own types. Values of their subclasses, all other numbers, and arrays of numpy become the nearest of these, so an object
that is equal to everything arrives as a harmless one or not at all.
"""

from __future__ import annotations

import bisect
import builtins
import collections
import contextlib
import copy
import datetime
import decimal
import functools
import heapq
import itertools
import json
import linecache
import math
import numbers
import operator
import os
import random
import re
import string
import sys
import traceback
import types
import typing
from collections.abc import Callable
from typing import Any

FILE = "main.py"  # the program, in tracebacks
TESTS = "tests.py"
MAX_DEPTH = 100
MAX_LINE = 4 << 20  # bytes of one message
TRACEBACK_CHARS = 8000
MAX_HASHED = 10_000  # members of a set, keys of a dict: with hashes that a program chose, they take quadratic time
SMALL_BITS = 64  # larger integers travel as hexadecimal digits: reading those takes linear time and has no limit
RECURSION = 50_000  # contest graders allow deep recursion

# Bound before a called program runs, as the graders of such tests do: starter code says `List[int]`, no import.
HELPFUL = (
    bisect, collections, copy, datetime, functools, heapq, itertools, json, math, operator, random, re, string, sys,
    typing,
)  # fmt: skip


class NotPlain(ValueError):
    """A value that is no plain data, or text that is none."""


def encode(value: Any, handle: Callable[[Any], Any] | None = None, depth: int = 0) -> Any:
    """Plain data as JSON values that keep the types apart. Others are given to `handle`.

    Raises:
      NotPlain: other data without a `handle`, or data nested more than `MAX_DEPTH` deep.
    """
    if depth > MAX_DEPTH:
        raise NotPlain(f"data nested more than {MAX_DEPTH} deep")

    def all_of(values: Any) -> list:
        return [encode(item, handle, depth + 1) for item in values]

    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        number = int.__int__(value)
        return number if number.bit_length() <= SMALL_BITS else {"int": hex(number)}
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, list):
        return all_of(list.__iter__(value))
    if isinstance(value, tuple):
        return {"tuple": all_of(tuple.__iter__(value))}
    if isinstance(value, dict):
        return {"dict": [all_of(pair) for pair in dict.items(value)]}
    if isinstance(value, set):
        return {"set": all_of(set.__iter__(value))}
    if isinstance(value, frozenset):
        return {"frozenset": all_of(frozenset.__iter__(value))}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, numbers.Integral):
        return encode(int(value), handle, depth + 1)
    if isinstance(value, (numbers.Real, decimal.Decimal)):
        return float(value)
    if isinstance(value, type) and getattr(builtins, value.__name__, None) is value:
        return {"type": value.__name__}
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return encode(value.tolist(), handle, depth + 1)
    if handle is not None:
        return handle(value)
    raise NotPlain(f"{type(value).__name__}, which is no plain data")


def decode(data: Any, handle: Callable[[int], Any] | None = None, depth: int = 0) -> Any:
    """The inverse of `encode`. Of text from a program: anything can be in it.

    Raises:
      NotPlain: what `encode` would not have written.
    """
    if depth > MAX_DEPTH:
        raise NotPlain(f"data nested more than {MAX_DEPTH} deep")
    if isinstance(data, list):
        return [decode(item, handle, depth + 1) for item in data]
    if not isinstance(data, dict):
        return data
    try:
        ((tag, inner),) = data.items()
        if tag == "int":
            return int(inner, 16)
        if tag == "bytes":
            return bytes.fromhex(inner)
        if tag == "complex":
            return complex(*inner)
        if tag == "handle" and handle is not None:
            return handle(inner)
        if tag == "type" and isinstance(kind := getattr(builtins, inner), type):
            return kind
        make = {"tuple": tuple, "set": set, "frozenset": frozenset, "dict": dict}[tag]
        items = decode(inner, handle, depth + 1)
        if tag != "tuple" and len(items) > MAX_HASHED:
            hashed = [key for key, _ in items] if tag == "dict" else items
            if not all(isinstance(key, str) for key in hashed):
                raise NotPlain(f"a {tag} of more than {MAX_HASHED}, not all text")
        return make(items)
    except NotPlain:
        raise
    except Exception as problem:
        raise NotPlain(f"not what encode writes: {type(problem).__name__}") from None


def _load(program: types.CodeType | str, names: dict[str, Any]) -> types.ModuleType:
    """Runs the program as a module of its own (not `__main__`: its tests call it)."""
    module = types.ModuleType("solution")
    module.__dict__.update(names, __file__=FILE)
    sys.modules["solution"] = module
    exec(compile(program, FILE, "exec", dont_inherit=True) if isinstance(program, str) else program, module.__dict__)
    return module


def _helpful(source: str) -> dict[str, Any]:
    """Those of the helpful names that stand in a program: to bind all of them takes longer than most calls."""
    names: dict[str, Any] = {module.__name__: module for module in HELPFUL}
    for word in set(re.findall(r"[A-Za-z]\w*", source)) - names.keys():
        for module in HELPFUL:
            if word in getattr(module, "__all__", vars(module)) and not hasattr(builtins, word):
                names[word] = getattr(module, word)
    return names


def _find(module: types.ModuleType, entry_point: str) -> Callable[..., Any]:
    solution = vars(module).get("Solution")
    if isinstance(solution, type) and hasattr(solution, entry_point):
        return getattr(solution(), entry_point)
    if entry_point not in vars(module):
        raise NameError(f"the program defines no {entry_point}")
    return vars(module)[entry_point]


def _told(problem: BaseException) -> str:
    """The end of the traceback, without the frames of this file."""
    frames = problem.__traceback__
    while frames is not None and frames.tb_frame.f_globals is globals():
        frames = frames.tb_next
    try:
        return "".join(traceback.format_exception(type(problem), problem, frames))[-TRACEBACK_CHARS:]
    except BaseException:
        return type(problem).__name__ + "\n"


def _write(fd: int, text: str) -> None:
    view = memoryview(text.encode())
    while view:
        view = view[os.write(fd, view) :]


def call(source: str, program: types.CodeType | str) -> None:
    """Reads `{"entry_point", "arguments"}` from standard input and writes what the call returns. Never returns.

    What the program prints goes to standard error. An exception leaves its traceback there, and no result.
    """
    results = os.dup(1)
    os.dup2(2, 1)
    asked = json.loads(sys.stdin.buffer.read())
    sys.setrecursionlimit(RECURSION)
    try:
        value = _find(_load(program, _helpful(source)), asked["entry_point"])(*decode(asked["arguments"]))
        try:
            said = json.dumps({"value": encode(value)})
        except NotPlain as problem:
            said = json.dumps({"problem": str(problem)})
    except MemoryError:
        raise
    except BaseException as problem:
        try:
            sys.stdout.flush()
        finally:
            _write(2, _told(problem))
            os._exit(1)
    _write(results, said)
    os._exit(0)


def serve(_: str, program: types.CodeType | str) -> None:
    """Runs the program, then does what the other end of standard input asks with its names. Never returns.

    The first line written says which names it has. What is no plain data stays here; the other end gets its number. The
    program is number 0, and its names are its attributes.
    """
    line, (nothing, end) = os.dup(0), os.pipe()
    os.close(end)
    os.dup2(nothing, 0)
    kept: list[Any] = []
    known: dict[int, int] = {}

    def handle(value: Any) -> dict[str, int]:
        if id(value) not in known:
            known[id(value)] = len(kept)
            kept.append(value)
        return {"handle": known[id(value)]}

    def answer(ask: dict[str, Any]) -> Any:
        of, do = kept[ask["of"]], ask["do"]
        values = [decode(value, kept.__getitem__) for value in ask["values"]]
        if do == "get":  # what can be called is called here, also if it is one of Python's types
            value = getattr(of, values[0])
            return handle(value) if callable(value) else encode(value, handle)
        if do == "set":
            return setattr(of, values[0], values[1])
        return encode(of(*values[0], **values[1]) if do == "call" else list(of), handle)

    def attempt(what: Callable[[], Any]) -> dict[str, Any]:
        try:
            return {"value": what()}
        except MemoryError:
            raise
        except BaseException as problem:
            return {"raised": type(problem).__name__, "told": _told(problem)}

    def start() -> list[str]:
        kept.append(_load(program, {}))
        return list(vars(kept[0]))

    said = attempt(start)
    with open(line, "rb", closefd=False) as asked:
        while True:
            message = json.dumps(said) + "\n"
            if len(message) > MAX_LINE:
                message = json.dumps({"raised": "ValueError", "told": "ValueError: a value of more than 4 MiB"}) + "\n"
            _write(line, message)
            ask = asked.readline()
            if not ask:
                os._exit(0)
            request = json.loads(ask)
            said = attempt(lambda request=request: answer(request))


class Ended(BaseException):
    """The process of the program ended, or says what cannot be read."""


class Line:
    """The test's end of the line to the program.

    Attributes:
      asked: so much was asked. returned: what the last call returned, if any did. raised: the exception that the
        program raised last, and its traceback there.
    """

    def __init__(self, fd: int):
        self.fd, self.reader = fd, os.fdopen(fd, "rb")
        self.asked = 0
        self.returned: list[Any] = []
        self.raised: tuple[BaseException | None, str] = (None, "")
        self.handles: dict[int, Handle] = {}

    def handle(self, number: int) -> Handle:
        if type(number) is not int:
            raise NotPlain("a handle without a number")
        return self.handles.setdefault(number, Handle(self, number))

    def read(self) -> Any:
        """Raises: what the program raised, see `_exception`; Ended."""
        try:
            said = json.loads(self.reader.readline(MAX_LINE))
            if "value" in said:
                return decode(said["value"], self.handle)
            name, told = str(said["raised"]), str(said["told"])
        except (ValueError, KeyError, TypeError, RecursionError, OSError):
            raise Ended from None
        problem = _exception(name, told.rstrip().rpartition("\n")[2].partition(": ")[2])
        self.raised = problem, told
        raise problem

    def ask(self, do: str, of: int, *values: Any) -> Any:
        self.asked += 1
        message = json.dumps({"do": do, "of": of, "values": [encode(value, _number) for value in values]})
        try:
            _write(self.fd, message + "\n")
        except OSError:
            raise Ended from None
        answer = self.read()
        if do == "call":
            self.returned = [answer]
        return answer


def _exception(name: str, message: str) -> Exception:
    """Python's exception of that name, else RuntimeError; that too for the ones that only end the loop of a test."""
    kind = getattr(builtins, name, None)
    ends_loops = name in ("StopIteration", "StopAsyncIteration")
    if isinstance(kind, type) and issubclass(kind, Exception) and not ends_loops:
        with contextlib.suppress(TypeError):  # some are not made of a message
            return kind(message)
    return RuntimeError(message)


class Handle:
    """An object of the program: it can be called and iterated, and its attributes read and set.

    It is equal to nothing but itself: the program does not decide what its objects are equal to. What a test hands over
    is copied, so the program's changes in place are not seen here.
    """

    def __init__(self, line: Line, number: int):
        self.__dict__.update(_line=line, _number=number)

    def __repr__(self) -> str:
        return "<an object of the program>"

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._line.ask("call", self._number, list(arguments), named)

    def __iter__(self) -> Any:
        return iter(self._line.ask("iterate", self._number))

    def __getattr__(self, name: str) -> Any:
        return self._line.ask("get", self._number, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._line.ask("set", self._number, name, value)


def _number(value: Any) -> dict[str, int]:
    if type(value) is not Handle:
        raise TypeError(f"a test can hand plain data to a program, not {type(value).__name__}")
    return {"handle": value._number}


def check(*_: object) -> None:
    """Runs tests on the program at the other end of standard input; writes the verdict as JSON. Never returns.

    The first line read is of the host: `{"source", "entry_point", "names"}`. All others are the program's. The names
    that the tests use and do not define come from the program; but for the entry point, none that Python has itself and
    no helpful module does.
    """
    verdicts, line = os.dup(1), Line(os.dup(0))
    os.dup2(2, 1)
    asked = json.loads(line.reader.readline())
    source, entry_point, used = asked["source"], asked["entry_point"], set(asked["names"])
    linecache.cache[TESTS] = (len(source), None, source.splitlines(keepends=True), TESTS)
    status, detail = "passed", ""
    try:
        code = compile(source, TESTS, "exec", dont_inherit=True)
        given = line.read()
        scope: dict[str, Any] = {"__name__": "tests"}
        if entry_point not in given:
            raise NameError(f"the program defines no {entry_point}")
        for name in used.intersection(given):
            if name == entry_point or not (hasattr(builtins, name) or name.startswith("__")):
                scope[name] = line.ask("get", 0, name)
        scope.update({module.__name__: module for module in HELPFUL if module.__name__ in used})
        exec(code, scope)
    except Ended:
        status, detail = "error", "the program ended before its tests did"
    except BaseException as problem:
        raised, told = line.raised
        status = "error" if problem is raised or isinstance(problem, NameError) else "wrong_answer"
        detail = told if problem is raised else _told(problem)
    said = {"status": status, "detail": detail, "got": "".join(map(repr, line.returned))[:4000], "asked": line.asked}
    _write(verdicts, json.dumps(said))
    os._exit(0)
