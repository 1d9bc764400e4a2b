"""Token rate of the built-in engine against `transformers` generate: same tiny random weights, same run.

  pip install -r benchmarks/requirements.txt
  python -m benchmarks.engine                # prints a table
  python -m benchmarks.engine --append       # and adds it to benchmarks/RESULTS.md
  python -m benchmarks.engine runs/tiny      # also the calls of the first step recorded in that folder

Loads: "fixed" is 64 prompts of 32 tokens with 128 sampled tokens each; "mix" is like a rollout of configs/tiny.py, 256
requests with prompts of 20-60 and completions of 3-48 tokens, mostly short; "recorded" has the prompts and the lengths
of a step that was played, with its repeated prompts. `transformers` runs batches of 64 in order of arrival, each until
its longest request is done; only tokens that were asked for count, on both sides. Every timed run of the engine begins
with new weights, so that it has no prompt in memory.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import torch
from transformers import Qwen3Config as TorchConfig
from transformers import Qwen3ForCausalLM

from metaagent_x.model import qwen3
from metaagent_x.rollout import traces
from metaagent_x.rollout.engine import Sampling
from metaagent_x.rollout.jax_engine import JaxEngine

CONFIG = qwen3.Qwen3Config(
    vocab_size=512, hidden_size=128, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=32, intermediate_size=192
)
BATCH, CACHE, CHUNK, REPEATS = 64, 192, 8, 4
Load = list[tuple[list[int], int]]  # (prompt, sampled tokens)


def recorded(folder: str) -> Load:
    """The calls of a run's first recorded step, Designer and agents."""
    rows = traces.read(min(Path(folder, "traces").glob("step_*.parquet")))
    return [(list(r["prompt_ids"]), len(r["completion_ids"])) for r in rows]


def loads() -> dict[str, Load]:
    draw = random.Random(0)

    def prompt(n: int) -> list[int]:
        return [draw.randrange(CONFIG.vocab_size) for _ in range(n)]

    lengths = [3, 3, 4, 5, 6, 6, 8, 10, 12, 14, 18, 24, 32, 48]
    mix = [(prompt(draw.randrange(20, 61)), draw.choice(lengths)) for _ in range(256)]
    named = {"fixed": [(prompt(32), 128) for _ in range(BATCH)], "mix": mix}
    folders = [a for a in sys.argv[1:] if not a.startswith("--")]
    return named | ({"recorded": recorded(folders[0])} if folders else {})


def torch_model(params: dict) -> Qwen3ForCausalLM:
    """The same weights under the names of `transformers`."""
    c = CONFIG
    model = Qwen3ForCausalLM(
        TorchConfig(
            vocab_size=c.vocab_size, hidden_size=c.hidden_size, num_hidden_layers=c.num_layers,
            num_attention_heads=c.num_heads, num_key_value_heads=c.num_kv_heads, head_dim=c.head_dim,
            intermediate_size=c.intermediate_size, rms_norm_eps=c.rms_norm_eps, tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta}, pad_token_id=0, eos_token_id=None,
            bos_token_id=None,
        )
    )  # fmt: skip
    state = {"model.embed_tokens.weight": params["embed"], "model.norm.weight": params["norm"]}
    names = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
             "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj", "attn_norm": "input_layernorm",
             "mlp_norm": "post_attention_layernorm", "q_norm": "self_attn.q_norm",
             "k_norm": "self_attn.k_norm"}  # fmt: skip
    for ours, theirs in names.items():
        for i, weight in enumerate(np.asarray(params["layers"][ours])):
            if weight.ndim > 1:
                weight = (weight.reshape(-1, c.hidden_size) if ours == "o" else weight.reshape(weight.shape[0], -1)).T
            state[f"model.layers.{i}.{theirs}.weight"] = weight
    tensors = {k: torch.tensor(np.asarray(v)) for k, v in state.items()}
    missing = model.load_state_dict(tensors, strict=False).missing_keys
    assert missing == ["lm_head.weight"], missing  # tied to the embedding
    model.tie_weights()
    return model.eval()


def run_torch(model: Qwen3ForCausalLM, load: Load) -> None:
    for begin in range(0, len(load), BATCH):
        part = load[begin : begin + BATCH]
        width, longest = max(len(p) for p, _ in part), max(n for _, n in part)
        ids = torch.tensor([[0] * (width - len(p)) + p for p, _ in part])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p, _ in part])
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=mask, max_new_tokens=longest, do_sample=True, temperature=1.0,
                                 top_k=0, top_p=1.0)  # fmt: skip
        assert out.shape[1] == width + longest


async def run_engine(engine: JaxEngine, load: Load) -> list:
    jobs = (engine.generate(tuple(p), Sampling(n), seed) for seed, (p, n) in enumerate(load))
    done = await asyncio.gather(*jobs)
    assert [len(c.ids) for c in done] == [n for _, n in load]
    return done


def gap(model: Qwen3ForCausalLM, load: Load, done: list) -> float:
    """Largest difference of log-probs between both sides over a few requests."""
    worst = 0.0
    for (prompt, n), c in list(zip(load, done, strict=True))[:8]:
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *c.ids]])).logits[0, len(prompt) - 1 : -1]
        theirs = torch.log_softmax(logits, -1)[torch.arange(n), torch.tensor(c.ids)].numpy()
        worst = max(worst, float(np.abs(theirs - np.array(c.logprobs)).max()))
    return worst


def rate(tokens: int, once: Callable[[], object]) -> float:
    began = time.perf_counter()
    once()
    return tokens / (time.perf_counter() - began)


def choose_threads(model: Qwen3ForCausalLM, load: Load) -> None:
    """Gives torch the number of threads that it is fastest with: small matrices gain little from a second one, and on
    a busy machine its threads wait for each other."""
    seconds = {}
    for threads in (1, os.cpu_count() or 1, 1):  # the first one also warms up
        torch.set_num_threads(threads)
        seconds[threads] = 1 / rate(1, lambda: run_torch(model, [(p, 12) for p, _ in load]))
    torch.set_num_threads(min(seconds, key=seconds.__getitem__))
    print(f"seconds by torch threads: {seconds}", file=sys.stderr, flush=True)


def main() -> None:
    params = jax.device_get(qwen3.init(CONFIG, jax.random.key(0)))
    model = torch_model(params)
    choose_threads(model, loads()["fixed"])
    engine = JaxEngine(CONFIG, params, slots=BATCH, cache_tokens=CACHE, chunk=CHUNK, stop_ids=())
    lines = ["| load | engine, tok/s | transformers, tok/s | ratio | largest log-prob gap |", "|---|---|---|---|---|"]
    with asyncio.Runner() as runner:
        for name, load in loads().items():
            tokens = sum(n for _, n in load)
            done = runner.run(run_engine(engine, load))  # compiles
            pairs = []
            for seed in range(REPEATS):  # in turn, so that a busy machine slows both
                torch.manual_seed(seed)
                theirs = rate(tokens, lambda load=load: run_torch(model, load))
                runner.run(engine.update_weights(params, seed + 1))
                pairs.append((rate(tokens, lambda load=load: runner.run(run_engine(engine, load))), theirs))
                print(f"{name}: {pairs[-1][0]:,.0f} and {theirs:,.0f} tok/s", file=sys.stderr, flush=True)
            ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
            ratio = statistics.median(a / b for a, b in pairs)
            lines.append(f"| {name} | {ours:,.0f} | {theirs:,.0f} | {ratio:.1f}x | {gap(model, load, done):.1e} |")
        runner.run(engine.close())
    text = "\n".join(lines)
    print(text)
    if "--append" in sys.argv:
        day = datetime.date.today().isoformat()
        head = (
            f"\n## Built-in engine against transformers generate, {day}\n\n`python -m benchmarks.engine`: "
            f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, jax "
            f"{jax.__version__}, torch {torch.__version__} on its faster number of threads, {torch.get_num_threads()}; "
            f"median of {REPEATS} runs in turn; tiny Qwen3 (d {CONFIG.hidden_size}, {CONFIG.num_layers} layers, "
            f"vocabulary {CONFIG.vocab_size}, float32), {BATCH} slots x {CACHE}. Goals: 1.3x fixed, 2x mix.\n\n"
        )
        path = Path(__file__).with_name("RESULTS.md")
        with path.open("a", encoding="utf-8") as out:
            out.write(("" if path.exists() and path.stat().st_size else "# Benchmarks\n") + head + text + "\n")


if __name__ == "__main__":
    main()
