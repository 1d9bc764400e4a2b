import dataclasses

import jax
import numpy as np
import optax
import pytest
from learner_samples import MODEL, settings, trajectories

from metaagent_x.learner.packing import bucket_rows, pack
from metaagent_x.learner.step import Learner
from metaagent_x.model import qwen3
from metaagent_x.model.logprobs import head_logits
from metaagent_x.model.sharding import ShardingError, make_mesh

SLOW = pytest.mark.slow  # one more compilation of the update each
AGGREGATES = ("token_mean", "sequence_mean", "group_mean", "constant")


def packed(rows, learner, aggregate="token_mean", *, least=8, row_segments=None):
    return pack(
        rows, 16, aggregate=aggregate, denominator=40.0, rows_multiple=max(least, learner.rows_multiple),
        row_segments=row_segments,
    )  # fmt: skip


def gradient(state, metrics):
    """The gradient before clipping, read off the first moment after one update."""
    mu = optax.tree_utils.tree_get(state.opt_state, "mu")
    scale = max(1.0, metrics["grad_norm"] / 0.5) / 0.1
    return jax.tree.map(lambda m: np.asarray(m) * scale, mu)


def one_update(learner, params, rows, aggregate="token_mean", **packing):
    """Moves off the sampling weights, so that ratios differ from 1, and returns (metrics, gradient)."""
    batch = packed(rows, learner, aggregate, **packing)
    old = np.where(batch.mask, batch.old_logp + 0.1 * np.sin(batch.targets), 0).astype(np.float32)
    state, metrics = learner.update(learner.init(params), batch, old)
    return metrics, gradient(state, metrics)


def assert_same(a, b, rtol=1e-5):
    scale = max(float(np.abs(x).max()) for x in jax.tree.leaves(b[1]))
    for key in b[0]:
        if not key.startswith("time/"):
            assert a[0][key] == pytest.approx(b[0][key], rel=rtol, abs=1e-6), key
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol * scale), a[1], b[1])


def frozen(state):
    return jax.tree.map(np.asarray, state)


def assert_unchanged(state, before):
    jax.tree.map(np.testing.assert_array_equal, frozen(state), before)


@pytest.mark.fault("F056")
def test_first_ratio_is_one_and_later_ones_are_not(learner, params) -> None:
    """jingyaogong/minimind#775: if old log-probs follow the policy the ratio is 1 for ever and nothing clips."""
    rows, state = trajectories(0), learner.init(params)
    batch = packed(rows, learner)
    old = learner.logprobs(state.params, batch)
    kept = old.copy()
    state, first = learner.update(state, batch, old)
    assert first["ratio/max_dev"] < 1e-3
    assert (first["clip/high"], first["clip/low"], first["updated"]) == (0, 0, 1)
    for _ in range(3):
        state, later = learner.update(state, batch, old)
    assert later["ratio/max_dev"] > 0.2
    assert later["clip/high"] + later["clip/low"] > 0
    assert int(state.step) == 4
    np.testing.assert_array_equal(old, kept)


@pytest.mark.fault("F069")
def test_scores_are_those_of_each_row_alone(learner, params) -> None:
    """verl-project/verl#6564: packed log-probs against dense ones of every trajectory by itself, at the temperature."""
    rows = trajectories(4, 7)
    batch = packed(rows, learner)
    scores = learner.logprobs(params, batch)
    assert not scores[~batch.mask].any()
    alone = np.zeros((len(rows), 17), np.int32)  # one row each; what follows its end cannot be seen
    for row, t in zip(alone, rows, strict=True):
        row[: len(t.tokens)] = t.tokens
    places = np.broadcast_to(np.arange(17), alone.shape)
    dense = jax.jit(
        lambda x: jax.nn.log_softmax(
            head_logits(params, MODEL, qwen3.forward(params, MODEL, x, places, np.ones_like(alone)))
        )
    )(alone)
    for k, t in enumerate(rows, 1):
        n = len(t.tokens) - 1
        expected = np.asarray(dense)[k - 1, np.arange(n), t.tokens[1:]]
        at = (batch.trajectory == k) & batch.mask
        np.testing.assert_allclose(scores[at], expected[np.array(t.mask[1:])], atol=2e-6)


def test_temperature_divides_the_logits(learner, params) -> None:
    batch = packed(trajectories(0), learner)
    cool = Learner(MODEL, settings(), temperature=0.5).logprobs(params, batch)
    doubled = {**params, "norm": params["norm"] * 2}  # the head is linear in the final norm's scale
    np.testing.assert_allclose(cool, learner.logprobs(doubled, batch), atol=1e-5)
    assert np.abs(cool - learner.logprobs(params, batch)).max() > 0.1


@pytest.mark.fault("F049")
@pytest.mark.fault("F068")
@pytest.mark.fault("F067")
@pytest.mark.fault("F158")
@SLOW
@pytest.mark.parametrize("ratio", ["sequence", "token", "sequence_geometric"])
def test_any_packing_and_micro_batching_gives_one_gradient(learner, params, ratio) -> None:
    """verl-project/verl#906, huggingface/trl#5828: means of micro-batch means; an option that misses the scaling.

    The gradient is compared after accumulation and clipping, and the norm in the log before clipping. "apart" is one
    row for every trajectory; all batches have 16 rows, so that they share a compilation.
    """
    whole = learner if ratio == "token" else Learner(MODEL, settings(ratio=ratio))
    single = Learner(MODEL, settings(ratio=ratio, micro_rows=1))
    for seed, aggregate in enumerate(AGGREGATES):
        rows = trajectories(seed)
        apart = {"least": 16, "row_segments": 1}
        assert packed(rows, whole, least=16).segment_ids.max() > 1
        assert (packed(rows, whole, **apart).segment_ids.max(1) > 0).sum() == len(rows)
        expected = one_update(whole, params, rows, aggregate, **apart)
        assert expected[0]["grad_norm"] > 1e-3
        assert_same(one_update(whole, params, rows, aggregate, least=16), expected)
        assert_same(one_update(single, params, rows[::-1], aggregate, least=16), expected)


@pytest.mark.fault("F084")
@pytest.mark.fault("F162")
@pytest.mark.slow
@pytest.mark.parametrize(("ratio", "zero"), [("token", 3), ("sequence", 3), ("token", 1), ("sequence", 1)])
def test_a_mesh_of_eight_devices_gives_the_same_gradient_and_metrics(learner, params, ratio, zero) -> None:
    whole = learner if ratio == "token" else Learner(MODEL, settings(ratio=ratio))
    spread = Learner(MODEL, settings(ratio=ratio, micro_rows=1), make_mesh(4, 2), zero=zero)
    for seed, aggregate in enumerate(AGGREGATES):
        rows = trajectories(seed)
        assert_same(one_update(spread, params, rows, aggregate), one_update(whole, params, rows, aggregate))


@SLOW
def test_layers_travel_in_compute_dtype_and_their_gradients_add_up_in_float32() -> None:
    """bfloat16, several micro-batches: the same numbers as on one device but for rounding."""
    model = dataclasses.replace(MODEL, compute_dtype="bfloat16")
    weights, rows = qwen3.init(model, jax.random.key(1)), trajectories(5)
    whole = one_update(Learner(model, settings(micro_rows=2)), weights, rows, least=12)
    learner = Learner(model, settings(micro_rows=1), make_mesh(2, 1), zero=1)
    assert_same(one_update(learner, weights, rows, least=12), whole, rtol=1e-2)
    batch = packed(rows, learner, least=12)
    text = learner.lower(batch)["update"].as_text()
    layer = "x".join(map(str, weights["layers"]["gate"].shape))
    enters = text.split("manual_axes", 1)[1].split(") {", 1)[0]
    assert f"tensor<{layer}xbf16>" in enters and f"tensor<{layer}xf32>" not in enters
    grads = learner.gradients(weights, batch, batch.old_logp)
    assert {x.dtype.name for x in jax.tree.leaves(grads)} == {"float32"}


def test_a_stage_of_zero_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="zero is 2; the learner knows stages 1 and 3"):
        Learner(MODEL, settings(), zero=2)


def test_one_device_of_rows_has_nothing_to_exchange() -> None:
    assert not Learner(MODEL, settings(), make_mesh(1, 2), zero=1).apart
    assert not Learner(MODEL, settings(), zero=1).apart
    assert Learner(MODEL, settings(), make_mesh(2, 2), zero=1).apart


TOY = dataclasses.replace(MODEL, vocab_size=250)


@SLOW
@pytest.mark.fault("F096")
@pytest.mark.parametrize("zero", [3, 1])
@pytest.mark.parametrize(("fsdp", "tensor", "vocab"), [(8, 1, 250), (4, 2, 250), (2, 4, 252)])
def test_every_layout_makes_the_same_update(fsdp, tensor, vocab, zero) -> None:
    """NVIDIA/Megatron-LM#7452: a loss off by log(devices), gradients scaled on one layout."""
    model = dataclasses.replace(MODEL, vocab_size=vocab)
    weights = qwen3.init(model, jax.random.key(1))
    results = []
    for mesh, rows in ((None, 8), (make_mesh(fsdp, tensor), 8 // fsdp)):
        learner = Learner(model, settings(micro_rows=rows), mesh, zero=zero)
        batch = packed(trajectories(5), learner)
        old = np.where(batch.mask, batch.old_logp + 0.1 * np.sin(batch.targets), 0).astype(np.float32)
        state, metrics = learner.update(learner.init(weights), batch, old)
        results.append((metrics, gradient(state, metrics), jax.tree.map(np.asarray, state.params)))
    (metrics, grads, params), (one, one_grads, one_params) = results[1], results[0]
    assert one["loss"] != 0 and one["grad_norm"] > 1e-3
    assert_same((metrics, grads), (one, one_grads))
    # Adam's first step is the sign of a gradient, rate 0.01: only those of rounding size may turn.
    turned = [np.abs(a - b) > 1e-5 for a, b in zip(*map(jax.tree.leaves, (params, one_params)), strict=True)]
    tiny = [np.abs(g) < 1e-6 for g in jax.tree.leaves(one_grads)]
    assert not any((t & ~g).any() for t, g in zip(turned, tiny, strict=True))


@pytest.mark.fault("F096")
@pytest.mark.parametrize(
    ("fsdp", "tensor", "words"), [(2, 4, "embed: axis 'vocab' has size 250"), (1, 8, "'heads' has size 4")]
)
def test_a_layout_that_cannot_share_equally_is_refused(fsdp, tensor, words) -> None:
    with pytest.raises(ShardingError, match=words):
        Learner(dataclasses.replace(TOY, vocab_size=256) if tensor == 8 else TOY, settings(), make_mesh(fsdp, tensor))


def test_inactive_rows_kept_at_zero_weight_equal_rows_dropped(learner, params) -> None:
    rows = trajectories(2)
    batch = packed(rows, learner)
    inactive = batch.roles == 1
    zeroed = batch._replace(
        weights=np.where(inactive, np.float32(0), batch.weights), advantages=np.where(inactive, 9, batch.advantages)
    )
    dropped = packed([t for t in rows if t.role == "executor"], learner)
    runs = []
    for one in (zeroed, dropped):
        state, metrics = learner.update(learner.init(params), one, one.old_logp)
        runs.append((metrics["loss"], gradient(state, metrics)))
    assert runs[0][0] == pytest.approx(runs[1][0], rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6), runs[0][1], runs[1][1])


@pytest.mark.fault("F081")
@pytest.mark.parametrize("spoil", ["advantages", "weights", "mask"])
def test_a_batch_without_signal_changes_nothing(learner, params, spoil) -> None:
    """NVIDIA-NeMo/RL#158. Not a bit of weights, moments or counter, even when the moments are warm."""
    batch = packed(trajectories(1), learner)
    state, _ = learner.update(learner.init(params), batch, batch.old_logp)
    before = frozen(state)
    empty = batch._replace(**{spoil: np.zeros_like(getattr(batch, spoil))})
    state, metrics = learner.update(state, empty, batch.old_logp)
    assert (metrics["updated"], metrics["nonfinite"], metrics["loss"]) == (0, 0, 0)
    assert all(np.isfinite(v) for v in metrics.values())
    assert_unchanged(state, before)


@pytest.mark.fault("F065")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_nonfinite_loss_is_skipped_and_does_not_advance_the_count(learner, params, bad) -> None:
    batch = packed(trajectories(1), learner)
    state, _ = learner.update(learner.init(params), batch, batch.old_logp)
    before = frozen(state)
    broken = batch.advantages.copy()
    broken[tuple(np.argwhere(batch.mask)[3])] = bad
    state, metrics = learner.update(state, batch._replace(advantages=broken), batch.old_logp)
    assert (metrics["updated"], metrics["nonfinite"]) == (0, 1)
    assert_unchanged(state, before)
    assert int(state.step) == 1


def test_correction_and_mismatch_compare_learner_with_engine(learner, params) -> None:
    batch = packed(trajectories(3), learner)
    gaps = {0.0: 1.0, 0.3: np.exp(0.3), -0.3: np.exp(-0.3), 1.5: 2.0}
    losses = {}
    for gap, weight in gaps.items():
        logp = learner.logprobs(params, batch)
        engine = batch._replace(old_logp=logp - np.float32(gap) * batch.mask)
        _, metrics = learner.update(learner.init(params), engine, logp)
        assert metrics["correction/mean"] == pytest.approx(weight, rel=1e-5)
        assert metrics["mismatch/mean"] == pytest.approx(abs(gap), abs=1e-5)
        assert metrics["mismatch/max"] == pytest.approx(abs(gap), abs=1e-5)
        losses[gap] = metrics["loss"] / weight
    assert list(losses.values()) == pytest.approx([losses[0.0]] * 4, rel=1e-4)


@pytest.mark.fault("F061")
def test_placed_weights_lie_as_a_state_does_and_are_not_moved_again(params) -> None:
    spread = Learner(MODEL, settings(micro_rows=1), make_mesh(4, 2))
    placed = spread.place(params)
    state = spread.init(params)
    places = [[x.sharding for x in jax.tree.leaves(tree)] for tree in (placed, state.params)]
    assert places[0] == places[1] and len({str(p) for p in places[0]}) > 1

    def pointers(tree):
        return [s.data.unsafe_buffer_pointer() for x in jax.tree.leaves(tree) for s in x.addressable_shards]

    assert pointers(spread.place(placed)) == pointers(placed)


def test_a_reference_exists_exactly_when_kl_is_on(learner, params) -> None:
    """OpenRLHF/OpenRLHF#773: a coefficient of zero must need no reference, and the reference must not be ignored."""
    batch = packed(trajectories(0), learner)
    with_kl = Learner(MODEL, settings(kl=0.5))
    logp = learner.logprobs(params, batch)
    with pytest.raises(ValueError, match=r"learner.kl=0.0 and ref_logp is given"):
        learner.update(learner.init(params), batch, logp, ref_logp=logp)
    with pytest.raises(ValueError, match=r"learner.kl=0.5 and ref_logp is missing"):
        with_kl.update(with_kl.init(params), batch, logp)
    _, plain = learner.update(learner.init(params), batch, logp)
    _, at_reference = with_kl.update(with_kl.init(params), batch, logp, ref_logp=logp)
    assert at_reference["kl"] == pytest.approx(0, abs=1e-6)
    assert at_reference["loss"] == pytest.approx(plain["loss"], abs=1e-6)
    _, away = with_kl.update(with_kl.init(params), batch, logp, ref_logp=logp + np.float32(0.7))
    expected = 2 * (np.exp(0.7) - 1 - 0.7)  # the token weights of each of two roles sum to 1
    assert away["kl"] == pytest.approx(expected, rel=1e-4)
    assert away["loss"] == pytest.approx(plain["loss"] + 0.5 * expected, rel=1e-4)
    flat = batch._replace(advantages=np.zeros_like(batch.advantages))
    _, pull = with_kl.update(with_kl.init(params), flat, logp, ref_logp=logp + np.float32(0.7))
    assert pull["updated"] == 1


def test_supervised_updates_learn_the_rows(learner, params) -> None:
    shared, learner = learner, Learner(MODEL, settings(learning_rate=3e-2))
    batch = packed(trajectories(0), learner)
    logp = shared.logprobs(params, batch)
    state, first = learner.supervised_update(learner.init(params), batch)
    assert first["loss"] == pytest.approx(-(batch.weights * logp).sum(), rel=1e-5)
    assert first["loss/designer"] + first["loss/executor"] == pytest.approx(first["loss"], rel=1e-5)
    for _ in range(30):
        state, last = learner.supervised_update(state, batch)
    assert last["loss"] < 0.7 * first["loss"]
    before = frozen(state)
    state, nothing = learner.supervised_update(state, batch._replace(weights=batch.weights * 0))
    assert nothing["updated"] == 0
    assert_unchanged(state, before)


@pytest.mark.fault("F174")
def test_shapes_stay_few_over_many_batches(params, monkeypatch) -> None:
    """Each new shape is a compilation: row buckets times four widths at most, and the number is in the log."""
    learner = Learner(MODEL, settings(micro_rows=2))
    monkeypatch.setattr(learner, "_score", lambda params, data, used: np.zeros(data["targets"].shape))
    buckets = set()
    for seed in range(20):
        rows = trajectories(seed, 1 + seed % 13, longest=4 + seed % 12)
        batch = pack(rows, 16, rows_multiple=learner.rows_multiple)
        buckets.add(bucket_rows(batch.tokens.shape[0], 2))
        learner.logprobs(params, batch)
    assert len(learner.shapes) <= 4 * len(buckets)
    assert len(buckets) <= 3


def test_filler_rows_are_not_computed(learner, params) -> None:
    """The number of micro-batches is an argument: weights in a micro-batch of empty rows are never read."""
    batch = packed(trajectories(0, 2), learner)
    assert batch.tokens.shape[0] == 2 * learner.rows_multiple
    spoilt = batch.weights.copy()
    spoilt[learner.rows_multiple :] = np.nan
    mask = batch.mask.copy()
    mask[learner.rows_multiple :] = True
    _, clean = learner.update(learner.init(params), batch, batch.old_logp)
    _, metrics = learner.update(learner.init(params), batch._replace(weights=spoilt, mask=mask), batch.old_logp)
    assert metrics["updated"] == 1
    assert metrics["loss"] == clean["loss"]


def test_bad_batches_are_named(learner, params) -> None:
    batch = pack(trajectories(0), 16, rows_multiple=1)
    odd = batch._replace(**{k: v[:3] for k, v in batch._asdict().items()})
    with pytest.raises(ValueError, match="3 rows, not a multiple of 4"):
        learner.logprobs(params, odd)
    whole = packed(trajectories(0), learner)
    with pytest.raises(ValueError, match=r"behaviour log-probs have shape \(2, 16\)"):
        learner.update(learner.init(params), whole, np.zeros((2, 16), np.float32))
