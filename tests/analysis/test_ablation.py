"""Which runs belong together, and what is said of the differences between them."""

import math
from pathlib import Path

import pytest

from metaagent_x import config
from metaagent_x.analysis.ablation import compare, variants
from metaagent_x.analysis.read import Run


def run(seed, **fields):
    settings = config.base()
    settings.update_from_flattened_dict({"seed": seed, "workdir": f"runs/{seed}", **fields})
    return Run(Path(f"runs/{seed}"), settings.to_dict(), [], [], None, [])


def test_runs_that_differ_in_seed_and_place_only_are_one_variant():
    runs = [run(1), run(4, designs=8, executions=1), run(0), run(2, **{"guard.window": 9, "engine.servers": 2})]
    first, second = variants(runs)
    assert (first.label, second.label) == ("M × N = 4 × 4", "M × N = 8 × 1")
    assert first.seeds == [0, 1, 2] and second.seeds == [4]
    assert second.settings == {"designs": 8, "executions": 1}
    (alone,) = variants(runs[:1])
    assert alone.label == "all runs" and alone.settings == {}


def test_variants_are_named_in_the_papers_words_where_it_has_any():
    runs = [run(0), run(0, schedule="coupled", stage_length=10), run(0, designs=2, policy="separate")]
    assert [v.label for v in variants(runs)] == [
        "stagewise, shared policy, K = 30, designs=4", "coupled, shared policy, K = 10, designs=4",
        "stagewise, separate policy, K = 30, designs=2",
    ]  # fmt: skip


def test_runs_of_different_length_are_different_variants():
    assert [v.label for v in variants([run(0), run(1, steps=8)])] == ["steps=400", "steps=8"]
    assert [v.label for v in variants([run(0), run(1, tokens=1000)])] == ["tokens=0", "tokens=1000"]


def test_single_runs_are_compared_by_tasks():
    """Of ten tasks 2 are newly solved and none lost: p = 2 / 4 by McNemar's test."""
    before = {str(i): int(i < 5) for i in range(10)}
    after = before | {"5": 1, "6": 1}
    first, second = compare([{0: before}, {0: after}])
    assert (first.figure.value, first.over, first.gain) == (0.5, "tasks", None)
    assert second.figure.value == pytest.approx(0.7) and second.figure.units == 10
    assert second.gain is not None and second.gain.value == pytest.approx(0.2) and second.gain.low >= 0
    assert second.by_task == 0.5 and math.isnan(second.by_run)


def test_three_seeds_have_an_interval_over_seeds_and_a_test_over_runs():
    """Ten tasks; seeds solve 2, 3, 4 and 3, 5, 7 of them: gains 0.1, 0.2, 0.3 on average 0.2."""

    def solved(n):
        return {str(i): int(i < n) for i in range(10)}

    a, b = ({seed: solved(n) for seed, n in enumerate(numbers)} for numbers in ((2, 3, 4), (3, 5, 7)))
    first, second = compare([a, b])
    # Standard deviation 0.1, three runs: 4.303 x 0.1 / sqrt(3) on either side.
    assert (first.figure.value, first.figure.low) == pytest.approx((0.3, 0.3 - 0.2484), abs=1e-3)
    assert (first.over, second.over) == ("seeds", "seeds")
    assert second.gain is not None and second.gain.value == pytest.approx(0.2)
    assert second.by_run == pytest.approx(1 - math.sqrt(12 / 14)) and math.isnan(second.by_task)


def test_only_tasks_that_both_sides_have_are_compared():
    _, second = compare([{0: {"a": 0, "b": 1}}, {0: {"b": 1, "c": 1}}])
    assert second.gain is not None and second.gain.value == 0 and second.gain.units == 1
    assert second.figure.value == 1


def test_a_variant_without_evaluations_is_unknown():
    first, second = compare([{0: {"a": 1}}, {}])
    assert first.figure.value == 1 and math.isnan(second.figure.value) and second.gain is None


def test_an_accuracy_of_all_or_nothing_has_an_interval_too():
    """10 of 10 tasks: 0.025 = p^10 at p = 0.6915."""
    first, second = compare([{0: {str(i): 1 for i in range(10)}}, {0: {str(i): 0 for i in range(10)}}])
    assert (first.figure.low, first.figure.high) == (pytest.approx(0.6915, abs=1e-4), 1)
    assert (second.figure.low, second.figure.high) == (0, pytest.approx(0.3085, abs=1e-4))
