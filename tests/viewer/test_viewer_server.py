"""The viewer's server: to this machine alone, with a policy that lets a page do nothing else."""

import contextlib
import http.client
import json
import socket

import pytest

from metaagent_x.viewer.server import Server


def ask(server, path, host=None, method="GET"):
    line = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    line.request(method, path, headers={"Host": host or f"127.0.0.1:{server.server_port}"})
    reply = line.getresponse()
    text = reply.read().decode()
    line.close()
    return reply, text


def test_it_listens_on_the_loopback_address_only(server):
    assert server.server_address[0] == "127.0.0.1" and server.url == f"http://127.0.0.1:{server.server_port}/"


def test_a_name_of_another_site_that_leads_here_is_refused(server):
    """DNS rebinding: the browser asks us, but for the name of a site that may then read the answer."""
    port = server.server_port
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        f"127.0.0.1:{port}.evil.example",
        "",
    ):
        reply, text = ask(server, "/answers/run", host or " ")
        assert reply.status == 421 and "math/1" not in text and "steps" not in text, host
    assert ask(server, "/answers/run", f"localhost:{port}")[0].status == 200


def test_every_reply_carries_a_policy_that_forbids_what_is_not_ours(server):
    for path in ("/", "/static/main.js", "/static/viewer.css", "/answers/run", "/answers/99", "/nothing"):
        reply, _ = ask(server, path)
        policy = reply.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'") and "unsafe" not in policy
        assert (
            reply.headers["X-Content-Type-Options"] == "nosniff" and "Access-Control-Allow-Origin" not in reply.headers
        )


def test_files_are_known_by_name_and_nothing_else_is_sent(server, run):
    assert ask(server, "/")[1].startswith("<!doctype html>")
    assert ask(server, "/static/dom.js")[0].headers["Content-Type"] == "text/javascript; charset=utf-8"
    for path in (
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/config.json",
        "/static/",
        f"/static/{run}/config.json",
    ):
        assert ask(server, path)[0].status == 404, path


def test_answers_are_json_and_so_are_failures(server, run, monkeypatch):
    reply, text = ask(server, "/answers/1/0/0/0/0.0.0")
    assert reply.status == 200 and json.loads(text)["path"] == "0.0.0"
    reply, text = ask(server, "/answers/77")
    assert reply.status == 404 and "step 77 has no trace" in json.loads(text)["error"]
    broken = run / "traces" / "step_000008.parquet"
    broken.write_bytes(b"PAR1 half")
    reply, text = ask(server, "/answers/8")
    broken.unlink()
    assert reply.status == 422 and "step_000008.parquet" in json.loads(text)["error"]
    monkeypatch.setattr(server.answers.store, "small", lambda step: 1 / 0)
    reply, text = ask(server, "/answers/1")
    assert reply.status == 500 and "ZeroDivisionError" in json.loads(text)["error"]
    monkeypatch.undo()
    assert ask(server, "/answers/1")[0].status == 200


def test_nothing_can_be_sent_to_it(server):
    for method in ("POST", "PUT", "DELETE"):
        assert ask(server, "/answers/run", method=method)[0].status == 501


def test_a_port_in_use_is_an_error_of_the_system(server):
    with pytest.raises(OSError), socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        Server(server.answers, taken.getsockname()[1])


def test_many_readers_at_once_get_their_own_answers(server):
    from concurrent.futures import ThreadPoolExecutor

    addresses = ["1/0/0/0", "2/0/1/0", "3/0/0/1", "figure/learning", "figure/structures", "run", "1", "2", "3"] * 4
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda a: ask(server, f"/answers/{a}"), addresses))
    assert {reply.status for reply, _ in replies} == {200}
    for address, (_, text) in zip(addresses, replies, strict=True):
        assert json.loads(text) == json.loads(json.dumps(server.answers.get(address)))


def test_at_the_usual_port_a_browser_names_none(server, monkeypatch):
    line = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    monkeypatch.setattr(server, "server_port", 80)
    for host, status in (("localhost", 200), ("127.0.0.1:80", 200), ("evil.example", 421)):
        line.request("GET", "/", headers={"Host": host})
        reply = line.getresponse()
        reply.read()
        assert reply.status == status, host
    line.close()


def test_what_a_request_carries_is_not_taken_for_the_next_one(server):
    host = f"Host: 127.0.0.1:{server.server_port}"
    inner = f"GET /answers/run HTTP/1.1\r\n{host}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as line:
        line.sendall(f"GET /nothing HTTP/1.1\r\n{host}\r\nContent-Length: {len(inner)}\r\n\r\n{inner}".encode())
        said = b""
        with contextlib.suppress(ConnectionResetError):
            while part := line.recv(1 << 16):
                said += part
    assert said.count(b"HTTP/1.1 ") == 1 and b"no such file" in said
