"""A skipped update is kept whole, and done again alone it computes what it computed in the run."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from learner_samples import MODEL, trajectories

from metaagent_x.learner import replay
from metaagent_x.learner.packing import pack
from metaagent_x.learner.replay import Recorder, ReplayError


@pytest.fixture(scope="module")
def batch():
    return pack(trajectories(1), 16, rows_multiple=8)


@pytest.fixture
def recorder(tmp_path):
    return Recorder(tmp_path / "replay", MODEL, {"learner": {"clip_low": 0.2}}, keep=3)


def spoilt(batch, name, value=np.nan):
    array = getattr(batch, name).copy()
    at = tuple(np.argwhere(batch.mask & (batch.roles == 2))[3])
    array[at] = value
    return batch._replace(**{name: array}), at


def recorded(recorder, learner, state, batch, update=2):
    old = batch.old_logp.copy()
    state, metrics = learner.update(state, batch, old)
    recorder.look(12, "shared", update, state, batch, old, None, metrics)
    return state, metrics, recorder.take()


@pytest.mark.parametrize("name", ["advantages", "weights", "old_logp"])
def test_a_number_in_the_batch_is_reproduced_and_found_first(learner, params, batch, recorder, tmp_path, name):
    state, _ = learner.update(learner.init(params), batch, batch.old_logp)  # the learning rate knows of an update
    bad, at = spoilt(batch, name)
    _, metrics, (skip,) = recorded(recorder, learner, state, bad)
    assert (skip.step, skip.update, skip.policy, skip.in_row) == (12, 2, "shared", 1) and math.isnan(skip.loss)
    assert skip.file == tmp_path / "replay" / "step_000012_update_2_shared.npz" and skip.file.exists()
    kept = replay.read(skip.file)
    assert (kept.made, kept.settings, kept.model) == (1, {"learner": {"clip_low": 0.2}}, dataclasses.asdict(MODEL))
    again = replay.replay(kept, learner)
    assert again.exact and again.different == []
    assert math.isnan(again.metrics["loss"]) and math.isfinite(again.metrics["entropy"])
    assert again.metrics["loss/designer"] == metrics["loss/designer"] != 0, "the other role's loss is a number"
    first = again.findings[0]
    assert (first.where, first.index, first.count) == ("batch", at, 1) and first.name.startswith(name)
    assert f"trajectory {batch.trajectory[at]}, position {batch.positions[at]}" in str(first)
    assert {f.where for f in again.findings[1:]} <= {"log-probs", "gradients"}


def test_a_weight_that_is_not_finite_is_named_with_its_layer(learner, params, batch, recorder):
    broken = jax.tree.map(np.array, params)
    broken["layers"]["attn_norm"][0, 5] = np.inf
    _, _, (skip,) = recorded(recorder, learner, learner.init(broken), batch)
    again = replay.replay(replay.read(skip.file), learner)
    assert again.exact
    assert str(again.findings[0]) == "weights: layers.attn_norm[0, 5] is inf; 1 of 16 are not finite"
    wheres = [f.where for f in again.findings]
    assert wheres == sorted(wheres, key=["batch", "weights", "log-probs", "gradients"].index)
    backward = [f.name for f in again.findings if f.where == "gradients"]
    assert backward[0] == "norm" and backward[-1] == "embed"


def test_an_update_that_went_well_is_reproduced_to_the_bit_too(learner, params, batch, tmp_path, monkeypatch):
    state, _ = learner.update(learner.init(params), batch, batch.old_logp)
    whole = replay.Update(1, 1, "shared", dataclasses.asdict(MODEL), {}, {}, int(state.step), state.params, batch,
                          batch.old_logp, None)  # fmt: skip
    replay.write(tmp_path / "u.npz", whole)  # before the update, which takes the weights
    _, metrics = learner.update(state, batch, batch.old_logp)
    metrics = {k: v for k, v in metrics.items() if not k.startswith("time/")}
    kept = dataclasses.replace(replay.read(tmp_path / "u.npz"), metrics=metrics)
    starts, plain = [], learner.update

    def update(state, *args, **kwargs):
        starts.append(int(state.step))  # the learning rate may depend on it
        return plain(state, *args, **kwargs)

    monkeypatch.setattr(learner, "update", update)
    again = replay.replay(kept, learner)
    assert starts == [1] and again.exact and again.findings == [] and again.metrics["updated"] == 1
    assert again.metrics["grad_norm"] == metrics["grad_norm"] > 1e-3
    other = dataclasses.replace(kept, metrics=metrics | {"grad_norm": 1.1 * metrics["grad_norm"]})
    again = replay.replay(other, learner)
    assert [name for name, _, _ in again.different] == ["grad_norm"] and not again.exact


def test_gradients_are_those_that_an_update_steps_by(learner, params, batch):
    _, metrics = learner.update(learner.init(params), batch, batch.old_logp)
    grads = learner.gradients(params, batch, batch.old_logp)
    norm = math.sqrt(sum(float((np.asarray(g, np.float64) ** 2).sum()) for g in jax.tree.leaves(grads)))
    assert norm == pytest.approx(metrics["grad_norm"], rel=1e-5)


def test_files_stay_few_and_counting_starts_anew_after_a_finite_update(learner, params, batch, recorder, tmp_path):
    bad, _ = spoilt(batch, "advantages")
    state = learner.init(params)
    for number in range(1, 6):
        state, _, (skip,) = recorded(recorder, learner, state, bad, update=number)
        assert skip.in_row == number
    assert sorted(p.name for p in (tmp_path / "replay").iterdir()) == [
        f"step_000012_update_{number}_shared.npz" for number in (3, 4, 5)
    ]
    state, _, none = recorded(recorder, learner, state, batch)
    assert none == []
    _, _, (skip,) = recorded(recorder, learner, state, bad)
    assert skip.in_row == 1


@pytest.mark.parametrize(("keep", "words"), [(0, "guard.dumps=0"), (2, "cannot write")])
def test_what_cannot_be_kept_is_still_counted(learner, params, batch, tmp_path, keep, words):
    (tmp_path / "replay").write_text("a file where the folder should be")
    recorder = Recorder(tmp_path / "replay", MODEL, {}, keep=keep)
    _, _, (skip,) = recorded(recorder, learner, learner.init(params), spoilt(batch, "advantages")[0])
    assert skip.file is None and words in skip.why_not and skip.in_row == 1


@pytest.mark.parametrize("harm", ["cut", "flipped", "text", "absent"])
def test_a_damaged_file_is_refused_by_name(learner, params, batch, recorder, harm):
    _, _, (skip,) = recorded(recorder, learner, learner.init(params), spoilt(batch, "advantages")[0])
    data = bytearray(skip.file.read_bytes())
    if harm == "flipped":
        data[len(data) // 2] ^= 255
    skip.file.write_bytes({"cut": data[:-300], "flipped": data, "text": b"hello", "absent": b""}[harm])
    if harm == "absent":
        skip.file.unlink()
    with pytest.raises(ReplayError, match=r"step_000012_update_2_shared\.npz: not an update.* or damaged"):
        replay.read(skip.file)


def test_settings_that_the_batch_does_not_fit_are_refused(learner, params, batch, recorder):
    _, _, (skip,) = recorded(recorder, learner, learner.init(params), spoilt(batch, "advantages")[0])
    odd = dataclasses.replace(replay.read(skip.file), ref_logp=batch.old_logp)
    with pytest.raises(ReplayError, match=r"does not fit these settings: learner\.kl=0\.0 and ref_logp is given"):
        replay.replay(odd, learner)
