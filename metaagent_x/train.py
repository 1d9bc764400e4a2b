"""Trains one policy as Designer and Executor.

  python -m metaagent_x.train --config=configs/tiny.py
  python -m metaagent_x.train --config=configs/tiny.py --designs=8 --executions=1 --policy=separate --seed=3
  python -m metaagent_x.train --config=configs/tiny.py --engine=vllm
  python -m metaagent_x.train --config=configs/tiny_grpo.py
  python -m metaagent_x.train --config=configs/qwen3_4b.py --dry_run
  python -m metaagent_x.train --config=configs/qwen3_4b.py --preflight
  python -m metaagent_x.train --config=configs/tiny.py --replay=runs/tiny/replay/step_000012_update_2_shared.npz

Exit codes: 0 done, 2 bad input, 3 interrupted and resumable (the same command goes on), 1 anything else.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import gc
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from absl import app, flags
from ml_collections import config_flags

from metaagent_x import accelerators, assemble, cold_start, config, data, dry_run, loop, preflight
from metaagent_x.analysis.report import write_report
from metaagent_x.command import console, ending, override, say
from metaagent_x.interruption import Interruption, to_the_end
from metaagent_x.learner.checkpoint import Checkpoints
from metaagent_x.learner.improve import improve
from metaagent_x.learner.replay import Recorder, ReplayError
from metaagent_x.learner.schedule import active_roles
from metaagent_x.rollout import measure, traces
from metaagent_x.rollout.engine import Engine, EngineRefused
from metaagent_x.rollout.seeds import call_seed
from metaagent_x.run_folder import DESCRIPTION, RunFolder, sampled_tokens
from metaagent_x.tasks.datasets import DatasetError
from metaagent_x.tasks.grader import Grader
from metaagent_x.watchdog import Watchdog

_CONFIG = config_flags.DEFINE_config_file("config", None, "Settings: a file of configs/.")
_OVERRIDES = {
    "designs": flags.DEFINE_integer("designs", None, "M, designs per task."),
    "executions": flags.DEFINE_integer("executions", None, "N, executions per design."),
    "policy": flags.DEFINE_enum("policy", None, config.CHOICES["policy"], "One policy for both roles, or one each."),
    "schedule": flags.DEFINE_enum("schedule", None, config.CHOICES["schedule"], "Which roles learn when."),
    "stage_length": flags.DEFINE_integer("stage_length", None, "K, steps per stage."),
    "steps": flags.DEFINE_integer("steps", None, "RL steps, at most."),
    "tokens": flags.DEFINE_integer("tokens", None, "The run ends with the step in which so many have been sampled."),
    "engine.kind": flags.DEFINE_enum("engine", None, config.CHOICES["engine.kind"], "What samples the tokens."),
    "sandbox": flags.DEFINE_enum("sandbox", None, config.CHOICES["sandbox"], "How scripts and programs are contained."),
    "seed": flags.DEFINE_integer("seed", None, "Seed of everything."),
    "workdir": flags.DEFINE_string("workdir", None, "Folder of this run."),
}
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Compile the step and say whether it fits; train nothing.")
_DRY_RUN_MESH = flags.DEFINE_string("dry_run_mesh", "8xH200", "Devices of the dry run: a number, x, an accelerator.")
_DRY_RUN_TOKENS = flags.DEFINE_integer("dry_run_tokens", 2**20, "Packed tokens that one step of the dry run trains on.")
_PREFLIGHT = flags.DEFINE_bool("preflight", False, "Say what is missing here for a run of days; train nothing.")
_PREFLIGHT_STEPS = flags.DEFINE_integer("preflight_steps", 2, "Steps of the preflight at full lengths; 0: only checks.")
_ALLOW = flags.DEFINE_multi_string("allow_change", [], "Go on although this field differs from the run's; repeatable.")
_REPLAY = flags.DEFINE_string("replay", None, "Do this kept update again, alone, and say where it stops being finite.")


def main(_: list[str]) -> None:
    settings = _CONFIG.value
    override(settings, _OVERRIDES)
    began, bad_input = time.perf_counter(), (DatasetError, EngineRefused, ReplayError)
    with ending(settings, *bad_input, goes_on="from the last checkpoint") as interruption:
        config.validate(settings)
        if _DRY_RUN.value:
            sys.exit(dry_run.run(settings, mesh=_DRY_RUN_MESH.value, tokens=_DRY_RUN_TOKENS.value, console=console))
        if _PREFLIGHT.value:
            steps, allow = _PREFLIGHT_STEPS.value, _ALLOW.value
            sys.exit(preflight.run(settings, steps=steps, allow=allow, interruption=interruption, console=console))
        accelerators.prepare(settings)  # before anything asks JAX for a device
        if _REPLAY.value:
            loop.replayed(settings, _REPLAY.value)
            sys.exit(0)
        assemble.check_supported(settings)
        assemble.adopt_weights(settings)
        assemble.check_vocabulary(settings, assemble.model_config(settings))
        pools = data.open_pools(settings)
        folder = RunFolder(settings.workdir, settings, _ALLOW.value)
        folder.check_data([dataclasses.asdict(origin) for origin in pools.origins])
        loop.show_data(pools)
        say("sandbox:", assemble.contain(settings))
        dog = Watchdog.of(settings.guard, folder.path, say)
        try:
            with dog:
                while True:
                    try:
                        # A copy: the cold start names its tokenizer in the settings, which decide what it is.
                        interruption.run(train(copy.deepcopy(settings), pools, folder, interruption, dog))
                        break
                    except loop.RollBack as back:
                        say("rolled back:", str(back))
                    gc.collect()  # its arrays hang together with the exception that ended it
        except (loop.Stopped, asyncio.CancelledError) as reason:
            if not (why := dog.ended or str(reason)):
                raise
            say("stuck:" if dog.ended else "stopped:", why)
            console.print(f"report: {write_report(folder.path)}")
            sys.exit(1)
        console.print(f"report: {write_report(folder.path)}   ({time.perf_counter() - began:.0f} s)")


async def train(
    c: config.Settings, pools: data.Pools, folder: RunFolder, interruption: Interruption, dog: Watchdog
) -> None:
    """The whole run: cold start, gate, RL steps with evaluations between stages, final tables, report.

    A signal ends it between two steps, or in the middle of what can be done again; what was learned is saved.
    """
    dog.watch()
    with dog.phase("cold_start"):
        cold = await cold_start.cold_start(c, pools)
    described = folder.path / DESCRIPTION
    assemble.describe(described, cold.model, cold.tokenizer)
    learner, owner = assemble.learner(c, cold.model), assemble.owners(c)
    policies = sorted(set(owner.values()))
    reference = dict.fromkeys(policies, learner.place(cold.params)) if c.learner.kl else None
    path, kept = folder.path / "checkpoints", c.checkpoint
    checkpoints = Checkpoints(path, keep=kept.keep, keep_every=kept.keep_every)
    step, states, extra = 0, {}, {}
    shapes = dict.fromkeys(policies, learner.abstract_state())  # a state made for this would stay beside the one found
    if (found := checkpoints.resume(shapes, say=functools.partial(console.print, markup=False))) is not None:
        step, states, extra = found
        console.print(f"resumed after step {step}")
    else:
        folder.check_begins(c.checkpoint.every)
        states = {name: learner.init(cold.params) for name in policies}
    draws = extra.get("draws", 0)
    folder.truncate_after(step)
    folder.log_changes(step)
    lines, dog.step = folder.metrics(), step
    tokens = sampled_tokens(lines)
    seeded = loop.reseeded(c, len(folder.roll_backs()))
    recorder = Recorder(folder.path / "replay", cold.model, c.to_dict(), c.guard.dumps, extra.get("skipped"))
    current = {name: state.params for name, state in states.items()}
    engines = await assemble.engines(c, pools, cold.model, current, version=step, described=described)
    before = assemble.cold_engines(c, pools, cold.model, cold.params, engines)
    grader = assemble.grader(c)
    dog.counters = lambda: loop.counters(engines, grader)
    whole = True  # weights, metrics, traces and `step` agree
    try:
        with dog.phase("evaluate"):
            if step == 0 and pools.dev:
                await loop.gate(c, pools, before, grader, folder)
            await loop.baseline(c, pools, before, grader, folder)
        while not loop.is_over(c, step, tokens):
            roles = active_roles(step, c.schedule, c.stage_length, c.first)
            # Before the stage, not after the last one: a run that goes on from here has not played it yet.
            if loop.begins_stage(c, step):
                with dog.phase("evaluate"):
                    await loop.stage(c, pools, engines, grader, folder, step)
                    if c.checkpoint.best:
                        checkpoints.score(step, await loop.dev_accuracy(c, pools, engines, grader, folder, step))
            clock = time.perf_counter()
            dog.step = step + 1
            with dog.phase("collect"):
                trees, draws = await loop.gather(seeded, pools, engines, grader, step, draws, roles)
            seed = call_seed(seeded.seed, step, "updates", 0, 0, "")
            with interruption.held():  # what follows belongs together
                whole, look = False, functools.partial(recorder.look, step + 1)
                with dog.phase("update"):
                    states, trained, metrics = improve(
                        trees, states, owner, learner, roles, seed=seed, reference=reference, look=look
                    )
                step += 1
                with dog.phase("push"):
                    for name, engine in {owner[role]: engines[role] for role in sorted(owner)}.items():
                        await engine.update_weights(states[name].params, version=step)
                metrics |= loop.engine_metrics(engines)
                metrics |= measure.step_metrics(trees, format_bonus=c.reward.format_bonus)
                metrics |= dog.metrics() | {"time/step": time.perf_counter() - clock}
                lines = [*lines[-c.guard.window :], folder.log(step, roles, metrics)]
                tokens += sampled_tokens(lines[-1:])
                traces.write(folder.path / "traces", trees, trained, run=folder.name, step=step)
                loop.progress(c, step, tokens, roles, metrics)
                whole = True
                if loop.is_saved(c, step, tokens) or interruption.asked:
                    with dog.phase("save"):
                        checkpoints.save(step, states, _record(c, step, draws, recorder.in_row))
                checkpoints.check()
            loop.check(c, lines, recorder.take(), folder, checkpoints)
        with dog.phase("evaluate"):
            await loop.final(c, pools, before, engines, grader, folder, step)
    except loop.RollBack as back:
        checkpoints.drop_after(back.to)
        folder.log_roll_back({"after_step": step, "to": back.to, "why": back.why})
        raise
    except asyncio.CancelledError:
        if whole and step and step != checkpoints.latest():
            checkpoints.save(step, states, _record(c, step, draws, recorder.in_row))
        raise
    finally:
        dog.counters = dict
        await to_the_end(_close([*engines.values(), *before.values()], grader, checkpoints, sys.exception()))


async def _close(
    engines: Iterable[Engine], grader: Grader, checkpoints: Checkpoints, why: BaseException | None
) -> None:
    """Closes all of it, whatever fails; raises the first failure unless something else (`why`) ends the run already."""
    failures: list[Exception] = []
    for one in {id(e): e for e in engines}.values():
        try:
            await one.close()
        except Exception as failure:
            failures.append(failure)
    for end in (grader.close, checkpoints.wait):  # a thread that writes cannot go on while the interpreter ends
        try:
            end()
        except Exception as failure:
            failures.append(failure)
    if failures and why is None:
        raise failures[0]
    for failure in failures:
        say("also:", str(failure))


def _record(c: config.Settings, step: int, draws: int, skipped: Mapping[str, int]) -> dict[str, Any]:
    """What a checkpoint says beside the states. Seeds follow from the settings, the step and the draws."""
    return {
        "step": step,
        "draws": draws,
        "skipped": dict(skipped),  # updates in a row, by policy
        "versions": dict.fromkeys(assemble.owners(c).values(), step),  # of the weights that the engines hold
        "schedule": c.schedule,
        "roles": sorted(active_roles(step, c.schedule, c.stage_length, c.first)),  # who learns next
        "settings": config.fingerprint(c),
    }


if __name__ == "__main__":
    app.run(main, flags_parser=config.parse_flags)
