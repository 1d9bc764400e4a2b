"""vLLM as rollout engine on the CPU: what a push of weights costs, and its token rate beside the built-in engine's.

  launch/setup_vllm.sh cpu
  python -m benchmarks.vllm                # prints tables
  python -m benchmarks.vllm --append       # and adds them to benchmarks/RESULTS.md
  python -m benchmarks.vllm --small        # without the model of 1.2 GB, which takes 10 GB of memory and some minutes

Pushes: "exposed" is the time from pause to resume, in which nothing is generated. The model of 1.2 GB has the shapes of
Qwen3-0.6B in bfloat16; its rates stand beside that of the same bytes written into a new file in shared memory, in turn.
Tokens: 64 prompts of 32 tokens with 128 sampled ones each, both engines in turn with new weights each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

from metaagent_x.model import hf, hf_config, logprobs, qwen3
from metaagent_x.rollout.engine import Sampling
from metaagent_x.rollout.jax_engine import JaxEngine
from metaagent_x.rollout.vllm_client import VllmClient
from metaagent_x.rollout.vllm_server import ServerSettings, VllmServer, find_python
from metaagent_x.rollout.weight_sync import WeightStore, WeightSync, update_steps

TINY = qwen3.Qwen3Config(
    vocab_size=512, hidden_size=128, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=32, intermediate_size=192
)
LARGE = qwen3.Qwen3Config(
    vocab_size=151_936, hidden_size=1024, num_layers=28, num_heads=16, num_kv_heads=8, head_dim=128,
    intermediate_size=3072, compute_dtype="bfloat16",
)  # fmt: skip
BATCH, CACHE, CHUNK, PROMPT, NEW = 64, 192, 8, 32, 128
PUSHES, LARGE_PUSHES, REPEATS = 30, 5, 4


class Side(NamedTuple):
    client: VllmClient
    store: WeightStore
    sync: WeightSync


def score(config: qwen3.Qwen3Config, params: dict, ids: np.ndarray) -> jax.Array:
    positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    hidden = qwen3.forward(params, config, jnp.asarray(ids), positions, jnp.ones(ids.shape, jnp.int32))
    return logprobs.token_logprobs(params, config, hidden[:, :-1], jnp.asarray(ids[:, 1:]), chunk=64)


@contextlib.asynccontextmanager
async def serving(config: qwen3.Qwen3Config, threads: int = 0) -> AsyncIterator[Side]:
    dtype = config.compute_dtype
    with tempfile.TemporaryDirectory() as folder:
        hf_config.write_description(Path(folder), config, dtype, None, ())
        server = VllmServer(
            ServerSettings(find_python(), folder, "", dtype, CACHE, BATCH, threads=threads), Path(folder, "server.log")
        )
        client = VllmClient(await server.start())
        store = WeightStore(functools.partial(hf.named_tensors, config, dtype=dtype), dtype)
        sync = WeightSync(
            store, jax.jit(functools.partial(score, config)), vocab_size=config.vocab_size, dtype=dtype, rows=2
        )
        try:
            yield Side(client, store, sync)
        finally:
            sync.close()
            await client.close()
            await server.stop()


async def timed_push(side: Side, params: dict, version: int) -> dict[str, float]:
    """Seconds of each part of a push."""
    began = time.perf_counter()
    manifest = side.store.write(params, version)
    parts = {"write": time.perf_counter() - began}
    for step, call in update_steps(side.client, manifest, "keep"):
        began = time.perf_counter()
        await call()
        parts[step] = time.perf_counter() - began
    parts["exposed"] = sum(parts.values()) - parts["write"]
    return parts


def plain_copy(data: np.ndarray) -> float:
    """Seconds that the same bytes take into a new file in shared memory."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        began = time.perf_counter()
        file.write(data.data)
        file.flush()
        return time.perf_counter() - began


def median(rows: list[dict[str, float]], key: str) -> float:
    return statistics.median(row[key] for row in rows)


async def small_pushes(side: Side) -> list[str]:
    params = [qwen3.init(TINY, jax.random.key(seed)) for seed in (0, 1)]
    await side.sync.push_all([side.client], params[0], 0)
    rows = [await timed_push(side, params[i % 2], i + 1) for i in range(PUSHES)]
    steps = [s for s in rows[0] if s not in ("write", "exposed")]
    share = ", ".join(f"{step} {1e3 * median(rows, step):.0f}" for step in steps)
    exposed = sorted(1e3 * row["exposed"] for row in rows)
    return [
        "| push of the tiny model, HTTP | exposed, ms: median | fastest | slowest | before it, ms |",
        "|---|---|---|---|---|",
        f"| {share} | {statistics.median(exposed):.0f} | {exposed[0]:.0f} | {exposed[-1]:.0f} | "
        f"{1e3 * median(rows, 'write'):.0f} |",
    ]


async def large_pushes() -> list[str]:
    params = jax.tree.map(lambda s: jnp.full(s.shape, 0.01, jnp.float32), qwen3.abstract_params(LARGE)[0])
    size = 2 * sum(x.size for x in jax.tree.leaves(params))
    data = np.ones(size, np.uint8)
    rows: list[dict[str, float]] = []
    async with serving(LARGE, threads=os.cpu_count() or 1) as side:
        for version in range(LARGE_PUSHES + 1):
            row = await timed_push(side, params, version)
            row["plain"] = plain_copy(data)
            print({k: round(v, 2) for k, v in row.items()}, file=sys.stderr, flush=True)
            rows.append(row)
    rows = rows[1:]  # the first one compiles, and takes the memory

    def line(name: str, key: str) -> str:
        best = min(row[key] for row in rows)
        ratio = statistics.median(row["plain"] / row[key] for row in rows)
        return f"| {name} | {median(rows, key):.2f} | {best:.2f} | {size / best / 1e9:.2f} | {ratio:.2f}x |"

    return [
        f"| {size / 1e9:.2f} GB, {LARGE_PUSHES} pushes | median, s | fastest, s | GB/s then | of the plain rate |",
        "|---|---|---|---|---|",
        line("bytes into a new file in /dev/shm", "plain"),
        line("exposed: pause to resume", "exposed"),
        line("before it: name, turn, cast, write, sum", "write"),
    ]


async def token_rates(side: Side) -> list[str]:
    params = jax.device_get(qwen3.init(TINY, jax.random.key(0)))
    engine = JaxEngine(TINY, params, slots=BATCH, cache_tokens=CACHE, chunk=CHUNK, stop_ids=())
    draw = np.random.default_rng(0)
    prompts = draw.integers(0, TINY.vocab_size, (BATCH, PROMPT)).tolist()

    async def rate(generate) -> float:
        began = time.perf_counter()
        done = await asyncio.gather(*(generate(tuple(p), Sampling(NEW), seed) for seed, p in enumerate(prompts)))
        assert [len(c.ids) for c in done] == [NEW] * BATCH
        return BATCH * NEW / (time.perf_counter() - began)

    for engine_or_client in (engine, side.client):  # compiles
        await rate(engine_or_client.generate)
    pairs = []
    for version in range(1, REPEATS + 1):
        await side.sync.push_all([side.client], params, 1000 + version)
        theirs = await rate(side.client.generate)
        await engine.update_weights(params, version)
        pairs.append((await rate(engine.generate), theirs))
        print(f"{pairs[-1][0]:,.0f} and {theirs:,.0f} tok/s", file=sys.stderr, flush=True)
    await engine.close()
    ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    return [
        "| tokens, fixed length | built-in, tok/s | vLLM over HTTP, tok/s | ratio |",
        "|---|---|---|---|",
        f"| {BATCH} x {NEW} | {ours:,.0f} | {theirs:,.0f} | {ratio:.1f}x |",
    ]


async def run() -> str:
    async with serving(TINY) as side:
        vllm = (await side.client.info()).vllm
        small = await small_pushes(side)
        tokens = await token_rates(side)
    tables = [small, tokens] if "--small" in sys.argv else [small, await large_pushes(), tokens]
    head = (
        f"`python -m benchmarks.vllm`, {datetime.date.today().isoformat()}: {os.cpu_count()} cores "
        f"({platform.machine()}), load {os.getloadavg()[2]:.0f} in the last quarter of an hour, Python "
        f"{platform.python_version()}, jax {jax.__version__}, vLLM {vllm}; {PUSHES} pushes of the tiny Qwen3 (d "
        f"{TINY.hidden_size}, {TINY.num_layers} layers, float32); {REPEATS} runs in turn of both engines."
    )
    return "\n\n".join([head, *("\n".join(table) for table in tables)])


def main() -> None:
    text = asyncio.run(run())
    print(text)
    if "--append" in sys.argv:
        with Path(__file__).with_name("RESULTS.md").open("a", encoding="utf-8") as out:
            out.write(f"\n## vLLM on the CPU\n\n{text}\n")


if __name__ == "__main__":
    main()
