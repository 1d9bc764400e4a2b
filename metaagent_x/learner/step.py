"""The learner's two compiled programs: scoring a batch, and one optimizer update from it.

A batch is cut into micro-batches of `micro_rows` rows a device. Gradients of the micro-batches are added in float32
(the token weights already carry all normalisation), clipped once and applied once. The number of micro-batches is an
argument of the program, not part of its shape: empty filler rows cost nothing and row counts share few compilations.

Between the devices of `mesh.fsdp` there are two ways (ZeRO, arXiv:1910.02054). Stage 3 keeps nothing whole: weights are
gathered layer by layer and gradients scattered, anew in every micro-batch. Stage 1 gathers all weights once a program,
every device adds up the gradients of its own rows by itself, and they are exchanged once, after the last micro-batch.
Master weights and moments are split in both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from metaagent_x.learner.objective import COUNTS, clipped_terms, kl_penalty, summarise
from metaagent_x.learner.packing import ROLES, Batch
from metaagent_x.learner.state import (
    TrainState,
    abstract_state,
    init_state,
    learning_rate,
    make_optimizer,
    state_shardings,
)
from metaagent_x.model import attention_cudnn, cost, qwen3, sharding
from metaagent_x.model.logprobs import token_logprobs
from metaagent_x.model.numerics import rotations
from metaagent_x.model.parameters import Params, Qwen3Config

Arrays = dict[str, jax.Array]
LossFn = Callable[[Params, Arrays], tuple[jax.Array, Arrays]]

LARGE = 2**26  # weights of a model whose memory matters more than what small operations gain side by side
_ROWS = PartitionSpec(None, sharding.RULES["batch"])  # of arrays [micro-batches, rows, ...]
MEANS = ("correction/mean", "mismatch/mean", "entropy")  # sums over tokens until all micro-batches are in


class Learner:
    """Scores and updates policies of one shape under one group of settings.

    Attributes:
      settings: the group that it was made with (`config.learner`, or `config.sft` for supervised updates only).
      rows_multiple: pass it to `pack`: rows of one micro-batch on all devices together.
      row_segments: pass it to `pack`: trajectories that a row may hold, None for any number.
      apart: devices compute by themselves until one exchange (ZeRO stage 1 on several of them).
      shapes: (program, shape of rows, shape of scored columns) met so far; each one is a compilation.
    """

    def __init__(
        self,
        model_config: Qwen3Config,
        settings: Any,
        mesh: Mesh | None = None,
        *,
        zero: int = 3,
        temperature: float = 1.0,
        total_updates: int | None = None,
    ) -> None:
        """
        Args:
          model_config: the network.
          settings: a `learner` or `sft` group of the settings.
          mesh: of `model.sharding.make_mesh`; None is one device.
          zero: 3 or 1, the stage of ZeRO. The results are the same; 1 holds weights (layers in compute dtype, the rest
            in float32) and float32 gradients whole on every device, but for their split over `tensor`.
          temperature: of the rollouts; log-probs are taken at it, as the sampler's are.
          total_updates: the learning rate falls to 0 over so many; None keeps it.

        Raises:
          ValueError: another stage.
          ShardingError: sizes of the network that the mesh cannot share equally.
        """
        if zero not in (1, 3):
            raise ValueError(f"zero is {zero}; the learner knows stages 1 and 3")
        self.settings = settings
        self.rows_multiple = int(settings["micro_rows"]) * (mesh.shape["fsdp"] if mesh else 1)
        self.row_segments = attention_cudnn.MAX_SEGMENTS if model_config.attention == "cudnn" else None
        self._model, self._mesh, self._temperature = model_config, mesh, temperature
        self.apart = mesh is not None and zero == 1 and mesh.shape["fsdp"] > 1
        self._rate = learning_rate(settings, total_updates)
        self._optimizer = make_optimizer(settings, total_updates)
        self._shardings = state_shardings(model_config, self._optimizer, mesh)
        options = _compiler_options(model_config)
        outs: dict[str, Any] = {"out_shardings": (self._shardings, None), "compiler_options": options}
        self._score = jax.jit(self._score_program, compiler_options=options)
        self._update = jax.jit(self._update_program, donate_argnums=0, **outs)
        self._gradients = jax.jit(self._gradients_program, compiler_options=options)
        self._supervised = jax.jit(self._supervised_program, donate_argnums=0, **outs)
        self.shapes: set[tuple[Any, ...]] = set()

    def init(self, params: Params) -> TrainState:
        """A fresh state from weights of any float dtype, which stay untouched and usable."""
        return init_state(params, self._optimizer, self._shardings)

    def place(self, params: Params) -> Params:
        """Weights laid out over the mesh as a state's are; what lies there already is the same arrays."""
        return jax.device_put(params, self._shardings.params)

    def logprobs(self, params: Params, batch: Batch) -> np.ndarray:
        """[R, T] float32 log-probs of the targets, 0.0 where `batch.mask` is False. `params` are not donated."""
        data, used, columns = self._arrange(batch)
        with self._on_mesh("score", data):
            scores = np.asarray(jax.device_get(self._score(self.place(params), data, used)))
        out = np.zeros(batch.mask.shape, np.float32)
        np.put_along_axis(out, columns, scores.reshape(columns.shape), axis=1)
        return np.where(batch.mask, out, np.float32(0))

    def update(
        self, state: TrainState, batch: Batch, old_logp: np.ndarray, *, ref_logp: np.ndarray | None = None
    ) -> tuple[TrainState, dict[str, float]]:
        """One optimizer update by the clipped objective.

        Without signal (no weighted token, or every advantage 0 and no KL term), or with a loss or gradient that is not
        finite, the state comes back bitwise as it was, moments and counter included, and `updated` is 0.0.

        Args:
          state: donated; use the returned one.
          batch: of `pack`, with `rows_multiple=learner.rows_multiple`. Its `old_logp` is the engine's.
          old_logp: [R, T] of `logprobs`, with the weights that sampled.
          ref_logp: [R, T] of `logprobs`, with the reference's weights; exactly if `settings.kl` is above 0.

        Returns:
          (state, metrics): `loss`, `loss/<role>`, `tokens/<role>`, `grad_norm` (before clipping), `lr`, `updated`,
          `nonfinite`, `ratio/max_dev`, `clip/high`, `clip/low`, `clip/dual`, `approx_kl`, `correction/mean`,
          `mismatch/mean` and `mismatch/max` (|learner - engine| in nats), `entropy`, `kl` (if on), and
          `time/compiled`, the program shapes met so far.

        Raises:
          ValueError: a reference without a KL term or the reverse, or arrays that do not fit the batch.
        """
        data, used = self._arrange_update(batch, old_logp, ref_logp)
        weighted = (batch.weights != 0) & batch.mask
        signal = np.any(weighted & ((batch.advantages != 0) | (ref_logp is not None)))
        with self._on_mesh("update", data):
            state, metrics = self._update(state, data, used, signal)
        return state, self._floats(metrics)

    def gradients(
        self, params: Params, batch: Batch, old_logp: np.ndarray, *, ref_logp: np.ndarray | None = None
    ) -> Params:
        """The gradient that `update` would step by, before clipping. For a closer look: a program of its own.

        Args and Raises: as `update`. `params` are not donated.
        """
        data, used = self._arrange_update(batch, old_logp, ref_logp)
        with self._on_mesh("gradients", data):
            return self._gradients(self.place(params), data, used)

    def supervised_update(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, float]]:
        """One optimizer update by maximum likelihood: loss = -sum(weights * log-prob of the target).

        Skips like `update`. Returns (state, metrics): `loss`, `loss/<role>`, `tokens/<role>`, `grad_norm`, `lr`,
        `updated`, `nonfinite`, `time/compiled`. `state` is donated.
        """
        data, used, _ = self._arrange(batch)
        with self._on_mesh("supervised", data):
            state, metrics = self._supervised(state, data, used, np.any((batch.weights != 0) & batch.mask))
        return state, self._floats(metrics)

    def abstract_state(self) -> TrainState:
        """Shape, dtype and place of every leaf of a state of `init`."""
        return abstract_state(self._model, self._optimizer, self._shardings)

    def lower(self, batch: Batch) -> dict[str, jax.stages.Lowered]:
        """Traces the programs of `logprobs` ("score") and `update` for such a batch, from the weights' shapes alone.

        `compile()` turns each into what a run with such batches would use; nothing is executed.
        """
        state = self.abstract_state()
        extra = {"behaviour": batch.old_logp} | ({"reference": batch.old_logp} if self.settings["kl"] > 0 else {})
        lowered = {}
        data, used, _ = self._arrange(batch)
        with self._on_mesh("score", data):
            lowered["score"] = self._score.lower(state.params, data, used)
        data, used, _ = self._arrange(batch, **extra)
        with self._on_mesh("update", data):
            lowered["update"] = self._update.lower(state, data, used, np.True_)
        return lowered

    # ---- host side

    def _arrange(self, batch: Batch, **extra: np.ndarray) -> tuple[Arrays, np.int32, np.ndarray]:
        """Cuts a batch into [micro-batches, rows, ...] on the devices.

        Only masked positions are scored, so per-token arrays keep K columns: each row's masked ones first. K is a
        quarter, half, three quarters or all of T, to keep shapes few.

        Returns:
          (arrays, number of micro-batches in use, [R, K] the columns that were kept).
        """
        rows, length = batch.mask.shape
        if rows % self.rows_multiple:
            raise ValueError(
                f"batch has {rows} rows, not a multiple of {self.rows_multiple} (micro_rows x mesh.fsdp); pack it with "
                f"rows_multiple={self.rows_multiple}"
            )
        if self.row_segments is not None and (most := int(batch.segment_ids.max(initial=0))) > self.row_segments:
            raise ValueError(
                f"a row of the batch holds {most} trajectories and model.attention='cudnn' takes {self.row_segments}; "
                f"pack it with row_segments={self.row_segments}"
            )
        for name, array in extra.items():
            if array.shape != batch.mask.shape:
                raise ValueError(f"{name} log-probs have shape {array.shape} but the batch has {batch.mask.shape}")
        quarter = -(-length // 4)
        widest = int(batch.mask.sum(1).max()) or length  # a batch without tokens should not compile a shape of its own
        kept = min(length, quarter * -(-widest // quarter))
        columns = np.argsort(~batch.mask, axis=1, kind="stable")[:, :kept]
        # Ids that are unique in what is computed at once: a trajectory lies in one row, where its segment id names it.
        at_once = int(self.settings["micro_rows"]) if self.apart else self.rows_multiple
        row = np.arange(rows, dtype=np.int32)[:, None] % at_once
        local = row * (length + 1) + batch.segment_ids
        tokenwise = {name: getattr(batch, name) for name in ("targets", "mask", "roles", "advantages", "weights")}
        tokenwise |= {"engine": batch.old_logp, "trajectory": local, **extra}
        arrays = {name: np.take_along_axis(a, columns, axis=1) for name, a in tokenwise.items()}
        arrays["columns"] = columns.astype(np.int32)
        arrays |= {name: getattr(batch, name) for name in ("tokens", "positions", "segment_ids")}
        cut = {name: a.reshape(-1, self.rows_multiple, *a.shape[1:]) for name, a in arrays.items()}
        filled = np.flatnonzero(batch.segment_ids.max(1))  # empty rows come last
        used = -(-int(filled.max(initial=-1) + 1) // self.rows_multiple)
        if self._mesh:
            return jax.device_put(cut, self._data_sharding), np.int32(used), columns
        return jax.device_put(cut), np.int32(used), columns

    def _arrange_update(
        self, batch: Batch, old_logp: np.ndarray, ref_logp: np.ndarray | None
    ) -> tuple[Arrays, np.int32]:
        if (ref_logp is not None) != (self.settings["kl"] > 0):
            raise ValueError(
                f"learner.kl={self.settings['kl']} and ref_logp is {'given' if ref_logp is not None else 'missing'}; "
                "a reference is needed exactly when kl is above 0"
            )
        extra = {"behaviour": old_logp} | ({"reference": ref_logp} if ref_logp is not None else {})
        data, used, _ = self._arrange(batch, **extra)
        return data, used

    @property
    def _data_sharding(self) -> NamedSharding:
        assert self._mesh is not None
        return NamedSharding(self._mesh, _ROWS)

    def _on_mesh(self, program: str, data: Arrays) -> contextlib.AbstractContextManager[Any]:
        self.shapes.add((program, data["tokens"].shape, data["targets"].shape))
        return jax.set_mesh(self._mesh) if self._mesh else contextlib.nullcontext()

    def _floats(self, metrics: Arrays) -> dict[str, float]:
        return {k: float(v) for k, v in jax.device_get(metrics).items()} | {"time/compiled": float(len(self.shapes))}

    # ---- compiled

    def _token_scores(self, params: Params, micro: Arrays, *, with_entropy: bool = False) -> Any:
        """Log-probs of the kept columns [rows, K], or (log-probs, entropies)."""
        hidden = qwen3.forward(
            params, self._model, micro["tokens"], micro["positions"], micro["segment_ids"],
            embedded=micro.get("embedded"), turns=(micro["cos"], micro["sin"]),
        )  # fmt: skip
        hidden = jnp.take_along_axis(hidden, micro["columns"][..., None], axis=1)
        return token_logprobs(
            params, self._model, hidden, micro["targets"], temperature=self._temperature, with_entropy=with_entropy
        )

    def _score_program(self, params: Params, data: Arrays, used: jax.Array) -> jax.Array:
        if self.apart:
            return self._on_own_rows(self._scores, _ROWS)(params, data, used)
        return self._scores(params, data, used)

    def _scores(self, params: Params, data: Arrays, used: jax.Array) -> jax.Array:
        data = self._turned(data, used)

        def body(i: jax.Array, out: jax.Array) -> jax.Array:
            return out.at[i].set(self._token_scores(params, _take(data, i)))

        return jax.lax.fori_loop(0, used, body, jnp.zeros(data["targets"].shape, jnp.float32))

    def _update_program(
        self, state: TrainState, data: Arrays, used: jax.Array, signal: jax.Array
    ) -> tuple[TrainState, Arrays]:
        state, sums = self._descend(self._rl_loss, state, data, used, signal)
        counts = {name: sums.pop(name) for name in COUNTS}
        means = {name: sums[name] / jnp.maximum(counts["tokens"], 1) for name in MEANS}
        return state, sums | means | summarise(counts)

    def _gradients_program(self, params: Params, data: Arrays, used: jax.Array) -> Params:
        return self._accumulate(self._rl_loss, params, data, used)[0]

    def _supervised_program(
        self, state: TrainState, data: Arrays, used: jax.Array, signal: jax.Array
    ) -> tuple[TrainState, Arrays]:
        return self._descend(self._supervised_loss, state, data, used, signal)

    def _descend(
        self, loss_fn: LossFn, state: TrainState, data: Arrays, used: jax.Array, signal: jax.Array
    ) -> tuple[TrainState, Arrays]:
        """Adds up the gradients of all micro-batches, then steps once, or not at all."""
        grads, sums = self._accumulate(loss_fn, state.params, data, used)
        norm = optax.tree.norm(grads)
        finite = jnp.isfinite(norm) & jnp.isfinite(sums["loss"])
        ok = finite & jnp.asarray(signal)

        def step(state: TrainState) -> TrainState:
            updates, opt_state = self._optimizer.update(grads, state.opt_state, state.params, norm=norm)
            return TrainState(optax.apply_updates(state.params, updates), opt_state, state.step + 1)  # type: ignore[arg-type]

        report = {"grad_norm": norm, "lr": jnp.asarray(self._rate(state.step)), "updated": ok, "nonfinite": ~finite}
        return jax.lax.cond(ok, step, lambda same: same, state), sums | report

    def _accumulate(self, loss_fn: LossFn, params: Params, data: Arrays, used: jax.Array) -> tuple[Params, Arrays]:
        """Float32 gradients of all micro-batches, placed as the weights are, and sums over them."""
        if not self.apart:
            return self._sums(loss_fn, params, data, used)
        assert self._mesh is not None

        def own(params: Params, data: Arrays, used: jax.Array) -> tuple[Params, Arrays]:
            grads, stats = self._sums(loss_fn, params, data, used)
            return jax.tree.map(lambda x: x[None], grads), _over_devices(stats)

        parts = (PartitionSpec(sharding.RULES["batch"]), PartitionSpec())
        grads, stats = self._on_own_rows(own, parts)(params, data, used)
        return sharding.scatter_sum(grads, self._mesh, self._shardings.params), stats

    def _on_own_rows(self, program: Callable[..., Any], outs: Any) -> Callable[..., Any]:
        """A program of (weights, data, micro-batches in use) for `sharding.own_rows`. Layers travel in compute dtype,
        to which every use of them would cast them."""
        assert self._mesh is not None
        apart = sharding.own_rows(program, self._mesh, (PartitionSpec(), _ROWS, PartitionSpec()), outs)

        def run(params: Params, data: Arrays, used: jax.Array) -> Any:
            return apart(params | {"layers": qwen3.cast(params["layers"], self._model.dtype)}, data, used)

        return run

    def _turned(self, data: Arrays, used: jax.Array) -> Arrays:
        """The data with the rotations of all positions, `cos` and `sin` [micro-batches, rows, T, 1, d / 2].

        Made in a loop of their own, into which the CPU compiler cannot look: it would merge them into everything that
        reads them, in every layer, and compute them there once more for every head.
        """
        width, theta = self._model.head_dim, self._model.rope_theta
        shapes = jax.eval_shape(lambda: rotations(data["positions"], width, theta))

        def body(i: jax.Array, made: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            own = rotations(data["positions"][i], width, theta)
            return tuple(x.at[i].set(y) for x, y in zip(made, own, strict=True))

        empty = (sharding.constrain(jnp.zeros(s.shape, s.dtype), None, "batch", None, None, None) for s in shapes)
        cos, sin = jax.lax.fori_loop(0, used, body, tuple(empty))
        return data | {"cos": cos, "sin": sin}

    def _sums(self, loss_fn: LossFn, params: Params, data: Arrays, used: jax.Array) -> tuple[Params, Arrays]:
        data = self._turned(data, used)
        if data["tokens"].shape[0] == 1:  # nothing to add up, and no second set of gradients
            return self._gradient(loss_fn, params, _take(data, 0))
        zero_sums = jax.tree.map(
            lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(loss_fn, params, _take(data, 0))[1]
        )

        def body(i: jax.Array, carry: tuple[Params, Arrays]) -> tuple[Params, Arrays]:
            grads, stats = self._gradient(loss_fn, params, _take(data, i))
            return self._placed(jax.tree.map(jnp.add, carry[0], grads)), _merge(carry[1], stats)

        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), params)
        start = (self._placed(zeros), zero_sums)
        return jax.lax.fori_loop(0, used, body, start)

    def _gradient(self, loss_fn: LossFn, params: Params, micro: Arrays) -> tuple[Params, Arrays]:
        """Of one micro-batch.

        What the look-up of the tokens gives to the embedding's gradient is added in place: differentiating it like the
        rest would make a second array of that size, and with tied weights a third.
        """

        def loss(params: Params, embedded: jax.Array) -> tuple[jax.Array, Arrays]:
            return loss_fn(params, micro | {"embedded": embedded})

        embedded = qwen3.embed_tokens(params, self._model, micro["tokens"])
        (_, stats), (grads, d_embedded) = jax.value_and_grad(loss, (0, 1), has_aux=True)(params, embedded)
        embed = grads["embed"].at[micro["tokens"]].add(d_embedded.astype(jnp.float32))
        return self._placed(qwen3.cast(grads | {"embed": embed}, jnp.float32)), stats

    def _placed(self, grads: Params) -> Params:
        """Gradients live where their weights live: reduced and scattered in every micro-batch, never whole."""
        if self._mesh is None:
            return grads
        return jax.tree.map(lambda x, own: sharding.place(x, own.spec), grads, self._shardings.params)

    def _rl_loss(self, params: Params, micro: Arrays) -> tuple[jax.Array, Arrays]:
        s = self.settings
        logp, entropy = self._token_scores(params, micro, with_entropy=True)
        on = micro["mask"]
        gap = jnp.where(on, micro["behaviour"] - micro["engine"], 0.0)
        cap = float(s["correction_cap"])
        correction = jnp.minimum(jnp.exp(gap), cap) if cap > 0 else jnp.ones_like(gap)
        weights = jnp.where(on, micro["weights"], 0.0)
        terms, stats = clipped_terms(
            logp, micro["behaviour"], micro["advantages"], weights, trajectory=micro["trajectory"],
            num_trajectories=micro["tokens"].size + on.shape[0], correction=correction, ratio=s["ratio"],
            clip_low=float(s["clip_low"]), clip_high=float(s["clip_high"]), dual_clip=float(s["dual_clip"]) or None,
        )  # fmt: skip
        loss = terms.sum()
        stats |= _by_role(terms, micro)
        stats |= {
            "correction/mean": jnp.where(on, correction, 0.0).sum(),
            "mismatch/mean": jnp.abs(gap).sum(),
            "mismatch/max": jnp.abs(gap).max(),
            "entropy": jax.lax.stop_gradient(jnp.where(on, entropy, 0.0)).sum(),
        }
        if "reference" in micro:
            stats["kl"] = kl_penalty(logp, micro["reference"], weights, "k3")
            loss += float(s["kl"]) * stats["kl"]
        return loss, stats | {"loss": loss}

    def _supervised_loss(self, params: Params, micro: Arrays) -> tuple[jax.Array, Arrays]:
        logp = self._token_scores(params, micro)
        terms = jnp.where(micro["mask"], -micro["weights"] * logp, 0.0)
        loss = terms.sum()
        return loss, {"loss": loss} | _by_role(terms, micro)


def _compiler_options(model: Qwen3Config) -> dict[str, Any] | None:
    """On a CPU, vectors are as wide as it has them (the compiler's own choice is half of that, and a step 3 % slower),
    and large models take the schedule of least memory: the usual one makes room for gradients early."""
    if jax.default_backend() != "cpu":
        return None
    options = {"xla_cpu_prefer_vector_width": "512"}
    if cost.weights(model) >= LARGE:
        options["xla_cpu_scheduler_type"] = "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"
    return options


def _take(data: Arrays, index: jax.Array | int) -> Arrays:
    return {name: jax.lax.dynamic_index_in_dim(a, index, keepdims=False) for name, a in data.items()}


def _merge(a: Arrays, b: Arrays) -> Arrays:
    """Sums over micro-batches, but for the entries named max: a mean of means would depend on the cut."""
    return {name: jnp.maximum(a[name], b[name]) if "max" in name else a[name] + b[name] for name in a}


def _over_devices(stats: Arrays) -> Arrays:
    """The same over the devices' own rows, exchanged as two vectors: each array sent has its own waiting time."""
    out: Arrays = {}
    for reduce, largest in ((jax.lax.psum, False), (jax.lax.pmax, True)):
        names = [name for name in stats if ("max" in name) == largest]
        both = reduce(jnp.stack([stats[name] for name in names]), sharding.RULES["batch"]) if names else ()
        out |= dict(zip(names, both, strict=True))
    return out


def _by_role(terms: jax.Array, micro: Arrays) -> Arrays:
    out: Arrays = {}
    for code, role in enumerate(ROLES):
        if role:
            mine = (micro["roles"] == code) & micro["mask"]
            out[f"loss/{role}"] = jnp.where(mine, terms, 0.0).sum()
            out[f"tokens/{role}"] = mine.sum().astype(jnp.float32)
    return out
