"""What accelerators have by their data sheets, and who gets which GPU and how much of it: the learner, and the servers
that live beside it.

Nothing here initialises a device. `prepare` must run before JAX does: its memory fraction is read once, when the first
backend is made.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Mapping

from metaagent_x.config import ConfigError, Settings

MARGIN = 0.05  # of every device: the driver's context, buffers of the collectives, fragmentation
FRACTION = "XLA_CLIENT_MEM_FRACTION"
OLD_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"  # its deprecated name; JAX refuses both at once


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """What one device has, by its data sheet.

    Attributes:
      memory: bytes. flops: dense bfloat16 FLOP/s. bandwidth: of its memory, bytes/s.
      link: bytes/s that it can send to its neighbours in one node or slice. None: not stated, so no times are given.
      source: where the figures stand.
      host_link: bytes/s between its memory and the host's. None: not stated, so no push is timed.
    """

    memory: float
    flops: float | None
    bandwidth: float | None
    link: float | None
    source: str
    host_link: float | None = None


PCIE5 = 55e9  # bytes/s of 16 lanes one way, as copies reach it; 63 GB/s before protocol
ACCELERATORS = {
    "H200": Accelerator(
        141e9, 989e12, 4.8e12, 450e9, "NVIDIA H200 data sheet (SXM; dense; NVLink 900 GB/s both ways)", PCIE5
    ),
    "H100": Accelerator(
        80e9, 989e12, 3.35e12, 450e9, "NVIDIA H100 data sheet (SXM; dense; NVLink 900 GB/s both ways)", PCIE5
    ),
    "B200": Accelerator(
        180e9, 2250e12, 8e12, 900e9, "NVIDIA DGX B200 data sheet, an eighth of it (dense; NVLink 5)", PCIE5
    ),
    "v5p": Accelerator(95e9, 459e12, 2.765e12, 600e9, "Google Cloud TPU v5p page (ICI 4,800 Gbit/s a chip)"),
    "cpu": Accelerator(
        float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")), None, None, None, "memory of this machine"
    ),
}


@dataclasses.dataclass(frozen=True)
class Place:
    """Where one server lives.

    Attributes:
      policy: whose weights it holds. device: index of its GPU, counted as the learner counts them.
      share: of all memory of that GPU.
    """

    policy: str
    device: int
    share: float


def servers(config: Settings) -> int:
    """How many servers play one policy."""
    e = config.engine
    if e.urls:
        return len(e.urls) // (2 if config.policy == "separate" else 1)
    return e.servers or config.mesh.fsdp * config.mesh.tensor


def places(config: Settings, policies: list[str]) -> list[Place]:
    """The servers to start, those of one policy together.

    Server i of every policy lives on the same GPU: roles take turns, so that each finds all GPUs nearly free. The
    policies share `engine.memory_share` evenly.
    """
    first = config.mesh.fsdp * config.mesh.tensor if config.engine.layout == "split" else 0
    share = config.engine.memory_share / len(policies)
    return [Place(policy, first + i, share) for policy in policies for i in range(servers(config))]


def environment(config: Settings, given: Mapping[str, str]) -> dict[str, str]:
    """Environment variables for JAX that the settings ask for. What the user has set (`given`) is left alone.

    Beside servers on the same GPUs, JAX may take what they and the margin leave; by itself it would take three
    quarters, and whoever comes second runs out of memory.
    """
    e = config.engine
    if e.kind != "vllm" or e.layout != "colocated" or {FRACTION, OLD_FRACTION} & given.keys():
        return {}
    return {FRACTION: f"{1 - e.memory_share - MARGIN:.3f}"}


def visible_devices(config: Settings) -> str:
    """The GPUs that the learner may see: "all", or with a split layout those of its mesh ("0,1,2,3")."""
    if config.engine.kind != "vllm" or config.engine.layout != "split":
        return "all"
    return ",".join(str(i) for i in range(config.mesh.fsdp * config.mesh.tensor))


def prepare(config: Settings) -> None:
    """Makes JAX keep to its part of the GPUs, or simulate devices. Before anything initialises a backend."""
    import jax

    os.environ.update(environment(config, os.environ))
    if (visible := visible_devices(config)) != "all":
        jax.config.update("jax_cuda_visible_devices", visible)
    if config.mesh.simulate:
        jax.config.update("jax_num_cpu_devices", config.mesh.simulate)


def gpu_number(device: int, given: str | None) -> int:
    """The number on the machine of the GPU that is `device` to a process with CUDA_VISIBLE_DEVICES=`given` (None: all).

    Raises:
      ValueError: there is no such one, or it is not named by a number.
    """
    if not given:
        return device
    listed = given.split(",")
    if device >= len(listed):
        raise ValueError(f"CUDA_VISIBLE_DEVICES={given} has no GPU {device} for a server; show {device + 1} or more")
    if not listed[device].isdecimal():
        raise ValueError(f"CUDA_VISIBLE_DEVICES={given} does not name GPUs by their numbers; write '0,1,...'")
    return int(listed[device])


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU, as nvidia-smi says. `memory` and `used` in bytes."""

    name: str
    driver: str
    memory: float
    used: float


def installed_gpus() -> list[Gpu]:
    """All NVIDIA GPUs of the machine, in its order; none where there is no driver.

    Raises ConfigError if the driver does not answer.
    """
    if shutil.which("nvidia-smi") is None:
        return []
    fields = "name,driver_version,memory.total,memory.used"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        raise ConfigError(f"nvidia-smi ended with code {done.returncode}: {said}; repair the driver")
    rows = [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    return [Gpu(name, driver, float(total) * 2**20, float(used) * 2**20) for name, driver, total, used in rows]
