"""The math grader: which answer a text gives, and whether it equals the gold answer.

Three steps, cheapest first: equal text after `normalise`; equal exact rationals; math-verify in a worker process
(`math_pool`). There is no tolerance on numbers: 0.333 is not 1/3 and 205 is not 204. Policies:

- a percent sign, a currency sign and degrees are units: 25\\% equals 25, and 0.25 does not equal 25\\%;
- "1,234" (groups of three digits, no space) is one number, "1, 234" is two;
- a number in a base equals the same digits without the base, "11_2" and "11", but not "11_3";
- words are compared as words, in any case;
- what looks like a number and is none (1.2.3, 1..2, 1.2.2020, "1 2") is compared as text;
- an interval equals the inequality that describes it, either way round.
"""

from __future__ import annotations

import functools
import re
from fractions import Fraction

from metaagent_x.tasks import math_pool

ANSWER_CHARS = 300  # a longer answer is right only if it is the gold answer, character by character

_BOX_TOKEN = re.compile(r"\\boxed\s*\{|\\.|\{|\}", re.DOTALL)


def extract_answer(text: str) -> str | None:
    """The content of the last balanced, non-empty `\\boxed{...}`; None if there is none.

    Later boxes replace earlier ones, so "box 41. No, box 42" answers 42 (huggingface/Math-Verify#57). Braces may nest;
    escaped braces do not count. A box that is never closed or holds nothing is no answer. One pass over the text.
    """
    open_braces: list[int | None] = []  # of a box: where its content starts
    best = -1, -1
    for token in _BOX_TOKEN.finditer(text):
        word = token.group()
        if word.startswith("\\boxed"):
            open_braces.append(token.end())
        elif word == "{":
            open_braces.append(None)
        elif word == "}" and open_braces:
            start = open_braces.pop()
            if start is not None and start > best[0] and text[start : token.start()].strip():
                best = start, token.start()
    return text[best[0] : best[1]].strip() if best[0] >= 0 else None


def is_equivalent(answer: str, gold: str) -> bool:
    """True if the two say the same. The order matters: the gold's form decides what is asked for.

    Safe in threads; blocks up to `math_pool.WALL_S` when the cheap path cannot decide (in a coroutine, use an
    executor).

    Args:
      answer: what was answered (the content of the box). gold: what is right.

    Returns:
      The verdict. An answer that takes too long or too much memory to compare is not equivalent.

    Raises:
      math_pool.VerifierFailure: no worker could be started (infrastructure, not a verdict).
    """
    known = _cheap_verdict(answer, gold)
    return _symbolic(normalise(answer), normalise(gold)) if known is None else known


def _cheap_verdict(answer: str, gold: str) -> bool | None:
    """The verdict by text and by exact rationals; None if these cannot decide."""
    if answer == gold:
        return bool(answer.strip())
    if len(answer) > ANSWER_CHARS or len(gold) > ANSWER_CHARS:
        return answer.strip() == gold.strip()
    if answer.isdecimal() and gold.isdecimal():
        return int(answer) == int(gold)
    a, g = normalise(answer), normalise(gold)
    if not a or not g:
        return False
    if a == g:
        return True
    x, y = rational(a), rational(g)
    if x is not None and y is not None:
        return x == y
    label, wanted = choice_label(answer), choice_label(gold)
    if label and wanted and len(g) == 1:
        return label == wanted
    # math-verify would read words as products of letters, "no" = "on", and malformed numbers as products or sums.
    if any(_is_words(t) or _is_malformed(t) for t in (a, g)):
        return a.casefold() == g.casefold()
    return _same_in_base(a, g)


def _same_in_base(a: str, g: str) -> bool | None:
    """Verdict on numerals with a base; None if neither has one. math-verify would drop the base: 11_2 = 11_3."""
    x, y = _BASE.fullmatch(a), _BASE.fullmatch(g)
    if x and y:
        return x.group(1).lstrip("0") == y.group(1).lstrip("0") and x.group(2) == y.group(2)
    if x or y:
        return (x.group(1) if x else a).lstrip("0") == (y.group(1) if y else g).lstrip("0")
    return None


@functools.lru_cache(maxsize=8192)
def _symbolic(answer: str, gold: str) -> bool:
    """math-verify's verdict. Kept, since the executions of one question give the same few answers."""
    return math_pool.shared().check(gold, answer)


_GROUPED = r"\d{1,3}(?:,\d{3})+"
_NUMBER = re.compile(rf"([+-]?)({_GROUPED}|\d+)?(\.\d*)?([eE][+-]?\d{{1,3}})?")
_SIMPLE = r"[+-]?(?:\d+\.?\d*|\.\d+)"
_SLASH = re.compile(rf"({_SIMPLE})/({_SIMPLE})")
_FRAC = re.compile(rf"([+-]?)\\frac(?:\{{({_SIMPLE})\}}|(\d))(?:\{{({_SIMPLE})\}}|(\d))")
_BASE = re.compile(r"([0-9A-Fa-f]+)_\{?(\d+)\}?")
_WORDS = re.compile(r"[A-Za-z][A-Za-z ,.'-]*")
_SEVERAL_POINTS = re.compile(r"\.\s*\d*\s*\.")  # versions, addresses, dates: 0.0.0.1 is not 0
_APART = re.compile(r"[+-]?[\d.]+(?: [\d.]+)+")  # "1 2" is not 3
_FUNCTIONS = {
    "sin", "cos", "tan", "cot", "sec", "csc", "log", "exp", "sqrt", "arcsin", "arccos", "arctan", "gcd", "lcm", "max",
    "min", "mod",
}  # fmt: skip


@functools.lru_cache(maxsize=8192)
def rational(text: str) -> Fraction | None:
    """The exact value of a normalised integer, decimal or fraction of these; None for anything else."""
    number = _NUMBER.fullmatch(text)
    if number and (number.group(2) or (number.group(3) or ".") != "."):
        sign, whole, decimals, exponent = number.groups()
        decimals = "" if decimals in (None, ".") else decimals
        return Fraction(f"{sign}{(whole or '0').replace(',', '')}{decimals}{exponent or ''}")
    if match := _SLASH.fullmatch(text):
        sign, top, bottom = "", *match.groups()
    elif match := _FRAC.fullmatch(text):
        sign, top, digit, bottom, digit2 = match.groups()
        top, bottom = top or digit, bottom or digit2
    else:
        return None
    low = Fraction(bottom.rstrip("."))
    if low == 0:
        return None
    value = Fraction(top.rstrip(".")) / low
    return -value if sign == "-" else value


def _is_malformed(text: str) -> bool:
    """True if the text holds a number with several decimal points, or is several numbers with only space between."""
    return _SEVERAL_POINTS.search(text) is not None or _APART.fullmatch(text) is not None


def _is_words(text: str) -> bool:
    if not _WORDS.fullmatch(text):
        return False
    words = (word.lower() for word in re.findall("[A-Za-z]+", text))
    return any(word == "no" or (len(word) >= 3 and word not in _FUNCTIONS) for word in words)


_STYLE = r"\\(?:text|textbf|textrm|textit|texttt|mathrm|mathbf|mathit|mathsf|boldsymbol|mbox|operatorname|rm|bf)"
_WHOLE_STYLED = re.compile(_STYLE + r"\s*\{([^{}]*)\}")
_LETTER_STYLED = re.compile(_STYLE + r"\s*(?:\{\s*(\w)\s*\}|\s+(\w)(?!\w))")
_LABEL = re.compile(r"\(?([A-J])\)?[.:]?|\(([A-J])\)[.:]?\s*\S.*")
_GLUED = re.compile(_STYLE + r"\s*\{\s*\(?([A-J])\)?[.:]?\s*\\?\s*\}\s*(.*)", re.DOTALL)
_DROPPED = re.compile(r"\\(?:left|right|displaystyle|textstyle|[bB]igg?[lr]?)(?![A-Za-z])|\\!|\^\{?\\circ\}?|\u00b0")
_THIN = re.compile(r"\\[,;: ]|~|[\u2009\u202f\u00a0\u2007]|\\(?:thinspace|quad|qquad)(?![A-Za-z])")
_UNICODE = str.maketrans({
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ",
    "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "½": r"\frac{1}{2}", "±": r"\pm ",
})  # fmt: skip
# Some Polaris golds lost their letters: \frac{}{2}, (,0), ^2=b-, f(x)=.
_INCOMPLETE = re.compile(
    r"=\s*$|^\s*[\^_]|\(\s*[,^]|,\s*\)|\\frac\{\s*\}|\\frac\{[^{}]*\}\{\s*\}|[+-]\s*\^|[^{^\s][+-]\s*[})]"
)
_SPACED_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?: \d{3})+(?:\.\d+)?")


@functools.lru_cache(maxsize=8192)
def normalise(text: str) -> str:
    """One spelling for what LaTeX spells in many ways. Idempotent; changes no value (see the policies on units).

    Dollar signs around it, trailing dots, `\\left`, thin spaces, `\\dfrac`, "70{,}000", "70 000" (any space between
    groups of three digits, nothing else in the text), upright letters, a percent or dollar sign.
    """
    if text.isdigit() and text.isascii():
        return text
    s = text.translate(_UNICODE).strip()
    s = re.sub(r",\\!(?=\d{3})", ",", s)
    s = _DROPPED.sub("", s)
    s = re.sub(r"(?<=\d)\{,\}(?=\d{3})", ",", s)
    s = re.sub(r"(?<=\d)(?:\\[,;: ]|[\u2009\u202f\u00a0])(?=\d{3}(?!\d))", " ", s)
    s = " ".join(_THIN.sub(" ", s).split())
    s = _trim(s)
    s = re.sub(r"\\[dtc]frac", r"\\frac", s)
    if styled := _WHOLE_STYLED.fullmatch(s):
        s = _trim(styled.group(1))
    s = _LETTER_STYLED.sub(lambda m: m.group(1) or m.group(2), s)
    if _SPACED_THOUSANDS.fullmatch(s):
        s = s.replace(" ", ",")
    s = re.sub(r"\s*([-+=<>/^,(){}\[\]])\s*", lambda m: m.group(1) + (" " if m.group(1) == "," else ""), s)
    s = re.sub(r"(?<=\d), (?=\d{3}(?!\d))", ",", s) if _one_number(text) else s
    return s.strip()


def _one_number(text: str) -> bool:
    """True if commas in the text group digits: no white space of the writer's stands after one."""
    return not re.search(r",\s", text)


def _trim(s: str) -> str:
    """Without what surrounds a value: math delimiters, trailing dots, currency and percent signs."""
    before = None
    while s != before:
        before = s
        s = s.strip().rstrip(".").rstrip()
        for left, right in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
            if s.startswith(left) and s.endswith(right) and len(s) >= len(left) + len(right):
                s = s[len(left) : -len(right)]
        s = re.sub(r"\\?%$|^\\\$|^\$(?=[\d.])", "", s)
    return s


def choice_label(text: str) -> str | None:
    """The letter of a multiple-choice answer: C, (C), \\text{C}, \\textbf{(C)}\\ 25. None if it is not one."""
    s = text.strip().strip("$").strip()
    if glued := _GLUED.fullmatch(s):
        return glued.group(1)
    label = _LABEL.fullmatch(s)
    return (label.group(1) or label.group(2)) if label else None


def split_choice(gold: str) -> tuple[str, ...]:
    """Accepted answers of a gold that glues a choice label to a value: `\\textbf{(C)}\\25` gives 25 and C.

    Polaris lost the space of `\\ ` between the two in about 1 % of its rows; as they stand no sane answer equals them.
    A gold of any other form is returned alone, unchanged.
    """
    glued = _GLUED.fullmatch(gold.strip())
    if not glued:
        return (gold,)
    label, value = glued.groups()
    # The backslash of the lost "\ " stands before a digit, a sign, another command, or a single letter.
    value = re.sub(r"^\\(?=[\d\\+(\[ -]|[A-Za-z](?![A-Za-z]))", "", value).strip()
    return (value, label) if value else (label,)


def gold_problem(gold: str) -> str | None:
    """Why no answer can be graded against this gold ("gold is a sentence", ...); None if it can. Reads no LaTeX."""
    if not gold.strip():
        return "gold is empty"
    if len(gold) > ANSWER_CHARS:
        return "gold is too long"
    plain = re.sub(r"\\[A-Za-z]+|[{}$]", " ", re.sub(_STYLE + r"\s*\{", " ", gold))
    if len(re.findall(r"[A-Za-z]{2,}", plain)) >= 5:
        return "gold is a sentence"
    if _INCOMPLETE.search(gold):
        return "gold is incomplete"
    return None
