"""Settings: every mistake is found before compute is spent, and says which field, which value and the way out."""

import subprocess
import sys

import ml_collections
import pytest

from metaagent_x import config
from metaagent_x.rollout.engine import Sampling


def changed(**fields):
    c = config.base()
    for name, value in fields.items():
        *groups, last = name.split("__")
        target = c
        for group in groups:
            target = target[group]
        with target.unlocked(), target.ignore_type():
            target[last] = value
    return c


def refusal(**fields) -> str:
    with pytest.raises(config.ConfigError) as error:
        config.validate(changed(**fields))
    return str(error.value)


def test_the_defaults_are_valid_and_are_the_papers():
    c = config.base()
    config.validate(c)
    assert (c.batch, c.designs, c.executions, c.stage_length, c.first) == (8, 4, 4, 30, "executor")
    assert c.learner.learning_rate == 5e-6 and c.learner.updates_per_step == 4 and c.learner.kl == 0.0


@pytest.mark.parametrize(
    "name", ["tiny", "tiny_grpo", "smoke", "real_rows", "qwen3_4b", "qwen3_4b_grpo", "qwen3_4b_zero", "qwen3_8b"]
)
def test_every_config_file_is_valid(name):
    import importlib

    config.validate(importlib.import_module(f"configs.{name}").get_config())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"designs": 0}, ["designs=0", "at least 1"]),
        ({"checkpoint__keep_every": -1}, ["checkpoint.keep_every=-1", "at least 0"]),
        ({"checkpoint__best": True}, ["checkpoint.best=True", "data.hold_out or data.dev"]),
        ({"executions": -2}, ["executions=-2"]),
        ({"policy": "both"}, ["policy='both'", "shared, separate"]),
        ({"learner__ratio": "tokens"}, ["learner.ratio='tokens'", "sequence_geometric"]),
        ({"learner__aggregate": "constant"}, ["constant_denominator"]),
        ({"learner__learning_rate": -1.0}, ["learner.learning_rate=-1.0"]),
        ({"data__train": (("polaris", "x", 0.5),)}, ["shares sum to 0.5"]),
        ({"rollout__temperature": 0.0}, ["temperature=0", "copies"]),
        ({"rollout__temperature": float("nan")}, ["rollout.temperature=nan", "finite"]),
        ({"learner__learning_rate": float("inf")}, ["learner.learning_rate=inf", "finite"]),
        ({"learner__dual_clip": 0.5}, ["learner.dual_clip=0.5", "above 1"]),
        ({"learner__b2": 1.0}, ["learner.b2=1.0", "below 1"]),
        ({"engine__memory_share": 1.0}, ["engine.memory_share=1.0", "below 1"]),
        ({"learner__clip_high": -0.2}, ["learner.clip_high=-0.2"]),
        ({"learner__correction_cap": -1.0}, ["learner.correction_cap=-1.0"]),
        ({"rollout__budget__calls": 0}, ["rollout.budget.calls=0", "at least 1"]),
        ({"data__test_size": -5}, ["data.test_size=-5"]),
        ({"seed": -1}, ["seed=-1"]),
        ({"rollout__design": "answer = solver()(task)"}, ["rollout.design", "schedule='executor_only'", "'stagewise'"]),
        (
            {"rollout__design": "answer = solver()(task)", "schedule": "executor_only"},
            ["rollout.design", "designs=1", "not 'executor_only' and 4"],
        ),
        (
            {"rollout__design": "x", "schedule": "executor_only", "designs": 1, "policy": "separate"},
            ["policy='separate'", "rollout.design asks none", "policy='shared'"],
        ),
        ({"tokens": -1}, ["tokens=-1", "at least 0"]),
    ],
)
def test_a_value_out_of_range_names_field_and_value(fields, words):
    message = refusal(**fields)
    assert all(word in message for word in words), message


def test_a_fingerprint_is_of_all_values_and_of_nothing_else():
    assert config.fingerprint(changed()) == config.fingerprint(config.base())
    others = [{"seed": 1}, {"checkpoint__keep": 3}, {"learner__b1": 0.8}, {"data__dev": (("math", "", 1.0),)}]
    assert len({config.fingerprint(changed(**fields)) for fields in [{}, *others]}) == 5


def test_an_unknown_field_is_named_with_its_neighbours():
    c = config.base()
    with c.unlocked():
        c.learner.lerning_rate = 1.0
    with pytest.raises(config.ConfigError, match=r"learner\.lerning_rate.*learning_rate"):
        config.validate(c)


@pytest.mark.fault("F045")
@pytest.mark.parametrize("schedule", ["stagewise", "coupled", "designer_only"])
def test_a_design_group_of_one_is_refused_when_the_designer_learns(schedule):
    """A singleton group has advantage 0: training would silently do nothing (OpenRLHF#1250)."""
    assert "singleton" in refusal(designs=1, executions=8, schedule=schedule)


@pytest.mark.fault("F045")
def test_one_design_is_fine_for_the_executor_alone_but_not_with_one_execution():
    config.validate(changed(designs=1, executions=8, schedule="executor_only"))
    assert "single outcome" in refusal(designs=1, executions=1, schedule="executor_only")


def test_groups_of_single_jobs_are_checked_where_they_are_and_unknown_elsewhere(monkeypatch):
    monkeypatch.setitem(config.GROUPS, "walk", lambda: ml_collections.ConfigDict({"miles": 3}))
    monkeypatch.setitem(config.AT_LEAST, "walk.miles", 1)
    config.validate(config.base())
    c = config.base("walk")
    config.validate(c)
    c.walk.miles = 0
    with pytest.raises(config.ConfigError, match=r"walk\.miles=0 must be at least 1"):
        config.validate(c)
    with c.unlocked():
        c.run = c.walk
    with pytest.raises(config.ConfigError, match="unknown field run"):
        config.validate(c)


@pytest.mark.fault("F152")
@pytest.mark.parametrize("value", [True, 2.0, "4", None])
def test_an_int_field_takes_no_other_type(value):
    """1e3, 2.5 or True on an int field end in a message that names the field (ColabFold#119)."""
    assert "steps=" in refusal(steps=value) and "must be int" in refusal(steps=value)


@pytest.mark.fault("F152")
def test_an_int_on_a_float_field_becomes_a_float():
    c = changed(learner__learning_rate=1)
    config.validate(c)
    assert type(c.learner.learning_rate) is float and c.learner.learning_rate == 1.0


@pytest.mark.fault("F155")
@pytest.mark.parametrize(("given", "sent"), [(None, -1), (0, -1), (-1, -1), (20, 20)])
def test_top_k_off_has_one_spelling_on_the_wire(given, sent):
    """Unset, 0, -1 and 20 become -1, -1, -1, 20 (UniRL#204, vime#6)."""
    assert Sampling(max_tokens=5, top_k=given).top_k == sent


@pytest.mark.fault("F155")
@pytest.mark.parametrize("tokens", [0, -1])
def test_a_request_without_room_is_refused(tokens):
    with pytest.raises(ValueError, match="max_tokens"):
        Sampling(max_tokens=tokens)


@pytest.mark.fault("F156")
@pytest.mark.parametrize(("prompt", "completion", "room"), [(8192, 8192, 12000), (100, 29, 128)])
def test_lengths_that_cannot_fit_are_refused_with_the_three_numbers(prompt, completion, room):
    """8192 + 8192 with a model length of 12000 fails at start, not deep in a run (trl#4358)."""
    message = refusal(
        rollout__max_prompt_tokens=prompt, rollout__max_designer_tokens=completion,
        rollout__max_executor_tokens=1, engine__cache_tokens=room,
    )  # fmt: skip
    assert all(str(n) in message for n in (prompt, completion, room))


@pytest.mark.fault("F021")
@pytest.mark.parametrize(
    ("field", "value"), [("top_p", 0.9), ("top_k", 20), ("min_p", 0.1), ("repetition_penalty", 1.1)]
)
def test_sampling_that_is_not_the_policys_own_is_refused_in_training(field, value):
    """Truncated or penalised sampling renormalises log-probs and biases the ratio (ms-swift#8442, trl#6789)."""
    assert f"rollout.{field}={value}" in refusal(**{f"rollout__{field}": value})


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        pytest.param("--config.steps=1e3", "steps=1e3", marks=pytest.mark.slow),
        pytest.param("--config.steps=True", "steps=True", marks=pytest.mark.slow),
        pytest.param("--config.learner.learning_rate=True", "learning_rate=True", marks=pytest.mark.slow),
        ("--config.learner.lerning_rate=1", "lerning_rate=1: no such field; did you mean learning_rate?"),
        pytest.param("--config.nowhere.x=1", "--config.nowhere.x=1: no such field", marks=pytest.mark.slow),
        ("--config.data.train=(...)", "data.train holds Ellipsis; every entry must be (name, path, share)"),
        pytest.param("--config=no/such/file.py", "no/such/file.py", marks=pytest.mark.slow),
        pytest.param("stray", "'stray' is not a flag", marks=pytest.mark.slow),
        pytest.param("--desings=4", "desings", marks=pytest.mark.slow),
        pytest.param("--designs=0", "designs=0", marks=pytest.mark.slow),
        pytest.param("--policy=both", "policy", marks=pytest.mark.slow),
        pytest.param("--config.model.num_kv_heads=3", "num_kv_heads 3", marks=pytest.mark.slow),
        pytest.param("--config.model.attention=flash", "model.attention='flash' is not one of", marks=pytest.mark.slow),
        pytest.param("--config.mesh.zero=2", "mesh.zero=2 is not one of 1, 3", marks=pytest.mark.slow),
        pytest.param("--config.tokenizer=no/such/folder", "tokenizer='no/such/folder'", marks=pytest.mark.slow),
    ],
)
@pytest.mark.fault("F152")
def test_a_bad_flag_is_one_clear_line_and_exit_code_2(flag, words, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "metaagent_x.train", "--config=configs/smoke.py", f"--workdir={tmp_path}/run", flag],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert words in done.stderr + done.stdout and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
