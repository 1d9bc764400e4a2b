"""Exact arithmetic on what most answers are: fractions of polynomials in letters, roots of rationals, pi, e and i.

A value is a fraction of two polynomials with rational coefficients. Its generators are letters, pi, e, i, and primes,
whose exponents are below one: 2^{1/2}, 3^{2/3}. Products of such roots are linearly independent over the rationals
(Besicovitch, 1940), so two values are equal if and only if their cross products have the same coefficients. Nothing is
rounded. What does not fit, or would grow too large, is not read: functions, roots of sums, letters in an exponent.
"""

from __future__ import annotations

import functools
import math
import re
import threading
from fractions import Fraction
from typing import NamedTuple

Monomial = tuple[tuple[str, Fraction], ...]  # generators and exponents, sorted
Polynomial = dict[Monomial, Fraction]

MAX_BITS = 20_000  # of a coefficient
MAX_WORK = 1500  # products of small coefficients in one reading or comparison: about 10 ms
WORK_PER_CHARACTER = 20  # at most: a list of many short powers must not cost their number times 10 ms
MAX_DEPTH = 40  # of brackets
_SMALL_PRIMES = [p for p in range(2, 2000) if all(p % q for q in range(2, math.isqrt(p) + 1))]


class Unreadable(ValueError):
    """The text denotes no value of this kind, or one that is too large."""


class _Work(threading.local):
    """What this thread may still spend on the value that it reads or compares."""

    left = 0

    def begin(self, *texts: str) -> None:
        self.left = min(MAX_WORK, WORK_PER_CHARACTER * sum(map(len, texts)))


_work = _Work()


class Value(NamedTuple):
    """top / bottom; bottom is not zero."""

    top: Polynomial
    bottom: Polynomial

    def __mul__(self, other: Value) -> Value:  # type: ignore[override]
        return Value(_product(self.top, other.top), _product(self.bottom, other.bottom))

    def __add__(self, other: Value) -> Value:  # type: ignore[override]
        if self.bottom == other.bottom:
            return Value(_sum(self.top, other.top), self.bottom)
        top = _sum(_product(self.top, other.bottom), _product(other.top, self.bottom))
        return Value(top, _product(self.bottom, other.bottom))

    def inverse(self) -> Value:
        if not self.top:
            raise Unreadable("division by zero")
        return Value(self.bottom, self.top)


def same(a: str, b: str) -> bool | None:
    """True if both texts denote the same value, False if different ones, None if one of them cannot be read."""
    x, y = read(a), read(b)
    if x is None or y is None:
        return None
    _work.begin(a, b)
    try:
        return _product(x.top, y.bottom) == _product(y.top, x.bottom)
    except Unreadable:
        return None


def proportional(a: str, b: str) -> bool | None:
    """True if one value is a rational multiple of the other, not zero: x - y and 2 y - 2 x; None as in `same`."""
    x, y = read(a), read(b)
    if x is None or y is None:
        return None
    _work.begin(a, b)
    try:
        left, right = _product(x.top, y.bottom), _product(y.top, x.bottom)
    except Unreadable:
        return None
    return left.keys() == right.keys() and len({left[m] / right[m] for m in left}) <= 1


@functools.lru_cache(maxsize=8192)
def read(text: str) -> Value | None:
    """The value that a normalised text denotes; None if it denotes none of this kind."""
    if (rational := read_rational(text)) is not None:
        return _constant(rational)
    _work.begin(text)
    try:
        parser = _Parser(_MIXED.sub(r"\1\\frac{\2}{\3}", text))
        value = parser.sum()
        return value if parser.at == len(parser.tokens) else None
    except Unreadable:
        return None


_GROUPED = r"[0-9]{1,3}(?:,[0-9]{3})+"
_NUMBER = re.compile(rf"([+-]?)({_GROUPED}|[0-9]+)?(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{{1,3}}))?")
_SIMPLE = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_SLASH = re.compile(rf"({_SIMPLE})/({_SIMPLE})")
_FRAC = re.compile(rf"([+-]?)\\[dtc]?frac(?:\{{({_SIMPLE})\}}|([0-9]))(?:\{{({_SIMPLE})\}}|([0-9]))")
_MIXED = re.compile(r"^(-?[0-9]+) ([0-9]+)/([0-9]+)$")


def read_rational(text: str) -> Fraction | None:
    """The exact value of an integer, a decimal, or a fraction of these; None for anything else."""
    if number := _NUMBER.fullmatch(text):
        sign, whole, decimals, exponent = number.groups()
        if not whole and not decimals:
            return None
        top = int((whole or "0").replace(",", "") + (decimals or ""))
        power = int(exponent or 0) - len(decimals or "")
        value = Fraction(top, 10**-power) if power < 0 else Fraction(top * 10**power)
        return -value if sign == "-" else value
    sign = ""
    if match := _SLASH.fullmatch(text):
        top, bottom = match.groups()
    elif match := _FRAC.fullmatch(text):
        sign, top, digit, bottom, digit2 = match.groups()
        top, bottom = top or digit, bottom or digit2
    else:
        return None
    above, below = read_rational(top), read_rational(bottom)
    if above is None or not below:
        return None
    return above / (-below if sign == "-" else below)


def _constant(value: Fraction | int) -> Value:
    return Value({(): Fraction(value)} if value else {}, {(): Fraction(1)})


def _generator(name: str) -> Value:
    return Value({((name, Fraction(1)),): Fraction(1)}, {(): Fraction(1)})


def _sum(a: Polynomial, b: Polynomial) -> Polynomial:
    total = dict(a)
    for monomial, coefficient in b.items():
        total[monomial] = total.get(monomial, Fraction(0)) + coefficient
        if not total[monomial]:
            del total[monomial]
    return total


def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    # Long numbers cost more, most of it the greatest common divisors of fractions.
    _work.left -= len(a) * len(b) * (1 + (_longest(a) + _longest(b)) // 400)
    if _work.left < 0:
        raise Unreadable("too much work")
    total: Polynomial = {}
    for left, x in a.items():
        for right, y in b.items():
            monomial, factor = _times(left, right)
            total[monomial] = total.get(monomial, Fraction(0)) + x * y * factor
    total = {monomial: c for monomial, c in total.items() if c}
    if _longest(total) > MAX_BITS:
        raise Unreadable("too large")
    return total


def _times(a: Monomial, b: Monomial) -> tuple[Monomial, int]:
    """The product of two monomials, and the integer that comes out of it: 2^{1/2} 2^{1/2} = 2, i i = -1."""
    if not a or not b:
        return a or b, 1
    powers, factor = dict(a), 1
    for name, exponent in b:
        power = powers.get(name, Fraction(0)) + exponent
        if name == "i" and power >= 2:
            power, factor = power - 2, -factor
        elif name.isdecimal() and power >= 1:
            power, factor = power - 1, factor * int(name)
        powers[name] = power
    return tuple(sorted((name, power) for name, power in powers.items() if power)), factor


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def _longest(polynomial: Polynomial) -> int:
    return max(map(_bits, polynomial.values()), default=0)


def _as_rational(value: Value) -> Fraction | None:
    if value.top.keys() | value.bottom.keys() <= {()}:
        return value.top.get((), Fraction(0)) / value.bottom[()]
    return None


def _as_integer(value: Value) -> int:
    rational = _as_rational(value)
    if rational is None or rational.denominator != 1 or not 0 <= rational <= 1000:
        raise Unreadable("a small natural number was expected")
    return rational.numerator


def _power(base: Value, exponent: Value) -> Value:
    power = _as_rational(exponent)
    if power is None:
        return _turn(base, exponent)
    if power.denominator > 1:
        base, power = _root(base, power.denominator), Fraction(power.numerator)
    if power < 0:
        base, power = base.inverse(), -power
    if power * max(1, *map(_longest, base)) > MAX_BITS:
        raise Unreadable("too large")
    result, square, left = _constant(1), base, int(power)
    while left:
        if left & 1:
            result = result * square
        left >>= 1
        square = square * square if left else square
    return result


_HALF, _ONE = Fraction(1, 2), Fraction(1)
_UNITY = {  # e^{i pi/6} and e^{i pi/4}
    6: Value({(("3", _HALF),): _HALF, (("i", _ONE),): _HALF}, {(): _ONE}),
    4: Value({(("2", _HALF),): _HALF, (("2", _HALF), ("i", _ONE)): _HALF}, {(): _ONE}),
}


def _turn(base: Value, exponent: Value) -> Value:
    """e^{i pi k/6} and e^{i pi k/4}."""
    turn: Monomial = ((r"\pi", Fraction(1)), ("i", Fraction(1)))
    if base != _generator("e") or exponent.top.keys() != {turn} or exponent.bottom.keys() != {()}:
        raise Unreadable("exponent")
    turns = exponent.top[turn] / exponent.bottom[()]
    for part, unit in _UNITY.items():
        if (turns * part).denominator == 1:
            return _power(unit, _constant(turns * part % (2 * part)))
    raise Unreadable("exponent")


def _root(base: Value, degree: int) -> Value:
    """The real root of a rational; of a negative one with an even degree 2, i times the root of its absolute value."""
    value = _as_rational(base)
    if value is None or not 2 <= degree <= 12 or (value < 0 and degree % 2 == 0 and degree > 2):
        raise Unreadable("root")
    if value < 0:
        return _root(_constant(-value), degree) * (_constant(-1) if degree % 2 else _generator("i"))
    if _bits(value) * degree > MAX_BITS // 20:
        raise Unreadable("too large")
    result = _constant(Fraction(1, value.denominator))
    for prime, count in _factors(value.numerator * value.denominator ** (degree - 1)):
        whole, rest = divmod(count, degree)
        result = result * _constant(prime**whole)
        if rest:
            result = result * Value({((str(prime), Fraction(rest, degree)),): Fraction(1)}, {(): Fraction(1)})
    return result if value else _constant(0)


def _factors(number: int) -> list[tuple[int, int]]:
    found = []
    for prime in _SMALL_PRIMES:
        count = 0
        while number and number % prime == 0:
            number, count = number // prime, count + 1
        if count:
            found.append((prime, count))
    if number > 1:
        if number >= _SMALL_PRIMES[-1] ** 2:
            raise Unreadable("large factors")
        found.append((number, 1))
    return found


_TOKEN = re.compile(
    rf"(?P<number>{_GROUPED}(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.(?:[0-9]*))?|\.[0-9]+)(?P<period>\\overline\{{[0-9]+\}})?"
    r"|(?P<name>[A-Za-z](?:_(?:[0-9A-Za-z]|\{[0-9A-Za-z]+\}))?)"
    r"|(?P<command>\\[A-Za-z]+)(?:_(?P<low>[0-9A-Za-z]))?|(?P<mark>[-+*/^!(){}\[\]])|(?P<space>\s+)|(?P<other>.)",
    re.DOTALL,
)
_GREEK = re.compile(
    r"\\(?:alpha|beta|gamma|delta|(?:var)?epsilon|zeta|eta|(?:var)?theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|(?:var)?phi"
    r"|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Sigma|Phi|Psi|Omega|ell|pi)"
)
_TIMES = {"*", r"\cdot", r"\times"}
_CLOSING = {"(": ")", "{": "}"}


class _Parser:
    """Recursive descent over the tokens of one text. Every method raises `Unreadable`."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        depth = 0
        for match in _TOKEN.finditer(text):
            kind = match.lastgroup or ""
            if kind == "space":
                continue
            if kind == "other" or match["low"]:
                raise Unreadable(match.group())
            word = match.group()
            depth += (word in "({[") - (word in ")}]")
            if depth > MAX_DEPTH:
                raise Unreadable("too deep")
            self.tokens.append(("number" if match["number"] else kind, word))
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self, expected: str = "") -> tuple[str, str]:
        if self.at == len(self.tokens) or (expected and self.peek() != expected):
            raise Unreadable(f"{expected or 'more'} was expected")
        self.at += 1
        return self.tokens[self.at - 1]

    def sum(self) -> Value:
        total = self.signed()
        while self.peek() in ("+", "-"):
            minus = self.take()[1] == "-"
            term = self.product()
            total = total + (term * _constant(-1) if minus else term)
        return total

    def signed(self) -> Value:
        if self.peek() in ("+", "-"):
            minus = self.take()[1] == "-"
            return self.product() * _constant(-1 if minus else 1)
        return self.product()

    def product(self) -> Value:
        result = self.power()
        while word := self.peek():
            if word in _TIMES:
                self.take()
                result = result * self.power()
            elif word in ("/", r"\div"):
                self.take()
                result = result * self.power().inverse()
            elif word in ("(", "{") or self.tokens[self.at][0] in ("name", "command"):
                result = result * self.power()
            else:
                break
        return result

    def power(self) -> Value:
        base = self.atom()
        while self.peek() == "!":
            self.take()
            base = _constant(math.factorial(_as_integer(base)))
        if self.peek() != "^":
            return base
        self.take()
        minus = self.peek() == "-"
        if minus:
            self.take()
        exponent = self.atom()
        return _power(base, exponent * _constant(-1) if minus else exponent)

    def atom(self) -> Value:
        kind, word = self.take()
        if kind == "number":
            return self.mixed(word)
        if kind == "name":
            return _generator(word.replace("{", "").replace("}", ""))
        if word in _CLOSING:
            value = self.sum()
            self.take(_CLOSING[word])
            return value
        if _GREEK.fullmatch(word):
            return _generator(word)
        if word == r"\frac":
            above, below = self.argument(), self.argument()
            return above * below.inverse()
        if word == r"\sqrt":
            degree = 2
            if self.peek() == "[":
                self.take()
                degree = _as_integer(self.sum())
                self.take("]")
            return _root(self.argument(), degree)
        if word == r"\binom":
            n, k = _as_integer(self.argument()), _as_integer(self.argument())
            return _constant(math.comb(n, k))
        raise Unreadable(word)

    def mixed(self, word: str) -> Value:
        """A number; with a proper fraction of integers behind it, their sum: 1\\frac{1}{2} is 3/2."""
        value = _constant(_decimal(word))
        following = "".join(token for _, token in self.tokens[self.at : self.at + 7])
        match = re.match(r"\\frac(?:\{([0-9]+)\}|([0-9]))(?:\{([0-9]+)\}|([0-9]))", following)
        if not match:
            return value
        if not word.isdecimal() or int(match[1] or match[2]) >= int(match[3] or match[4]):
            raise Unreadable("neither a mixed number nor clearly a product")
        return value + self.atom()

    def argument(self) -> Value:
        """What a command applies to: {...}, a command, or the next character."""
        kind, word = self.take()
        self.at -= 1
        if kind == "number" and len(word) > 1:
            if not word.isdecimal():
                raise Unreadable(word)
            self.tokens[self.at : self.at + 1] = [("number", digit) for digit in word]
            self.at += 1
            return _constant(int(word[0]))
        return self.atom()


def _decimal(word: str) -> Fraction:
    digits, _, period = word.partition(r"\overline{")
    value = read_rational(digits)
    if value is None or (period and "." not in digits):
        raise Unreadable(word)
    if period:
        places = len(digits.partition(".")[2])
        value += Fraction(int(period[:-1]), (10 ** (len(period) - 1) - 1) * 10**places)
    return value
