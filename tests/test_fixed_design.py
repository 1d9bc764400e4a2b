"""A run with a fixed design: what needs a Designer is neither gated, nor guarded, nor shown."""

import asyncio
import json
import types

import pytest

from configs import qwen3_4b_grpo, tiny_grpo
from metaagent_x import cold_start, config, dry_run, guards, loop
from metaagent_x.model.parameters import Qwen3Config
from metaagent_x.rollout import measure
from metaagent_x.rollout.scripted import ScriptedEngine
from metaagent_x.run_folder import RunFolder
from metaagent_x.tasks.grader import Grader
from metaagent_x.tasks.task import Rubric, Task

RECORD = {"accuracy": 0.4, "accuracy/math": 0.35, "accuracy/code": 0.45, "valid": 1.0, "tasks": 8, "void": 0}


@pytest.fixture
def fixed():
    return tiny_grpo.get_config()


@pytest.mark.parametrize("made", [tiny_grpo, qwen3_4b_grpo])
def test_the_group_of_a_task_is_as_large_as_with_a_designer(made):
    c, usual = made.get_config(), config.base()
    assert c.designs * c.executions == usual.designs * usual.executions == 16
    assert (c.designs, c.schedule, c.rollout.design) == (1, "executor_only", "answer = solver()(task)")


@pytest.mark.parametrize(("math", "words"), [(0.35, "headroom"), (0.1, "math accuracy 0.10 is below 0.15")])
def test_the_gate_judges_the_fixed_design_alone(tmp_path, monkeypatch, capsys, fixed, math, words):
    async def evaluate(tasks, engines, grader, c, **how):
        assert c.rollout.design == fixed.rollout.design, "another structure was forced"
        return RECORD | {"accuracy/math": math}

    monkeypatch.setattr(measure, "evaluate", evaluate)
    folder = RunFolder(tmp_path / "run", fixed)
    job = loop.gate(fixed, types.SimpleNamespace(dev=[]), {}, None, folder)
    if words == "headroom":
        asyncio.run(job)
    else:
        with pytest.raises(loop.Stopped, match=words):
            asyncio.run(job)
    written, said = json.loads((tmp_path / "run" / "gate.json").read_text()), capsys.readouterr().out
    assert written["table"] == {} and written["message"].startswith(words)
    assert f"fixed design: math {math:.2f}, code 0.45: {words}" in said
    assert "structure" not in said and "valid" not in said


async def test_an_evaluation_says_that_the_design_is_fixed_and_is_not_played_twice(tmp_path, capsys, fixed):
    def nobody(request):
        raise AssertionError("asked")

    tasks = [(Task("t/0", "math", "compute 3+4"), Rubric("t/0", "math", gold=("7",)))]
    engines = {"designer": ScriptedEngine(nobody), "executor": ScriptedEngine(lambda r: "\\boxed{7}")}
    folder, grader = RunFolder(tmp_path / "run", fixed), Grader(format_bonus=0.0)
    try:
        for _ in range(2):
            await loop.evaluate(fixed, tasks, engines, grader, folder, "cold", 0, designer="cold", executor="cold")
    finally:
        grader.close()
    (record,) = folder.evaluations()
    assert (record["designer"], record["executor"], record["accuracy"]) == ("fixed", "cold", 1.0)
    assert "Designer fixed Executor cold" in capsys.readouterr().out


@pytest.mark.parametrize("design", ["", "answer = solver()(task)"])
def test_what_a_designer_does_is_guarded_only_where_there_is_one(design):
    c = config.base()
    c.rollout.design = design
    line = {"role/active": ["executor"], "structures/top_share": 1.0, "designs/valid": 0.0, "entropy": 0.0}
    found = [alert.guard for alert in guards.find([line | {"step": step} for step in range(1, 5)], c)]
    assert found == (["entropy"] if design else ["valid", "entropy", "one_structure"])


def test_the_line_of_a_step_says_how_far_the_tokens_are_and_nothing_of_designs(capsys, fixed):
    m = {"reward/mean": 0.5, "accuracy": 0.5, "designs/valid": 1.0, "calls": 128.0, "structure/single": 1.0,
         "time/step": 2.0}  # fmt: skip
    fixed.tokens = 90_000
    loop.progress(fixed, 12, 34_567, frozenset({"executor"}), m)
    told = capsys.readouterr().out
    assert "12/1000 34,567/90,000 tokens learns executor" in told and "valid" not in told and "single" not in told
    fixed.tokens, fixed.rollout.design = 0, ""
    loop.progress(fixed, 12, 34_567, frozenset({"executor"}), m)
    told = capsys.readouterr().out
    assert "34,567" not in told and "valid 1.00" in told and "single 100%" in told


async def test_the_cold_start_is_the_one_of_a_run_with_a_designer(monkeypatch, fixed):
    seen = []

    async def evaluate(tasks, engines, grader, c):
        seen.append(c.rollout.design)
        return RECORD

    async def close(): ...

    monkeypatch.setattr(measure, "evaluate", evaluate)
    monkeypatch.setattr(cold_start.assemble, "engine", lambda *_: types.SimpleNamespace(close=close))
    await cold_start._measured(fixed, types.SimpleNamespace(dev=[]), None, None, 1, 1, 0.0)
    assert seen == [""] and fixed.rollout.design
    usual = tiny_grpo.tiny.get_config()
    assert cold_start.fingerprint(fixed) == cold_start.fingerprint(usual)


def test_lengths_of_a_designer_matter_only_where_one_is_asked(fixed):
    fixed.rollout.max_designer_tokens = 10_000
    with pytest.raises(config.ConfigError, match="10000 completion tokens"):
        config.validate(fixed)  # its cold start asks one
    fixed.sft.max_steps = 0
    config.validate(fixed)


def test_a_dry_run_counts_no_design_in_the_longest_chain():
    c = qwen3_4b_grpo.get_config()
    model = Qwen3Config.from_settings(c.model)
    device = dry_run.Accelerator(100e9, flops=1.0, bandwidth=1e12, link=None, source="")
    chain = dry_run.decode(c, model, 1, device).chain
    c.rollout.design = ""
    assert dry_run.decode(c, model, 1, device).chain == pytest.approx(2 * chain) and chain > 0
