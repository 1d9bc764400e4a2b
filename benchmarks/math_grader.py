"""The math grader on labelled pairs, beside math-verify alone and a cascade with a tolerance; and its rates.

  python -m benchmarks.math_grader ROWS            # prints tables; ROWS: a folder with polaris/ and math500/
  python -m benchmarks.math_grader ROWS --append   # and adds them to benchmarks/RESULTS.md

Pairs: `tests/tasks/answer_pairs.tsv`, labelled by hand. "math-verify alone" is what its README shows: parse both, then
`verify(gold, answer)`. "cascade" is the order of matches that multi-agent training code uses: exact, units stripped,
LaTeX normalised, fractions as a/b, numbers within 0.5 %, a choice letter, math-verify.

Rates. "easy": extraction and verdict on short completions, integers with leading zeros, fractions and decimals, all
distinct. "LaTeX": golds of Polaris and MATH-500 that are no plain number, each against an answer that is written in
another way (its value plus 1 minus 1, or its letters and brackets spelt otherwise), two workers, caches cold.
"""

from __future__ import annotations

import concurrent.futures
import datetime
import os
import platform
import random
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from metaagent_x.tasks import math as grader
from metaagent_x.tasks import math_exact, math_forms, math_pool
from metaagent_x.tasks.datasets import load

PAIRS = Path(__file__).parents[1] / "tests" / "tasks" / "answer_pairs.tsv"
EASY, REPEATS, THREADS = 20_000, 5, 4
_NO_TERM = re.compile(r"\\(?:text|mbox|circ|%|perp)|_")  # units, bases and the like: adding 0 makes no sense
Judge = Callable[[str, str], bool]


def labelled_pairs() -> list[tuple[str, bool, str]]:
    lines = PAIRS.read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("# ")]
    return [(gold, label == "right", answer) for gold, label, answer in rows]


def math_verify_alone(answer: str, gold: str) -> bool:
    from math_verify import parse, verify

    return bool(verify(parse(f"${gold}$"), parse(rf"\boxed{{{answer}}}")))


def cascade(answer: str, gold: str) -> bool:
    """Right as soon as one of the matches holds."""
    a, g = answer.strip().casefold(), gold.strip().casefold()
    if a == g:
        return True
    a, g = (re.sub(r"\\text\{[^{}]*\}|\^?\\circ|°|\\?%|\\?\$|\b[ap]\.?m\.?", "", text).strip() for text in (a, g))
    a, g = (re.sub(r"\\left|\\right|\\[,;! ]|\s", "", re.sub(r"\\[dt]frac", r"\\frac", text)) for text in (a, g))
    a, g = (re.sub(r"\\frac\{([^{}]+)\}\{([^{}]+)\}", r"\1/\2", text) for text in (a, g))
    if a and a == g:
        return True
    x, y = number(a), number(g)
    if x is not None and y is not None and abs(x - y) <= 0.005 * max(abs(x), abs(y)):
        return True
    if re.fullmatch(r"\(?[a-e]\)?", g) and (label := re.search(r"\(?\b([a-e])\b\)?", a)):
        return label.group(1) == g.strip("()")
    return math_verify_alone(answer, gold)


def number(text: str) -> float | None:
    try:
        top, slash, bottom = text.replace(",", "").partition("/")
        return float(top) / float(bottom) if slash else float(top)
    except (ValueError, ZeroDivisionError, OverflowError):
        return None


def quality(judge: Judge) -> tuple[int, int]:
    """Wrong answers that passed, and right ones that did not."""
    verdicts = [(right, judge(answer, gold)) for gold, right, answer in labelled_pairs()]
    return sum(v and not right for right, v in verdicts), sum(right and not v for right, v in verdicts)


def forget() -> None:
    """Empties every cache of the grader, and starts new workers."""
    for cached in (grader.normalise, grader._symbolic, math_exact.read, math_forms.parse):
        cached.cache_clear()
    math_pool.close()


def easy_completions() -> list[tuple[str, str]]:
    """(completion, gold), half of them right."""
    rng, rows = random.Random(0), []
    for number in rng.sample(range(10**6), EASY):
        shift = rng.choice((0, 1))
        answer, gold = rng.choice((
            (f"{number + shift:07d}", str(number)), (rf"\frac{{{2 * (number + shift)}}}{{6}}", f"{number}/3"),
            (f"{number + shift}.50", f"{2 * number + 1}/2"), (str(number + shift), f"{number}.0"),
        ))  # fmt: skip
        rows.append((rf"Adding both sides gives the result. The answer is $\boxed{{{answer}}}$.", gold))
    return rows


def easy_rate() -> float:
    forget()
    rows = easy_completions()
    begin = time.perf_counter()
    for completion, gold in rows:
        answer = grader.extract_answer(completion)
        assert answer is not None
        grader.is_equivalent(answer, gold)
    return len(rows) / (time.perf_counter() - begin)


def latex_pairs(rows: str) -> list[tuple[str, str]]:
    """(answer, gold): each distinct gold that is no plain number, and another spelling of it."""
    golds = dict.fromkeys(
        rubric.gold[0] for name in ("polaris", "math500") for _, rubric in load(name, os.path.join(rows, name))
    )
    pairs = []
    for gold in golds:
        if math_exact.read_rational(grader.normalise(gold)) is not None:
            continue
        form = math_forms.parse(grader.normalise(gold))
        if isinstance(form, math_forms.Atom) and re.search(r"\\|\^", gold) and not _NO_TERM.search(gold):
            pairs.append((f"-1+{gold}+1" if gold[0] != "-" else f"{gold}+1-1", gold))
        else:
            respelt = gold.replace(r"\frac", r"\dfrac ").replace("(", r"\left( ").replace(")", r" \right)")
            pairs.append((f"$ {respelt} $.", gold))
    return pairs


def latex_rate(pairs: list[tuple[str, str]]) -> tuple[float, float]:
    """Verdicts a second, and the share that is right."""
    forget()
    with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(math_pool.shared().check, ["2"] * THREADS, [r"\sin 4"] * THREADS))  # both workers have started
        begin = time.perf_counter()
        verdicts = list(threads.map(lambda pair: grader.is_equivalent(*pair), pairs))
        return len(pairs) / (time.perf_counter() - begin), sum(verdicts) / len(pairs)


def main() -> None:
    options = [word for word in sys.argv[1:] if word != "--append"]
    if len(options) != 1:
        sys.exit(__doc__)
    pairs = labelled_pairs()
    right = sum(label for _, label, _ in pairs)
    lines = [f"| {len(pairs)} labelled pairs, {right} right | wrong ones that passed | right ones that did not |",
             "|---|---|---|"]  # fmt: skip
    judges = {"this grader": grader.is_equivalent, "math-verify alone": math_verify_alone, "cascade, 0.5 %": cascade}
    for name, judge in judges.items():
        passed, missed = quality(judge)
        lines.append(f"| {name} | {passed} | {missed} ({100 * missed / right:.1f} %) |")
    easy = statistics.median(easy_rate() for _ in range(REPEATS))
    latex = latex_pairs(options[0])
    rates = [latex_rate(latex) for _ in range(REPEATS)]
    rate, share = statistics.median(r for r, _ in rates), rates[0][1]
    lines += ["", "| verdicts | a second | goal |", "|---|---|---|", f"| easy, in process | {easy:,.0f} | 50,000 |",
              f"| {len(latex)} LaTeX golds, {100 * share:.1f} % judged right | {rate:,.0f} | 80 |"]  # fmt: skip
    table = "\n".join(lines)
    print(table)
    if "--append" in sys.argv:
        machine = f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}"
        with open(Path(__file__).with_name("RESULTS.md"), "a", encoding="utf-8") as file:
            file.write(f"\n## Math grader\n\n`python -m benchmarks.math_grader ROWS`, {datetime.date.today()}: "
                       f"{machine}; rates: median of {REPEATS} runs.\n\n{table}\n")  # fmt: skip


if __name__ == "__main__":
    main()
