"""Settings of a distillation: what cannot work is refused by name, and the files in configs/ are sound."""

import pytest

from configs import distill, distill_tiny
from metaagent_x import config
from metaagent_x.distillation.job import wanted


def settings(**fields):
    c = distill.get_config()
    c.teacher.url, c.teacher.model = "https://example.org/v1", "wise"
    c.update_from_flattened_dict(fields)
    return c


def test_both_files_are_valid_and_the_tiny_one_asks_with_the_students_prompts():
    config.validate(settings())
    tiny = distill_tiny.get_config()
    config.validate(tiny)
    assert wanted(tiny).numbers == {"designer": 800, "executor": 3200} and tiny.distill.templates == (0, 0)
    assert wanted(settings()).numbers == {"designer": 3000, "executor": 8000}
    assert wanted(settings()).quotas["structure"]["single"] == 0.3


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"teacher.url": "example.org"}, "name the endpoint"),
        ({"teacher.model": ""}, "name the endpoint"),
        ({"distill.designers": 0, "distill.executors": 0}, "nothing to do"),
        ({"distill.templates": (3, 2)}, "fewest and the most"),
        ({"distill.templates": (2,)}, "fewest and the most"),
        ({"distill.quotas.structure": (("single", 1.5),)}, r"distill\.quotas\.structure holds"),
        ({"distill.quotas.dataset": (("gsm8k", 0.5),)}, "'gsm8k', which is not in data.train"),
        ({"distill.benchmarks": ("aime24",)}, r"distill\.benchmarks holds 'aime24'"),
        ({"distill.budget": 5.0}, "would never be spent"),
        ({"distill.attempts": 0}, "at least 1"),
    ],
)
def test_what_cannot_work_is_refused_by_name(fields, words):
    with pytest.raises(config.ConfigError, match=words):
        config.validate(settings(**fields))
