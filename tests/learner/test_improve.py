"""How the updates of one step become one line of metrics."""

import pytest

from metaagent_x.learner.improve import merge


@pytest.mark.fault("F158")
def test_means_over_tokens_are_weighed_by_tokens_maxima_and_sums_are_kept():
    """huggingface/trl#6380: 3 of 12 tokens clipped in one update and 3 of 4 in the next is 0.375 of all, not 0.5."""
    lines = [
        {
            "updated": 1.0,
            "nonfinite": 0.0,
            "tokens": 12.0,
            "tokens/executor": 12.0,
            "clip/high": 3 / 12,
            "ratio/max_dev": 0.1,
            "lr": 1.0,
        },
        {
            "updated": 0.0,
            "nonfinite": 1.0,
            "tokens": 4.0,
            "tokens/executor": 4.0,
            "clip/high": 3 / 4,
            "ratio/max_dev": 0.5,
            "lr": 3.0,
        },
    ]
    assert merge(lines) == pytest.approx(
        {
            "updates": 1,
            "updates/nonfinite": 1,
            "trained": 16,
            "trained/executor": 16,
            "clip/high": 0.375,
            "ratio/max_dev": 0.5,
            "lr": 2,
        }
    )


def test_updates_without_a_token_give_finite_means():
    nothing = {"updated": 0.0, "nonfinite": 0.0, "tokens": 0.0, "clip/high": 0.0, "entropy": 0.0}
    assert merge([nothing, nothing]) == {
        "updates": 0.0,
        "updates/nonfinite": 0.0,
        "trained": 0.0,
        "clip/high": 0.0,
        "entropy": 0.0,
    }
    assert merge([]) == {"updates": 0.0, "updates/nonfinite": 0.0}
