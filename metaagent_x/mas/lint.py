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
import importlib
import inspect
import re
import string
import types
from collections.abc import Iterable, Iterator

from metaagent_x.mas import script as scripts
from metaagent_x.mas.dialects import workflow
from metaagent_x.mas.language import NAMES, ROLES, Language
from metaagent_x.mas.prompts import FULL
from metaagent_x.mas.script import Script

# Builtins that a script may name: values, pure functions, exceptions; nothing that reaches files or the interpreter.
EXCEPTIONS = frozenset(n for n, v in vars(builtins).items() if isinstance(v, type) and issubclass(v, Exception))
BUILTINS = EXCEPTIONS | frozenset((
    "abs", "all", "any", "ascii", "bin", "bool", "bytearray", "bytes", "callable", "chr", "complex", "dict",
    "divmod", "enumerate", "filter", "float", "format", "frozenset", "hash", "hex", "int", "isinstance",
    "issubclass", "iter", "len", "list", "map", "max", "min", "next", "object", "oct", "ord", "pow", "print",
    "property", "range", "repr", "reversed", "round", "set", "slice", "sorted", "staticmethod", "str", "sum",
    "tuple", "type", "zip", "Ellipsis", "NotImplemented", "SystemExit", "exit", "quit", "__name__",
    "__annotations__",
))  # fmt: skip
# Modules that a script may import: they compute, and reach neither files nor processes nor the interpreter.
MODULES = (
    "re", "math", "json", "random", "itertools", "functools", "collections", "collections.abc", "string", "statistics",
    "fractions", "typing", "textwrap", "__future__",
)  # fmt: skip
ALLOWED = BUILTINS | frozenset(NAMES) - {"answer"}  # `answer` has a value only if the script gives it one
INSTEAD = {  # what does the work of a forbidden builtin
    "eval": "run_python", "exec": "run_python", "compile": "run_python", "open": "run_python",
    "__import__": "run_python", "input": "task",
}  # fmt: skip
# Attributes without an underscore that lead to frames, code objects or all classes.
INNER = frozenset((
    "ag_await", "ag_code", "ag_frame", "cr_await", "cr_code", "cr_frame", "f_back", "f_builtins", "f_code",
    "f_globals", "f_locals", "gi_code", "gi_frame", "gi_yieldfrom", "mro", "sys", "tb_frame", "tb_next",
    "with_traceback",
))  # fmt: skip
METHODS = ("__init__", "__call__")  # that a class of the script may define
AGENTS_WANTED = ("reflect", "ensemble", "debate", "solve_and_test", "together")
MAX_NAMES = 20
FORMATS = ("format", "format_map", "vformat", "get_field")  # methods that read format texts
FORMAT_LEVELS = 2  # Python itself allows no more fields inside fields
READS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
STORES = ("STORE_NAME", "STORE_GLOBAL")
MAKERS = (*ROLES, "agent")  # the only names that make agents
MAIN_FUNCTIONS = ("main", "workflow", "forward", "solve")  # used if a script sets no answer (`child.py`)
NO_IMPORT = (
    f"a script may import only {', '.join(m for m in MODULES if '_' not in m)}: our own names are ready without, and "
    "run_python(code) runs code that may import more"
)


@dataclasses.dataclass(frozen=True)
class Problem:
    """Why a script cannot run: the line, from 1, the offending word, and what is wrong with it."""

    line: int
    word: str
    hint: str

    def __str__(self) -> str:
        return f"{self.hint}, line {self.line}"


def lint(script: Script) -> list[Problem]:
    """What is wrong with a script: syntax, unknown names, arguments, imports, ways into the interpreter, no effect.

    Found before any call is made; an empty list means that it may run. Endless loops are allowed: budgets end them.
    The modules in `MODULES` may be imported. A script of another dialect may import and use what it likes; its syntax
    and its names are looked at. No text makes lint raise.

    Returns:
      Problems in the order of their lines.
    """
    native = not script.dialect
    problems: Iterable[Problem] = []
    try:
        tree, code = scripts.parse(script.text), scripts.compile_script(script.text)
    except SyntaxError as problem:
        word = (problem.text or "").strip()[:60]
        way_out = "; set answer instead" if problem.msg.startswith("'return' outside") else ""
        return [Problem(problem.lineno or 1, word, f"syntax error: {problem.msg}{way_out}")]
    if native:
        bound = _bound_names(tree)
        allowed = ALLOWED | _imported_by_star(tree)
        problems = [*_unknown_names(code, allowed), *_forbidden(tree, bound), *_misused(tree, bound)]
        problems = problems or _without_effect(tree, bound)
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


# Names


def _unknown_names(code: types.CodeType, allowed: frozenset[str]) -> Iterator[Problem]:
    """Names that are read somewhere but bound neither there nor by the script as a whole, as the compiler sees it.

    The first of them only, if they are many: to find the nearest word takes time.
    """
    scopes = [list(_name_steps(each)) for each in _scopes(code)]  # the first is the script as a whole
    bound = {name for how, name, _ in scopes[0] if how == "STORE_NAME"}
    bound |= {name for steps in scopes for how, name, _ in steps if how == "STORE_GLOBAL"}
    unknown = set()
    for steps in scopes:
        own = {name for how, name, _ in steps if how == "STORE_NAME"}
        unknown |= {
            (line, name)
            for how, name, line in steps
            if how in READS and not (name in own or name in bound or name in allowed)
        }
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
    waiting = [code]
    while waiting:
        code = waiting.pop()
        yield code
        waiting.extend(constant for constant in code.co_consts if isinstance(constant, types.CodeType))


def _name_steps(code: types.CodeType) -> Iterator[tuple[str, str, int]]:
    """(operation, name, line) of every instruction that reads or binds a name that is not local to a function.

    Not by `dis.get_instructions`: that writes out every constant, which fails for whole numbers of many digits.
    """
    high = 0
    for operation, low, (line, *_) in zip(code.co_code[::2], code.co_code[1::2], code.co_positions(), strict=False):
        argument = high | low
        high = argument << 8 if operation == dis.EXTENDED_ARG else 0
        how = dis.opname[operation]
        if how in READS or how in STORES:
            name = code.co_names[argument >> 1 if how == "LOAD_GLOBAL" else argument]
            yield how, name, line or code.co_firstlineno


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
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            given = [a.asname or a.name.split(".")[0] for a in node.names]
            names.update([a.asname for a in node.names if a.asname] if scripts.is_own_import(node) else given)
    return names


def _imported_by_star(tree: ast.Module) -> frozenset[str]:
    """What `from math import *` gives, for all such statements."""
    modules = [
        importlib.import_module(str(node.module))
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*" and _is_allowed_import(node)
    ]
    return frozenset(
        name for m in modules for name in getattr(m, "__all__", None) or dir(m) if not name.startswith("_")
    )


def _is_allowed_import(node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.ImportFrom):
        return not node.level and node.module in MODULES
    return all(a.name in MODULES for a in node.names)


# Words that a script has no use for


def _forbidden(tree: ast.Module, bound: collections.Counter[str]) -> Iterator[Problem]:
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    texts = _constant_texts(tree, bound)
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 1)
        if isinstance(node, (ast.Import, ast.ImportFrom)) and not scripts.is_own_import(node):
            yield from (Problem(line, word, hint) for word, hint in _bad_import(node))
        elif isinstance(node, ast.Attribute) and node.attr in FORMATS:
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


def _bad_import(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """(word, hint) for modules that are not in `MODULES`, and for names that those have not or keep to themselves."""
    if isinstance(node, ast.Import):
        words = [a.name for a in node.names if a.name not in MODULES]
    else:
        words = [] if _is_allowed_import(node) else [node.module or "."]
    yield from ((word, f"import of {word}: {NO_IMPORT}") for word in words)
    if isinstance(node, ast.ImportFrom) and not words:
        module = importlib.import_module(str(node.module))
        public = [n for n, v in vars(module).items() if not n.startswith("_") and not isinstance(v, types.ModuleType)]
        public += [m.removeprefix(f"{node.module}.") for m in MODULES if m.startswith(f"{node.module}.")]
        for name in (a.name for a in node.names if a.name not in (*public, "*")):
            yield name, f"{node.module} has no {name} (nearest word: {_nearest(name, public)})"


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


def _fields(text: str, level: int = 1) -> Iterator[str]:
    """Field names of a format text, those inside format specifications included.

    Raises:
      ValueError: not a format text.
    """
    if level > FORMAT_LEVELS:
        raise ValueError(f"fields stand inside fields more than {FORMAT_LEVELS} levels deep")
    for _, field, specification, _ in string.Formatter().parse(text):
        if field is not None:
            yield field
            yield from _fields(specification, level + 1) if specification else ()


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
    values = dict(zip(parameters, call.args, strict=False)) | {k.arg: k.value for k in call.keywords}
    if "rounds" in parameters and _is_bad_count(values.get("rounds")):
        yield "rounds", f"rounds must be a whole number of at least 1; {usage}"
    if "texts" in parameters and isinstance(values.get("texts"), ast.JoinedStr | ast.Constant):
        yield "texts", f"{name} takes a list of texts, as in {name}([a, b]), not one value"


def _is_bad_count(value: ast.expr | None) -> bool:
    """True for a value that is written out and no whole number of at least 1."""
    if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub):
        return isinstance(value.operand, ast.Constant)
    return isinstance(value, ast.Constant) and not (isinstance(value.value, int) and value.value >= 1)


def _shown(parameter: inspect.Parameter) -> str:
    default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
    return parameter.name + default


def _unmade(value: ast.expr, bound: collections.Counter[str]) -> Iterator[Problem]:
    """Roles that stand where an agent is needed, alone or in a list that is written out."""
    lists = [node for node in ast.walk(value) if isinstance(node, (ast.List, ast.Tuple))]
    for node in [value, *(element for each in lists for element in each.elts)]:
        if isinstance(node, ast.Name) and node.id in ROLES and not bound[node.id]:
            yield Problem(node.lineno, node.id, f"{node.id} is not an agent yet: write {node.id}()")


# Effect


def _without_effect(tree: ast.Module, bound: collections.Counter[str]) -> Iterator[Problem]:
    """A script that sets no answer, makes no agent, and has no main function that could give one."""
    agents = any(isinstance(node, ast.Name) and node.id in MAKERS for node in ast.walk(tree))
    if not (agents or bound["answer"] or any(bound[name] for name in MAIN_FUNCTIONS)):
        yield Problem(1, "answer", "nothing sets answer and no agent is used: write answer = solver()(task)")
