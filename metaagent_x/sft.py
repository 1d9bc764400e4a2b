"""Supervised fine-tuning: teaches one policy both roles from examples, for RL to begin from.

  python -m metaagent_x.sft --config=configs/sft_4b.py
  python -m metaagent_x.sft --config=configs/sft_tiny.py --config.examples.files="('designer.jsonl','executor.jsonl')"
  python -m metaagent_x.sft --config=configs/sft_4b.py --dry_run

The network, the learner, the packing and the checkpoints are those of RL. The run is a folder like any other; at the
end it holds the policy as a Hugging Face folder, `hf/`, from which a training run starts:

  python -m metaagent_x.train --config=configs/qwen3_4b.py --config.model.path=runs/sft_4b/hf

Exit codes: 0 done, 2 bad input, 3 interrupted and resumable (the same command goes on), 1 anything else.
"""

from __future__ import annotations

import asyncio
import copy
import math
import sys
import time
from collections.abc import Mapping

from absl import app, flags
from ml_collections import config_flags
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from metaagent_x import accelerators, assemble, config, dry_run, examples, export
from metaagent_x.command import console, ending, override, say
from metaagent_x.interruption import Interruption
from metaagent_x.learner.checkpoint import Checkpoints
from metaagent_x.learner.step import Learner
from metaagent_x.loop import Stopped
from metaagent_x.run_folder import DESCRIPTION, RunFolder
from metaagent_x.watchdog import Watchdog

POLICY = "shared"  # the name that RL gives to one policy for both roles
EXPORT = "hf"  # in the run's folder

_CONFIG = config_flags.DEFINE_config_file("config", None, "Settings: a file of configs/ with the group `examples`.")
_OVERRIDES = {
    "seed": flags.DEFINE_integer("seed", None, "Seed of the order, and of random weights."),
    "workdir": flags.DEFINE_string("workdir", None, "Folder of this run."),
}
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Compile an update and say whether it fits; train nothing.")
_DRY_RUN_MESH = flags.DEFINE_string("dry_run_mesh", "8xH200", "Devices of the dry run: a number, x, an accelerator.")
_ALLOW = flags.DEFINE_multi_string("allow_change", [], "Go on although this field differs from the run's; repeatable.")


def main(_: list[str]) -> None:
    settings = _CONFIG.value
    override(settings, _OVERRIDES)
    began = time.perf_counter()
    with ending(settings, export.ExportError, goes_on="from the last checkpoint") as interruption:
        config.validate(settings)
        if "examples" not in settings:
            raise config.ConfigError("--config has no group `examples`; begin its file with base('examples')")
        if _DRY_RUN.value:
            step, tokens = dry_run.as_step(settings), settings.sft.rows * settings.sft.row_tokens
            say("one update, as RL would make it with such rows: it keeps the starting weights, this job does not")
            sys.exit(dry_run.run(step, mesh=_DRY_RUN_MESH.value, tokens=tokens, console=console))
        accelerators.prepare(settings)  # before anything asks JAX for a device
        assemble.check_supported(settings)
        assemble.adopt_weights(settings)
        pool = examples.open_pool(settings, console)
        console.print(examples.table(pool))
        settings.steps = len(pool.updates)  # what the folder may hold
        folder = RunFolder(settings.workdir, settings, _ALLOW.value)
        folder.check_data(pool.origins)
        dog = Watchdog.of(settings.guard, folder.path, say)
        try:
            with dog:
                interruption.run(train(copy.deepcopy(settings), pool, folder, interruption, dog))
        except (Stopped, asyncio.CancelledError) as reason:
            if not (why := dog.ended or str(reason)):
                raise
            say("stuck:" if dog.ended else "stopped:", why)
            sys.exit(1)
        say(export.export(folder.path, folder.path / EXPORT, dtype=settings.model.compute_dtype))
        say(f"done in {time.perf_counter() - began:.0f} s")


async def train(
    c: config.Settings, pool: examples.Pool, folder: RunFolder, interruption: Interruption, dog: Watchdog
) -> None:
    """All updates. A signal ends it between two of them; what was learned is saved."""
    dog.watch()
    assemble.describe(folder.path / DESCRIPTION, pool.model, pool.tokenizer)
    mesh = assemble.mesh(c)
    learner = Learner(pool.model, c.sft, mesh, zero=c.mesh.zero, total_updates=c.steps)
    checkpoints = Checkpoints(folder.path / "checkpoints", keep=c.checkpoint.keep, keep_every=c.checkpoint.keep_every)
    if (found := checkpoints.resume({POLICY: learner.abstract_state()}, say=say)) is not None:
        step, state = found[0], found[1][POLICY]
        say(f"resumed after update {step}")
        folder.truncate_after(step)
    else:
        folder.check_begins(c.checkpoint.every)
        step, state = 0, learner.init(assemble.weights(c, pool.model, mesh))
        folder.truncate_after(-1)  # step 0 is measured below
    folder.log_changes(step)
    skipped = examples.skipped_last(folder.metrics())
    try:
        with _progress() as bar:
            task = bar.add_task("", total=c.steps, completed=step, loss=math.nan)
            if step == 0 and pool.held:
                with dog.phase("evaluate"):
                    say(examples.told(folder.log(0, (), pool.held_out_loss(learner, state.params))))
            while step < c.steps:
                dog.step, clock = step + 1, time.perf_counter()
                batch = pool.batch(learner, step)
                with interruption.held():  # what follows belongs together
                    with dog.phase("update"):
                        state, metrics = learner.supervised_update(state, batch)
                    step += 1
                    metrics = pool.metrics(step, batch, metrics, time.perf_counter() - clock)
                    measured = step % c.sft.eval_every == 0 or step == c.steps
                    if measured:
                        with dog.phase("evaluate"):
                            metrics |= pool.held_out_loss(learner, state.params)
                    line = folder.log(step, examples.roles_in(batch), metrics | dog.metrics())
                    if measured:
                        say(examples.told(line))
                    bar.update(task, completed=step, loss=metrics["loss"])
                    if step % c.checkpoint.every == 0 or step == c.steps or interruption.asked:
                        with dog.phase("save"):
                            checkpoints.save(step, {POLICY: state}, {"step": step})
                    checkpoints.check()
                skipped = _check(folder, metrics, step, skipped, c.guard.nonfinite)
                await asyncio.sleep(0)  # where an interruption may end it
    except asyncio.CancelledError:
        if step and step != checkpoints.latest():
            checkpoints.save(step, {POLICY: state}, {"step": step})
        raise
    finally:
        checkpoints.wait()  # a thread that writes cannot go on while the interpreter ends


def _check(folder: RunFolder, metrics: Mapping[str, float], step: int, skipped: int, most: int) -> int:
    """Returns how many updates in a row were skipped up to now. Raises Stopped for `guard.nonfinite` of them."""
    if not metrics["nonfinite"]:
        return 0
    skipped += 1
    message = (
        f"update {step} was skipped: loss {metrics['loss']:g}, grad_norm {metrics['grad_norm']:g}; {skipped} in a row "
        f"(guard.nonfinite={most}); lower sft.learning_rate, or look for weights that are not finite"
    )
    folder.log_alert({"step": step, "guard": "nonfinite", "message": message})
    say("alert:", message)
    if 0 < most <= skipped:
        raise Stopped(message)
    return skipped


def _progress() -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("updates, loss {task.fields[loss]:.3f}"))
    return Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True,
        disable=not console.is_terminal,
    )  # fmt: skip


if __name__ == "__main__":
    app.run(main, flags_parser=config.parse_flags)
