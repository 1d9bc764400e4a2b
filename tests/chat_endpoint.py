"""A chat endpoint that answers from a rule, in a thread: what jobs that only ask are tried on as commands."""

import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SCRIPT = "```python\nanswer = vote(together([solver()] * 3, task))\n```"


def reply(system, user):
    """A design, or the sum that is asked for; sums of more than 12 are one too many."""
    if "You design" in system:
        return SCRIPT
    a, b = map(int, re.findall(r"(\d+) \+ (\d+)", user)[0])
    return f"\\boxed{{{a + b + (a + b > 12)}}}"


class ChatEndpoint:
    """`with ChatEndpoint() as endpoint: endpoint.url`. `asked`: number of requests; `delay_s`: of each answer."""

    def __init__(self, delay_s=0.0):
        self.asked, self.delay_s = 0, delay_s
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.asked += 1
                time.sleep(outer.delay_s)
                said = {turn["role"]: turn["content"] for turn in body["messages"]}
                text = reply(said.get("system", ""), said["user"])
                answer = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
                data = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
