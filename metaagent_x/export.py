"""Turns a checkpoint of a run into a Hugging Face folder, which transformers and vLLM load.

  python -m metaagent_x.export --run=runs/tiny --to=models/tiny
  python -m metaagent_x.export --run=runs/tiny --to=models/designer --policy=designer --step=30 --dtype=float32

Works on the CPU, also while the run goes on. Exit codes: 0 done, 2 bad input, 3 interrupted (the same command starts
again), 1 anything else.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
from absl import logging

from metaagent_x.learner.checkpoint import CheckpointError, Checkpoints
from metaagent_x.model import hf
from metaagent_x.model.parameters import COMPUTE_DTYPES, abstract_params
from metaagent_x.run_folder import DESCRIPTION

RECORD = "export.json"  # in the written folder: what it was made of


class ExportError(ValueError):
    """What cannot be exported, or not there. Exit code 2."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one export. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m metaagent_x.export", description="A checkpoint as a Hugging Face folder."
    )
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--to", type=Path, required=True, help="folder to write; may hold an earlier export")
    parser.add_argument("--step", type=int, help="the checkpoint's step; the newest by default")
    parser.add_argument("--dtype", choices=COMPUTE_DTYPES, default="bfloat16", help="of the tensors")
    parser.add_argument("--policy", help="designer or executor, where the run trains one each")
    parsed = parser.parse_args(arguments)
    logging.set_verbosity(logging.ERROR)  # Orbax tells that it only reads
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    jax.config.update("jax_platforms", "cpu")  # the run may hold the other devices
    try:
        print(export(parsed.run, parsed.to, parsed.step, parsed.dtype, parsed.policy))
        return 0
    except (ExportError, CheckpointError, hf.WeightsError) as error:
        print(f"bad input: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"cannot write {parsed.to}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command starts again", file=sys.stderr)
        return 3


def export(run: Path, to: Path, step: int | None = None, dtype: str = "bfloat16", policy: str | None = None) -> str:
    """Writes the folder. Returns one line that says what it is.

    Args:
      run: a run folder with a checkpoint.
      to: a new or empty folder, or one with an earlier export, which is replaced.
      step: None for the newest checkpoint.
      dtype: of the tensors.
      policy: None if there is only one.

    Raises:
      ExportError: no run with a checkpoint there, a policy that must be named, or a folder that holds something else.
      CheckpointError, WeightsError: the checkpoint does not have this step or policy, or cannot be read.
      OSError: the folder cannot be written.
    """
    described = run / DESCRIPTION
    if not (run / "checkpoints").is_dir() or not described.is_dir():
        raise ExportError(f"--run={run} is no run with a checkpoint: it lacks checkpoints/ or {DESCRIPTION}/")
    if to.exists() and any(to.iterdir()) and not (to / RECORD).exists():
        raise ExportError(f"--to={to} holds files that are no earlier export; choose another folder")
    checkpoints = Checkpoints(run / "checkpoints", read_only=True)
    step = checkpoints.latest() if step is None else step
    if step is None:
        raise ExportError(f"--run={run} has no complete checkpoint yet")
    names = checkpoints.policies(step)
    if policy is None and len(names) > 1:
        raise ExportError(f"--run={run} trains {' and '.join(names)}; choose one with --policy")
    config = hf.read_config(described)
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    template = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), abstract_params(config)[0]
    )
    policy = policy or names[0]
    params = checkpoints.restore_params(step, policy, template)
    stop_ids = json.loads((described / "generation_config.json").read_text())["eos_token_id"]
    record = to / RECORD
    if not record.exists():  # first, so that the folder is known as ours even if this is stopped
        to.mkdir(parents=True, exist_ok=True)
        record.write_text("{}\n")
    hf.save(to, config, params, dtype, tokenizer=described, stop_ids=stop_ids)
    made_of = {"run": str(run.absolute()), "step": step, "policy": policy, "dtype": dtype}
    record.write_text(json.dumps(made_of, indent=2) + "\n")
    size = sum(file.stat().st_size for file in to.glob("*.safetensors"))
    return f"{to}: policy {policy!r} of step {step}, {dtype}, {size / 1e6:,.1f} MB"


if __name__ == "__main__":
    sys.exit(main())
