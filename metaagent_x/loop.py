"""The stations of a training run, one function each; `train.py` strings them together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_collections
from rich.console import Console
from rich.table import Table

from metaagent_x import assemble, data, guards
from metaagent_x.config import Settings
from metaagent_x.learner import credit, replay
from metaagent_x.learner.checkpoint import Checkpoints
from metaagent_x.mas import demonstrations
from metaagent_x.model.parameters import EXECUTION, Qwen3Config
from metaagent_x.rollout import measure
from metaagent_x.rollout.collect import collect
from metaagent_x.rollout.engine import Engine, EngineFailure
from metaagent_x.rollout.jax_engine import JaxEngine
from metaagent_x.rollout.seeds import call_seed
from metaagent_x.rollout.tree import RolloutTree
from metaagent_x.rollout.vllm_engine import Guest, VllmEngine
from metaagent_x.run_folder import RunFolder, flatten

console = Console()
MAX_TOP_UPS = 3


class Stopped(RuntimeError):
    """The run ended itself because going on would teach nothing. Exit code 1."""


class RollBack(RuntimeError):
    """The run goes back to an earlier checkpoint and on from there with other samples.

    Attributes:
      to: step of the checkpoint, 0 for the cold start. why: what a guard said.
    """

    def __init__(self, to: int, why: str) -> None:
        super().__init__(f"to step {to}: {why}")
        self.to, self.why = to, why


def show_data(pools: data.Pools) -> None:
    """Prints what every data set gave and what was left out, and why."""
    view = Table("data set", "use", "rows", "left out", "too long", "dev", "tasks", title="data")
    for o in pools.origins:
        why = ", ".join(f"{n} {reason}" for reason, n in sorted(o.dropped.items(), key=lambda item: -item[1]))
        weak = f" ({o.public_only} judged on public tests only)" if o.public_only else ""
        view.add_row(o.name, o.use, f"{o.read}", why or "-", f"{o.too_long}", f"{o.dev}", f"{o.tasks}{weak}")
    console.print(view)


async def gather(
    c: Settings, pools: data.Pools, engines: Mapping[str, Engine], grader: Any, step: int,
    draws: int, roles: frozenset[str],
) -> tuple[list[RolloutTree], int]:  # fmt: skip
    """The rollouts of one step.

    With `learner.flat_groups="top_up"`, further batches are drawn (at most 3) until `batch` tasks carry a signal for
    an active role; all trees are kept, those without a signal weigh nothing.

    Returns:
      (trees with `question` numbered through, batches drawn so far).
    """
    trees: list[RolloutTree] = []
    for _ in range(1 + MAX_TOP_UPS):
        trees += await collect(
            pools.train.batch_at(draws),
            engines,
            grader,
            designs=c.designs,
            executions=c.executions,
            config=c,
            step=step,
        )
        draws += 1
        if c.learner.flat_groups == "keep":
            break
        live = sum(any(t.advantage for t in credit.assign([tree], roles)) for tree in trees)
        if live >= c.batch:
            break
    for question, tree in enumerate(trees):
        tree.question = question
    return trees, draws


async def gate(c: Settings, pools: data.Pools, engines: Mapping[str, Engine], grader: Any, folder: RunFolder) -> None:
    """Prints the accuracy of every structure on every kind of task; raises Stopped if RL has nothing to learn from."""
    record = await measure.evaluate(pools.dev, engines, grader, c)
    scripts = {} if c.rollout.design else demonstrations.STRUCTURES  # nobody chooses one where it is fixed
    table = await measure.structure_table(pools.dev[: c.gate.tasks], engines, grader, c, scripts)
    check_answered(record, engines)
    passed, message = measure.headroom(record, table, c.gate)
    accuracy = {k: record[f"accuracy/{k}"] for k in ("math", "code")}
    folder.write_gate(
        {"accuracy": accuracy, "valid": record["valid"], "table": table, "passed": passed, "message": message}
    )
    if table:
        view = Table("structure", "math", "code", title="accuracy of every structure, T=1")
        for name, row in table.items():
            view.add_row(name, f"{row['math']:.2f}", f"{row['code']:.2f}")
        console.print(view)
    whose, valid = "Designer's own choice", f", valid designs {record['valid']:.2f}"
    if c.rollout.design:
        whose, valid = "fixed design", ""
    console.print(f"{whose}: math {accuracy['math']:.2f}, code {accuracy['code']:.2f}{valid}: {message}"
                  f"{'' if passed or c.gate.enforce else ' (not enforced here: gate.enforce=False)'}",
                  highlight=False, soft_wrap=True)  # fmt: skip
    if not passed and c.gate.enforce:
        raise Stopped(f"no headroom for RL: {message}")


async def evaluate(
    c: Settings, tasks: data.Pairs, engines: Mapping[str, Engine], grader: Any, folder: RunFolder,
    name: str, step: int, *, temperature: float = 1.0, designer: str = "rl", executor: str = "rl",
) -> dict[str, Any]:  # fmt: skip
    """Plays held-out tasks once each and records the result. One already recorded is not played again.

    With a fixed design, which has no Designer, the record says "fixed" for it.

    Raises:
      EngineFailure: see `check_answered`.
    """
    designer = "fixed" if c.rollout.design else designer
    label = {"name": name, "step": step, "designer": designer, "executor": executor, "temperature": temperature}
    known = next((r for r in folder.evaluations() if all(r[k] == v for k, v in label.items())), None)
    if known is not None:
        return known
    record = label | await measure.evaluate(tasks, engines, grader, c, temperature=temperature)
    check_answered(record, engines)
    folder.log_evaluation(record)
    valid = "" if c.rollout.design else f", valid {record['valid']:.2f}"
    console.print(
        f"  {name} at step {step}: T={temperature:g} Designer {designer} Executor {executor}: accuracy "
        f"[bold]{record['accuracy']:.3f}[/] (math {record['accuracy/math']:.3f}, code {record['accuracy/code']:.3f})"
        f"{valid}", highlight=False, soft_wrap=True,
    )  # fmt: skip
    return record


async def baseline(c: Settings, pools: data.Pools, cold: Mapping[str, Engine], grader: Any, folder: RunFolder) -> None:
    """Where the policy stands before RL, at T=1 and greedy."""
    for temperature in (1.0, 0.0) if pools.test else ():
        await evaluate(c, pools.test[: c.eval.tasks], cold, grader, folder, "cold", 0, temperature=temperature,
                       designer="cold", executor="cold")  # fmt: skip


async def stage(
    c: Settings, pools: data.Pools, engines: Mapping[str, Engine], grader: Any, folder: RunFolder, step: int
) -> None:
    """Where the policy stands on the way, on fewer tasks: dev tasks where the run has no test set."""
    if tasks := pools.test or pools.dev:
        await evaluate(c, tasks[: c.eval.stage_tasks], engines, grader, folder, "stage", step)


async def dev_accuracy(
    c: Settings, pools: data.Pools, engines: Mapping[str, Engine], grader: Any, folder: RunFolder, step: int
) -> float:
    """Accuracy on dev tasks where `stage` measures, by which the best checkpoint is chosen: test tasks must not choose.
    Without a test set it is what `stage` has measured."""
    tasks, name = pools.dev[: c.eval.stage_tasks], "dev" if pools.test else "stage"
    return (await evaluate(c, tasks, engines, grader, folder, name, step))["accuracy"]


async def final(
    c: Settings, pools: data.Pools, cold: Mapping[str, Engine], rl: Mapping[str, Engine],
    grader: Any, folder: RunFolder, step: int,
) -> None:  # fmt: skip
    """The tables at the end: after RL at T=1 and greedy, and the cross table of cold and RL roles.

    Args:
      cold, rl: engines with the weights before and after. step: the last one that was made.
    """
    tasks = pools.test[: c.eval.tasks]
    if not tasks:
        return
    for temperature in (1.0, 0.0):
        await evaluate(c, tasks, rl, grader, folder, "final", step, temperature=temperature)
    if c.eval.cross and not c.rollout.design:  # a fixed design has no Designer to swap
        swaps: Sequence[tuple[str, str]] = (("rl", "cold"), ("cold", "rl"))
        for designer, executor in swaps:
            side = {"cold": cold, "rl": rl}
            mixed = {"designer": side[designer]["designer"], "executor": side[executor]["executor"]}
            await evaluate(c, tasks, mixed, grader, folder, "cross", step, designer=designer, executor=executor)
    valid = [] if c.rollout.design else ["valid"]
    heads = ["step", "what", "T", "Designer", "Executor", "accuracy", "math", "code", *valid]
    view = Table(*heads, title="held-out tasks")
    for r in folder.evaluations():
        numbers = [f"{r[k]:.3f}" for k in ("accuracy", "accuracy/math", "accuracy/code", *valid)]
        view.add_row(str(r["step"]), r["name"], f"{r['temperature']:g}", r["designer"], r["executor"], *numbers)
    console.print(view)


def check_answered(record: Mapping[str, Any], engines: Mapping[str, Engine]) -> None:
    """Raises EngineFailure if servers were lost or nothing was answered: what is left is no measure of a policy."""
    for engine in engines.values():
        if isinstance(engine, VllmEngine | Guest):
            engine.check()
    if record["void"] and not record["tasks"]:
        raise EngineFailure(f"none of {record['void']} tasks came to an end; nothing is recorded of them")


def engine_metrics(engines: Mapping[str, Engine]) -> dict[str, float]:
    """What engines behind a server report of the run so far; nothing of others."""
    found = {id(e): e.stats for e in engines.values() if isinstance(e, VllmEngine)}.values()
    if not found:
        return {}
    return {f"engine/{k}": float(sum(getattr(s, k) for s in found)) for k in ("retries", "failures", "restarts")}


def counters(engines: Mapping[str, Engine], grader: Any) -> dict[str, Any]:
    """Figures of the engines and the grader since the job began, for somebody who wonders where it hangs."""
    out = {f"engine of {role}": vars(e.stats) for role, e in engines.items() if isinstance(e, JaxEngine | VllmEngine)}
    return out | {"grader": dict(grader.counts)}


def progress(c: Settings, step: int, tokens: int, roles: frozenset[str], m: Mapping[str, float]) -> None:
    """One line a step. `tokens`: sampled so far."""
    far = f"{tokens:,}/{c.tokens:,} tokens " if c.tokens else ""
    top = sorted(((v, k.split("/")[1]) for k, v in m.items() if k.startswith("structure/")), reverse=True)[:2]
    said = ", ".join(f"{name} {share:.0%}" for share, name in top) + "  "
    valid = f"valid {m['designs/valid']:.2f} "
    if c.rollout.design:  # valid always, and what it does is known
        said = valid = ""
    console.print(
        f"{step:4d}/{c.steps} {far}learns {'+'.join(sorted(roles)):8s} reward {m['reward/mean']:.3f} accuracy "
        f"{m['accuracy']:.3f} {valid}calls {m['calls']:.0f} grad {m.get('grad_norm', 0):.2f} {said}"
        f"{m['time/step']:.1f} s", highlight=False, soft_wrap=True,
    )  # fmt: skip


def is_over(c: Settings, step: int, tokens: int) -> bool:
    """Whether a run ends after so many steps, in which so many tokens were sampled."""
    return step >= c.steps or 0 < c.tokens <= tokens


def begins_stage(c: Settings, step: int) -> bool:
    """Whether the policy is measured after so many steps: where the next stage begins and, under a schedule whose roles
    do not take turns, as often. Not at the very beginning."""
    return step > 0 and step % c.stage_length == 0


def is_saved(c: Settings, step: int, tokens: int) -> bool:
    """Whether a checkpoint is due after so many steps: every so often, at the end, and, where the best one is to be
    kept, wherever dev tasks are about to be played."""
    best = c.checkpoint.best and begins_stage(c, step)
    return step % c.checkpoint.every == 0 or is_over(c, step, tokens) or best


def reseeded(c: Settings, times: int) -> Settings:
    """The settings that samples are drawn with after so many roll-backs: the same steps must not draw the same."""
    if not times:
        return c
    copy = ml_collections.ConfigDict(c)
    with copy.unlocked():
        copy.seed = call_seed(c.seed, times, "roll back", 0, 0, "")
    return copy


def check(
    c: Settings, lines: Sequence[Mapping[str, Any]], skipped: Sequence[replay.Skip], folder: RunFolder,
    checkpoints: Checkpoints,
) -> None:  # fmt: skip
    """Tells what the guards find at the end of a step: a line each, also in `alerts.jsonl`.

    Args:
      lines: of `metrics.jsonl`, the step's last. skipped: updates of the step that were not finite.
      folder: of the run. checkpoints: its own.

    Raises:
      Stopped: one of them asks for it, or for more roll-backs than `guard.max_roll_backs`.
      RollBack: one asks for that, to the newest checkpoint from before the window that was judged; to the oldest one
        where `checkpoint.keep` has left none so old; to the cold start where there is none.
      CheckpointError: what was being written is not on disk.
    """
    alerts = [_skip_alert(skip, c.guard.nonfinite) for skip in skipped] + guards.find(lines, c)
    for alert in alerts:
        folder.log_alert(dataclasses.asdict(alert))
        console.print("alert:", alert.message, highlight=False, markup=False, soft_wrap=True)
    if stops := [alert.message for alert in alerts if alert.action == "stop"]:
        raise Stopped("; ".join(stops))
    if backs := [alert for alert in alerts if alert.action == "roll_back"]:
        why, before = "; ".join(alert.message for alert in backs), len(folder.roll_backs())
        if before >= c.guard.max_roll_backs:
            raise Stopped(f"{why}; rolled back {before} times before (guard.max_roll_backs={c.guard.max_roll_backs})")
        oldest = min(alert.step - alert.steps for alert in backs)  # the last step that no window holds
        checkpoints.wait()
        saved = [step for step in checkpoints.steps() if step < lines[-1]["step"]]
        raise RollBack(max((step for step in saved if step <= oldest), default=min(saved, default=0)), why)


def _skip_alert(skip: replay.Skip, most: int) -> guards.Alert:
    kept = f"look into it with --replay={skip.file}" if skip.file else f"it was not kept ({skip.why_not})"
    message = (
        f"update {skip.update} of step {skip.step}, policy {skip.policy}, was skipped: loss {skip.loss:g}, grad_norm "
        f"{skip.grad_norm:g}; {skip.in_row} in a row (guard.nonfinite={most}); {kept}"
    )
    action = "stop" if 0 < most <= skip.in_row else "warn"
    return guards.Alert(
        skip.step, "nonfinite", "updates/nonfinite", float(skip.in_row), float(most), 1, action, message
    )  # fmt: skip


def replayed(c: Settings, path: str | Path) -> None:
    """Does a kept update again (`--replay`), with the settings given, and prints what it computes.

    Raises:
      replay.ReplayError: not such a file, or settings that its batch does not fit.
    """
    update = replay.read(path)
    own = {name: c.model[name] for name in EXECUTION}
    try:
        learner = assemble.learner(c, Qwen3Config(**{**update.model, **own}))
    except (TypeError, ValueError) as error:
        raise replay.ReplayError(f"{path}: its network cannot be built with these settings: {error}") from error
    decides = ("learner.", "mesh.", "rollout.temperature", *(f"model.{name}" for name in own))
    there, here = (
        {k: v for k, v in flatten(s).items() if k.startswith(decides)} for s in (update.settings, c.to_dict())
    )
    console.print(f"update {update.update} of step {update.step}, policy {update.policy}, {update.made} updates before")
    for key in sorted(there | here):
        if there.get(key, "absent") != here.get(key, "absent"):
            console.print(f"  {key}: {there.get(key, 'absent')!r} then, {here.get(key, 'absent')!r} now",
                          highlight=False, markup=False)  # fmt: skip
    again = replay.replay(update, learner)
    view = Table("metric", "recorded", "now")
    for key in sorted(update.metrics | again.metrics):
        view.add_row(key, *(f"{m[key]:.9g}" if key in m else "-" for m in (update.metrics, again.metrics)))
    console.print(view)
    for number, finding in enumerate(again.findings):
        text = f"{'first: ' if not number else '  then '}{finding}"
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    if not again.findings:
        console.print("every number is finite: batch, weights, log-probs, gradients")
    apart = ", ".join(key for key, _, _ in again.different)
    verdict = "reproduced to the bit" if again.exact else f"not reproduced: {apart}" if apart else "reproduced"
    console.print(verdict, highlight=False, soft_wrap=True)
