"""HTTP client of one vLLM server: token ids in, token ids and log-probs out, and the steps of a weight update.

Speaks to one minor version of vLLM, started by `rollout.vllm_server` (or by its command line). What the server says is
checked before it is believed: an answer is whole, or it is a `ServerError`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import httpx2

from metaagent_x.rollout.engine import Sampling

VLLM_MINOR = "0.32"  # the one that third_party/vllm installs
# Whether log-probs are those of the policy (raw) or of the distribution that was sampled from (processed). The second
# is what `Completion` promises: at the sampling temperature, and at 1 if greedy.
LOGPROBS_MODE = "processed_logprobs"
WEIGHTS_UNSET = "default"  # vLLM's label of weights that nobody pushed
WEIGHTS_OPEN = "incomplete"  # ours, from the beginning of an update to its end
_MINUS_INFINITY = -9999.0  # how vLLM writes it, and a log-prob that it does not have
_IDLE_S = 3.0  # the server closes connections that were idle for 5 s; one must not be used as that happens


class ServerError(RuntimeError):
    """The server refused, failed, could not be reached in time, or answered what is not an answer.

    Attributes:
      status: HTTP status; None if there was no complete answer.
      retryable: the same request may succeed later, here or at another server (it changes nothing there).
    """

    def __init__(self, message: str, *, status: int | None = None, retryable: bool = False):
        super().__init__(message)
        self.status, self.retryable = status, retryable


@dataclasses.dataclass(frozen=True)
class ServerInfo:
    """What a server was started with.

    Attributes:
      vllm: its version. model: the folder whose config.json it read. vocab_size: rows of the embedding.
      max_model_len: prompt and completion together, tokens. dtype: of weights and computation, "float32".
      logprobs_mode: see `LOGPROBS_MODE`. fingerprint: `Chat.fingerprint` of the tokenizer and template that it was
        started for. device: "cpu" or "cuda". weight_version: None if nobody has pushed weights, or an update broke off.
    """

    vllm: str
    model: str
    vocab_size: int
    max_model_len: int
    dtype: str
    logprobs_mode: str
    fingerprint: str
    device: str
    weight_version: int | None


@dataclasses.dataclass(frozen=True)
class Generated:
    """A completion as the server gives it.

    Attributes:
      ids: sampled ids, the stop id included. logprobs: of each, at the sampling temperature.
      finish_reason: "abort" if the server gave the request up; `ids` is then what it had by then.
      versions: spans (weight version, start, end) that cover `ids` in order.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length", "abort"]
    versions: tuple[tuple[int, int, int], ...]


class VllmClient:
    """One server.

    Cancelling a call closes its connection, and the server then drops the request.

    Args:
      url: "http://127.0.0.1:8000".
      timeout_s: limit of a request for a completion from the moment it is sent, slow answers included.
      control_timeout_s: limit of every other call, of which an update of the weights takes several; None: the same.
      connections: requests for tokens at a time; more wait here. Control calls never wait for them.

    Attributes:
      busy: calls under way.
    """

    def __init__(
        self, url: str, *, timeout_s: float = 600.0, control_timeout_s: float | None = None, connections: int = 256
    ):
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self.control_timeout_s = timeout_s if control_timeout_s is None else control_timeout_s
        self.busy = 0
        self._room = asyncio.Semaphore(connections)
        # The limit of a whole request is kept in `_call`. No proxy stands between the two sides.
        shared: dict[str, Any] = {"base_url": self.url, "trust_env": False}
        if self.url.startswith("http://"):
            shared["verify"] = False  # nothing to verify; reading certificates holds everybody up for 0.1 s
        shared["timeout"] = httpx2.Timeout(None, connect=min(10.0, timeout_s))
        self._http = httpx2.AsyncClient(
            **shared,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=connections, keepalive_expiry=_IDLE_S),
        )
        # A connection each: the server closes one on which it has failed, a moment after it has said so. Were it used
        # again, the next step of an update would seem to have failed too.
        self._control = httpx2.AsyncClient(**shared, limits=httpx2.Limits(max_keepalive_connections=0))

    async def info(self) -> ServerInfo:
        """Asks what the server was started with.

        Raises:
          ServerError: another minor version of vLLM, no worker extension of ours, workers that disagree.
        """
        version = (await self._call("GET", "/version")).get("version")
        if not isinstance(version, str) or version.split("+")[0].split(".")[:2] != VLLM_MINOR.split("."):
            raise ServerError(
                f"{self.url} runs vLLM {version}; this client is written for {VLLM_MINOR}.x: make the environment "
                "with launch/setup_vllm.sh and start the server from it"
            )
        try:
            said = (await self._call("POST", "/collective_rpc", {"method": "metaagent_x_info"})).get("results")
        except ServerError as error:
            raise ServerError(
                f"{self.url} does not answer as a server of this project: {error}; start it with the command line of "
                "`rollout.vllm_server.command`, which is the first line of the log of every server that we start",
                status=error.status,
                retryable=error.retryable,
            ) from error
        if not isinstance(said, list) or not said or not all(isinstance(w, dict) and w == said[0] for w in said):
            raise ServerError(f"{self.url}: the workers do not say the same of themselves: {said}")
        fields = {field.name for field in dataclasses.fields(ServerInfo)} - {"vllm", "weight_version"}
        if missing := sorted(fields - said[0].keys()):
            raise ServerError(f"{self.url} does not say its {missing[0]}, only {said[0]}")
        known = {name: said[0][name] for name in fields}
        return ServerInfo(vllm=version, weight_version=await self.weight_info(), **known)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, seed: int | None = None) -> Generated:
        """Samples one completion.

        Args:
          prompt_ids: at least one id.
          sampling: all of it is sent, and everything else that vLLM could take from a model folder is named too.
          seed: of this request alone; None draws from the server's own stream.

        Raises:
          ServerError: see there; also tokens drawn by weights that were never pushed.
        """
        body = {"token_ids": list(prompt_ids), "sampling_params": _sampling_params(sampling, seed)}
        answer = await self._tokens(body, self.timeout_s)
        try:
            return _generated(answer)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ServerError(f"{self.url} gave no whole completion: {type(error).__name__}: {error}") from error

    async def score(self, ids: Sequence[int]) -> list[float]:
        """Log-probs of ids[1:], each given all before it, at temperature 1. Computed anew: no prefix cache is read."""
        params = _sampling_params(Sampling(1), None) | {"prompt_logprobs": 0, "skip_reading_prefix_cache": True}
        answer = await self._tokens({"token_ids": list(ids), "sampling_params": params}, self.control_timeout_s)
        try:
            _generated(answer)
            first, *rest = answer["prompt_logprobs"]
            if first is not None or len(rest) != len(ids) - 1:
                raise ValueError(f"{len(rest)} prompt log-probs of {len(ids)} ids")
            return [_logprob(at[str(token)]["logprob"]) for at, token in zip(rest, ids[1:], strict=True)]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ServerError(f"{self.url} gave no whole score: {type(error).__name__}: {error}") from error

    async def next_logprob(self, prompt_ids: Sequence[int], token: int) -> float:
        """Log-prob of `token` after the prompt at temperature 1, with what the prefix cache has of the prompt."""
        # vLLM lists as many as are asked for, the drawn one first: of two, the first that was asked for is in any case.
        asked = {"logprob_token_ids": [token, token + 1 if token == 0 else token - 1], "logprobs": 2}
        body = {"token_ids": list(prompt_ids), "sampling_params": _sampling_params(Sampling(1), None) | asked}
        answer = await self._tokens(body, self.control_timeout_s)
        try:
            _generated(answer)
            (drawn,) = answer["choices"][0]["logprobs"]["content"]
            return next(_logprob(top["logprob"]) for top in drawn["top_logprobs"] if top["token_id"] == token)
        except (KeyError, TypeError, ValueError, IndexError, StopIteration) as error:
            raise ServerError(f"{self.url} gave no log-prob of {token}: {type(error).__name__}: {error}") from error

    async def pause(self, mode: Literal["abort", "wait", "keep"]) -> None:
        """Stops generating. New requests are held; those under way are aborted, waited for, or frozen."""
        # Clearing caches is left to `reset_prefix_cache`, once, after the update.
        await self._call("POST", "/pause", params={"mode": mode, "clear_cache": "false"})

    async def start_update(self) -> None:
        """Opens an update. Until `finish`, whatever is drawn all the same has a label that `generate` refuses."""
        await self._call("POST", "/update_weight_version", {"new_version": WEIGHTS_OPEN})
        try:
            await self._call("POST", "/start_weight_update")
        except ServerError as error:
            if error.status != 500:
                raise
            # Another update was begun and never ended, perhaps by a program that is gone.
            await self._call("POST", "/collective_rpc", {"method": "metaagent_x_abandon"})
            await self._call("POST", "/start_weight_update")

    async def update(self, manifest: Mapping[str, Any]) -> None:
        """Loads the tensors that `WeightStore.write` describes."""
        await self._call("POST", "/update_weights", {"update_info": dict(manifest)})

    async def finish(self, version: int) -> None:
        """Closes the update and names the weights."""
        await self._call("POST", "/finish_weight_update", {"weight_version": str(version)})

    async def reset_prefix_cache(self) -> None:
        """Forgets what was computed with other weights; requests that were frozen begin again from their ids."""
        done = await self._call("POST", "/reset_prefix_cache", params={"reset_running_requests": "true"})
        if done.get("success") is not True:
            raise ServerError(f"{self.url} did not reset its prefix cache: {done}")

    async def resume(self) -> None:
        await self._call("POST", "/resume")

    async def is_paused(self) -> bool:
        return (await self._call("GET", "/is_paused")).get("is_paused") is True

    async def weight_info(self) -> int | None:
        """Version of the weights; None if nobody has pushed any, or an update broke off."""
        label = (await self._call("GET", "/weight_info")).get("weight_version")
        if label in (WEIGHTS_UNSET, WEIGHTS_OPEN):
            return None
        return _version(label, self.url)

    async def healthy(self) -> bool:
        """True if the server answers and its engine lives."""
        try:
            await self._call("GET", "/health", timeout_s=min(5.0, self.control_timeout_s))
        except ServerError:
            return False
        return True

    async def close(self) -> None:
        await self._http.aclose()
        await self._control.aclose()

    async def _tokens(self, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        async with self._room:
            return await self._call("POST", "/inference/v1/generate", body, timeout_s=timeout_s, http=self._http)

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, params: dict[str, str] | None = None,
        timeout_s: float | None = None, http: httpx2.AsyncClient | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        limit = self.control_timeout_s if timeout_s is None else timeout_s
        if self._control.is_closed:
            raise ServerError(f"{self.url}{path}: this client was closed", retryable=True)
        self.busy += 1
        try:
            async with asyncio.timeout(limit):
                response = await (http or self._control).request(method, path, json=body, params=params)
        except TimeoutError as error:
            raise ServerError(f"{self.url}{path}: no whole answer in {limit:g} s", retryable=True) from error
        except httpx2.HTTPError as error:
            said = f"{type(error).__name__} {error}".strip()
            raise ServerError(f"{self.url}{path}: {said}", retryable=True) from error
        finally:
            self.busy -= 1
        if response.status_code != 200:
            status = response.status_code
            raise ServerError(
                f"{self.url}{path}: status {status}: {response.text[:500]}",
                status=status,
                retryable=status in (408, 429) or status >= 500,
            )
        if not response.content:
            return {}
        try:
            answer = response.json()
        except ValueError as error:
            raise ServerError(f"{self.url}{path}: not JSON: {response.text[:200]!r}", retryable=True) from error
        if not isinstance(answer, dict):
            raise ServerError(f"{self.url}{path}: not an object: {response.text[:200]!r}")
        return answer


def _sampling_params(sampling: Sampling, seed: int | None) -> dict[str, Any]:
    """Every parameter that shapes the distribution, by vLLM's names."""
    return {
        "n": 1,
        "max_tokens": sampling.max_tokens,
        "min_tokens": 0,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": max(sampling.top_k, 0),  # 0 is vLLM's "off"
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop": [],
        "stop_token_ids": list(sampling.stop_ids),
        "ignore_eos": True,  # a folder's own idea of the end; ours are the ids above
        "bad_words": [],
        "logit_bias": None,
        "allowed_token_ids": None,
        "seed": seed,
        "logprobs": 0,  # of the drawn id alone
        "prompt_logprobs": None,
        "detokenize": False,
        "skip_reading_prefix_cache": False,
    }


def _generated(answer: dict[str, Any]) -> Generated:
    """Raises ValueError, KeyError, TypeError or IndexError unless the answer is one whole completion."""
    (choice,) = answer["choices"]
    ids, content, reason = choice["token_ids"], choice["logprobs"]["content"], choice["finish_reason"]
    if reason not in ("stop", "length", "abort"):
        raise ValueError(f"finish_reason is {reason!r}")
    if not ids and reason != "abort":
        raise ValueError(f"no token, but finish_reason {reason!r}")
    if any(type(i) is not int or i < 0 for i in ids):
        raise ValueError(f"ids {ids[:8]}...")
    if [c["token_id"] for c in content] != ids:
        raise ValueError(f"{len(content)} log-probs are not those of the {len(ids)} ids")
    logprobs = tuple(_logprob(c["logprob"]) for c in content)
    spans = [(_version(s["version"]), s["start"], s["end"]) for s in choice["weight_versions"] or ()]
    borders = [0, *(end for _, _, end in spans)]
    if [start for _, start, _ in spans] != borders[:-1] or borders[-1] != len(ids):
        raise ValueError(f"weight versions {spans} do not cover {len(ids)} ids")
    return Generated(tuple(ids), logprobs, reason, tuple(spans))


def _version(label: Any, url: str = "the server") -> int:
    if not isinstance(label, str) or not label.isdecimal():
        # "default", "incomplete", or somebody else's.
        raise ServerError(f"{url} works with weights {label!r}, which no complete update has brought; push weights")
    return int(label)


def _logprob(value: Any) -> float:
    if not math.isfinite(value) or value == _MINUS_INFINITY or value > 1e-3:
        raise ValueError(f"log-prob {value}")
    return float(value)
