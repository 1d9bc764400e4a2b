"""Maths rows: golds in all their published forms, and their known oddities."""

import pytest

from metaagent_x.tasks.datasets import DatasetError, load, load_report
from metaagent_x.tasks.datasets.math_sets import shown_choices, strip_calculator_marks
from metaagent_x.tasks.math import is_equivalent


def polaris(i, answer="1", problem=None):
    return {"problem": problem or f"question {i}", "answer": answer, "difficulty": "1/8"}


def olympiad(*answers, question="q", **more):
    return {"id": 1606, "question": question, "final_answer": list(answers), "is_multiple_answer": False} | more


@pytest.mark.fault("F150")
@pytest.mark.parametrize(("end", "gold"), [("#### 1,234", "1234"), ("#### 72", "72"), ("####-5 ", "-5")])
def test_gsm8k_answers_are_numbers(write, end, gold):
    """OpenBioLink/ThoughtSource#1."""
    solution = f"She has 1,200 + 34 = <<1200+34=1234>>1,234 clips.\n{end}"
    ((_, rubric),) = load("gsm8k", write({"question": "How many?", "answer": solution}))
    assert rubric.gold == (gold,)
    assert strip_calculator_marks(solution).startswith("She has 1,200 + 34 = 1,234 clips.")


@pytest.mark.parametrize(
    ("row", "gold"),
    [
        ({"id": 60, "problem": "p", "answer": "025"}, "025"),
        ({"problem": "p", "answer": 70, "id": "0"}, "70"),
        ({"problem": "p", "answer": 204.0}, "204"),
        ({"ID": "2024-I-1", "Problem": "p", "Solution": "s", "Answer": 204}, "204"),
        ({"id": 1, "problem": "p", "solution": r"so \boxed{073}"}, "073"),
        ({"problem_idx": 3, "problem": "p", "answer": 7, "problem_type": ["Algebra"]}, "7"),
        ({"question": "p", "answer": r"336^\circ"}, "336"),
    ],
)
def test_aime_in_its_published_forms(write, row, gold):
    ((task, rubric),) = load("aime24", write(row))
    assert task.prompt == "p" and rubric.gold == (gold,)
    assert is_equivalent(gold.lstrip("0"), gold)


@pytest.mark.parametrize("answer", ["1234", "-1", "1/2", 0.5, "about 7"])
def test_answers_that_the_aime_cannot_have_are_named(write, answer):
    with pytest.raises(DatasetError, match=r"field 'answer': is '.*'; answers of the AIME are integers from 0 to 999"):
        load("aime25", write({"problem": "p", "answer": answer}))


def test_amc_answers_are_floats_that_mean_integers(write):
    ((task, rubric),) = load("amc23", write({"id": 1, "problem": "p", "answer": 36.0, "question": "p"}))
    assert (task.id, rubric.gold) == ("amc23/1", ("36",))


CHOICES = r"Which? $\textbf{(A) } -2 \qquad \textbf {(B)}\ \frac{2}{5}\qquad\mathrm{(C)}\ 8\text{ and }49$"


@pytest.mark.parametrize(
    ("gold", "problem", "golds"),
    [
        (r"\textbf{(C)}\25", "p", ("25", "C")),
        (r"\textbf{(B)}76", "p", ("76", "B")),
        (r"\textbf{B}", CHOICES, (r"\frac{2}{5}", "B")),
        ("(A)", CHOICES, ("-2", "A")),
        ("C", CHOICES, (r"8\text{ and }49", "C")),
    ],
)
def test_choice_labels_in_golds_are_repaired(write, gold, problem, golds):
    ((_, rubric),) = load("polaris", write(polaris(0, gold, problem)))
    assert rubric.gold == golds


def test_choice_labels_without_choices_are_dropped_with_a_count(write):
    pairs, dropped = load_report("polaris", write(polaris(0, "(B)"), polaris(1, r"\textbf{(E)}", CHOICES)))
    assert not pairs and dropped == {
        "gold is a choice label, the problem shows no choices": 1,
        "gold is a choice label that the problem does not show": 1,
    }


def test_choices_are_the_last_list_of_a_problem():
    assert shown_choices("Let (A) be a set. Is it (A) one\n(B) two {\n(C) $x = 3$.") == {
        "A": "one",
        "B": "",
        "C": "x = 3",
    }
    assert shown_choices("Let (A) be a set and f(A) = (B).") == {} or "A" in shown_choices("(A) 1 (B) 2")
    assert shown_choices("f(A) + f(B)") == {}


@pytest.mark.fault("F130")
def test_golds_that_cannot_be_graded_are_dropped_with_a_count(write):
    """huggingface/open-r1#420."""
    rows = [polaris(0), polaris(1, "the proof is given above in full"), polaris(2, "f(x)="), polaris(0, "9")]
    pairs, dropped = load_report("polaris", write(*rows))
    assert [task.id for task, _ in pairs] == ["polaris/0"]
    assert dropped == {"gold is a sentence": 1, "gold is incomplete": 1, "question of an earlier row": 1}


@pytest.mark.parametrize(
    ("row", "gold"),
    [
        (olympiad("2"), ("2",)),
        (olympiad("1,3", is_multiple_answer=True), ("1, 3",)),
        (olympiad("$100$", "$200$", is_multiple_answer=True), ("100, 200",)),
        (olympiad("$100,200$", is_multiple_answer=True), ("100, 200",)),
        (olympiad("$221,$8$", is_multiple_answer=True), ("221, 8",)),
        (olympiad(r"$(-\infty, 0) \cup\{1\}$.", answer_type="Interval"), (r"(-\infty, 0) \cup\{1\}",)),
        (olympiad("(100,200)", answer_type="Tuple"), ("(100, 200)",)),
        (olympiad("1,234"), ("1,234",)),
        (olympiad(r"\frac{1}{2}", "0.5"), (r"\frac{1}{2}", "0.5")),
        (olympiad("$166$", unit="$cm^2$"), ("166", r"166\mathrm{~cm^2}")),
        (olympiad("8", unit="min"), ("8", r"8\text{ min}")),
        (olympiad("4.2", unit="%"), ("4.2", r"4.2\%")),
        (olympiad(r"\$5"), (r"\$5",)),
    ],
)
def test_olympiad_answers(write, row, gold):
    ((_, rubric),) = load("olympiadbench", write(row))
    assert rubric.gold == gold


@pytest.mark.parametrize(
    ("row", "answer", "right"),
    [
        (olympiad("1,3", is_multiple_answer=True), "3, 1", True),
        (olympiad("1,3", is_multiple_answer=True), "1", False),
        (olympiad("100", "200", is_multiple_answer=True), "100, 200", True),
        (olympiad("100", "200", is_multiple_answer=True), "100200", False),
        (olympiad("8", unit="min"), "8", True),
        (olympiad("8", unit="min"), r"8\text{ min}", True),
        (olympiad("8", unit="min"), "80", False),
        (olympiad("$221,$8$", is_multiple_answer=True), "221", False),
    ],
)
def test_olympiad_answers_are_graded_as_they_are_meant(write, row, answer, right):
    ((_, rubric),) = load("olympiadbench", write(row))
    assert any(is_equivalent(answer, gold) for gold in rubric.gold) is right


def test_a_context_stands_before_its_question(write):
    rows = [olympiad("2", context="Let $n$ be even."), olympiad("2", id=2, question="r", context=None)]
    (first, _), (second, _) = load("olympiadbench", write(*rows))
    assert first.prompt == "Let $n$ be even.\n\nq" and second.prompt == "r"
