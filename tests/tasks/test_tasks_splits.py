"""What must not be trained on: the held-out part, whatever else changes, and benchmarks, however they are named."""

import pytest

from metaagent_x.tasks import splits

HELD_OUT = [f"polaris/{i}" for i in (39, 58, 160, 249, 268, 323, 365, 420, 518, 572, 595, 635, 640, 645, 970, 982, 991)]
IDS = [f"polaris/{i}" for i in range(20_000)]


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_about_the_share_asked_for_is_held_out(share):
    held = sum(splits.held_out(i, share) for i in IDS)
    assert abs(held / len(IDS) - share) < 4 * (share / len(IDS)) ** 0.5


def test_a_larger_share_only_adds_tasks_and_none_holds_nothing():
    small, large = ({i for i in IDS if splits.held_out(i, share)} for share in (0.02, 0.05))
    assert small < large and not any(splits.held_out(i, 0.0) for i in IDS)


def test_the_split_is_the_same_in_every_version():
    """Runs are compared on it: a change of the hash would move tasks from training to validation and back."""
    assert [i for i in IDS[:1000] if splits.held_out(i, 0.01)] == HELD_OUT


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("aime24", ""), ("aime25", "x.jsonl"), ("olympiadbench", ""), ("amc23", ""), ("math500", ""),
        ("livecodebench:release=v6,from=2025-01-01", ""), ("humaneval", ""), ("mbpp", ""), ("mbpp:split=all", ""),
        ("apps:split=test", ""), ("apps:difficulty=introductory,split=test", "data/apps"),
        ("code_contests:split=test", ""),
        ("gsm8k: split = test", ""), ("gsm8k:split=all", ""), ("apps", "data/test/rows.jsonl"),
        ("gsm8k", "data/gsm8k/test.jsonl"), ("apps", "data/test_10.jsonl"),
        ("code_contests", "data/test-00000-of-00001.parquet"), ("apps", "data/apps/test/"),
    ],
)  # fmt: skip
def test_a_benchmark_is_recognised(name, path):
    assert "benchmark" in splits.benchmark(name, path)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("polaris", "test.jsonl"), ("apps", "data/apps"), ("apps:split=train", "data/test/apps.jsonl"),
        ("code_contests:split=valid", ""), ("mbpp:split=train", ""),
        ("gsm8k", "data/latest/train.jsonl"), ("gsm8k", "data/latest.jsonl"),
        ("apps", "test/train.jsonl"), ("apps", "test/apps/a/rows.jsonl"),
        ("apps:difficulty=introductory,split=train", "test"), ("tiny_math", ""),
    ],
)  # fmt: skip
def test_a_training_set_is_not_taken_for_a_benchmark(name, path):
    assert splits.benchmark(name, path) == ""
