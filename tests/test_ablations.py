"""Every ablation changes what it says on one recorded batch, and nothing else."""

import asyncio
import copy
import dataclasses
import functools
import itertools
import math

import jax
import numpy as np
import pytest

from metaagent_x import config as settings
from metaagent_x.learner import credit
from metaagent_x.learner.improve import improve
from metaagent_x.learner.schedule import active_roles
from metaagent_x.learner.step import Learner
from metaagent_x.model import qwen3
from metaagent_x.model.qwen3 import Qwen3Config
from metaagent_x.rollout.collect import collect
from metaagent_x.rollout.scripted import ScriptedEngine
from metaagent_x.tasks.math import extract_answer
from metaagent_x.tasks.task import Rubric, Task, Verdict

MODEL = Qwen3Config(
    vocab_size=261, hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16, intermediate_size=32
)
SCRIPTS = (
    "answer = solver()(task)",
    "answer = ensemble([solver(), solver(), solver()])(task)",
    "not a design",
    "answer = solver('again')(task)",
)
BOTH = frozenset({"designer", "executor"})
SHARED = {"designer": "shared", "executor": "shared"}
SEPARATE = {"designer": "designer", "executor": "executor"}


class Grader:
    async def grade(self, rubric, text):
        ok = extract_answer(text) in rubric.gold
        return Verdict(ok, float(ok), 1.0, float(ok), "ok" if ok else "wrong_answer")


def record(m, n):
    """Two questions, rewards that differ between and within designs, one invalid design a question."""
    c = settings.base()
    c.rollout.prompts = "tiny"
    pairs = [(Task(f"t/{i}", "math", f"compute {i}+1"), Rubric(f"t/{i}", "math", gold=(str(i + 1),))) for i in range(2)]
    turn = {p[0].prompt: itertools.count() for p in pairs}

    class Mixed(ScriptedEngine):
        async def generate(self, prompt_ids, sampling, seed, *, request=None):
            self.seed = seed
            return await super().generate(prompt_ids, sampling, seed, request=request)

    def design(request):
        return SCRIPTS[next(turn[request.messages[0]]) % len(SCRIPTS)]

    executor = Mixed(lambda r: "so " * (executor.seed % 4) + f"\\boxed{{{1 + (executor.seed % 3 == 0)}}}")
    engines = {"designer": ScriptedEngine(design), "executor": executor}
    return asyncio.run(collect(pairs, engines, Grader(), designs=m, executions=n, config=c, step=0))


@pytest.fixture(scope="module")
def trees():
    made = record(4, 4)
    assert all(0 < t.rewards().mean() < 1 for t in made), "the recorded batch must carry a signal"
    return made


@pytest.fixture(scope="module")
def params():
    return qwen3.init(MODEL, jax.random.key(0))


@functools.lru_cache(maxsize=None)  # noqa: UP033  compiled once for each set of settings
def learner(**fields):
    s = settings.base().learner
    s.row_tokens, s.micro_rows, s.updates_per_step, s.learning_rate = 512, 4, 1, 1e-2
    for name, value in fields.items():
        with s.unlocked():
            s[name] = value
    with s.unlocked():
        s.call_cost = fields.get("call_cost", 0.0)
    return Learner(MODEL, s)


def play(trees, params, roles=BOTH, owner=SHARED, seed=0, reference=None, **fields):
    one = learner(**fields)
    states = {name: one.init(params) for name in sorted(set(owner.values()))}
    return (*improve(trees, states, owner, one, frozenset(roles), seed=seed, reference=reference), states)


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def close(a, b, tol=1e-6):
    return all(np.allclose(x, y, atol=tol) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.mark.parametrize(("m", "n"), [(8, 1), (4, 4), (2, 3)])
def test_designs_and_executions_set_the_groups(m, n):
    made = record(m, n)
    assert all(t.rewards().shape == (m, n) for t in made)
    rows = credit.assign(made, BOTH)
    designers = [t for t in rows if t.role == "designer"]
    assert len(designers) == 2 * m
    for q in range(2):
        assert abs(sum(t.advantage for t in designers if t.question == q)) < 1e-6
        assert {t.execution for t in rows if t.role == "executor" and t.question == q} <= set(range(n))


SLOW = pytest.mark.slow  # of variants that differ in a setting alone one is enough in the fast tests


@pytest.mark.parametrize("active", [pytest.param("designer", marks=SLOW), "executor"])
def test_separate_policies_leave_the_inactive_one_bitwise_unchanged(trees, params, active):
    inactive = ({"designer", "executor"} - {active}).pop()
    out, trained, _, before = play(trees, params, {active}, SEPARATE)
    assert out[inactive] is before[inactive]
    assert same(out[inactive].params, params) and not same(out[active].params, params)
    assert {t.role for t in trained} == {active}


@pytest.mark.parametrize("active", [pytest.param("designer", marks=SLOW), "executor"])
def test_a_stage_of_the_shared_policy_equals_the_same_stage_of_separate_ones(trees, params, active):
    shared, *_ = play(trees, params, {active}, SHARED)
    alone, *_ = play(trees, params, {active}, SEPARATE)
    assert same(shared["shared"].params, alone[active].params)


@SLOW
def test_coupled_training_is_the_sum_of_both_roles_losses_each_normalised_by_itself(trees, params):
    """With plain SGD-like first Adam moments, the coupled gradient is the sum of the two single-role gradients."""
    moments = {}
    for name, roles in (("d", {"designer"}), ("e", {"executor"}), ("both", BOTH)):
        out, _, metrics, _ = play(trees, params, roles, clip_norm=0.0)
        moments[name] = [x for x in jax.tree.leaves(out["shared"].opt_state)]
        if name == "both":
            assert metrics["trained/designer"] > 0 and metrics["trained/executor"] > 0
    first = [np.asarray(x) for x in moments["both"] if np.ndim(x)][: len(jax.tree.leaves(params))]
    parts = [
        np.asarray(d) + np.asarray(e)
        for d, e in zip(moments["d"], moments["e"], strict=True)
        if np.ndim(d)
    ][: len(first)]  # fmt: skip
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(first, parts, strict=True))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("stagewise", ["executor"] * 2 + ["designer"] * 2), ("designer_only", ["designer"] * 4),
     ("executor_only", ["executor"] * 4), ("coupled", ["designer+executor"] * 4)],
)  # fmt: skip
def test_the_schedule_and_stage_length_say_who_learns(kind, expected):
    assert ["+".join(sorted(active_roles(t, kind, 2))) for t in range(4)] == expected


@pytest.mark.slow
def test_updates_per_step_makes_so_many_updates_and_the_later_ones_leave_ratio_one(trees, params):
    out, _, one, _ = play(trees, params, {"executor"})
    out4, _, four, _ = play(trees, params, {"executor"}, updates_per_step=4)
    assert (one["updates"], four["updates"]) == (1, 4)
    assert int(out["shared"].step) == 1 and int(out4["shared"].step) == 4
    assert one["ratio/max_dev"] < 1e-3 < four["ratio/max_dev"]


def test_a_step_counts_its_skipped_updates_and_shows_each_update(trees, params):
    """One log-prob is NaN: the update that holds it is skipped, the three others are made."""
    broken, seen = copy.deepcopy(trees), []
    calls = next(d for d in broken[0].designs if d.valid).executions[0].calls
    calls[0] = dataclasses.replace(calls[0], logprobs=(math.nan, *calls[0].logprobs[1:]))

    def look(policy, number, state, batch, old_logp, ref_logp, metrics):
        seen.append((metrics["nonfinite"], bool(np.isnan(batch.old_logp).any())))
        assert (policy, number, ref_logp) == ("shared", len(seen), None)
        assert np.isfinite(old_logp).all() and int(state.step) == sum(not bad for bad, _ in seen)

    one = learner(updates_per_step=4)
    _, _, m = improve(broken, {"shared": one.init(params)}, SHARED, one, frozenset({"executor"}), seed=0, look=look)
    assert sorted(seen) == [(0.0, False)] * 3 + [(1.0, True)]
    assert (m["updates"], m["updates/nonfinite"]) == (3.0, 1.0) and "nonfinite" not in m
    _, _, well, _ = play(trees, params, {"executor"}, updates_per_step=4)
    assert well["updates/nonfinite"] == 0.0 and 0 <= well["ratio/first_dev"] < 1e-3 < well["ratio/max_dev"]


@pytest.mark.parametrize(
    "change",
    [
        {"weigh": "execution"},
        pytest.param({"aggregate": "sequence_mean"}, marks=SLOW),
        pytest.param({"aggregate": "constant", "constant_denominator": 50.0}, marks=SLOW),
    ],
)
def test_weigh_and_aggregate_change_the_update(trees, params, change):
    base, *_ = play(trees, params, {"executor"})
    other, *_ = play(trees, params, {"executor"}, **change)
    assert not same(base["shared"].params, other["shared"].params)


@SLOW
@pytest.mark.parametrize("change", [{"ratio": "sequence"}, {"ratio": "sequence_geometric"}, {"dual_clip": 3.0}])
def test_ratio_and_dual_clip_do_nothing_at_the_first_update_and_something_later(trees, params, change):
    """All ratios are 1 before the first update; only reuse of the batch tells the options apart."""
    _, _, base, _ = play(trees, params, {"executor"})
    _, _, other, _ = play(trees, params, {"executor"}, **change)
    assert abs(base["loss"] - other["loss"]) < 1e-6
    if "ratio" in change:
        reuse = {"updates_per_step": 3, "learning_rate": 5e-2}
        _, _, base, _ = play(trees, params, {"executor"}, **reuse)
        _, _, other, _ = play(trees, params, {"executor"}, **reuse, **change)
        assert abs(base["ratio/max_dev"] - other["ratio/max_dev"]) > 1e-3


@pytest.mark.fault("F061")
@pytest.mark.slow
def test_without_kl_no_reference_is_needed_and_with_it_one_is_used(trees, params):
    _, _, off, _ = play(trees, params, {"executor"})
    assert "kl" not in off
    moved = jax.tree.map(lambda x: x + 0.05, params)
    _, _, on, _ = play(trees, params, {"executor"}, kl=0.1, reference={"shared": moved})
    assert on["kl"] > 0
    with pytest.raises(ValueError, match="ref"):
        play(trees, params, {"executor"}, kl=0.1)


def test_truncated_rows_are_trained_or_masked(trees):
    rows = credit.assign(trees, frozenset({"executor"}))
    assert not any(t.truncated for t in rows)
    cut = [t for t in trees]
    from dataclasses import replace

    cut[0].designs[0].executions[0].calls[0] = replace(cut[0].designs[0].executions[0].calls[0], finish_reason="length")
    kept = credit.assign(cut, frozenset({"executor"}), truncated="train")
    masked = credit.assign(cut, frozenset({"executor"}), truncated="mask")
    assert len(kept) == len(masked) + 1
    cut[0].designs[0].executions[0].calls[0] = replace(cut[0].designs[0].executions[0].calls[0], finish_reason="stop")


def test_the_cost_of_calls_lowers_the_designers_reward_only(trees):
    free = credit.assign(trees, BOTH)
    priced = credit.assign(trees, BOTH, call_cost=0.1)
    executors = [[t.advantage for t in rows if t.role == "executor"] for rows in (free, priced)]
    assert executors[0] == executors[1]
    by_design = {(t.question, t.design): t.reward for t in free if t.role == "designer"}
    for t in priced:
        if t.role == "designer":
            calls = {0: 1, 1: 3, 2: 0, 3: 1}[t.design]
            assert t.reward == pytest.approx(by_design[t.question, t.design] - 0.1 * calls)


@pytest.mark.fault("B012")
def test_a_role_without_data_is_a_logged_no_op(params):
    """A step in which every design fails to parse: the executor has no trajectory, the designer no spread."""
    c = settings.base()
    c.rollout.prompts = "tiny"
    pairs = [(Task("t", "math", "compute 1+1"), Rubric("t", "math", gold=("2",)))]
    engines = {"designer": ScriptedEngine(lambda r: "no"), "executor": ScriptedEngine(lambda r: "no")}
    made = asyncio.run(collect(pairs, engines, Grader(), designs=2, executions=2, config=c, step=0))
    out, trained, metrics, _ = play(made, params, BOTH)
    assert metrics["updates"] == 0 and same(out["shared"].params, params)
    assert {t.role for t in trained} == {"designer"}
    out, trained, metrics, _ = play(made, params, {"executor"})
    assert metrics["updates"] == 0 and trained == [] and same(out["shared"].params, params)
