"""What one GPU makes of a network of Qwen3-4B's widths: updates, log-probs, attention kernels, decoding, memory.

  python -m benchmarks.gpu                    # at most 8 minutes on one H200; without a GPU its small form
  python -m benchmarks.gpu --small            # the small form anywhere: seconds, only to see that everything runs
  python -m benchmarks.gpu --out gpu.json     # the rows of the table, and where and how they came about

MFU convention: FLOPs of three forward passes with the head at every position and attention over the causal half, rows
of one segment, nothing counted that is computed a second time (`cost.model_flops`), over the data sheet's dense
bfloat16 rate. Every position is scored. Attention alone is counted alike: 2 products forward, 6 with the backward pass.
Decoding is set against the time that memory takes to read all weights and the filled cache once a token.

Goal: 40 % MFU of an update at 16,384 tokens; 50 % is the bar to beat. Not measured yet.

A part that fails is a row that says so, and exit code 1; a part for which no time is left is a row as well.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from metaagent_x import config as settings
from metaagent_x import dry_run
from metaagent_x.learner.packing import Batch
from metaagent_x.learner.step import Learner
from metaagent_x.model import attention, attention_cudnn, cost, qwen3
from metaagent_x.model.parameters import Qwen3Config
from metaagent_x.rollout.engine import Sampling
from metaagent_x.rollout.jax_engine import JaxEngine

LIMIT_S = 450.0  # after this no new part begins
WORKSPACE = 10e9  # bytes beside weights, moments, gradients, their cast and the saved activations
SEGMENTS = 8  # of a packed row


@dataclasses.dataclass(frozen=True)
class Size:
    """How large everything is. `repeats`: timed runs after the first."""

    model: Qwen3Config
    row: int
    rows: int
    slots: int
    prompt: int
    sampled: int
    repeats: int


def size(small: bool) -> Size:
    if small:
        model = Qwen3Config(
            vocab_size=256, hidden_size=64, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16,
            intermediate_size=96, compute_dtype="bfloat16", remat="block",
        )  # fmt: skip
        return Size(model, row=128, rows=2, slots=4, prompt=8, sampled=8, repeats=1)
    return Size(
        Qwen3Config.from_settings(settings.base().model), row=16_384, rows=2, slots=64, prompt=512, sampled=256,
        repeats=3,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the result. `share`: of what the data sheet allows (MFU, or of the memory's bandwidth)."""

    part: str
    what: str
    value: float | None = None
    unit: str = ""
    share: float | None = None
    note: str = ""


def accelerator() -> dry_run.Accelerator | None:
    """The data sheet of this device, None if there is none here."""
    kind = jax.local_devices()[0].device_kind
    return next((a for name, a in dry_run.ACCELERATORS.items() if name in kind and a.flops), None)


def seconds(once: Callable[[], Any], repeats: int) -> float:
    """Median over runs, after one that compiles."""
    jax.block_until_ready(once())
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(once())
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def kernels() -> list[str]:
    return ["cudnn", "xla"] if not attention_cudnn.missing() else ["xla"]


def of_peak(flops: float, taken: float) -> float | None:
    sheet = accelerator()
    return flops / taken / sheet.flops if sheet and sheet.flops else None


# ---- attention


def attention_part(s: Size, kernel: str) -> Iterator[Row]:
    """A whole row as one segment, and cut into segments of one length."""
    m = s.model
    shapes = [(1, s.row, n, m.head_dim) for n in (m.num_heads, m.num_kv_heads, m.num_kv_heads)]
    inputs = [jax.random.normal(jax.random.key(i), shape, m.dtype) for i, shape in enumerate(shapes)]

    def out(q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array, positions: jax.Array) -> jax.Array:
        return attention.attention(q, k, v, ids, positions, kernel=kernel)

    def total(*args: jax.Array) -> jax.Array:
        return jnp.sum(out(*args).astype(jnp.float32))

    runs = (("forward", jax.jit(out), 2), ("forward and backward", jax.jit(jax.grad(total, argnums=(0, 1, 2))), 6))
    for segments in (1, SEGMENTS):
        each = s.row // segments
        place = jnp.arange(s.row, dtype=jnp.int32)[None]
        args = (*inputs, place // each + 1, place % each)
        for what, run, products in runs:
            taken = seconds(lambda run=run, args=args: run(*args), s.repeats)
            flops = products * m.num_heads * m.head_dim * segments * each**2  # 2 each, half of them causal
            name = f"{what}, {segments} segment{'s' * (segments > 1)}"
            yield Row(f"attention {kernel}", name, taken * 1e3, "ms", of_peak(flops, taken))


# ---- training


def depth(model: Qwen3Config, row: int, memory: float) -> int:
    """As many of the layers as fit: 16 bytes a parameter, 2 for the cast, what the layers save, and the workspace."""
    for layers in range(model.num_layers, 0, -1):
        cut = dataclasses.replace(model, num_layers=layers)
        need = 18 * cost.weights(cut) + (cost.saved_bytes(cut, 1, row) or 0) + WORKSPACE
        if need <= memory:
            return layers
    raise MemoryError(f"not one layer of {model.hidden_size} fits into {memory / 1e9:.0f} GB")


def group(s: Size) -> Any:
    found = settings.base()
    found.learner.row_tokens, found.learner.micro_rows = s.row, 1
    return found


def full_rows(s: Size) -> Batch:
    """Rows of one trajectory, all of it scored. Random ids: equal ones would crowd one row of the embedding."""
    batch, draw = dry_run.full_batch(s.rows, s.row, 1), np.random.default_rng(0)
    tokens, targets = draw.integers(0, s.model.vocab_size, (2, *batch.tokens.shape), np.int32)
    return batch._replace(tokens=tokens, targets=targets)


def training_part(s: Size, kernel: str) -> Iterator[Row]:
    model = dataclasses.replace(s.model, attention=kernel)
    learner, batch = Learner(model, group(s).learner), full_rows(s)
    weights = qwen3.init(model, jax.random.key(0))
    state = learner.init(weights)
    del weights
    old = learner.logprobs(state.params, batch)
    taken = seconds(lambda: learner.logprobs(state.params, batch), s.repeats)
    tokens, flops = s.rows * s.row, cost.model_flops(model, s.rows, s.row)
    name = f"train {kernel}"
    yield Row(name, "layers", model.num_layers, note=f"{cost.weights(model) / 1e9:.2f} G parameters")
    yield Row(name, "log-prob pass", tokens / taken, "tok/s", of_peak(flops / 3, taken))

    def update() -> None:
        nonlocal state
        state, line = learner.update(state, batch, old)
        if not line["updated"]:
            raise ArithmeticError(f"the update was skipped: loss {line['loss']}, grad_norm {line['grad_norm']}")

    taken = seconds(update, s.repeats)
    note = f"remat {model.remat}, {s.rows} micro-batches of {s.row:,} tokens"
    yield Row(name, "update", tokens / taken, "tok/s", of_peak(flops, taken), note)
    peak = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    if peak is None:
        yield Row(name, "peak memory", note="this device does not tell")
    else:
        yield Row(name, "peak memory", peak / 1e9, "GB", note="of all so far")


def needed(s: Size, kernel: str) -> float:
    """Bytes that the dry run foresees for `training_part`. Compiles for a CPU, so in a process of its own."""
    c, model = group(s), dataclasses.replace(s.model, attention="xla")
    learner = Learner(model, c.learner)
    batch = full_rows(s)
    compiled = {k: low.compile(compiler_options=dry_run.COMPILER) for k, low in learner.lower(batch).items()}
    need = dry_run.memory(c, model, learner, compiled)
    extra = [cost.saved_bytes(dataclasses.replace(model, attention=k), 1, s.row) or 0 for k in (kernel, "xla")]
    return need.total - need.resident["starting weights"] + extra[0] - extra[1]


def foresee(s: Size, small: bool, kernel: str) -> subprocess.Popen[str]:
    """Starts `needed` beside everything else."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--needed", kernel, "--layers", str(s.model.num_layers)]
    return subprocess.Popen(
        command + ["--small"] * small, stdout=subprocess.PIPE, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}
    )


def memory_part(kernel: str, foreseen: subprocess.Popen[str], rows: list[Row]) -> Iterator[Row]:
    text, _ = foreseen.communicate(timeout=200)
    if foreseen.returncode:
        raise RuntimeError(f"the dry run ended with exit code {foreseen.returncode}")
    need = float(text.split()[-1]) / 1e9
    real = next((r.value for r in rows if r.what == "peak memory" and r.value), None)
    note = f"{need / real:.2f}x the peak of train {kernel}" if real else "no peak to compare with"
    yield Row("memory", "dry run", need, "GB", note=note)


# ---- decoding


def decoding_part(s: Size) -> Iterator[Row]:
    length = s.prompt + s.sampled
    weights = qwen3.cast(qwen3.init(s.model, jax.random.key(0)), s.model.dtype)
    engine = JaxEngine(s.model, weights, slots=s.slots, cache_tokens=length, chunk=16, stop_ids=())
    del weights
    draw = random.Random(0)

    async def play() -> float:
        prompts = [tuple(draw.randrange(s.model.vocab_size) for _ in range(s.prompt)) for _ in range(s.slots)]
        began = time.perf_counter()
        done = await asyncio.gather(*(engine.generate(p, Sampling(s.sampled), i) for i, p in enumerate(prompts)))
        assert all(len(c.ids) == s.sampled for c in done)
        return time.perf_counter() - began

    async def runs() -> float:
        await play()  # compiles
        taken = [await play() for _ in range(s.repeats)]
        await engine.close()
        return statistics.median(taken)

    taken = asyncio.run(runs())
    sheet, tokens = accelerator(), s.slots * s.sampled
    read = cost.engine_bytes(s.model, s.slots, s.prompt + s.sampled // 2)  # weights and cache, half way
    share = s.sampled * read / sheet.bandwidth / taken if sheet and sheet.bandwidth else None
    note = f"{s.slots} slots, prompts of {s.prompt} and prefill included"
    yield Row("decode", "built-in engine", tokens / taken, "tok/s", share, note)


# ---- all of it


def measure(s: Size, small: bool, console: Console) -> tuple[list[Row], bool]:
    """Every part in turn. Returns the rows and whether all parts ended well."""
    began, rows, well = time.perf_counter(), [], True
    first = kernels()[0]
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 141e9)
    s = dataclasses.replace(s, model=dataclasses.replace(s.model, num_layers=depth(s.model, s.row, limit)))
    foreseen = foresee(s, small, first)
    # The first training part comes first: the peak that a device tells is that of the whole process.
    parts: list[tuple[str, Callable[[], Iterator[Row]]]] = [
        (f"train {first}", lambda: training_part(s, first)),
        ("memory", lambda: memory_part(first, foreseen, rows)),
        *((f"attention {k}", lambda k=k: attention_part(s, k)) for k in kernels()),
        ("decode", lambda: decoding_part(s)),
        *((f"train {k}", lambda k=k: training_part(s, k)) for k in kernels()[1:]),
    ]
    try:
        for name, part in parts:
            if time.perf_counter() - began > LIMIT_S:
                rows.append(Row(name, "left out", note=f"{LIMIT_S:.0f} s were over"))
                continue
            try:
                for row in part():
                    rows.append(row)
                    console.print(f"{row.part}: {row.what} {row.value or ''} {row.unit}", highlight=False)
            except Exception as error:  # one part must not cost the others their turn
                well = False
                rows.append(Row(name, "failed", note=f"{type(error).__name__}: {str(error)[:300]}"))
    finally:
        foreseen.kill()
        foreseen.wait()
    if first != "cudnn":
        rows.append(Row("attention cudnn", "left out", note=f"it {attention_cudnn.missing()}"))
    return rows, well


def table(rows: list[Row], title: str) -> Table:
    out = Table(title=title, title_justify="left")
    for name in ("part", "", "value", "of the data sheet", "note"):
        out.add_column(name, justify="right" if name in ("value", "of the data sheet") else "left")
    for r in rows:
        value = "" if r.value is None else f"{r.value:,.0f}" if r.value >= 1000 else f"{r.value:.3g}"
        out.add_row(r.part, r.what, f"{value} {r.unit}", "" if r.share is None else f"{r.share:.1%}", r.note)
    return out


def main() -> int:
    parse = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parse.add_argument("--small", action="store_true", help="tiny sizes: no measurement")
    parse.add_argument("--out", type=Path, help="a JSON file for the rows")
    parse.add_argument("--needed", help=argparse.SUPPRESS)
    parse.add_argument("--layers", type=int, help=argparse.SUPPRESS)
    given = parse.parse_args()
    small = given.small or (not given.needed and jax.local_devices()[0].platform == "cpu")
    s = size(small)
    if given.needed:
        s = dataclasses.replace(s, model=dataclasses.replace(s.model, num_layers=given.layers))
        print(needed(s, given.needed))
        return 0
    console, device = Console(), jax.local_devices()[0]
    began = time.perf_counter()
    rows, well = measure(s, small, console)
    what = "small form: NOT A MEASUREMENT" if small else f"rows of {s.row:,} tokens"
    title = f"{device.device_kind}, jax {jax.__version__}, {what}, {time.perf_counter() - began:.0f} s"
    console.print(table(rows, title))
    console.print("share: MFU by the causal half, three forward passes, nothing counted twice; decoding: of bandwidth")
    if given.out:
        record = {
            "measurement": not small, "device": device.device_kind, "jax": jax.__version__, "well": well,
            "size": dataclasses.asdict(s), "rows": [dataclasses.asdict(r) for r in rows],
        }  # fmt: skip
        given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
