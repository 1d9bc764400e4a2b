"""The math grader: extraction, the exact path, math-verify behind it."""

import asyncio
import concurrent.futures
import json
import pathlib
import random
import re
import subprocess
import sys

import pytest

from metaagent_x.tasks import math as grader
from metaagent_x.tasks.datasets import load
from metaagent_x.tasks.math import (
    ANSWER_CHARS,
    choice_label,
    extract_answer,
    gold_problem,
    is_equivalent,
    normalise,
    split_choice,
)
from metaagent_x.tasks.math_exact import read_rational

DATA = pathlib.Path(__file__).resolve().parents[3] / "shared" / "data"
needs_rows = pytest.mark.skipif(not DATA.is_dir(), reason=f"no real rows at {DATA}")


@pytest.fixture
def no_worker(monkeypatch):
    """Fails a test that leaves the exact path."""

    def refuse():
        raise AssertionError("a worker was asked")

    monkeypatch.setattr(grader.math_pool, "shared", refuse)


@pytest.mark.fault("B034")
@pytest.mark.fault("F126")
@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{840}. Final: \boxed{840}", "840"),
        (r"\boxed{5}? no, \boxed{7}", "7"),
        (r"\boxed{004}", "004"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"$\boxed {\sqrt{\frac{1}{2}}}$ metres", r"\sqrt{\frac{1}{2}}"),
        (r"\boxed{\left\{1, \frac{2}{3}\right\}}", r"\left\{1, \frac{2}{3}\right\}"),
        (r"\boxed{[0,1\}}", r"[0,1\}"),
        (r"a stray } and { then \boxed{1}", "1"),
        (r"\boxed{x \\}", r"x \\"),
        (r"\boxed{\text{so } \boxed{5}}", "5"),
        (r"unclosed \boxed{3", None),
        (r"\boxed{2} and then cut \boxed{\frac{3", "2"),
        (r"empty \boxed{} and \boxed{ }", None),
        (r"put it in \boxed{4}, never in \boxed{}", "4"),
        (r"\fbox{3} \boxed 3 boxed{3}", None),
        ("", None),
    ],
)
def test_the_last_balanced_box_is_the_answer(text, answer):
    """huggingface/Math-Verify#44, EvolvingLMMs-Lab/lmms-eval#1511, huggingface/trl#5026."""
    assert extract_answer(text) == answer


def test_extraction_takes_one_pass():
    """Tens of thousands of unclosed boxes: a scan from each would take minutes."""
    assert extract_answer(r"\boxed{7}" + r"\boxed{" * 50_000) == "7"


@pytest.mark.fault("F125")
@pytest.mark.parametrize(("first", "second", "right"), [(41, 42, True), (42, 41, False), (42, 42, True)])
def test_a_retracted_box_does_not_count(first, second, right):
    """huggingface/Math-Verify#57, EvolvingLMMs-Lab/lmms-eval#1512."""
    answer = extract_answer(rf"I get \boxed{{{first}}}. No, wait: \boxed{{{second}}}.")
    assert answer is not None and is_equivalent(answer, "42") is right


@pytest.mark.fault("F133")
@pytest.mark.parametrize("sequence", [(7, 8, 7), (7, 8, 8, 7), (8, 7, 8)])
def test_an_answer_that_returns_is_kept(sequence):
    """pettingllms-ai/PettingLLMs: boxes were de-duplicated, so 7, 8, 7 was graded as 8."""
    assert extract_answer(" ".join(rf"\boxed{{{n}}}" for n in sequence)) == str(sequence[-1])


@pytest.mark.fault("F132")
def test_integers_have_no_tolerance(no_worker):
    """pettingllms-ai/PettingLLMs: a relative tolerance accepted an off-by-one above 200."""
    for gold in (1, 204, 999, 10**6, 10**40):
        assert is_equivalent(str(gold), str(gold))
        assert is_equivalent(f"{gold}.0", str(gold))
        assert is_equivalent(f"0{gold}", str(gold))
        assert not is_equivalent(str(gold + 1), str(gold))
        assert not is_equivalent(f"{gold}.0001", str(gold))
        assert not is_equivalent(f"-{gold}", str(gold))


@pytest.mark.fault("F126")
@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        (r"\frac{1}{2}", "1/2", True),
        (r"\frac{1}{2}", "1/3", False),
        (r"\frac12", "0.5", True),
        (r"\dfrac{4}{6}", "2/3", True),
        (r"-\frac{1}{2}", r"\frac{-1}{2}", True),
        ("0.333", r"\frac{1}{3}", False),
        ("0.6666666666", "2/3", False),
        ("3/0", "3", False),
        ("1e-5", "0.00001", True),
        ("+7", "7", True),
        (" $7$. ", "7", True),
        (r"\(7\)", "7", True),
        (r"\text{7}", "7", True),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})", True),
    ],
)
def test_fractions_and_decimals_are_exact(answer, gold, right):
    """huggingface/trl#5026, modelscope/ms-swift#10147: truncated braces made all fractions equal."""
    assert is_equivalent(answer, gold) is right


@pytest.mark.fault("F128")
@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("pi/2", r"\frac{\pi}{2}"),
        ("3*pi/4", r"\frac{3\pi}{4}"),
        ("exp(16)-1", "e^{16}-1"),
        ("sqrt(2)", r"\sqrt{2}"),
        ("x**2+1", "x^2+1"),
        ("70{,}000", "70000"),
        (r"70\,000", "70000"),
        ("70\u2009000", "70{,}000"),
        ("70 000", "70000"),
        ("1,234", "1234"),
        (r"\$32,\!348", "32348"),
        ("1,234,567.5", "1234567.5"),
        ("½", "0.5"),
        ("π", r"\pi"),
    ],
)
def test_plain_spellings_are_read(answer, gold):
    """huggingface/Math-Verify#69."""
    assert is_equivalent(answer, gold)


@pytest.mark.fault("F122")
@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"\frac{1}{2006!}", r"\frac{1}{2004!}"),
        ("2^{-98}", "2^{-99}"),
        ("(1, 2^{-98})", "(1, 2^{-99})"),
        (r"\{2^{-98}, 1\}", r"\{2^{-99}, 1\}"),
        ("[0, 3^{-70}]", "[0, 3^{-71}]"),
        ("1+10^{-80}", "1"),
        ("1+e^{-300}", "1"),
        ("1.41421356", r"\sqrt{2}"),
        ("3.14159265358979", r"\pi"),
        (r"\sqrt{2}+10^{-20}", r"\sqrt{2}"),
    ],
)
def test_close_values_are_not_equal(answer, gold):
    """huggingface/Math-Verify#14: values below 1e-15 were all equal; also inside tuples, sets and intervals."""
    assert not is_equivalent(answer, gold)
    assert is_equivalent(gold.replace("{", "{ "), gold)


@pytest.mark.fault("F123")
def test_the_sign_before_an_upright_e_counts():
    """huggingface/Math-Verify#14."""
    for e in (r"\mathrm{e}", r"\mathrm e", r"\text{e}", "e"):
        gold = r"1-\frac{1}{" + e + "}"
        assert not is_equivalent(r"1+\frac{1}{" + e + "}", gold)
        assert is_equivalent(r"\frac{e-1}{e}", gold)


@pytest.mark.fault("F124")
def test_the_gold_is_the_first_argument_of_the_verifier(monkeypatch):
    """huggingface/Math-Verify#10: verify(gold, answer) is not symmetric. Intervals and inequalities: both ways here."""
    assert is_equivalent("(0,12.5)", "0<x<12.5") and is_equivalent("0<x<12.5", "(0,12.5)")
    asked = []

    class Pool:
        def check(self, gold, answer):
            asked.append((gold, answer))
            return True

    monkeypatch.setattr(grader.math_pool, "shared", Pool)
    is_equivalent(r"\sin y", r"\sin z")
    assert asked == [(r"\sin z", r"\sin y")]


@pytest.mark.fault("B035")
@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("1728", "1331, 1728", False),
        ("1331, 1728", "1331, 1728", True),
        ("1728, 1331", "1331, 1728", True),
        ("(2,1)", "(1,2)", False),
        (r"\{2,1\}", r"\{1,2\}", True),
        ("{2,1}", "{1,2}", True),
        ("1, 2, 3", "1, 2", False),
        ("(0, 5)", "[0, 5]", False),
        (r"1+\sqrt2, 1-\sqrt2", r"1 \pm \sqrt{2}", True),
        ("1, 234", "1234", False),
    ],
)
def test_a_part_of_the_answer_is_wrong(answer, gold, right):
    """huggingface/Math-Verify#47."""
    assert is_equivalent(answer, gold) is right


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        (r"x<2 \text{ or } x>3", r"(-\infty,2)\cup(3,\infty)", True),
        (r"x<2 \text{ or } x>4", r"(-\infty,2)\cup(3,\infty)", False),
        (r"1 \le x \le 3", "[1,3]", True),
        ("1 < x < 3", "[1,3]", False),
        ("A,C", r"\text{A,C}", True),
        (r"\textbf{(B)}\ 12", "B", True),
        ("(B)", "B", True),
        ("C", "B", False),
        ("0", r"(-\infty, 0) \cup\{1\}.", False),
        ("25", r"25\%", True),
        ("25%", r"25\%", True),
        ("0.25", r"25\%", False),
        ("11", "11_2", True),
        ("11_3", "11_2", False),
        (r"90^\circ", "90", True),
        (r"5\text{ cm}", "5", True),
        ("x=5", "5", True),
        ("3/2", "3:2", True),
        (r"2\frac{1}{2}", "2.5", True),
        (r"\text{Yes}", "yes", True),
        ("on", "no", False),
        ("evil", "live", False),
        (r"\sqrt{5+2\sqrt{6}}", r"\sqrt{2}+\sqrt{3}", True),
        ("(x+1)^2", "x^2+2x+1", True),
        ("70 + 1", "70", False),
        ("", "5", False),
        (".", "5", False),
        (r"\frac{", "5", False),
    ],
)
def test_policies(answer, gold, right):
    """The table of verdicts on which math-verify alone is wrong, odd or harmful, and the module's stated policies."""
    assert is_equivalent(answer, gold) is right


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("0.0.0.2", "0.0.0.1", False),
        ("0.0.0.1", "0.0.0.1", True),
        ("10.0.0.1", "$10.0.0.1$", True),
        ("0.0.0.7", "0", False),
        ("1.2.3", "1.2", False),
        ("1.2", "1.2.3", False),
        ("1.2.3", "9/25", False),
        ("3.5.7", "3.5", False),
        ("3.5.7", "2.45", False),
        ("1..2", "1.2", False),
        ("1..2", "1..2", True),
        ("1.2..", "1.2", True),
        (".5.5", "0.25", False),
        ("1.2.2020", "303/1250", False),
        ("1.2.2020", "1.2.2021", False),
        ("1. 2. 2020", "1. 3. 2020", False),
        ("3.1.2x", "0.62x", False),
        ("x=1.2.3", "9/25", False),
        ("V1.2.3", "v1.2.3", True),
        ("1.234.567", "1234567", False),
        ("1 2", "3", False),
        ("0.5 0.25", "0.75", False),
        ("1 2", "1 2", True),
        ("0.5, 0.25", "1/2, 1/4", True),
        ("(0.5, 1.5)", "(1/2, 3/2)", True),
        (r"2.5 \cdot 1.5", "3.75", True),
        (r"\frac{0.5}{1.5}", "1/3", True),
        ("0.5x+1.5", "x/2+3/2", True),
        ("1 000.5", "1000.5", True),
    ],
)
def test_what_is_no_number_is_compared_as_text(answer, gold, right):
    """math-verify reads 0.0.0.1 and 0.0.0.2 as products that are 0, and "1 2" as 3."""
    assert is_equivalent(answer, gold) is right


def test_a_long_answer_must_be_the_gold_itself(no_worker):
    long = "1+" * ANSWER_CHARS + "1"
    assert is_equivalent(long, long) and not is_equivalent(long, str(ANSWER_CHARS + 1))


def test_normalise_is_idempotent():
    for text in (r"\left(\dfrac{1}{2},\,3\right)", r"\$ 1,234 \%", "70 000", "1, 234", r"\text{A,C}", r"$\mathrm{e}$."):
        assert normalise(normalise(text)) == normalise(text)


def test_rational_reads_numbers_only():
    assert read_rational("007") == 7 and read_rational("-.5") == read_rational(r"-\frac{1}{2}")
    assert all(read_rational(t) is None for t in ("", "-", ".", "1/0", "12,34", "x", "1e9999", "1 2", "--1"))


def test_choice_labels_glued_to_values_become_two_golds():
    """About 1 % of Polaris: the space of the LaTeX between label and value was lost."""
    assert split_choice(r"\textbf{(C)}\25") == ("25", "C")
    assert split_choice(r"\textbf{(C)}\\frac{1}{11}") == (r"\frac{1}{11}", "C")
    assert split_choice(r"\textbf{(C)}\frac{1}{11}") == (r"\frac{1}{11}", "C")
    assert split_choice(r"\textbf{(A)}\p<\frac{1}{8}") == (r"p<\frac{1}{8}", "A")
    assert split_choice(r"\textbf{(B)}76") == ("76", "B")
    assert split_choice(r"\textbf{(D)}\ 3+2\sqrt{3}") == (r"3+2\sqrt{3}", "D")
    assert split_choice(r"\mathrm{(C)\}600") == ("600", "C")
    assert split_choice(r"\textbf{E}") == ("E",)
    assert split_choice(r"\text{A,C}") == (r"\text{A,C}",) and split_choice("12") == ("12",)
    assert choice_label(r"\textbf{(C)}\ 25") == "C" and choice_label("C12") is None


@pytest.mark.fault("F130")
def test_golds_that_nothing_can_be_graded_against():
    """huggingface/open-r1#420."""
    assert gold_problem("The function is increasing on the whole interval") == "gold is a sentence"
    assert gold_problem(r"\text{it rises until noon and falls after}") == "gold is a sentence"
    for gold in ("f(x)=", "(,0)", r"\frac{}{2}", r"\frac{b-}{-}", "^2=3b", "(^2+b^2)^n"):
        assert gold_problem(gold) == "gold is incomplete"
    for gold in (
        "12",
        r"x=2 \text{ or } x=3",
        r"\text{no solution}",
        r"\frac{\sin x + \cos x}{\tan y \ln z}",
        "(-2,-1)",
        "x^{-1}",
        "0^{+}",
    ):
        assert gold_problem(gold) is None


@pytest.mark.fault("B032")
@pytest.mark.fault("F120")
async def test_threads_and_coroutines_get_the_same_verdicts():
    """verl-project/verl PR#5635, huggingface/Math-Verify#50 and #55: alarms fail off the main thread."""
    pairs = [("42", "42", True), (r"\frac{1}{3}", "1/3", True), (r"\sqrt{9}", "3", True), (r"\sqrt{9}", "4", False)]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        loop = asyncio.get_running_loop()
        verdicts = await asyncio.gather(
            *(loop.run_in_executor(threads, is_equivalent, answer, gold) for answer, gold, _ in pairs * 2)
        )
    assert verdicts == [right for _, _, right in pairs * 2]


def test_importing_the_graders_loads_no_heavy_library():
    code = (
        "import sys, metaagent_x.tasks.grader, metaagent_x.tasks.mixture\n"
        "print([m for m in ('jax', 'sympy', 'math_verify', 'grain', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _real_golds():
    for name in ("polaris", "math500", "gsm8k", "aime24", "aime25"):
        for _, rubric in load(name, str(DATA / name)):
            yield from rubric.gold
    for name, field in (("olympiadbench/OE_TO_maths_en_COMP", "final_answer"), ("amc23/test", "answer")):
        for line in (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
            value = json.loads(line)[field]
            for gold in value if isinstance(value, list) else [str(value)]:
                if gold_problem(gold) is None:
                    yield gold


def _spellings(gold):
    """The gold, and ways in which a solver writes the same."""
    value = gold.strip()
    yield value
    yield value.replace(r"\frac", r"\dfrac")
    yield f" {value}. "
    if value.count("$") in (0, 2):
        yield f"${value.strip('$')}$"
    if all(value.count(left) == value.count(right) for left, right in ("()", "[]")) and r"\sqrt[" not in value:
        plain = value.replace(r"\left", "").replace(r"\right", "")
        yield re.sub(
            r"[)\]]", lambda m: rf" \right{m.group()}", re.sub(r"[(\[]", lambda m: rf"\left{m.group()} ", plain)
        )
    if not re.search(r"[0-9],[0-9]{3}|\\[!,]", value):
        yield re.sub(r"\s*([=+,<>])\s*", r" \1 ", value)
    if re.fullmatch("[A-Za-z ]{2,}", value):
        yield rf"\text{{{value}}}"


def _check_golds(golds):
    refused, plus_one = [], []
    for gold in golds:
        for spelling in _spellings(gold):
            answer = extract_answer(rf"Therefore the answer is $\boxed{{{spelling}}}$.")
            if answer is None or not is_equivalent(answer, gold):
                refused.append((gold, spelling))
        value = read_rational(normalise(gold))
        if value is not None and value.denominator == 1 and is_equivalent(str(value + 1), gold):
            plus_one.append(gold)
    assert not plus_one
    assert not refused


@needs_rows
def test_real_golds_accept_their_own_boxed_form_and_other_spellings():
    golds = list(_real_golds())
    assert len(golds) > 2000
    _check_golds(golds)


@needs_rows
@pytest.mark.slow
def test_real_golds_accept_no_near_miss():
    """Another digit, sign or bracket; a factor, a power or a second answer beside it."""
    golds = [
        gold for gold in dict.fromkeys(_real_golds()) if read_rational(gold) is None and choice_label(gold) is None
    ]
    accepted = []
    for gold in random.Random(0).sample(golds, 120):
        plain = gold.strip().strip("$")
        changed = {f"-({plain})", f"2({plain})", rf"{plain} \text{{ or }} 8.5", f"{plain}, 8.5", f"{plain}+8.5"}
        changed |= {rf"{plain} \text{{ or anything}}", f"{plain} x"}
        for match in re.finditer(r"[0-9]", plain):
            changed.add(f"{plain[: match.start()]}{(int(match.group()) + 1) % 10}{plain[match.end() :]}")
        accepted += [(gold, answer) for answer in changed if is_equivalent(answer, gold)]
    assert not accepted


EATERS = [
    r"9^{9^{9^{9}}}", r"\int_0^1 e^{-x^2}\sin(x^3)dx", "(" * 150 + "1" + ")" * 150, "1+" * 190 + "1", "2^{1000000}",
    r"\binom{100000}{50000}", "100000!", "(x+y+z+a+b+c)^{60}", "x^" * 150 + "x", r"10^{10^{10}}",
]  # fmt: skip
GARBAGE = [
    "1" * 10**6, "(" * 10**6, "{" * 390, r"\frac{" * 60 + "1" + "}{1}" * 60, "\x00" * 50, "1\x00", "\ud800", "5\udfff",
    "\x1b[31m5", "9" * 390, "1e999999999", "1/0", r"\frac{1}{1-1}", r"\sqrt[" + "9" * 50 + "]{2}", "3!!!!!!!",
    "x_" * 150, r"\pm" * 100, r"\pm 1" * 60, "," * 390, " or " * 90, r"\cup" * 80, "=" * 300, r"\text{" * 60 + "}" * 60,
    "|" * 300,
    r"\{" * 90 + r"\}" * 90, "٥" * 20, "\u202e5", "-" * 300 + "1", r"\sqrt{" * 60 + "2" + "}" * 60, "a" * 399,
    "'" * 200,
    "$" * 399, "°" * 200, r"\%" * 100, "\\" * 399, r"\overline{" * 30 + "3" + "}" * 30, "km " * 100, "5" + "/h" * 150,
    "5" + r"\text{km}" * 40, r"\begin{pmatrix}" + "1&" * 100 + r"1\end{pmatrix}", r"\left" * 60, "<" * 399,
    r"\in" * 100,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.fault("B033")
def test_nothing_that_is_answered_can_hang_or_crash_the_grader(monkeypatch):
    """Eight threads at once; between inputs that use up a worker, honest answers keep their verdicts."""
    pool = grader.math_pool.VerifierPool(2, cpu_s=0.5)
    monkeypatch.setattr(grader.math_pool, "shared", lambda: pool)
    honest = [(rf"\sin^2 x+\cos^2 x+{n}", f"{n + 1}") for n in range(30)]
    asked = [(text, gold) for text in EATERS + GARBAGE for gold in ("5", r"\sin x")]
    asked += [("5", text) for text in EATERS] + honest
    random.Random(0).shuffle(asked)
    try:
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            verdicts = list(threads.map(lambda pair: is_equivalent(*pair), asked))
    finally:
        pool.close()
    assert {pair for pair, right in zip(asked, verdicts, strict=True) if right} == set(honest)
    assert pool.ended["died"] == 0 and pool.ended["cpu"] > 0


def test_a_gold_with_a_label_glued_on_accepts_value_label_and_both():
    """Polaris: math-verify alone accepts only the identical text."""
    for gold, answers in (
        (r"\textbf{(C)}\25", ("25", "C", r"\textbf{(C)}\ 25", "(C) 25")),
        (r"\textbf{(B)}76", ("76", "B", r"\textbf{(B)}\ 76")),
    ):
        for answer in answers:
            assert any(is_equivalent(answer, one) for one in split_choice(gold))
        assert not any(is_equivalent("26", one) or is_equivalent("D", one) for one in split_choice(gold))
