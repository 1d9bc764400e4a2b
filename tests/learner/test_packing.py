import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_samples import call, trajectories

from metaagent_x.learner.objective import token_weights
from metaagent_x.learner.packing import ROLES, bucket_rows, by_trajectory, pack
from metaagent_x.rollout.tree import Trajectory, trajectories_of


@st.composite
def lists(draw):
    """Trajectories of 2 to 11 ids with any flags, of both roles, on three questions."""
    out = []
    for _ in range(draw(st.integers(0, 9))):
        n = draw(st.integers(2, 11))
        ids = draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))  # few ids: pad and stop ids collide with all
        mask = draw(st.lists(st.booleans(), min_size=n, max_size=n))
        logprobs = tuple(-0.5 - i if m else 0.0 for i, m in enumerate(mask))
        out.append(
            Trajectory(tuple(ids), tuple(mask), logprobs, draw(st.sampled_from(ROLES[1:])), draw(st.integers(0, 2)),
                       advantage=draw(st.floats(-2, 2, width=32)))
        )  # fmt: skip
    return out


@pytest.mark.fault("F047")
@pytest.mark.fault("F012")
@given(lists(), st.sampled_from(["token_mean", "sequence_mean", "group_mean"]), st.sampled_from([1, 3]))
@settings(max_examples=120, deadline=None)
def test_every_trajectory_can_be_read_back(given_, aggregate, multiple) -> None:
    """verl-project/verl#2185 (rows permuted between reward and loss), huggingface/trl#5224 (ids changed on the way)."""
    batch = pack(given_, 10, aggregate=aggregate, rows_multiple=multiple)
    for k, t in enumerate(given_, 1):
        at = batch.trajectory == k
        assert len(set(np.nonzero(at)[0])) == 1, "a trajectory lies in one row"
        assert batch.tokens[at].tolist() == list(t.tokens[:-1])
        assert batch.targets[at].tolist() == list(t.tokens[1:])
        assert batch.positions[at].tolist() == list(range(len(t.tokens) - 1))
        assert len(set(batch.segment_ids[at])) == 1
        assert batch.mask[at].tolist() == list(t.mask[1:])
        np.testing.assert_allclose(batch.old_logp[at], np.where(t.mask[1:], t.logprobs[1:], 0))
        assert set(batch.advantages[at]) == {np.float32(t.advantage)}
        assert {ROLES[code] for code in batch.roles[at]} == {t.role}
    padding = batch.trajectory == 0
    assert all((array[padding] == 0).all() for array in batch)
    for code, role in enumerate(ROLES[1:], 1):
        trained = any(t.role == role and any(t.mask[1:]) for t in given_)
        assert batch.weights[batch.roles == code].sum() == pytest.approx(float(trained), abs=1e-5)


@given(lists())
@settings(max_examples=60, deadline=None)
def test_values_of_a_batch_go_back_to_their_trajectories_in_order(given_) -> None:
    batch = pack(given_, 10)
    back = {k: part.tolist() for k, part in by_trajectory(batch, batch.old_logp).items()}
    sampled = [[p for p, m in zip(t.logprobs[1:], t.mask[1:], strict=True) if m] for t in given_]
    assert back == {k: values for k, values in enumerate(sampled) if values}


@given(lists())
@settings(max_examples=60, deadline=None)
def test_rows_hold_whole_segments_and_few_gaps(given_) -> None:
    batch = pack(given_, 10)
    again = pack(given_, 10)
    assert all((a == b).all() for a, b in zip(batch, again, strict=True))
    used = (batch.segment_ids.max(1) > 0).sum()
    assert (batch.segment_ids[:used].max(1) > 0).all(), "empty rows come last"
    total = sum(len(t.tokens) - 1 for t in given_)
    assert used <= max(2 * total / 10, 1), "no two rows could be one"
    for segments in batch.segment_ids:
        filled = segments[segments > 0]
        assert (np.diff(filled) >= 0).all()
        assert (segments[: len(filled)] > 0).all()
    widths = [a.dtype.itemsize for a in batch]
    assert {a.shape for a in batch} == {batch.tokens.shape}
    assert max(widths) <= 4


def test_the_tightest_row_is_filled_first() -> None:
    """In the given order these make three rows; longest first into the fullest row that fits makes two."""
    rows = [Trajectory((1,) * n, (True,) * n, (0.0,) * n) for n in (4, 4, 8, 8)]
    batch = pack(rows, 10)
    assert batch.tokens.shape[0] == 2
    assert (batch.segment_ids > 0).all()


# Lengths (and how often) of the trajectories of two steps that configs/tiny.py played, after a short cold start.
RECORDED = {
    ("executor", 1): (
        "33x30 34x7 35x31 36x19 37x32 38x37 39x7 40x2 41x3 43x5 44x10 45x2 46 47x3 48 49x14 50 51x4 52x3 53x2 54x2 "
        "55x32 56x4 57 58x6 59x40 60x4 61x2 65 67 68 80x2 84 85 91 111 "
    ),
    ("executor", 2): (
        "30 31x7 32 33x32 34x25 35x27 36x13 37x32 38x33 39x2 40x4 43x4 44x2 45x5 46x4 47x2 48x2 49x5 50x4 51x13 52x4 "
        "53x3 54x4 55x5 56 58x4 59x24 60x5 64 65x2 68 78 80 84 86 "
    ),
    ("designer", 1): ("21x4 22x4 23x3 25x3 27 29x3 30 31x5 32 34x2 36x2 43x2 45 "),
}


def of_lengths(lengths) -> list[Trajectory]:
    """In an order that has nothing to do with length."""
    shuffled = np.random.default_rng(0).permutation(lengths)
    return [Trajectory((1,) * (n + 1), (False,) + (True,) * n, (0.0,) * (n + 1)) for n in shuffled.tolist()]


@pytest.mark.parametrize("mix", RECORDED)
@pytest.mark.parametrize(("row", "most"), [(192, None), (16_384, None), (16_384, 32)])
def test_rows_of_a_recorded_step_are_nearly_full(mix, row, most) -> None:
    """Filler rows are not counted: they are not computed (`test_filler_rows_are_not_computed`)."""
    lengths = []
    for part in RECORDED[mix].split():
        n, _, times = part.partition("x")
        # At another scale, equal lengths spread over all that would have been one.
        lengths += [(int(n) * row + i * 61 % row) // 192 for i in range(int(times or 1))]
    batch = pack(of_lengths(lengths), row, row_segments=most)
    filled = batch.segment_ids > 0
    assert filled.sum() == sum(lengths)
    assert filled[filled.any(1)].mean() >= 0.95
    assert most is None or batch.segment_ids.max() <= most


@given(st.lists(st.integers(1, 12), max_size=30), st.sampled_from([12, 15]), st.sampled_from([None, 1, 2, 5]))
@settings(max_examples=150, deadline=None)
def test_no_trajectory_is_split_or_lost_and_no_row_overfull(lengths, row, most) -> None:
    batch = pack(of_lengths(lengths), row, row_segments=most)
    held = [np.unique(r[r > 0], return_counts=True) for r in batch.trajectory]
    assert sorted(n for _, counts in held for n in counts) == sorted(lengths)
    assert sorted(i for ids, _ in held for i in ids) == list(range(1, len(lengths) + 1))
    assert max((len(ids) for ids, _ in held), default=0) <= (most or 99)
    for ids, counts in held[: (batch.segment_ids.max(1) > 0).sum()]:
        assert len(ids) and counts.sum() <= row


def test_a_row_that_may_hold_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="row_segments=0 must be at least 1"):
        pack(of_lengths([3]), 8, row_segments=0)


@pytest.mark.fault("F069")
@pytest.mark.parametrize("ids", [((5, 6), (7, 8)), ((5, 6, 9), (7, 8), (3, 4))])
def test_last_target_never_comes_from_the_next_sequence(ids) -> None:
    """verl-project/verl#6564: labels shifted over the whole row make the first of the next the last one's target."""
    batch = pack([Trajectory(i, (False,) + (True,) * (len(i) - 1), (0.0,) * len(i)) for i in ids], 8)
    for k, i in enumerate(ids, 1):
        assert batch.targets[batch.trajectory == k].tolist() == list(i[1:])
    assert batch.mask.sum() == sum(len(i) - 1 for i in ids)


@pytest.mark.fault("F074")
@pytest.mark.fault("F075")
@pytest.mark.parametrize(("reply", "finish"), [((7, 0), "stop"), ((7, 3), "length")])
def test_masks_come_from_lengths_not_ids(reply, finish) -> None:
    """huggingface/trl#4970: here pad id = end id = 0, and the end id of a finished reply is trained."""
    (row,) = trajectories_of([call(reply, prompt=(4, 0, 4), finish_reason=finish)])
    batch = pack([row], 8)
    assert batch.mask[0].tolist() == [False, False, True, True, False, False, False, False]
    assert batch.targets[batch.mask].tolist() == list(reply)
    assert row.truncated == (finish == "length")


@pytest.mark.fault("F079")
@pytest.mark.fault("F164")
def test_each_sampled_id_is_trained_exactly_once_over_turns() -> None:
    """Turn 2 extends turn 1 (observation 8, 9 between); turn 3 rewrites history (huggingface/trl#6250)."""
    turns = [
        call((11, 12, 13), prompt=(1, 2), path="0", conversation="m"),
        call((14, 15), prompt=(1, 2, 11, 12, 13, 8, 9), path="1", conversation="m"),
        call((16,), prompt=(1, 2, 99, 14, 15), path="2", conversation="m"),
    ]
    rows = trajectories_of(turns)
    assert len(rows) == 2
    batch = pack(rows, 16)
    assert sorted(batch.targets[batch.mask].tolist()) == [11, 12, 13, 14, 15, 16]
    assert batch.mask[batch.trajectory == 1].tolist() == [c == "1" for c in "01110011"]


@pytest.mark.fault("F080")
@pytest.mark.parametrize(("masks", "logprobs"), [(6, 7), (7, 6), (8, 7)])
def test_arrays_of_different_length_are_refused_by_name(masks, logprobs) -> None:
    """THUDM/slime#2207: crash late, or silently shifted by one."""
    with pytest.raises(ValueError, match=rf"'t/1'.*path '0.2'.*7 tokens, {masks} mask values, {logprobs} log-probs"):
        Trajectory((1,) * 7, (True,) * masks, (0.0,) * logprobs, task_id="t/1", path="0.2")


@pytest.mark.fault("F084")
def test_filler_rows_are_empty_and_change_nothing() -> None:
    """The public reference pads with copies of rows, which then count twice. Six rows on eight devices."""
    six = [dataclasses.replace(trajectories(3)[0], advantage=float(i)) for i in range(6)]
    plain, padded = pack(six, 16), pack(six, 16, rows_multiple=8)
    assert padded.tokens.shape[0] == 8
    assert not any(array[6:].any() for array in padded)
    for a, b in zip(plain, padded, strict=True):
        np.testing.assert_array_equal(a[:6], b[:6])


def test_weights_are_those_of_each_role_alone() -> None:
    rows = trajectories(5)
    batch = pack(rows, 16, aggregate="sequence_mean")
    for code in (1, 2):
        alone = token_weights(batch.mask & (batch.roles == code), batch.trajectory, aggregate="sequence_mean")
        np.testing.assert_allclose(np.where(batch.roles == code, batch.weights, 0), alone, rtol=1e-6)


@pytest.mark.fault("F174")
@given(st.integers(0, 300), st.integers(1, 9))
def test_row_counts_fall_into_few_buckets(rows, multiple) -> None:
    size = bucket_rows(rows, multiple)
    assert size >= rows
    assert (size // multiple).bit_count() == 1 and size % multiple == 0
    assert size == multiple or size < 2 * rows


def test_what_does_not_fit_is_named() -> None:
    rows = [*trajectories(1, 3), dataclasses.replace(trajectories(2)[0], task_id="t/9", path="0.1")]
    with pytest.raises(ValueError, match=r"trajectory 0 .*needs 16 positions.*row_tokens=15"):
        pack(rows, 15)
    kept = pack(rows, 15, drop_too_long=True)
    assert set(np.unique(kept.trajectory)) == {0, 2, 3}
    with pytest.raises(ValueError, match=r"task 't/9'.*has 1 ids"):
        pack([Trajectory((3,), (True,), (0.0,), task_id="t/9")], 8)
    with pytest.raises(ValueError, match="multiple=0"):
        bucket_rows(3, 0)
    assert not any(array.any() for array in pack([], 8, rows_multiple=2))
