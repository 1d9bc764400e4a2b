"""One vLLM server as a child process: its command line, its start, its end.

The server computes with dummy weights until the first push, so that nothing on a disk can be taken for the policy.
It ends with this process, however this process ends (`third_party/vllm/metaagent_x_vllm/watch.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from metaagent_x.rollout.vllm_client import LOGPROBS_MODE, ServerError, VllmClient

ROOT = Path(__file__).parents[2]
WORKER = ROOT / "third_party" / "vllm"  # what the server's workers import
PYTHON_VARIABLE = "METAAGENT_X_VLLM_PYTHON"
TAIL_LINES = 30  # of the log, shown when a server does not start
PATIENCE_S = 10.0  # for a server that was asked to stop
_CPU_BLOCK = 32  # tokens of a cache block; vLLM's default on a CPU is 128, too coarse for short prompts


def find_python(given: str = "") -> str:
    """The interpreter of the environment that vLLM is installed in.

    Args:
      given: a path; "" for $METAAGENT_X_VLLM_PYTHON, or else what launch/setup_vllm.sh makes by default.

    Raises:
      FileNotFoundError: there is none.
    """
    path = given or os.environ.get(PYTHON_VARIABLE) or str(ROOT / ".venv-vllm" / "bin" / "python")
    if not os.access(path, os.X_OK):
        raise FileNotFoundError(
            f"no vLLM environment: {path} is not an interpreter; run launch/setup_vllm.sh, or set {PYTHON_VARIABLE}"
        )
    return path


@dataclasses.dataclass(frozen=True)
class ServerSettings:
    """What a server is started with.

    Attributes:
      python: interpreter of its environment (`find_python`).
      model: folder with the config.json of the network (`model.hf_config.write_description`).
      fingerprint: `Chat.fingerprint` of the learner's tokenizer and template; the server says it in the handshake.
      dtype: "float32" or "bfloat16", of weights and computation.
      max_model_len: tokens of prompt and completion together.
      slots: sequences decoded together.
      device: "cpu" or "cuda".
      gpus: devices by their number on the machine, as many as share one copy of the weights (tensor parallel).
      memory_share: of each of them, for weights and cache, measured against the whole device.
      seed: of the server's own random stream, for requests without a seed.
      threads: CPU: for matrix products; 0: half of the cores. More than there are idle cores is much slower.
      extension: class mixed into the workers. path: folders that it is imported from, beside our own.
    """

    python: str
    model: str
    fingerprint: str
    dtype: str
    max_model_len: int
    slots: int
    device: Literal["cpu", "cuda"] = "cpu"
    gpus: tuple[int, ...] = ()
    memory_share: float = 0.9
    seed: int = 0
    threads: int = 0
    extension: str = "metaagent_x_vllm.Extension"
    path: tuple[str, ...] = ()


def command(settings: ServerSettings, port: int, host: str = "127.0.0.1") -> list[str]:
    """The command line. `host` must stay one that only trusted programs reach: whoever does can change the weights."""
    s = settings
    out = [
        s.python, "-m", "metaagent_x_vllm.serve", "--model", s.model, "--served-model-name", "policy",
        "--host", host, "--port", str(port),
        "--load-format", "dummy",  # the weights are those that are pushed, never a file's
        "--skip-tokenizer-init",  # ids in, ids out
        "--generation-config", "vllm",  # the folder's own sampling defaults stay out
        "--dtype", s.dtype, "--max-model-len", str(s.max_model_len), "--max-num-seqs", str(s.slots),
        "--seed", str(s.seed), "--logprobs-mode", LOGPROBS_MODE,
        # Logits are kept in float32, as the learner keeps them; rounded to bfloat16 they differ by several times more.
        "--hf-overrides", '{"head_dtype": "float32"}',
        "--enable-scale-out",  # the token endpoint
        "--weight-transfer-config", '{"backend": "metaagent_x"}', "--worker-extension-cls", s.extension,
        "--additional-config", json.dumps({"metaagent_x_fingerprint": s.fingerprint}),
        "--disable-log-stats", "--disable-uvicorn-access-log",
    ]  # fmt: skip
    if s.device == "cuda":
        return [
            *out, "--gpu-memory-utilization", f"{s.memory_share:g}", "--tensor-parallel-size", str(max(1, len(s.gpus)))
        ]  # fmt: skip
    return [
        *out, "--enforce-eager", "--block-size", str(_CPU_BLOCK),
        # vLLM 0.32 dies on a CPU of a request with its own seed whose prompt is read in pieces.
        "--no-enable-chunked-prefill", "--max-num-batched-tokens", str(max(s.max_model_len, 8192)),
        # With VLLM_ENABLE_V1_MULTIPROCESSING=0: scheduler and model in one process. Starts in half the time, and a
        # small model is twice as fast.
        "--distributed-executor-backend", "uni",
    ]  # fmt: skip


def environment(settings: ServerSettings, given: Mapping[str, str]) -> dict[str, str]:
    """The variables that a server needs, on top of `given`."""
    s = settings
    out = {
        **given,
        "PYTHONPATH": os.pathsep.join([str(WORKER), *s.path]),
        "METAAGENT_X_PARENT": str(os.getpid()),
        "VLLM_SERVER_DEV_MODE": "1",  # the routes of weight updates
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if s.device == "cuda":
        return out | ({"CUDA_VISIBLE_DEVICES": ",".join(map(str, s.gpus))} if s.gpus else {})
    return out | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(cache_gib(settings)),
        "OMP_NUM_THREADS": str(s.threads or max(1, len(os.sched_getaffinity(0)) // 2)),
        "TORCH_COMPILE_DISABLE": "1",  # compiles for seconds at the first request, and gains nothing here
    }


def cache_gib(settings: ServerSettings) -> int:
    """GiB of key-value cache with which every slot can reach the full length, and twice that for shared prefixes.

    Raises:
      ServerError: the model folder has no readable config.json.
    """
    path = Path(settings.model) / "config.json"
    try:
        c = json.loads(path.read_text(encoding="utf-8"))
        per_token = 2 * c["num_hidden_layers"] * c["num_key_value_heads"] * c["head_dim"]
    except (OSError, ValueError, KeyError) as error:
        raise ServerError(f"cannot read the network in {path}: {type(error).__name__} {error}") from error
    width = {"float32": 4, "bfloat16": 2}[settings.dtype]
    blocks = settings.slots * math.ceil(settings.max_model_len / _CPU_BLOCK + 1)
    return max(1, math.ceil(2 * blocks * _CPU_BLOCK * per_token * width / 2**30))


class VllmServer:
    """A server that this process starts and ends.

    Args:
      settings: see there.
      log: file that its output is added to.
      start_timeout_s: from the start until it answers.
    """

    def __init__(self, settings: ServerSettings, log: Path | str, *, start_timeout_s: float = 900.0):
        self.settings, self.log, self.start_timeout_s = settings, Path(log), start_timeout_s
        self.url = ""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process, which is also its process group; None if it does not run."""
        return self._process.pid if self._process is not None and self.alive() else None

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self) -> str:
        """Ends what is left of an earlier one, starts, waits until it answers, and returns its URL.

        Raises:
          ServerError: it ended or did not answer in time; the message has the end of its log.
        """
        await self.stop()
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        line = command(self.settings, port)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            log.write(f"$ {shlex.join(line)}\n".encode())
            log.flush()
            try:
                self._process = subprocess.Popen(
                    line,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment(self.settings, os.environ),
                    start_new_session=True,  # a Ctrl-C is for the learner, which then ends the server
                )
            except OSError as error:
                raise ServerError(f"cannot start {self.settings.python}: {error}") from error
        deadline = time.monotonic() + self.start_timeout_s
        client = VllmClient(self.url, timeout_s=5.0, connections=1)
        try:
            while not await client.healthy():
                if not self.alive():
                    raise ServerError(f"the server ended with code {self._process.returncode} before it answered")
                if time.monotonic() > deadline:
                    raise ServerError(f"the server does not answer after {self.start_timeout_s:g} s")
                await asyncio.sleep(0.2)
        except BaseException as error:
            await self.stop()
            if isinstance(error, ServerError):
                raise ServerError(f"{error}; the end of {self.log}:\n{_tail(self.log)}") from error
            raise
        finally:
            await client.close()
        return self.url

    async def restart(self) -> str:
        """A new process, with dummy weights."""
        return await self.start()

    async def stop(self) -> None:
        """Ends the server with all its processes: politely, and after 10 s by force. Nothing if there is none."""
        process = self._process
        if process is None:
            return
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
            deadline = time.monotonic() + PATIENCE_S
            while (living := _living(process.pid)) and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
            if not living:
                break
        process.wait()
        if self._process is process:  # only now: whoever was cut short in here may call again
            self._process = None


def _living(group: int) -> list[int]:
    """Processes of a group that still run. A zombie does not: whoever inherits it may be slow to take it away."""
    out = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, of = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:3]
            if int(of) == group and state not in "ZX":
                out.append(int(path.parent.name))
    return out


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _tail(path: Path) -> str:
    try:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:])
    except OSError as error:
        return str(error)
