"""The cold start: what a row learns, what its cache depends on."""

import pytest

from configs import tiny
from metaagent_x import cold_start
from metaagent_x.mas import demonstrations
from metaagent_x.rollout.chat import Chat


@pytest.mark.fault("F010")
@pytest.mark.parametrize("index", range(12))
def test_the_loss_is_on_the_completion_and_its_stop_id_only(index):
    """The empty think block belongs to the prompt: trained on, it would teach tokens that are never sampled."""
    chat = Chat()
    example = demonstrations.example(0, index)
    row = cold_start.trajectory(chat, example)
    learned = [i for i, m in zip(row.tokens, row.mask, strict=True) if m]
    assert learned == [*chat.encode(example.completion), chat.stop_ids[0]]
    context = [i for i, m in zip(row.tokens, row.mask, strict=True) if not m]
    assert context == chat.prompt(example.system, example.user)
    assert row.role == ("designer" if example.role == "designer" else "executor")


def test_rows_of_an_update_take_up_where_the_last_one_stopped():
    chat = Chat()
    first, at = cold_start.next_rows(chat, 3, 0, 2000)
    second, end = cold_start.next_rows(chat, 3, at, 2000)
    assert at == len(first) and end == at + len(second)
    assert sum(len(r.tokens) for r in first) <= 2000
    assert first + second == [cold_start.trajectory(chat, demonstrations.example(3, i)) for i in range(end)]
    assert cold_start.next_rows(chat, 3, 0, 1) == ([first[0]], 1)


@pytest.mark.parametrize(
    ("field", "value", "same"),
    [
        ("seed", 9, False),
        ("sft.learning_rate", 1e-3, False),
        ("model.num_layers", 2, False),
        ("data.dev_size", 10, False),
        ("workdir", "elsewhere", True),
        ("steps", 1, True),
        ("sft.cache", "elsewhere", True),
        ("learner.kl", 0.1, True),
        ("model.unroll", 3, True),
        ("model.compute_dtype", "bfloat16", False),
    ],
)
def test_the_cache_is_another_one_exactly_if_the_cold_start_would_be(field, value, same):
    before, after = tiny.get_config(), tiny.get_config()
    *group, name = field.split(".")
    (after[group[0]] if group else after)[name] = value
    assert (cold_start.fingerprint(before) == cold_start.fingerprint(after)) == same
