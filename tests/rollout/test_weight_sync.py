"""Weights in shared memory and the steps of an update, without a server."""

import errno
import fcntl
import os
import zlib
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from metaagent_x.rollout import weight_sync
from metaagent_x.rollout.vllm_client import ServerError
from metaagent_x.rollout.weight_sync import Probe, WeightStore, WeightSync, WeightSyncError

PARAMS = {"a": jnp.arange(600_000, dtype=jnp.float32).reshape(600, 1000), "b": jnp.float32([1.5, -2.0])}


def tensors(params):
    yield "model.a", params["a"].T
    yield "model.b", params["b"]


@pytest.fixture
def store(tmp_path):
    store = WeightStore(tensors, "float32", str(tmp_path))
    yield store
    store.close()


def read(manifest, entry):
    data = np.fromfile(manifest.path, np.uint8)
    size = 4 * int(np.prod(entry["shape"]))
    return data[entry["offset"] : entry["offset"] + size]


def test_what_is_written_is_what_the_manifest_says(store):
    manifest = store.write(PARAMS, 3)
    assert (manifest.version, manifest.size) == (3, 4 * 600_002)
    assert [(t["name"], t["dtype"], t["shape"]) for t in manifest.tensors] == [
        ("model.a", "float32", [1000, 600]), ("model.b", "float32", [2])
    ]  # fmt: skip
    for entry, (_, wanted) in zip(manifest.tensors, tensors(PARAMS), strict=True):
        found = read(manifest, entry)
        np.testing.assert_array_equal(found.view(np.float32).reshape(wanted.shape), wanted)
        assert zlib.crc32(found) == entry["crc32"]


def test_one_version_is_kept_under_its_own_name(store):
    first = store.write(PARAMS, 1)
    second = store.write({**PARAMS, "b": jnp.float32([7, 8])}, 2)
    assert second.path != first.path and sorted(os.listdir(store.folder)) == ["lock", os.path.basename(second.path)]
    assert read(second, second.tensors[1]).view(np.float32).tolist() == [7, 8]
    store.close()
    assert not store.folder.exists()


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({**PARAMS, "b": jnp.bfloat16([1, 2])}, "tensor model.b is bfloat16"),
        ({**PARAMS, "c": jnp.float32([1])}, "4 of 2400012 bytes of parameters have no name"),
    ],
)
def test_parameters_that_are_not_what_the_names_say_are_refused(store, params, says):
    store.write(PARAMS, 1)
    with pytest.raises(WeightSyncError, match=says):
        store.write(params, 2)
    assert not list(store.folder.glob("v*"))  # neither the old version nor half of the new one


def test_too_little_room_is_said_before_anything_is_written(store, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(WeightSyncError, match=r"2400008 bytes of weights do not fit into .*, where \d+ are free"):
        store.write(PARAMS, 1)
    assert os.listdir(store.folder) == ["lock"]


def test_what_a_dead_process_left_is_removed_and_what_a_living_one_has_is_not(tmp_path):
    dead, living = (tmp_path / f"{weight_sync.PREFIX}{name}" for name in ("dead", "living"))
    for folder in (dead, living):
        folder.mkdir()
        (folder / "lock").touch()
        (folder / "v00000001.weights").touch()
    with open(living / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        store = WeightStore(tensors, "float32", str(tmp_path))
        assert living.exists() and not dead.exists()
        assert weight_sync.remove_leftovers(str(tmp_path)) == []  # its own neither
        store.close()


def test_servers_are_told_where_the_weights_are_whatever_folder_they_run_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    store = WeightStore(tensors, "float32", "weights")
    path = store.write(PARAMS, 1).path
    assert os.path.isabs(path) and path.startswith(str(tmp_path))
    store.close()


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(WeightSyncError, match=r"cannot keep weights in .*nowhere.*engine.weights_dir"):
        WeightStore(tensors, "float32", str(tmp_path / "nowhere"))


class FakeClient:
    """Does as told; `log` has the calls in order."""

    url = "http://fake"

    def __init__(self, fails="", offset=0.0, cached_offset=0.0):
        self.fails, self.offset, self.cached_offset, self.log = fails, offset, cached_offset, []

    def __getattr__(self, name):
        async def call(*arguments):
            self.log.append((name, *arguments))
            if name == self.fails:
                raise ServerError("500", status=500)

        return call

    async def score(self, ids):
        return [-float(i) + self.offset for i in ids[1:]]

    async def next_logprob(self, prompt, token):
        return -float(token) + self.cached_offset


def learner(_, ids):
    return -ids[:, 1:].astype(np.float64)


@pytest.fixture
def sync(tmp_path):
    sync = WeightSync(WeightStore(tensors, "float32", str(tmp_path)), learner, vocab_size=50, dtype="float32")
    yield sync
    sync.close()


STEPS = ["pause", "start_update", "update", "finish", "reset_prefix_cache", "resume"]


@pytest.mark.fault("F031")
async def test_an_update_resets_the_cache_once_when_the_weights_are_complete(sync):
    client = FakeClient()
    await sync.push_all([client], PARAMS, 4, "abort")
    assert [name for name, *_ in client.log] == STEPS
    (_, mode), _, (_, manifest), (_, version), *_ = client.log
    assert (mode, manifest["version"], version) == ("abort", 4, 4)
    assert [t["name"] for t in manifest["tensors"]] == ["model.a", "model.b"]


@pytest.mark.fault("F032")
@pytest.mark.parametrize("fails", STEPS)
async def test_a_step_that_fails_is_the_last_one_and_a_whole_push_recovers(sync, fails):
    client, other = FakeClient(fails), FakeClient()
    with pytest.raises(WeightSyncError, match="1 of 2 servers: http://fake stays paused: push of weights 4 failed at"):
        await sync.push_all([client, other], PARAMS, 4)
    assert [name for name, *_ in client.log] == STEPS[: STEPS.index(fails) + 1]
    assert [name for name, *_ in other.log] == STEPS
    client.fails, client.log = "", []
    await sync.push(client)
    assert [name for name, *_ in client.log] == STEPS


@pytest.mark.parametrize(
    ("client", "says"),
    [
        (FakeClient(offset=0.01), "computed anew differ by 1.00e-02 on average"),
        (FakeClient(cached_offset=-2.0), "after what its prefix cache holds differ by 2.00e[+]00"),
        (FakeClient(offset=float("nan")), "computed anew differ by nan"),
    ],
)
async def test_a_server_that_computes_something_else_is_found(sync, client, says):
    with pytest.raises(WeightSyncError, match=says):
        await sync.push_all([client], PARAMS, 1)


async def test_one_token_far_off_is_found_though_the_mean_is_small():
    probe = Probe(np.zeros((4, 90), np.int32), np.zeros((4, 89)), (2e-5, 1e-4))
    server = np.zeros((4, 89))
    probe.compare("url", "anew", server, probe.logprobs)
    server[2, 7] = 2e-4
    with pytest.raises(WeightSyncError, match=r"2.00e-04 at most"):
        probe.compare("url", "anew", server, probe.logprobs)


async def test_nothing_is_pushed_that_is_not_written(sync):
    with pytest.raises(WeightSyncError, match="no weights are written"):
        await sync.push(FakeClient())
    await sync.write(PARAMS, 1)
    with pytest.raises(WeightSyncError, match="bytes of parameters"):
        await sync.write({**PARAMS, "c": jnp.float32([1])}, 2)
    with pytest.raises(WeightSyncError, match="no weights are written"):
        await sync.push(FakeClient())


async def test_a_learner_that_computes_no_numbers_pushes_nothing(sync):
    sync._score = lambda params, ids: np.full((len(ids), ids.shape[1] - 1), np.nan)
    with pytest.raises(WeightSyncError, match="learner's own log-probs"):
        await sync.write(PARAMS, 1)
    assert sync._written is None


def test_the_tensors_on_the_host_at_a_time_are_few(store):
    live, most = 0, 0

    class Counted:
        dtype, shape, size = SimpleNamespace(name="float32"), (2000,), 2000

        def __init__(self):
            nonlocal live, most
            live += 1
            most = max(most, live)

        def __array__(self, dtype=None, copy=None):
            return np.zeros(2000, np.float32)

        def __del__(self):
            nonlocal live
            live -= 1

    store._tensors = lambda params: ((f"t{i}", Counted()) for i in range(300))
    store.write({"x": np.zeros(600_000, np.float32)}, 1)
    assert most <= 6 * store._threads
