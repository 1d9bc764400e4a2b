"""A Designer's script as text: what was written, and the same text made safe to compile."""

from __future__ import annotations

import ast
import dataclasses
import re
import types
import unicodedata
import warnings

from metaagent_x.mas.language import NAMES
from metaagent_x.tasks import syntax

FILE = "script"
UNREADABLE = (ValueError, OverflowError, RecursionError, MemoryError)  # what Python's own parser may raise besides
OWN_MODULES = ("metaagent_x", "mas", "workflow")
WORKFLOW_MODULES = ("workflow", "utils.environments")  # of the published checkpoint's scripts

# A string literal with its prefix, or a comment (which may hold quotes). One that is never closed is taken to the end
# of the text or line: to try again from each quote in it would take time that grows with the square of its length.
LITERAL = re.compile(
    r"""(?P<comment>\#[^\n]*)
      | (?<![A-Za-z0-9_])(?P<prefix>[rRbBuUfF]{0,2})
        (?:(?P<q3>'''|\"\"\")(?P<body3>(?:\\.|(?!(?P=q3))[^\\])*)(?:(?P<end3>(?P=q3))|\\?\Z)
         | (?P<q1>'|")(?P<body1>(?:\\.|(?!(?P=q1))[^\n\\])*)(?:(?P<end1>(?P=q1))|\\?\Z|$))""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
MAX_UNICODE_NAME = 256  # characters that are looked at behind an escape
ESCAPE = re.compile(r"\\(\\|\n|['\"]|[A-Za-z]+|.)", re.DOTALL)
# Commands whose first letter is a common escape too (\n, \r, \t); exactly these words are read as LaTeX.
LATEX = frozenset((
    "nabla", "natural", "ncong", "ne", "nearrow", "neg", "negmedspace", "negthickspace", "negthinspace", "neq",
    "newcommand", "newenvironment", "newline", "newpage", "newtheorem", "nexists", "ngeq", "ngeqq", "ngeqslant",
    "ngtr", "ni", "nleftarrow", "nLeftarrow", "nleftrightarrow", "nLeftrightarrow", "nleq", "nleqq", "nleqslant",
    "nmid", "nobreak", "nocite", "noindent", "nolimits", "nolinebreak", "nonumber", "nopagebreak", "norm",
    "normalfont", "normalsize", "not", "notag", "notin", "nparallel", "nprec", "npreceq", "nrightarrow",
    "nRightarrow", "nshortmid", "nshortparallel", "nsim", "nsubset", "nsubseteq", "nsubseteqq", "nsucc", "nsucceq",
    "nsupset", "nsupseteq", "nsupseteqq", "ntriangleleft", "ntrianglelefteq", "ntriangleright", "ntrianglerighteq",
    "nu", "nvdash", "nvDash", "nVdash", "nVDash", "nwarrow", "raggedleft", "raggedright", "raisebox", "rangle",
    "rank", "rbrace", "rbrack", "rceil", "re", "real", "ref", "relax", "renewcommand", "renewenvironment",
    "restriction", "rfloor", "rgroup", "rhd", "rho", "right", "rightarrow", "rightarrowtail", "rightharpoondown",
    "rightharpoonup", "rightleftarrows", "rightleftharpoons", "rightrightarrows", "rightsquigarrow",
    "rightthreetimes", "risingdotseq", "rlap", "rm", "rmfamily", "rmoustache", "root", "rotatebox", "rq", "rtimes",
    "rule", "rvert", "rVert", "tableofcontents", "tag", "tan", "tanh", "tau", "tbinom", "text", "textasciitilde",
    "textbackslash", "textbar", "textbf", "textbullet", "textcircled", "textcolor", "textdegree", "textellipsis",
    "textendash", "textgreater", "textheight", "textit", "textless", "textmd", "textnormal", "textrm", "textsc",
    "textsf", "textsl", "textstyle", "textsubscript", "textsuperscript", "texttt", "textup", "textwidth", "tfrac",
    "thanks", "therefore", "theta", "thickapprox", "thicksim", "thickspace", "thinspace", "thispagestyle", "tilde",
    "times", "tiny", "title", "to", "top", "toprule", "triangle", "triangledown", "triangleleft", "trianglelefteq",
    "triangleq", "triangleright", "trianglerighteq", "tt", "ttfamily", "twocolumn", "twoheadleftarrow",
    "twoheadrightarrow",
))  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Script:
    """The Python text that the Designer wrote.

    Attributes:
      text: what runs: as written, but with LaTeX in ordinary strings protected.
      source: as written.
    """

    text: str
    source: str

    @classmethod
    def of(cls, source: str) -> Script:
        return cls(protect_latex(source), source)

    @property
    def dialect(self) -> str:
        """Which dialect this is: "workflow" (that of the published checkpoint), or "" for our own language."""
        if not any(package in self.text for package in WORKFLOW_MODULES):
            return ""
        try:
            return "workflow" if any(map(is_workflow_import, ast.walk(parse(self.text)))) else ""
        except SyntaxError:
            return ""


def protect_latex(source: str) -> str:
    r"""Doubles backslashes in ordinary strings where Python would turn LaTeX into something else.

    "\boxed" is a backspace and "oxed" to Python; \frac, \text, \neq, \right, \nu, \vec, \alpha and \xi fail alike, and
    \{ or \( only warn today. \n, \t and \r keep their meaning unless a known command follows ("\neq", but "\nend").
    """

    def literal(match: re.Match[str]) -> str:
        if match["comment"] is not None or set(match["prefix"].lower()) & {"r", "b"}:
            return match[0]
        if not (match["end3"] if match["q3"] else match["end1"]):
            return match[0]  # no program: left as it is
        body = match["body3"] if match["q3"] else match["body1"]
        quote = match["q3"] or match["q1"]
        return match["prefix"] + quote + ESCAPE.sub(_escape, body) + quote

    return LITERAL.sub(literal, source)


def _escape(match: re.Match[str]) -> str:
    word, after = match[1], match.string[match.end() : match.end() + MAX_UNICODE_NAME]
    first = word[0]
    if first in "\\\n'\"" or first.isdigit():
        return match[0]
    if first in "nrt":
        return "\\" + match[0] if word in LATEX else match[0]
    digits = {"x": 2, "u": 4, "U": 8}.get(first)
    if digits is not None:
        return match[0] if re.match(rf"[0-9a-fA-F]{{{digits}}}", word[1:] + after) else "\\" + match[0]
    if match[0] == "\\N" and after.startswith("{") and _is_unicode_name(after[1:].split("}")[0]):
        return match[0]
    return "\\" + match[0]


def _is_unicode_name(name: str) -> bool:
    try:
        return len(unicodedata.lookup(name)) == 1  # more: a named sequence, which no string literal may hold
    except KeyError:
        return False


def parse(text: str) -> ast.Module:
    """`ast.parse` without warnings, and with one kind of exception for every text that is no program.

    Raises:
      SyntaxError: not Python, or too deeply nested to be read.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return syntax.parse(text, FILE)
        except UNREADABLE as problem:
            raise _unreadable(problem) from problem


def _unreadable(problem: Exception) -> SyntaxError:
    reason = "nested too deeply" if isinstance(problem, RecursionError) else str(problem) or type(problem).__name__
    return SyntaxError(reason, (FILE, 1, 0, ""))


def is_own_import(node: ast.AST) -> bool:
    """True for imports of our own names, which are there already: `from metaagent_x.mas import solver`."""
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] in OWN_MODULES
    return isinstance(node, ast.Import) and all(a.name.split(".")[0] in OWN_MODULES for a in node.names)


def is_workflow_import(node: ast.AST) -> bool:
    """True for imports of the workflow package's names: `from workflow.nodes import DebateNode`, `import workflow`."""
    if isinstance(node, ast.ImportFrom) and not node.level:
        known = node.module == "workflow" and all(a.name in NAMES for a in node.names)
        return _in_package(node.module or "") and not known
    return isinstance(node, ast.Import) and any(_in_package(a.name) for a in node.names)


def _in_package(module: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in WORKFLOW_MODULES)


def compile_script(text: str) -> types.CodeType:
    """Compiles a script without the imports of our own names; a script of another dialect as it is.

    Raises:
      SyntaxError: see `parse`.
    """
    tree = parse(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if not any(map(is_workflow_import, ast.walk(tree))):
                tree = _without_own_imports(tree)
            return compile(tree, FILE, "exec", dont_inherit=True)
        except UNREADABLE as problem:
            raise _unreadable(problem) from problem


def _without_own_imports(tree: ast.Module) -> ast.Module:
    class Drop(ast.NodeTransformer):
        def visit_Import(self, node: ast.Import) -> ast.stmt:
            return ast.copy_location(ast.Pass(), node) if is_own_import(node) else node

        def visit_ImportFrom(self, node: ast.ImportFrom) -> list[ast.stmt] | ast.stmt:
            if not is_own_import(node):
                return node
            renamed = [(a.asname, a.name) for a in node.names if a.asname]
            return [ast.copy_location(statement, node) for statement in _assignments(renamed)]

    return ast.fix_missing_locations(Drop().visit(tree))


def _assignments(pairs: list[tuple[str, str]]) -> list[ast.stmt]:
    """`new = old` for each pair; `pass` if there is none."""
    made: list[ast.stmt] = [
        ast.Assign([ast.Name(new, ast.Store())], ast.Name(old, ast.Load())) for new, old in pairs
    ]  # fmt: skip
    return made or [ast.Pass()]
