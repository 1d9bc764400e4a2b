"""A server for this machine alone: the front end's files and the answers, nothing else.

The standard library's server does all that is needed: files that are known by name, and JSON by address, to one reader.
It listens on the loopback address. A page of another site that reaches it by a name of its own (DNS rebinding) is
refused by its Host header, and a browser is told that the pages here may load, run and send nothing else.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from metaagent_x.viewer import pages
from metaagent_x.viewer.answers import Answers
from metaagent_x.viewer.store import Damaged, NotThere

ADDRESS = "127.0.0.1"
NAMES = (ADDRESS, "localhost")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}  # fmt: skip


class Server(ThreadingHTTPServer):
    """Serves one folder. `port` 0 takes a free one; `server_port` says which.

    Raises:
      OSError: the port is in use.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, answers: Answers, port: int = 0) -> None:
        self.answers = answers
        super().__init__((ADDRESS, port), _Handler)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"


@contextlib.contextmanager
def serving(answers: Answers, port: int = 0) -> Iterator[Server]:
    """A server in a thread of its own, for as long as the context lasts."""
    server = Server(answers, port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds that an idle connection is kept
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        try:
            status, kind, text = self._answer()
        except Exception as defect:  # one answer that fails must not end the viewer
            status, kind, text = HTTPStatus.INTERNAL_SERVER_ERROR, "application/json", _error(repr(defect))
        body = text.encode("utf-8", "replace")
        with contextlib.suppress(ConnectionError):  # the reader has gone to another page
            self.send_response(status)
            for name, value in HEADERS.items():
                self.send_header(name, value)
            if "Transfer-Encoding" in self.headers or self.headers.get("Content-Length", "0") != "0":
                self.send_header("Connection", "close")  # a body is not read, and must not pass for the next request
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def _answer(self) -> tuple[HTTPStatus, str, str]:
        host = self.headers.get("Host", "")
        port = self.server.server_port
        if host not in {f"{name}:{port}" for name in NAMES} and not (port == 80 and host in NAMES):
            message = f"this server answers to {ADDRESS} and localhost at its own port, not to {host[:80]!r}"
            return HTTPStatus.MISDIRECTED_REQUEST, "text/plain", message
        path = urlsplit(self.path).path
        if path.startswith("/answers/"):
            return self._json(unquote(path.removeprefix("/answers/")))
        found = pages.file("index.html" if path == "/" else path.removeprefix("/static/"))
        if found is None:
            return HTTPStatus.NOT_FOUND, "text/plain", "no such file"
        return HTTPStatus.OK, *found

    def _json(self, address: str) -> tuple[HTTPStatus, str, str]:
        kind = "application/json"
        try:
            return HTTPStatus.OK, kind, json.dumps(self.server.answers.get(address), allow_nan=False)
        except NotThere as problem:
            return HTTPStatus.NOT_FOUND, kind, _error(str(problem))
        except Damaged as problem:
            return HTTPStatus.UNPROCESSABLE_ENTITY, kind, _error(str(problem))

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a line for every request would hide what the command has to say."""


def _error(message: str) -> str:
    return json.dumps({"error": message})
