"""Starting from a folder of weights: what the settings become, what is refused, where the weights come from."""

import jax
import numpy as np
import pytest
from hf_samples import raw_config, tensors, write

from configs import tiny
from metaagent_x import assemble, sft
from metaagent_x import config as settings
from metaagent_x.model import hf
from metaagent_x.rollout.chat import train_bpe


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
    without = sft.fingerprint(c)
    c.model.path = str(folder)
    before = sft.fingerprint(c)
    write(folder, raw_config("qwen2", num_hidden_layers=3), tensors(raw_config("qwen2", num_hidden_layers=3)))
    assert len({without, before, sft.fingerprint(c)}) == 3


def test_the_engine_that_is_missing_is_refused_and_the_built_in_one_takes_any_model(folder):
    c = job(folder)
    assemble.check_supported(c)
    c.engine.kind = "vllm"
    settings.validate(c)
    with pytest.raises(settings.ConfigError, match=r"engine\.kind='vllm': this version has no vLLM engine"):
        assemble.check_supported(c)
