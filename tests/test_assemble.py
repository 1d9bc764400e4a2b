"""Starting from a folder of weights: what the settings become, what is refused, where the weights come from."""

import sys

import jax
import numpy as np
import pytest
from hf_samples import raw_config, tensors, write

from configs import tiny
from metaagent_x import assemble, cold_start
from metaagent_x import config as settings
from metaagent_x.model import hf, qwen3
from metaagent_x.model.logprobs import token_logprobs
from metaagent_x.rollout.chat import train_bpe
from metaagent_x.rollout.fleet import Weights
from metaagent_x.rollout.weight_sync import WeightSync


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, raw_config("qwen2", theta=5e6, vocab_size=300))
    train_bpe(["answer = solver()(task)"], 300, str(tmp_path))
    return tmp_path


def job(folder, **model):
    c = settings.base()
    c.model.path = str(folder)
    c.model.update(model)
    return c


def test_the_folder_decides_what_the_network_is(folder):
    """So that the run's config.json says what ran; how it runs stays with the settings."""
    c = job(folder, remat="full")
    assemble.adopt_weights(c)
    settings.validate(c)
    model = assemble.model_config(c)
    assert (model.hidden_size, model.num_layers, model.head_dim, model.rope_theta) == (32, 2, 8, 5e6)
    assert model.qkv_bias and not model.qk_norm and model.max_positions == 512
    assert (model.compute_dtype, model.remat) == ("bfloat16", "full")
    assert c.tokenizer == str(folder)
    assemble.check_vocabulary(c, model)
    again = c.to_dict()
    assemble.adopt_weights(c)
    assert c.to_dict() == again
    named = job(folder)
    named.tokenizer = "elsewhere"
    assemble.adopt_weights(named)
    assert named.tokenizer == "elsewhere"


def test_a_size_that_someone_set_must_be_the_folders(folder):
    assemble.adopt_weights(job(folder, num_layers=2))
    with pytest.raises(settings.ConfigError, match=r"model\.num_layers=7, but model\.path=.* has 2; leave"):
        assemble.adopt_weights(job(folder, num_layers=7))


def test_a_folder_that_cannot_be_read_is_bad_input(folder, tmp_path):
    with pytest.raises(settings.ConfigError, match=r"model\.path='\S+/absent': cannot read \S+config\.json"):
        assemble.adopt_weights(job(tmp_path / "absent"))
    c = job(folder)
    assemble.adopt_weights(c)
    (folder / "model.safetensors").unlink()
    with pytest.raises(settings.ConfigError, match=r"model\.path=.*cannot read .*model\.safetensors"):
        assemble.weights(c, assemble.model_config(c))


def test_training_starts_from_the_weights_of_the_folder(folder):
    c = job(folder)
    assemble.adopt_weights(c)
    found = assemble.weights(c, assemble.model_config(c))
    jax.tree.map(np.testing.assert_array_equal, found, hf.load(folder, "float32")[1])
    assert all(x.dtype == "float32" for x in jax.tree.leaves(found))


def test_other_weights_are_another_cold_start(folder):
    c = tiny.get_config()
    without = cold_start.fingerprint(c)
    c.model.path = str(folder)
    before = cold_start.fingerprint(c)
    write(folder, raw_config("qwen2", num_hidden_layers=3), tensors(raw_config("qwen2", num_hidden_layers=3)))
    assert len({without, before, cold_start.fingerprint(c)}) == 3


def test_engines_that_cannot_train_are_refused_before_any_file_is_asked_for():
    c = settings.base()
    assemble.check_supported(c)
    c.engine.kind, c.engine.python = "vllm", "/no/such/python"
    with pytest.raises(settings.ConfigError, match=r"engine\.python='/no/such/python'.*launch/setup_vllm\.sh"):
        assemble.check_supported(c)
    c.engine.urls = ("http://127.0.0.1:8000",)
    assemble.check_supported(c)
    c.engine.kind = "openai"
    with pytest.raises(settings.ConfigError, match=r"text and not the token ids.*engine\.kind='jax' or 'vllm'"):
        assemble.check_supported(c)


def test_servers_of_separate_policies_are_groups(folder):
    c = settings.base()
    c.policy, c.engine.kind = "separate", "vllm"
    c.engine.urls = ("http://a:1", "http://b:1", "http://c:1", "http://d:1")
    assert [[h.url for h in assemble.hosts(c, p, folder)] for p in ("designer", "executor")] == [
        ["http://a:1", "http://b:1"], ["http://c:1", "http://d:1"]
    ]  # fmt: skip
    c.engine.urls, c.engine.servers, c.engine.python, c.mesh.fsdp = (), 2, sys.executable, 2
    servers = [h.settings for p in ("designer", "executor") for h in assemble.hosts(c, p, folder)]
    assert [s.memory_share for s in servers] == [0.25] * 4 and {s.device for s in servers} == {"cpu"}
    assert {(s.max_model_len, s.slots, s.dtype) for s in servers} == {(16_384, 64, "bfloat16")}


def test_servers_are_not_started_beside_what_vllm_does_not_run_on(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    c = tiny.get_config()
    (tmp_path / "shared_memory").mkdir()
    c.engine.kind, c.engine.weights_dir = "vllm", str(tmp_path / "shared_memory")
    with pytest.raises(settings.ConfigError, match="on tpu: servers are started on GPUs or CPUs"):
        assemble.vllm_engine(c, assemble.model_config(c), "shared", Weights({}, 0), folder)
    assert not list((tmp_path / "shared_memory").iterdir())


def test_a_probe_is_no_longer_than_a_server_has_room_for(folder, tmp_path):
    c = tiny.get_config()
    c.engine.urls, c.engine.cache_tokens, c.engine.weights_dir = ("http://a:1",), 64, str(tmp_path)
    engine = assemble.vllm_engine(c, assemble.model_config(c), "shared", Weights({}, 0), folder)
    sync = engine._fleet._transfer
    assert isinstance(sync, WeightSync) and sync._ids.shape[1] == 63
    sync.close()


@pytest.mark.slow
def test_the_learners_own_scores_are_at_temperature_one_and_in_order():
    c = tiny.get_config()
    c.rollout.temperature = 0.5
    model = assemble.model_config(c)
    params = assemble.weights(c, model)
    ids = np.random.default_rng(0).integers(0, model.vocab_size, (3, 40), np.int32)
    positions = np.broadcast_to(np.arange(40), ids.shape)
    hidden = qwen3.forward(params, model, ids, positions, np.ones_like(ids))
    wanted = token_logprobs(params, model, hidden[:, :-1], ids[:, 1:], temperature=1.0)
    np.testing.assert_allclose(assemble.scorer(c, model)(params, ids), wanted, atol=2e-5)


def test_a_fixed_design_that_does_not_run_is_refused_by_its_line():
    c = tiny.get_config()
    c.rollout.design = "answer = solve()(task)"
    with pytest.raises(settings.ConfigError, match=r"rollout\.design=.*line 1.*solve"):
        assemble.check_supported(c)
    c.rollout.design = "answer = solver()(task)"
    assemble.check_supported(c)
