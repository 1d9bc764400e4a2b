"""The engine that answers from a rule."""

import asyncio

import pytest

from metaagent_x.mas.records import CallRequest
from metaagent_x.rollout.chat import Chat
from metaagent_x.rollout.engine import Completion, EngineFailure, Sampling
from metaagent_x.rollout.scripted import ScriptedEngine

CHAT = Chat()


def ask(path: str) -> CallRequest:
    return CallRequest(path, "solver", "Solve.", "", ("2+2?",))


async def test_text_becomes_ids_with_the_stop_id():
    engine = ScriptedEngine(lambda request: f"path {request.path}", logprob=-0.5, chat=CHAT)
    await engine.update_weights(None, 3)
    done = await engine.generate((1, 2), Sampling(99), 5, request=ask("0.1"))
    ids = (*CHAT.encode("path 0.1"), CHAT.stop_ids[0])
    assert done == Completion(ids, (-0.5,) * len(ids), "stop", 3)
    assert engine.requests == [ask("0.1")] and engine.seeds == [5] and engine.versions == [3]


@pytest.mark.parametrize("limit, finish", [(4, "length"), (5, "stop"), (1, "length"), (6, "stop")])
async def test_a_long_reply_is_cut_without_a_stop_id(limit, finish):
    done = await ScriptedEngine(lambda _: "four", chat=CHAT).generate((1,), Sampling(limit), 0, request=ask("0"))
    assert (len(done.ids), done.finish_reason) == (min(limit, 5), finish)
    assert (done.ids[-1] == CHAT.stop_ids[0]) == (finish == "stop")


@pytest.mark.fault("F024")
async def test_ids_of_a_reply_are_never_made_from_its_text_again():
    """Stop text is cut from text, not from ids (vllm-project/vllm#3672)."""
    ids = (*CHAT.encode("ans"), *CHAT.encode("##"))
    given = Completion(ids, (-0.1,) * len(ids), "stop", 0)
    assert await ScriptedEngine(lambda _: given).generate((1,), Sampling(9), 0, request=ask("0")) is given


@pytest.mark.fault("F027")
@pytest.mark.parametrize("failing", [{"2"}, {"0", "3"}])
async def test_a_failure_is_raised_to_its_own_request_only(failing):
    """A server outage must not look like an answer (Tencent-Hunyuan/UniRL#214)."""

    def reply(request: CallRequest) -> str:
        if request.path in failing:
            raise EngineFailure("HTTP 500")
        return "4"

    engine = ScriptedEngine(reply, chat=CHAT)
    asked = (engine.generate((1,), Sampling(9), 0, request=ask(str(i))) for i in range(4))
    done = await asyncio.gather(*asked, return_exceptions=True)
    assert {str(i) for i, c in enumerate(done) if isinstance(c, EngineFailure)} == failing
    assert sum(isinstance(c, Completion) for c in done) == 4 - len(failing)


@pytest.mark.fault("F019")
@pytest.mark.fault("F155")
@pytest.mark.parametrize("top_k, sent", [(None, -1), (0, -1), (-1, -1), (20, 20)])
async def test_a_request_names_every_sampling_parameter(top_k, sent):
    """What a request leaves open, a model folder fills in (NVIDIA-NeMo/RL#3497, Tencent-Hunyuan/UniRL#204)."""
    engine = ScriptedEngine(lambda _: "4", chat=CHAT)
    await engine.generate((1,), Sampling(9, top_k=top_k), 0, request=ask("0"))
    (s,) = engine.samplings
    named = (s.temperature, s.top_p, s.top_k, s.min_p, s.repetition_penalty)
    assert named == (1.0, 1.0, sent, 0.0, 1.0) and s.plain == (sent == -1)


async def test_misuse_is_an_error_that_says_what_is_missing():
    with pytest.raises(ValueError, match="pass request="):
        await ScriptedEngine(lambda _: "4", chat=CHAT).generate((1,), Sampling(9), 0)
    engine = ScriptedEngine(lambda _: "4")
    with pytest.raises(ValueError, match="pass chat="):
        await engine.generate((1,), Sampling(9), 0, request=ask("0"))
    await engine.close()
    with pytest.raises(EngineFailure, match="closed"):
        await engine.generate((1,), Sampling(9), 0, request=ask("0"))
