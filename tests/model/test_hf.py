"""Hugging Face folders: what is read, what is refused, what is written, and how much memory it takes."""

import dataclasses
import json
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_samples import CONFIGS, raw_config, tensors, write
from qwen3_reference import random_params
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from metaagent_x.model import hf, hf_config, logprobs, numerics, parameters, sharding
from metaagent_x.model.parameters import Qwen3Config

HEAD, EMBED = "lm_head.weight", "model.embed_tokens.weight"


def stored(folder):
    """Name -> array of every tensor of a folder, and the file that it is in."""
    out, where = {}, {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            assert name not in out, f"{name} is in two files"
            out[name], where[name] = tensor, file.name
    return out, where


def assert_same(given, found):
    assert given.keys() == found.keys()
    for name, tensor in given.items():
        assert found[name].dtype == tensor.dtype, name
        np.testing.assert_array_equal(found[name], tensor, err_msg=name)


SLOW = pytest.mark.slow


# --- reading ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "fsdp", "tensor"),
    [
        ("untied", 0, 0),
        ("odd_sizes", 2, 2),
        pytest.param("untied", 2, 2, marks=SLOW),
        pytest.param("odd_sizes", 0, 0, marks=SLOW),
        pytest.param("qwen2", 0, 0, marks=SLOW),
        pytest.param("qwen2", 2, 2, marks=SLOW),
    ],
)
def test_what_is_read_and_written_again_is_the_same_to_the_bit(name, fsdp, tensor, tmp_path):
    raw = CONFIGS[name] | ({"num_attention_heads": 6, "num_key_value_heads": 2} if name == "odd_sizes" else {})
    given = tensors(raw)
    mesh = sharding.make_mesh(fsdp, tensor) if fsdp else None
    config, params = hf.load(write(tmp_path / "in", raw, given, files=3), "float32", mesh)
    if mesh is not None:
        placed = sharding.param_shardings(config, mesh)
        assert jax.tree.map(lambda x: x.sharding, params) == placed
    hf.save(tmp_path / "out", config, params, "float32")
    assert_same(given, stored(tmp_path / "out")[0])
    assert hf.read_config(tmp_path / "out") == config == hf.read_config(tmp_path / "in")


@pytest.mark.fault("F036")
def test_every_number_lands_where_its_meaning_is(tmp_path):
    """All sizes equal, so that a wrong transpose or a swapped name keeps every shape (google/tunix#1227)."""
    raw = raw_config(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_attention_heads=4, num_key_value_heads=4, head_dim=4,
        num_hidden_layers=3,
    )  # fmt: skip
    given = tensors(raw)
    _, params = hf.load(write(tmp_path, raw, given), "float32")
    layer, i = {name: np.asarray(x[1]) for name, x in params["layers"].items()}, "model.layers.1."
    x = np.random.default_rng(0).normal(size=16).astype("float32")
    for ours, theirs in (("q", "self_attn.q_proj"), ("k", "self_attn.k_proj"), ("v", "self_attn.v_proj")):
        heads = (given[f"{i}{theirs}.weight"] @ x).reshape(4, 4)  # head by head, as the published code views it
        np.testing.assert_allclose(np.einsum("d,dhk->hk", x, layer[ours]), heads, atol=1e-5)
    for ours, theirs in (("gate", "mlp.gate_proj"), ("up", "mlp.up_proj"), ("down", "mlp.down_proj")):
        np.testing.assert_allclose(x @ layer[ours], given[f"{i}{theirs}.weight"] @ x, atol=1e-5)
    mixed = np.einsum("hk,hkd->d", x.reshape(4, 4), layer["o"])
    np.testing.assert_allclose(mixed, given[f"{i}self_attn.o_proj.weight"] @ x, atol=1e-5)
    for ours, theirs in (("attn_norm", "input_layernorm"), ("mlp_norm", "post_attention_layernorm"),
                         ("q_norm", "self_attn.q_norm"), ("k_norm", "self_attn.k_norm")):  # fmt: skip
        np.testing.assert_array_equal(layer[ours], given[f"{i}{theirs}.weight"])


@pytest.mark.fault("F002")
@pytest.mark.parametrize("where", ["top", "nested", "both"])
def test_the_rope_base_is_read_from_either_place(where, tmp_path):
    """A base of 10000 by default degrades long prompts only (sgl-project/sglang#14745, #22739)."""
    raw = raw_config(theta=1e6, nested=where != "top", head_dim=4)
    raw |= {"rope_theta": 1000000} if where == "both" else {}
    config, _ = hf.load(write(tmp_path, raw), "float32")
    assert config.rope_theta == 1e6
    unit = jnp.array([[[1.0, 1.0, 0.0, 0.0]]])  # cosines of the two angles
    turned = numerics.rope(unit, numerics.rotations(jnp.array([1]), config.head_dim, config.rope_theta))[0, 0]
    np.testing.assert_allclose(np.arctan2(turned[2:], turned[:2]), [1.0, 0.001], rtol=1e-5)


@pytest.mark.fault("F003")
@pytest.mark.parametrize("width", [32, None, "absent"])
def test_the_width_of_a_head_is_its_own_number(width, tmp_path):
    """Derived from the hidden size only where it is not given (NVIDIA/TensorRT-LLM#5912, pytorch/torchtitan#3570)."""
    raw = raw_config(hidden_size=64, head_dim=width)
    if width == "absent":
        del raw["head_dim"]
    config, params = hf.load(write(tmp_path, raw, tensors(raw | {"head_dim": 32 if width == 32 else None})), "float32")
    d = 32 if width == 32 else 16
    layers = params["layers"]
    assert config.head_dim == d and layers["q"].shape == (2, 64, 4, d) and layers["o"].shape == (2, 4, d, 64)
    assert layers["k"].shape == layers["v"].shape == (2, 64, 2, d)


@pytest.mark.fault("F004")
def test_the_flag_decides_which_matrix_is_the_head(tmp_path):
    """huggingface/candle#2930, sgl-project/sglang#18024."""
    hidden = jax.random.normal(jax.random.key(0), (5, 32))
    embed = tensors(raw_config())[EMBED]
    for tied, sign in ((True, 1), (False, -1)):
        raw = raw_config(tie_word_embeddings=tied)
        given = tensors(raw) | ({} if tied else {HEAD: -embed})
        config, params = hf.load(write(tmp_path / str(tied), raw, given), "float32")
        logits = logprobs.head_logits(params, config, hidden)
        np.testing.assert_allclose(logits, sign * (hidden @ embed.T), atol=1e-5)


@pytest.mark.fault("F114")
def test_a_tied_folder_may_store_its_head_if_it_is_the_embedding(tmp_path):
    """meta-pytorch/torchtune#2669, ISEEKYAN/mbridge#21."""
    raw = raw_config()
    given = tensors(raw)
    config, params = hf.load(write(tmp_path / "in", raw, given | {HEAD: given[EMBED].copy()}), "float32")
    assert "head" not in params
    hf.save(tmp_path / "out", config, params, "float32")
    assert_same(given, stored(tmp_path / "out")[0])
    other = given[EMBED].copy()
    other[-1, -1] += 1
    with pytest.raises(hf.WeightsError, match=r"tie_word_embeddings, but lm_head.weight differs from .* rows 0 to 39"):
        hf.load(write(tmp_path / "bad", raw, given | {HEAD: other}), "float32")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, r"model_type is 'llama'; only qwen3, qwen2"),
        ({"model_type": "qwen3_moe"}, "model_type is 'qwen3_moe'"),
        ({"architectures": ["Qwen3ForSequenceClassification"]}, "Qwen3ForSequenceClassification"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; this network has 'silu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"use_sliding_window": True}, "use_sliding_window is True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "'sliding_attention'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config is .*fp8"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling has rope_type 'yarn'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e6}}, "rope_parameters has rope_type 'llama3'"),
        ({"rope_theta": 1e4}, r"rope_theta is 10000\.0, rope_parameters\.rope_theta is 1000000\.0"),
        ({"num_key_value_heads": 3}, "not a multiple of model.num_kv_heads 3"),
        ({"num_hidden_layers": "2"}, "num_layers is '2'"),
        ({"vocab_size": None}, "does not give vocab_size"),
        ({"head_dim": None, "num_attention_heads": 6, "num_key_value_heads": 6}, "hidden_size 32 is not a multiple"),
        ({"tie_word_embeddings": False}, "no tensor lm_head.weight"),
        ({"num_hidden_layers": 3}, r"no tensor model\.layers\.2\.input_layernorm\.weight \(11 are missing\)"),
        ({"num_hidden_layers": 1}, r"a tensor model\.layers\.1\.\S+, .* \(11 such"),
        ({"intermediate_size": 49}, r"gate_proj.weight of model.safetensors has shape \[48, 32\]; .* \[49, 32\]"),
        ({"head_dim": 8}, r"q_proj.weight .* has shape \[64, 32\]; by config.json it is \[32, 32\]"),
    ],
)  # fmt: skip
def test_what_this_network_is_not_is_refused_by_name(change, message, tmp_path):
    given = tensors(raw_config())
    with pytest.raises(hf.WeightsError, match=message):
        hf.load(write(tmp_path, raw_config() | change, given), "float32")


@pytest.mark.fault("F002")
@pytest.mark.parametrize("rope", [{}, {"rope_parameters": {"rope_type": "default"}}, {"rope_scaling": None}])
def test_a_rope_base_that_is_not_given_is_not_assumed(rope, tmp_path):
    raw = raw_config()
    del raw["rope_parameters"]
    with pytest.raises(hf.WeightsError, match="gives no rope_theta"):
        hf.load(write(tmp_path, raw | rope), "float32")


def test_damaged_folders_are_refused_with_the_file_that_is_wrong(tmp_path):
    raw, given = raw_config(), tensors(raw_config())
    with pytest.raises(hf.WeightsError, match=r"cannot read .*config\.json"):
        hf.load(tmp_path / "absent", "float32")
    folder = write(tmp_path / "shards", raw, given, files=3)
    second = folder / "model-00002-of-00003.safetensors"
    content = second.read_bytes()
    second.write_bytes(content[:-4])
    with pytest.raises(hf.WeightsError, match=r"cannot read .*model-00002-of-00003\.safetensors"):
        hf.load(folder, "float32")
    moved = load_file(folder / "model-00003-of-00003.safetensors")
    second.write_bytes(content)
    save_file(moved | {EMBED: given[EMBED]}, folder / "model-00003-of-00003.safetensors")
    with pytest.raises(hf.WeightsError, match=r"embed_tokens\.weight is in model-00001\S+, but it is in model-00003"):
        hf.load(folder, "float32")
    fewer = dict(list(moved.items())[1:])
    save_file(fewer, folder / "model-00003-of-00003.safetensors")
    with pytest.raises(hf.WeightsError, match=r"is in model-00003-of-00003.safetensors, but it is not"):
        hf.load(folder, "float32")
    save_file(given, folder / "model.safetensors")
    with pytest.raises(hf.WeightsError, match=r"both model\.safetensors and model\.safetensors\.index\.json"):
        hf.load(folder, "float32")
    whole = write(tmp_path / "int8", raw, given | {"model.norm.weight": np.ones(32, np.int8)})
    with pytest.raises(hf.WeightsError, match=r"model\.norm\.weight is I8"):
        hf.load(whole, "float32")
    with pytest.raises(hf.WeightsError, match="dtype is 'float16'"):
        hf.load(whole, "float16")


def test_a_bfloat16_folder_gives_float32_masters_of_the_same_values(tmp_path):
    raw = raw_config()
    given = tensors(raw, jnp.bfloat16)
    config, params = hf.load(write(tmp_path, raw, given), jnp.float32)
    assert config.compute_dtype == "float32"
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(params))
    hf.save(tmp_path / "out", config, params, jnp.bfloat16)
    assert_same(given, stored(tmp_path / "out")[0])
    low, kept = hf.load(tmp_path, jnp.bfloat16)
    assert low == dataclasses.replace(config, compute_dtype="bfloat16")
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(np.asarray(x, np.float32), y), kept, params)


LARGE = Qwen3Config(
    vocab_size=4096, hidden_size=512, num_layers=3, num_heads=8, num_kv_heads=4, head_dim=64, intermediate_size=4096
)


@SLOW
@pytest.mark.parametrize(("fsdp", "tensor"), [(0, 0), (4, 2)])
def test_the_host_holds_none_of_the_tensors_that_it_reads(fsdp, tensor, tmp_path):
    """45 MB of parameters, ten of them tensors of 4 MB. JAX's own memory stands for the devices and is not traced."""
    zeros = jax.tree.map(lambda s: np.zeros(s.shape, np.float32), parameters.abstract_params(LARGE)[0])
    hf.save(tmp_path, LARGE, zeros, "bfloat16", shard_bytes=9 << 20)
    mesh = sharding.make_mesh(fsdp, tensor) if fsdp else None
    hf.load(tmp_path, "bfloat16", mesh)  # compiles
    tracemalloc.start()
    try:
        _, params = hf.load(tmp_path, "bfloat16", mesh)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(x.nbytes for x in jax.tree.leaves(params)) > 45e6
    assert peak < 1.5e6


def test_parameters_are_not_the_files_that_they_came_from(tmp_path):
    """Mapped pages would change with the file: an export into the folder that a run started from must not reach it."""
    raw = raw_config(tie_word_embeddings=False)
    given = tensors(raw)
    _, params = hf.load(write(tmp_path, raw, given), "float32")
    with open(tmp_path / "model.safetensors", "r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        file.seek(8 + size)
        file.write(bytes(sum(tensor.nbytes for tensor in given.values())))
    np.testing.assert_array_equal(params["embed"], given[EMBED])
    np.testing.assert_array_equal(params["head"], given[HEAD])
    assert np.all(params["norm"]) and all(np.any(x) for x in jax.tree.leaves(params["layers"]))


# --- writing ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def odd():
    """A vocabulary that no power of two divides; asymmetric values everywhere."""
    config = Qwen3Config(
        vocab_size=250, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, intermediate_size=48,
        rope_theta=5e6, max_positions=1000,
    )  # fmt: skip
    return config, random_params(config)


@pytest.mark.fault("F112")
@pytest.mark.fault("F113")
def test_a_transposed_matrix_is_written_in_its_own_order(odd, tmp_path):
    """The library writes memory as it lies, whatever the strides (safetensors/safetensors#825); and readers ask for
    the format (ml-explore/mlx#743)."""
    config, params = odd
    hf.save(tmp_path, config, params, "float32")
    found, _ = stored(tmp_path)
    for i in range(2):
        np.testing.assert_array_equal(found[f"model.layers.{i}.mlp.gate_proj.weight"], params["layers"]["gate"][i].T)
    with safe_open(tmp_path / "model.safetensors", framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1, "every file is for the same readers"


@pytest.mark.fault("F115")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_tensors_and_description_agree_on_the_dtype(odd, dtype, tmp_path):
    """marin-community/levanter#610, intel/auto-round#2385."""
    config, params = odd
    hf.save(tmp_path, config, params, dtype)
    found, _ = stored(tmp_path)
    assert {tensor.dtype.name for tensor in found.values()} == {dtype}
    count = sum(x.size for x in jax.tree.leaves(params))
    assert sum(tensor.nbytes for tensor in found.values()) == count * jnp.dtype(dtype).itemsize
    raw = json.loads((tmp_path / "config.json").read_text())
    assert raw["dtype"] == raw["torch_dtype"] == dtype


@pytest.mark.fault("F116")
def test_the_vocabulary_is_exported_as_it_is_and_never_padded(odd, tmp_path):
    """A mesh that cannot share 250 rows is refused, so no padding can reach a file (AI-Hypercomputer/maxtext#2914)."""
    config, params = odd
    hf.save(tmp_path, config, params, "float32")
    assert stored(tmp_path)[0][EMBED].shape == (250, 32)
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == 250
    with pytest.raises(sharding.ShardingError, match="'vocab' has size 250, which 4 devices"):
        hf.load(tmp_path, "float32", sharding.make_mesh(1, 4))
    split = hf.load(tmp_path, "float32", sharding.make_mesh(1, 2))[1]["embed"]
    assert [part.data.shape for part in split.addressable_shards] == [(125, 32)] * 2


@pytest.mark.fault("F117")
def test_the_rope_base_is_written_in_both_dialects(odd, tmp_path):
    """vllm-project/vllm#28542, ml-explore/mlx-lm#1563."""
    hf.save(tmp_path, *odd, "float32")
    raw = json.loads((tmp_path / "config.json").read_text())
    assert raw["rope_theta"] == raw["rope_parameters"]["rope_theta"] == 5e6
    assert raw["max_position_embeddings"] == 1000 and raw["head_dim"] == 8


@pytest.mark.fault("F119")
def test_shards_hold_every_tensor_once_and_leave_none_of_an_earlier_export(odd, tmp_path):
    """QwenLM/Qwen3-VL-Embedding#89."""
    config, params = odd
    (tmp_path / "notes.txt").write_text("mine")
    sizes = {}
    for limit in (6000, 20_000, 1 << 30, 12_000):
        hf.save(tmp_path, config, params, "float32", shard_bytes=limit)
        found, where = stored(tmp_path)
        index = tmp_path / "model.safetensors.index.json"
        sizes[limit] = len(set(where.values()))
        if limit == 1 << 30:
            assert not index.exists() and set(where.values()) == {"model.safetensors"}
        else:
            record = json.loads(index.read_text())
            assert record["weight_map"] == where
            assert record["metadata"]["total_size"] == sum(tensor.nbytes for tensor in found.values())
            for file in set(where.values()):
                held = [found[name].nbytes for name in where if where[name] == file]
                assert sum(held) <= limit or len(held) == 1
        jax.tree.map(np.testing.assert_array_equal, hf.load(tmp_path, "float32")[1], params)
    assert sizes[6000] > sizes[12_000] > sizes[20_000] >= 3 > sizes[1 << 30]
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not list(tmp_path.glob(".draft*"))


def test_an_export_that_fails_leaves_the_earlier_one(odd, tmp_path, monkeypatch):
    config, params = odd
    hf.save(tmp_path, config, params, "float32")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(hf, "save_file", full)
    with pytest.raises(OSError, match="no space left"):
        hf.save(tmp_path, config, params, "bfloat16", shard_bytes=6000)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.fault("F118")
def test_side_files_go_along_and_sampling_defaults_do_not(odd, tmp_path):
    """huggingface/trl#6337: a model that does not stop, or samples with defaults that nobody chose."""
    origin = tmp_path / "origin"
    origin.mkdir()
    for name in hf_config.TOKENIZER_FILES[:3]:
        (origin / name).write_text(f"content of {name}")
    (origin / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.2}')
    (origin / "model.safetensors").write_text("other weights")
    hf.save(tmp_path / "out", *odd, "float32", tokenizer=origin, stop_ids=(151_645, 151_643))
    for name in hf_config.TOKENIZER_FILES[:3]:
        assert (tmp_path / "out" / name).read_text() == f"content of {name}"
    defaults = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert defaults["eos_token_id"] == [151_645, 151_643] and defaults["pad_token_id"] == 151_643
    assert (defaults["temperature"], defaults["top_k"], defaults["repetition_penalty"]) == (1.0, 0, 1.0)


def test_parameters_that_are_not_those_of_the_config_are_refused(odd, tmp_path):
    config, params = odd
    with pytest.raises(hf.WeightsError, match=r"parameter head has shape None; by the config it is \(250, 32\)"):
        hf.save(tmp_path, dataclasses.replace(config, tie_embeddings=False), params, "float32")
    with pytest.raises(hf.WeightsError, match=r"layers\.attn_norm has shape \(2, 32\); by the config it is \(3, 32\)"):
        hf.save(tmp_path, dataclasses.replace(config, num_layers=3), params, "float32")
    both = dataclasses.replace(config, qkv_bias=True)
    with pytest.raises(hf.WeightsError, match="qk_norm=True with qkv_bias=True"):
        hf.save(tmp_path, both, random_params(both), "float32")
    assert not list(tmp_path.iterdir())
