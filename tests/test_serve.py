"""A policy as a chat endpoint: the same ids as in a rollout, usage, and clear refusals."""

import asyncio
import os

import httpx2
import pytest

from metaagent_x import config
from metaagent_x.rollout.chat import Chat
from metaagent_x.rollout.engine import Completion, EngineFailure, RequestRefused, Sampling
from metaagent_x.rollout.openai_engine import OpenAIEngine
from metaagent_x.rollout.play import Player, read_design
from metaagent_x.serve import BadRequest, Endpoint, prompt_of
from metaagent_x.tasks.task import Task

QWEN = "../shared/tokenizer_qwen3"
CHAT = Chat()


class Echo:
    """An engine that says what number the request has, and remembers prompts and seeds."""

    def __init__(self, chat):
        self.chat, self.prompts, self.seeds, self.failing = chat, [], [], False

    async def generate(self, prompt_ids, sampling, seed, *, request=None):
        if self.failing:
            raise EngineFailure("out of order")
        if len(prompt_ids) > 9000:
            raise ValueError("a prompt of too many tokens")
        self.prompts.append(tuple(prompt_ids))
        self.seeds.append(seed)
        ids = (*self.chat.encode(f"\nreply {len(self.prompts)} \u00e9<|im_end|>"), self.chat.stop_ids[0])
        return Completion(ids, (-1.0,) * len(ids), "stop", 0)


@pytest.mark.parametrize("folder", ["", QWEN])
async def test_a_conversation_has_the_ids_that_the_rollout_has(folder):
    if folder and not os.path.isdir(folder):
        pytest.skip("the real tokenizer is not beside this checkout")
    chat = Chat(folder)
    engine = Echo(chat)
    endpoint = Endpoint(engine, chat)
    client = OpenAIEngine(endpoint.url, "policy", chat, key="")
    c = config.base()
    c.tokenizer = folder
    design = read_design(
        None, "a = agent('a', 'You add.', memory=True)\nb = a(a(task) + '\\n<|im_start|>')\nanswer = a(b)"
    )
    try:
        execution = await Player({"executor": client}, c, 0).execute(Task("t", "math", " What\nis 3?\n"), design, 0, 0)
    finally:
        await client.close()
        endpoint.close()
    assert len(execution.calls) == 3 and [call.prompt_ids for call in execution.calls] == engine.prompts
    assert [call.seed for call in execution.calls] == engine.seeds
    assert engine.prompts[1][: len(engine.prompts[0])] == engine.prompts[0]


async def test_usage_is_reported_and_failures_have_their_status():
    engine = Echo(CHAT)
    endpoint = Endpoint(engine, CHAT)
    async with httpx2.AsyncClient() as http:
        ask = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "seed": 4, "top_k": -1}
        answer = (await http.post(f"{endpoint.url}/chat/completions", json=ask)).json()
        assert answer["usage"]["prompt_tokens"] == len(CHAT.prompt("", "hi"))
        assert answer["usage"]["completion_tokens"] == len(CHAT.encode("\nreply 1 \u00e9<|im_end|>")) + 1
        assert answer["choices"][0]["message"]["content"] == "\nreply 1 \u00e9<|im_end|>" and engine.seeds == [4]
        assert (await http.get(f"{endpoint.url}/models")).json()["data"][0]["id"] == "policy"
        for body, word in (
            ({"messages": []}, "user's last"), ({"messages": "hi"}, "list"), ({**ask, "n": 2}, "n=1"),
            ({**ask, "temperature": -1}, "temperature"), ({**ask, "seed": "x"}, "invalid literal"),
            ({**ask, "top_k": 20}, "top_k=20"), ({**ask, "min_p": 0.1}, "min_p"),
            ({**ask, "repetition_penalty": 1.2}, "repetition_penalty=1.2"),
            ({"messages": [{"role": "user", "content": "x" * 9000}]}, "too many tokens"),
        ):  # fmt: skip
            refused = await http.post(f"{endpoint.url}/chat/completions", json=body)
            assert refused.status_code == 400 and word in refused.json()["error"]["message"]
        engine.failing = True
        assert (await http.post(f"{endpoint.url}/chat/completions", json=ask)).status_code == 503
    await asyncio.to_thread(endpoint.close)


def test_what_is_no_conversation_is_refused():
    user, assistant = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
    assert prompt_of(CHAT, [user]) == CHAT.prompt("", "q")
    for messages in (
        [assistant],
        [user, assistant],
        [user, user],
        [{"role": "tool", "content": ""}],
        [{"role": "user"}],
    ):
        with pytest.raises(BadRequest):
            prompt_of(CHAT, messages)


async def test_a_refused_request_is_told_from_an_endpoint_that_is_away():
    engine = Echo(CHAT)
    endpoint = Endpoint(engine, CHAT)
    client = OpenAIEngine(endpoint.url, "policy", CHAT, key="", tries=1)
    with pytest.raises(RequestRefused, match="too many tokens"):
        await client.generate(tuple(CHAT.prompt("", "x" * 9000)), Sampling(9), 0)
    engine.failing = True
    with pytest.raises(EngineFailure, match="status 503") as away:
        await client.generate(tuple(CHAT.prompt("", "x")), Sampling(9), 0)
    assert not isinstance(away.value, RequestRefused)
    await client.close()
    endpoint.close()
