"""Who gives way to whom: scripts that compute, while others are at work."""

import contextlib
import os
import pathlib
import signal
import threading

import pytest

from metaagent_x.sandbox import Limits, client, run_python, throttle
from metaagent_x.sandbox.throttle import CROWDED, SUSPENDED_S, TURN_S, Throttle, take_turns


@pytest.fixture
def signals(monkeypatch):
    sent = []
    monkeypatch.setattr(os, "killpg", lambda pid, number: sent.append((pid, number)))
    return sent


def run(pid, *, computing=False, load=0.0):
    made = Throttle(pid, script=True, now=0.0)
    made.computing, made.load = computing, load
    return made


def test_a_script_that_computes_is_suspended_while_others_use_the_cores(signals):
    script, busy = run(1, computing=True), run(2, load=CROWDED + 0.1)
    take_turns([script, busy], 1.0)
    assert signals == [(1, signal.SIGSTOP)]
    take_turns([script, busy], 1.1)
    assert len(signals) == 1  # it is suspended already
    busy.load = CROWDED - 0.1
    take_turns([script, busy], 1.3)
    assert signals[1:] == [(1, signal.SIGCONT)] and script.suspended_s == pytest.approx(0.3)


def test_it_has_a_turn_now_and_then_in_any_case(signals):
    script, busy = run(1, computing=True), run(2, load=CROWDED + 0.1)
    now = 1.0
    for _ in range(300):
        take_turns([script, busy], now)
        now += 0.01
    kinds = [number for _, number in signals]
    assert kinds == [signal.SIGSTOP, signal.SIGCONT] * (len(kinds) // 2) + [signal.SIGSTOP] * (len(kinds) % 2)
    assert 3.0 / (SUSPENDED_S + TURN_S) - 1 <= kinds.count(signal.SIGCONT) <= 3.0 / SUSPENDED_S


def test_others_that_do_little_are_no_reason(signals):
    take_turns([run(1, computing=True), *(run(n, load=0.0) for n in range(2, 130))], 1.0)
    take_turns([run(1, computing=True), run(2, computing=True, load=5.0)], 1.0)  # nor is one that computes itself
    assert signals == []


def test_who_pauses_has_not_computed(monkeypatch):
    clock = iter([0.006, 0.006, 0.02, 0.03, 0.03])
    monkeypatch.setattr(throttle.time, "clock_gettime", lambda _: next(clock))
    monkeypatch.setattr(Throttle, "waited", lambda self: 0.0)
    monkeypatch.setattr(os, "setpriority", lambda *_: None)
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: None)
    script = Throttle(os.getpid(), script=True, now=0.0)
    states = []
    for now in (0.006, 0.1, 0.114, 0.124, 0.2):
        script.look(now)
        states.append((script.lowered, script.computing))
    # Computes; pauses; computes on and is to be suspended; pauses.
    assert states == [(True, False), (True, False), (True, True), (True, True), (True, False)]


def test_a_program_is_lowered_but_never_suspended(monkeypatch):
    monkeypatch.setattr(throttle.time, "clock_gettime", lambda _: script.looked + 0.02)
    monkeypatch.setattr(Throttle, "waited", lambda self: 0.0)
    monkeypatch.setattr(os, "setpriority", lambda *_: None)
    script = Throttle(1, script=False, now=0.0)
    for now in (0.02, 0.04, 0.06):
        script.look(now)
    assert script.lowered and not script.computing


def niceness(pid: str) -> int:
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[16])


def test_the_priority_of_what_computes_is_lowered():
    zygote = client.zygote().process.pid
    working = threading.Thread(target=run_python, args=("while True: pass",), kwargs={"limits": Limits(cpu_s=2)})
    working.start()
    seen = set()
    while working.is_alive() and throttle.NICE_COMPUTING not in seen:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pids = pathlib.Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()
            seen.update(niceness(pid) for pid in pids)
    working.join()
    assert throttle.NICE_COMPUTING in seen
