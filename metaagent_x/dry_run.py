"""Would this job fit, and how fast could it be at best? Compiles its real programs for machines that are not here.

  python -m metaagent_x.train --config=configs/qwen3_4b.py --dry_run
  python -m metaagent_x.train --config=configs/qwen3_4b.py --dry_run --dry_run_mesh=4xH100 --config.mesh.fsdp=4

The devices are simulated on the CPU and the weights are shapes: two cores do it in under a minute. Sizes of weights,
moments, gradients and batches are exact. Temporaries are what a CPU compile needs: an estimate, as a rule too high,
since a CPU multiplies bfloat16 as float32. Times are limits that no program can beat, not forecasts.

Exit codes: 0 fits, 2 does not (or bad input).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import ml_collections
from jax.sharding import NamedSharding
from rich.console import Console
from rich.table import Table

from metaagent_x import assemble
from metaagent_x.accelerators import ACCELERATORS, MARGIN, Accelerator, servers
from metaagent_x.config import ConfigError, Settings
from metaagent_x.learner.packing import Batch, bucket_rows, pack
from metaagent_x.learner.step import Learner
from metaagent_x.model import attention, cost, program, sharding
from metaagent_x.model.parameters import Qwen3Config
from metaagent_x.model.sharding import ShardingError
from metaagent_x.rollout.tree import Trajectory

# Level 0: the machine code is never run. Without the pass that is left out, a CPU compile keeps float32 copies of all
# saved bfloat16 activations (it has no bfloat16 product and lifts the conversion out of the backward loop).
COMPILER = {"xla_backend_optimization_level": 0, "xla_disable_hlo_passes": "while-loop-invariant-code-motion"}


@dataclasses.dataclass(frozen=True)
class Need:
    """Bytes on the device that holds most.

    Attributes:
      resident: what is there all the time, by name; exact.
      gradients, saved, gathered: parts of `temporaries`, by formula; saved is None where the compiler decides it (remat
        "none"). Gathered are weights that a device holds whole (ZeRO stage 1).
      temporaries: of the update, from the compiled program.
      scoring: temporaries of the log-prob pass.
    """

    resident: dict[str, float]
    gradients: float
    saved: float | None
    temporaries: float
    scoring: float
    gathered: float = 0.0

    @property
    def total(self) -> float:
        return sum(self.resident.values()) + max(self.temporaries, self.scoring)


@dataclasses.dataclass(frozen=True)
class Pass:
    """One program run over one micro-batch, on every device: by formula, and as counted in the compiled program.

    `sent` is None where the layout has no formula (a `tensor` axis).

    Attributes:
      flops, counted_flops: matrix products.
      sent, counted_sent: bytes to other devices.
      once, counted_once: bytes to other devices that a program sends whatever the number of its micro-batches.
    """

    flops: float
    counted_flops: float
    sent: float | None
    counted_sent: float
    once: float = 0.0
    counted_once: float = 0.0


def run(config: Settings, *, mesh: str, tokens: int, console: Console) -> int:
    """Prints memory, work and limits of the job's training step on `mesh`. Returns the exit code.

    Args:
      config: validated settings.
      mesh: "8xH200": so many of a name in `ACCELERATORS`.
      tokens: packed tokens that one step trains on.
      console: where to print.

    Raises:
      ConfigError: a mesh that cannot be read or has another size than the settings' own, or fewer than one token.
    """
    devices, name = parse_mesh(mesh)
    if devices != (own := config.mesh.fsdp * config.mesh.tensor):
        raise ConfigError(
            f"--dry_run_mesh={mesh} has {devices} devices, mesh.fsdp={config.mesh.fsdp} x mesh.tensor="
            f"{config.mesh.tensor} needs {own}; change the one or the other"
        )
    if tokens < 1:
        raise ConfigError(f"--dry_run_tokens={tokens} must be at least 1")
    device = ACCELERATORS[name]
    if config.model.path and Path(config.model.path).is_dir():
        assemble.adopt_weights(config)
    elif config.model.path:
        console.print(f"{config.model.path} is not here: sizes are those of the settings", highlight=False)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    if name != "cpu":
        attention.TILES["cpu"] = attention.TILE  # as on the described devices, which this process stands for
    model = assemble.model_config(config)
    if model.attention == "cudnn":  # a CPU cannot compile it
        model, wanted = dataclasses.replace(model, attention="xla"), model
        c, parts = config.learner, config.mesh.tensor
        kept = [cost.saved_bytes(m, c.micro_rows, c.row_tokens, parts) or 0 for m in (wanted, model)]
        console.print(
            "attention 'cudnn' is compiled on a GPU only: memory and work are those of 'xla'; 'cudnn' keeps "
            f"{_gb(kept[0] - kept[1])} GB more on every device", highlight=False, soft_wrap=True,
        )  # fmt: skip
    try:
        learner = assemble.learner(config, model)
    except ShardingError as error:
        raise ConfigError(str(error)) from error
    rows = math.ceil(tokens / config.learner.row_tokens / config.learner.updates_per_step)
    micro = math.ceil(rows / learner.rows_multiple) * config.learner.updates_per_step
    console.print(
        f"dry run, nothing measured: {cost.weights(model) / 1e9:.3f} G parameters, {config.policy} policy, mesh "
        f"{config.mesh.fsdp} x {config.mesh.tensor} of {name}, ZeRO {config.mesh.zero}, remat {model.remat}; a step of "
        f"{micro} micro-batches of {learner.rows_multiple} rows x {config.learner.row_tokens} tokens, each one scored",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    batch = full_batch(bucket_rows(rows, learner.rows_multiple), config.learner.row_tokens, learner.rows_multiple)
    compiled = {key: lowered.compile(compiler_options=COMPILER) for key, lowered in learner.lower(batch).items()}
    need = memory(config, model, learner, compiled)
    engine = engine_share(config, model, device.memory)
    console.print(memory_table(need, engine, device.memory, name))
    passes = {key: work(config, model, key, done.as_text() or "") for key, done in compiled.items()}
    console.print(work_table(passes))
    if device.flops:
        console.print(limits_table(config, model, passes, micro, device, devices))
        if config.engine.kind == "vllm":
            console.print(budget_table(config, model, passes, micro, tokens, device, devices))
    console.print(f"figures of {name}: {device.source}", highlight=False, soft_wrap=True)
    fits, advice = verdict(config, model, need, engine, device.memory)
    if config.engine.kind == "vllm" and device.bandwidth and not decode(config, model, tokens, device).sequences:
        share, each = config.engine.memory_share, _gb(cost.serving_bytes(model))
        fits = False
        advice = (
            f"does not fit: engine.memory_share={share} of {name} does not hold the weights of every policy ({each} GB "
            "each) and the keys and values of one sequence; raise it"
        )
    console.print(advice, highlight=False, soft_wrap=True)
    return 0 if fits else 2


def as_step(config: Settings) -> Settings:
    """A copy of the settings of supervised fine-tuning: those of a step of RL that makes one update with its rows and
    its optimizer, and samples nothing."""
    c: Settings = ml_collections.ConfigDict(config.to_dict())
    c.learner.update({name: value for name, value in c.sft.items() if name in c.learner})
    c.learner.update({"updates_per_step": 1, "kl": 0.0})
    c.policy, c.engine.kind = "shared", "scripted"
    return c


def parse_mesh(text: str) -> tuple[int, str]:
    """ "8xH200" -> (8, "H200"). Raises ConfigError."""
    found = re.fullmatch(r"(\d+)x(\w+)", text)
    if not found or found[2] not in ACCELERATORS or int(found[1]) < 1:
        raise ConfigError(
            f"--dry_run_mesh={text!r} must be a number, an x and one of {', '.join(ACCELERATORS)}, e.g. 8xH200"
        )
    return int(found[1]), found[2]


def full_batch(rows: int, length: int, multiple: int) -> Batch:
    """The densest batch there is: every row one trajectory of which every token is trained."""
    n = length + 1  # the first id is nobody's target
    row = Trajectory(tokens=(1,) * n, mask=(False,) + (True,) * length, logprobs=(0.0,) * n, advantage=1.0)
    return pack([row] * rows, length, rows_multiple=multiple)


def on_device(tree: Any, *, whole_rows: bool = False) -> float:
    """Bytes of the largest share of a tree of shapes on one device; `whole_rows`: were it not split over `fsdp`."""

    def share(x: Any) -> int:
        place = x.sharding
        if whole_rows and isinstance(place, NamedSharding):
            place = NamedSharding(place.mesh, sharding.without(place.spec, {sharding.RULES["batch"]}))
        return math.prod(place.shard_shape(x.shape) if place else x.shape) * x.dtype.itemsize

    return float(sum(map(share, jax.tree.leaves(tree))))


def memory(config: Settings, model: Qwen3Config, learner: Learner, compiled: dict[str, Any]) -> Need:
    """What a device holds during an update, from the shapes and the compiled programs."""
    state = learner.abstract_state()
    params, moments = on_device(state.params), on_device(state.opt_state)
    update, score = (compiled[key].memory_analysis() for key in ("update", "score"))
    resident = {"parameters": params, "optimizer": moments, "batch": update.argument_size_in_bytes - params - moments}
    if len(set(assemble.owners(config).values())) > 1:
        resident["the other policy"] = params + moments
    resident["starting weights"] = params  # kept for the comparison at the end, and as the reference of a KL term
    saved = cost.saved_bytes(model, config.learner.micro_rows, config.learner.row_tokens, config.mesh.tensor)
    return Need(
        resident,
        gradients=on_device(state.params, whole_rows=learner.apart),
        gathered=_gathered(model, state.params) if learner.apart else 0.0,
        saved=saved,
        temporaries=update.temp_size_in_bytes + update.output_size_in_bytes - update.alias_size_in_bytes,
        scoring=score.temp_size_in_bytes + score.output_size_in_bytes,
    )


def _gathered(model: Qwen3Config, params: Any) -> float:
    """Bytes of the weights that a device gathers under ZeRO stage 1: layers in compute dtype, the rest as it is."""
    layers, rest = params["layers"], {name: x for name, x in params.items() if name != "layers"}
    low = on_device(layers, whole_rows=True) * model.dtype.itemsize / cost.MASTER
    return low + on_device(rest, whole_rows=True)


def engine_share(config: Settings, model: Qwen3Config, capacity: float) -> float:
    """Bytes of a device that the engines take beside the learner."""
    if config.engine.kind == "vllm":
        return config.engine.memory_share * capacity if config.engine.layout == "colocated" else 0.0
    if config.engine.kind == "jax":  # whole on one device
        policies = len(set(assemble.owners(config).values()))
        return float(policies * cost.engine_bytes(model, config.engine.slots, config.engine.cache_tokens))
    return 0.0


def work(config: Settings, model: Qwen3Config, key: str, text: str | None) -> Pass:
    """What one micro-batch costs a device. `text` is the program compiled for a CPU; None: nothing is counted."""
    rows, length = config.learner.micro_rows, config.learner.row_tokens
    formula = cost.train_flops if key == "update" else cost.score_flops
    fsdp, tensor, backward = config.mesh.fsdp, config.mesh.tensor, key == "update"
    layerwise, once = cost.fsdp_bytes(model, fsdp, backward=backward), 0.0
    if config.mesh.zero == 1:
        layerwise, once = 0.0, cost.exchange_bytes(model, fsdp, backward=backward) / tensor

    def counted(micro: int) -> tuple[float, float]:
        """FLOPs and bytes of the program over so many micro-batches."""
        done = program.operations(text, outer_trips=micro) if text is not None else []
        sent = sum(o.times * cost.wire_bytes(o.kind, o.amount, o.group) for o in done if o.kind != "dot")
        return sum(o.times * o.amount for o in done if o.kind == "dot"), sent

    (flops, sent), counted_once = counted(1), counted(0)[1] if config.mesh.zero == 1 else 0.0
    return Pass(
        flops=formula(model, rows, length, length) / tensor,
        counted_flops=flops,
        sent=layerwise if tensor == 1 else None,
        counted_sent=sent - counted_once,
        once=once,
        counted_once=counted_once,
    )


def verdict(config: Settings, model: Qwen3Config, need: Need, engine: float, capacity: float) -> tuple[bool, str]:
    """Whether it fits, and in words: what is left, or what to change."""
    free = capacity - need.total - engine - MARGIN * capacity
    if free >= 0:
        return True, f"fits: {_gb(free)} GB free on every device beside learner, engine and margin"
    c, ways = config, []
    if model.remat != "full" and need.saved is not None:
        full = cost.saved_bytes(dataclasses.replace(model, remat="full"), c.learner.micro_rows, c.learner.row_tokens)
        ways.append(f"model.remat='full' (saves {_gb(need.saved - (full or 0))} GB)")
    elif model.remat == "none":
        ways.append("model.remat='block'")
    if c.mesh.zero == 1 and need.gathered:
        split = need.gathered + need.gradients * (1 - 1 / c.mesh.fsdp)
        ways.append(f"mesh.zero=3 (saves about {_gb(split)} GB)")
    if c.learner.micro_rows > 1:
        ways.append("learner.micro_rows=1")
    room = 1 - MARGIN - need.total / capacity
    if engine and c.engine.kind == "vllm" and room > 0:
        ways.append(f"engine.memory_share of at most {math.floor(room * 100) / 100:g}")
    ways.append(f"more devices (mesh.fsdp above {c.mesh.fsdp})")
    return False, f"does not fit: {_gb(-free)} GB too much on every device; change " + ", or ".join(ways)


# ---- tables


def memory_table(need: Need, engine: float, capacity: float, name: str) -> Table:
    rows = [(what, size, "exact") for what, size in need.resident.items()]
    known = need.gradients + need.gathered + (need.saved or 0.0)
    rows.append(("gradients", need.gradients, "exact"))
    if need.gathered:
        rows.append(("gathered weights", need.gathered, "exact"))
    if need.saved is not None:
        rows.append(("activations saved", need.saved, "formula"))
    rows += [
        ("temporaries", need.temporaries - known, "estimate (CPU compile)"),
        ("more in the log-prob pass", max(0.0, need.scoring - need.temporaries), "estimate (CPU compile)"),
        ("learner", need.total, ""),
        ("engine", engine, ""),
        ("margin", MARGIN * capacity, ""),
        (f"capacity of {name}", capacity, ""),
    ]
    return _table("memory of a device", ("", "GB", "how known"), [(what, _gb(n), how) for what, n, how in rows])


def work_table(passes: dict[str, Pass]) -> Table:
    rows = [
        (
            {"score": "log-prob pass", "update": "forward and backward"}[key],
            f"{p.flops / 1e12:,.1f}",
            f"{p.counted_flops / 1e12:,.1f}",
            "-" if p.sent is None else f"{p.sent / 1e9:,.1f}",
            f"{p.counted_sent / 1e9:,.1f}",
            f"{p.once / 1e9:,.1f}",
            f"{p.counted_once / 1e9:,.1f}",
        )
        for key, p in passes.items()
    ]
    head = ("", "TFLOP", "counted", "GB sent", "counted", "once", "counted")
    table = _table("work of a device for one micro-batch", head, rows)
    table.caption = (
        "once: GB sent whatever the number of micro-batches; counted: in the CPU compile, which sends bfloat16 as "
        "float32 and may scatter no sums"
    )
    return table


def limits_table(
    config: Settings, model: Qwen3Config, passes: dict[str, Pass], micro: int, device: Accelerator, devices: int
) -> Table:
    """The shortest times that the data sheet allows: everything is sent while something is computed, then comes the
    optimizer, as fast as memory can be read."""
    assert device.flops
    rows, least = [], {}
    for key, times in least_times(config, model, passes, micro, device, devices).items():
        name, least[key] = {"score": "log-prob pass", "update": "updates"}[key], times[-1]
        rows.append((name, *(f"{t:.2f}" for t in times)))
    tokens = micro * config.learner.micro_rows * config.mesh.fsdp * config.learner.row_tokens
    needed = cost.model_flops(model, config.learner.micro_rows * config.mesh.fsdp, config.learner.row_tokens) * micro
    rows.append(("step", "", "", f"{sum(least.values()):.2f}"))
    rows.append(("tokens/s of the updates", "", "", f"{tokens / least['update']:,.0f}"))
    rows.append(("MFU of the updates, at most", "", "", f"{needed / least['update'] / devices / device.flops:.0%}"))
    table = _table("limits, not measured", ("", "computing s", "sending s", "at least"), rows)
    if any(p.sent is None for p in passes.values()):
        table.caption = "sending: as counted in the CPU compile, which is no lower limit"
    return table


def least_times(
    config: Settings, model: Qwen3Config, passes: dict[str, Pass], micro: int, device: Accelerator, devices: int
) -> dict[str, tuple[float, float, float]]:
    """Seconds of a step's passes: computing, sending, both at once and what comes after."""
    assert device.flops and device.bandwidth and device.link
    updates, out = config.learner.updates_per_step, {}
    for key, p in passes.items():
        sent, once = (p.counted_sent, p.counted_once) if p.sent is None else (p.sent, p.once)
        times = 2 if key == "score" and config.learner.kl > 0 else 1  # the reference scores too
        runs, programs = micro * times, updates * times  # every update's rows are scored by themselves
        computing = runs * p.flops / device.flops
        sending = (runs * sent + programs * once) / device.link
        after = updates * cost.optimizer_bytes(model) / devices / device.bandwidth if key == "update" else 0.0
        out[key] = (computing, sending, max(computing, sending) + after)
    return out


@dataclasses.dataclass(frozen=True)
class Decode:
    """What sampling a step takes at least.

    Attributes:
      sequences: decoded together on one server. context: mean tokens that each has by then.
      rate: tokens/s of all servers of one policy. seconds: of all tokens at that rate, or of the longest chain.
      chain: seconds of one design and one call after it, both as long as they may be, alone on a server; with a fixed
        design, of the call.
    """

    sequences: int
    context: float
    rate: float
    seconds: float
    chain: float


def decode(config: Settings, model: Qwen3Config, tokens: int, device: Accelerator) -> Decode:
    """The limit of memory bandwidth. Policies take turns: while one samples, its servers have their GPUs to themselves,
    but only their own share of the memory for keys and values."""
    assert device.bandwidth
    c = config
    policies = len(set(assemble.owners(c).values()))
    room = c.engine.memory_share * device.memory / policies - cost.serving_bytes(model)
    context = c.engine.cache_tokens / 2
    sequences = min(c.engine.slots, int(room / (context * cost.cache_bytes(model))))
    if sequences < 1:
        return Decode(0, context, 0.0, math.inf, math.inf)
    rate = servers(c) * sequences / cost.decode_seconds(model, sequences, context, device.bandwidth)
    longest = c.rollout.max_executor_tokens + (0 if c.rollout.design else c.rollout.max_designer_tokens)
    chain = longest * cost.decode_seconds(model, 1, context, device.bandwidth)
    return Decode(sequences, context, rate, max(tokens / rate, chain), chain)


def budget(
    config: Settings, model: Qwen3Config, passes: dict[str, Pass], micro: int, tokens: int, device: Accelerator,
    devices: int,
) -> dict[str, float]:  # fmt: skip
    """Seconds that the parts of a step take at least: "rollout" (servers), "train", "push"."""
    push, policies = cost.serving_bytes(model), len(set(assemble.owners(config).values()))
    return {
        "rollout": decode(config, model, tokens, device).seconds,
        "train": sum(t[-1] for t in least_times(config, model, passes, micro, device, devices).values()),
        # Each device of the learner copies its part to the host, then each GPU of a server reads all of it.
        "push": policies * (push / devices + push) / device.host_link if device.host_link else 0.0,
    }


def budget_table(
    config: Settings, model: Qwen3Config, passes: dict[str, Pass], micro: int, tokens: int, device: Accelerator,
    devices: int,
) -> Table:  # fmt: skip
    """A whole step by its limits, every trained token sampled in it."""
    d, push = decode(config, model, tokens, device), cost.serving_bytes(model)
    policies = len(set(assemble.owners(config).values()))
    least = budget(config, model, passes, micro, tokens, device, devices)
    sampling = f"{d.rate:,.0f} tokens/s, {d.sequences} sequences a server, mean context {d.context:,.0f}"
    bringing = f"{_gb(policies * push)} GB through the host at {(device.host_link or 0) / 1e9:.0f} GB/s"
    rows = [
        ("rollout", f"{least['rollout']:.2f}", f"{sampling}; the longest chain {d.chain:.1f} s"),
        ("grade", "0.00", "beside the rollout, on the host's cores"),
        ("train", f"{least['train']:.2f}", "log-prob pass and updates, as above"),
        ("push", f"{least['push']:.2f}", f"{bringing}; between devices {policies * push / (device.link or 1):.3f} s"),
        ("step", f"{sum(least.values()):.2f}", f"{tokens:,} tokens"),
    ]
    table = _table("budget of a step, not measured", ("", "at least, s", "how known"), rows)
    table.caption = "rollout: every token costs one reading of all weights and of its own keys and values"
    return table


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for i, name in enumerate(head):
        table.add_column(name, justify="left" if i == 0 or name == "how known" else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f}"
