"""Train states on disk, exact to the bit, through Orbax."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from metaagent_x.learner.state import TrainState
from metaagent_x.model.parameters import Params


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used here. The message names the leaf or the step, and the way out."""


class Checkpoints:
    """The newest `keep` checkpoints of a run, one folder a step.

    A step is written under a temporary name and renamed when complete, so a run stopped while saving leaves the
    earlier ones whole. There is never a silent fresh start: what does not fit raises.
    """

    def __init__(self, folder: Path | str, keep: int = 2, *, read_only: bool = False) -> None:
        """Opens the folder.

        Args:
          folder: made if absent, unless `read_only`.
          keep: so many steps stay on disk.
          read_only: leave everything as it is, also what a run that is still going is just writing.
        """
        self.folder = Path(folder).absolute()  # Orbax refuses relative paths
        # Synchronous: the next update donates these very buffers, so they must be on disk when `save` returns.
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, enable_async_checkpointing=False, cleanup_tmp_directories=True, read_only=read_only
        )
        self._manager = ocp.CheckpointManager(self.folder, options=options)

    def save(self, step: int, states: Mapping[str, TrainState], extra: Mapping[str, Any]) -> None:
        """Writes the states (policy name -> state) and `extra` (values JSON can hold); returns when they are on disk.

        Raises:
          CheckpointError: the step is there already.
        """
        if step in self._manager.all_steps():
            raise CheckpointError(f"{self.folder} has a checkpoint of step {step} already; a step is saved once")
        leaves = _leaves(dict(states))
        table = {name: [list(leaf.shape), str(leaf.dtype)] for name, leaf in leaves.items()}
        self._manager.save(
            step,
            args=ocp.args.Composite(
                states=ocp.args.StandardSave(leaves),  # type: ignore[call-arg]
                extra=ocp.args.JsonSave(dict(extra)),  # type: ignore[call-arg]
                leaves=ocp.args.JsonSave(table),  # type: ignore[call-arg]
            ),
            force=True,
        )
        self._manager.wait_until_finished()

    def latest(self) -> int | None:
        """The newest complete step, None if there is none."""
        return self._manager.latest_step()

    def restore(self, step: int, templates: Mapping[str, TrainState]) -> tuple[dict[str, TrainState], dict[str, Any]]:
        """Reads a step into the structure, shapes and shardings of `templates`, which are not changed.

        Raises:
          CheckpointError: no such step, or a leaf that is missing, unknown, or of another shape or dtype.
        """
        wanted = _leaves(dict(templates))
        self._check(step, wanted, self._table(step))
        abstract = {k: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for k, x in wanted.items()}
        found = self._manager.restore(
            step,
            args=ocp.args.Composite(
                states=ocp.args.StandardRestore(abstract),  # type: ignore[call-arg]
                extra=ocp.args.JsonRestore(),
            ),
        )
        structure = jax.tree.structure(dict(templates))
        return jax.tree.unflatten(structure, [found["states"][name] for name in wanted]), found["extra"]

    def policies(self, step: int) -> list[str]:
        """Names of the policies that a step holds. Raises CheckpointError if there is no such step."""
        return sorted({name.split(".")[0] for name in self._table(step)})

    def restore_params(self, step: int, policy: str, template: Params) -> Params:
        """Reads the weights of one policy, without its optimizer state.

        Args:
          step: see `latest`.
          policy: see `policies`.
          template: their shapes, dtypes and shardings (arrays or `jax.ShapeDtypeStruct`).

        Raises:
          CheckpointError: no such step or policy, or a leaf that is missing, unknown, or of another shape or dtype.
        """
        saved = self._table(step)
        if policy not in (known := self.policies(step)):
            raise CheckpointError(f"{self.folder / str(step)} has no policy {policy!r}; it has {', '.join(known)}")
        wanted = _leaves({policy: {"params": template}})
        self._check(step, wanted, {k: v for k, v in saved.items() if k.startswith(f"{policy}.params.")})
        abstract = {k: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for k, x in wanted.items()}
        with ocp.PyTreeCheckpointer() as reader:
            args = ocp.args.PyTreeRestore(  # type: ignore[call-arg]
                abstract, restore_args=ocp.checkpoint_utils.construct_restore_args(abstract), partial_restore=True
            )
            found = reader.restore(self.folder / str(step) / "states", args=args)
        return jax.tree.unflatten(jax.tree.structure(template), [found[name] for name in wanted])

    def _table(self, step: int) -> dict[str, Any]:
        """Leaf -> [shape, dtype] of a step."""
        if step not in self._manager.all_steps():
            raise CheckpointError(f"{self.folder} has no checkpoint of step {step}; it has {self._manager.all_steps()}")
        return self._manager.restore(step, args=ocp.args.Composite(leaves=ocp.args.JsonRestore()))["leaves"]

    def _check(self, step: int, wanted: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
        where = f"checkpoint {self.folder / str(step)}"
        hint = "it was made by another model, policy or optimizer setting; use that config or another workdir"
        for name in [*wanted, *saved]:
            if name not in saved:
                raise CheckpointError(f"{where} has no leaf {name}; {hint}")
            if name not in wanted:
                raise CheckpointError(f"{where} has a leaf {name} that this run does not; {hint}")
            shape, dtype = saved[name]
            if tuple(shape) != wanted[name].shape or dtype != str(wanted[name].dtype):
                raise CheckpointError(
                    f"{where}: leaf {name} is {dtype}{shape}, this run needs "
                    f"{wanted[name].dtype}{list(wanted[name].shape)}; {hint}"
                )


def _leaves(tree: Any) -> dict[str, Any]:
    """Path -> leaf, in the order of the tree."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in jax.tree.leaves_with_path(tree)
    }
