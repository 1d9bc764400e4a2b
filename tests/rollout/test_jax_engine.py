"""The built-in engine: determinism, log-probs, stops, limits, weight updates, failures."""

import asyncio
import functools
import random
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaagent_x.mas.records import Call
from metaagent_x.model import qwen3
from metaagent_x.model.logprobs import token_logprobs
from metaagent_x.rollout import jax_engine
from metaagent_x.rollout.engine import Completion, EngineFailure, Sampling
from metaagent_x.rollout.jax_engine import JaxEngine, bucket, sample
from metaagent_x.rollout.tree import trajectories_of

CONFIG = qwen3.Qwen3Config(
    vocab_size=61, hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=16, intermediate_size=48
)
SHAPE = {"slots": 4, "cache_tokens": 40, "chunk": 3}  # one shape for all tests: compiled once
STOP = (7, 11)
Job = tuple[tuple[int, ...], Sampling, int]


@pytest.fixture(scope="module")
def params():
    return qwen3.init(CONFIG, jax.random.key(0))


@pytest.fixture(scope="module")
def other_params():
    return qwen3.init(CONFIG, jax.random.key(1))


@pytest.fixture
async def engine(params):
    made = JaxEngine(CONFIG, params, stop_ids=STOP, **SHAPE)
    yield made
    await made.close()


@pytest.fixture(scope="module")
def jobs() -> list[Job]:
    draw = random.Random(3)
    prompts = [tuple(draw.randrange(61) for _ in range(draw.randrange(1, 25))) for _ in range(7)]
    return [
        (prompts[i % 7], Sampling(draw.randrange(1, 15), temperature=draw.choice([1.0, 1.0, 0.5, 0.0])), 100 + i)
        for i in range(14)
    ]


class Gate:
    """Holds every decode chunk at its start until `open`."""

    def __init__(self, real):
        self.real, self._entered, self._open = real, threading.Event(), threading.Event()

    def __call__(self, *args, **kwargs):
        self._entered.set()
        if not self._open.wait(30):
            raise RuntimeError("the event loop did not run during decoding")
        return self.real(*args, **kwargs)

    async def entered(self) -> None:
        while not self._entered.is_set():
            await asyncio.sleep(0.001)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate(monkeypatch) -> Gate:
    made = Gate(jax_engine.decode_chunk)
    monkeypatch.setattr(jax_engine, "decode_chunk", made)
    return made


async def run(engine: JaxEngine, jobs: list[Job]) -> list[Completion]:
    return await asyncio.gather(*(engine.generate(*job) for job in jobs))


@functools.partial(jax.jit, static_argnames="temperature")
def score(params, row, temperature):
    places = jnp.arange(40)[None]
    hidden = qwen3.forward(params, CONFIG, row, places, jnp.ones_like(row))
    return token_logprobs(params, CONFIG, hidden[:, :-1], row[:, 1:], temperature=temperature, chunk=64)


def reference_logprobs(params, prompt, ids, temperature) -> np.ndarray:
    """What the learner computes for the same ids."""
    row = np.zeros((1, 40), np.int32)
    row[0, : len(prompt) + len(ids)] = [*prompt, *ids]
    return np.asarray(score(params, row, temperature or 1.0))[0, len(prompt) - 1 :][: len(ids)]


def draw(logits, seeds, temperature: float, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and log-probs of the first token for many seeds."""
    each = jax.jit(jax.vmap(sample, in_axes=(None, 0, None, None, None)))
    return jax.device_get(
        each(logits, np.array(seeds, np.uint32), np.int32(0), np.float32(temperature), np.int32(limit))
    )


@pytest.mark.fault("B043")
@pytest.mark.fault("F026")
async def test_a_request_is_bitwise_the_same_in_any_slot_order_and_company(params, jobs):
    """Other engines change answers with the batch, even at temperature 0 (vllm-project/vllm#5898, #48271)."""
    found = []
    orders = [list(range(14)), list(range(13, -1, -1)), random.Random(5).sample(range(14), 14)]
    for order in orders:
        engine = JaxEngine(CONFIG, params, stop_ids=STOP, **SHAPE)
        done = await run(engine, [jobs[i] for i in order])
        found.append({i: c for i, c in zip(order, done, strict=True)})
        await engine.close()
    alone = JaxEngine(CONFIG, params, stop_ids=STOP, **SHAPE)
    found.append({i: await alone.generate(*job) for i, job in enumerate(jobs)})
    await alone.close()
    assert all(f == found[0] for f in found)  # equality of floats: bitwise
    assert len({c.ids for c in found[0].values()}) > 7


@pytest.mark.fault("B043")
@pytest.mark.fault("F023")
async def test_seeds_make_copies_of_a_prompt_differ_and_repeat(engine):
    """Workers that share a seed produce the same "random" samples (vllm-project/vllm#11953)."""
    first = await run(engine, [((1, 2, 3), Sampling(8), seed) for seed in range(8)])
    again = await run(engine, [((1, 2, 3), Sampling(8), seed) for seed in range(8)])
    assert first == again and len({c.ids for c in first}) == 8


@pytest.mark.fault("F020")
async def test_logprobs_are_those_of_the_learner_at_the_sampling_temperature(engine, params, jobs):
    """Temperature on one side only moves every importance ratio (huggingface/trl#4159)."""
    gaps, wrong_side = [], []
    for (prompt, sampling, _), done in zip(jobs, await run(engine, jobs), strict=True):
        gaps += list(reference_logprobs(params, prompt, done.ids, sampling.temperature) - done.logprobs)
        if sampling.temperature == 0.5:
            wrong_side += list(reference_logprobs(params, prompt, done.ids, 1.0) - done.logprobs)
    assert np.mean(np.abs(gaps)) < 1e-5 and np.max(np.abs(gaps)) < 1e-4
    assert np.mean(np.abs(wrong_side)) > 1e-2


@pytest.mark.fault("F020")
@pytest.mark.parametrize("temperature, first", [(0.5, -0.01815), (1.0, -0.12693), (2.0, -0.31326), (0.0, -0.12693)])
def test_temperature_scales_the_logits_before_the_logprob(temperature, first):
    ids, logprobs = draw(jnp.array([2.0, 0.0]), range(40), temperature, 2)
    assert logprobs[ids == 0] == pytest.approx(first, abs=1e-5)
    assert (1 in ids) == (temperature > 0)


def test_samples_follow_the_policy():
    ids, _ = draw(jnp.log(jnp.array([0.5, 0.3, 0.15, 0.05])), range(4000), 1.0, 4)
    assert np.bincount(ids, minlength=4) / 4000 == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.03)


@pytest.mark.fault("F008")
async def test_rows_without_a_token_are_never_drawn_and_counted_as_the_learner_counts_them(params):
    """Mixed counting of padded rows moves log-probs by their mass (NVIDIA-NeMo/RL#237)."""
    ids, logprobs = draw(jnp.zeros(8), range(60), 1.0, 5)
    assert set(ids) == set(range(5)) and logprobs == pytest.approx(-2.0794, abs=1e-4)
    assert draw(jnp.arange(8.0), [0], 0.0, 5)[0] == 4
    engine = JaxEngine(CONFIG, params, stop_ids=(58, 59), vocab_limit=20, **SHAPE)
    done = await run(engine, [((60, 20, 3), Sampling(30), seed) for seed in range(4)])
    await engine.close()
    assert max(i for c in done for i in c.ids) < 20
    assert reference_logprobs(params, (60, 20, 3), done[0].ids, 1.0) == pytest.approx(done[0].logprobs, abs=1e-4)


@pytest.mark.fault("F015")
@pytest.mark.fault("F024")
@pytest.mark.fault("F075")
async def test_a_finished_answer_ends_in_its_stop_id_and_a_cut_one_has_none(engine):
    """Any stop id ends an answer, is part of it, and is trained (huggingface/trl#7039, vllm-project/vllm#3672,
    rasbt/reasoning-from-scratch#185)."""
    done = await run(engine, [((i % 5, 9), Sampling(24), i) for i in range(60)])
    assert {c.ids[-1] for c in done if c.finish_reason == "stop"} == set(STOP)
    assert {c.finish_reason for c in done} == {"stop", "length"}
    for c in done:
        assert not set(c.ids[:-1]) & set(STOP) and len(c.ids) == len(c.logprobs)
        assert (c.ids[-1] in STOP) == (c.finish_reason == "stop")
        assert c.finish_reason == "stop" or len(c.ids) == 24
        (row,) = trajectories_of([Call("0", "a", "", (1, 9), c.ids, c.logprobs, c.finish_reason, c.version, "")])
        assert row.truncated == (c.finish_reason == "length")
        assert row.tokens[2:] == c.ids and row.mask[2:] == (True,) * len(c.ids)


async def test_a_stop_id_as_the_last_allowed_token_is_a_stop(engine):
    done = await run(engine, [((i % 5, 9), Sampling(24), i) for i in range(60)])
    i, c = next((i, c) for i, c in enumerate(done) if c.finish_reason == "stop" and len(c.ids) > 1)
    assert await engine.generate((i % 5, 9), Sampling(len(c.ids)), i) == c
    cut = await engine.generate((i % 5, 9), Sampling(len(c.ids) - 1), i)
    assert (cut.ids, cut.finish_reason) == (c.ids[:-1], "length")


@pytest.mark.fault("F021")
@pytest.mark.parametrize("setting", [{"top_p": 0.7}, {"top_k": 20}, {"min_p": 0.1}, {"repetition_penalty": 1.2}])
async def test_sampling_that_changes_the_distribution_is_refused(engine, setting):
    """Truncated sampling renormalises log-probs (modelscope/ms-swift#8442)."""
    with pytest.raises(ValueError, match=next(iter(setting))):
        await engine.generate((1, 2), Sampling(4, **setting), 0)


@pytest.mark.fault("F155")
@pytest.mark.parametrize("off", [0, -1, None])
async def test_every_spelling_of_off_is_accepted(engine, off):
    """0, -1 and None all mean "no top-k" (Tencent-Hunyuan/UniRL#204)."""
    assert await engine.generate((1, 2), Sampling(4, top_k=off), 0) == await engine.generate((1, 2), Sampling(4), 0)


@pytest.mark.fault("F019")
async def test_a_request_that_names_nothing_is_sampled_plainly(engine, params):
    """Defaults of a model folder (top_k 20, penalty 1.2) must not leak in (NVIDIA-NeMo/RL#3497)."""
    done = await run(engine, [((5, 6), Sampling(30), seed) for seed in range(4)])
    for c in done:
        assert reference_logprobs(params, (5, 6), c.ids, 1.0) == pytest.approx(c.logprobs, abs=1e-4)


@pytest.mark.fault("F156")
async def test_a_prompt_that_leaves_no_room_is_refused_with_the_numbers(engine):
    """huggingface/trl#4358: lengths that cannot fit fail deep in a run."""
    for prompt in ((1,) * 40, (1,) * 97, ()):
        with pytest.raises(ValueError, match=rf"prompt of {len(prompt)} tokens plus up to 5 .*cache_tokens=40"):
            await engine.generate(prompt, Sampling(5), 0)


@pytest.mark.fault("B039")
async def test_max_tokens_is_cut_to_what_fits(engine, params):
    """A growing history must end by length, not by an error (vllm-project/vllm#4667)."""
    for n in (39, 30):
        done = await run(engine, [((1,) * n, Sampling(99), seed) for seed in range(4)])
        done = next(c for c in done if c.finish_reason == "length")
        assert len(done.ids) == 40 - n
        assert reference_logprobs(params, (1,) * n, done.ids, 1.0) == pytest.approx(done.logprobs, abs=1e-4)


async def test_other_impossible_requests_are_refused(engine, params):
    for prompt, sampling, seed, message in (
        ((1, 61), Sampling(4), 0, "prompt id 61 is outside the vocabulary of 61"),
        ((-1, 3), Sampling(4), 0, "prompt id -1"),
        ((1,), Sampling(4), 2**32, "seed is 4294967296"),
        ((1,), Sampling(4, stop_ids=(7, 12)), 0, r"stop_ids \(7, 12\)"),
    ):
        with pytest.raises(ValueError, match=message):
            await engine.generate(prompt, sampling, seed)
    for wrong in ({"slots": 0}, {"vocab_limit": 62}, {"chunk": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}={next(iter(wrong.values()))}"):
            JaxEngine(CONFIG, params, stop_ids=STOP, **(SHAPE | wrong))


@pytest.mark.fault("F029")
async def test_requests_during_an_update_are_held_and_answered_by_the_new_weights(engine, other_params, gate):
    """Otherwise samples mix two versions (meta-pytorch/torchforge#251)."""
    late_jobs = [((3, 1, 4), Sampling(6), 50 + i) for i in range(6)]
    # One more than there are slots, and no two end together: whoever is let in too early gets the old version.
    early_jobs = [((3, 1, 4), Sampling(7 * i + 5, temperature=0.0), i) for i in range(5)]
    early = [asyncio.create_task(engine.generate(*job)) for job in early_jobs]
    await gate.entered()
    admitted = engine.stats.requests  # at most 4; the worker stands still at the gate
    update = asyncio.create_task(engine.update_weights(other_params, 7))
    late_tasks = [asyncio.create_task(engine.generate(*job)) for job in late_jobs]
    await asyncio.sleep(0)  # all of them are in the engine's hands now, while it decodes
    gate.open()
    late = [await task for task in late_tasks]
    assert [c.version for c in late] == [7] * 6 and update.done()
    assert [(await t).version for t in early] == [0] * admitted + [7] * (5 - admitted)
    fresh = JaxEngine(CONFIG, other_params, stop_ids=STOP, version=7, **SHAPE)
    assert late == await run(fresh, late_jobs)
    assert await early[4] == await fresh.generate(*early_jobs[4])
    await fresh.close()


async def test_updates_are_applied_in_order_also_when_idle(engine, params, other_params):
    await asyncio.gather(engine.update_weights(other_params, 1), engine.update_weights(params, 2))
    assert (await engine.generate((1, 2), Sampling(3), 0)).version == 2 == engine.version


async def test_the_engine_keeps_its_own_copy_of_the_weights(params):
    """The learner donates its buffers to its next update."""
    given = jax.tree.map(jnp.copy, params)
    engine = JaxEngine(CONFIG, given, stop_ids=STOP, **SHAPE)
    before = await engine.generate((1, 2), Sampling(6), 0)
    pushed = jax.tree.map(jnp.copy, params)
    await engine.update_weights(pushed, 1)
    donated = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    jax.block_until_ready([donated(given), donated(pushed)])
    assert (await engine.generate((1, 2), Sampling(6), 0)).ids == before.ids
    await engine.close()


async def test_weights_spread_over_devices_give_the_same_answers(params, jobs):
    mesh = jax.make_mesh((2,), ("fsdp",), devices=jax.devices()[:2])
    spread = jax.device_put(params, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))
    found = []
    for weights in (params, spread):
        engine = JaxEngine(CONFIG, weights, stop_ids=STOP, **SHAPE)
        found.append(await run(engine, jobs[:4]))
        await engine.close()
    assert found[0] == found[1]


@pytest.mark.fault("F025")
async def test_overlapping_prompts_do_not_change_each_other(params):
    """Prefix reuse made scores depend on the order of requests (vllm-project/vllm#42019)."""
    short, long = (5, 6, 7, 8), (5, 6, 7, 8, 9, 10, 11)
    jobs = [(p, Sampling(8), seed) for p in (short, long) for seed in (0, 1)]
    found = []
    for order in ((0, 1, 2, 3), (3, 2, 1, 0)):
        engine = JaxEngine(CONFIG, params, stop_ids=STOP, **SHAPE)
        found.append({i: await engine.generate(*jobs[i]) for i in order})
        assert engine.stats.prefix_hits == 2 and engine.stats.prefill_tokens == len(short) + len(long)
        await engine.close()
    assert found[0] == found[1]


async def test_prompts_in_memory_stay_within_their_room(engine):
    await run(engine, [((i, j), Sampling(1), 0) for i in range(6) for j in range(6)])
    assert sum(bucket(len(p), 40) for p in engine._prefixes) <= 40  # a quarter of 4 slots x 40


@pytest.mark.parametrize("longest", [40, 192, 16384])
def test_padded_lengths_depend_on_the_prompt_alone(longest):
    sizes = [bucket(n, longest) for n in range(1, longest + 1)]
    assert sizes == sorted(sizes) and sizes[-1] == longest
    assert all(n <= size <= max(16, 1.5 * n + 16) for n, size in enumerate(sizes, 1))
    assert len(set(sizes)) <= 24


@pytest.mark.fault("F027")
async def test_a_crash_reaches_everyone_who_waits(params, other_params, monkeypatch):
    """A failure must be an EngineFailure, neither an answer nor a hang (Tencent-Hunyuan/UniRL#214)."""
    engine = JaxEngine(CONFIG, params, stop_ids=STOP, **SHAPE)

    def crash(*_, **__):
        raise MemoryError("device ran out of memory")

    monkeypatch.setattr(jax_engine, "decode_chunk", crash)
    tasks = [asyncio.create_task(engine.generate((1, 2), Sampling(9), i)) for i in range(9)]
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(e, EngineFailure) and "device ran out of memory" in str(e) for e in done)
    with pytest.raises(EngineFailure, match="out of memory"):
        await engine.generate((1, 2), Sampling(9), 0)
    with pytest.raises(EngineFailure, match="out of memory"):
        await engine.update_weights(other_params, 1)
    await engine.close()


async def test_weights_that_are_not_numbers_are_a_failure_not_an_answer(params):
    bad = params | {"norm": params["norm"] * jnp.nan}
    engine = JaxEngine(CONFIG, bad, stop_ids=STOP, version=3, **SHAPE)
    with pytest.raises(EngineFailure, match="not finite under weights of version 3"):
        await engine.generate((1, 2), Sampling(9), 0)
    await engine.close()


async def test_closing_cancels_who_waits_and_ends_the_thread(params):
    engine = JaxEngine(CONFIG, params, stop_ids=STOP, **SHAPE)
    tasks = [asyncio.create_task(engine.generate((1, 2), Sampling(30, temperature=0.0), i)) for i in range(9)]
    await asyncio.sleep(0)
    await engine.close()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(e, asyncio.CancelledError | Completion) for e in done)
    assert any(isinstance(e, asyncio.CancelledError) for e in done)
    assert not any(t.name == "jax-engine" and t.is_alive() and t is engine._thread for t in threading.enumerate())
    await engine.close()
    with pytest.raises(EngineFailure, match="closed"):
        await engine.generate((1, 2), Sampling(9), 0)


async def test_who_gives_up_frees_the_slot(engine, gate):
    """Requests that nobody waits for must not hold slots."""
    gone = [asyncio.create_task(engine.generate((2, i), Sampling(35, temperature=0.0), i)) for i in range(9)]
    await gate.entered()
    for task in gone:
        task.cancel()
    await asyncio.sleep(0)
    gate.open()
    done = await engine.generate((1, 2), Sampling(9), 0)
    assert engine.stats.tokens <= 4 * SHAPE["chunk"] + len(done.ids)
    before = engine.stats.tokens
    assert await engine.generate((1, 2), Sampling(9), 0) == done
    assert engine.stats.tokens - before == len(done.ids)


def test_one_engine_serves_several_event_loops(params):
    engine = JaxEngine(CONFIG, params, stop_ids=STOP, **SHAPE)
    answers = [asyncio.run(run(engine, [((1, 2), Sampling(5), 0)])) for _ in range(3)]
    asyncio.run(engine.close())
    assert answers[0] == answers[1] == answers[2]


async def test_the_event_loop_stays_free_while_the_engine_decodes(engine, gate):
    task = asyncio.create_task(engine.generate((1, 2), Sampling(5), 0))
    await gate.entered()  # decoding has begun, and this code runs
    gate.open()
    assert (await task).ids
