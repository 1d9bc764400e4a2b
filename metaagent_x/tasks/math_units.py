"""Units behind (or before) a value: which text is one, and whether two are the same."""

from __future__ import annotations

import re

_ALIASES = {
    name: unit
    for unit, names in {
        "m": "meter meters metre metres", "cm": "centimeter centimeters centimetre centimetres",
        "mm": "millimeter millimeters millimetre millimetres", "km": "kilometer kilometers kilometre kilometres",
        "in": "inch inches", "ft": "foot feet", "yd": "yard yards", "mi": "mile miles", "g": "gram grams",
        "kg": "kilogram kilograms", "lb": "lbs pound pounds", "oz": "ounce ounces", "l": "liter liters litre litres",
        "ml": "milliliter milliliters", "gal": "gallon gallons", "s": "sec secs second seconds",
        "min": "mins minute minutes", "h": "hr hrs hour hours", "day": "days", "week": "weeks", "month": "months",
        "year": "years", "dollar": "dollars usd", "cent": "cents", "euro": "euros €", "percent": "percents %",
        "degree": "degrees deg °", "rad": "radian radians", "unit": "units", "people": "person", "man": "men",
        "child": "children", "woman": "women", "am": "a.m.", "pm": "p.m.", "way": "ways", "mph": "", "kph": "",
        "£": "", "mg": "", "acre": "acres", "hz": "", "n": "", "j": "", "w": "", "v": "",
    }.items()
    for name in (unit, *names.split())
}  # fmt: skip
_NOT_UNITS = {
    "less", "tens", "dozens", "hundreds", "thousands", "millions", "billions", "pairs", "plus", "minus", "is", "halves",
    "thirds", "fourths", "quarters", "fifths", "squares", "cubes", "always", "answers", "solutions",
}  # fmt: skip
_STYLE = r"\\(?:text|textrm|textbf|textit|mathrm|mathit|mathbf|mbox|rm)"
_POWER = r"(?:\^(?:[23]|\{-?[123]\}))?"
_STYLED = re.compile(rf"(.*?\S)\s*((?:{_STYLE}\s*\{{[^{{}}]*\}}{_POWER}\s*(?:/|\\cdot)?\s*)+)", re.DOTALL)
_PLAIN = re.compile(r"(.*[0-9})])\s*([A-Za-z][A-Za-z./^23 ]*[A-Za-z23.])", re.DOTALL)
_SIGN = re.compile(r"(.*?\S)\s*(°|¢|\\?%)", re.DOTALL)
_ANGLE_INSIDE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")  # the degrees of \\sin 15° are not its unit
_MONEY = re.compile(r"([+-]?)\s*(?:\\\$|\$|€|£)\s*(.+)", re.DOTALL)


def split(text: str, *, trusted: bool) -> tuple[str, str]:
    """A value and its unit in one spelling ("" if none): "5\\text{ sq. inches}" gives "5" and "in^2".

    Args:
      trusted: any words in `\\text{}` behind the value are its unit (of a gold answer). Otherwise only known units and
        single plural words are: "12 \\text{ apples}", but not "5 \\text{ or more}" or "5 \\text{ thousand}".
    """
    if money := _MONEY.fullmatch(text):
        return money.group(1) + money.group(2), "dollar" if "$" in text else "euro" if "€" in text else "£"
    if (sign := _SIGN.fullmatch(text)) and not _ANGLE_INSIDE.search(text):
        return sign.group(1), {"°": "degree", "¢": "cent"}.get(sign.group(2), "percent")
    if styled := _STYLED.fullmatch(text):
        value, words = styled.groups()
        unit, known = _one_spelling(re.sub(_STYLE, "", words))
        if known or trusted or (re.fullmatch("[a-z]+s", unit) and unit not in _NOT_UNITS):
            return value.strip(), unit
    elif plain := _PLAIN.fullmatch(text):
        unit, known = _one_spelling(plain.group(2))
        if known and re.match("[A-Za-z]{2}", plain.group(2)):  # 5m is a product
            return plain.group(1).strip(), unit
    return text, ""


def _one_spelling(words: str) -> tuple[str, bool]:
    """The unit with short names, and whether all of its parts are known."""
    s = re.sub(r"[{}\\~]|cdot", " ", words.lower())
    s = re.sub(r"\b(?:square|sq\.?) +([a-z]+)", r"\1^2", re.sub(r"\b(?:cubic|cu\.?) +([a-z]+)", r"\1^3", s))
    s = re.sub(r"([a-z]+) +squared", r"\1^2", re.sub(r"([a-z]+) +cubed", r"\1^3", s))
    s = re.sub(r"\s*\bper\b\s*|\s*/\s*", "/", re.sub(r"\s*\^\s*", "^", s)).strip()
    known = bool(s)
    parts = []
    for part in re.split(r"([/ ])", s):
        name, hat, power = part.partition("^")
        known &= name in ("/", " ") or name in _ALIASES
        parts.append(_ALIASES.get(name, name) + hat + power.strip())
    unit = "".join(parts).strip()
    return {"mi/h": "mph", "km/h": "kph"}.get(unit, unit), known
