"""The form of an answer: list, set, tuple, interval, inequality, equation, matrix, ratio, or a single expression.

`equal` compares two normalised texts form by form and leaves the expressions to a function of the caller. It is written
once and used twice: in the host with exact arithmetic only, where "cannot tell" is an answer (None), and in a worker
with math-verify behind it. The policies stand in `math`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable
from fractions import Fraction

from metaagent_x.tasks import math_exact, math_units

Compare = Callable[[str, str], "bool | None"]


@dataclasses.dataclass(frozen=True, slots=True)
class Atom:
    """One expression."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Values without an order: `\\{1, 2\\}`, "1, 2", "1 or 2", a union, both signs of `\\pm`."""

    parts: tuple[Form, ...]
    bare: bool = False  # written without braces


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """Values in their order between brackets. Two values are a pair or an interval: the text does not say which."""

    left: str
    parts: tuple[Form, ...]
    right: str


@dataclasses.dataclass(frozen=True, slots=True)
class Named:
    """A form with a name before it: x = 5, f(x) = x + 1, x \\in [0, 1], 0 < x < 1."""

    name: str
    form: Form
    sides: tuple[str, str] | None = None  # of an equation


@dataclasses.dataclass(frozen=True, slots=True)
class Relation:
    """Any other chain of equations or inequalities, in increasing order."""

    signs: tuple[str, ...]
    sides: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Matrix:
    rows: tuple[tuple[Form, ...], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Ratio:
    parts: tuple[str, ...]


Form = Atom | Group | Row | Named | Relation | Matrix | Ratio
NOTHING = Group(())
_BELOW, _ABOVE = Atom(r"-\infty"), Atom(r"\infty")
_REAL_LINE = Row("(", (_BELOW, _ABOVE), ")")


def equal(answer: str, gold: str, same: Compare) -> bool | None:
    """True if the answer says what the gold says; None if `same` cannot tell for an expression on which it depends.

    Args: two normalised texts; `same(answer, gold)` compares two expressions without units.
    """
    if answer == gold:
        return True
    try:
        wanted = parse(gold)
        verdict = _equal(parse(answer), wanted, same)
        if verdict is not True and _GROUPED.fullmatch(gold):  # one number, or a list without spaces
            return _any((verdict, _equal(parse(answer), parse(gold.replace(",", ", ")), same)))
        return verdict
    except RecursionError:
        return False


# --- reading ----------------------------------------------------------------------------------------------------------

_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+")
_COMMA = re.compile(r",(?![0-9]{3}(?![0-9]))|(?<![0-9]),")
_ANY_COMMA = re.compile(",")
_OR = re.compile(r";| or |\\lor(?![A-Za-z])|\\vee(?![A-Za-z])")
_AND = re.compile(r" and |\\land(?![A-Za-z])|\\wedge(?![A-Za-z])")
_UNION = re.compile(r"\\cup(?![A-Za-z])")
_MEMBER = re.compile(r"\\in(?![A-Za-z])")
_WITHOUT = re.compile(r"\\setminus(?![A-Za-z])|\\backslash(?![A-Za-z])")
_APPROX = re.compile(r"\\approx(?![A-Za-z])|≈")
_SIGN = re.compile(r"<|>|=|\\(?:le|ge|ne)(?![A-Za-z])")
_BOTH_SIGNS = re.compile(r"(\\pm|\\mp) ?(?![A-Za-z])")
MAX_BOTH_SIGNS = 4  # sixteen values
_SUCH_THAT = re.compile(r"\\mid(?![A-Za-z])|[|:]")
_COLON = re.compile(":")
_ROWS = re.compile(r"\\\\")
_CELLS = re.compile("&")
_MATRIX = re.compile(
    r"([^&]*?)(?:\\cdot|\\times)? ?\\begin\{([pbB]?matrix|array)\}(?:\{[lcr|]+\})?((?:(?!\\begin).)*)\\end\{\2\}",
    re.DOTALL,
)
_STEP = re.compile(r"\\[{}]|\\\\|\\[A-Za-z]+|.", re.DOTALL)
_OPEN = {"(", "[", "{", r"\{", r"\langle", r"\begin"}
_CLOSE = {")", "]", "}", r"\}", r"\rangle", r"\end"}
_OF_TUPLES = {("(", ")"), ("[", "]"), (r"\langle", r"\rangle")}
_FLIPPED = {">": "<", r"\ge": r"\le"}
_LETTER = r"(?:\\?[A-Za-z]|\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi|omega|varphi|rho|sigma|tau))"
_SIMPLE_NAME = rf"{_LETTER}'*(?:_(?:[0-9A-Za-z]|\{{[0-9A-Za-z]+\}}))?"
_NAME = re.compile(
    rf"{_SIMPLE_NAME}(?:\((?:[0-9A-Za-z]+)(?:, [0-9A-Za-z]+)*\))?|\({_SIMPLE_NAME}(?:, {_SIMPLE_NAME})+\)"
    r"|(?:\\(?:angle|overline|triangle) ?\{?)?[A-Z]{2,3}\}?"
)
_SUM = rf"[0-9]*{_SIMPLE_NAME}(?:[-+][0-9]*{_SIMPLE_NAME})+"
# What a problem asks for and is no unknown: m + n, 10(m+n), a/b, AB^2, [ABC], n_{\\max}, the area.
_QUANTITY = re.compile(
    rf"{_SUM}|[0-9]+\({_SUM}\)|\\frac\{{{_SIMPLE_NAME}\}}\{{{_SIMPLE_NAME}\}}|{_SIMPLE_NAME}/{_SIMPLE_NAME}"
    rf"|\|?[A-Z]{{2,3}}\|?(?:\^2)?|\[[A-Z]{{3,}}\]|\\angle ?[A-Z]|\\lfloor ?[0-9]*{_SIMPLE_NAME} ?\\rfloor"
    r"|(?:[A-Za-z]_\{?)?\\(?:max|min)\}?"
    r"|(?i:\\text ?\{(?:the )?(?:answer|area|length|perimeter|probability|sum|volume) ?\})"
)
_OF_LETTER = re.compile(r"([A-Za-z])\(([a-z])\)")
_LETTERS = re.compile(r"\\[A-Za-z]+|[A-Za-z]")
_LABELS = re.compile("[A-J]{2,}")
_ABSOLUTE = re.compile(rf"\|({_SIMPLE_NAME})\|")
_REALS = re.compile(r"\\mathbb ?\{?R\}?|\\R|all real numbers", re.IGNORECASE)
# "f(x) = 2 x for all positive integers x": what holds for more or less than the usual numbers keeps its condition.
_FOR_ALL = re.compile(
    r",? ?(?:\\text ?\{)?,? ?(?:\\forall|for (?:all|every|any|each))"
    r"(?: (?:positive|non-?negative|natural|real|rational|integers?|numbers?))*\}? ?[a-z]?"
    r"(?:\\in ?\\mathbb ?\{?[NQRZ]\}?(?:\^\+|_\+|_\{>0\})?)?\}?$"
)
_EMPTY = re.compile(r"\\emptyset|\\varnothing|\\\{\\\}|no (?:real )?solutions?|(?:the )?empty set", re.IGNORECASE)
_INFINITE = re.compile(r"([+-]?)(?:\\infty|infinity|inf)")


@functools.lru_cache(maxsize=1024)
def _outside(text: str) -> frozenset[int]:
    """Where the letters, signs and commands outside all brackets begin."""
    positions, depth = set(), 0
    for step in _STEP.finditer(text):
        if depth == 0:
            positions.add(step.start())
        depth += (step.group() in _OPEN) - (step.group() in _CLOSE)
    return frozenset(positions)


def _pieces(text: str, at: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """The text cut where `at` matches outside all brackets, and what was cut out."""
    parts, marks, start = [], [], 0
    for match in at.finditer(text):
        if match.start() in _outside(text):
            parts.append(text[start : match.start()].strip())
            marks.append(match.group())
            start = match.end()
    return [*parts, text[start:].strip()], marks


def _cut(text: str, at: re.Pattern[str]) -> list[str]:
    return _pieces(text, at)[0]


def _inside(text: str) -> tuple[str, str, str] | None:
    """Bracket, content, bracket, if one pair encloses the whole text."""
    steps = [step.group() for step in _STEP.finditer(text)]
    if len(steps) < 2 or steps[0] not in _OPEN or steps[-1] not in _CLOSE or steps[0] == r"\begin":
        return None
    depth = 0
    for number, step in enumerate(steps):
        depth += (step in _OPEN) - (step in _CLOSE)
        if depth == 0 and number < len(steps) - 1:
            return None
    if depth:
        return None
    left, right = steps[0], steps[-1]
    return left, text[len(left) : len(text) - len(right)].strip(), right


@functools.lru_cache(maxsize=8192)
def parse(text: str) -> Form:
    """The form of a normalised text. What has no form that is known here is an `Atom`."""
    text = text.strip()
    if _EMPTY.fullmatch(text):
        return NOTHING
    if _REALS.fullmatch(text):
        return _REAL_LINE
    if (for_all := _FOR_ALL.search(text)) and "=" in text[: for_all.start()]:
        return parse(text[: for_all.start()])
    if len(parts := _cut(text, _OR)) > 1:
        return _group(parts)
    if len(parts := _cut(text, _AND)) > 1:
        return _both(parts) or _group(parts)
    if len(parts := _cut(text, _COMMA)) > 1:
        return _group(parts)
    if len(parts := _cut(text, _APPROX)) == 2:
        return parse(parts[0])
    if len(parts := _cut(text, _MEMBER)) == 2 and _NAME.fullmatch(parts[0]):
        return Named(parts[0], parse(parts[1]))
    if len(parts := _cut(text, _UNION)) > 1:
        return _group(parts, bare=False)
    if len(parts := _cut(text, _WITHOUT)) == 2:
        return _without(parse(parts[0]), parse(parts[1])) or Atom(text)
    if 1 <= len(_BOTH_SIGNS.findall(text)) <= MAX_BOTH_SIGNS:
        return _group(_with_signs(text))
    sides, signs = _pieces(text, _SIGN)
    if signs:
        return _relation(signs, sides) if all(sides) else Atom(text)
    if matrix := _MATRIX.fullmatch(text):
        rows = [row for row in _cut(matrix.group(3), _ROWS) if row]
        factor = {"": "", "-": "-1"}.get(matrix.group(1), matrix.group(1))
        cells = [[f"({factor})({cell})" if factor else cell for cell in _cut(row, _CELLS)] for row in rows]
        return Matrix(tuple(tuple(map(parse, row)) for row in cells))
    if enclosed := _inside(text):
        return _bracketed(text, *enclosed)
    if len(parts := _cut(text, _COLON)) > 1 and all(parts):
        return Ratio(tuple(parts))
    return Atom(text)


def _with_signs(text: str) -> list[str]:
    """The text with + and with - for its first `\\pm`; with `\\mp` in it, for all of them together."""
    if r"\mp" in text:
        pairs = ({r"\pm": "+", r"\mp": "-"}, {r"\pm": "-", r"\mp": "+"})
        return [_BOTH_SIGNS.sub(lambda m, pair=pair: pair[m.group(1)], text) for pair in pairs]
    return [re.sub(r"(^|[(,=]\s*)\+", r"\1", _BOTH_SIGNS.sub(sign, text, count=1)) for sign in "+-"]


def _group(texts: Iterable[str], bare: bool = True) -> Form:
    """Groups inside are opened; a name before the first value holds for those behind it: "x = 1, 2"."""
    parts: list[Form] = []
    for text in texts:
        form = parse(text)
        if isinstance(form, Group):
            parts.extend(form.parts)
        elif isinstance(form, Named) and isinstance(form.form, Group):
            parts.extend(Named(form.name, part) for part in form.form.parts)
        else:
            parts.append(form)
    if parts and isinstance(first := parts[0], Named):
        parts = [part if isinstance(part, Named | Relation) else Named(first.name, part) for part in parts]
    return Group(tuple(parts), bare)


def _both(texts: list[str]) -> Form | None:
    """ "x > 1 and x < 3" as one interval; None if it is something else."""
    first, second, *more = map(parse, texts)
    if more or not (isinstance(first, Named) and isinstance(second, Named) and first.name == second.name):
        return None
    low, high = first.form, second.form
    if not (isinstance(low, Row) and isinstance(high, Row)):
        return None
    if low.parts[0] == _BELOW:
        low, high = high, low
    if low.parts[-1] != _ABOVE or high.parts[0] != _BELOW:
        return None
    return Named(first.name, Row(low.left, (low.parts[0], high.parts[-1]), high.right))


def _without(whole: Form, removed: Form) -> Form | None:
    """An interval without some rationals, or the reals without an interval, as a union; None for anything else."""
    if not isinstance(whole, Row) or len(whole.parts) != 2:
        return None
    if isinstance(removed, Row):
        if whole != _REAL_LINE or len(removed.parts) != 2:
            return None
        below = Row("(", (_BELOW, removed.parts[0]), "]" if removed.left == "(" else ")")
        return Group((below, Row("[" if removed.right == ")" else "(", (removed.parts[1], _ABOVE), ")")))
    if not isinstance(removed, Group):
        return None
    low, high = map(_rational, whole.parts)
    values = {_rational(point): point for point in removed.parts}
    inside = [value for value in values if value is not None]
    if (
        len(inside) < len(values)
        or (low is None and whole.parts[0] != _BELOW)
        or (high is None and whole.parts[1] != _ABOVE)
    ):
        return None
    if any((low is not None and value <= low) or (high is not None and value >= high) for value in inside):
        return None
    ends = list(itertools.pairwise([whole.parts[0], *(values[value] for value in sorted(inside)), whole.parts[1]]))
    lefts, rights = [whole.left, *"(" * len(inside)], [*")" * len(inside), whole.right]
    return Group(tuple(Row(left, pair, right) for left, pair, right in zip(lefts, ends, rights, strict=True)))


def _rational(form: Form) -> Fraction | None:
    return math_exact.read_rational(form.text) if isinstance(form, Atom) else None


def _relation(signs: list[str], sides: list[str]) -> Form:
    if all(sign == "=" for sign in signs):
        return _equation(sides)
    if signs == [r"\ne"] and _NAME.fullmatch(sides[0]):
        below, above = (
            Row("(", (_BELOW, Atom(sides[1])), ")"),
            Row("(", (Atom(sides[1]), _ABOVE), ")"),
        )
        return Group((Named(sides[0], below), Named(sides[0], above)), bare=True)
    if all(sign in ("=", ">", r"\ge") for sign in signs):
        signs, sides = [_FLIPPED.get(sign, sign) for sign in reversed(signs)], sides[::-1]
    if len(sides) == 2 and (distance := _distance(signs[0], *sides)):
        return distance
    if len(sides) == 3 and sides[0] == "0" and signs[0] == "<" and (inside := _ABSOLUTE.fullmatch(sides[1])):
        left, right = ("[", "]") if signs[1] == r"\le" else ("(", ")")
        below = Row(left, (Atom(f"-({sides[2]})"), Atom("0")), ")")
        above = Row("(", (Atom("0"), Atom(sides[2])), right)
        return Group((Named(inside[1], below), Named(inside[1], above)), bare=True)
    names = [number for number, side in enumerate(sides) if _NAME.fullmatch(side)]
    if len(names) == 1 and all(sign in ("<", r"\le") for sign in signs) and len(sides) <= 3:
        at = names[0]
        if len(sides) == 2 or at == 1:
            low, high = (sides[0] if at else r"-\infty"), (sides[-1] if at < len(sides) - 1 else r"\infty")
            left = "[" if at and signs[0] == r"\le" else "("
            right = "]" if at < len(sides) - 1 and signs[-1] == r"\le" else ")"
            return Named(sides[at], Row(left, (Atom(low), Atom(high)), right))
    return Relation(tuple(signs), tuple(sides))


def _distance(sign: str, low: str, high: str) -> Form | None:
    """|x| < 2 as -2 < x < 2, and 2 < |x| as x < -2 or 2 < x; None if it is something else."""
    closed = sign == r"\le"
    if (inside := _ABSOLUTE.fullmatch(low)) and "|" not in high:
        ends = Atom(f"-({high})"), Atom(high)
        return Named(inside[1], Row("[" if closed else "(", ends, "]" if closed else ")"))
    if (outside := _ABSOLUTE.fullmatch(high)) and "|" not in low:
        below = Row("(", (_BELOW, Atom(f"-({low})")), "]" if closed else ")")
        above = Row("[" if closed else "(", (Atom(low), _ABOVE), ")")
        return Group((Named(outside[1], below), Named(outside[1], above)), bare=True)
    return None


def _equation(sides: list[str]) -> Form:
    """A name and its value, a value that is written in several ways, or a relation between both sides."""
    values = [side for side in sides if not _NAME.fullmatch(side)]
    if values and all(math_exact.same(values[0], value) for value in values[1:]):
        names = [side for side in sides if _NAME.fullmatch(side)]
        if not names:
            return parse(values[-1])
        if len(names) == 1:
            return Named(names[0], parse(values[0]), (names[0], values[0]))
        return Group(tuple(Named(name, parse(values[0]), (name, values[0])) for name in names), bare=True)
    if len(sides) == 2 and _NAME.fullmatch(sides[0]):
        return Named(sides[0], Atom(sides[1]), (sides[0], sides[1]))
    return Relation(("=",) * (len(sides) - 1), tuple(sides))


def _bracketed(text: str, left: str, content: str, right: str) -> Form:
    if (left, right) in ((r"\{", r"\}"), ("{", "}")):
        head, *condition = _cut(content, _SUCH_THAT)
        if len(condition) == 1 and _NAME.fullmatch(_cut(head, _MEMBER)[0]):
            return parse(condition[0])
        return _group(_cut(content, _ANY_COMMA), bare=False) if content else NOTHING
    parts = _cut(content, _ANY_COMMA)
    if len(parts) == 1 and (left, right) == ("(", ")"):
        return parse(content)
    if len(parts) == 1 or not all(parts) or r"\{" in (left, right):
        return Atom(text)
    return Row(left, tuple(map(parse, parts)), right)


# --- comparing --------------------------------------------------------------------------------------------------------


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    """Three-valued "and": False as soon as one is."""
    unknown = False
    for verdict in verdicts:
        if verdict is False:
            return False
        unknown |= verdict is None
    return None if unknown else True


def _any(verdicts: Iterable[bool | None]) -> bool | None:
    """Three-valued "or": True as soon as one is."""
    unknown = False
    for verdict in verdicts:
        if verdict:
            return True
        unknown |= verdict is None
    return None if unknown else False


def _equal(a: Form, g: Form, same: Compare) -> bool | None:
    if isinstance(a, Named) or isinstance(g, Named):
        return _equal_named(a, g, same)
    if isinstance(a, Group) and a.bare and isinstance(g, Row):
        if _names(a.parts) <= {"x", "y", "z"}:  # y = 1, x = 2 is (2, 1)
            a = Group(tuple(sorted(a.parts, key=lambda part: part.name if isinstance(part, Named) else "")), bare=True)
        return _each(a.parts, g.parts, same) if (g.left, g.right) in _OF_TUPLES and g.left != "[" else False
    if isinstance(a, Atom) and isinstance(g, Group) and _LABELS.fullmatch(a.text):  # AC for A, C
        a = Group(tuple(map(Atom, a.text)))
    if isinstance(a, Group) or isinstance(g, Group):
        left, right = (dict.fromkeys(form.parts if isinstance(form, Group) else (form,)) for form in (a, g))
        if (len(_names(left)) > 1) != (len(_names(right)) > 1):  # x = 1, y = 2 is not 1, 2
            return False
        extra, missing = [x for x in left if x not in right], [y for y in right if y not in left]
        covered = _all(_any(_equal(x, y, same) for y in right) for x in extra)
        if covered is False:
            return False
        return _all((covered, _all(_any(_equal(x, y, same) for x in left) for y in missing)))
    if isinstance(a, Matrix) and isinstance(g, Row):
        a = _column(a)
    if isinstance(g, Matrix) and isinstance(a, Row):
        g = _column(g)
    if isinstance(a, Row) and isinstance(g, Row):
        tuples = all((form.left, form.right) in _OF_TUPLES for form in (a, g))
        same_brackets = (a.left, a.right) == (g.left, g.right) or {a.left, g.left} == {"(", r"\langle"}
        return _each(a.parts, g.parts, same) if same_brackets or (tuples and len(g.parts) > 2) else False
    if isinstance(a, Matrix) and isinstance(g, Matrix):
        if len(a.rows) != len(g.rows):
            return False
        return _all(_each(x, y, same) for x, y in zip(a.rows, g.rows, strict=True))
    if isinstance(a, Ratio) or isinstance(g, Ratio):
        return _equal_ratio(a, g, same)
    if isinstance(a, Relation) and isinstance(g, Relation):
        return _equal_relation(a, g, same)
    if isinstance(a, Relation) and isinstance(g, Atom) and _QUANTITY.fullmatch(a.sides[0]) and set(a.signs) == {"="}:
        return _all(_equal_atoms(side, g.text, same) for side in a.sides[1:])  # m + n = 16 + 9 = 25
    if isinstance(a, Atom) and isinstance(g, Atom):
        return _equal_atoms(a.text, g.text, same)
    return False


def _names(parts: Iterable[Form]) -> set[str]:
    return {part.name for part in parts if isinstance(part, Named)}


def _each(a: tuple[Form, ...], g: tuple[Form, ...], same: Compare) -> bool | None:
    return _all(_equal(x, y, same) for x, y in zip(a, g, strict=True)) if len(a) == len(g) else False


def _column(matrix: Matrix) -> Row | Matrix:
    """A column as the tuple of its entries."""
    return Row("(", tuple(row[0] for row in matrix.rows), ")") if all(len(row) == 1 for row in matrix.rows) else matrix


def _equal_named(a: Form, g: Form, same: Compare) -> bool | None:
    """A name may be left out or added; another name is another answer, unless both equations say the same."""
    a, g = _assigned(a, g), _assigned(g, a)
    if isinstance(a, Named) and isinstance(g, Named):
        if a.name == g.name:
            return _equal(a.form, g.form, same)
        if (renamed := _in_letter_of(g, a)) is not None:
            return _equal(renamed, g.form, same)
        return _equal_sides(a.sides, g.sides) if a.sides and g.sides else False
    if isinstance(a, Group) or isinstance(g, Group):
        left, right = (form.parts if isinstance(form, Group) else (form,) for form in (a, g))
        if isinstance(a, Named) and isinstance(a.form, Group):
            return _equal(a.form, g, same)
        if isinstance(g, Named) and isinstance(g.form, Group):
            return _equal(a, g.form, same)
        return _equal(Group(left), Group(right), same) if len(left) == len(right) == 1 else False
    for x, y in ((a, g), (g, a)):
        if isinstance(x, Named) and isinstance(y, Relation):
            return _equal_sides(x.sides, (y.sides[0], y.sides[1])) if x.sides and y.signs == ("=",) else False
    return _equal(a.form if isinstance(a, Named) else a, g.form if isinstance(g, Named) else g, same)


def _in_letter_of(wanted: Named, form: Named) -> Form | None:
    """The value of f(t) = 2 t written in the letter of f(x); None if these are not such equations of one function."""
    here, there = (_OF_LETTER.fullmatch(named.name) for named in (form, wanted))
    if not (here and there and form.sides and here[1] == there[1]):
        return None
    letters = _LETTERS.findall(form.sides[1])
    if there[2] in letters:
        return None
    return parse(_LETTERS.sub(lambda m: there[2] if m[0] == here[2] else m[0], form.sides[1]))


def _assigned(form: Form, other: Form) -> Form:
    """ "a = 2, b = 3" as (a, b) = (2, 3), if the other side has that form; else the form itself."""
    if not isinstance(form, Group) or not isinstance(other, Named):
        return form
    parts = [part for part in form.parts if isinstance(part, Named)]
    if len(parts) != len(form.parts) or other.name != f"({', '.join(part.name for part in parts)})":
        return form
    return Named(other.name, Row("(", tuple(part.form for part in parts), ")"))


def _equal_sides(a: tuple[str, str] | None, g: tuple[str, str] | None) -> bool:
    """True if one equation is a multiple of the other: y = 2 x + 1 and 2 x - y + 1 = 0."""
    if a is None or g is None:
        return False
    return bool(math_exact.proportional(f"{a[0]}-({a[1]})", f"{g[0]}-({g[1]})"))


def _equal_relation(a: Relation, g: Relation, same: Compare) -> bool | None:
    if a.signs != g.signs:
        return False
    verdict = _each(tuple(map(Atom, a.sides)), tuple(map(Atom, g.sides)), same)
    if a.signs != ("=",) or verdict:
        return verdict
    if _equal_sides((a.sides[0], a.sides[1]), (g.sides[0], g.sides[1])):
        return True
    return _any((verdict, _each(tuple(map(Atom, a.sides[::-1])), tuple(map(Atom, g.sides)), same)))


def _is_time(ratio: Ratio) -> bool:
    hours, minutes = ratio.parts[0], math_units.split(ratio.parts[-1], trusted=True)[0]
    return len(ratio.parts) == 2 and bool(re.fullmatch("[0-9]{1,2}", hours) and re.fullmatch("[0-5][0-9]", minutes))


def _equal_ratio(a: Form, g: Form, same: Compare) -> bool | None:
    """Ratios are equal if proportional, and a ratio of two equals their fraction; times are compared as written."""
    if isinstance(a, Ratio) and isinstance(g, Ratio):
        if _is_time(a) and _is_time(g):
            return a.parts[0].lstrip("0") == g.parts[0].lstrip("0") and _equal_atoms(a.parts[1], g.parts[1], same)
        if len(a.parts) != len(g.parts):
            return False
        cross = (f"({x})({g.parts[0]})" for x in a.parts[1:]), (f"({y})({a.parts[0]})" for y in g.parts[1:])
        return _all(same(x, y) for x, y in zip(*cross, strict=True))
    ratio, other = (a, g) if isinstance(a, Ratio) else (g, a)
    if not isinstance(ratio, Ratio) or not isinstance(other, Atom) or len(ratio.parts) != 2:
        return False
    if _is_time(ratio):
        return re.sub(r"\\frac\{(\w+)\}\{(\w+)\}", r"\1/\2", other.text) == "/".join(ratio.parts)
    return same(f"({ratio.parts[0]})/({ratio.parts[1]})", other.text)


_BASE = re.compile(r"\(?([0-9A-Fa-f]+)\)?_(?:\{(?:\\text ?\{)?([0-9]+|[a-z]+)\}*|([0-9]+))")
_BASE_WORDS = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"}
_WORDS = re.compile(r"[A-Za-z][A-Za-z .'-]*")
_TEXT = re.compile(r"\\(?:text|mbox)")
_SEVERAL_POINTS = re.compile(r"\.\s*[0-9]*\s*\.")  # versions, addresses, dates: 0.0.0.1 is not 0
_APART = re.compile(r"[+-]?[0-9.]+(?: [0-9.]+)+")  # "1 2" is not 3
_FUNCTIONS = {
    "sin", "cos", "tan", "cot", "sec", "csc", "log", "exp", "sqrt", "arcsin", "arccos", "arctan", "gcd", "lcm", "max",
    "min", "mod",
}  # fmt: skip


def _equal_atoms(a: str, g: str, same: Compare) -> bool | None:
    if a == g:
        return True
    # math-verify would read words as products of letters, "no" = "on", and malformed numbers as products or sums.
    if any(_is_words(text) or _is_malformed(text) for text in (a, g)):
        return _plain_words(a) == _plain_words(g)
    (a, unit), (g, wanted) = math_units.split(a, trusted=False), math_units.split(g, trusted=True)
    for degrees, other, its_unit in ((a, g, wanted), (g, a, unit)):
        if {unit, wanted} - {its_unit} == {"degree"} and (its_unit == "rad" or (not its_unit and r"\pi" in other)):
            return same(rf"({degrees})\pi/180", other)
    if unit and wanted and unit != wanted:
        return False
    if (verdict := _same_in_base(a, g)) is not None:
        return verdict
    if _TEXT.search(a) or _TEXT.search(g):  # words that are no unit; math-verify would skip them
        return a == g
    x, y = _INFINITE.fullmatch(a), _INFINITE.fullmatch(g)
    if x or y:
        return x is not None and y is not None and (x[1] == "-") == (y[1] == "-")
    return same(a, g)


def _same_in_base(a: str, g: str) -> bool | None:
    """Verdict on numerals with a base, None if neither has one. math-verify would drop the base: 11_2 = 11_3."""
    x, y = _BASE.fullmatch(a), _BASE.fullmatch(g)
    if x and y:
        return x[1].lstrip("0") == y[1].lstrip("0") and _base(x) == _base(y)
    if y:
        return a.lstrip("0") == y[1].lstrip("0")
    if x:
        return _base(x) == "10" and math_exact.same(x[1], g)
    return None


def _base(numeral: re.Match[str]) -> str:
    base = numeral[2] or numeral[3]
    return _BASE_WORDS.get(base, base)


def _is_malformed(text: str) -> bool:
    """True if the text holds a number with several decimal points, or is several numbers with only space between."""
    return _SEVERAL_POINTS.search(text) is not None or _APART.fullmatch(text) is not None


def _is_words(text: str) -> bool:
    if not _WORDS.fullmatch(text):
        return False
    words = [word.lower() for word in re.findall("[A-Za-z]+", text)]
    return any(word == "no" or (len(word) >= 3 and word not in _FUNCTIONS) for word in words)


def _plain_words(text: str) -> str:
    """Letters in lower case, without spaces and hyphens, which some data sets lost."""
    return (
        re.sub(r"^(?:an?|the) |[\s-]+", "", text.casefold()).rstrip(".") if _WORDS.fullmatch(text) else text.casefold()
    )
