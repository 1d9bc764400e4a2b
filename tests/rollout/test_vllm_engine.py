"""The vLLM engine against a stub server that fails as told; what a real server shows is in test_vllm_server.py."""

import asyncio
import contextlib

import pytest
from stub_vllm import INFO, STOP, StubVllm

from metaagent_x import config
from metaagent_x.rollout import fleet, vllm_engine
from metaagent_x.rollout.collect import collect
from metaagent_x.rollout.engine import EngineFailure, EngineRefused, Sampling
from metaagent_x.rollout.fleet import Attached, Weights
from metaagent_x.rollout.routing import BLOCK, Homes, beginnings, choose
from metaagent_x.rollout.scripted import ScriptedEngine
from metaagent_x.rollout.vllm_engine import VllmEngine
from metaagent_x.tasks.task import Rubric, Task, Verdict

EXPECTED = {k: INFO[k] for k in ("vocab_size", "max_model_len", "dtype", "logprobs_mode", "fingerprint")}
SAMPLING = Sampling(max_tokens=16, stop_ids=(STOP,))
PROMPT = (1, 2, 3)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(vllm_engine, "BACKOFF_S", 0.01)
    monkeypatch.setattr(fleet, "PAUSE_S", 0.01)


class Handover:
    """A transfer without weights: the calls in their order, and which parameters were written last."""

    def __init__(self):
        self.written, self.closed = [], False

    async def write(self, params, version):
        assert not params or params.get("alive", True), "parameters that the learner has given away"
        self.written.append(version)

    async def push(self, client, in_flight):
        await client.pause(in_flight)
        await client.start_update()
        await client.update({})
        await client.finish(self.written[-1])
        await client.reset_prefix_cache()
        await client.resume()

    def close(self):
        self.closed = True


@contextlib.asynccontextmanager
async def engine_of(*stubs, version=0, expected=(), **settings):
    settings = {"timeout_s": 20.0, **settings}
    engine = VllmEngine(stubs, Handover(), {**EXPECTED, **dict(expected)}, Weights({}, version), **settings)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()


def ask(engine, seed=0, prompt=PROMPT, sampling=SAMPLING):
    return engine.generate(prompt, sampling, seed)


def hurry(engine, seconds=0.4):
    """A server may take so long from now on; its start, which takes many requests, is over."""
    for seat in engine._fleet.seats:
        seat.client.timeout_s = seat.client.control_timeout_s = seconds


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


# ---- routing


@pytest.mark.parametrize(
    ("loads", "home", "server"),
    [
        ([0, 0, 0], None, 0),
        ([3, 1, 2], None, 1),
        ([3, 1, 2], 2, 2),  # a little more loaded than the least
        ([3, 1, 4], 2, 1),  # clearly more
        ([None, 5, 9], 0, 1),  # its home takes nothing now
        ([None, None], 0, None),
        ([0], 0, 0),
    ],
)
def test_a_request_goes_home_unless_home_is_clearly_fuller(loads, home, server):
    assert choose(loads, home, slack=2) == server


def test_a_home_knows_at_least_half_of_the_prompt():
    homes, system = Homes(), list(range(BLOCK))
    homes.remember([*system, *range(1000, 1000 + 3 * BLOCK)], 1)
    assert homes.home([*system, *range(1000, 1000 + 3 * BLOCK), 5]) == 1
    assert homes.home([*system, *range(2000, 2000 + 3 * BLOCK)]) is None, "all prompts begin with the system text"
    assert homes.home(system) == 1
    assert homes.home([7, *system[1:]]) is None
    homes.forget(1)
    assert homes.home(system) is None


def test_beginnings_cover_all_before_them_and_memory_is_bounded():
    a, b = beginnings([1, *range(1, 3 * BLOCK)]), beginnings([2, *range(1, 3 * BLOCK)])
    assert len(a) == 3 and not set(a) & set(b)
    homes = Homes(room=2)
    for i in range(5):
        homes.remember([i] * BLOCK, i)
    assert [homes.home([i] * BLOCK) for i in range(5)] == [None, None, None, 3, 4]


# ---- what is sent, what is believed


@pytest.mark.fault("F019")
@pytest.mark.fault("F020")
async def test_every_request_names_every_sampling_parameter():
    """A model folder's generation config would else sample with its own (NeMo-RL#3497)."""
    async with StubVllm() as stub, engine_of(stub) as engine:
        done = await ask(engine, seed=7, sampling=Sampling(max_tokens=9, temperature=0.5, stop_ids=(STOP,)))
    (body,) = stub.bodies
    sent = body["sampling_params"]
    assert body["token_ids"] == list(PROMPT)
    wanted = {"temperature": 0.5, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "max_tokens": 9,
              "presence_penalty": 0.0, "frequency_penalty": 0.0, "stop_token_ids": [STOP], "seed": 7}  # fmt: skip
    assert {k: sent.get(k, "left out") for k in wanted} == wanted
    assert done.ids[-1] == STOP and done.finish_reason == "stop" and done.version == 0


@pytest.mark.fault("F023")
async def test_seeds_are_sent_and_decide_the_answer():
    async with StubVllm() as stub, engine_of(stub) as engine:
        a, b, again = await asyncio.gather(ask(engine, 1), ask(engine, 2), ask(engine, 1))
    assert a == again != b


async def test_on_a_cpu_nothing_is_frozen():
    """There vLLM 0.32 dies of a request with its own seed that goes on after an update."""
    async with StubVllm(device="cpu") as stub, engine_of(stub, in_flight="keep") as engine:
        stub.delay_s = 5.0
        asked = asyncio.create_task(ask(engine))
        await until(lambda: stub.now)
        stub.delay_s = 0.0
        await engine.update_weights({}, 1)
        assert (await asked).version == 1 and len(stub.bodies) == 2


@pytest.mark.fault("F024")
async def test_a_completion_that_ran_out_of_room_says_so_and_keeps_all_its_ids():
    async with StubVllm() as stub, engine_of(stub) as engine:
        whole = await ask(engine, 3)
        cut = await ask(engine, 3, sampling=Sampling(max_tokens=1, stop_ids=(STOP,)))
        await ask(engine, 3, prompt=(1,) * 250)
        with pytest.raises(ValueError, match=r"256 tokens.*cache_tokens=256"):
            await ask(engine, prompt=(1,) * 256)
        with pytest.raises(ValueError, match="id 512 is outside"):
            await ask(engine, prompt=(512,))
    assert cut.finish_reason == "length" and cut.ids == whole.ids[:1] and len(cut.logprobs) == 1
    assert [b["sampling_params"]["max_tokens"] for b in stub.bodies] == [16, 1, 6], "cut down to what there is room for"


@pytest.mark.parametrize(
    ("field", "ours"), [("vocab_size", 500), ("max_model_len", 512), ("dtype", "bfloat16"), ("fingerprint", "fe"),
                        ("logprobs_mode", "raw_logprobs")],
)  # fmt: skip
async def test_a_server_that_differs_is_refused_with_both_values(field, ours):
    async with StubVllm(**{field: ours}) as stub:
        with pytest.raises(EngineRefused, match=f"{field} is {ours!r}, not {INFO[field]!r}"):
            async with engine_of(stub):
                pass
    assert "inference/v1/generate" not in stub.paths()


async def test_another_vllm_is_refused_with_both_versions():
    async with StubVllm() as stub:
        stub.vllm = "0.29.1"
        with pytest.raises(EngineFailure, match=r"vLLM 0\.29\.1.*0\.32"):
            async with engine_of(stub):
                pass


# ---- failures


@pytest.mark.parametrize("fault", ["500", "half", "junk", "hang", "drip"])
@pytest.mark.fault("B044")
async def test_a_failed_try_is_made_again_and_draws_the_same(fault):
    """A request that stalls or breaks off must not end in a hung job (Raven#150)."""
    async with StubVllm() as stub, engine_of(stub) as engine:
        whole = await ask(engine, 5)
        hurry(engine)
        stub.faults.append(fault)
        again, other = await asyncio.gather(ask(engine, 5), ask(engine, 6))
        assert again == whole and other != whole
        assert (engine.stats.retries, engine.stats.failures) == (1, 0)
        assert stub.starts == 2, "a server that lives is not started again"


@pytest.mark.parametrize("fault", ["500", "half", pytest.param("hang", marks=pytest.mark.slow)])
@pytest.mark.fault("B044")
@pytest.mark.fault("F027")
async def test_tries_are_bounded_and_the_failure_is_the_engines(fault):
    """A server's outage is no answer of the policy (UniRL#214)."""
    async with StubVllm() as stub, engine_of(stub) as engine:
        hurry(engine)
        stub.faults.extend([fault] * vllm_engine.TRIES)
        with pytest.raises(EngineFailure, match="no answer in 3 tries"):
            await ask(engine)
        assert engine.stats.failures == 1
        assert (await ask(engine)).version == 0


@pytest.mark.parametrize(
    ("fault", "words"), [("short", "no whole completion"), ("vocabulary", "id 512 of a vocabulary of 512"),
                         ("refuse", "status 400"), ("cut", "says that it stopped, but")],
)  # fmt: skip
async def test_half_an_answer_is_none_and_is_not_asked_for_again(fault, words):
    async with StubVllm() as stub, engine_of(stub) as engine:
        stub.faults.append(fault)
        with pytest.raises(EngineFailure, match=words):
            await ask(engine)
        assert len(stub.bodies) == 1


async def test_an_answer_that_is_shorter_than_it_says_is_none():
    async with StubVllm() as stub, engine_of(stub) as engine:
        stub.faults.append("cut")
        with pytest.raises(EngineFailure, match="ran out of room, but has 1 ids of 2"):
            await ask(engine, 3, sampling=Sampling(max_tokens=2, stop_ids=(STOP,)))


async def test_whoever_goes_away_is_forgotten_by_the_server():
    async with StubVllm() as stub, engine_of(stub) as engine:
        stub.faults.append("hang")
        asked = asyncio.create_task(ask(engine))
        await until(lambda: stub.now)
        asked.cancel()
        await until(lambda: stub.dropped)
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert (await ask(engine)).ids


async def test_no_more_requests_at_once_than_slots():
    async with StubVllm() as a, StubVllm() as b, engine_of(a, b, slots=2) as engine:
        a.delay_s = b.delay_s = 0.02
        done = await asyncio.gather(*(ask(engine, seed) for seed in range(10)))
        assert len({c.ids for c in done}) == 10 and a.most == b.most == 2


async def test_a_server_that_hangs_again_and_again_is_started_again():
    async with StubVllm() as stub, engine_of(stub) as engine:
        hurry(engine)
        stub.faults.extend(["hang"] * 3)
        results = await asyncio.gather(*(ask(engine, i) for i in range(3)))
        assert all(r.version == 0 for r in results)
        assert stub.starts == 3 and engine.stats.restarts == 1


# ---- servers that come and go


async def test_a_server_that_dies_is_given_the_current_weights_before_it_serves_again():
    async with StubVllm() as stub, engine_of(stub) as engine:
        await engine.update_weights({}, 4)
        whole = await asyncio.gather(*(ask(engine, i) for i in range(6)))
        stub.faults.extend(["", "", "die"])
        again = await asyncio.gather(*(ask(engine, i) for i in range(6)))
        assert again == whole and {c.version for c in again} == {4}
        assert stub.starts == 3 and engine.stats.restarts == 1
        served = [v for path, v in stub.log if path == "inference/v1/generate"]
        assert set(served) == {"4"}, "asked while it had other weights"


async def test_others_go_on_while_one_is_away_and_after_it_is_lost():
    async with StubVllm() as a, StubVllm() as b, engine_of(a, b) as engine:
        whole = await asyncio.gather(*(ask(engine, i) for i in range(8)))

        async def gone():
            raise EngineFailure("no such machine")

        a.faults.append("die")
        a.start = gone
        assert await asyncio.gather(*(ask(engine, i) for i in range(8))) == whole
        await engine.update_weights({}, 1)
        assert {c.version for c in await asyncio.gather(*(ask(engine, i) for i in range(4)))} == {1}
        b.faults.append("die")
        b.start = gone
        with pytest.raises(EngineFailure, match="given up after 3 starts: no such machine"):
            await ask(engine)
        with pytest.raises(EngineFailure, match="given up"):
            await engine.update_weights({}, 2)


async def test_a_defect_in_bringing_a_server_back_leaves_nobody_waiting():
    async with StubVllm() as stub, engine_of(stub) as engine:

        async def defect():
            raise KeyError("port")

        stub.faults.append("die")
        stub.start = defect
        with pytest.raises(EngineFailure, match=r"KeyError.*port"):
            async with asyncio.timeout(10):
                await ask(engine)


async def test_a_look_that_a_restart_overtakes_ends_without_a_verdict():
    async with StubVllm() as stub, engine_of(stub) as engine:
        (seat,) = engine._fleet.seats
        assert seat.client is not None
        healthy, start, restarting = seat.client.healthy, stub.start, asyncio.Event()

        async def late():
            await restarting.wait()
            return await healthy()

        async def slow():
            restarting.set()
            await asyncio.sleep(0.05)
            return await start()

        seat.client.healthy, stub.start = late, slow
        look = asyncio.create_task(engine._fleet.examine(seat))
        await until(engine._fleet._pushing.locked)
        engine._fleet.recover(seat, restart=True)
        assert await look is False
        assert (await ask(engine)).version == 0


async def test_a_push_that_a_restart_overtakes_gives_no_place():
    """The old server took the weights; the one that comes has not."""
    async with StubVllm() as stub, engine_of(stub) as engine:
        (seat,) = engine._fleet.seats
        stub.update_s, start = 0.05, stub.start

        async def slow():
            await asyncio.sleep(0.2)
            stub.update_s = 0.0
            return await start()

        stub.start = slow
        update = asyncio.create_task(engine.update_weights({}, 1))
        await until(lambda: stub.paths().count("update_weights") == 2)
        engine._fleet.recover(seat, restart=True)
        assert (await ask(engine)).version == 1 and engine.stats.retries == 0
        await update


async def test_clients_of_servers_that_are_gone_do_not_pile_up():
    async with StubVllm() as stub, engine_of(stub) as engine:
        for _ in range(2):
            engine._fleet.recover(engine._fleet.seats[0], restart=True)
            await until(lambda: engine._fleet.seats[0].recovery is None)
        assert engine.stats.restarts == 2 and not engine._fleet._retired
        assert (await ask(engine)).ids


async def test_who_waits_for_a_place_costs_nothing(monkeypatch):
    """All of them ask again whenever one request is done, each with a prompt of thousands of ids."""
    async with StubVllm() as stub, engine_of(stub, slots=1) as engine:
        looked_up = []
        home = Homes.home
        monkeypatch.setattr(Homes, "home", lambda self, ids: looked_up.append(1) or home(self, ids))
        await asyncio.gather(*(ask(engine, seed) for seed in range(6)))
        assert len(looked_up) == 6


async def test_a_server_that_was_restarted_behind_our_back_gets_weights_before_it_is_believed():
    async with StubVllm() as stub, engine_of(stub, version=3) as engine:
        whole = await ask(engine)
        await stub.start()
        assert await ask(engine) == whole
        assert stub.version == "3" and engine.stats.restarts == 1
        assert stub.starts == 3, "it answers: pushing is enough"


async def test_tokens_of_other_weights_are_not_believed():
    async with StubVllm() as stub, engine_of(stub, version=3) as engine:
        stub.faults.append("other version")
        assert (await ask(engine)).version == 3
        assert engine.stats.retries == 1 and engine.stats.restarts == 1


class Grader:
    async def grade(self, rubric, text):
        return Verdict(True, 1.0, 1.0, 1.0, "")


async def rollout(engine):
    """4 executions of 2 solvers each, on the engine; the script is given."""
    c = config.base()
    c.rollout.max_prompt_tokens, c.rollout.max_executor_tokens = 4000, 8
    script = "```python\nanswer = vote(together([solver('a'), solver('b')], task))\n```"
    (tree,) = await collect(
        [(Task("t", "math", "What is 3 + 4?"), Rubric("t", "math", gold=("7",)))],
        {"designer": ScriptedEngine(lambda _: script), "executor": engine}, Grader(), designs=2, executions=2, config=c,
        step=0,
    )  # fmt: skip
    return tree


@pytest.mark.slow
@pytest.mark.fault("F027")
async def test_a_rollout_outlives_its_server():
    """Killed in the middle: every execution is accounted for, and none trains on what it did not get."""
    expected = {"max_model_len": 4096}
    async with StubVllm(**expected) as stub, engine_of(stub, version=2, expected=expected) as engine:
        whole = await rollout(engine)
        stub.faults.extend(["", "", "die"])
        again = await rollout(engine)
        assert engine.stats.restarts == 1 and not engine.stats.failures
        said = [[c.completion_ids for c in t.calls() if c.agent != "designer"] for t in (whole, again)]
        assert said[0] == said[1] and len(said[0]) == 8
        assert {c.version for c in again.calls() if c.agent != "designer"} == {2}

        async def gone():
            raise EngineFailure("no such machine")

        stub.faults.extend(["", "", "die"])
        stub.start = gone
        lost = await rollout(engine)
        runs = [e for d in lost.designs for e in d.executions]
        assert len(runs) == 4 and any(e.void for e in runs) and engine.stats.failures == 0
        assert all(e.void or len(e.calls) == 2 for e in runs)
        assert all("no such machine" in e.reason for e in runs if e.void)
        assert len(lost.executor_trajectories()) == 2 * sum(not e.void for e in runs)


# ---- weights


@pytest.mark.fault("F040")
async def test_weights_come_before_the_first_request():
    """A resumed run samples from the restored policy at once (prime-rl#3004)."""
    async with StubVllm() as stub, engine_of(stub, version=5) as engine:
        assert (await ask(engine)).version == 5
        assert [v for path, v in stub.log if path == "inference/v1/generate"] == ["5"]


@pytest.mark.fault("F029")
@pytest.mark.parametrize("in_flight", ["keep", "abort"])
async def test_a_request_during_an_update_waits_and_gets_the_new_weights(in_flight):
    """(torchforge#251)"""
    async with StubVllm() as stub, engine_of(stub, in_flight=in_flight) as engine:
        stub.update_s = 0.05
        update = asyncio.create_task(engine.update_weights({}, 1))
        await until(lambda: stub.paths().count("update_weights") == 2)
        assert (await ask(engine)).version == 1
        assert stub.paths().count("inference/v1/generate") == 1 and update.done()
        assert ("inference/v1/generate", "1") in stub.log


async def test_what_an_update_aborts_begins_again_with_the_new_weights():
    async with StubVllm() as stub, engine_of(stub, in_flight="abort") as engine:
        stub.delay_s = 5.0
        asked = asyncio.create_task(ask(engine))
        await until(lambda: stub.now)
        stub.delay_s = 0.0
        await engine.update_weights({}, 1)
        assert (await asked).version == 1
        assert engine.stats.failures == engine.stats.retries == 0


async def test_an_update_that_breaks_off_is_made_again_in_full():
    async with StubVllm() as stub, engine_of(stub) as engine:
        stub.fail_updates = 1
        await engine.update_weights({}, 1)
        assert (await ask(engine)).version == 1
        assert stub.starts == 3 and engine.stats.restarts == 1


async def test_a_server_that_hangs_in_an_update_is_started_again_long_before_a_request_would_end():
    async with StubVllm() as stub, engine_of(stub, timeout_s=900.0, push_timeout_s=2.0) as engine:
        stub.update_s, start = 900.0, stub.start

        async def come_back():
            stub.update_s = 0.0
            return await start()

        stub.start = come_back
        async with asyncio.timeout(60):
            await engine.update_weights({}, 1)
        assert stub.starts == 3 and (await ask(engine)).version == 1


async def test_an_update_goes_on_if_who_asked_for_it_goes_away():
    async with StubVllm() as stub, engine_of(stub) as engine:
        stub.update_s = 0.03
        update = asyncio.create_task(engine.update_weights({}, 1))
        await until(lambda: stub.paths().count("update_weights") == 2)
        update.cancel()
        assert (await ask(engine)).version == 1


async def test_other_weights_play_in_turn_and_each_request_gets_its_own():
    """The cross table: a Designer of one policy, an Executor of another, on the same servers."""
    async with StubVllm() as a, StubVllm() as b, engine_of(a, b, version=6) as engine:
        cold = engine.playing({}, 0)
        a.delay_s, b.delay_s = 0.01, 0.2  # a turn must not end while somebody is being answered

        async def design_and_execute(seed):
            return (await ask(cold, seed)).version, (await ask(engine, seed)).version

        done = await asyncio.gather(*(design_and_execute(i) for i in range(12)))
        assert set(done) == {(0, 6)}
        assert a.paths().count("finish_weight_update") == 3, "the policies take turns, not every request its own"
        await engine.update_weights({}, 7)
        assert (await ask(cold)).version == 0 and (await ask(engine)).version == 7


async def test_an_update_does_not_give_its_weights_to_others_requests_under_way():
    async with StubVllm() as stub, engine_of(stub, version=6, in_flight="keep") as engine:
        cold = engine.playing({}, 0)
        await ask(cold)
        stub.delay_s = 0.1
        asked = asyncio.create_task(ask(cold))
        await until(lambda: stub.now)
        await engine.update_weights({}, 7)
        assert (await asked).version == 0 and engine.stats.retries == 0


async def test_whoever_had_weights_given_is_answered_before_others_have_theirs():
    async with StubVllm() as stub, engine_of(stub, version=6) as engine:
        stub.update_s = 0.02
        cold = asyncio.create_task(ask(engine.playing({}, 0)))
        await until(lambda: stub.paths().count("update_weights") == 2)
        assert (await ask(engine)).version == 6, "asked while the others' weights came"
        assert (await cold).version == 0
        assert stub.paths().count("finish_weight_update") == 3


async def test_a_server_of_somebody_else_is_waited_for_and_left_running():
    async with StubVllm() as stub:
        async with engine_of(Attached(stub.url)) as engine:
            assert (await ask(engine)).version == 0
        assert stub.starts == 1
    with pytest.raises(EngineFailure, match="does not answer within"):
        async with engine_of(Attached(stub.url, start_timeout_s=0.05)):
            pass


async def test_the_same_version_is_not_given_twice():
    async with StubVllm() as stub, engine_of(stub) as engine:
        assert (await ask(engine.playing({}, 0))).version == 0
        assert stub.paths().count("finish_weight_update") == 1


async def test_after_the_end_nobody_waits():
    async with StubVllm() as stub, engine_of(stub, slots=1) as engine:
        stub.faults.append("hang")
        waiting = [asyncio.create_task(ask(engine)) for _ in range(3)]
        await until(lambda: stub.now)
        await engine.close()
        done = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(d, EngineFailure) for d in done), done
        with pytest.raises(EngineFailure, match="closed"):
            await ask(engine)
