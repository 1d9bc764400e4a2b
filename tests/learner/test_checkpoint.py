import json
import os
import resource
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from learner_samples import MODEL, settings, trajectories

from metaagent_x.learner import checkpoint
from metaagent_x.learner.checkpoint import CheckpointError, Checkpoints, DamagedCheckpoint
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


def small(value: float = 0.0) -> TrainState:
    """A state that is quickly written."""
    w = jnp.arange(1000, dtype=jnp.float32) / 7 + value  # more than TensorStore keeps beside the names
    return TrainState({"w": w}, {"mu": -w}, jnp.full((), 3, jnp.int32))


def saved(folder: Path, *steps: int, keep: int = 9) -> Checkpoints:
    """A folder that holds so many small states, the value of each its step."""
    made = Checkpoints(folder, keep=keep)
    for step in steps:
        made.save(step, {"shared": small(step)}, {"draws": step})
    made.wait()
    return made


def resumed(made: Checkpoints, said: list[str] | None = None) -> tuple[int, TrainState, dict[str, Any]]:
    """What a small state goes on from; `said` gets the messages."""
    found = made.resume({"shared": small()}, (said if said is not None else []).append)
    assert found is not None
    return found[0], found[1]["shared"], found[2]


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.fault("F103")
@pytest.mark.fault("F092")
@pytest.mark.parametrize("stop", [1, 2])
def test_stop_and_resume_equals_straight_on_bit_for_bit(learner, params, tmp_path, stop) -> None:
    """AI-Hypercomputer/maxdiffusion#484: moments or counters left out show as a bump after resume."""
    straight = updates(learner, learner.init(params), range(4))
    state = updates(learner, learner.init(params), range(stop))
    writer = Checkpoints(tmp_path / "c", keep=2)
    writer.save(stop, {"shared": state}, {"draws": 7, "note": ["a", 1.5]})
    updates(learner, state, range(stop, 3))  # donates what is being saved, as the run that is interrupted later does
    writer.wait()
    found = Checkpoints(tmp_path / "c", keep=2).resume({"shared": learner.init(params)})
    assert found is not None
    step, states, extra = found
    assert (step, extra) == (stop, {"draws": 7, "note": ["a", 1.5]})
    resumed = updates(learner, states["shared"], range(stop, 4))
    assert_equal(resumed, straight)
    assert int(resumed.step) == 4


@pytest.mark.parametrize("mesh", [None, (4, 2)])
def test_an_update_that_donates_what_is_being_written_does_not_change_it(tmp_path, mesh) -> None:
    """The write takes far longer than the update, and on a CPU reads from the very buffers that are donated."""
    rng = np.random.default_rng(0)
    values = {f"w{i}": rng.random((1024, 1024), np.float32) for i in range(6)}
    place = None if mesh is None else NamedSharding(make_mesh(*mesh), PartitionSpec("fsdp", "tensor"))
    update = jax.jit(lambda s: jax.tree.map(lambda x: x * 0 - 1, s), donate_argnums=0)
    params = {name: jnp.array(jax.device_put(x, place), copy=True) for name, x in values.items()}
    state = TrainState(params, (), jnp.zeros((), jnp.int32))
    update(jax.tree.map(jnp.copy, state))  # compiled, so that the one that counts begins at once
    writer = Checkpoints(tmp_path)
    writer.save(1, {"shared": state}, {})
    state = jax.block_until_ready(update(state))
    writer.wait()
    back, _ = writer.restore(1, {"shared": state})
    assert_equal(back["shared"].params, values)


def test_what_is_kept_follows_the_policy(tmp_path) -> None:
    made = Checkpoints(tmp_path, keep=2, keep_every=4)
    kept = {}
    for step, score in {1: None, 2: 0.3, 3: 0.9, 4: 0.5, 5: 0.9, 6: None, 7: 0.1, 9: 0.2}.items():
        made.save(step, {"shared": small()}, {})
        if score is not None:
            made.score(step, score)
        made.wait()
        kept[step] = made.steps()
    # 2 was the best when 4 came. 3 and 5 are equally good: the newer stays. 4 is a multiple of keep_every.
    assert kept == {
        1: [1], 2: [1, 2], 3: [2, 3], 4: [3, 4], 5: [3, 4, 5], 6: [4, 5, 6], 7: [4, 5, 6, 7], 9: [4, 5, 7, 9],
    }  # fmt: skip
    assert names(tmp_path) == ["4", "5", "7", "9"]
    made.score(8, 2.0)  # measured, not saved
    assert made.steps() == [4, 5, 7, 9]
    with pytest.raises(ValueError, match="score of step 9 is nan"):
        made.score(9, float("nan"))


def test_later_steps_can_be_dropped_and_saved_anew(tmp_path) -> None:
    made = saved(tmp_path, 2, 4, 6)
    made.save(8, {"shared": small(8.0)}, {})  # still being written
    made.drop_after(4)
    assert made.steps() == [2, 4] and names(tmp_path) == ["2", "4"]
    made.save(6, {"shared": small(-1.0)}, {"draws": 6})
    step, state, extra = resumed(made)
    assert step == 6 and extra == {"draws": 6} and float(jax.tree.leaves(state.params)[0].ravel()[0]) == -1.0


def test_paths_may_be_relative_and_a_step_is_saved_once(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = Checkpoints("run/checkpoints", keep=2)
    assert made.latest() is None and made.resume({"shared": small()}) is None
    made.save(8, {"shared": small()}, {})
    assert made.latest() == 8, "the one that is being written counts"
    with pytest.raises(CheckpointError, match="step 8 already"):
        made.save(8, {"shared": small()}, {})
    back, _ = Checkpoints(Path("run/checkpoints"), 2).restore(8, {"shared": small(1)})
    assert_equal(back, {"shared": small()})


@pytest.mark.fault("F109")
def test_a_tree_that_does_not_fit_is_an_error_naming_the_leaf(learner, params, tmp_path) -> None:
    """google/orbax#487, marin-community/marin#3790: a mismatch must never become a silent new start."""
    made = Checkpoints(tmp_path, keep=1)
    with pytest.raises(CheckpointError, match="no checkpoint of step 4"):
        made.restore(4, {"shared": learner.init(params)})
    made.save(4, {"shared": learner.init(params)}, {})
    made.wait()
    deeper = Learner(qwen3.Qwen3Config(**{**vars(MODEL), "num_layers": 2}), settings())
    other = deeper.init(qwen3.init(deeper._model, jax.random.key(1)))
    with pytest.raises(CheckpointError, match=r"leaf shared.params.layers.attn_norm is float32\[1, 16\], .*\[2, 16\]"):
        made.resume({"shared": other})
    with pytest.raises(CheckpointError, match=r"no leaf designer\.params.embed"):
        made.resume({"designer": learner.init(params)})
    fewer = learner.init(params)
    fewer = TrainState({k: v for k, v in fewer.params.items() if k != "norm"}, fewer.opt_state, fewer.step)
    with pytest.raises(CheckpointError, match=r"has a leaf shared\.params.norm that this run does not"):
        made.restore(4, {"shared": fewer})
    assert made.latest() == 4


def test_states_move_between_meshes_bit_for_bit(tmp_path) -> None:
    rng = np.random.default_rng(0)
    params = {"mlp": rng.normal(size=(2, 16, 24)).astype(np.float32), "norm": rng.random(16, np.float32)}
    specs = {"mlp": PartitionSpec(None, "fsdp", "tensor"), "norm": PartitionSpec()}
    values = TrainState(params, {"mu": jax.tree.map(np.negative, params)}, jnp.full((), 5, jnp.int32))

    def template(fsdp: int, tensor: int) -> TrainState:
        mesh = make_mesh(fsdp, tensor)

        def leaf(path: tuple[Any, ...], x: Any) -> Any:
            spec = specs.get(jax.tree_util.keystr(path[-1:], simple=True), PartitionSpec())
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))

        return jax.tree_util.tree_map_with_path(leaf, values)

    state = jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), values, template(1, 1))
    made = Checkpoints(tmp_path, keep=1)
    for step, mesh in enumerate([(4, 2), (2, 4), (1, 1)]):
        made.save(step, {"shared": state}, {})
        made.wait()
        wanted = template(*mesh)
        state = made.restore(step, {"shared": wanted})[0]["shared"]
        jax.tree.map(lambda x, like: np.testing.assert_equal(x.sharding, like.sharding), state, wanted)
        assert_equal(state, values)


def test_a_checksum_is_the_same_on_every_mesh_and_misses_no_changed_or_moved_word() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(16, 8, 24)).astype(np.float32)
    expected = checkpoint._checksum(x)
    specs = {(4, 2): ("fsdp", "tensor"), (2, 4): ("tensor", "fsdp"), (8, 1): (None, "fsdp"), (1, 1): ()}
    for mesh, spec in specs.items():
        placed = jax.device_put(x, NamedSharding(make_mesh(*mesh), PartitionSpec(*spec)))
        assert checkpoint._fingerprints({"x": placed})["x"] == (expected, 0), mesh
    for at in rng.integers(0, x.size, 50):
        flipped = x.copy()
        flipped.view(np.uint32).flat[at] ^= np.uint32(1 << rng.integers(0, 32))
        assert checkpoint._checksum(flipped) != expected
    assert checkpoint._checksum(x[::-1]) != expected
    assert checkpoint._checksum(x.swapaxes(0, 1)) != expected
    long = np.arange(3 * checkpoint.BLOCK + 5, dtype=np.int32)  # the host takes it in several blocks
    assert checkpoint._fingerprints({"x": jnp.array(long)})["x"][0] == checkpoint._checksum(long)
    half = jnp.array([1.5, np.nan, -np.inf, 0.0], jnp.bfloat16)
    assert checkpoint._fingerprints({"x": half})["x"] == (checkpoint._checksum(np.asarray(half)), 2)


@pytest.mark.fault("F111")
def test_a_state_that_is_not_finite_is_not_saved_and_the_good_one_stays(tmp_path) -> None:
    """pytorch/torchtitan#3751: a diverged state was saved, and rotation deleted the last good one."""
    made = saved(tmp_path, 1, keep=1)
    state = small()
    broken = TrainState(state.params, {"mu": state.opt_state["mu"].at[3:5].set(jnp.nan)}, state.step)
    with pytest.raises(CheckpointError, match=r"2 values of leaf shared.opt_state.mu are not .*step 1 there is whole"):
        made.save(2, {"shared": broken}, {})
    assert names(tmp_path) == ["1"]
    made.save(2, {"shared": state}, {})
    made.wait()
    assert names(tmp_path) == ["2"]


@pytest.mark.fault("F099")
@pytest.mark.parametrize("where", ["write", "verify", "manifest", "rename"])
def test_a_write_that_fails_is_raised_by_the_next_call_and_costs_no_earlier_step(tmp_path, monkeypatch, where) -> None:
    """KempnerInstitute/KempnerForge#102: the good step was deleted for one that was never complete."""
    made = saved(tmp_path, 1, keep=1)

    target, name = {
        "write": (ocp.AsyncCheckpointer, "close"),
        "verify": (checkpoint, "_verify"),
        "manifest": (checkpoint.os, "fsync"),
        "rename": (checkpoint.os, "rename"),
    }[where]
    true_close = ocp.AsyncCheckpointer.close

    def fail(*given, **_):
        if where == "write":
            true_close(*given)
        assert names(tmp_path) in (["1"], ["1", "2.draft"]), "nothing is deleted or renamed before all is right"
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(target, name, fail)
        made.save(2, {"shared": small(2)}, {})
        writer = made._writer
        assert writer is not None
        writer.join()
    call = made.check if where == "rename" else lambda: made.save(3, {"shared": small(3)}, {})
    with pytest.raises(CheckpointError, match=r"saving step 2 failed \(.*No space left.*step 1 there is whole. Free"):
        call()
    made.check()  # said once
    assert names(tmp_path) == ["1"]
    made.save(2, {"shared": small(2)}, {})
    made.wait()
    assert names(tmp_path) == ["2"]


@pytest.mark.fault("F099")
def test_a_full_disk_leaves_the_checkpoint_before_whole(tmp_path) -> None:
    """The system refuses to let any file grow further, in the middle of Orbax's write."""
    made = saved(tmp_path, 1, keep=1)
    noise = np.random.default_rng(0).random(1 << 16, np.float32)
    state = TrainState({"w": jnp.array(noise)}, (), jnp.zeros((), jnp.int32))
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        made.save(2, {"shared": state}, {})
        with pytest.raises(CheckpointError, match=r"saving step 2 failed .*step 1 there is whole"):
            made.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(tmp_path) == ["1"]
    assert_equal(made.restore(1, {"shared": small()})[0]["shared"], small(1))


def test_a_write_that_went_wrong_unnoticed_never_counts(tmp_path, monkeypatch) -> None:
    made = saved(tmp_path, 1)
    true_save = ocp.AsyncCheckpointer.save

    def save(self, directory, args):
        true_save(self, directory, args=ocp.args.PyTreeSave({name: leaf + 1 for name, leaf in args.item.items()}))

    monkeypatch.setattr(ocp.AsyncCheckpointer, "save", save)
    made.save(2, {"shared": small(2)}, {})
    with pytest.raises(CheckpointError, match=r"read back of leaf shared\..* is not what was written"):
        made.wait()
    assert made.latest() == 1


def test_reading_back_takes_a_few_leaves_at_a_time(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(checkpoint, "READ_BACK_BYTES", 256)
    sizes = {"a": 300, "b": 200, "c": 56, "d": 1, "e": 255}
    assert list(checkpoint._groups(sizes)) == [["a"], ["b", "c"], ["d", "e"]]
    assert saved(tmp_path, 1).latest() == 1


def damage(how: str, path: Path) -> None:
    data = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        at = {"first": 0, "flipped": len(data) // 2, "last": len(data) - 1}[how]
        data[at] ^= 0x10
        path.write_bytes(data)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of reads that Orbax gives up
@pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
def test_damage_to_any_file_is_found_or_does_no_harm(tmp_path, how) -> None:
    saved(tmp_path / "good", 1, 2)
    files = [path.relative_to(tmp_path / "good") for path in (tmp_path / "good" / "2").rglob("*") if path.is_file()]
    assert len(files) > 5
    went_back = []
    for number, file in enumerate(files):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "good", folder)
        damage(how, folder / file)
        said: list[str] = []
        step, state, extra = resumed(Checkpoints(folder), said)
        assert_equal(state, small(step))
        assert extra == {"draws": step}
        assert [step] == [2] if not said else step == 1
        if said:
            went_back.append(file)
            assert said[0].startswith(f"checkpoint {folder / '2'} is damaged: ")
            assert said[0].endswith("; set aside as 2.damaged, going on from step 1")
            assert names(folder) == ["1", "2.damaged"]
    # The rest is description that a restore does without.
    assert len(went_back) > 3 and Path("2/manifest.json") in went_back


def test_a_damaged_step_can_be_saved_anew(tmp_path) -> None:
    saved(tmp_path, 1, 2)
    damage("gone", tmp_path / "2" / "manifest.json")
    reader = Checkpoints(tmp_path, read_only=True)
    with pytest.raises(DamagedCheckpoint, match=r"checkpoint .*/2 is damaged: manifest.json: .*No such file"):
        reader.restore(2, {"shared": small()})
    assert resumed(reader)[0] == 1
    assert names(tmp_path) == ["1", "2"], "a reader changes nothing"
    made = Checkpoints(tmp_path)
    assert resumed(made)[0] == 1
    made.save(2, {"shared": small(5)}, {})
    made.wait()
    assert resumed(made)[0] == 2
    assert names(tmp_path) == ["1", "2", "2.damaged"]


def test_if_all_are_damaged_nothing_starts_afresh(tmp_path) -> None:
    saved(tmp_path, 1, 2)
    damage("cut", tmp_path / "1" / "manifest.json")
    damage("flipped", tmp_path / "2" / "manifest.json")
    for _ in range(2):  # nor at the second attempt
        with pytest.raises(CheckpointError, match=r"no checkpoint can be read .*/2 is damaged.*/1 is damaged.*remove"):
            Checkpoints(tmp_path).resume({"shared": small()})
    assert names(tmp_path) == ["1", "2"]


def test_what_a_killed_writer_left_is_removed_but_not_by_a_reader(tmp_path) -> None:
    saved(tmp_path, 1)
    for rest in ("2.draft", "0.leaving"):
        (tmp_path / rest / "states.orbax-checkpoint-tmp").mkdir(parents=True)
    assert Checkpoints(tmp_path, read_only=True).latest() == 1
    assert names(tmp_path) == ["0.leaving", "1", "2.draft"]
    again = Checkpoints(tmp_path, keep=2)
    assert again.latest() == 1
    again.save(2, {"shared": small(2)}, {"draws": 2})
    again.wait()
    assert again.restore(2, {"shared": small()})[1] == {"draws": 2}
    assert names(tmp_path) == ["1", "2"]


def test_a_folder_of_another_format_is_no_damage(tmp_path) -> None:
    saved(tmp_path, 1)
    path = tmp_path / "1" / "manifest.json"
    content = json.loads(path.read_text())["content"] | {"format": 99}
    path.write_text(json.dumps({"crc32": checkpoint._crc(content), "content": content}))
    with pytest.raises(CheckpointError, match="is of format 99"):
        Checkpoints(tmp_path).resume({"shared": small()})


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_weights_are_read_without_the_optimizer_and_nothing_is_changed(learner, params, tmp_path) -> None:
    state = updates(learner, learner.init(params), range(1))
    folder = tmp_path / "c"
    writer = Checkpoints(folder, keep=2)
    writer.save(1, {"designer": learner.init(params), "executor": state}, {})
    writer.wait()
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
    damage("gone", next(path for path in (folder / "1").rglob("manifest.ocdbt")))
    with pytest.raises(DamagedCheckpoint, match=r"/1 is damaged: "):
        reader.restore_params(1, "executor", shapes)
    assert Checkpoints(tmp_path / "absent", read_only=True).latest() is None
    assert not (tmp_path / "absent").exists()
