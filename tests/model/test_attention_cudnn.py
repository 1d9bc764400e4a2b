"""The cuDNN kernel, as far as a machine without one can tell, and on a GPU against the reference.

`Played` stands in for the two primitives: it reads flat memory by offsets and lengths as cuDNN does, and leaves rubbish
wherever cuDNN writes nothing.
"""

import contextlib
import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cudnn_equality import rows
from jax.sharding import PartitionSpec

from configs import tiny
from metaagent_x import assemble
from metaagent_x.config import ConfigError
from metaagent_x.learner.packing import pack
from metaagent_x.learner.step import Learner
from metaagent_x.model import attention, cost, qwen3, sharding
from metaagent_x.model import attention_cudnn as lib
from metaagent_x.model.parameters import Qwen3Config, abstract_params
from metaagent_x.rollout.tree import Trajectory

QUICK = {"xla_backend_optimization_level": 0}
CONFIG = Qwen3Config(
    vocab_size=64, hidden_size=64, num_layers=3, num_heads=8, num_kv_heads=2, head_dim=16, intermediate_size=64,
    compute_dtype="bfloat16", attention="cudnn",
)  # fmt: skip


table_of = jax.jit(lib.segment_table, static_argnums=1, compiler_options=QUICK)


def test_segments_are_found_where_they_lie() -> None:
    table = [[1, 1, 1, 2, 2, 0, 0, 0], [1, 2, 2, 3, 3, 3, 3, 3], [0] * 8, [1] * 8]
    lengths, starts, legal = map(np.asarray, table_of(np.array(table), 3))
    assert lengths.tolist() == [[3, 2, 0], [1, 2, 5], [0, 0, 0], [8, 0, 0]]
    assert starts[lengths > 0].tolist() == [0, 3, 0, 1, 3, 0]
    assert legal.all()
    counts, offsets = jax.jit(lib.ragged, static_argnums=2, compiler_options=QUICK)(lengths, starts, 8)
    assert np.ravel(counts).tolist() == [3, 2, 1, 2, 5, 8] + [0] * 6
    assert np.ravel(offsets).tolist() == [0, 3, 8, 9, 11, 24] + [32] * 10
    assert (counts.shape, offsets.shape) == ((4, 3), (4, 4))


@pytest.mark.parametrize(
    ("row", "legal"),
    [
        ([1, 1, 2, 3, 0], True),
        ([1, 1, 2, 3, 4], False),  # one too many
        ([1, 2, 1, 0, 0], False),  # in two pieces
        ([2, 2, 1, 1, 0], False),  # not from left to right
        ([1, 1, 3, 0, 0], False),  # a number left out
    ],
)
def test_rows_that_the_table_cannot_say_are_known(row, legal) -> None:
    assert table_of(np.array([row, [0] * 5]), 3)[2].tolist() == [legal, True]


class Played:
    """One primitive in NumPy: `bind` takes what jax would turn into the custom call."""

    def __init__(self, backward: bool) -> None:
        self.backward, self.calls = backward, 0

    def bind(self, q, k, v, bias, q_lengths, kv_lengths, q_offsets, kv_offsets, _, __, *rest, **settings):
        self.calls += 1
        np.testing.assert_array_equal(q_lengths, kv_lengths)
        d_out = rest[2] if self.backward else q
        flat = [np.asarray(x, np.float32).ravel() for x in (q, k, v, d_out)]
        made = [np.full(x.size, np.nan, np.float32) for x in ((q, k, v) if self.backward else (q,))]
        heads, kv_heads, width = q.shape[2], k.shape[2], q.shape[3]
        for n, at, kv_at in zip(*map(np.ravel, (q_lengths, q_offsets, kv_offsets)), strict=False):
            if not n:
                continue
            mine, theirs = slice(at, at + n * heads * width), slice(kv_at, kv_at + n * kv_heads * width)
            parts = [x[to].reshape(n, -1, width) for x, to in zip(flat, (mine, theirs, theirs, mine), strict=True)]
            values = one_segment(*parts, settings["scale"], self.backward)
            for whole, to, value in zip(made, (mine, theirs, theirs), values, strict=False):
                whole[to] = value.ravel()
        results = [jnp.asarray(x.reshape(y.shape), q.dtype) for x, y in zip(made, (q, k, v), strict=False)]
        if self.backward:
            np.testing.assert_array_equal(rest[0], 7)
            return results
        return [*results, jnp.full((q_lengths.size, heads, q.shape[1]), 7.0)][: 1 + settings["is_training"]]


def one_segment(q, k, v, d_out, scale, backward):
    """[n, H, d] and [n, K, d] -> [output] or the three gradients."""
    shared = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, shared, axis=1) for x in (k, v))
    scores = np.where(np.tri(len(q), dtype=bool), np.einsum("qhd,shd->hqs", q, k) * scale, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    if not backward:
        return [np.einsum("hqs,shd->qhd", weights, v)]
    d_weights = np.einsum("qhd,shd->hqs", d_out, v)
    d_scores = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True)) * scale
    dk, dv = np.einsum("hqs,qhd->shd", d_scores, q), np.einsum("hqs,qhd->shd", weights, d_out)
    dk, dv = (x.reshape(len(q), -1, shared, q.shape[2]).sum(axis=2) for x in (dk, dv))
    return [np.einsum("hqs,shd->qhd", d_scores, k), dk, dv]


@pytest.fixture
def played(monkeypatch):
    pair = Played(False), Played(True)
    for one, name in zip(pair, ("fwd", "bwd"), strict=True):
        monkeypatch.setattr(lib.fused, f"_dot_product_attention_{name}_p", one)
    return pair


@pytest.mark.slow
def test_outputs_and_gradients_equal_the_reference(played) -> None:
    """jax-ml/jax#39521: with the stride of queries, the offsets of shared keys point past their segment."""
    segments, positions = rows(24, [[10, 9], [24], [3, 1, 20], []])
    real = (segments > 0)[..., None, None]
    rng = np.random.default_rng(0)
    arrays = [jnp.asarray(rng.normal(size=(4, 24, h, 8)), jnp.float16) for h in (4, 2, 2)]
    weights = rng.normal(size=arrays[0].shape)

    def total(kernel):
        def run(*arrays):
            out = attention.attention(*arrays, segments, positions, kernel=kernel)
            # Padding of the result is used, and its gradient is not 0: the kernel must cut it off itself.
            return jnp.sum(out.astype(jnp.float32) * (weights if kernel == "cudnn" else weights * real)), out

        return jax.value_and_grad(run, (0, 1, 2), has_aux=True)(*arrays)

    (_, got), got_grads = total("cudnn")
    (_, want), want_grads = jax.jit(total, static_argnums=0, compiler_options=QUICK)("xla")
    assert (played[0].calls, played[1].calls) == (1, 1)
    for a, b in zip((got, *got_grads), (want, *want_grads), strict=True):
        assert a.dtype == jnp.float16
        np.testing.assert_allclose(np.asarray(a), np.where(real, b, 0), atol=6e-3)
        assert not np.asarray(a)[~real[..., 0, 0]].any()


@pytest.mark.slow
def test_a_row_with_more_segments_than_there_may_be_is_not_a_number(played) -> None:
    segments, positions = rows(40, [[1] * 33, [1] * 32])
    x = jnp.ones((2, 40, 2, 8), jnp.float16)
    out = np.asarray(attention.attention(x, x, x, segments, positions, kernel="cudnn"))
    assert np.isnan(out[0, :33]).all()
    np.testing.assert_allclose(out[1, :32], 1)
    assert not out[0, 33:].any() and not out[1, 32:].any()


def lowered(config: Qwen3Config, mesh, rows: int = 8, length: int = 256, apart: bool = False) -> list[str]:
    """The custom calls of the gradient of a loss, in a program for CUDA; `apart`: every device for its own rows."""
    params, place = abstract_params(config)[0], None
    if mesh is not None:
        placed, place = sharding.param_shardings(config, mesh), sharding.batch_sharding(mesh)
        params = jax.tree.map(lambda x, p: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=p), params, placed)
    ints = jax.ShapeDtypeStruct((rows, length), jnp.int32, sharding=place)

    def loss(params, tokens):
        return qwen3.forward(params, config, tokens, tokens, tokens).astype(jnp.float32).sum()

    with jax.set_mesh(mesh) if mesh is not None else contextlib.nullcontext():
        gradient = jax.grad(loss)
        if apart:
            gradient = sharding.own_rows(gradient, mesh, (PartitionSpec(), PartitionSpec("fsdp")), PartitionSpec())
        text = jax.jit(gradient).trace(params, ints).lower(lowering_platforms=("cuda",)).as_text()
    return [line for line in text.splitlines() if "__cudnn$" in line]


def types(call: str) -> tuple[list[str], list[str]]:
    operands, results = call[call.rindex(": (") :].split("->")
    return re.findall(r"tensor<([^>]*)>", operands), re.findall(r"tensor<([^>]*)>", results)


@pytest.mark.parametrize(("remat", "forwards"), [("block", 1), pytest.param("full", 2, marks=pytest.mark.slow)])
def test_the_forward_kernel_runs_again_only_where_nothing_is_kept(remat, forwards) -> None:
    calls = lowered(dataclasses.replace(CONFIG, remat=remat), None)
    names = [re.findall(r"@__cudnn\$(\w+)", call)[0] for call in calls]
    assert names == ["fmhaSoftmax"] * forwards + ["fmhaSoftmaxBackward"]
    for part in ("PADDING_CAUSAL", r"max_seg_per_batch\22: 32", r"fmha_scale\22: 0.25"):
        assert all(part in call for call in calls)
    m = lib.MAX_SEGMENTS
    q, kv, stats, table = "8x256x8x16xbf16", "8x256x2x16xbf16", f"{8 * m}x8x256xf32", [f"8x{m}xi32"] * 2
    table += [f"8x{m + 1}xi32"] * 2
    assert types(calls[0]) == ([q, kv, kv, *table], ["8x8x256x16xbf16", stats, "0xui8"])
    assert types(calls[-1]) == ([q, kv, kv, stats, q, q, *table],
                                ["8x8x256x16xbf16", *["8x2x256x16xbf16"] * 2, "0xui8"])  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "q", "kv"),
    [
        ((8, 1), "1x256x8x16xbf16", "1x256x2x16xbf16"),
        ((4, 2), "2x256x4x16xbf16", "2x256x1x16xbf16"),
        ((2, 4), "4x256x2x16xbf16", "4x256x1x16xbf16"),  # two key heads on four devices
    ],
)
@pytest.mark.parametrize("apart", [False, True])
def test_every_device_runs_its_own_rows_and_heads(mesh, q, kv, apart) -> None:
    calls = lowered(dataclasses.replace(CONFIG, remat="block"), sharding.make_mesh(*mesh), apart=apart)
    assert [types(call)[0][:3] for call in calls] == [[q, kv, kv]] * 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"compute_dtype": "float32"}, "16-bit floats, not in float32; set model.attention='xla'"),
        ({"head_dim": 20}, "head_dim that is a multiple of 8 and at most 256, not 20"),
        ({"head_dim": 264}, "at most 256, not 264"),
    ],
)
def test_networks_that_it_has_no_form_for_are_refused_by_name(change, words) -> None:
    with pytest.raises(ValueError, match=f"model.attention is 'cudnn', which .*{words}"):
        dataclasses.replace(CONFIG, **change)


def test_arrays_that_it_has_no_form_for_are_refused() -> None:
    segments, positions = rows(8, [[8]])
    x = jnp.ones((1, 8, 2, 8))
    with pytest.raises(ValueError, match="kernel 'cudnn' computes in 16-bit floats, not in float32; use 'xla'"):
        attention.attention(x, x, x, segments, positions, kernel="cudnn")
    low = x.astype(jnp.bfloat16)
    with pytest.raises(ValueError, match="one dtype, not q bfloat16, k bfloat16, v float32"):
        attention.attention(low, low, x, segments, positions, kernel="cudnn")
    large = jax.ShapeDtypeStruct((32, 16_384, 32, 128), jnp.bfloat16)
    ids = jax.ShapeDtypeStruct(large.shape[:2], jnp.int32)
    with pytest.raises(ValueError, match=r"counts in int32.*\(32, 16384, 32, 128\).*lower learner.micro_rows"):
        jax.eval_shape(lambda x, i: attention.attention(x, x, x, i, i, kernel="cudnn"), large, ids)


def test_a_machine_without_the_gpu_is_bad_input() -> None:
    c = tiny.get_config()
    c.model.attention, c.model.compute_dtype = "cudnn", "bfloat16"
    with pytest.raises(ConfigError, match=r"model.attention='cudnn' needs an NVIDIA GPU; .* on cpu; .*='xla' runs any"):
        assemble.check_supported(c)
    c.model.attention = "xla"
    assemble.check_supported(c)


def test_the_learner_asks_for_rows_that_the_kernel_can_take() -> None:
    group = tiny.get_config().learner
    learner = Learner(CONFIG, group)
    many = [Trajectory((1, 2), (False, True), (0.0, 0.0), advantage=1.0)] * 40
    with pytest.raises(ValueError, match=r"row of the batch holds 40 trajectories .* pack it with row_segments=32"):
        learner.logprobs({}, pack(many, 192, rows_multiple=learner.rows_multiple))
    assert pack(many, 192, row_segments=learner.row_segments).segment_ids.max() == 32
    assert Learner(dataclasses.replace(CONFIG, attention="xla"), group).row_segments is None


def test_what_is_kept_has_the_names_that_remat_knows() -> None:
    assert lib.NAMES == attention.SAVED_NAMES
    block = dataclasses.replace(CONFIG, remat="block")
    kept = 256 * 3 * (64 * 2 + 8 * (16 * 2 + 4 * lib.MAX_SEGMENTS))
    assert cost.saved_bytes(block, 1, 256) == kept
    assert cost.saved_bytes(dataclasses.replace(block, remat="full"), 1, 256) == 256 * 3 * 64 * 2


@pytest.mark.slow
def test_the_real_kernel_equals_the_reference() -> None:
    if not Path("/dev/nvidia0").exists():
        pytest.skip("no NVIDIA GPU here (no /dev/nvidia0): the kernel itself was not run")
    root = Path(__file__).parents[2]
    env = {**os.environ, "JAX_PLATFORMS": "", "XLA_FLAGS": "", "PYTHONPATH": str(root)}
    command = [sys.executable, str(Path(__file__).with_name("cudnn_equality.py"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=env, cwd=root)
    if done.returncode == 3:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
