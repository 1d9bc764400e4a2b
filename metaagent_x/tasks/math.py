"""The math grader: which answer a text gives, and whether it equals the gold answer.

Four steps, cheapest first: equal rationals; equal text after `normalise`; equal forms (`math_forms`) of equal exact
values (`math_exact`); the same with math-verify for the expressions, in a worker process (`math_pool`). Nothing is
rounded: 0.333 is not 1/3, and 205 is not 204. What is in doubt is wrong. Policies, for both directions unless said:

- Lists: "1, 2", "1 or 2", "1; 2", "{1, 2}", both signs of \\pm are the same set; order and repetition do not count. A
  part of a list, or more than the list, is wrong. One value equals the set that holds only it.
- Tuples are ordered. An answer without the brackets of a gold tuple is right in its order; a gold list never
  equals a tuple. A column vector equals the tuple of its entries, a row does not.
- An interval equals the inequality that describes it, with or without "x \\in"; "or" and commas join to a union, "and"
  to an intersection; open and closed ends differ. |x| < 3 is -3 < x < 3.
- "x = 5" equals 5 (also "f(x) = ...", "AB = ..."), but not "y = 5". Other equations are equal if one is a multiple of
  the other. "a = 2, b = 3" equals (a, b) = (2, 3). Of "a = b = c" all values must be equal, and of "a \\approx b"
  only a counts. "m + n = 16 + 9 = 25" answers 25, so do a/b, AB^2, [ABC]; "2 x = 25" and "x^2 = 25"
  do not. "x = y = 2" equals (2, 2). "for all real x" behind an equation says nothing new.
- Units: one side may leave the unit out; two units must be the same one (cm is not m, cm^2 not cm). A percent sign, a
  currency sign and degrees are units: 25\\% equals 25 and not 0.25; 90 degrees equal 90, and also pi/2, since what
  holds pi is in radians. Behind a gold, any words are a unit; behind an answer, known units and plural nouns are.
- "1,234" (groups of three digits, no space) is one number, "1, 234" is two; a gold "100,200" accepts both readings.
- 1\\frac{1}{2} is a mixed number; 2\\frac{3}{2} is nothing. x^10 is a tenth power, as people type it.
- A gold in a base, "11_2", accepts the same digits without the base, 11, but not 11_3 and not its value 3.
- Ratios are equal if proportional, and 3:2 equals 3/2. "8:22" may be a time, and equals no reduced ratio.
- Words are compared in any case, without spaces, hyphens and a leading article. "no solution" equals the empty set.
- What looks like a number and is none (1.2.3, 1..2, 1.2.2020, "1 2") is compared as text. Only ASCII digits are digits.
- A gold that is a choice label (A to J) accepts that label with anything but another label behind it: "(B) 12".
"""

from __future__ import annotations

import functools
import re

from metaagent_x.tasks import math_exact, math_forms, math_pool

ANSWER_CHARS = 400  # a longer answer is right only if it is the gold answer, character by character

_BOX_TOKEN = re.compile(r"\\boxed\s*\{|\\.|\{|\}", re.DOTALL)
_PLAIN_BOX = re.compile(r"\\boxed\s*\{([^{}\\]*)\}")


def extract_answer(text: str) -> str | None:
    """The content of the last balanced, non-empty `\\boxed{...}`; None if there is none.

    Later boxes replace earlier ones, so "box 41. No, box 42" answers 42 (huggingface/Math-Verify#57). Braces may nest;
    escaped braces do not count. A box that is never closed or holds nothing is no answer. One pass over the text.
    """
    at = text.rfind("\\boxed")
    if at < 0:
        return None
    # Most often the last box is a plain one. (Behind a backslash, "\\\\boxed", it is a line break and a word.)
    if (box := _PLAIN_BOX.match(text, at)) and box.group(1).strip() and text[at - 1 : at] != "\\":
        return box.group(1).strip()
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
    """The verdict by text, exact values and forms; None if these cannot decide."""
    if answer == gold:
        return bool(answer.strip())
    if len(answer) > ANSWER_CHARS or len(gold) > ANSWER_CHARS:
        return answer.strip() == gold.strip()
    x, y = math_exact.read_rational(answer), math_exact.read_rational(gold)
    if x is not None and y is not None and "," not in gold:
        return x == y
    a, g = normalise(answer), normalise(gold)
    if not a or not g:
        return False
    if a == g:
        return True
    label, wanted = choice_label(answer), choice_label(gold)
    if label and wanted and len(g) == 1:
        return label == wanted
    return math_forms.equal(a, g, math_exact.same)


@functools.lru_cache(maxsize=8192)
def _symbolic(answer: str, gold: str) -> bool:
    """The verdict with math-verify. Kept, since the executions of one question give the same few answers."""
    return math_pool.shared().check(gold, answer)


_STYLE = r"\\(?:text|textbf|textrm|textit|texttt|mathrm|mathbf|mathit|mathsf|boldsymbol|mbox|operatorname|rm|bf)"
_WHOLE_STYLED = re.compile(_STYLE + r"\s*\{([^{}]*)\}")
_JOINED = re.compile(rf"\s*,?\s*(?:{_STYLE}\{{,?\s*(or|and)\s*\}}|(?<!\\)\b(or|and)\b)\s*")
# Upright letters. m, s, g, h and l behind a value are units.
_LETTER_STYLED = re.compile(_STYLE + r"\s*(?:\{\s*([^\W\d_msghlL])\s*\}|\s+([^\W\d_msghlL])(?!\w))")
_LABEL = re.compile(r"\(?([A-J])\)?[.:]?|\(([A-J])\)(?:[.:]|\s|(?=[\\$0-9])).*")
_OTHER_LABEL = re.compile(r"(?<![A-Za-z\\])[A-J](?![A-Za-z])|\b(?:or|and|not|nor|any|all|both)\b", re.IGNORECASE)
_GLUED = re.compile(_STYLE + r"\s*\{\s*\(?([A-J])\)?[.:]?\s*\\?\s*\}\s*(.*)", re.DOTALL)
_DROPPED = re.compile(r"\\(?:left|right|displaystyle|textstyle|[bB]igg?[lr]?)(?![A-Za-z])|\\!")
_DEGREES = re.compile(r"\s*(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])|\u00b0)")
_THIN = re.compile(r"(?<!\\)\\[,;: ]|~|[\u2009\u202f\u00a0\u2007]|\\(?:thinspace|quad|qquad)(?![A-Za-z])")
_GROUP_MARK = re.compile(r"(?<=[0-9])(?:\{,\}|,?\\!\s?|\\[,;: ]|[\u2009\u202f\u00a0])(?=[0-9]{3}(?![0-9]))")
_UNICODE = str.maketrans({
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ",
    "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "½": r"\frac{1}{2}", "±": r"\pm ",
    "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "⟨": r"\langle ", "⟩": r"\rangle ", "²": "^2", "³": "^3",
})  # fmt: skip
_SIGNS = [
    (re.compile(pattern), sign) for pattern, sign in (
        (r"\\leq(?:slant|q)?(?![A-Za-z])|<=", r"\le "), (r"\\geq(?:slant|q)?(?![A-Za-z])|>=", r"\ge "),
        (r"\\neq(?![A-Za-z])|!=", r"\ne "), (r"\\lt(?![A-Za-z])", "<"), (r"\\gt(?![A-Za-z])", ">"),
        (r"\\[dtc]frac(?![A-Za-z])", r"\frac"), (r"\\dbinom(?![A-Za-z])", r"\binom"), (r"\\colon(?![A-Za-z])", ":"),
    )
]  # fmt: skip
# Some Polaris golds lost the space behind a command: PR\timesPS, \cos(\sinx), \lceiln.
_COMMAND = re.compile(r"\\(times|cdot|angle|perp|lceil|lfloor|sin|cos|tan|ln|pi)([A-Za-z]+)")
_LONGER = {"cosh", "sinh", "tanh", "cdots", "pitchfork"}
# Some Polaris golds lost their letters: \frac{}{2}, (,0), ^2=b-, f(x)=.
_INCOMPLETE = re.compile(
    r"=\s*$|^\s*[\^_]|\(\s*[,^]|,\s*\)|\\frac\{\s*\}|\\frac\{[^{}]*\}\{\s*\}|[+-]\s*\^|[^{^\s][+-]\s*[})]"
    r"|\\sqrt\{\s*\}|^\\\d|\+\+|\(\+|\|\|=|=\|\|"
)
_SQRT_TYPED = re.compile(r"(?<![A-Za-z\\])(sqrt|exp)\(([^()]*)\)")
_FUNCTION_TYPED = re.compile(
    r"(?<![A-Za-z\\])(sin|cos|tan|cot|sec|csc|log|ln|exp|arcsin|arccos|arctan|pi|infty)(?![A-Za-z])"
)
_DOLLAR = re.compile(r"(?<!\\)\$")  # several delimit formulas, a single one is a currency sign
_SPACED_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(?: [0-9]{3})+(?:\.[0-9]+)?")


@functools.lru_cache(maxsize=8192)
def normalise(text: str) -> str:
    """One spelling for what LaTeX spells in many ways. Idempotent; changes no value, drops no unit.

    Dollar signs, trailing dots, `\\left`, thin spaces, `\\dfrac`, `\\leq`, "70{,}000", "70 000" (any space
    between groups of three digits, nothing else in the text), upright letters and words, lost spaces.
    """
    if text.isdigit() and text.isascii():
        return text
    s = _typed(text.translate(_UNICODE).strip())
    s = _GROUP_MARK.sub("", _DROPPED.sub("", _GROUP_MARK.sub("", s)))
    s = _DEGREES.sub("\u00b0", s)
    s = " ".join(_THIN.sub(" ", s).split())
    s = _trim(_DOLLAR.sub("", s) if len(_DOLLAR.findall(s)) > 1 else s)
    for pattern, sign in _SIGNS:
        s = pattern.sub(lambda _, sign=sign: sign, s)
    if styled := _WHOLE_STYLED.fullmatch(s):
        s = _trim(styled.group(1))
    s = _LETTER_STYLED.sub(lambda m: m.group(1) or m.group(2), s)
    s = _COMMAND.sub(lambda m: m.group() if m.group(1) + m.group(2) in _LONGER else rf"\{m.group(1)} {m.group(2)}", s)
    if _SPACED_THOUSANDS.fullmatch(s):
        s = s.replace(" ", "")
    s = re.sub(r"\s*([-+=<>/^,(){}\[\]:])\s*", lambda m: m.group(1) + (" " if m.group(1) == "," else ""), s)
    s = re.sub(r"(?<!,)\s+(?=\\[A-Za-z])", "", s)
    s = re.sub(r"(\\[A-Za-z]+)\s+(?![A-Za-z])", r"\1", s)
    s = _JOINED.sub(lambda m: f" {m.group(1) or m.group(2)} ", s)
    s = re.sub(r"(?<=[0-9]), (?=[0-9]{3}(?![0-9]))", ",", s) if not re.search(r",\s", text) else s
    return s.strip()


def _typed(s: str) -> str:
    """LaTeX for what people type: pi/2, exp(16)-1, sqrt(2), 2*x, x**2."""
    s = s.replace("**", "^").replace("*", r"\cdot ")
    s = _SQRT_TYPED.sub(lambda m: (r"\sqrt{" if m.group(1) == "sqrt" else "e^{") + m.group(2) + "}", s)
    return _FUNCTION_TYPED.sub(r"\\\1 ", s)


def _trim(s: str) -> str:
    """Without what surrounds a value: math delimiters, trailing dots."""
    before = None
    while s != before:
        before = s
        s = s.strip().rstrip(".").rstrip()
        for left, right in ((r"\(", r"\)"), (r"\[", r"\]")):
            if s.startswith(left) and s.endswith(right) and len(s) >= len(left) + len(right):
                s = s[len(left) : len(s) - len(right)]
    return s


def choice_label(text: str) -> str | None:
    """The letter of a multiple-choice answer: C, (C), \\text{C}, \\textbf{(C)}\\ 25. None if it is not one."""
    s = text.strip().strip("$").strip()
    if glued := _GLUED.fullmatch(s):
        return None if _OTHER_LABEL.search(glued.group(2)) else glued.group(1)
    label = _LABEL.fullmatch(s)
    if not label or (label.group(2) and _OTHER_LABEL.search(s[label.end(2) :])):
        return None
    return label.group(1) or label.group(2)


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
