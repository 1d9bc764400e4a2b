"""Writers of checkpoints that are killed: at every station of a save, and at moments that nobody chose."""

import json
import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from metaagent_x.learner.checkpoint import Checkpoints
from metaagent_x.learner.state import TrainState

pytestmark = pytest.mark.slow

# One process that imports once; every writer is a copy of it, made before JAX starts a thread. A writer saves one state
# after another, each filled with its step, and notes which step `wait` has called complete. The second save, or one
# that comes a little later, is its last.
WRITERS = """
import json, os, shutil, signal, sys, threading
from pathlib import Path
import jax.numpy as jnp
import orbax.checkpoint as ocp
from metaagent_x.learner import checkpoint
from metaagent_x.learner.checkpoint import Checkpoints
from metaagent_x.learner.state import TrainState

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def die_instead(owner, name, of=lambda *given: True):
    true = getattr(owner, name)
    setattr(owner, name, lambda *given, **named: die() if of(*given) else true(*given, **named))

def arrange(moment, folder):
    if moment == "write":
        die_instead(ocp.AsyncCheckpointer, "close")
    elif moment == "read back":
        die_instead(checkpoint, "_verify")
    elif moment == "manifest":
        die_instead(checkpoint, "_write")
    elif moment == "manifest's name":
        die_instead(os, "replace", lambda path, _: checkpoint.MANIFEST in str(path))
    elif moment == "name":
        die_instead(os, "rename", lambda path, _: str(path).endswith("2" + checkpoint.DRAFT))
    elif moment == "after the name":
        die_instead(checkpoint, "_sync", lambda path: path == folder)
    elif moment == "deletion":
        die_instead(shutil, "rmtree", lambda path: str(path).endswith(checkpoint.LEAVING)
                    and not os.unlink(Path(path, checkpoint.MANIFEST)))
    else:
        threading.Timer(float(moment), die).start()

def write(folder, moment):
    made = Checkpoints(folder, keep=1)
    for step in range(1, 1000):
        if step == 2:
            arrange(moment, folder)
        values = jnp.arange(1 << 19, dtype=jnp.float32) / 7 + step
        made.save(step, {"shared": TrainState({"w": values}, (), jnp.full((), step, jnp.int32))}, {"draws": step})
        made.wait()
        Path(folder, "complete").write_text(str(step))

for folder, moment in json.loads(sys.argv[1]).items():
    child = os.fork()
    if not child:
        write(Path(folder), moment)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, (moment, status)
"""
STATIONS = ("write", "read back", "manifest", "manifest's name", "name", "after the name", "deletion")
DELAYS = [f"{delay:.3f}" for delay in np.random.default_rng(0).uniform(0, 0.8, 8)]


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folders of writers that were killed, by the moment."""
    folder = tmp_path_factory.mktemp("killed")
    folders = {moment: folder / str(number) for number, moment in enumerate([*STATIONS, *DELAYS])}
    given = json.dumps({str(path): moment for moment, path in folders.items()})
    subprocess.run([sys.executable, "-c", WRITERS, given], check=True, timeout=300)
    return folders


@pytest.mark.fault("F099")
@pytest.mark.parametrize("moment", [*STATIONS, *DELAYS])
def test_whatever_kills_a_writer_the_newest_step_is_complete(killed, moment) -> None:
    """KempnerInstitute/KempnerForge#102: the name moved before the data, and the good step was deleted already."""
    folder = killed[moment]
    complete = int((folder / "complete").read_text())
    steps = Checkpoints(folder, read_only=True).steps()
    if moment in STATIONS:
        assert complete == 1
        assert steps == {"after the name": [1, 2], "deletion": [2]}.get(moment, [1])
    assert max(steps) in (complete, complete + 1)
    again, said = Checkpoints(folder, keep=1), []
    assert set(os.listdir(folder)) == {"complete", *map(str, steps)}, "what was not complete is gone"
    like = TrainState({"w": jnp.zeros(1 << 19)}, (), jnp.zeros((), jnp.int32))
    found = again.resume({"shared": like}, said.append)
    assert found is not None and not said
    step, states, extra = found
    assert step == max(steps) == int(states["shared"].step) == extra["draws"]
    expected = jnp.arange(1 << 19, dtype=jnp.float32) / 7 + step
    np.testing.assert_array_equal(np.asarray(states["shared"].params["w"]), np.asarray(expected))
    again.save(step + 1, states, {})
    assert again.latest() == step + 1
    assert set(os.listdir(folder)) == {"complete", str(step + 1)}
