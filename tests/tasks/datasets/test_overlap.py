"""Duplicates and overlap: hand-made cases of what counts and what does not, real rows, and the time of full sizes."""

import json
import pathlib
import random

import pytest

from metaagent_x.tasks.datasets import overlap
from metaagent_x.tasks.datasets.overlap import Match, duplicates, ngrams, normalise, words

DATA = pathlib.Path(__file__).resolve().parents[4] / "shared" / "data"
NAMES = ["apple", "brick", "cloud", "drum", "eagle", "flame", "grape", "horse", "island", "jacket", "kettle", "lemon",
         "mirror", "needle", "ocean", "pencil", "quartz", "river", "stone", "tiger"]  # fmt: skip
SENTENCE = " ".join(NAMES)


def found(training, benchmark, **more):
    one = [(f"t{i}", text) for i, text in enumerate(training)]
    two = [(f"b{i}", text) for i, text in enumerate(benchmark)]
    return overlap.overlap(one, two, **more)


def test_normalise_forgives_layout():
    plain = normalise("Find $x + 1 = \\frac{1}{2}$ now.")
    for same in (
        "find x+1=\\frac{1}{2} now",
        "Find  \\(x\\,+\\,1 = \\dfrac{1}{2}\\)\n now.",
        "FIND $\\displaystyle x+1=\\tfrac { 1 } { 2 }$ now",
        "Find $$\\left x + 1 = \\frac{1}{2}$$ now",
        "Ｆind x + 1 = \\frac{1}{2} now",
    ):
        assert normalise(same) == plain
    assert normalise(plain) == plain


@pytest.mark.parametrize(
    "a, b", [("Compute 3 + 2", "Compute 3 - 2"), ("Compute 12", "Compute 1 2"), ("x < 1", "x > 1"), ("a_1", "a^1"),
             ("\\leftarrow", "arrow"), ("3!", "3")]
)  # fmt: skip
def test_normalise_keeps_what_changes_the_question(a, b):
    assert normalise(a) != normalise(b)


def test_words_are_runs_of_letters_or_digits_in_one_case():
    assert words("Let $x_1 = 3.5$, L'Hôpital's; ÄB") == ["let", "x", "1", "3", "5", "l", "hôpital", "s", "äb"]
    assert ngrams("a b c d", 3) == ["a b c", "b c d"] and ngrams("a b", 3) == []


def test_duplicates_name_the_first():
    texts = [("a", "What is $1 + 1$?"), ("b", "What is 2?"), ("c", "What is $1 + 1$?\n"), ("d", "what is 1+1?"),
             ("e", "WHAT IS 2?")]  # fmt: skip
    assert duplicates(texts) == ({"c": "a"}, {"d": "a", "e": "b"})


def test_the_same_question_is_exact_however_short():
    assert found(["What is $1+1$?", "What is 1 - 1?"], ["what is  1 + 1?"]) == [Match("t0", "b0", "exact", 1.0)]


def test_thirteen_words_in_a_row_are_overlap_and_twelve_are_not():
    thirteen, twelve = " ".join(NAMES[2:15]), " ".join(NAMES[2:14])
    (match,) = found([f"Yes! {thirteen.upper()} no."], [SENTENCE])
    assert match == Match("t0", "b0", "ngram", 13 / 20, thirteen)
    assert found([f"yes {twelve} no"], [SENTENCE]) == []


def test_a_task_shorter_than_thirteen_words_is_compared_whole():
    short = " ".join(NAMES[:8])
    assert found([f"{short} and more words"], [short]) == []
    assert [m.kind for m in found([short + "."], [short])] == ["exact"]


def test_share_is_the_part_of_the_benchmark_task_that_is_covered():
    (match,) = found([" ".join(NAMES[:14]) + " other"], [SENTENCE])
    assert match.share == 14 / 20
    (match,) = found([SENTENCE + " and a new ending"], [SENTENCE])
    assert match.kind == "ngram" and match.share == 1.0


@pytest.mark.parametrize("others, common", [(0, 2), (4_000, 4), (12_000, 10)])
def test_boilerplate_of_the_training_set_does_not_count(others, common):
    """An n-gram of many training tasks says nothing; how many are many depends on the size of the set."""
    rest = [f"task {i}" for i in range(others)]
    copies = [f"{SENTENCE} number {i}" for i in range(common + 1)]
    assert found([*copies, *rest], [SENTENCE + " what"]) == []
    assert len(found([*copies[1:], *rest], [SENTENCE + " what"])) == common
    assert [m.kind for m in found([*copies, SENTENCE, *rest], [SENTENCE])] == ["exact"]


@pytest.mark.parametrize("others, common", [(0, 2), (400, 4), (1_200, 10)])
def test_boilerplate_of_the_benchmark_does_not_count(others, common):
    rest = [f"task {i}" for i in range(others)]
    benchmark = [f"{i} {SENTENCE}" for i in range(common + 1)]
    assert found([SENTENCE + " how"], [*benchmark, *rest]) == []
    assert len(found([SENTENCE + " how"], [*benchmark[1:], *rest])) == common


def test_boilerplate_does_not_count_with_a_few_other_words_at_its_ends():
    """ "... = m/n where m and n are relatively prime ..." differs from task to task at its ends only."""
    phrase, more = " ".join(NAMES[:9]), NAMES[9:]
    copies = [f"{i} {phrase} {i}" for i in range(3)]
    six, seven = [" ".join([f"x{i}", *more[:6], phrase, f"y{i}"]) for i in range(2)], " ".join([*more[:7], phrase])
    assert found([six[0], *copies], [six[1]]) == []
    assert len(found([six[0]], [six[1]])) == 1
    assert len(found([f"x {seven} x", *copies], [f"y {seven} y"])) == 1


def test_a_phrase_repeated_in_one_task_is_no_boilerplate():
    often = " ".join([SENTENCE] * 20)
    assert len(found([often], [SENTENCE + " what"])) == 1
    assert len(found([SENTENCE + " what"], [often])) == 1


def test_drawings_do_not_count():
    drawing = "[asy] pair A, B, C; draw(circle(origin, five)); label north south east west left right [/asy]"
    assert found([f"Find the area. {drawing}"], [f"Find its length. {drawing}"]) == []
    assert len(found([f"Find. {drawing}".replace("asy", "")], [drawing.replace("asy", "")])) == 1


def test_a_small_share_can_be_asked_to_not_count():
    training, benchmark = [" ".join(NAMES[:13])], [SENTENCE + " what"]
    (match,) = found(training, benchmark)
    assert found(training, benchmark, least_share=match.share) == [match]
    assert found(training, benchmark, least_share=match.share + 0.01) == []


def test_rows_of_numbers_do_not_count():
    numbers = " ".join(str(i) for i in range(40))
    assert found([f"Sum these: {numbers}"], [f"Sort those: {numbers}"]) == []


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real rows at {DATA}")
def test_real_benchmark_rows_hidden_in_real_training_rows_are_found():
    """Copies, copies in other LaTeX and copies inside a longer text; the other rows stay clear."""

    def texts(path, field):
        lines = (DATA / path).read_text(encoding="utf-8").splitlines()
        return [(f"{path}/{i}", json.loads(line)[field]) for i, line in enumerate(lines)]

    training, benchmark = texts("gsm8k/train.jsonl", "question"), texts("aime24/test.jsonl", "problem")
    assert overlap.overlap(training, benchmark) == []
    planted = [
        ("copy", benchmark[3][1]),
        ("respelled", benchmark[6][1].upper().replace("$", " $ ")),
        ("inside", f"Consider this carefully. {benchmark[5][1]} Explain every step."),
    ]
    matches = overlap.overlap(training + planted, benchmark)
    assert {(m.training, m.benchmark, m.kind) for m in matches} == {
        ("copy", benchmark[3][0], "exact"),
        ("respelled", benchmark[6][0], "exact"),
        ("inside", benchmark[5][0], "ngram"),
    }


@pytest.mark.slow
def test_full_sizes_pass_in_one_go():
    """53,000 training tasks against 2,000: by tables, so the work is the sum of the sizes; one is planted."""
    rng = random.Random(0)
    vocabulary = ["".join(rng.choices("abcdefghij", k=6)) for _ in range(5000)]

    def some(n, length):
        return [(f"{n}/{i}", " ".join(rng.choices(vocabulary, k=length))) for i in range(n)]

    benchmark, training = some(2000, 150), some(53_000, 60)
    training[40_000] = ("planted", "w " + " ".join(benchmark[7][1].split()[5:18]) + " w")
    (match,) = overlap.overlap(training, benchmark)
    assert (match.training, match.benchmark) == ("planted", benchmark[7][0])
