"""A teacher that answers by a rule over HTTP, rightly or wrongly, slowly, not at all: whatever a test wants of one.

with ScriptedTeacher(rule) as teacher:   # rule(body) -> text | Reply
    teacher.url, teacher.bodies
"""

import dataclasses
import http.server
import json
import re
import threading
import time

DESIGN = (
    "The sum is routine, so one careful solver will do; nothing needs to be checked twice here.\n```python\n{}\n```"
)


@dataclasses.dataclass
class Reply:
    """One answer of the endpoint. `usage` None: it does not report any."""

    text: str | None = ""
    status: int = 200
    finish: str = "stop"
    headers: dict = dataclasses.field(default_factory=dict)
    delay_s: float = 0.0
    usage: tuple[int, int] | None = (100, 20)


class ScriptedTeacher:
    """Attributes: bodies: of all requests, in order. times: of each, seconds."""

    def __init__(self, rule):
        self.rule, self.bodies, self.times = rule, [], []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version, wbufsize = "HTTP/1.1", -1

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.bodies.append(body)
                outer.times.append(time.monotonic())
                reply = outer.rule(body)
                reply = reply if isinstance(reply, Reply) else Reply(reply)
                time.sleep(reply.delay_s)
                data = json.dumps(_answer(reply)).encode()
                self.send_response(reply.status)
                for key, value in ({"Content-Length": str(len(data))} | reply.headers).items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def _answer(reply):
    if reply.status != 200:
        return {"error": {"message": reply.text}}
    choice = {"message": {"role": "assistant", "content": reply.text}, "finish_reason": reply.finish}
    usage = {"prompt_tokens": reply.usage[0], "completion_tokens": reply.usage[1]} if reply.usage else None
    return {"choices": [choice], "usage": usage}


def designs(body):
    """Whether it is the Designer who asks."""
    return "You design a multi-agent system" in body["messages"][0]["content"]


def total(body):
    """The right answer to "What is A + B?" in the last message."""
    a, b = re.search(r"What is (\d+) \+ (\d+)\?", body["messages"][-1]["content"]).groups()
    return int(a) + int(b)


def adds(body, script="answer = solver()(task)"):
    """A teacher that is always right."""
    return DESIGN.format(script) if designs(body) else f"We add them up: \\boxed{{{total(body)}}}"
