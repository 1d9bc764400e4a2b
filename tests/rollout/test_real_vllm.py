"""Real vLLM on the CPU: what it computes is what the learner computes, after every push, and never anything else.

Needs the environment that `launch/setup_vllm.sh` makes; without it every test is skipped.
"""

import asyncio
import contextlib
import dataclasses
import functools
import json
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaagent_x import config as settings
from metaagent_x.learner.improve import improve
from metaagent_x.learner.step import Learner
from metaagent_x.model import hf, hf_config, logprobs, qwen3
from metaagent_x.rollout.collect import collect
from metaagent_x.rollout.engine import Sampling
from metaagent_x.rollout.fleet import Weights
from metaagent_x.rollout.scripted import ScriptedEngine
from metaagent_x.rollout.vllm_client import LOGPROBS_MODE, VLLM_MINOR, ServerError, VllmClient
from metaagent_x.rollout.vllm_engine import VllmEngine
from metaagent_x.rollout.vllm_server import ServerSettings, VllmServer, find_python
from metaagent_x.rollout.weight_sync import WeightStore, WeightSync, WeightSyncError, update_steps
from metaagent_x.tasks.task import Rubric, Task, Verdict

try:
    PYTHON = find_python()
except FileNotFoundError as missing:
    PYTHON, WHY = "", str(missing)
else:
    WHY = ""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PYTHON, reason=WHY), pytest.mark.timeout(240)]

CONFIG = qwen3.Qwen3Config(
    vocab_size=512, hidden_size=64, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=32, intermediate_size=96,
    tie_embeddings=True,
)  # fmt: skip
OTHER = dataclasses.replace(CONFIG, hidden_size=128, tie_embeddings=False, qk_norm=False, qkv_bias=True)  # Qwen2
LENGTH, SLOTS, PROMPT, NEW = 256, 64, 70, 24
FINGERPRINT = "0123456789abcdef"


@functools.cache
def params(seed, config=CONFIG):
    drawn = qwen3.init(config, jax.random.key(seed))
    # Biases begin at zero, which would hide whether they arrive.
    biases = {k: x + 0.1 * (seed + 1) for k, x in drawn["layers"].items() if k.endswith("_bias")}
    return drawn | {"layers": drawn["layers"] | biases}


@functools.partial(jax.jit, static_argnums=0)
def _score(config, weights, ids):
    positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    hidden = qwen3.forward(weights, config, ids, positions, jnp.ones_like(ids))
    return logprobs.token_logprobs(weights, config, hidden[:, :-1], ids[:, 1:], chunk=64)


def make_server(folder, dtype, config=CONFIG):
    hf_config.write_description(folder, dataclasses.replace(config, compute_dtype=dtype), dtype, None, (1, 2))
    # What a published folder may say of sampling: with it, every completion would be the most likely one.
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, "top_k": 1, "eos_token_id": 5}))
    settings = ServerSettings(
        PYTHON, str(folder), FINGERPRINT, dtype, LENGTH, SLOTS,
        extension="faulty_extension.Extension", path=(os.path.dirname(__file__),),
    )  # fmt: skip
    return VllmServer(settings, folder / "server.log", start_timeout_s=180)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    one = make_server(tmp_path_factory.mktemp("vllm"), "float32")
    asyncio.run(one.start())
    yield one
    asyncio.run(one.stop())


@contextlib.asynccontextmanager
async def connect(server, dtype="float32", config=CONFIG):
    config = dataclasses.replace(config, compute_dtype=dtype)
    store = WeightStore(functools.partial(hf.named_tensors, config, dtype=dtype), dtype)
    score = functools.partial(_score, config)
    sync = WeightSync(store, score, vocab_size=CONFIG.vocab_size, dtype=dtype)
    client = VllmClient(server.url, timeout_s=60, connections=SLOTS)
    try:
        yield client, sync
    finally:
        await client.close()
        sync.close()


async def sample(client, seed, rows=64, prompts=None, new=NEW):
    draw = np.random.default_rng(seed)
    prompts = draw.integers(0, CONFIG.vocab_size, (rows, PROMPT)).tolist() if prompts is None else prompts
    return prompts, await asyncio.gather(*(client.generate(p, Sampling(new), seed + i) for i, p in enumerate(prompts)))


def gaps(weights, prompts, answers, dtype="float32", config=CONFIG):
    """|log-prob(server) - log-prob(learner)| of every sampled id, [rows, new]."""
    ids = np.array([p + list(a.ids) for p, a in zip(prompts, answers, strict=True)], np.int32)
    learner = _score(dataclasses.replace(config, compute_dtype=dtype), weights, ids)[:, len(prompts[0]) - 1 :]
    return np.abs(np.array([a.logprobs for a in answers]) - np.asarray(learner))


def only(steps, *left_out):
    return [call for name, call in steps if name not in left_out]


async def test_the_handshake_tells_what_the_server_was_started_with(server):
    async with connect(server) as (client, _):
        info = await client.info()
        assert info.vllm.startswith(VLLM_MINOR) and info.model == server.settings.model
        assert (info.vocab_size, info.max_model_len, info.dtype, info.device) == (512, LENGTH, "float32", "cpu")
        assert (info.logprobs_mode, info.fingerprint) == ("processed_logprobs", FINGERPRINT)


async def test_a_server_that_nobody_gave_weights_answers_nothing(server):
    async with connect(server) as (client, _):
        assert await client.weight_info() is None, "this must run before the first push"
        with pytest.raises(ServerError, match="'default', which no complete update has brought"):
            await client.generate([1, 2, 3], Sampling(4), 0)


async def test_after_each_of_twenty_pushes_the_server_computes_what_the_learner_does(server):
    async with connect(server) as (client, sync):
        worst = []
        for version in range(20):
            await sync.write(params(version % 3), version)
            await sync.push(client)
            prompts, answers = await sample(client, version)
            assert {a.versions for a in answers} == {((version, 0, NEW),)}
            worst.append(gaps(params(version % 3), prompts, answers).max())
            assert gaps(params((version + 1) % 3), prompts, answers).max() > 0.1  # other weights would show
        assert max(worst) <= 1e-4, worst


@pytest.mark.parametrize("left_out", ["push", "reset prefix cache", "tied head"])
async def test_what_is_left_out_of_a_push_is_found(server, left_out):
    async with connect(server) as (client, sync):
        await sync.write(params(0), 100)
        await sync.push(client)
        old = await sample(client, 1)
        await sync.write(params(1), 101)
        manifest, probe = sync._written
        if left_out == "tied head":
            rpc = {"method": "leave_out_repacking"}
            await client._call("POST", "/collective_rpc", rpc | {"args": ["yes"]})
        if left_out != "push":
            for call in only(update_steps(client, manifest, "keep"), left_out):
                await call()
        with pytest.raises(WeightSyncError, match="does not compute what the learner does"):
            await probe.ask(client)
        prompts, answers = await sample(client, 2, prompts=old[0])
        assert gaps(params(1), prompts, answers).max() > 0.1
        if left_out == "tied head":
            await client._call("POST", "/collective_rpc", rpc | {"args": ["no"]})
        await sync.push(client)
        prompts, answers = await sample(client, 2, prompts=old[0])
        assert gaps(params(1), prompts, answers).max() <= 1e-4


@pytest.mark.fault("F031")
async def test_a_warm_prefix_cache_does_not_outlive_an_update(server):
    async with connect(server) as (client, sync):
        greedy = Sampling(32, temperature=0.0)
        prompt = np.random.default_rng(5).integers(0, CONFIG.vocab_size, 200).tolist()
        await sync.push_all([client], params(0), 200)
        before = await client.generate(prompt, greedy)
        assert (await client.generate(prompt, greedy)).ids == before.ids
        await sync.push_all([client], params(1), 201)
        warm = await client.generate(prompt, greedy)
        await client.reset_prefix_cache()
        cold = await client.generate(prompt, greedy)
        assert warm.ids == cold.ids != before.ids
        np.testing.assert_allclose(warm.logprobs, cold.logprobs, atol=1e-5)


@pytest.mark.fault("F032")
@pytest.mark.parametrize("how", ["bytes", "shape", "size", "missing"])
async def test_an_update_that_fails_at_one_tensor_leaves_a_server_that_does_not_answer(server, how):
    async with connect(server) as (client, sync):
        await sync.push_all([client], params(0), 300)
        await sync.write(params(1), 301)
        manifest, probe = sync._written
        tensors = [dict(t) for t in manifest.tensors]
        at, seventh = next((i, t) for i, t in enumerate(tensors) if i >= 6 and len(t["shape"]) == 2)
        if how == "bytes":
            seventh["crc32"] ^= 1
        elif how == "shape":  # found only in the middle of loading
            seventh["shape"] = seventh["shape"][::-1]
        elif how == "size":  # vLLM would take the part that fits
            seventh["shape"] = [2 * seventh["shape"][0], seventh["shape"][1]]
        else:
            del tensors[at]
        sync._written = dataclasses.replace(manifest, tensors=tuple(tensors)), probe
        with pytest.raises(ServerError, match="stays paused: push of weights 301 failed at 'update'") as failed:
            await sync.push(client)
        says = {"bytes": "checksum", "shape": "", "size": "elements came for", "missing": "does not have"}
        assert says[how] in str(failed.value)
        if how in ("bytes", "missing"):
            assert seventh["name"] in str(failed.value)
        assert await client.weight_info() is None and await client.is_paused()
        held = asyncio.create_task(client.generate([1, 2, 3], Sampling(4)))
        await asyncio.sleep(0.5)
        assert not held.done()
        await client.resume()  # by somebody who should not
        with pytest.raises(ServerError, match="'incomplete'"):
            await held
        await client.start_update()  # and who leaves an update open
        sync._written = manifest, probe
        await sync.push(client)
        prompts, answers = await sample(client, 3)
        assert {v for a in answers for v, _, _ in a.versions} == {301}
        assert gaps(params(1), prompts, answers).max() <= 1e-4


async def test_an_update_without_weights_cannot_be_finished(server):
    async with connect(server) as (client, sync):
        await sync.write(params(1), 310)
        for call in only(update_steps(client, sync._written[0], "keep"), "update", "reset prefix cache", "resume")[:2]:
            await call()
        with pytest.raises(ServerError, match="no weights came"):
            await client.finish(310)
        assert await client.weight_info() is None
        await sync.push(client)


@pytest.mark.fault("F033")
async def test_a_file_that_was_overwritten_is_read_anew_or_refused(server):
    async with connect(server) as (client, sync):
        await sync.push_all([client], params(0), 400)
        stale, _ = sync._written
        await sync.push_all([client], params(1), 400)  # the same file, with other bytes
        assert sync._written[0].path == stale.path
        prompts, answers = await sample(client, 4)
        assert gaps(params(1), prompts, answers).max() <= 1e-4
        await client.pause("keep")
        await client.start_update()
        with pytest.raises(ServerError, match="checksum"):
            await client.update(stale.as_dict())
        await sync.push(client)


async def test_requests_under_way_go_on_with_the_new_weights(server):
    async with connect(server) as (client, sync):
        await sync.push_all([client], params(0), 500)
        await sync.write(params(1), 501)
        jobs = [asyncio.create_task(client.generate([i, 1, 2], Sampling(200))) for i in range(16)]
        await asyncio.sleep(0.15)
        await sync.push(client, "keep")
        answers = await asyncio.gather(*jobs)
        assert [len(a.ids) for a in answers] == [200] * 16
        assert [[v for v, _, _ in a.versions] for a in answers] == [[500, 501]] * 16
        for i, a in enumerate(answers):  # what the new weights drew has the new weights' log-probs
            (_, _, turn), _ = a.versions
            assert gaps(params(1), [[i, 1, 2]], [a])[0, turn:].max() <= 1e-4


async def test_requests_under_way_are_given_up_if_asked(server):
    async with connect(server) as (client, sync):
        await sync.push_all([client], params(0), 510)
        await sync.write(params(1), 511)
        jobs = [asyncio.create_task(client.generate([i, 1, 2], Sampling(200), i)) for i in range(16)]
        await asyncio.sleep(0.05)
        await sync.push(client, "abort")
        ends = [a.finish_reason for a in await asyncio.gather(*jobs)]
        assert "abort" in ends and set(ends) <= {"abort", "length"}, "some may have come to their end before"


async def test_a_seed_repeats_its_samples_whatever_stands_in_the_folder_and_the_queue(server):
    async with connect(server) as (client, sync):
        await sync.push_all([client], params(0), 600)
        # More prompt tokens at once than a step takes.
        long = np.random.default_rng(6).integers(0, CONFIG.vocab_size, (SLOTS, 200)).tolist()
        _, first = await sample(client, 1, prompts=long)
        _, again = await sample(client, 1, prompts=long)
        same = [await client.generate(long[0], Sampling(NEW), seed) for seed in (1, 1, 2)]
        assert [a.ids for a in first] == [a.ids for a in again]
        assert same[0].ids == same[1].ids == first[0].ids != same[2].ids
        assert {len(a.ids) for a in first} == {NEW}  # the folder's end, 5, ends nothing
        ended = await client.generate(long[0], Sampling(NEW, stop_ids=(first[0].ids[3],)), 1)
        assert (ended.ids, ended.finish_reason) == (first[0].ids[:4], "stop")


async def test_temperature_counts_in_log_probs_and_greedy_ones_are_at_one(server):
    async with connect(server) as (client, sync):
        await sync.push_all([client], params(0), 700)
        prompt = np.random.default_rng(7).integers(0, CONFIG.vocab_size, 40).tolist()
        hot = await client.generate(prompt, Sampling(1, temperature=0.5), 0)
        greedy = await client.generate(prompt, Sampling(1, temperature=0.0), 0)
        hidden = qwen3.forward(
            params(0), CONFIG, np.array([prompt]), np.arange(40)[None], np.ones((1, 40), np.int32)
        )[0, -1:]  # fmt: skip
        for answer, temperature in ((hot, 0.5), (greedy, 1.0)):
            (ours,) = logprobs.token_logprobs(
                params(0), CONFIG, hidden, np.array(answer.ids), temperature=temperature, chunk=64
            )
            assert answer.logprobs[0] == pytest.approx(float(ours), abs=1e-4)


# ---- a server that dies


class Running:
    """The module's server as the engine's host: it runs already, and outlives the engine."""

    def __init__(self, server):
        self.server = server

    async def start(self):
        return self.server.url if self.server.alive() else await self.server.start()

    async def stop(self):
        pass


class Lengths:
    """A grader to whom half of all texts are right, whatever they say."""

    async def grade(self, rubric, text):
        right = len(text) % 2
        return Verdict(bool(right), float(right), 1.0, float(right), "ok" if right else "wrong_answer")


@contextlib.asynccontextmanager
async def engine_on(server, weights, *, slots=SLOTS):
    """The engine as a job makes it, on the module's server."""
    store = WeightStore(functools.partial(hf.named_tensors, CONFIG, dtype="float32"), "float32")
    sync = WeightSync(store, functools.partial(_score, CONFIG), vocab_size=CONFIG.vocab_size, dtype="float32")
    expected = {"vocab_size": CONFIG.vocab_size, "max_model_len": LENGTH, "dtype": "float32",
                "logprobs_mode": LOGPROBS_MODE, "fingerprint": FINGERPRINT}  # fmt: skip
    engine = VllmEngine([Running(server)], sync, expected, weights, slots=slots, timeout_s=60)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()


def job():
    """Settings of a job in which every execution is three calls: two solvers side by side, then a judge of both."""
    c = settings.base()
    c.rollout.prompts = "tiny"
    c.rollout.max_prompt_tokens, c.rollout.max_executor_tokens = 120, 80
    c.rollout.budget.tokens, c.rollout.budget.wall_s = 4000, 200.0
    c.learner.row_tokens, c.learner.micro_rows, c.learner.updates_per_step = LENGTH, 16, 1
    with c.learner.unlocked():
        c.learner.call_cost = 0.0
    return c


async def test_a_rollout_outlives_its_server_and_learns_from_whole_answers_only(server):
    """Killed with requests under way: each gets its answer from the next server, drawn by the same weights."""
    tasks, m, n, c = 8, 2, 2, job()
    pairs = [(Task(f"t/{i}", "math", f"compute {i}+2"), Rubric(f"t/{i}", "math", gold=("1",))) for i in range(tasks)]
    script = 'answer = ensemble([solver(), solver("again")], judge=judge())(task)'
    learner = Learner(CONFIG, c.learner)
    states = {"shared": learner.init(params(1))}
    async with engine_on(server, Weights(params(0), 6), slots=16) as engine:
        await engine.update_weights(states["shared"].params, 7)
        engines = {"designer": ScriptedEngine(lambda _: script), "executor": engine}
        rollout = asyncio.create_task(
            collect(pairs, engines, Lengths(), designs=m, executions=n, config=c, step=0)
        )  # fmt: skip
        (seat,), first = engine._fleet.seats, server.pid
        while engine.stats.requests < tasks * m * n:  # of three times as many
            assert not rollout.done()
            await asyncio.sleep(0.002)
        under_way, answered = seat.load, engine.stats.requests
        os.killpg(first, signal.SIGKILL)
        trees = await rollout
        assert under_way > 1 and answered + under_way < 3 * tasks * m * n, "not in the middle of a rollout"

        stops = engines["designer"].chat.stop_ids
        calls = [call for tree in trees for design in tree.designs for e in design.executions for call in e.calls]
        assert [t.task.id for t in trees] == [t.id for t, _ in pairs]
        assert all(t.counted().shape == (m, n) and t.counted().all() for t in trees)
        assert {(e.status, len(e.calls)) for t in trees for d in t.designs for e in d.executions} == {("ok", 3)}
        assert {call.version for call in calls} == {7}
        for call in calls:
            whole = call.completion_ids[-1] in stops if call.finish_reason == "stop" else len(call.completion_ids) == 80
            assert whole and len(call.logprobs) == len(call.completion_ids)
        stats = engine.stats
        assert (stats.requests, stats.failures, stats.restarts) == (3 * tasks * m * n, 0, 1)
        assert 1 <= stats.retries <= 2 * under_way  # the second try may meet the dead server too
        assert server.pid not in (None, first) and await seat.client.weight_info() == 7

        owner = {"designer": "shared", "executor": "shared"}
        states, _, metrics = improve(trees, states, owner, learner, frozenset({"executor"}), seed=0)
        assert metrics["updates"] == 1 and metrics["trained"] == stats.tokens == sum(len(x.logprobs) for x in calls)
        assert metrics["mismatch/max"] <= 1e-4, "drawn by other weights than those that learn"
        await engine.update_weights(states["shared"].params, 8)
        (again,) = await collect(pairs[:1], engines, Lengths(), designs=1, executions=1, config=c, step=1)
        assert {call.version for call in again.designs[0].executions[0].calls} == {8}


async def test_bfloat16_agrees_within_its_rounding(tmp_path):
    server = make_server(tmp_path, "bfloat16")
    await server.start()
    try:
        async with connect(server, "bfloat16") as (client, sync):
            for version in range(2):
                await sync.push_all([client], params(version), version)
                prompts, answers = await sample(client, version)
                gap = gaps(params(version), prompts, answers, "bfloat16")
                assert gap.mean() <= 1e-2 and gap.max() <= 0.15, (gap.mean(), gap.max())
                assert gaps(params(version + 1), prompts, answers, "bfloat16").mean() > 0.1
    finally:
        await server.stop()


async def test_a_head_of_its_own_and_biases_arrive_too(tmp_path):
    server = make_server(tmp_path, "float32", OTHER)
    await server.start()
    try:
        async with connect(server, config=OTHER) as (client, sync):
            for version in range(3):
                await sync.push_all([client], params(version, OTHER), version)
                prompts, answers = await sample(client, version)
                assert gaps(params(version, OTHER), prompts, answers, config=OTHER).max() <= 1e-4
    finally:
        await server.stop()
