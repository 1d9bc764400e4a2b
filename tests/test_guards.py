"""Limits on what a run measures: what is told, what ends a run, and that both follow from the metrics alone."""

import json
import math

import pytest

from metaagent_x import config, guards, loop
from metaagent_x.learner.checkpoint import Checkpoints
from metaagent_x.learner.replay import Skip
from metaagent_x.run_folder import RunFolder

GOOD = {
    "designs/valid": 0.95, "completions/repetition": 0.01, "completions/truncated": 0.02, "entropy": 0.8,
    "structures/top_share": 0.5, "groups/flat/executor": 0.3, "groups/flat/designer": 0.3, "calls/stale": 0.0,
    "ratio/first_dev": 1e-4, "mismatch/mean": 0.004, "mismatch/max": 0.7,
}  # fmt: skip
BAD = {
    "valid": ("designs/valid", 0.6, "below gate.stop_valid=0.7: lower learner.learning_rate"),
    "repetition": ("completions/repetition", 0.7, "above guard.repetition.limit=0.5: completions end in repeated"),
    "truncated": ("completions/truncated", 0.6, "raise rollout.max_designer_tokens"),
    "entropy": ("entropy", 0.001, "below guard.entropy.limit=0.01: the policy hardly explores"),
    "one_structure": ("structures/top_share", 1.0, "all designs are of one structure"),
    "flat": ("groups/flat/executor", 1.0, "learner.flat_groups='top_up'"),
    "stale": ("calls/stale", 0.01, "above guard.stale.limit=0: completions were drawn by other weights"),
    "ratio": ("ratio/first_dev", 0.5, "above guard.ratio.limit=0.1: new and old policy are the same"),
    "mismatch": ("mismatch/mean", 0.06, "other log-probs (mean, nats)"),
    "mismatch_max": ("mismatch/max", 9.0, "disagree on a token"),
}


def lines(count, first=1, **changes):
    one = {"role/active": ["executor"]} | GOOD | changes
    return [one | {"step": step} for step in range(first, first + count)]


def found(given, c=None):
    return [(a.step, a.guard, a.action) for a in guards.find(given, c or config.base())]


def test_a_healthy_run_raises_no_alert():
    assert found([]) == [] and all(found(lines(n)) == [] for n in range(1, 9))


@pytest.mark.parametrize("name", guards.RULES)
def test_each_guard_names_value_limit_and_way_out(name):
    metric, value, words = BAD[name]
    c = config.base()
    steps = c.guard.window if guards.RULES[name].averaged else 1
    (alert,) = guards.find(lines(8 - steps) + lines(steps, 9 - steps, **{metric: value}), c)
    assert (alert.step, alert.guard, alert.metric, alert.steps) == (8, name, metric, steps)
    assert alert.value == pytest.approx(value) and alert.action == c.guard[name].action
    assert f"{metric} is {value:.2f}" in alert.message and words in alert.message


def test_every_rule_has_its_settings_and_every_setting_its_rule():
    c = config.base()
    assert set(guards.RULES) == {name for name, group in c.guard.items() if "action" in getattr(group, "keys", set)()}


@pytest.mark.parametrize(
    ("valid", "stops"),
    [([0.9] * 8, False), ([0.9] * 4 + [0.6] * 4, True), ([0.1] * 3, False), ([0.1, 0.9, 0.9, 0.91, 0.7], False)],
)
def test_a_run_stops_when_valid_designs_stay_below_the_limit_for_four_steps(valid, stops):
    given = [line | {"designs/valid": v} for line, v in zip(lines(len(valid)), valid, strict=True)]
    alerts = guards.find(given, config.base())
    assert [a.action for a in alerts] == ["stop"] * stops
    assert all("is 0.60 (mean of 4 steps), below gate.stop_valid=0.7" in a.message for a in alerts)


def test_a_warning_is_given_when_a_limit_is_passed_and_a_stop_as_long_as_it_is():
    given = lines(4) + lines(9, 5, **{"entropy": 0.0, "completions/repetition": 1.0}) + lines(4, 14)
    told = [alert for n in range(1, len(given) + 1) for alert in found(given[max(0, n - 5) : n])]
    assert [step for step, name, _ in told if name == "entropy"] == [8]
    assert [step for step, name, _ in told if name == "repetition"] == list(range(6, 16))
    again = lines(4, **{"entropy": 0.0}) + lines(4, 5) + lines(4, 9, **{"entropy": 0.0})
    assert found(again) == [(12, "entropy", "warn")]


@pytest.mark.parametrize("gap", [None, math.nan, "absent"])
def test_a_step_without_the_number_leaves_its_window_unjudged(gap):
    given = lines(5, **{"completions/repetition": 1.0})
    assert found(given) == [(5, "repetition", "stop")]
    given[3] = {k: v for k, v in given[3].items() if k != "completions/repetition"}
    if gap != "absent":
        given[3]["completions/repetition"] = gap
    assert found(given) == []


def test_a_guard_can_be_turned_off_and_its_window_and_limit_moved():
    c, given = config.base(), lines(4, **{"completions/repetition": 0.6})
    c.guard.window = 5
    assert found(given, c) == []
    c.guard.window = 2
    assert found(given, c) == [(4, "repetition", "stop")]
    c.guard.repetition.limit = 0.65
    assert found(given, c) == []
    c.guard.repetition.limit, c.guard.repetition.action = 0.5, "off"
    assert found(given, c) == []


def test_flat_groups_of_a_role_that_does_not_learn_are_nobodys_concern():
    given = lines(4, **{"groups/flat/designer": 1.0})
    assert found(given) == []
    given[-1]["role/active"] = ["designer", "executor"]
    assert found(given) == [(4, "flat", "warn")]


def test_alerts_are_printed_and_kept_and_one_of_them_stops_the_run(tmp_path, capsys):
    c, folder, saved = config.base(), RunFolder(tmp_path, config.base()), Checkpoints(tmp_path / "checkpoints")
    loop.check(c, lines(4), [], folder, saved)
    assert not (tmp_path / "alerts.jsonl").exists()
    loop.check(c, lines(4, **{"entropy": 0.0}), [], folder, saved)
    with pytest.raises(loop.Stopped, match=r"repetition is 1\.00"):
        loop.check(c, lines(4, 5, **{"completions/repetition": 1.0, "completions/truncated": 1.0}), [], folder, saved)
    kept = [json.loads(line) for line in (tmp_path / "alerts.jsonl").read_text().splitlines()]
    assert [(a["step"], a["guard"], a["action"]) for a in kept] == [
        (4, "entropy", "warn"), (8, "repetition", "stop"), (8, "truncated", "warn"),
    ]  # fmt: skip
    assert capsys.readouterr().out.splitlines() == [f"alert: {a['message']}" for a in kept]
    folder.truncate_after(7)  # a resumed run that plays step 8 again finds it again
    assert [json.loads(line)["step"] for line in (tmp_path / "alerts.jsonl").read_text().splitlines()] == [4]


@pytest.mark.parametrize(("limit", "stops_at"), [(3, 3), (1, 1), (0, None)])
def test_updates_that_are_not_finite_stop_the_run_after_so_many_in_a_row_with_the_files_name(tmp_path, limit, stops_at):
    c, folder, file = config.base(), RunFolder(tmp_path, config.base()), tmp_path / "replay" / "x.npz"
    c.guard.nonfinite, saved = limit, Checkpoints(tmp_path / "checkpoints")
    for in_row in range(1, 6):
        skip = Skip(7, in_row, "shared", math.nan, math.inf, in_row, file)
        if stops_at is not None and in_row >= stops_at:
            with pytest.raises(loop.Stopped, match=f"loss nan, grad_norm inf; {in_row} in a row.*--replay=.*x.npz"):
                loop.check(c, lines(1, 7), [skip], folder, saved)
        else:
            loop.check(c, lines(1, 7), [skip], folder, saved)
    assert len((tmp_path / "alerts.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("steps", "to"), [([2, 5, 6, 7], 2), ([4], 4), ([6, 7], 6), ([8], 0), ([], 0)],
    ids=["before the window", "just before it", "the oldest left", "not the one that fell", "the cold start"],
)  # fmt: skip
def test_a_run_goes_back_to_before_the_window_and_only_so_often(tmp_path, monkeypatch, steps, to):
    c, folder, saved = config.base(), RunFolder(tmp_path, config.base()), Checkpoints(tmp_path / "checkpoints")
    c.guard.repetition.action, c.guard.max_roll_backs = "roll_back", 1
    monkeypatch.setattr(saved, "steps", lambda: steps)
    bad = lines(4, 5, **{"completions/repetition": 1.0})
    with pytest.raises(loop.RollBack, match=f"to step {to}: completions/repetition is 1") as back:
        loop.check(c, bad, [], folder, saved)
    assert back.value.to == to
    folder.log_roll_back({"after_step": 8, "to": to, "why": back.value.why})
    folder.truncate_after(to)
    with pytest.raises(loop.Stopped, match=r"rolled back 1 times before \(guard.max_roll_backs=1\)"):
        loop.check(c, bad, [], folder, saved)


def test_after_a_roll_back_the_same_steps_draw_other_samples():
    c = config.base()
    seeds = [loop.reseeded(c, times).seed for times in range(4)]
    assert seeds[0] == c.seed == 0 and len(set(seeds)) == 4 and loop.reseeded(c, 2).seed == seeds[2]
    assert {k: v for k, v in loop.reseeded(c, 1).to_dict().items() if k != "seed"} == {
        k: v for k, v in c.to_dict().items() if k != "seed"
    }


def test_guards_may_be_moved_when_a_run_goes_on(tmp_path):
    c = config.base()
    RunFolder(tmp_path, c)
    c.guard.repetition.limit, c.guard.window, c.guard.push_s = 0.9, 8, 60.0
    RunFolder(tmp_path, c)
    assert json.loads((tmp_path / "config.json").read_text())["guard"]["window"] == 8


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("repetition.action", "roll", "guard.repetition.action='roll' is not one of off, warn, stop, roll_back"),
        ("window", 0, "guard.window=0 must be at least 1"), ("stuck", "kill", "guard.stuck='kill'"),
        ("push_s", -1.0, "guard.push_s=-1.0"), ("dumps", -1, "guard.dumps=-1"),
    ],
)  # fmt: skip
def test_settings_of_guards_are_checked(field, value, words):
    c = config.base()
    c.guard.update_from_flattened_dict({field: value})
    with pytest.raises(config.ConfigError, match=words):
        config.validate(c)
