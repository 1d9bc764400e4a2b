"""What --model= may name: what the settings become, and what is refused."""

import json
import shutil

import jax
import numpy as np
import pytest
from hf_samples import raw_config, write
from qwen3_reference import random_params

from configs import eval as evaluation
from configs import eval_published_8b, tiny
from metaagent_x import assemble, config, policies
from metaagent_x.evaluation import job
from metaagent_x.evaluation.benchmarks import open_benchmark
from metaagent_x.evaluation.journal import Journal
from metaagent_x.evaluation.play import play, units
from metaagent_x.learner.checkpoint import Checkpoints
from metaagent_x.learner.step import Learner
from metaagent_x.model import qwen3
from metaagent_x.rollout import traces
from metaagent_x.rollout.chat import train_bpe

MODEL = qwen3.Qwen3Config(
    vocab_size=300, hidden_size=16, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=8, intermediate_size=32,
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """What a run leaves: steps 2 and 4, separate policies, settings of configs/tiny.py."""
    folder = tmp_path_factory.mktemp("runs") / "my run"
    train_bpe(["answer = solver()(task)"] * 5, 300, str(folder / "bpe"))
    saved = Checkpoints(folder / "checkpoints", keep=2)
    learner = Learner(MODEL, config.base().learner)
    weights = {"designer": random_params(MODEL, 1), "executor": random_params(MODEL, 2)}
    for step in (2, 4):
        saved.save(step, {name: learner.init(params) for name, params in weights.items()}, {})
    saved.wait()
    assemble.describe(folder / "model", MODEL, str(folder / "bpe"))
    c = tiny.get_config()
    c.policy, c.engine.slots, c.rollout.design, c.schedule = "separate", 3, "answer = solver()(task)", "executor_only"
    (folder / "config.json").write_text(json.dumps(c.to_dict()))
    return folder


def settings(model, **fields):
    c = evaluation.get_config()
    c.evaluate.model = str(model)
    c.update_from_flattened_dict(fields)
    return c


def test_a_run_says_network_tokenizer_prompts_lengths_and_engine(run):
    c = settings(run)
    policy = policies.adopt(c)
    config.validate(c)
    assert (policy.kind, policy.step, policy.label) == ("run", 4, "my-run-step-4")
    assert (c.model.hidden_size, c.model.vocab_size, c.policy) == (16, 300, "separate")
    assert (c.rollout.prompts, c.rollout.max_prompt_tokens, c.rollout.budget.calls) == ("tiny", 128, 16)
    assert (c.engine.slots, c.engine.cache_tokens, c.model.compute_dtype) == (3, 192, "float32")
    assert c.evaluate.step == 4 and c.tokenizer == str(run / "model")
    assert c.rollout.design == "" and c.data.test == ()  # a method says what is designed; benchmarks are named here


def test_an_engine_that_somebody_named_stays_also_if_it_is_the_default(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    told = json.loads((run / "config.json").read_text())
    told["engine"]["kind"] = "vllm"
    (tmp_path / "run" / "config.json").write_text(json.dumps(told))
    for engine, kind in ((None, "vllm"), ("jax", "jax")):
        c = settings(tmp_path / "run")
        policies.adopt(c, engine)
        assert c.engine.kind == kind


def test_a_run_that_was_trained_again_in_its_folder_is_told_from_the_first(run, tmp_path):
    seen = set()
    for seed in (1, 2):
        shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"), dirs_exist_ok=True)
        shutil.rmtree(tmp_path / "run" / "checkpoints", ignore_errors=True)
        saved = Checkpoints(tmp_path / "run" / "checkpoints")
        saved.save(2, {"shared": Learner(MODEL, config.base().learner).init(random_params(MODEL, seed))}, {})
        saved.wait()
        for _ in range(2):
            c = settings(tmp_path / "run")
            policies.adopt(c)
            seen.add(c.evaluate.weights)
            saved.score(2, 0.5)  # which is not another policy
    assert len(seen) == 2 and "" not in seen


def test_a_run_with_rows_longer_than_a_learner_has_by_default_is_played(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    told = json.loads((run / "config.json").read_text())
    told["rollout"]["max_prompt_tokens"], told["engine"]["cache_tokens"] = 30_000, 32_768
    (tmp_path / "run" / "config.json").write_text(json.dumps(told))
    c = settings(tmp_path / "run")
    policies.adopt(c)
    config.validate(c)


def test_what_somebody_set_stays(run):
    c = settings(run, **{"engine.slots": 5, "rollout.budget.calls": 9, "evaluate.step": 2})
    assert policies.adopt(c).step == 2
    assert (c.engine.slots, c.rollout.budget.calls, c.rollout.prompts) == (5, 9, "tiny")


async def test_the_engines_hold_the_weights_of_that_step(run, tmp_path):
    c = settings(run, **{"evaluate.step": 2})
    policy = policies.adopt(c)
    engines = await policies.engines(c, policy, tmp_path)
    try:
        assert engines["designer"] is not engines["executor"] and engines["designer"].version == 2
        for role, seed in (("designer", 1), ("executor", 2)):
            held = engines[role]._params
            found = jax.tree.leaves(jax.tree.map(np.asarray, held))
            wanted = jax.tree.leaves(jax.tree.map(np.asarray, random_params(MODEL, seed)))
            assert len(found) == len(wanted) and all(map(np.allclose, found, wanted))
    finally:
        for engine in engines.values():
            await engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_two_evaluations_with_one_seed_agree_in_every_token(run, tmp_path, temperature):
    """On the built-in engine, however many tasks are in flight."""

    async def played(folder, in_flight):
        c = settings(run, **{"evaluate.temperature": temperature, "rollout.max_executor_tokens": 12})
        policy, sets = policies.adopt(c), [open_benchmark(("tiny_math", ""), generated=6, limit=0)]
        engines = await policies.engines(c, policy, folder)
        journal, grader = Journal(folder), assemble.grader(c)
        methods, means = job.make_methods(c, engines, journal.rows)
        plan = units(c.evaluate.methods, sets, lambda _: 2)
        await play(plan, methods, means, grader, journal, scorer="s/1", in_flight=in_flight)
        grader.close()
        for engine in engines.values():
            await engine.close()
        rows = [row for file in sorted((folder / "traces").iterdir()) for row in traces.read(file)]
        said = {(row["run"], row["task_id"], row["path"], row["role"]): row["completion_ids"] for row in rows}
        return said, {key: (row["answer"], row["verdict"]) for key, row in Journal(folder).rows.items()}

    one, other = await played(tmp_path / "one", 2), await played(tmp_path / "other", 6)
    assert one == other
    # the Designer of a random network writes no script, so that its method ends there
    assert len(one[1]) == 3 * 6 * 2 and len(one[0]) >= 3 * 6 * 2
    samples = [[ids for (name, *_), ids in one[0].items() if name == f"single tiny_math {i}"] for i in range(2)]
    assert (samples[0] == samples[1]) is (temperature == 0.0)


def test_a_folder_of_weights_says_its_network_and_is_told_from_another(tmp_path):
    write(tmp_path / "one", raw_config("qwen2", vocab_size=300))
    train_bpe(["answer = solver()(task)"], 300, str(tmp_path / "one"))
    c = settings(tmp_path / "one")
    policy = policies.adopt(c)
    assert (policy.kind, policy.label, policy.step) == ("folder", "one", 0)
    assert c.model.path == str(tmp_path / "one") == c.tokenizer and len(c.evaluate.weights) == 16
    (tmp_path / "one" / "generation_config.json").write_text("{}")
    again = settings(tmp_path / "one")
    policies.adopt(again)
    assert again.evaluate.weights != c.evaluate.weights


def test_an_endpoint_needs_the_name_of_the_model_and_a_tokenizer(tmp_path):
    with pytest.raises(config.ConfigError, match=r"--config\.engine\.model=NAME"):
        policies.adopt(settings("http://host:8000/v1"))
    with pytest.raises(config.ConfigError, match=r"--config\.tokenizer=FOLDER"):
        policies.adopt(settings("http://host:8000/v1", **{"engine.model": "m"}))
    c = settings("https://host:8000/v1/", **{"engine.model": "m", "tokenizer": str(tmp_path)})
    policy = policies.adopt(c)
    assert (policy.kind, policy.label, c.engine.kind, c.engine.urls) == (
        "endpoint", "host-8000-v1", "openai", ("https://host:8000/v1/",)
    )  # fmt: skip
    config.validate(c)


def test_what_is_no_model_is_refused_with_what_may_be_one(run, tmp_path):
    for model, words in (
        ("", "no model; give"),
        (tmp_path, r"no run folder .* no Hugging Face folder .* and no URL"),
        (tmp_path / "absent", "no run folder"),
    ):
        with pytest.raises(config.ConfigError, match=words):
            policies.adopt(settings(model))
    with pytest.raises(config.ConfigError, match=r"no checkpoint of step 3; it has \[2, 4\]"):
        policies.adopt(settings(run, **{"evaluate.step": 3}))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(config.ConfigError, match="not readable as a run"):
        policies.adopt(settings(tmp_path))


def test_published_figures_are_those_of_the_network(run):
    c = settings(run)
    policy = policies.adopt(c)
    assert policies.published_size(c, policy) == ""
    c.model.hidden_size, c.model.num_layers = 4096, 36
    assert policies.published_size(c, policy) == "8B"
    assert policies.published_size(c, policies.Policy("endpoint", "http://x", 0)) == ""
    c.evaluate.published = "4B"
    assert policies.published_size(c, policy) == policies.published_size(c, policies.Policy("endpoint", "u", 0)) == "4B"


def test_the_published_checkpoint_is_asked_in_its_own_form_and_sampled_as_its_code_does():
    c = eval_published_8b.get_config()
    config.validate(c)
    e = c.evaluate
    assert (c.rollout.prompts, e.temperature, e.repetition_penalty, c.engine.kind) == ("published", 0.0, 1.2, "vllm")
    c.engine.kind = "jax"
    with pytest.raises(config.ConfigError, match=r"repetition_penalty=1\.2 with engine\.kind='jax'"):
        config.validate(c)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("evaluate.benchmarks", ("aime24",), r"evaluate\.benchmarks holds 'aime24'"),
        ("evaluate.runs", (("aime24", "3"),), r"evaluate\.runs holds"),
        ("evaluate.methods", (3,), r"evaluate\.methods holds 3"),
        ("evaluate.samples", 0, r"evaluate\.samples=0 must be at least 1"),
        ("evaluate.members", 1, r"evaluate\.members=1 must be at least 2"),
        ("evaluate.level", 1.0, r"evaluate\.level=1\.0 must be below 1"),
        ("evaluate.top_p", 1.5, r"evaluate\.top_p=1\.5"),
        ("evaluate.published", "32B", "32B"),
        ("evaluate.temperature", -1.0, r"evaluate\.temperature=-1"),
    ],
)
def test_settings_of_an_evaluation_that_cannot_work_are_refused(field, value, words):
    c = evaluation.get_config()
    c.update_from_flattened_dict({field: value})
    with pytest.raises(config.ConfigError, match=words):
        config.validate(c)
