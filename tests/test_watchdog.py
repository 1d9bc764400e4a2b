"""The watchdog: a heartbeat, the time of every phase, and where everything waits when one of them takes too long."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from metaagent_x import config
from metaagent_x.watchdog import Watchdog, resident_gb, where_all_wait


def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def heartbeat(folder):
    return json.loads((folder / "heartbeat.json").read_text())


def dog(folder, said=None, **options):
    limits = options.pop("limits", {})
    return Watchdog(folder, limits, every_s=0.01, say=(said if said is not None else []).append, **options)


def test_the_heartbeat_says_who_where_and_since_when(tmp_path):
    with dog(tmp_path) as one:
        one.step = 12
        with one.phase("push"):
            until(lambda: (tmp_path / "heartbeat.json").exists() and heartbeat(tmp_path)["phase"] == "push")
            first = heartbeat(tmp_path)
            until(lambda: heartbeat(tmp_path)["phase_s"] > first["phase_s"])
        until(lambda: heartbeat(tmp_path)["phase"] == "between")
    assert (first["pid"], first["step"], first["host"]) == (os.getpid(), 12, os.uname().nodename)
    assert first["time"].endswith("+00:00") and 0.01 < first["resident_gb"] < 1e3
    assert heartbeat(tmp_path)["phase"] == "ended" and not one._thread.is_alive()
    assert [p.name for p in tmp_path.iterdir()] == ["heartbeat.json"]


def test_a_folder_that_cannot_be_written_does_not_end_the_watch(tmp_path):
    said = []
    with dog(tmp_path / "absent", said, limits={"save": 0.03}) as one, one.phase("save"):
        until(lambda: said)
    assert "step 0: save has taken" in said[0] and "could not be written to" in said[0]


def test_limits_pace_and_action_are_those_of_the_settings(tmp_path):
    guard, said = config.base().guard, []
    guard.heartbeat_s, guard.push_s, guard.save_s = 0.01, 0.03, 0.0
    with Watchdog.of(guard, tmp_path, said.append) as one:
        with one.phase("save"):
            time.sleep(0.1)
        with one.phase("push"):
            until(lambda: said)
    assert "push has taken" in said[0] and "guard.push_s=0.03" in said[0] and len(said) == 1 and not one.ended


def test_phases_are_timed_until_they_are_asked_for(tmp_path):
    one = dog(tmp_path)
    for _ in range(2):
        with one.phase("collect"):
            time.sleep(0.02)
    with pytest.raises(RuntimeError), one.phase("save"):
        raise RuntimeError
    m = one.metrics()
    assert {f"time/{n}" for n in ("cold_start", "collect", "update", "push", "save", "evaluate")} <= m.keys()
    assert m["time/collect"] >= 0.04 and m["time/push"] == 0.0 < m["time/save"]
    assert m["time/resident_gb"] == pytest.approx(resident_gb(), rel=0.5)
    assert one.metrics()["time/collect"] == 0.0
    with pytest.raises(KeyError), one.phase("lunch"):
        pass


async def test_a_phase_over_its_limit_is_told_once_with_all_that_waits(tmp_path):
    said, gate, blocked = [], asyncio.Event(), threading.Event()

    async def innermost():
        await gate.wait()

    async def around():
        await innermost()

    def a_thread_that_waits():
        blocked.wait()

    threading.Thread(target=a_thread_that_waits, name="helper", daemon=True).start()
    jobs = [asyncio.create_task(around(), name=f"job-{i}") for i in range(12)]
    with dog(tmp_path, said, limits={"collect": 0.05, "push": 0.0}) as one:
        one.watch()
        one.step, one.counters = 3, lambda: {"engine of executor": {"requests": 41}}
        with one.phase("push"):  # no limit
            await asyncio.sleep(0.1)
        assert said == []
        with one.phase("collect"):
            while not said:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
    blocked.set()
    gate.set()
    await asyncio.gather(*jobs)
    assert len(said) == 1 and one.ended == ""
    assert "step 3: collect has taken 0 s, more than guard.collect_s=0.05" in said[0]
    assert str(tmp_path / "stuck.txt") in said[0]
    text = (tmp_path / "stuck.txt").read_text()
    assert "engine of executor: {'requests': 41}" in text
    blocks = text.split("\n\n")
    (waiting,) = [b for b in blocks if b.startswith("12 asyncio tasks (job-0, job-1, job-10, ")]
    at = [line.split()[-1] for line in waiting.splitlines()[1:]]
    assert at[:2] == ["around", "innermost"] and at[-1] == "wait" and "test_watchdog.py:" in waiting
    (helper,) = [b for b in blocks if b.startswith("1 thread (helper)")]
    assert "test_watchdog.py" in helper and "a_thread_that_waits" in helper


def test_a_second_phase_of_the_same_name_is_told_again(tmp_path):
    said = []
    with dog(tmp_path, said, limits={"save": 0.03}) as one:
        for n in (1, 2):
            with one.phase("save"):
                until(lambda n=n: len(said) == n)


def test_exit_ends_the_run_where_it_waits_and_lets_it_close_what_it_opened(tmp_path):
    closed, one = [], dog(tmp_path, limits={"push": 0.05}, stuck="exit")

    async def run():
        one.watch()
        try:
            with one.phase("push"):
                await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.01)
            closed.append(True)

    began = time.monotonic()
    with one, pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert closed and time.monotonic() - began < 10
    assert "guard.push_s=0.05 (guard.stuck='exit')" in one.ended and "goes on from the last" in one.ended


def test_a_phase_that_ends_after_all_does_not_end_the_one_after_it(tmp_path):
    said, one = [], dog(tmp_path, limits={"update": 0.05}, stuck="exit")
    one._say = said.append

    async def run():
        one.watch()
        with one.phase("update"):  # compiled code: nothing else runs in this thread meanwhile
            until(lambda: said)
        with one.phase("push"):
            await asyncio.sleep(0.05)
        return "whole"

    with one:
        assert asyncio.run(run()) == "whole" and one.ended == "" and not one._leave


@pytest.mark.parametrize("how", ["never waits", "never closes"])
def test_what_cannot_be_ended_in_order_is_ended_all_the_same(tmp_path, how):
    program = f"""
import asyncio, pathlib, time
from metaagent_x import watchdog
watchdog.GRACE_S = 0.2
one = watchdog.Watchdog(pathlib.Path({str(tmp_path)!r}), {{"update": 0.05}}, every_s=0.01, stuck="exit")
async def run():
    one.watch()
    with one.phase("update"):
        if {how == "never waits"}:
            time.sleep(60)
        try:
            await asyncio.sleep(60)
        finally:
            time.sleep(60)
with one:
    asyncio.run(run())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert done.returncode == 1 and "leaving at once" in done.stdout, done.stderr


def test_generators_and_finished_tasks_are_no_obstacle():
    async def main():
        async def numbers():
            await asyncio.sleep(0.001)
            yield 1

        async def reads():
            async for _ in numbers():
                await asyncio.sleep(30)

        jobs = [asyncio.create_task(reads()), asyncio.create_task(asyncio.sleep(0), name="done")]
        await asyncio.sleep(0.05)
        loop, out = asyncio.get_running_loop(), []
        thread = threading.Thread(target=lambda: out.append(where_all_wait(loop)))
        thread.start()
        await asyncio.to_thread(thread.join)
        for job in jobs:
            job.cancel()
        return out[0]

    text = asyncio.run(main())
    assert "reads" in text and "main" in text and "done" not in text
