"""Which tasks are the same question: duplicates within a dataset, and training tasks that a benchmark also asks.

Two measures, both on the text of the task alone:

- exact: equal after `normalise`, which forgives case, white space and the ways to write the same LaTeX, and nothing
  else: "3 + 2" is not "3 - 2";
- n-gram: 13 words in a row in common, words being runs of letters or digits in any case (Brown et al. 2020, appendix
  C). A task of fewer than 13 words is compared whole, that is by the exact measure only.

13 words in a row can also be boilerplate ("m/n where m and n are relatively prime positive integers, find m + n"; "the
first line of the input contains a single integer n"). A phrase of `PHRASE` words is boilerplate if more than a few
tasks of the training set or of the benchmark hold it (`few`: ten, as there, and fewer in small sets). An n-gram counts
only

- if at least `LEAST_OWN` of its words stand outside boilerplate;
- if it holds `LEAST_WORDS` different words of two letters or more, which rows of numbers in sample data do not;
- if it does not stand in a drawing (Asymptote).

What this misses, a question that many training tasks repeat with changes, has to be looked for among the duplicates.
What it lets through all the same can be told by its small `share`.
"""

from __future__ import annotations

import collections
import dataclasses
import re
import unicodedata
from collections.abc import Sequence

NGRAM = 13
PHRASE = 8
LEAST_OWN = 7
LEAST_WORDS = 3

Texts = Sequence[tuple[str, str]]
"""Pairs of an id and a text."""

_WORD = re.compile(r"[^\W_]+")
_DRAWING = re.compile(r"\[asy\].*?\[/asy\]", re.DOTALL | re.IGNORECASE)
_LAYOUT = re.compile(r"\$|\\[()\[\],;:! ]|~|\\(?:left|right|displaystyle|textstyle|quad|qquad|limits)(?![a-z])")
_FRACTION = re.compile(r"\\[dtc]frac(?![a-z])")
_AROUND_SYMBOL = re.compile(r"\s*([^\w\s])\s*")


@dataclasses.dataclass(frozen=True)
class Match:
    """A training task and a benchmark task that share text.

    Attributes:
      training, benchmark: ids.
      kind: "exact" or "ngram".
      share: the part of the benchmark task's words that stand in shared n-grams, 0 to 1; 1 if exact.
      text: the first shared n-gram; "" if exact.
    """

    training: str
    benchmark: str
    kind: str
    share: float
    text: str = ""


def normalise(text: str) -> str:
    """One spelling of a text: case, white space, Unicode forms and LaTeX that only changes the layout are forgiven."""
    s = unicodedata.normalize("NFKC", text).casefold()
    s = _FRACTION.sub(r"\\frac", _LAYOUT.sub(" ", s))
    return " ".join(_AROUND_SYMBOL.sub(r"\1", s).split()).rstrip(".")


def words(text: str) -> list[str]:
    """Runs of letters or digits, in one case; not those of drawings."""
    return _WORD.findall(unicodedata.normalize("NFKC", _DRAWING.sub(" ", text)).casefold())


def ngrams(text: str, n: int = NGRAM) -> list[str]:
    """Every `n` words in a row, joined by blanks, in order; none if the text is shorter. Repeats are kept."""
    all_words = words(text)
    return [" ".join(all_words[i : i + n]) for i in range(len(all_words) - n + 1)]


def duplicates(texts: Texts) -> tuple[dict[str, str], dict[str, str]]:
    """The tasks that an earlier one already asks.

    Returns:
      exact: id -> id of the first task with the same text but for white space at its ends.
      near: id -> id of the first task with the same `normalise`d text; those in `exact` are left out.
    """
    exact: dict[str, str] = {}
    near: dict[str, str] = {}
    first_exact: dict[str, str] = {}
    first_near: dict[str, str] = {}
    for name, text in texts:
        if (first := first_exact.setdefault(text.strip(), name)) is not name:
            exact[name] = first
        elif (first := first_near.setdefault(normalise(text), name)) is not name:
            near[name] = first
    return exact, near


def few(tasks: int, one_in: int) -> int:
    """In how many tasks of a set of this size a phrase may stand and still say something: one in so many, 2 to 10."""
    return max(2, min(10, tasks // one_in))


def overlap(training: Texts, benchmark: Texts, n: int = NGRAM, least_share: float = 0.0) -> list[Match]:
    """Training tasks that share text with a benchmark, in the order of `training`; one match per pair of tasks.

    A match by n-grams counts from `least_share` of the benchmark task's words on; 0 is the usual rule, any n-gram.

    Time and memory grow with the sizes added, not multiplied: the n-grams of the benchmark are kept in a table, those
    of the training set pass by.
    """
    whole: dict[str, list[str]] = collections.defaultdict(list)
    for name, text in benchmark:
        whole[normalise(text)].append(name)
    lengths, places = _telling(training, benchmark, n)
    matches: list[Match] = []
    for name, text in training:
        same = whole.get(normalise(text), [])
        matches += [Match(name, other, "exact", 1.0) for other in same]
        shared: dict[int, list[str]] = collections.defaultdict(list)
        for gram in dict.fromkeys(ngrams(text, n)):
            for number in places.get(gram, ()):
                shared[number].append(gram)
        for number, grams in shared.items():
            covered = {first + i for gram in grams for first in places[gram][number] for i in range(n)}
            share = len(covered) / lengths[number]
            if benchmark[number][0] not in same and share >= least_share:
                matches.append(Match(name, benchmark[number][0], "ngram", share, grams[0]))
    return matches


def _telling(training: Texts, benchmark: Texts, n: int) -> tuple[list[int], dict[str, dict[int, list[int]]]]:
    """The words of each benchmark task, counted; and the n-grams that count -> task -> where they begin in it."""
    phrases = [ngrams(text, PHRASE) for _, text in benchmark]
    asked = collections.Counter(phrase for one in phrases for phrase in set(one))
    trained = collections.Counter(p for _, text in training for p in asked.keys() & ngrams(text, PHRASE))
    most_asked, most_trained = few(len(benchmark), 100), few(len(training), 1000)
    common = {p for p in asked if asked[p] > most_asked or trained[p] > most_trained}
    lengths: list[int] = []
    places: dict[str, dict[int, list[int]]] = {}
    for number, (_, text) in enumerate(benchmark):
        lengths.append(len(words(text)))
        own = [True] * lengths[-1]
        for first, phrase in enumerate(phrases[number]):
            if phrase in common:
                own[first : first + PHRASE] = [False] * PHRASE
        for first, gram in enumerate(ngrams(text, n)):
            if sum(own[first : first + n]) >= LEAST_OWN and _says_something(gram):
                places.setdefault(gram, {}).setdefault(number, []).append(first)
    return lengths, places


def _says_something(gram: str) -> bool:
    return len({word for word in gram.split() if len(word) > 1 and word.isalpha()}) >= LEAST_WORDS
