"""Serves a small policy as an OpenAI chat endpoint on this machine: a teacher, or a policy for other programs to try.

  python -m metaagent_x.serve --config=configs/tiny.py                 # the cold start of these settings
  python -m metaagent_x.serve --config=configs/tiny.py --model=FOLDER  # a Hugging Face folder, an export of a run

A cold start is made if it is not there yet. The built-in engine samples; it is not meant for large models. A
conversation becomes the same ids as in a rollout, and a seed gives the same answer in any company.
POST /v1/chat/completions takes `messages`, `max_tokens`, `temperature` and `seed`; GET /v1/models tells the name.
Exit codes: 0 ended by Ctrl-C, 2 bad input, 1 anything else.
"""

from __future__ import annotations

import asyncio
import http.server
import json
import random
import socketserver
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from absl import app, flags, logging
from ml_collections import config_flags

from metaagent_x import assemble, cold_start, config, data
from metaagent_x.interruption import Interruption
from metaagent_x.rollout.chat import Chat
from metaagent_x.rollout.engine import Engine, EngineFailure, Sampling
from metaagent_x.rollout.play import chat_for
from metaagent_x.tasks.datasets import DatasetError

NAME = "policy"
ROLES = ("system", "user", "assistant")
OFF = {"top_k": (-1, 0), "min_p": (0,), "repetition_penalty": (1,)}  # beyond the protocol: values that change nothing

_CONFIG = config_flags.DEFINE_config_file("config", None, "Settings: a file of configs/.")
_MODEL = flags.DEFINE_string("model", None, "Hugging Face folder to serve instead of the cold start.")
_PORT = flags.DEFINE_integer("port", 8123, "Port on 127.0.0.1; 0: any free one.")


class BadRequest(ValueError):
    """A request that no policy could answer. Status 400."""


def main(_: list[str]) -> None:
    c = _CONFIG.value
    logging.set_verbosity(logging.WARNING)
    interruption = Interruption()
    interruption.install()
    try:
        if _MODEL.value is not None:
            c.model.path, c.sft.max_steps = _MODEL.value, 0
        config.validate(c)
        assemble.adopt_weights(c)
        assemble.contain(c)  # a cold start grades
        interruption.run(serve(c, _PORT.value))
    except (config.ConfigError, DatasetError) as error:
        print(f"bad input: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"port {_PORT.value}: {error}; choose another --port", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("ended")


async def serve(c: config.Settings, port: int) -> None:
    """Makes or reads the policy and answers until it is cancelled."""
    cold = await cold_start.cold_start(c, data.open_pools(c))
    engine, chat = assemble.engine(c, cold.model, cold.params), chat_for(c.tokenizer)
    endpoint = Endpoint(engine, chat, port)
    try:
        print(f"serving {c.model.path or 'the cold start'} as model {NAME!r} at {endpoint.url}", flush=True)
        await asyncio.Event().wait()
    finally:
        endpoint.close()
        await engine.close()


class Endpoint:
    """An HTTP server on 127.0.0.1 in threads of its own, which asks an engine in the loop that made it.

    Attributes:
      url: up to and with the version.
    """

    def __init__(self, engine: Engine, chat: Chat, port: int = 0) -> None:
        """Raises OSError if the port is taken."""
        loop = asyncio.get_running_loop()

        def answer(body: Mapping[str, Any]) -> dict[str, Any]:
            return asyncio.run_coroutine_threadsafe(chat_completion(engine, chat, body), loop).result()

        self._server = _Server(("127.0.0.1", port), type("Handler", (_Handler,), {"answer": staticmethod(answer)}))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, name="endpoint", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


async def chat_completion(engine: Engine, chat: Chat, body: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to the body of a request. Raises BadRequest; EngineFailure."""
    ids = prompt_of(chat, body.get("messages"))
    if body.get("n", 1) != 1 or body.get("stream") or body.get("top_p", 1.0) != 1.0:
        raise BadRequest("only n=1, stream=false and top_p=1 are served")
    for name, off in OFF.items():
        if body.get(name) not in (None, *off):
            raise BadRequest(f"{name}={body[name]!r}: the built-in engine samples plainly; leave it out")
    try:
        limit = body.get("max_completion_tokens", body.get("max_tokens", 1 << 30))
        sampling = Sampling(int(limit), float(body.get("temperature", 1.0)))
        done = await engine.generate(tuple(ids), sampling, int(body.get("seed", random.getrandbits(31))))
    except (TypeError, ValueError) as error:
        raise BadRequest(str(error)) from error
    message = {"role": "assistant", "content": chat.decode(done.ids)}
    usage = {"prompt_tokens": len(ids), "completion_tokens": len(done.ids), "total_tokens": len(ids) + len(done.ids)}
    choice = {"index": 0, "message": message, "finish_reason": done.finish_reason}
    return {"object": "chat.completion", "model": NAME, "choices": [choice], "usage": usage}


def prompt_of(chat: Chat, messages: Any) -> list[int]:
    """The ids that a rollout has for a conversation. Raises BadRequest if it is none: a system turn at most, then user
    and assistant by turns, the user's last."""
    if not isinstance(messages, Sequence) or not all(
        isinstance(m, Mapping) and m.get("role") in ROLES and isinstance(m.get("content"), str) for m in messages
    ):
        raise BadRequest(f"messages must be a list of {{role, content}}, roles {', '.join(ROLES)}, contents texts")
    turns = [(m["role"], m["content"]) for m in messages]
    system = turns.pop(0)[1] if turns and turns[0][0] == "system" else ""
    if [role for role, _ in turns] != [ROLES[1 + i % 2] for i in range(len(turns))] or len(turns) % 2 == 0:
        raise BadRequest("messages must be a system turn at most, then user and assistant by turns, the user's last")
    ids = chat.prompt(system, turns[0][1])
    for (_, said), (_, asked) in zip(turns[1::2], turns[2::2], strict=True):
        ids = chat.extend([*ids, *chat.encode(said), chat.stop_ids[0]], asked)
    return ids


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 256


class _Handler(http.server.BaseHTTPRequestHandler):
    answer: Any  # body -> answer
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet an answer

    def do_GET(self) -> None:
        self._send(200, {"object": "list", "data": [{"id": NAME, "object": "model"}]})

    def do_POST(self) -> None:
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
            if self.path != "/v1/chat/completions" or not isinstance(body, dict):
                raise BadRequest("POST an object to /v1/chat/completions")
            self._send(200, self.answer(body))
        except ValueError as error:
            self._send(400, {"error": {"message": str(error), "type": "invalid_request_error"}})
        except EngineFailure as failure:
            self._send(503, {"error": {"message": str(failure), "type": "server_error"}})

    def _send(self, status: int, answer: Mapping[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return None


if __name__ == "__main__":
    app.run(main, flags_parser=config.parse_flags)
