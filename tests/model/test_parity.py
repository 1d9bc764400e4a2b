"""Equal to transformers: logits and gradients in float32, casts in bfloat16, folders in both directions."""

import jax.numpy as jnp
import numpy as np
import pytest
from hf_samples import CONFIGS, PARTS, logits, loss_and_gradients, packed, raw_config, tensors, write
from torch_model import gradients, logits_of, needs_torch, published, published_norm

from metaagent_x.model import hf, numerics

pytestmark = [needs_torch, pytest.mark.slow]


@pytest.mark.fault("F006")
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_of_packed_and_padded_rows_equal_the_published_model(name, tmp_path):
    """At most 1e-4 apart and the same argmax, segment by segment (pegainfer-project/pegainfer#174)."""
    raw = CONFIGS[name]
    config, params = hf.load(write(tmp_path, raw), "float32")
    batch = packed(raw)
    ours = np.asarray(logits(params, config, batch.tokens, batch.positions, batch.segments))
    model, info = published(tmp_path)
    assert not any(info.values()), info
    for row, part in PARTS:
        theirs = logits_of(model, batch.tokens[row, part]).detach().numpy()
        assert np.ptp(theirs) > 2
        np.testing.assert_allclose(ours[row, part], theirs, atol=1e-4, rtol=0)
        np.testing.assert_array_equal(ours[row, part].argmax(-1), theirs.argmax(-1))


@pytest.mark.fault("F002")
@pytest.mark.parametrize(("theta", "nested"), [(1e6, True), (5e6, False)])
def test_far_positions_equal_the_published_model(theta, nested, tmp_path):
    """A wrong base shows only in long prompts (sgl-project/sglang#14745)."""
    raw = raw_config(theta=theta, nested=nested)
    config, params = hf.load(write(tmp_path, raw), "float32")
    tokens = np.random.default_rng(1).integers(0, 40, (1, 9))
    positions = np.array([[0, 1, 900, 4000, 8191, 16000, 24000, 32000, 40000]])
    ours = np.asarray(logits(params, config, tokens, positions, np.ones_like(tokens)))
    theirs = logits_of(published(tmp_path)[0], tokens[0], positions[0]).detach().numpy()
    np.testing.assert_allclose(ours[0], theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["one_key_head", "base_5e6", "odd_sizes", "qwen2"])
def test_gradients_equal_those_of_torch(name, tmp_path):
    raw = CONFIGS[name]
    config, params = hf.load(write(tmp_path, raw), "float32")
    batch = packed(raw)
    want, theirs = gradients(published(tmp_path)[0], batch)
    got, grads = loss_and_gradients(params, config, batch)
    assert abs(float(got) - want) < 1e-4
    ours = dict(hf.named_tensors(config, grads))
    assert ours.keys() == theirs.keys() == tensors(raw).keys()
    for key, grad in theirs.items():
        assert np.abs(grad).max() > 1e-3, key
        np.testing.assert_allclose(ours[key], grad, atol=1e-4, rtol=1e-4, err_msg=key)


@pytest.mark.fault("F006")
def test_rms_norm_casts_as_the_published_one_bit_by_bit():
    """Scaling before the cast moves a quarter of the values by one ulp (verl-project/verl-omni#637)."""
    rng = np.random.default_rng(1)
    x, scale = (jnp.asarray(rng.normal(size=s), jnp.bfloat16) for s in ((500, 64), (64,)))
    got = np.asarray(numerics.rms_norm(x, scale, 1e-6), np.float32)
    np.testing.assert_array_equal(got, published_norm(x, scale))


@pytest.mark.parametrize("name", ["wide_heads", "qwen2_untied"])
def test_bfloat16_is_as_near_to_float32_as_the_published_model(name, tmp_path):
    """Bitwise equality is not wanted: rotation and scores are rounded to bfloat16 there and stay float32 here."""
    raw = CONFIGS[name]
    given = tensors(raw, jnp.bfloat16)
    config, params = hf.load(write(tmp_path, raw, given), "bfloat16")
    tokens = np.random.default_rng(2).integers(0, raw["vocab_size"], (1, 64))
    batch = (tokens, np.arange(64)[None], np.ones_like(tokens))
    exact = logits_of(published(tmp_path)[0], tokens[0]).detach().numpy()
    theirs = logits_of(published(tmp_path, "bfloat16")[0], tokens[0]).detach().numpy()
    ours = np.asarray(logits(params, config, *batch))[0]
    errors = np.abs(ours - exact), np.abs(theirs - exact)
    assert 1e-4 < errors[0].mean() <= errors[1].mean()
    assert errors[0].max() <= 1.25 * errors[1].max()


@pytest.mark.fault("F113")
@pytest.mark.fault("F114")
@pytest.mark.parametrize("name", ["untied", "wide_heads", "qwen2"])
def test_an_exported_folder_loads_without_a_missing_or_unexpected_key(name, tmp_path):
    """ml-explore/mlx#743, meta-pytorch/torchtune#2669."""
    raw = CONFIGS[name]
    config, params = hf.load(write(tmp_path / "in", raw), "float32")
    hf.save(tmp_path / "out", config, params, "float32", shard_bytes=9000)
    model, info = published(tmp_path / "out", "auto")
    assert not any(info.values()), info
    given = tensors(raw)
    for key, tensor in model.state_dict().items():
        source = "model.embed_tokens.weight" if key == "lm_head.weight" and config.tie_embeddings else key
        np.testing.assert_array_equal(tensor.numpy(), given[source])
    assert model.config.rope_parameters["rope_theta"] == config.rope_theta


def test_a_folder_that_transformers_saved_is_read(tmp_path):
    raw = CONFIGS["wide_heads"]
    model, _ = published(write(tmp_path / "in", raw))
    model.save_pretrained(tmp_path / "out", max_shard_size="20KB")
    config, params = hf.load(tmp_path / "out", "float32")
    given = tensors(raw)
    for name, tensor in hf.named_tensors(config, params):
        np.testing.assert_array_equal(tensor, given.pop(name))
    assert not given


@pytest.mark.fault("F118")
def test_generation_defaults_are_plain_sampling_and_both_ends(tmp_path):
    """huggingface/trl#6337, huggingface/trl#7039."""
    config, params = hf.load(write(tmp_path / "in", raw_config()), "float32")
    hf.save(tmp_path / "out", config, params, "float32", stop_ids=(3, 1))
    model, _ = published(tmp_path / "out")
    defaults = model.generation_config
    assert defaults.eos_token_id == [3, 1] and defaults.pad_token_id == 1
    assert (defaults.temperature, defaults.top_p, defaults.top_k, defaults.repetition_penalty) == (1.0, 1.0, 0, 1.0)
