import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from metaagent_x.learner.objective import clipped_objective, clipped_terms, kl_penalty, summarise, token_weights

AGGREGATES = ("token_mean", "sequence_mean", "group_mean", "constant")
RATIOS = ("token", "sequence", "sequence_geometric")
PAIRS = [(1.5, 1), (1.5, -1), (0.5, 1), (0.5, -1), (5, -1), (5, 1)]  # (ratio, advantage)


def weighted(losses, mask, ids, **how) -> float:
    return float((token_weights(mask, ids, **how) * np.asarray(losses)).sum())


@st.composite
def layouts(draw):
    """mask [R, T], ids [R, T] (runs of one trajectory, some padding), group by trajectory."""
    rows, length = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    ids = np.zeros((rows, length), int)
    for r in range(rows):
        cuts = sorted(draw(st.lists(st.integers(0, length), max_size=3)))
        for k, (a, b) in enumerate(itertools.pairwise(cuts)):
            ids[r, a:b] = 1 + 10 * r + k
    mask = draw(hnp.arrays(bool, ids.shape)) & (ids > 0)
    return mask, ids, ids % 3


# ---- token weights


@pytest.mark.fault("F052")
@pytest.mark.parametrize(
    ("aggregate", "denominator", "expected"),
    [("sequence_mean", None, 2.5), ("token_mean", None, 1.75), ("constant", 3, 7 / 3), ("constant", 6, 7 / 6)],
)
def test_each_aggregate_is_the_formula_of_its_name(aggregate, denominator, expected) -> None:
    """huggingface/trl#3178: rows of 1 token (loss 4) and 3 tokens (loss 1); names and formulas used to disagree."""
    mask, ids = [[1, 0, 0], [1, 1, 1]], [[1, 0, 0], [2, 2, 2]]
    losses = [[4, 99, 99], [1, 1, 1]]
    assert weighted(losses, mask, ids, aggregate=aggregate, denominator=denominator) == pytest.approx(expected)


@pytest.mark.fault("F071")
@pytest.mark.parametrize(("aggregate", "expected"), [("sequence_mean", 2.5), ("token_mean", 1.75)])
@pytest.mark.parametrize("slots", [4, 7])
def test_weights_do_not_depend_on_packing(aggregate, expected, slots) -> None:
    """google/tunix#1662: a packed row is not one sequence, and empty slots add nothing."""
    mask, ids = np.zeros((2, slots), bool), np.zeros((2, slots), int)
    mask[0, :4], ids[0, :4] = True, [1, 2, 2, 2]
    losses = np.full((2, slots), 50.0)
    losses[0, :4] = [4, 1, 1, 1]
    assert weighted(losses, mask, ids, aggregate=aggregate) == pytest.approx(expected)


@pytest.mark.fault("F053")
@pytest.mark.parametrize("aggregate", ["token_mean", "sequence_mean", "group_mean"])
def test_masked_rows_leave_numerator_and_denominator(aggregate) -> None:
    """huggingface/trl#6369: with the 3-token row masked as truncated the loss is 4, not 1."""
    mask, ids = [[1, 0, 0], [0, 0, 0]], [[1, 0, 0], [2, 2, 2]]
    assert weighted([[4, 0, 0], [1, 1, 1]], mask, ids, group=np.array(ids), aggregate=aggregate) == pytest.approx(4.0)


@pytest.mark.fault("F062")
@pytest.mark.parametrize("pads", [0, 2, 11])
def test_padding_is_in_no_mean(pads) -> None:
    """NovaSky-AI/SkyRL#1305: mean of 2,2,pad,pad / 1,1,1,1 is 8/6, however wide the padding."""
    values = np.pad([[2.0, 2, -7, -7], [1, 1, 1, 1]], ((0, 0), (0, pads)))
    ids = np.pad([[1, 1, 0, 0], [2, 2, 2, 2]], ((0, 0), (0, pads)))
    assert weighted(values, ids > 0, ids) == pytest.approx(8 / 6)


def test_group_mean_weighs_questions_alike() -> None:
    """Question 7 has two trajectories (1 and 3 tokens), question 9 has one: eq. 2 for each, then their mean."""
    ids = np.array([[1, 2, 2, 2, 3, 3]])
    group = np.array([[7, 7, 7, 7, 9, 9]])
    losses = np.array([[4.0, 1, 1, 1, 10, 20]])
    assert weighted(losses, ids > 0, ids, group=group, aggregate="group_mean") == pytest.approx((2.5 + 15) / 2)


@given(layouts(), st.sampled_from(AGGREGATES))
@settings(max_examples=100, deadline=None)
def test_weights_are_a_mean_over_masked_tokens(layout, aggregate) -> None:
    mask, ids, group = layout
    out = token_weights(mask, ids, group, aggregate=aggregate, denominator=5.0)
    assert out.shape == mask.shape
    assert (out[~mask] == 0).all()
    assert (out[mask] > 0).all()
    if mask.any():
        assert out.sum() == pytest.approx(mask.sum() / 5 if aggregate == "constant" else 1.0)
    flipped = token_weights(mask[::-1, ::-1], ids[::-1, ::-1], group[::-1, ::-1], aggregate=aggregate, denominator=5.0)
    np.testing.assert_allclose(flipped[::-1, ::-1], out)


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"trajectory": [[1]]}, r"trajectory has \(1, 1\)"),
        ({"trajectory": [[1, 0]]}, r"True at \[0, 1\]"),
        ({"aggregate": "mean"}, "aggregate='mean'"),
        ({"aggregate": "constant"}, "got None"),
        ({"aggregate": "group_mean"}, "needs `group`"),
        ({"aggregate": "group_mean", "group": [[1, 2]]}, "trajectory 1 has tokens of two groups"),
    ],
)
def test_bad_weights_input_is_named(how, named) -> None:
    with pytest.raises(ValueError, match=named):
        token_weights(**{"mask": [[True, True]], "trajectory": [[1, 1]]} | how)


# ---- clipped objective


def losses_of(pairs, **how) -> list[float]:
    ratio, advantage = (jnp.array([x], jnp.float32) for x in zip(*pairs, strict=True))
    terms, _ = clipped_terms(jnp.log(ratio), jnp.zeros_like(ratio), advantage, jnp.ones_like(ratio), **how)
    return terms[0].tolist()


@pytest.mark.fault("F058")
def test_clip_acts_on_the_right_side_of_each_sign() -> None:
    """thu-ml/tianshou#433."""
    np.testing.assert_allclose(losses_of(PAIRS), [-1.2, 1.5, -0.5, 0.8, 5.0, -1.2], rtol=1e-6)
    np.testing.assert_allclose(losses_of(PAIRS, dual_clip=3.0), [-1.2, 1.5, -0.5, 0.8, 3.0, -1.2], rtol=1e-6)
    np.testing.assert_allclose(losses_of(PAIRS, clip_low=0.6, clip_high=0.3)[:4], [-1.3, 1.5, -0.5, 0.5], rtol=1e-6)


@given(st.lists(st.tuples(st.floats(0.05, 8), st.floats(-3, 3)), min_size=6, max_size=6))
@settings(max_examples=40, deadline=None)
def test_terms_are_the_formula_of_the_paper(pairs) -> None:
    """Eq. 2 and 3 spelled with min and clip, in NumPy."""
    rho, a = (np.array(x) for x in zip(*pairs, strict=True))
    expected = -np.minimum(rho * a, np.clip(rho, 0.8, 1.2) * a)
    np.testing.assert_allclose(losses_of(pairs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.fault("F161")
@pytest.mark.parametrize(("pairs", "high", "low"), [(PAIRS[:4], 0.25, 0.25), (PAIRS[1:3], 0, 0), (PAIRS, 2 / 6, 1 / 6)])
def test_clip_fractions_count_only_where_clipping_binds(pairs, high, low) -> None:
    """huggingface/trl#3032: comparing the ratio alone counts tokens whose clip does nothing."""
    ratio, advantage = (jnp.array([x], jnp.float32) for x in zip(*pairs, strict=True))
    _, metrics = clipped_objective(jnp.log(ratio), jnp.zeros_like(ratio), advantage, jnp.ones_like(ratio))
    assert (float(metrics["clip/high"]), float(metrics["clip/low"])) == (pytest.approx(high), pytest.approx(low))
    assert float(metrics["tokens"]) == len(pairs)


@pytest.mark.fault("F158")
def test_metrics_of_parts_are_not_averaged_averages() -> None:
    """huggingface/trl#6380: 3 of 12 on one rank and 3 of 4 on another is 0.375, not 0.5."""

    def part(clipped: int, number: int):
        ratio = jnp.array([[1.5] * clipped + [1.0] * (number - clipped)])
        return clipped_terms(jnp.log(ratio), jnp.zeros_like(ratio), jnp.ones_like(ratio), jnp.ones_like(ratio))[1]

    a, b = part(3, 12), part(3, 4)
    assert float(summarise({k: a[k] + b[k] for k in a})["clip/high"]) == pytest.approx(0.375)


@pytest.mark.fault("F057")
def test_ratio_is_per_token_unless_asked() -> None:
    """walkinglabs/hands-on-modern-rl#75: products over a sequence explode with its length."""
    ones = jnp.ones((1, 3))
    logp, ids, on = jnp.array([[0.1, 0.1, 5.0]]), jnp.array([[1, 1, 0]]), jnp.array([[1.0, 1, 0]])

    def term(**how):
        return (-clipped_terms(logp, 0 * ones, ones, on, trajectory=ids, clip_high=9.0, **how)[0][0, :2]).tolist()

    assert term() == pytest.approx([1.10517, 1.10517], rel=1e-5)
    assert term(ratio="sequence") == pytest.approx([1.2214, 1.2214], rel=1e-4)
    assert term(ratio="sequence_geometric") == pytest.approx([1.10517, 1.10517], rel=1e-5)


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_sequence_ratios_are_products_over_each_trajectory(data) -> None:
    ids = np.array([[1, 1, 2, 0], [3, 3, 3, 3]])
    d = data.draw(hnp.arrays(np.float32, ids.shape, elements=st.floats(-0.5, 0.5, width=32)))
    mask = data.draw(hnp.arrays(bool, ids.shape)) & (ids > 0)
    for ratio, power in (("sequence", lambda n: 1), ("sequence_geometric", lambda n: 1 / max(n, 1))):
        terms, _ = clipped_terms(
            d, np.zeros_like(d), np.ones_like(d), mask.astype(np.float32), trajectory=ids, num_trajectories=3,
            ratio=ratio, clip_high=99.0,
        )  # fmt: skip
        for k in (1, 2, 3):
            mine = mask & (ids == k)
            rho = np.exp(d[mine].sum() * power(mine.sum()))
            np.testing.assert_allclose(-np.asarray(terms)[mine], rho, rtol=1e-5)


@pytest.mark.fault("F082")
@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("garbage", [200.0, np.nan, np.inf, -np.inf])
def test_masked_garbage_never_reaches_value_or_gradient(ratio, garbage) -> None:
    """jax-ml/jax#2630: selecting after the exponential gives gradient NaN. Differences [0, 200], mask [1, 0]."""
    clean, dirty = jnp.array([[0.0, 0.0]]), jnp.array([[0.0, garbage]])
    weights, ids = jnp.array([[1.0, 0.0]]), jnp.array([[1, 1]])

    def loss(logp, old, adv, corr):
        how = {"trajectory": ids, "num_trajectories": 1, "correction": corr, "ratio": ratio, "dual_clip": 3.0}
        return -clipped_objective(logp, old, adv, weights, **how)[0]

    for old, adv, corr in ((clean, clean + 1, clean + 1), (dirty, dirty + 1, dirty + 1)):
        value, gradient = jax.value_and_grad(loss)(dirty, old, adv, corr)
        assert float(value) == 1.0
        assert gradient.tolist() == [[1.0, 0.0]]
    gradient = jax.grad(lambda x: kl_penalty(x, dirty, weights))(dirty)
    assert gradient.tolist() == [[0.0, 0.0]]


@pytest.mark.fault("F081")
@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_batch_without_valid_tokens_is_zero_and_finite(ratio, aggregate) -> None:
    """unslothai/unsloth-zoo#1286: 0 / 0 in the mean turns every parameter into NaN."""
    ids = np.array([[1, 1, 0]])
    weights = jnp.asarray(
        token_weights(np.zeros((1, 3), bool), ids, ids, aggregate=aggregate, denominator=4.0), jnp.float32
    )

    def loss(logp):
        return clipped_objective(logp, logp * 2, logp, weights, trajectory=ids, num_trajectories=2, ratio=ratio)

    (value, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(jnp.array([[1.0, -3.0, np.nan]]))
    assert float(value) == 0.0
    assert gradient.tolist() == [[0.0, 0.0, 0.0]]
    assert all(np.isfinite(float(v)) for v in metrics.values())


@pytest.mark.fault("F079")
def test_observation_tokens_have_no_gradient() -> None:
    """PeterGriffinJin/Search-R1#21: 3 sampled, 2 observed, 2 sampled; the mean is over 5 tokens."""
    mask, ids = np.array([[1, 1, 1, 0, 0, 1, 1]], bool), np.ones((1, 7), int)
    weights = jnp.asarray(token_weights(mask, ids), jnp.float32)
    logp = jnp.linspace(-1, -0.1, 7)[None]
    gradient = jax.grad(lambda x: clipped_objective(x, logp, jnp.ones_like(x), weights)[0])(logp)
    np.testing.assert_allclose(gradient[0], [-0.2, -0.2, -0.2, 0, 0, -0.2, -0.2], rtol=1e-6)
    assert float((weights * logp).sum()) == pytest.approx(float(logp[mask].mean()))


def test_huge_ratios_stay_finite() -> None:
    """A product over thousands of tokens overflows float32; the loss and its gradient must not."""
    logp, ids = jnp.full((1, 4), 100.0), jnp.ones((1, 4), int)
    for sign in (1.0, -1.0):
        value, gradient = jax.value_and_grad(
            lambda x, a=sign: clipped_objective(
                x, jnp.zeros_like(x), jnp.full_like(x, a), jnp.ones_like(x), trajectory=ids, num_trajectories=1,
                ratio="sequence",
            )[0]
        )(logp)  # fmt: skip
        assert np.isfinite(float(value))
        assert np.isfinite(gradient).all()


def test_correction_scales_terms_and_is_not_differentiated() -> None:
    ones = jnp.ones((1, 2))

    def loss(x):
        return clipped_objective(x, x * 0, ones, ones, correction=jnp.array([[2.0, 0.5]]) + 0 * jnp.exp(x))[0]

    value, gradient = jax.value_and_grad(loss)(jnp.zeros((1, 2)))
    assert float(value) == -2.5
    assert gradient.tolist() == [[-2.0, -0.5]]


@pytest.mark.fault("F059")
@pytest.mark.parametrize(("kind", "value", "slope"), [("k1", 0.6931, 1.0), ("k2", 0.2402, 0.6931), ("k3", 0.1931, 0.5)])
def test_kl_estimates_have_the_documented_value_and_gradient(kind, value, slope) -> None:
    """THUDM/slime#1004: policy probability 0.5, reference 0.25."""
    logp, ref = jnp.log(jnp.array([[0.5, 0.9]])), jnp.log(jnp.array([[0.25, 0.1]]))
    weights = jnp.array([[1.0, 0.0]])
    out, gradient = jax.value_and_grad(lambda x: kl_penalty(x, ref, weights, kind))(logp)
    assert float(out) == pytest.approx(value, abs=1e-4)
    assert gradient[0].tolist() == pytest.approx([slope, 0.0], abs=1e-4)


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"old_logp": jnp.zeros((2, 2))}, r"old_logp has shape \(2, 2\)"),
        ({"dual_clip": 1.0}, "dual_clip=1.0"),
        ({"ratio": "sequence"}, "needs `trajectory`"),
        ({"ratio": "gspo"}, "ratio='gspo'"),
    ],
)
def test_bad_objective_input_is_named(how, named) -> None:
    z = jnp.zeros((1, 2))
    with pytest.raises(ValueError, match=named):
        clipped_objective(**{"logp": z, "old_logp": z, "advantages": z, "weights": z} | how)
    with pytest.raises(ValueError, match="num_trajectories"):
        jax.jit(lambda i: clipped_objective(z, z, z, z, trajectory=i, ratio="sequence")[0])(jnp.ones((1, 2), int))
    with pytest.raises(ValueError, match="kind='k4'"):
        kl_penalty(z, z, z, "k4")
