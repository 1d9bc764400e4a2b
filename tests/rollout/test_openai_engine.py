"""An endpoint that gives text: what it is sent, what is tried again, and that nothing is trained on its answers."""

import asyncio

import pytest
from stub_vllm import StubVllm

from metaagent_x import config
from metaagent_x.learner import credit
from metaagent_x.rollout import openai_engine
from metaagent_x.rollout.chat import Chat
from metaagent_x.rollout.collect import collect
from metaagent_x.rollout.engine import EngineFailure, Sampling
from metaagent_x.rollout.openai_engine import OpenAIEngine
from metaagent_x.rollout.scripted import ScriptedEngine
from metaagent_x.tasks.task import Rubric, Task, Verdict

CHAT = Chat()
SAMPLING = Sampling(max_tokens=16, temperature=0.7, stop_ids=tuple(CHAT.stop_ids))


def engine_of(stub, **settings):
    return OpenAIEngine(f"{stub.url}/v1", "some-model", CHAT, key="secret", **settings)


def ask(engine, prompt=None):
    return engine.generate(tuple(prompt or CHAT.prompt("be brief", "3 + 4?")), SAMPLING, 5)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(openai_engine, "BACKOFF_S", 0.005)


async def test_it_is_sent_the_turns_of_the_prompt_and_gives_text_without_ids():
    async with StubVllm() as stub:
        engine = engine_of(stub)
        done = await ask(engine)
        memory = CHAT.extend([*CHAT.prompt("", "first\nline"), *CHAT.encode("an <answer>"), CHAT.stop_ids[0]], "next")
        await ask(engine, memory)
        await engine.close()
    assert (done.text, done.ids, done.logprobs, done.finish_reason) == ("heard 2", (), (), "stop")
    first, second = stub.bodies
    assert first["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "3 + 4?"}]
    assert [(m["role"], m["content"]) for m in second["messages"]] == [
        ("user", "first\nline"), ("assistant", "an <answer>"), ("user", "next")
    ]  # fmt: skip
    sent = {k: first[k] for k in ("model", "max_tokens", "temperature", "top_p", "seed", "n")}
    assert sent == {"model": "some-model", "max_tokens": 16, "temperature": 0.7, "top_p": 1.0, "seed": 5, "n": 1}


async def test_sampling_beyond_the_protocol_is_sent_only_where_asked_for():
    async with StubVllm() as stub:
        engine = engine_of(stub)
        await engine.generate(tuple(CHAT.prompt("", "?")), SAMPLING, 5)
        odd = Sampling(16, temperature=0.0, top_k=20, repetition_penalty=1.2, stop_ids=tuple(CHAT.stop_ids))
        await engine.generate(tuple(CHAT.prompt("", "?")), odd, 5)
        await engine.close()
    names = {"top_k", "min_p", "repetition_penalty"}
    assert not names & stub.bodies[0].keys()
    assert {k: v for k, v in stub.bodies[1].items() if k in names} == {"top_k": 20, "repetition_penalty": 1.2}


@pytest.mark.fault("B044")
@pytest.mark.parametrize("fault", ["429", "500", "half", "hang", "junk"])
async def test_what_may_pass_is_tried_again_and_others_go_on(fault):
    async with StubVllm() as stub:
        stub.faults.append(fault)
        engine = engine_of(stub, timeout_s=0.2)
        done = await asyncio.gather(ask(engine), ask(engine))
        assert engine.outages == 1
        await engine.close()
    assert [d.text for d in done] == ["heard 2", "heard 2"] and len(stub.bodies) == 3


async def test_an_endpoint_that_asks_for_patience_gets_it():
    assert openai_engine._retry_after("0.25") == 0.25
    assert openai_engine._retry_after("86400") == openai_engine.LONGEST_WAIT_S
    assert openai_engine._retry_after("Wed, 21 Oct 2026 07:28:00 GMT") == openai_engine._retry_after("") == 0.0
    assert openai_engine._retry_after("nan") == openai_engine._retry_after("-3") == 0.0


@pytest.mark.parametrize(("fault", "tries"), [("refuse", 1), ("429", openai_engine.TRIES)])
async def test_what_will_not_pass_is_a_failure_of_the_engine(fault, tries):
    async with StubVllm() as stub:
        stub.faults.extend([fault] * 9)
        engine = engine_of(stub)
        with pytest.raises(EngineFailure, match=f"in {tries} tries: status 4"):
            await ask(engine)
        await engine.close()
    assert len(stub.bodies) == tries


class Always:
    async def grade(self, rubric, text):
        return Verdict(True, 1.0, 1.0, 1.0, "")


async def test_a_tree_of_text_is_played_and_graded_but_never_trained_on():
    c = config.base()
    c.rollout.max_prompt_tokens = 16_384
    async with StubVllm() as stub:
        endpoint = engine_of(stub)
        script = "```python\na = agent('a', 'you add', memory=True)\nanswer = a(a(task))\n```"
        designer = ScriptedEngine(lambda _: script)
        (tree,) = await collect(
            [(Task("t", "math", "What is 3 + 4?"), Rubric("t", "math", gold=("7",)))],
            {"designer": designer, "executor": endpoint}, Always(), designs=1, executions=2, config=c, step=0,
        )  # fmt: skip
        await endpoint.close()
    (design,) = tree.designs
    assert [[call.text for call in e.calls] for e in design.executions] == [["heard 2", "heard 4"]] * 2
    assert all(e.answer == "heard 4" and e.reward == 1.0 for e in design.executions)
    with pytest.raises(ValueError, match="text without token ids"):
        credit.assign([tree], frozenset({"executor"}))


def test_settings_without_an_endpoint_are_refused():
    c = config.base()
    c.engine.kind = "openai"
    with pytest.raises(config.ConfigError, match=r"engine\.urls=\(\)"):
        config.validate(c)
    c.engine.urls, c.engine.model = ("https://example.org/v1",), "some-model"
    config.validate(c)
