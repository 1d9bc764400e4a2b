"""What the sections say of runs that differ in odd ways, from values alone."""

import math
from pathlib import Path

import numpy as np
import pytest

from metaagent_x import config
from metaagent_x.analysis.ablation import variants
from metaagent_x.analysis.evaluations import Evaluation
from metaagent_x.analysis.executions import Executions, Sampled
from metaagent_x.analysis.material import Group, Material
from metaagent_x.analysis.read import Run
from metaagent_x.analysis.sections.base import file_name
from metaagent_x.analysis.sections.gains import attribution
from metaagent_x.analysis.sections.overview import accuracy
from metaagent_x.analysis.sections.variants import ablations
from metaagent_x.analysis.tables import Table


def run(name, solved, steps=0, cold=None, **fields):
    """A run whose final evaluation solves so many of 10 tasks, and its cold one those of others."""
    settings = config.base()
    settings.update_from_flattened_dict(fields)
    common = {"step": 1, "temperature": 1.0, "designer": "rl", "executor": "rl"}
    records = [common | {"name": "final", "outcomes": {f"t/{i}": int(i < solved) for i in range(10)}}]
    records += [common | r for r in cold or []]
    for record in records:
        record["structures_by_task"] = dict.fromkeys(record["outcomes"], "single")
    return Run(Path(f"runs/{name}"), settings.to_dict(), [{"step": s + 1} for s in range(steps)], records, None, [])


def material(*runs):
    return Material([Group(v, []) for v in variants(runs)], [])


def rows(section, name):
    table = next(item for item in section.items if isinstance(item, Table) and item.name == name)
    return [dict(zip([column for column, _ in table.columns], row, strict=True)) for row in table.rows]


def test_a_long_label_makes_a_short_name_of_its_own():
    long = [", ".join(f"field_{i}={value}" for i in range(40)) for value in "ab"]
    names = [file_name(label) for label in (*long, "ü" * 200)]
    assert len(set(names)) == 3 and max(len(name.encode()) for name in names) <= 100
    assert names[0].startswith("field_0_a__field_1_a") and file_name("M × N = 8 × 1") == "M___N___8___1"


def test_two_runs_of_one_seed_both_count_and_are_not_paired_by_it():
    """6 and 8 of 10 solved twice under seed 0: 0.7. With seeds 1 and 2 on both sides no 3 can be paired."""
    first = [run(f"a{i}", n, seed=seed) for i, (n, seed) in enumerate(((5, 0), (5, 1), (6, 2)))]
    second = [run(f"b{i}", n, seed=seed, batch=2) for i, (n, seed) in enumerate(((6, 0), (8, 0), (7, 1), (7, 2)))]
    _, found = rows(ablations(material(*first, *second)), "ablation_T1")
    assert found["runs"] == 4 and found["accuracy"].value == pytest.approx(0.7) and found["accuracy"].units == 4
    _, single = rows(ablations(material(*first, *second[:1], *second[2:])), "ablation_T1")
    # Welch's against the paired test of gains 1, 2 and 1 tenths: t = 4, p = 1 - 4 / sqrt(2 + 16).
    assert single["p by run"] == pytest.approx(1 - 4 / math.sqrt(18)) and found["p by run"] != single["p by run"]


def test_published_figures_of_an_executor_do_not_stand_beside_a_fixed_design():
    fixed = {"schedule": "executor_only", "rollout.design": "answer = solver()(task)"}
    made = material(run("a", 5), run("b", 6, schedule="executor_only"), run("c", 6, **fixed))
    said = [row["published, Qwen3-8B, %"] for row in rows(ablations(made), "ablation_T1")]
    assert "stagewise" in said[0] and "executor only" in said[1] and said[2] == "-"


def test_checkpoints_without_a_common_task_are_left_out():
    cold = [{"name": "cold", "outcomes": {"other/1": 1}}]
    assert attribution(material(run("a", 5, cold=cold))) is None
    cells = [
        {"name": name, "designer": d, "executor": e, "outcomes": {task: 1}}
        for name, d, e, task in (("cold", "cold", "cold", "x"), ("cross", "rl", "cold", "t/1"),
                                 ("cross", "cold", "rl", "t/1"))
    ]  # fmt: skip
    assert attribution(material(run("a", 5, cold=cells))) is None


def test_the_last_steps_of_a_run_without_traces_are_its_own():
    (group,) = material(run("a", 5, steps=100)).groups
    nothing = Sampled(Executions.of([]), np.zeros(0, int), {}, {})
    assert group.since == 91 and Group(group.variant, [nothing]).since == 91


def test_an_evaluation_that_solves_everything_has_an_interval():
    """10 of 10 tasks: 0.025 = p^10 at p = 0.6915."""
    played = Executions.of({"task": f"aime24/{i}", "correct": 1.0} for i in range(10))
    found = accuracy(Material([], [Evaluation(Path("e"), "e", {"m": played}, 0, "s")]))
    cell = rows(found, "accuracy")[0]["aime24"]
    assert (cell.value, cell.low, cell.high) == (1, pytest.approx(0.6915, abs=1e-4), 1)
