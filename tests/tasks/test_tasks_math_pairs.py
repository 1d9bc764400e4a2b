"""Labelled pairs of answers: verdicts by hand, from the mathematics and the policies that `tasks.math` states.

Golds have the forms that occur in Polaris, MATH-500 and OlympiadBench; answers are spellings of them, near misses,
hedges and garbage.
"""

import collections
import concurrent.futures
import pathlib

import pytest

from metaagent_x.tasks.math import extract_answer, is_equivalent

PAIRS = pathlib.Path(__file__).with_name("answer_pairs.tsv")


def labelled_pairs():
    """(gold, whether the answer is right, answer, kind) of every line."""
    kind = ""
    for line in PAIRS.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            kind = line[2:]
        else:
            gold, label, answer = line.split("\t")
            yield gold, {"right": True, "wrong": False}[label], answer, kind


@pytest.mark.slow
def test_no_wrong_answer_passes_and_almost_every_right_one_does():
    accepted, refused = [], []
    pairs = list(labelled_pairs())
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        verdicts = list(threads.map(lambda pair: is_equivalent(pair[2], pair[0]), pairs))
    for (gold, right, answer, kind), verdict in zip(pairs, verdicts, strict=True):
        if verdict and not right:
            accepted.append((kind, gold, answer))
        if right and not verdict:
            refused.append((kind, gold, answer))
    assert accepted == []
    assert len(refused) <= 0.01 * sum(right for _, right, _, _ in pairs), refused


def test_the_pairs_are_many_and_balanced():
    pairs = list(labelled_pairs())
    assert len({(gold, answer) for gold, _, answer, _ in pairs}) == len(pairs) >= 450
    assert 0.4 < sum(right for _, right, _, _ in pairs) / len(pairs) < 0.6
    kinds = collections.defaultdict(set)
    for _, right, _, kind in pairs:
        kinds[kind].add(right)
    assert all(labels == {True, False} for labels in kinds.values())


def test_answers_survive_their_box():
    """What is extracted from a text is what was put into the box; an answer of spaces is none."""
    for _, _, answer, _ in labelled_pairs():
        if answer.strip():
            assert extract_answer(rf"First \boxed{{1}}, then ${{x}}$, so \boxed{{{answer}}}.") == answer.strip()
