"""Examples from files: what is learned of them, in which order, with which weight."""

import asyncio
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from configs import sft_tiny
from metaagent_x import assemble, config, examples
from metaagent_x.examples import Example
from metaagent_x.learner.packing import pack
from metaagent_x.learner.step import Learner
from metaagent_x.model import qwen3
from metaagent_x.rollout.chat import Chat
from metaagent_x.rollout.play import Player, chat_for
from metaagent_x.rollout.scripted import ScriptedEngine
from metaagent_x.rollout.tree import Trajectory, trajectories_of
from metaagent_x.tasks.splits import held_out
from metaagent_x.tasks.task import Task

QWEN3 = Path(__file__).parents[2] / "shared" / "tokenizer_qwen3"
MODEL = qwen3.Qwen3Config(
    vocab_size=64, hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, intermediate_size=32
)
SHARED = {"messages": [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "say"}]}


@pytest.fixture(params=["bytes", "qwen3"])
def tokenizer(request):
    if request.param == "bytes":
        return ""
    if not QWEN3.exists():
        pytest.skip("the Qwen3 tokenizer is not beside the repository (../shared/tokenizer_qwen3)")
    return str(QWEN3)


def written(folder, name, *records):
    """A file of these lines; what is no string becomes JSON."""
    path = folder / name
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return str(path)


def line(role="executor", task="t", user="ask", reply="say", **more):
    messages = [{"role": "user", "content": user}, {"role": "assistant", "content": reply}]
    return {"messages": messages, "role": role, "task_id": task, **more}


def rows(*roles, length=6, learned=3):
    """Trajectories of at least so many ids, each longer by one, the last ones learned; no two are alike."""
    out = []
    for i, role in enumerate(roles):
        n = length + i
        ids = tuple((7 * i + j) % 60 + 1 for j in range(n))
        out.append(Trajectory(ids, (False,) * (n - learned) + (True,) * learned, (0.0,) * n, role=role))
    return out


# ---- ids


@pytest.mark.fault("F010")
@pytest.mark.fault("F012")
def test_a_conversation_is_learned_in_the_ids_that_a_rollout_of_it_sends_and_samples(tokenizer):
    """Of the Designer, of an agent with a system text of its own, and of one that remembers its earlier turns."""
    c = config.base()
    c.tokenizer = tokenizer
    script = "a = agent('bob', 'You add.', memory=True)\nx = a(task)\nanswer = a('Sure?\\n' + solver('cases')(task))"
    said = {
        "designer": f"Two agents.\n```python\n{script}\n```",
        "bob": "  3 + 4 = 7\n",
        "solver": "\\boxed{7} <b>é</b>",
    }
    engine = ScriptedEngine(lambda request: said[request.agent])
    player = Player({"designer": engine, "executor": engine}, c, step=0)

    async def play():
        design = await player.design(Task("t", "math", "What is 3 + 4?"), 0)
        return design, await player.execute(Task("t", "math", "What is 3 + 4?"), design, 0, 0)

    design, execution = asyncio.run(play())
    assert design.call is not None and execution.status == "ok", execution.reason
    chat = chat_for(tokenizer)
    told = player.prompts.designer_user(Task("t", "math", "What is 3 + 4?"))
    asked = Example("designer", player.prompts.designer_system, ((told, said["designer"]),))
    found = [(asked, trajectories_of([design.call], role="designer")[0])]
    conversations = {}
    for call in execution.calls:
        conversations.setdefault(call.conversation or call.path, []).append(call)
    for calls in conversations.values():
        turns = tuple(("\n".join(call.messages), call.text) for call in calls)
        found.append((Example("executor", calls[0].role_prompt, turns), trajectories_of(calls)[0]))
    assert sorted(len(example.turns) for example, _ in found) == [1, 1, 2]
    for example, played in found:
        row = examples.trajectory(chat, example)
        assert (row.tokens, row.mask, row.role) == (played.tokens, played.mask, played.role)


@pytest.mark.fault("F010")
def test_the_empty_think_block_is_context_and_the_end_token_is_learned_in_every_turn():
    if not QWEN3.exists():
        pytest.skip("the Qwen3 tokenizer is not beside the repository (../shared/tokenizer_qwen3)")
    row = examples.trajectory(Chat(str(QWEN3)), Example("executor", "Add.", (("3+4", "7"), ("5+6", "11"))))
    header, end = [151644, 77091, 198, 151667, 271, 151668, 271], 151645
    begins = [i for i in range(len(row.tokens)) if list(row.tokens[i : i + 7]) == header]
    assert len(begins) == 2
    for at in begins:
        assert row.mask[at : at + 7] == (False,) * 7 and row.mask[at + 7]
    learned = [[i for i in range(at + 7, len(row.tokens)) if row.mask[i]] for at in begins]
    assert [row.tokens[i] for i in learned[0]] == [22, end, 16, 16, end]  # "7", "1", "1"
    assert sum(row.mask) == 5 and row.tokens[-1] == end


# ---- files


def test_both_spellings_say_the_same_and_other_fields_are_not_looked_at(tmp_path):
    chat = {
        "messages": [
            {"role": "system", "content": "S"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"},
        ],
        "role": "designer", "task_id": "x", "provenance": {"seed": 1},
    }  # fmt: skip
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    gpt = {
        "conversations": [{"from": names[m["role"]], "value": m["content"]} for m in chat["messages"]],
        "role": "designer", "task_id": "x",
    }  # fmt: skip
    found = examples.read(written(tmp_path, "a.jsonl", chat, "", gpt, SHARED))
    assert found[:2] == [Example("designer", "S", (("a", "b"), ("c", "d")), "x")] * 2
    assert found[2] == Example("executor", "", (("ask", "say"),), "ask")


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("{", "line 2: Expecting property name"),
        ([1], "line 2: is list, not an object"),
        ({"text": "a"}, "line 2: conversations must be a list of messages, under this name or 'messages'"),
        ({"messages": []}, "messages must be a list"),
        ({"messages": ["a"]}, "messages[0] is str, not an object"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content is ['a']; it must be a string"),
        ({"messages": SHARED["messages"][:1]}, "messages must end with a reply"),
        ({"messages": [{"role": "system", "content": "a"}]}, "messages must end with a reply"),
        ({"messages": SHARED["messages"][::-1]}, "messages[0].role is 'assistant' where 'user' must speak"),
        ({"messages": [{"role": "tool", "content": "a"}, SHARED["messages"][1]]}, "messages[0].role is 'tool'"),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": " "}]},
         "conversations[1].value is empty"),
        ({"messages": [{"role": "system", "content": "a"}, SHARED["messages"][0],
                       {"role": "assistant", "content": "<think>\n\n</think>\n\nsay"}]},
         "messages[2].content holds <think>"),
        (SHARED | {"role": "critic"}, "role is 'critic'; it must be one of designer, executor"),
        (SHARED | {"task_id": 7}, "task_id is 7; it must be a string"),
    ],
)  # fmt: skip
def test_a_bad_line_is_told_by_file_line_and_field(tmp_path, bad, words):
    path = written(tmp_path, "a.jsonl", SHARED, bad)
    with pytest.raises(examples.ExamplesError) as error:
        examples.read(path)
    assert str(error.value).startswith(f"{path}, line 2: ") and words in str(error.value)


@pytest.mark.parametrize(("name", "words"), [("none.jsonl", "cannot read"), ("empty.jsonl", "holds no example")])
def test_a_file_that_is_missing_or_empty_is_named(tmp_path, name, words):
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(examples.ExamplesError, match=rf"examples\.files: .*{name}|{words}.*{name}"):
        examples.read(tmp_path / name)


# ---- order


def test_every_stretch_of_an_epoch_holds_its_share_of_each_role():
    """Three of eleven: a batch without Designer examples would leave the share of the Designer to chance."""
    roles = ["designer"] * 30 + ["executor"] * 80
    taken = examples.order(roles, seed=1, epoch=0)
    assert sorted(taken) == list(range(110))
    for start in range(0, 110, 11):
        assert 2 <= sum(i < 30 for i in taken[start : start + 11]) <= 4
    assert examples.order(roles, 1, 0) == taken
    others = [examples.order(roles, 1, 1), examples.order(roles, 2, 0)]
    assert taken not in others and others[0] != others[1]


def test_updates_take_about_equally_many_tokens_and_everything_in_order():
    lengths = [3, 3, 3, 3, 3, 3, 2]  # 20 tokens, 9 at most: three runs of 6 2/3; middles at 1.5, 4.5, 7.5, ...
    assert examples.cut(range(7), lengths, 9) == [[0, 1], [2, 3], [4, 5, 6]]
    assert examples.cut([4, 1], lengths, 9) == [[4, 1]]
    assert examples.cut([0, 1, 2], [1, 50, 1], 9) == [[0], [1], [2]]
    assert examples.cut([], [], 9) == []


# ---- weights


def test_the_designer_has_its_share_of_every_update_and_tokens_of_a_role_weigh_alike():
    made = rows("designer", "executor", "executor", "designer", "executor")
    batch = examples.weigh(pack(made, 32, rows_multiple=2), 0.3)
    by_role = [batch.weights[batch.mask & (batch.roles == code)] for code in (1, 2)]
    np.testing.assert_allclose(by_role[0], 0.3 / 6, rtol=1e-6)
    np.testing.assert_allclose(by_role[1], 0.7 / 9, rtol=1e-6)
    assert batch.weights[~batch.mask].sum() == 0


@pytest.mark.parametrize(("roles", "designer"), [(["designer", "executor"], 0.0), (["executor"] * 2, 0.3)])
def test_tokens_weigh_alike_without_a_share_or_a_second_role(roles, designer):
    batch = examples.weigh(pack(rows(*roles), 32), designer)
    np.testing.assert_allclose(batch.weights[batch.mask], 1 / 6, rtol=1e-6)


def test_an_update_is_the_weighted_mean_over_roles_however_the_batch_is_cut():
    """Worked out from the log-probs: 0.3 of the Designer's mean and 0.7 of the Executor's; 1 or 4 rows at once."""
    made = rows("designer", "executor", "executor", "executor", "designer", "executor", length=9)
    batch = examples.weigh(pack(made, 15, rows_multiple=4), 0.3)
    assert batch.mask.shape[0] == 8  # more rows than any micro-batch
    params, after, means = qwen3.init(MODEL, jax.random.key(0)), [], []
    for micro in (4, 1):
        s = config.base().sft
        s.update({"micro_rows": micro, "warmup_steps": 0, "row_tokens": 15})
        learner = Learner(MODEL, s)
        if not means:
            logp = learner.logprobs(params, batch)
            means = [-logp[batch.mask & (batch.roles == code)].mean() for code in (1, 2)]
        state, metrics = learner.supervised_update(learner.init(params), batch)
        assert metrics["loss"] == pytest.approx(0.3 * means[0] + 0.7 * means[1], rel=1e-5)
        after.append((metrics["grad_norm"], state.params))
    assert after[1][0] == pytest.approx(after[0][0], rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), after[1][1], after[0][1])


# ---- the pool of a job


def job(folder, *files, **changed):
    c = sft_tiny.get_config()
    c.examples.files = files
    c.examples.designer = 0.0
    c.sft.update({"cache": str(folder / "cache"), "rows": 2, "micro_rows": 2, "warmup_steps": 0, "vocab_size": 300})
    c.model.update({"hidden_size": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8})
    for field, value in changed.items():
        group, name = field.split("__")
        c[group][name] = value
    config.validate(c)
    return c


def test_no_task_is_both_learned_and_held_out_and_other_examples_move_nothing(tmp_path):
    names = [f"task/{i}" for i in range(60)]
    both = [
        written(tmp_path, f"{role}.jsonl", *(line(role, name, reply=name) for name in names))
        for role in ("designer", "executor")
    ]
    pool = examples.open_pool(job(tmp_path, *both, examples__hold_out=0.25))
    away, kept = ([t.task_id for t in side] for side in (pool.held, pool.rows))
    assert set(away) == {name for name in names if held_out(name, 0.25)} and 5 < len(set(away)) < 25
    assert sorted(away + kept) == sorted(names * 2) and not set(away) & set(kept)
    alone = examples.open_pool(job(tmp_path, both[1], examples__hold_out=0.25))
    assert {t.task_id for t in alone.held} == set(away)
    assert [(o["name"], o["read"], o["held_out"]) for o in pool.origins] == [(p, 60, len(set(away))) for p in both]


def test_what_is_longer_than_a_row_is_left_out_whole_and_counted(tmp_path):
    chat = Chat()
    fixed = len(examples.trajectory(chat, Example("executor", "", (("", "say"),))).tokens) - 1
    room = 191 - fixed  # a row of 192 positions holds 193 ids, the last of which is no input
    texts = ["x" * room, "x" * (room + 1), "x" * (room + 2), "x"]
    path = written(tmp_path, "a.jsonl", *(line(task=f"t{i}", user=text) for i, text in enumerate(texts)))
    c = job(tmp_path, path, examples__hold_out=0.0, sft__row_tokens=192)
    byte = tmp_path / "bytes"
    byte.mkdir()
    (byte / "tokenizer.json").write_text(json.dumps(chat._spec))
    c.tokenizer = str(byte)
    pool = examples.open_pool(c)
    assert {len(t.tokens) for t in pool.rows} == {192, 193, fixed + 2}
    assert pool.origins[0]["too_long"] == 1 and pool.origins[0]["executor"] == 3
    for t in pool.rows:
        asked = texts[int(t.task_id[1])]
        assert t.tokens == examples.trajectory(chat, Example("executor", "", ((asked, "say"),))).tokens


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"examples__designer": 0.3}, "have no example of the designer"),
        ({"examples__hold_out": 1e-9}, "holds out nothing"),
        ({"examples__hold_out": 0.999999}, "nothing is left to learn"),
        ({"sft__row_tokens": 8}, "nothing is left to learn"),
        ({"sft__warmup_steps": 99}, "sft.warmup_steps=99, but 20 examples give"),
        ({"sft__vocab_size": 260}, "sft.vocab_size is 260"),
    ],
)
def test_examples_that_the_settings_cannot_be_used_for_are_refused_with_the_way_out(tmp_path, changed, words):
    path = written(tmp_path, "a.jsonl", *(line(task=f"t{i}") for i in range(20)))
    with pytest.raises(config.ConfigError) as error:
        examples.open_pool(job(tmp_path, path, **{"examples__hold_out": 0.0} | changed))
    assert words in str(error.value), str(error.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"examples__files": ()}, "must name at least one file"),
        ({"examples__files": ("a", "a")}, "names a file twice"),
        ({"examples__epochs": 0}, "examples.epochs=0 must be at least 1"),
        ({"examples__designer": 1.0}, "examples.designer=1.0 must be below 1"),
        ({"sft__rows": 9}, "sft.rows=9 is no multiple of sft.micro_rows=2 x mesh.fsdp=1; set it to 10"),
        ({"sft__fill": 0.0}, "sft.fill=0.0"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_a_file_is_read(tmp_path, changed, words):
    with pytest.raises(config.ConfigError) as error:
        job(tmp_path, "a", **changed)
    assert words in str(error.value)


@pytest.mark.slow
def test_losses_are_means_over_the_tokens_of_a_role(tmp_path):
    """Held-out ones over several batches, and those of an update, from the log-probs of the same weights."""
    roles = ("designer", "executor", "executor") * 30
    lines = (line(role, f"t{i}", f"ask {i}", "say " * (i % 5 + 1)) for i, role in enumerate(roles))
    path = written(tmp_path, "a.jsonl", *lines)
    c = job(tmp_path, path, examples__hold_out=0.5, examples__designer=0.25, sft__row_tokens=64)
    pool = examples.open_pool(c)
    learner = Learner(pool.model, c.sft, total_updates=10)
    state = learner.init(assemble.weights(c, pool.model))
    sums, counts = dict.fromkeys(examples.ROLES, 0.0), dict.fromkeys(examples.ROLES, 0)
    for row in pool.held:
        batch = pack([row], 64, rows_multiple=2)
        sums[row.role] -= float(learner.logprobs(state.params, batch).sum())
        counts[row.role] += sum(row.mask)
    found = pool.held_out_loss(learner, state.params)
    for role in examples.ROLES:
        assert found[f"held_out/loss/{role}"] == pytest.approx(sums[role] / counts[role], rel=1e-5)
    mixed = 0.25 * found["held_out/loss/designer"] + 0.75 * found["held_out/loss/executor"]
    assert found["held_out/loss"] == pytest.approx(mixed, rel=1e-6)
    batch = pool.batch(learner, 0)
    logp = learner.logprobs(state.params, batch)
    metrics = pool.metrics(1, batch, learner.supervised_update(state, batch)[1], seconds=2.0)
    for code, role in enumerate(examples.ROLES, 1):
        mine = batch.mask & (batch.roles == code)
        assert metrics[f"loss/{role}"] == pytest.approx(-logp[mine].mean(), rel=1e-5)
        assert metrics[f"tokens/{role}"] == mine.sum()
    assert metrics["time/tokens_per_s"] == (batch.segment_ids > 0).sum() / 2
    assert metrics["epoch"] == len(pool.updates[0]) / len(pool.rows) and examples.roles_in(batch) == list(
        examples.ROLES
    )
    assert pool.epoch(len(pool.updates)) == pool.settings.examples.epochs


def test_skipped_updates_are_counted_from_the_end():
    lines = [{"nonfinite": 1.0}, {"nonfinite": 0.0}, {"nonfinite": 1.0}, {"nonfinite": 1.0}]
    assert [examples.skipped_last(lines[:n]) for n in range(5)] == [0, 1, 0, 1, 2]
