"""A headless Chromium that tests can click in, over the DevTools protocol: a WebSocket client of what that needs."""

import base64
import contextlib
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

FOUND = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--remote-debugging-port=0",
    "--hide-scrollbars",
)  # fmt: skip


QUIET = "!document.querySelector('#page[aria-busy]')"
OPENED = "document.querySelector('#page')?.dataset.opened"
PLACE = """(() => {
  const found = [...document.querySelectorAll(SELECTOR)].find((e) => e.getClientRects().length);
  if (!found) return null;
  found.scrollIntoView({block: "center", behavior: "instant"});
  const box = found.getClientRects()[0];
  return [box.x + Math.min(box.width / 2, 40), box.y + box.height / 2];
})()"""


class Socket:
    """A WebSocket of whole text messages."""

    def __init__(self, url):
        host, _, path = url.removeprefix("ws://").partition("/")
        name, _, port = host.partition(":")
        self.line = socket.create_connection((name, int(port)), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self.line.sendall(
            f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self.file = self.line.makefile("rb")
        assert b" 101 " in self.file.readline()
        while self.file.readline() != b"\r\n":
            pass

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        size = struct.pack("!B", 0x80 | len(data)) if len(data) < 126 else struct.pack("!BQ", 0xFF, len(data))
        masked = bytes(b ^ mask[i % 4] for i, b in enumerate(data))
        self.line.sendall(b"\x81" + size + mask + masked)

    def receive(self):
        out = b""
        while True:
            first, second = self.file.read(2)
            size = second & 0x7F
            if size > 125:
                size = int.from_bytes(self.file.read(2 if size == 126 else 8))
            part = self.file.read(size)
            if first & 0x0F in (0, 1):
                out += part
            if first & 0x80 and first & 0x0F in (0, 1):
                return out.decode()

    def close(self):
        self.file.close()
        self.line.close()


class Page:
    """One tab.

    Attributes:
      said: what the page wrote to its console as a warning or an error, and its uncaught exceptions.
    """

    def __init__(self, url):
        self.socket, self.number, self.said = Socket(url), 0, []
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")
        self.ask("Emulation.setDeviceMetricsOverride", width=1366, height=768, deviceScaleFactor=1, mobile=False)

    def ask(self, method, **params):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.receive())
            if message.get("id") == self.number:
                assert "error" not in message, message
                return message["result"]
            self._listen(message)

    def _listen(self, message):
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.said.append(json.dumps(params["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.said.append(params["entry"]["text"])
        elif message.get("method") == "Page.javascriptDialogOpening":
            self.said.append(f"dialog: {params['message']}")

    def js(self, expression):
        """The value of an expression in the page; a promise is waited for."""
        done = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def until(self, condition, seconds=20):
        """Waits until an expression is true. Returns seconds."""
        began = time.perf_counter()
        while not self.js(f"Boolean({condition})"):
            assert time.perf_counter() - began < seconds, f"never: {condition}; console: {self.said}"
            time.sleep(0.01)
        return time.perf_counter() - began

    def go(self, url):
        """Opens an address from an empty page. Returns the seconds that it took."""
        self.ask("Page.navigate", url="about:blank")
        self.ask("Page.navigate", url=url)
        return self.until(f"{OPENED} !== undefined && {QUIET}")

    def click(self, selector):
        """Clicks with the mouse on the first match that can be seen, and waits for what opens. Returns seconds."""
        place = self.js(PLACE.replace("SELECTOR", json.dumps(selector)))
        assert place, f"nothing matches {selector} on {self.text()[:400]!r}"
        began = time.perf_counter()
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)
        self.until(f"{OPENED}.split('?')[0] === location.hash.split('?')[0] && {QUIET}")
        return time.perf_counter() - began

    def key(self, key):
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        code = {"Enter": 13}.get(key, 0)
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, windowsVirtualKeyCode=code)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)
        time.sleep(0.05)
        self.until(QUIET)

    def text(self):
        return self.js("document.body.innerText")

    def dark(self, on):
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=scheme)

    def screenshot(self, path):
        Path(path).write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))


@contextlib.contextmanager
def chromium():
    """A tab of a fresh browser. It meets no network but this machine's."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [FOUND, *FLAGS, f"--user-data-dir={profile}", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
             "about:blank"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            for line in process.stderr:
                if "DevTools listening on" in line:
                    base = line.split("ws://")[1].split("/")[0]
                    break
            else:
                raise RuntimeError("the browser did not start")
            tabs = json.loads(urllib.request.urlopen(f"http://{base}/json/list", timeout=20).read())
            yield Page(next(t["webSocketDebuggerUrl"] for t in tabs if t["type"] == "page"))
        finally:
            process.terminate()
            process.wait(20)
            process.stderr.close()
