import os
from pathlib import Path

import jax
import numpy as np
import pytest
from learner_samples import MODEL, settings, trajectories

from metaagent_x.learner.checkpoint import CheckpointError, Checkpoints
from metaagent_x.learner.packing import pack
from metaagent_x.learner.state import TrainState
from metaagent_x.learner.step import Learner
from metaagent_x.model import qwen3
from metaagent_x.model.sharding import make_mesh


def updates(learner: Learner, state: TrainState, steps: range) -> TrainState:
    for step in steps:
        batch = pack(trajectories(step), 16, rows_multiple=8)
        state, _ = learner.update(state, batch, batch.old_logp)
    return state


def assert_equal(a, b) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(np.asarray(x), np.asarray(y)), a, b)


@pytest.mark.fault("F103")
@pytest.mark.fault("F092")
@pytest.mark.parametrize("stop", [1, 2])
def test_stop_and_resume_equals_straight_on_bit_for_bit(learner, params, tmp_path, stop) -> None:
    """AI-Hypercomputer/maxdiffusion#484: moments or counters left out show as a bump after resume."""
    straight = updates(learner, learner.init(params), range(4))
    state = updates(learner, learner.init(params), range(stop))
    Checkpoints(tmp_path / "c", keep=2).save(stop, {"shared": state}, {"draws": 7, "note": ["a", 1.5]})
    updates(learner, state, range(stop, 3))  # donates what was saved, as the run that is interrupted later does
    reopened = Checkpoints(tmp_path / "c", keep=2)
    assert reopened.latest() == stop
    states, extra = reopened.restore(stop, {"shared": learner.init(params)})
    assert extra == {"draws": 7, "note": ["a", 1.5]}
    resumed = updates(learner, states["shared"], range(stop, 4))
    assert_equal(resumed, straight)
    assert int(resumed.step) == 4


def test_only_the_newest_are_kept_and_paths_may_be_relative(learner, params, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved = Checkpoints("run/checkpoints", keep=2)
    assert saved.latest() is None
    states = {"designer": learner.init(params), "executor": learner.init(params)}
    for step in (3, 5, 8):
        saved.save(step, states, {})
    assert sorted(int(n) for n in os.listdir("run/checkpoints") if n.isdigit()) == [5, 8]
    assert saved.latest() == 8
    with pytest.raises(CheckpointError, match="step 8 already"):
        saved.save(8, states, {})
    back, _ = Checkpoints(Path("run/checkpoints"), 2).restore(5, states)
    assert_equal(back, states)


@pytest.mark.fault("F109")
def test_a_tree_that_does_not_fit_is_an_error_naming_the_leaf(learner, params, tmp_path) -> None:
    """google/orbax#487, marin-community/marin#3790: a mismatch must never become a silent new start."""
    saved = Checkpoints(tmp_path, keep=1)
    with pytest.raises(CheckpointError, match="no checkpoint of step 4"):
        saved.restore(4, {"shared": learner.init(params)})
    saved.save(4, {"shared": learner.init(params)}, {})
    deeper = Learner(qwen3.Qwen3Config(**{**vars(MODEL), "num_layers": 2}), settings())
    other = deeper.init(qwen3.init(deeper._model, jax.random.key(1)))
    with pytest.raises(CheckpointError, match=r"leaf shared.params.layers.attn_norm is float32\[1, 16\], .*\[2, 16\]"):
        saved.restore(4, {"shared": other})
    with pytest.raises(CheckpointError, match=r"no leaf designer\.params.embed"):
        saved.restore(4, {"designer": learner.init(params)})
    fewer = learner.init(params)
    fewer = TrainState({k: v for k, v in fewer.params.items() if k != "norm"}, fewer.opt_state, fewer.step)
    with pytest.raises(CheckpointError, match=r"has a leaf shared\.params.norm that this run does not"):
        saved.restore(4, {"shared": fewer})
    assert saved.latest() == 4


def test_states_are_restored_onto_the_shardings_of_the_template(learner, params, tmp_path) -> None:
    state = learner.init(params)
    Checkpoints(tmp_path, keep=1).save(1, {"shared": state}, {})
    template = Learner(MODEL, settings(), make_mesh(4, 2)).init(params)
    back, _ = Checkpoints(tmp_path, keep=1).restore(1, {"shared": template})
    assert_equal(back["shared"], state)
    jax.tree.map(lambda a, b: np.testing.assert_equal(a.sharding, b.sharding), back["shared"], template)


def test_a_save_cut_short_leaves_the_earlier_one_usable(learner, params, tmp_path) -> None:
    state = learner.init(params)
    Checkpoints(tmp_path, keep=2).save(1, {"shared": state}, {"draws": 1})
    (tmp_path / "2.orbax-checkpoint-tmp").mkdir()
    (tmp_path / "2.orbax-checkpoint-tmp" / "half").write_text("x")
    again = Checkpoints(tmp_path, keep=2)
    assert again.latest() == 1
    again.save(2, {"shared": state}, {"draws": 2})
    assert again.restore(2, {"shared": state})[1] == {"draws": 2}


def test_weights_are_read_without_the_optimizer_and_nothing_is_changed(learner, params, tmp_path) -> None:
    state = updates(learner, learner.init(params), range(1))
    folder = tmp_path / "c"
    writer = Checkpoints(folder, keep=2)
    writer.save(1, {"designer": learner.init(params), "executor": state}, {})
    reader = Checkpoints(folder, read_only=True)
    assert reader.policies(1) == ["designer", "executor"]
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), params)
    assert_equal(reader.restore_params(1, "executor", shapes), state.params)
    assert_equal(reader.restore_params(1, "designer", shapes), params)
    with pytest.raises(CheckpointError, match="no policy 'shared'; it has designer, executor"):
        reader.restore_params(1, "shared", shapes)
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 7; it has \[1\]"):
        reader.restore_params(7, "executor", shapes)
    with pytest.raises(CheckpointError, match=r"no leaf executor\.params\.head"):
        reader.restore_params(1, "executor", shapes | {"head": shapes["embed"]})
    with pytest.raises(CheckpointError, match=r"has a leaf executor\.params\.norm that this run does not"):
        reader.restore_params(1, "executor", {k: v for k, v in shapes.items() if k != "norm"})
    assert Checkpoints(tmp_path / "absent", read_only=True).latest() is None
    assert not (tmp_path / "absent").exists()
