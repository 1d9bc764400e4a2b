"""Formulas of cost: hand-worked numbers, published sizes, and the compiled training step."""

import dataclasses

import jax
import pytest

from configs import qwen3_4b, qwen3_8b
from metaagent_x import config, dry_run
from metaagent_x.learner.step import Learner
from metaagent_x.model import cost, program
from metaagent_x.model.parameters import Qwen3Config, abstract_params
from metaagent_x.model.sharding import make_mesh

# 2 layers; attention matrices 8 x (2 x 4 x 2 + 2 x 2 x 2) = 192, feed-forward 3 x 8 x 16 = 384, head 10 x 8 = 80.
SMALL = Qwen3Config(
    vocab_size=10, hidden_size=8, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=2, intermediate_size=16
)


def real(page) -> Qwen3Config:
    return Qwen3Config.from_settings(page.get_config().model)


def test_weights_by_hand_and_by_the_modules() -> None:
    assert cost.layer_weights(SMALL) == 576
    assert cost.weights(SMALL) == 2 * (576 + 16 + 4) + 8 + 80
    for change in ({}, {"tie_embeddings": False}, {"qk_norm": False, "qkv_bias": True}):
        one = dataclasses.replace(SMALL, **change)
        assert cost.weights(one) == sum(x.size for x in jax.tree.leaves(abstract_params(one)[0])), change


def test_published_sizes() -> None:
    assert cost.weights(real(qwen3_4b)) == 4_022_468_096
    assert cost.weights(real(qwen3_8b)) == 8_190_735_360
    assert cost.model_flops(real(qwen3_4b), 1, 16_384) / 16_384 == pytest.approx(38.6e9, rel=1e-3)
    assert cost.model_flops(real(qwen3_8b), 1, 16_384) / 16_384 == pytest.approx(59.9e9, rel=1e-3)


def test_flops_by_hand() -> None:
    """One row of 4 tokens, 3 scored, scores of all 16 pairs: per layer 2 x 4 x 576 and 2 x (2 x 4 x 2 x 16).

    Backward, attention has 5 products where forward it has 2.
    """
    assert cost.score_flops(SMALL, 1, 4, 3) == 2 * (4608 + 512) + 2 * 3 * 80
    assert cost.train_flops(SMALL, 1, 4, 3) == 2 * (3 * 4608 + 7 * 256) + 4 * 2 * 3 * 80
    block = dataclasses.replace(SMALL, remat="block")  # again: all matrices but the last (8 x 16)
    assert cost.train_flops(block, 1, 4, 3) - cost.train_flops(SMALL, 1, 4, 3) == 2 * (4608 - 2 * 4 * 128)
    full = dataclasses.replace(SMALL, remat="full")  # and both products of attention
    assert cost.train_flops(full, 1, 4, 3) - cost.train_flops(block, 1, 4, 3) == 2 * 512
    assert cost.train_flops(block, 5, 4, 3) == 5 * cost.train_flops(block, 1, 4, 3)
    assert cost.model_flops(SMALL, 1, 4) == 3 * (4 * 2 * (2 * 576 + 80) + 4 * 2 * 4 * 2 * 8)  # 8 of 16 pairs


def test_pairs_are_counted_by_tiles_of_the_kernel() -> None:
    assert [cost.attention_pairs(n, tile=2) for n in (1, 2, 3, 4, 5)] == [1, 4, 12, 12, 24]
    assert cost.attention_pairs(9, tile=4) == 6 * 3 * 3  # three equal tiles, not two full ones and a rest


def test_bytes_by_hand() -> None:
    low = dataclasses.replace(SMALL, compute_dtype="bfloat16", remat="full")
    assert cost.saved_bytes(low, 3, 5) == 3 * 5 * 2 * 8 * 2
    block = dataclasses.replace(low, remat="block")
    assert cost.saved_bytes(block, 3, 5) == 3 * 5 * 2 * (16 + 16 + 4 * 4)
    assert cost.saved_bytes(block, 1, 1024) == 1024 * 2 * (16 + 16 + 4 * 4)
    assert cost.saved_bytes(block, 1, 1024, tensor=2) == 1024 * 2 * (16 + 8 + 2 * 4)
    assert cost.saved_bytes(dataclasses.replace(low, remat="none"), 3, 5) is None
    gathered, scattered = 2 * (2 * 2 * 576 + 80), 2 * 2 * 576 + 4 * 80
    assert cost.fsdp_bytes(low, 4, backward=True) == (gathered + scattered) * 3 / 4
    assert cost.fsdp_bytes(low, 4, backward=False) == 2 * (2 * 576 + 80) * 3 / 4
    assert cost.fsdp_bytes(low, 1, backward=True) == 0
    assert cost.gathered_bytes(low) == 2 * 2 * 576 + 4 * 80
    assert cost.exchange_bytes(low, 4, backward=False) == (2 * 2 * 576 + 4 * 80) * 3 / 4
    assert cost.exchange_bytes(low, 4, backward=True) == (2 * 2 * 576 + 4 * 80 + 4 * (2 * 576 + 80)) * 3 / 4
    untied = dataclasses.replace(low, tie_embeddings=False)
    assert cost.gathered_bytes(untied) == 2 * 2 * 576 + 4 * 2 * 80
    assert cost.optimizer_bytes(low) == cost.weights(low) * 28
    assert cost.engine_bytes(low, 3, 7) == 2 * (cost.weights(low) + 2 * 2 * 2 * 2 * 3 * 7)


def test_every_device_of_a_ring_sends_its_share() -> None:
    assert cost.wire_bytes("all-gather", 800, 8) == cost.wire_bytes("reduce-scatter", 800, 8) == 700
    assert cost.wire_bytes("all-reduce", 800, 8) == 1400
    assert cost.wire_bytes("all-reduce", 800, 1) == 0
    assert cost.wire_bytes("collective-permute", 800, 8) == 800
    with pytest.raises(ValueError, match="'gossip' is not one of"):
        cost.wire_bytes("gossip", 1, 2)


STEP = Qwen3Config(
    vocab_size=4096, hidden_size=64, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=16, intermediate_size=128
)
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("remat", "length", "tensor", "zero"),
    [
        pytest.param("block", 1024, 1, 3, marks=SLOW),
        pytest.param("none", 128, 1, 3, marks=SLOW),
        pytest.param("block", 128, 1, 3, marks=SLOW),
        pytest.param("full", 128, 1, 3, marks=SLOW),
        pytest.param("none", 1024, 1, 3, marks=SLOW),
        pytest.param("full", 1024, 1, 3, marks=SLOW),
        pytest.param("block", 1024, 2, 3, marks=SLOW),
        pytest.param("block", 1024, 1, 1, marks=SLOW),
        pytest.param("none", 1024, 2, 1, marks=SLOW),
    ],
)
def test_formulas_equal_the_compiled_step(remat, length, tensor, zero) -> None:
    """The program of a run, its loops counted as often as they run, product by product and matrix by matrix."""
    model, fsdp = dataclasses.replace(STEP, remat=remat), 8 // tensor
    settings = config.base().learner
    settings.update({"row_tokens": length, "micro_rows": 2})
    learner = Learner(model, settings, make_mesh(fsdp, tensor), zero=zero)
    lowered = learner.lower(dry_run.full_batch(4 * fsdp, length, learner.rows_multiple))
    for key, formula in (("score", cost.score_flops), ("update", cost.train_flops)):
        done = lowered[key].compile(compiler_options=dry_run.COMPILER)
        found = program.operations(done.as_text(), outer_trips=2)
        counted = sum(o.times * o.amount for o in found if o.kind == "dot")
        assert counted == 2 * formula(model, 2, length, length) / tensor, key
        if zero == 1:  # to the byte but for a few sums, and the same for any number of micro-batches
            between = [o for o in found if o.kind != "dot" and o.group == fsdp]
            sent = sum(o.times * cost.wire_bytes(o.kind, o.amount, o.group) for o in between)
            assert sent == pytest.approx(cost.exchange_bytes(model, fsdp, backward=key == "update") / tensor, rel=0.004)
            continue
        if tensor > 1 or jax.__version_info__ >= (0, 12):  # which says of fewer collectives whose they are
            continue
        # A CPU compile sums over all devices where others scatter what they sum: its sums count as that. What the
        # look-up of the embedding sends depends on the rows, not on the matrices.
        moved = [o for o in found if o.kind in ("all-gather", "all-reduce") and not o.origin.endswith("/gather")]
        sent = sum(o.times * cost.wire_bytes("reduce-scatter", o.amount, o.group) for o in moved)
        assert sent == pytest.approx(2 * cost.fsdp_bytes(model, fsdp, backward=key == "update"), rel=0.03), key
