"""The built-in engine: continuous batching with a key-value cache, in one decode shape for the whole run.

A request's ids and log-probs depend on its prompt, its sampling, its seed and the weights only; they are bitwise the
same in any slot, order and company. Three rules make it so: decoding always runs all slots at the full cache length
with unrolled layers; a prompt is run alone, padded to a length that depends on the prompt alone; the noise of token i
is drawn from `fold_in(key(seed), i)`.

One thread does all device work, so the event loop stays free and several `asyncio.run` may use one engine in turn.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import threading
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from metaagent_x.mas.records import CallRequest
from metaagent_x.model import decode
from metaagent_x.model.logprobs import head_logits
from metaagent_x.model.parameters import Params, Qwen3Config
from metaagent_x.rollout.engine import Completion, EngineFailure, Sampling

SMALL_BUCKETS = (16, 32, 48, 64, 96, 128)  # prompt lengths are padded to these, then to powers of two and 3/4 of them


class Slots(NamedTuple):
    """What each of the S slots is at. A free slot has `remaining` 0.

    Attributes:
      token: [S] int32, the id to feed next. position: [S] int32, where it stands.
      drawn: [S] int32, tokens sampled so far. remaining: [S] int32, tokens still allowed.
      seed: [S] uint32. temperature: [S] float32, 0 for greedy.
    """

    token: Any
    position: Any
    drawn: Any
    remaining: Any
    seed: Any
    temperature: Any


@dataclasses.dataclass
class EngineStats:
    """Sums over the engine's life. `decode_seconds` is the time of the decode chunks, `steps` their decode steps."""

    requests: int = 0
    tokens: int = 0
    prefill_tokens: int = 0
    prefix_hits: int = 0
    steps: int = 0
    decode_seconds: float = 0.0


def sample(logits: Array, seed: Array, drawn: Array, temperature: Array, vocab_limit: Array) -> tuple[Array, Array]:
    """Draws one id for one slot by Gumbel noise.

    Args:
      logits: [V] float32. seed: uint32. drawn: int32, index of this token in its completion.
      temperature: float32; 0 takes the most likely id.
      vocab_limit: ids from here up have rows in the embedding but no meaning and are never drawn.

    Returns:
      (id, log-prob at the temperature; at 1 if greedy). The log-prob counts all V rows, as the learner does: two sides
      that differ in this are apart by the mass of the unused rows (vllm-project/vllm#13175).
    """
    greedy = temperature == 0
    scaled = logits / jnp.where(greedy, 1.0, temperature)
    noise = jax.random.gumbel(jax.random.fold_in(jax.random.key(seed), drawn), logits.shape)
    noisy = jnp.where(greedy, scaled, scaled + noise)
    chosen = jnp.argmax(jnp.where(jnp.arange(logits.shape[0]) < vocab_limit, noisy, -jnp.inf))
    return chosen.astype(jnp.int32), jax.nn.log_softmax(scaled)[chosen]


@functools.partial(jax.jit, static_argnames=("config", "chunk"), donate_argnames=("cache",))
def decode_chunk(
    params: Params, cache: decode.Cache, slots: Slots, leave: Array, stop_ids: Array, vocab_limit: Array, *,
    config: Qwen3Config, chunk: int,
) -> tuple[decode.Cache, Slots, Array, Array, Array]:  # fmt: skip
    """Advances all slots by at most `chunk` tokens; ends early when `leave` slots have finished.

    Returns:
      (cache, slots, ids [S, chunk], logprobs [S, chunk], steps). What a slot drew is at the left of its row; its number
      is the growth of `drawn`.
    """
    began = jnp.sum(slots.remaining > 0)

    def goes_on(carry: tuple) -> Array:
        step, _, slots, _, _ = carry
        active = jnp.sum(slots.remaining > 0)
        return (step < chunk) & (active > 0) & (began - active < leave)

    def body(carry: tuple) -> tuple:
        step, cache, slots, ids, logprobs = carry
        active = slots.remaining > 0
        hidden, cache = decode.decode_step(params, config, slots.token, slots.position, cache)
        draw = jax.vmap(functools.partial(sample, vocab_limit=vocab_limit))
        token, logprob = draw(head_logits(params, config, hidden), slots.seed, slots.drawn, slots.temperature)
        stopped = jnp.isin(token, stop_ids)
        ids = ids.at[:, step].set(token)
        logprobs = logprobs.at[:, step].set(logprob)
        slots = slots._replace(
            token=jnp.where(active, token, slots.token),
            position=slots.position + active,
            drawn=slots.drawn + active,
            remaining=jnp.where(active & ~stopped, slots.remaining - 1, 0),
        )
        return step + 1, cache, slots, ids, logprobs

    shape = (slots.token.shape[0], chunk)
    start = (jnp.int32(0), cache, slots, jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32))
    steps, cache, slots, ids, logprobs = jax.lax.while_loop(goes_on, body, start)
    return cache, slots, ids, logprobs, steps


@functools.partial(jax.jit, static_argnames=("config",))
def prefill(params: Params, tokens: Array, length: Array, *, config: Qwen3Config) -> decode.Cache:
    """Keys and values of one prompt: tokens [1, T], length [1] -> per layer two arrays [1, K, T, d]."""
    return decode.prefill(params, config, tokens, length)[0]


@functools.partial(jax.jit, donate_argnames=("cache",))
def insert(cache: decode.Cache, prefix: decode.Cache, slot: Array) -> decode.Cache:
    """Writes the prefix of one prompt into its slot, in place."""
    return jax.tree.map(lambda all_, new: jax.lax.dynamic_update_slice(all_, new, (slot, 0, 0, 0)), cache, prefix)


@functools.partial(jax.jit, static_argnames=("config",))
def _own_weights(params: Params, *, config: Qwen3Config) -> Params:
    # Never the buffers of the trainer: it donates them to its next update.
    return decode.unstack(jax.tree.map(jnp.copy, params), config)


def bucket(length: int, longest: int) -> int:
    """The padded length of a prompt: a function of its own length only, at most `longest`."""
    size = next((b for b in SMALL_BUCKETS if b >= length), 0)
    if not size:
        size = 1 << (length - 1).bit_length()
        size = size * 3 // 4 if size * 3 // 4 >= length else size
    return min(size, longest)


@dataclasses.dataclass
class _Request:
    """One request on its way. `future` resolves to its Completion."""

    prompt: tuple[int, ...]
    limit: int
    temperature: float
    seed: int
    future: concurrent.futures.Future
    ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)


class JaxEngine:
    """Implements the Engine protocol on one device. See the module's docstring for what is guaranteed.

    Args:
      model_config: sizes and numerics of the network.
      params: weights as the learner holds them; copied.
      slots: sequences decoded together. cache_tokens: prompt and completion of one sequence at most.
      chunk: decode steps between two looks at the queue.
      stop_ids: ids that end a completion; part of it and of its log-probs.
      vocab_limit: ids from here up are never drawn; None: all may be.
      version: of the weights.
    """

    def __init__(
        self, model_config: Qwen3Config, params: Params, *, slots: int = 64, cache_tokens: int = 2048, chunk: int = 16,
        stop_ids: tuple[int, ...], vocab_limit: int | None = None, version: int = 0,
    ):  # fmt: skip
        limit = model_config.vocab_size if vocab_limit is None else vocab_limit
        if min(slots, cache_tokens, chunk) < 1 or not 1 <= limit <= model_config.vocab_size:
            raise ValueError(
                f"slots={slots}, cache_tokens={cache_tokens}, chunk={chunk} must be at least 1 and vocab_limit={limit} "
                f"between 1 and model.vocab_size={model_config.vocab_size}"
            )
        self.config, self.cache_tokens, self.version, self.stats = model_config, cache_tokens, version, EngineStats()
        self.stop_ids = tuple(int(i) for i in stop_ids)
        self._chunk, self._limits = chunk, (np.array(self.stop_ids, np.int32), np.int32(limit))
        self._device = jax.local_devices()[0]
        self._params = self._copy(params)
        self._cache: Any = None  # made when the first request comes: an engine that is never asked costs no memory
        i32 = functools.partial(np.zeros, slots, np.int32)
        self._slots = Slots(i32(), i32(), i32(), i32(), np.zeros(slots, np.uint32), np.zeros(slots, np.float32))
        self._running: dict[int, _Request] = {}
        # Prompts already run under these weights, at most a quarter of the cache's own size.
        self._prefixes: collections.OrderedDict[tuple[int, ...], decode.Cache] = collections.OrderedDict()
        self._prefix_room = max(1, slots // 4) * cache_tokens
        # What follows is shared between threads and guarded by the condition.
        self._condition = threading.Condition()
        self._waiting: collections.deque[_Request] = collections.deque()
        self._updates: collections.deque[tuple[Params, int, concurrent.futures.Future]] = collections.deque()
        self._thread: threading.Thread | None = None
        self._broken: str = ""

    async def generate(
        self, prompt_ids: tuple[int, ...], sampling: Sampling, seed: int, *, request: CallRequest | None = None
    ) -> Completion:
        """Samples one completion. `max_tokens` is cut down to what the cache has room for.

        Raises:
          ValueError: a request that no weights could answer: too long, unknown ids, sampling that is not plain.
          EngineFailure: the engine is closed or has failed.
        """
        prompt = tuple(int(i) for i in prompt_ids)
        self._check(prompt, sampling, seed)
        limit = min(sampling.max_tokens, self.cache_tokens - len(prompt))
        job = _Request(prompt, limit, float(sampling.temperature), seed, concurrent.futures.Future())
        self._submit(self._waiting, job)
        return await asyncio.wrap_future(job.future)

    async def update_weights(self, params: Params, version: int) -> None:
        """Takes new weights. Requests being decoded end with the old ones; all others get the new ones.

        Raises:
          EngineFailure: the engine is closed or has failed.
        """
        done: concurrent.futures.Future = concurrent.futures.Future()
        self._submit(self._updates, (self._copy(params), version, done))
        await asyncio.wrap_future(done)

    async def close(self) -> None:
        """Ends the thread. Whoever still waits is cancelled."""
        self._break("it was closed", cancel=True)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self._cache = None
        self._prefixes.clear()

    def _check(self, prompt: tuple[int, ...], sampling: Sampling, seed: int) -> None:
        if not sampling.plain:
            raise ValueError(
                f"{sampling}: top_p, top_k, min_p and repetition_penalty change the distribution, so that log-probs "
                "are no longer the policy's; this engine samples plainly: top_p=1.0, top_k=-1, min_p=0.0, "
                "repetition_penalty=1.0"
            )
        if sampling.stop_ids and set(sampling.stop_ids) != set(self.stop_ids):
            raise ValueError(f"stop_ids {sampling.stop_ids} of a request differ from the engine's {self.stop_ids}")
        if not 0 < len(prompt) < self.cache_tokens:
            raise ValueError(
                f"a prompt of {len(prompt)} tokens plus up to {sampling.max_tokens} sampled ones do not fit into "
                f"engine.cache_tokens={self.cache_tokens}; a prompt needs 1 to {self.cache_tokens - 1} tokens"
            )
        if not 0 <= min(prompt) <= max(prompt) < self.config.vocab_size:
            bad = next(i for i in prompt if not 0 <= i < self.config.vocab_size)
            raise ValueError(f"prompt id {bad} is outside the vocabulary of {self.config.vocab_size} rows")
        if not 0 <= seed < 2**32:
            raise ValueError(f"seed is {seed}; it must be in [0, 2**32)")

    def _copy(self, params: Params) -> Params:
        return _own_weights(jax.device_put(params, self._device), config=self.config)

    def _submit(self, queue: collections.deque, item: Any) -> None:
        with self._condition:
            if self._broken:
                raise EngineFailure(f"the engine does not answer: {self._broken}")
            queue.append(item)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="jax-engine", daemon=True)
                self._thread.start()
            self._condition.notify()

    def _break(self, why: str, cancel: bool = False) -> None:
        """No more work from now on; nobody is left waiting."""
        with self._condition:
            self._broken = self._broken or why
            left = [*self._waiting, *self._running.values()]
            futures = [job.future for job in left] + [done for _, _, done in self._updates]
            self._waiting.clear()
            self._updates.clear()
            self._condition.notify()
        for future in futures:
            if cancel:
                future.cancel()
            else:
                _resolve(future, error=EngineFailure(f"the engine does not answer: {why}"))

    # From here on: the worker thread.

    def _work(self) -> None:
        try:
            while self._wait_for_work():
                if self._updates and not self._running:
                    self._update()
                self._admit()
                if self._running:
                    self._decode()
        except BaseException as error:  # whatever it is, those who wait must hear of it
            self._break(f"{type(error).__name__}: {error}")

    def _wait_for_work(self) -> bool:
        with self._condition:
            self._condition.wait_for(lambda: self._broken or self._running or self._waiting or self._updates)
            return not self._broken

    def _update(self) -> None:
        with self._condition:
            if not self._updates:
                return
            self._params, self.version, done = self._updates.popleft()
        self._prefixes.clear()
        _resolve(done, None)

    def _admit(self) -> None:
        """Fills free slots, unless new weights wait for the running requests to end."""
        free = [i for i in range(len(self._slots.token)) if i not in self._running]
        for slot in free:
            with self._condition:
                if self._updates or self._broken:
                    break
                while self._waiting and self._waiting[0].future.cancelled():
                    self._waiting.popleft()
                if not self._waiting:
                    break
                job = self._waiting.popleft()
                self._running[slot] = job
            self._start(slot, job)

    def _start(self, slot: int, job: _Request) -> None:
        if self._cache is None:
            with jax.default_device(self._device):
                self._cache = decode.init_cache(self.config, len(self._slots.token), self.cache_tokens)
        self._cache = insert(self._cache, self._prefix(job.prompt), np.int32(slot))
        # The last prompt token is fed again by the first decode step: all sampling happens in one program.
        values = (job.prompt[-1], len(job.prompt) - 1, 0, job.limit, job.seed, job.temperature)
        for array, value in zip(self._slots, values, strict=True):
            array[slot] = value
        self.stats.requests += 1

    def _prefix(self, prompt: tuple[int, ...]) -> decode.Cache:
        """Keys and values of a prompt, from memory if these weights have run it before."""
        if prompt in self._prefixes:
            self._prefixes.move_to_end(prompt)
            self.stats.prefix_hits += 1
            return self._prefixes[prompt]
        tokens = np.zeros((1, bucket(len(prompt), self.cache_tokens)), np.int32)
        tokens[0, : len(prompt)] = prompt
        found = prefill(self._params, tokens, np.array([len(prompt)], np.int32), config=self.config)
        self.stats.prefill_tokens += len(prompt)
        self._prefixes[prompt] = found
        while sum(bucket(len(p), self.cache_tokens) for p in self._prefixes) > self._prefix_room:
            self._prefixes.popitem(last=False)
        return found

    def _decode(self) -> None:
        """One chunk, then hands out what is finished."""
        began, before = time.perf_counter(), self._slots.drawn
        leave = np.int32(max(1, len(before) // 16))  # a few free slots are worth a look at the queue
        self._cache, *rest = decode_chunk(
            self._params, self._cache, self._slots, leave, *self._limits, config=self.config, chunk=self._chunk
        )
        slots, ids, logprobs, steps = jax.device_get(rest)
        self._slots = Slots(*(np.array(x) for x in slots))
        counts = self._slots.drawn - before
        self.stats.steps += int(steps)
        self.stats.decode_seconds += time.perf_counter() - began
        self.stats.tokens += int(counts.sum())
        for slot, job in list(self._running.items()):
            n = int(counts[slot])
            job.ids += ids[slot, :n].tolist()
            job.logprobs += logprobs[slot, :n].tolist()
            if not np.isfinite(logprobs[slot, :n]).all():
                raise FloatingPointError(f"log-prob not finite under weights of version {self.version}")
            if self._slots.remaining[slot] == 0 or job.future.cancelled():
                self._finish(slot, job)

    def _finish(self, slot: int, job: _Request) -> None:
        self._slots.remaining[slot] = 0
        del self._running[slot]
        reason = "stop" if job.ids[-1] in self.stop_ids else "length"
        _resolve(job.future, Completion(tuple(job.ids), tuple(job.logprobs), reason, self.version))


def _resolve(future: concurrent.futures.Future, result: Any = None, error: BaseException | None = None) -> None:
    """Answers unless the asker has gone; it may go at any moment, so asking first would not be enough."""
    with contextlib.suppress(concurrent.futures.InvalidStateError):
        future.set_exception(error) if error else future.set_result(result)
