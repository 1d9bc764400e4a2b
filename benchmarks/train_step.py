"""One learner update against `transformers` and torch autograd on the CPU: same float32 weights, batch and loss.

  pip install -r benchmarks/requirements.txt
  python -m benchmarks.train_step                # prints a table; needs 14 GB of memory for the slice of 4B
  python -m benchmarks.train_step tiny           # only the tiny model ("tiny_one": the same on one device)
  python -m benchmarks.train_step --append       # also adds the table to benchmarks/RESULTS.md

Ours is `Learner.update`, what a run calls: packed arrays to the device, forward, backward, clip, AdamW, metrics back.
The other side is Qwen3ForCausalLM with sdpa attention in the same order, with torch's fastest parts for it: logits of
scored positions only, `cross_entropy`, fused AdamW, a causal flag instead of a mask where every row is one trajectory,
and the number of threads and of micro-batches that it is fastest with. Neither side recomputes layers. Both must agree
on loss and gradient. For the tiny model a third side is the second one's loss under `torch.compile` (a C++ compiler is
needed).

The tiny model is learned as a run learns it on a CPU that is to be fast (docs/learner.md): one JAX device a core, each
with rows of its own (ZeRO 1), few rows at a time, all layers in one step of their loop. A second line has it on one
device, as configs/tiny.py, which runs anywhere.

Each side is a process of its own and they step in turn, so that a busy machine slows both; those of the slice of 4B
take turns one process at a time. A turn has a few steps, as a run makes updates: the first of them finds cold caches
and sleeping threads. Memory is the peak of the process's resident set during a step above what it held before: weights
and moments are there before, gradients are not. For it both sides start once more with an allocator that gives
everything large back at once; otherwise it would be there before.
"""

from __future__ import annotations

import ctypes
import dataclasses
import datetime
import gc
import itertools
import multiprocessing
import os
import platform
import statistics
import sys
import time
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

from metaagent_x import config
from metaagent_x.learner.packing import Batch, pack
from metaagent_x.model.parameters import Qwen3Config, abstract_params
from metaagent_x.rollout.tree import Role, Trajectory

TINY = Qwen3Config(
    vocab_size=512, hidden_size=128, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=32, intermediate_size=192
)
SLICE = Qwen3Config(  # of Qwen3-4B
    vocab_size=151_936, hidden_size=2560, num_layers=2, num_heads=32, num_kv_heads=8, head_dim=128,
    intermediate_size=9728,
)  # fmt: skip
CORES = os.cpu_count() or 1


@dataclasses.dataclass(frozen=True)
class Shape:
    """One comparison.

    Attributes:
      rows, length: of the batch. devices, micro_rows: of our side, on each device.
      turns, steps: turns of each side, timed steps in each turn.
      together: both processes are there at once.
    """

    title: str
    model: Qwen3Config
    rows: int
    length: int
    devices: int
    micro_rows: int
    turns: int
    steps: int
    together: bool


SHAPES = {
    "tiny": Shape(
        f"tiny, 16 x 192, {CORES} devices", dataclasses.replace(TINY, unroll=3), 16, 192, CORES, 2, 20, 4, True
    ),
    "tiny_one": Shape("tiny, 16 x 192, one device", TINY, 16, 192, 1, 16, 20, 4, True),
    "slice": Shape("2 layers of 4B, 1 x 1,024", SLICE, 1, 1024, 1, 1, 2, 3, False),
}
ROLES: tuple[Role, Role] = ("designer", "executor")
CLIP = 1.0


# ---- what both sides are given


def settings(shape: str) -> Any:
    one = SHAPES[shape]
    s = config.base().learner
    s.update({"row_tokens": one.length, "micro_rows": one.micro_rows, "learning_rate": 1e-5, "clip_norm": CLIP})
    return s


def make_batch(shape: str, load: str) -> Batch:
    """ "all": one trajectory a row, every position scored. "mix": Designer and Executor trajectories as a run packs
    them, a prompt that is not scored and a completion that is."""
    model, rows, length = SHAPES[shape].model, SHAPES[shape].rows, SHAPES[shape].length
    rng = np.random.default_rng(0)

    def trajectory(prompt: int, completion: int, role: Role) -> Trajectory:
        n = prompt + completion
        return Trajectory(
            tokens=tuple(rng.integers(0, model.vocab_size, n).tolist()), mask=(False,) * prompt + (True,) * completion,
            logprobs=(0.0,) * n, role=role, advantage=float(rng.normal()),
        )  # fmt: skip

    if load == "all":
        made = [trajectory(1, length, "executor") for _ in range(rows)]
    else:
        made, free = [], rows * length * 0.88
        while True:  # the lengths of configs/tiny.py, stretched to the row
            prompt, completion = (int(x * length / 192) for x in (rng.integers(20, 61), rng.integers(16, 49)))
            free -= prompt + completion - 1
            if free < 0:
                break
            made.append(trajectory(prompt, completion, ROLES[len(made) % 2]))
    batch = pack(made, length, rows_multiple=rows)
    assert batch.tokens.shape == (rows, length), f"{shape} {load} packed into {batch.tokens.shape}"
    return batch


def make_weights(model: Qwen3Config) -> dict[str, Any]:
    """The same numbers in both processes, of the size that `qwen3.init` gives them."""
    rng = np.random.default_rng(1)

    def draw(path: tuple[str, ...], leaf: Any) -> np.ndarray:
        if "norm" in path[-1]:
            return np.ones(leaf.shape, np.float32)
        made = rng.standard_normal(leaf.shape, np.float32)
        made *= model.hidden_size**-0.5
        return made

    shapes = abstract_params(model)[0]
    layers = {name: draw(("layers", name), leaf) for name, leaf in shapes["layers"].items()}
    return {name: layers if name == "layers" else draw((name,), leaf) for name, leaf in shapes.items()}


# ---- the two sides


class Ours:
    def __init__(self, shape: str, batch: Batch, old: np.ndarray | None) -> None:
        import jax

        from metaagent_x.learner.step import Learner
        from metaagent_x.model.sharding import make_mesh

        one = SHAPES[shape]
        jax.config.update("jax_num_cpu_devices", one.devices)
        mesh = make_mesh(one.devices) if one.devices > 1 else None
        self.learner = Learner(one.model, settings(shape), mesh, zero=1)
        self.state = self.learner.init(make_weights(one.model))
        self.old = self.learner.logprobs(self.state.params, batch)
        self.batch = batch._replace(old_logp=self.old)  # as if an engine without any mismatch had sampled it

    def step(self) -> tuple[float, float]:
        self.state, metrics = self.learner.update(self.state, self.batch, self.old)
        assert metrics["updated"] == 1.0
        return metrics["loss"], metrics["grad_norm"]


class Torch:
    def __init__(self, shape: str, batch: Batch, old: np.ndarray | None) -> None:
        import torch

        assert old is not None
        self.stepped = False  # the first norm, which is compared, is exact: torch's sum over a large matrix is not
        self.s, self.model = settings(shape), torch_model(SHAPES[shape].model)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=self.s.learning_rate, betas=(self.s.b1, self.s.b2), weight_decay=self.s.weight_decay,
            fused=True,
        )  # fmt: skip
        self.batch, self.old = batch, old
        self.cut(1)

    def cut(self, micro: int) -> None:
        """The batch into so many micro-batches of equal rows."""
        rows = len(self.batch.tokens) // micro
        self.parts = [self.arrays(slice(i * rows, (i + 1) * rows)) for i in range(micro)]

    def arrays(self, rows: slice) -> dict[str, Any]:
        import torch

        def tensor(x: np.ndarray) -> Any:
            return torch.from_numpy(x.copy())

        batch, on = self.batch, self.batch.mask[rows].ravel()
        segments = batch.segment_ids[rows]
        same = segments[:, :, None] == segments[:, None, :]
        seen = same & np.tri(batch.tokens.shape[1], dtype=bool)
        return {
            "tokens": tensor(batch.tokens[rows]).long(), "positions": tensor(batch.positions[rows]).long(),
            "scored": None if on.all() else tensor(np.flatnonzero(on)),
            "targets": tensor(batch.targets[rows].ravel()[on]).long(),
            "old": tensor(self.old[rows].ravel()[on]), "advantages": tensor(batch.advantages[rows].ravel()[on]),
            "weights": tensor(batch.weights[rows].ravel()[on]),
            # None: sdpa's causal flag.
            "seen": {"full_attention": None if (segments == 1).all() else tensor(seen[:, None])},
        }  # fmt: skip

    def loss(self, part: dict[str, Any]) -> Any:
        import torch

        hidden = self.model.model(
            part["tokens"], attention_mask=part["seen"], position_ids=part["positions"], use_cache=False
        )
        hidden = hidden.last_hidden_state.flatten(0, 1)
        logits = self.model.lm_head(hidden if part["scored"] is None else hidden[part["scored"]])
        logp = -torch.nn.functional.cross_entropy(logits, part["targets"], reduction="none")
        del logits, hidden
        ratio = torch.exp(logp - part["old"])
        clipped = ratio.clamp(1 - self.s.clip_low, 1 + self.s.clip_high)
        return -(part["weights"] * torch.minimum(ratio * part["advantages"], clipped * part["advantages"])).sum()

    def step(self) -> tuple[float, float]:
        import torch

        total = 0.0
        for part in self.parts:
            loss = self.loss(part)
            loss.backward()
            total += float(loss.detach())
        exact = (
            0.0
            if self.stepped
            else sum(torch.linalg.vector_norm(p.grad, dim=-1).double().square().sum().item() for p in self.parameters)
        )
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.stepped = True
        return total, exact**0.5 or float(norm)


class Compiled(Torch):
    """Forward and backward pass by TorchInductor, optimizer and clipping as before."""

    def __init__(self, shape: str, batch: Batch, old: np.ndarray | None) -> None:
        import torch

        super().__init__(shape, batch, old)
        self.loss = torch.compile(self.loss, dynamic=False)


def torch_model(c: Qwen3Config) -> Any:
    """The weights of `make_weights` under the names of `transformers`."""
    import torch
    from transformers import Qwen3Config as TorchConfig
    from transformers import Qwen3ForCausalLM

    names = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
             "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}  # fmt: skip
    model = Qwen3ForCausalLM(
        TorchConfig(
            vocab_size=c.vocab_size, hidden_size=c.hidden_size, num_hidden_layers=c.num_layers,
            num_attention_heads=c.num_heads, num_key_value_heads=c.num_kv_heads, head_dim=c.head_dim,
            intermediate_size=c.intermediate_size, rms_norm_eps=c.rms_norm_eps, tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta}, pad_token_id=None, eos_token_id=None,
            bos_token_id=None,
        )
    )  # fmt: skip
    params = make_weights(c)
    with torch.no_grad():  # norms are ones on both sides
        model.model.embed_tokens.weight.copy_(torch.from_numpy(params.pop("embed")))
        for ours, theirs in names.items():
            for layer, weight in zip(model.model.layers, params["layers"][ours], strict=True):
                weight = weight.reshape(-1, c.hidden_size) if ours == "o" else weight.reshape(weight.shape[0], -1)
                layer.get_parameter(f"{theirs}.weight").copy_(torch.from_numpy(weight.T))
    model.set_attn_implementation("sdpa")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    return model.train()


# ---- one process a side


def resident(key: str) -> int:
    """Bytes: VmRSS now, or VmHWM, the largest since it was reset."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status does not say {key}; peak memory needs Linux")


def peak_of(step: Any) -> int:
    """Bytes above those before the step, at its fullest moment."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what is free but not given back would hide what the step takes
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM starts again from now
    before = resident("VmRSS")
    step()
    return resident("VmHWM") - before


def serve(side: str, shape: str, load: str, old: np.ndarray | None, pipe: Connection) -> None:
    """Answers "step" with (seconds, loss, gradient norm), "memory" with bytes, (threads, micro-batches) with None."""
    worker = {"ours": Ours, "torch": Torch, "compiled": Compiled}[side](shape, make_batch(shape, load), old)
    pipe.send(getattr(worker, "old", None) if side == "ours" else None)
    while True:
        order = pipe.recv()
        if order == "step":
            began = time.perf_counter()
            values = worker.step()
            pipe.send((time.perf_counter() - began, *values))
        elif order == "memory":
            pipe.send(peak_of(worker.step))
        elif order == "stop":
            return
        else:
            import torch

            torch.set_num_threads(order[0])
            worker.cut(order[1])
            pipe.send(None)


class Side:
    """A process of `serve`."""

    def __init__(self, name: str, shape: str, load: str, old: np.ndarray | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        self._process = context.Process(target=serve, args=(name, shape, load, old, far), daemon=True)
        self._process.start()
        far.close()
        self.ready = self._pipe.recv()
        self.first: tuple[float, float] | None = None  # loss and gradient norm with the weights as they were made

    def ask(self, order: str | tuple[int, int]) -> Any:
        self._pipe.send(order)
        return self._pipe.recv()

    def close(self) -> None:
        self._pipe.send("stop")
        self._process.join()


def fastest(side: Side, rows: int) -> tuple[int, int]:
    """The fastest of one thread and one a core (small products gain little from a second one), and of one, two and four
    micro-batches (activations of few rows stay in the caches)."""
    seconds: dict[tuple[int, int], float] = {}
    for order in itertools.product((1, CORES), [n for n in (1, 2, 4) if rows % n == 0]):
        side.ask(order)
        seconds[order] = min(side.ask("step")[0] for _ in range(2))
    return min(seconds, key=seconds.__getitem__)


class Sides:
    """Starts each side when it is its turn, and ends the other one first where both are too much for the machine."""

    def __init__(self, shape: str, load: str) -> None:
        self._shape, self._load, self._running = shape, load, {}
        self._old: np.ndarray | None = None
        self.orders: dict[str, tuple[int, int]] = {}  # threads and micro-batches of torch's sides

    def start(self, name: str) -> Side:
        if name in self._running:
            return self._running[name]
        if not SHAPES[self._shape].together:
            self.close()
        side = self._running[name] = Side(name, self._shape, self._load, self._old)
        if name == "ours":
            self._old = side.ready
        side.first = side.ask("step")[1:]  # it also warms up
        if name != "ours":
            if name not in self.orders:
                self.orders[name] = fastest(side, SHAPES[self._shape].rows)
            side.ask(self.orders[name])
        side.ask("step")
        return side

    def memory(self, name: str) -> int:
        """Bytes that a step takes, measured in a process of its own."""
        self.close()
        os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # read when the process starts
        try:
            return self.start(name).ask("memory")
        finally:
            self.close()
            del os.environ["MALLOC_MMAP_THRESHOLD_"]

    def close(self) -> None:
        for side in self._running.values():
            side.close()
        self._running = {}


def compare(shape: str, load: str) -> str:
    """One line of the table."""
    batch, sides = make_batch(shape, load), Sides(shape, load)
    tokens = int((batch.segment_ids > 0).sum())
    turns, steps = SHAPES[shape].turns, SHAPES[shape].steps
    seconds: dict[str, list[float]] = {"ours": [], "torch": []} | ({"compiled": []} if SHAPES[shape].together else {})
    first = {}
    for _ in range(turns):
        for name, times in seconds.items():
            side = sides.start(name)
            times += [side.ask("step")[0] for _ in range(steps)]
            print(f"{shape} {load}, {name}: {[round(t, 4) for t in times[-steps:]]} s", file=sys.stderr, flush=True)
            first[name] = side.first
    peaks = {name: sides.memory(name) / 1e9 for name in ("ours", "torch")}
    for name, values in first.items():
        np.testing.assert_allclose(values, first["ours"], rtol=1e-4, atol=1e-6, err_msg=f"ours and {name} do not agree")
    rates = {name: tokens / statistics.median(times) for name, times in seconds.items()}

    def against(name: str) -> str:
        """Their rate with their settings, and ours by it."""
        ratio = statistics.median(b / a for a, b in zip(seconds["ours"], seconds[name], strict=True))
        return f"{rates[name]:,.0f} ({sides.orders[name][0]}, {sides.orders[name][1]}) | {ratio:.2f}x"

    title = f"{SHAPES[shape].title}, {load} | {batch.mask.sum() / tokens:.0%}"
    return (
        f"| {title} | {rates['ours']:,.0f} | {against('torch')} | "
        f"{against('compiled') if 'compiled' in seconds else ' | '} | {peaks['ours']:.3f} | {peaks['torch']:.3f} | "
        f"{peaks['ours'] / peaks['torch']:.2f}x |"
    )


def main() -> None:
    chosen = [a for a in sys.argv[1:] if not a.startswith("--")] or list(SHAPES)
    lines = [
        "| batch | scored | ours, tok/s | torch, tok/s (threads, parts) | ratio | compiled | ratio | ours, GB | "
        "torch, GB | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(compare(shape, load) for shape in chosen for load in ("all", "mix")),
    ]
    text = "\n".join(lines)
    print(text)
    if "--append" in sys.argv:
        timed = {name: shape.turns * shape.steps for name, shape in SHAPES.items()}
        head = (
            f"\n## Train step against transformers\n\n`python -m benchmarks.train_step`, "
            f"{datetime.date.today().isoformat()}: {CORES} cores ({platform.machine()}), Python "
            f"{platform.python_version()}, jax {version('jax')}, torch {version('torch')}, transformers "
            f"{version('transformers')}; float32; medians of {timed['tiny']} (tiny) "
            f"and {timed['slice']} steps.\n\n"
        )
        path = Path(__file__).with_name("RESULTS.md")
        with path.open("a", encoding="utf-8") as out:
            out.write(("" if path.exists() and path.stat().st_size else "# Benchmarks\n") + head + text + "\n")


if __name__ == "__main__":
    main()
