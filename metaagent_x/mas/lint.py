"""What is wrong with a script, found before anything has run: the line, the word, and the way out.

Lint makes scripts better, not safe: a script runs contained, whatever it says (`metaagent_x.sandbox`).
"""

from __future__ import annotations

import ast
import builtins
import collections
import dataclasses
import difflib
import dis
import functools
import inspect
import re
import string
import types
import warnings
from collections.abc import Iterable, Iterator

from metaagent_x.mas import script as scripts
from metaagent_x.mas.dialects import workflow
from metaagent_x.mas.language import NAMES, ROLES, Language
from metaagent_x.mas.prompts import FULL
from metaagent_x.mas.script import Script

# Builtins that a script may name: values and pure functions, nothing that reaches files, code or the interpreter.
BUILTINS = frozenset((
    "abs", "all", "any", "bool", "bytes", "chr", "dict", "divmod", "enumerate", "filter", "float", "format",
    "frozenset", "hash", "hex", "int", "isinstance", "iter", "len", "list", "map", "max", "min", "next", "ord", "pow",
    "print", "range", "repr", "reversed", "round", "set", "slice", "sorted", "str", "sum", "tuple", "zip",
    "Exception", "ValueError", "TypeError", "KeyError", "IndexError", "RuntimeError", "ZeroDivisionError",
    "StopIteration", "AssertionError", "ArithmeticError", "AttributeError", "NameError", "SystemExit", "exit", "quit",
    "__name__", "__annotations__",
))  # fmt: skip
ALLOWED = BUILTINS | frozenset(NAMES) - {"answer"}  # `answer` has a value only if the script gives it one
INSTEAD = {  # what does the work of a forbidden builtin
    "eval": "run_python", "exec": "run_python", "compile": "run_python", "open": "run_python",
    "__import__": "run_python", "input": "task", "type": "isinstance", "callable": "isinstance",
}  # fmt: skip
# Attributes without an underscore that lead to frames, code objects or all classes.
INNER = frozenset((
    "ag_await", "ag_code", "ag_frame", "cr_await", "cr_code", "cr_frame", "f_back", "f_builtins", "f_code",
    "f_globals", "f_locals", "gi_code", "gi_frame", "gi_yieldfrom", "mro", "tb_frame", "tb_next", "with_traceback",
))  # fmt: skip
METHODS = ("__init__", "__call__")  # that a class of the script may define
AGENTS_WANTED = ("reflect", "ensemble", "debate", "solve_and_test", "together")
MAX_NAMES = 20
READS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
NO_IMPORTS = "a script imports nothing: its names are ready, and run_python(code) runs code that may import"


@dataclasses.dataclass(frozen=True)
class Problem:
    """Why a script cannot run: the line, from 1, the offending word, and what is wrong with it."""

    line: int
    word: str
    hint: str

    def __str__(self) -> str:
        return f"{self.hint}, line {self.line}"


def lint(script: Script) -> list[Problem]:
    """What is wrong with a script: syntax, unknown names, arguments, imports, ways into the interpreter.

    Found before any call is made; an empty list means that it may run. Endless loops are allowed: budgets end them. A
    script of another dialect may import and use what it likes; its syntax and its names are looked at.

    Returns:
      Problems in the order of their lines.
    """
    native = not script.dialect
    problems: Iterable[Problem] = []
    try:
        tree, code = _read(script.text)
    except SyntaxError as problem:
        word = (problem.text or "").strip()[:60]
        way_out = "; set answer instead" if problem.msg.startswith("'return' outside") else ""
        return [Problem(problem.lineno or 1, word, f"syntax error: {problem.msg}{way_out}")]
    if native:
        bound = _bound_names(tree)
        problems = [*_unknown_names(code, ALLOWED), *_forbidden(tree, bound), *_misused(tree, bound)]
    elif not any(isinstance(n, ast.ImportFrom) and n.names[0].name == "*" for n in ast.walk(tree)):
        given = frozenset((*dir(builtins), *workflow.GIVEN))
        problems = [*_unknown_names(code, ALLOWED | given), *_unknown_imports(tree)]
    return sorted(set(problems), key=lambda p: (p.line, p.word))


def own_imports(script: Script) -> int:
    """How many statements import our own names, which are ready anyway: they are left out when the script runs."""
    try:
        nodes = ast.walk(scripts.parse(script.text))
    except SyntaxError:
        return 0
    return 0 if script.dialect else sum(map(scripts.is_own_import, nodes))


def _read(text: str) -> tuple[ast.Module, types.CodeType]:
    """The syntax tree and the code, which knows every name's scope. Raises SyntaxError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return scripts.parse(text), scripts.compile_script(text)
        except RecursionError as problem:
            raise SyntaxError("nested too deeply", (scripts.FILE, 1, 0, "")) from problem


# Names


def _unknown_names(code: types.CodeType, allowed: frozenset[str]) -> Iterator[Problem]:
    """Names that are read somewhere but bound neither there nor by the script as a whole, as the compiler sees it.

    The first of them only, if they are many: to find the nearest word takes time.
    """
    bound = set(_stored(code, "STORE_NAME"))
    for inner in _scopes(code):
        bound.update(_stored(inner, "STORE_GLOBAL"))
    unknown = set()
    for inner in _scopes(code):
        known = allowed | bound | set(_stored(inner, "STORE_NAME"))
        for step in dis.get_instructions(inner):
            if step.opname in READS and step.argval not in known:
                line = step.positions.lineno if step.positions else None
                unknown.add((line or inner.co_firstlineno, step.argval))
    for line, name in sorted(unknown)[:MAX_NAMES]:
        yield Problem(line, name, _unknown(name, allowed | bound))


def _unknown_imports(tree: ast.Module) -> Iterator[Problem]:
    """Modules and names that the workflow package has not."""
    known = {*workflow.EXPORTS, *NAMES, *workflow.MODULES}
    imports = (node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)))
    for node in filter(scripts.is_workflow_import, imports):
        module = node.module if isinstance(node, ast.ImportFrom) else None
        words = [a.name for a in node.names if f"{module}.{a.name}" not in known]
        words = [module] if module is not None and module not in known else words
        yield from (Problem(node.lineno, word, _unknown(word, known)) for word in words if word not in known)


def _scopes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _scopes(constant)


def _stored(code: types.CodeType, how: str) -> Iterator[str]:
    return (step.argval for step in dis.get_instructions(code) if step.opname == how)


def _unknown(name: str, known: Iterable[str]) -> str:
    if hasattr(builtins, name):
        return f"name {name} is not allowed in scripts: use {INSTEAD.get(name, 'plain values and our own names')}"
    return f"unknown name {name} (nearest word: {_nearest(name, known)})"


def _nearest(word: str, known: Iterable[str]) -> str:
    names = {name.lower(): name for name in sorted(known, reverse=True)}
    return names[difflib.get_close_matches(word.lower(), sorted(names), n=1, cutoff=0.0)[0]]


def _bound_names(tree: ast.Module) -> collections.Counter[str]:
    """How often the script gives a meaning to each name, anywhere."""
    names: collections.Counter[str] = collections.Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            names[node.id] += 1
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names[node.name] += 1
        elif isinstance(node, ast.arg):
            names[node.arg] += 1
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            names[node.name] += 1
        elif isinstance(node, ast.MatchMapping) and node.rest:
            names[node.rest] += 1
        elif isinstance(node, ast.alias) and node.asname:
            names[node.asname] += 1
    return names


# Words that a script has no use for


def _forbidden(tree: ast.Module, bound: collections.Counter[str]) -> Iterator[Problem]:
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    texts = _constant_texts(tree, bound)
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 1)
        if isinstance(node, (ast.Import, ast.ImportFrom)) and not scripts.is_own_import(node):
            word = node.module or "." if isinstance(node, ast.ImportFrom) else node.names[0].name
            yield Problem(line, word, f"import of {word}: {NO_IMPORTS}")
        elif isinstance(node, ast.Attribute) and node.attr in ("format", "format_map"):
            text = _constant_text(node.value, texts) if id(node) in called else None
            yield from (Problem(line, word, hint) for word, hint in _bad_format(text))
        elif isinstance(node, ast.Attribute):
            yield from _bad_attributes(line, [node.attr])
        elif isinstance(node, ast.MatchClass):
            yield from _bad_attributes(line, node.kwd_attrs)
        elif isinstance(node, (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)):
            yield Problem(line, "async", "async is not needed: calls wait for their text, together runs them at once")
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)) and _is_dunder(node.name) and node.name not in METHODS:
            yield Problem(line, node.name, f"{node.name} cannot be defined: choose a name without __")
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and _is_dunder(node.id):
            yield Problem(line, node.id, f"{node.id} cannot be set: choose a name without __")


def _bad_attributes(line: int, names: Iterable[str]) -> Iterator[Problem]:
    for name in names:
        if name.startswith("_") or name in INNER:
            yield Problem(
                line, name, f"attribute {name} is not allowed: use methods of texts and lists, names without _"
            )


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _constant_texts(tree: ast.Module, bound: collections.Counter[str]) -> dict[str, str]:
    """The texts of names that are set once, to a text written out."""
    out = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            out |= {t.id: node.value.value for t in node.targets if isinstance(t, ast.Name) and bound[t.id] == 1}
    return out


def _constant_text(node: ast.expr, texts: dict[str, str]) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return texts.get(node.id) if isinstance(node, ast.Name) else None


def _bad_format(text: str | None) -> Iterator[tuple[str, str]]:
    """(word, hint) for what is wrong with `text.format(...)`; None is a text that only a run would know."""
    if text is None:
        yield "format", "format needs a text that is written out in the script: use an f-string"
        return
    try:
        fields = list(_fields(text))
    except ValueError as problem:
        yield "format", f"format: {problem}; double the braces that stand for themselves, or use an f-string"
        return
    for field in fields:
        if not re.fullmatch(r"\w*", field):
            yield field, f"format field {field} reaches into a value: use plain names or numbers, or an f-string"


def _fields(text: str) -> Iterator[str]:
    """Field names of a format text, those inside format specifications included."""
    for _, field, specification, _ in string.Formatter().parse(text):
        if field is not None:
            yield field
            yield from _fields(specification or "")


# Arguments of our own names


@functools.cache
def _signatures() -> dict[str, inspect.Signature]:
    names = Language(None, "", "math", FULL).names()  # type: ignore[arg-type]  # nothing is asked on its line
    return {name: inspect.signature(value) for name, value in names.items() if callable(value)}


def _misused(tree: ast.Module, bound: collections.Counter[str]) -> Iterator[Problem]:
    """Calls that cannot work, whatever the values are. Names that the script gives another meaning are its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not bound[node.func.id]:
            name = node.func.id
            if name in _signatures():
                yield from (Problem(node.lineno, word, hint) for word, hint in _bad_arguments(node, name))
            if name in AGENTS_WANTED:
                yield from (p for a in (*node.args, *(k.value for k in node.keywords)) for p in _unmade(a, bound))
        elif isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "answer" for t in node.targets):
            yield from _unmade(node.value, bound)


def _bad_arguments(call: ast.Call, name: str) -> Iterator[tuple[str, str]]:
    """(word, hint) for every argument that is unknown, missing, given twice or too many."""
    parameters = _signatures()[name].parameters
    usage = f"write {name}({', '.join(_shown(p) for p in parameters.values())})"
    keywords = [k.arg for k in call.keywords if k.arg is not None]
    for word in keywords:
        if word not in parameters:
            yield word, f"{name} has no argument {word} (nearest word: {_nearest(word, parameters)}); {usage}"
    if any(isinstance(a, ast.Starred) for a in call.args) or len(keywords) < len(call.keywords):
        return  # the rest depends on values
    given = [*list(parameters)[: len(call.args)], *keywords]
    if len(call.args) > len(parameters):
        yield name, f"{name} takes at most {len(parameters)} arguments, not {len(call.args)}; {usage}"
    for word, parameter in parameters.items():
        if given.count(word) > 1:
            yield word, f"{name} is given {word} twice; {usage}"
        elif word not in given and parameter.default is parameter.empty:
            yield name, f"{name} needs {word}; {usage}"


def _shown(parameter: inspect.Parameter) -> str:
    default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
    return parameter.name + default


def _unmade(value: ast.expr, bound: collections.Counter[str]) -> Iterator[Problem]:
    """Roles that stand where an agent is needed, alone or in a list that is written out."""
    lists = [node for node in ast.walk(value) if isinstance(node, (ast.List, ast.Tuple))]
    for node in [value, *(element for each in lists for element in each.elts)]:
        if isinstance(node, ast.Name) and node.id in ROLES and not bound[node.id]:
            yield Problem(node.lineno, node.id, f"{node.id} is not an agent yet: write {node.id}()")
