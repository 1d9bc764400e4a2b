"""Entry functions for `test_sessions.py`; each runs in a contained process and gets its end of the line."""

import json
import os
import socket
import time


def echo(fd: int) -> int:
    line = socket.socket(fileno=fd)
    message = json.loads(line.makefile().readline())
    line.sendall(json.dumps({"got": message}).encode() + b"\n")
    return 0


def nothing(fd: int) -> int:
    return 7


def sleep(fd: int) -> int:
    os.write(fd, json.dumps({"pid": os.getpid(), "folder": os.getcwd()}).encode() + b"\n")
    time.sleep(600)
    return 0


def hang_up(fd: int) -> int:
    os.close(fd)
    time.sleep(600)
    return 0


def _say(fd: int, data: bytes) -> int:
    socket.socket(fileno=fd).sendall(data)
    return 0


def not_json(fd: int) -> int:
    return _say(fd, b"hello\n")


def not_object(fd: int) -> int:
    return _say(fd, b"[1]\n")


def huge_line(fd: int) -> int:
    return _say(fd, b'{"x": "' + b"y" * 3_000_000 + b'"}\n')


def half_line(fd: int) -> int:
    return _say(fd, b'{"x": ')


def binary(fd: int) -> int:
    return _say(fd, b"\xff\x00\xfe\n")


def deep(fd: int) -> int:
    return _say(fd, b"[" * 100_000 + b"\n")
