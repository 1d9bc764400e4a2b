"""A server that speaks vLLM's HTTP and fails as told: for what a real one cannot be made to do on purpose.

  async with StubVllm() as stub:
      stub.faults += ["500", "hang"]     # what becomes of the next requests for tokens, one each
      ... VllmClient(stub.url) ...

It also stands for any OpenAI chat endpoint (`/v1/chat/completions`).
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import random
from typing import Any
from urllib.parse import parse_qsl, urlsplit

STOP = 300  # id that ends a completion
INFO = {
    "model": "stub", "vocab_size": 512, "max_model_len": 256, "dtype": "float32", "logprobs_mode": "processed_logprobs",
    "fingerprint": "0123456789abcdef", "device": "cuda",
}  # fmt: skip


class StubVllm:
    """One server on a port of its own, in the running event loop.

    Faults: "500"; "hang" (never answers); "half" (half of the announced body, then the connection closes); "drip" (one
    byte every 50 ms); "die" (all connections close, the port too, until `start`); "refuse" (400); "429" (asks for 10 ms
    of patience); "junk" (200, not JSON); "short" (a log-prob too few); "cut" (the last id left out); "vocabulary" (an
    id that no row has); "abort" (given up); "other version" (drawn by weights that this client never pushed).

    Attributes:
      log: (path without "/", version at that time) of every request, in order. bodies: of the requests for tokens.
      version: label of the weights; "default" after every start. answers: requests for tokens answered whole.
      dropped: requests whose client went away first. most: requests for tokens at once.
      delay_s: until an answer, unless it is aborted by then. update_s: an update takes so long.
      fail_updates: so many of the next updates fail.
    """

    def __init__(self, **info: Any):
        self.info = {**INFO, **info}
        self.faults: collections.deque[str] = collections.deque()
        self.log: list[tuple[str, str]] = []
        self.bodies: list[dict[str, Any]] = []
        self.port = self.answers = self.dropped = self.now = self.most = self.starts = self.fail_updates = 0
        self.version, self.vllm, self.delay_s, self.update_s = "default", "0.32.0", 0.0, 0.0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._running, self._abort = asyncio.Event(), asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> str:
        """(Re)starts on the same port, without any pushed weights. Makes it a `Host` of the engine."""
        await self.stop()
        self.version = "default"
        self._running.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self.starts += 1
        return self.url

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._open):
                writer.transport.abort()
            self._server = None

    async def __aenter__(self) -> StubVllm:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def paths(self) -> list[str]:
        return [path for path, _ in self.log]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                method, target, _ = head.split(" ", 2)
                length = next((int(v) for k, v in _headers(head) if k == "content-length"), 0)
                body = json.loads(await reader.readexactly(length) or b"{}")
                await self._answer(method, target, body, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer(
        self, method: str, target: str, body: dict, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        path = urlsplit(target).path.strip("/")
        query = dict(parse_qsl(urlsplit(target).query))
        self.log.append((path, self.version))
        if path in ("inference/v1/generate", "v1/chat/completions"):
            self.bodies.append(body)
            self.now += 1
            self.most = max(self.most, self.now)
            gone = asyncio.ensure_future(reader.read(1))  # a client that waits says nothing: this ends as it leaves
            work = asyncio.ensure_future(self._tokens(path, body, self.delay_s, self._abort, writer))
            try:
                await asyncio.wait((gone, work), return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    self.dropped += 1
                    raise ConnectionError
                await work
            finally:
                self.now -= 1
                for task in (gone, work):
                    task.cancel()
                await asyncio.wait((gone, work))
        else:
            status, answer = await self._control(path, query, body)
            await _send(writer, status, answer)

    async def _control(self, path: str, query: dict[str, str], body: dict) -> tuple[int, Any]:
        match path:
            case "health":
                return 200, None
            case "version":
                return 200, {"version": self.vllm}
            case "collective_rpc":
                return 200, {"results": [self.info]}
            case "pause":
                self._running.clear()
                if query["mode"] == "abort":
                    self._abort.set()
                    self._abort = asyncio.Event()
            case "resume":
                self._running.set()
            case "weight_info":
                return 200, {"weight_version": self.version}
            case "update_weight_version":
                self.version = body["new_version"]
            case "update_weights":
                await asyncio.sleep(self.update_s)
                if self.fail_updates:
                    self.fail_updates -= 1
                    return 500, {"error": "tensor 7 of 10 failed"}
            case "finish_weight_update":
                self.version = body["weight_version"]
            case "reset_prefix_cache":
                return 200, {"success": True}
        return 200, {}

    async def _tokens(
        self, path: str, body: dict, delay_s: float, aborted: asyncio.Event, writer: asyncio.StreamWriter
    ) -> None:
        fault = self.faults.popleft() if self.faults else ""
        if fault == "die":
            await self.stop()
        if fault in ("die", "hang"):
            await asyncio.Event().wait()
        if fault in ("500", "refuse", "429"):
            status = {"500": 500, "refuse": 400, "429": 429}[fault]
            await _send(writer, status, {"error": fault}, {"Retry-After": "0.01"} if fault == "429" else {})
            return
        await self._running.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await aborted.wait()
                fault = "abort"
        await self._running.wait()
        answer = self._completion(body, fault) if path.startswith("inference") else _chat(body)
        data = b"<html>" if fault == "junk" else json.dumps(answer).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        if fault == "half":
            writer.write(head + data[: len(data) // 2])
            await writer.drain()
            raise ConnectionError
        if fault == "drip":
            writer.write(head)
            for i in range(len(data)):
                writer.write(data[i : i + 1])
                await writer.drain()
                await asyncio.sleep(0.05)
        self.answers += 1
        writer.write(data if fault == "drip" else head + data)
        await writer.drain()

    def _completion(self, body: dict, fault: str) -> dict:
        """A few ids that depend on prompt, seed and weights alone; the last one is a stop id if there is room."""
        params = body["sampling_params"]
        draw = random.Random(repr((body["token_ids"], params["seed"], self.version)))
        stop = (params["stop_token_ids"] or [STOP])[0]
        ids = [*(draw.randrange(256) for _ in range(draw.randrange(1, 8))), stop]
        reason = "stop" if len(ids) <= params["max_tokens"] else "length"
        ids = ids[: params["max_tokens"]][: -1 if fault == "cut" else None]
        if fault == "vocabulary":
            ids[0] = self.info["vocab_size"]
        logprobs = [{"token_id": i, "logprob": -1.0} for i in ids]
        version = "77" if fault == "other version" else self.version
        choice = {
            "token_ids": ids,
            "logprobs": {"content": logprobs[:-1] if fault == "short" else logprobs},
            "finish_reason": "abort" if fault == "abort" else reason,
            "weight_versions": [{"version": version, "start": 0, "end": len(ids)}],
        }
        return {"choices": [choice]}


def _chat(body: dict) -> dict:
    return {"choices": [{"message": {"content": f"heard {len(body['messages'])}"}, "finish_reason": "stop"}]}


def _headers(head: str) -> list[tuple[str, str]]:
    lines = [line.partition(":") for line in head.split("\r\n")[1:] if line]
    return [(name.strip().lower(), value.strip()) for name, _, value in lines]


async def _send(
    writer: asyncio.StreamWriter, status: int, answer: Any, headers: dict[str, str] | None = None
) -> None:  # fmt: skip
    data = b"" if answer is None else json.dumps(answer).encode()
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(data)}"]
    lines += [f"{k}: {v}" for k, v in (headers or {}).items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + data)
    await writer.drain()
