"""Workers of the math grader: limits, deaths, replacement."""

import concurrent.futures
import os
import resource
import signal

import pytest

from metaagent_x.tasks import math_pool
from metaagent_x.tasks.math_pool import VerifierFailure, VerifierPool

TOWER = r"\frac{5^{(5^{(5^{(5^5)})}-4)}-5}{16}"


@pytest.fixture
def pool():
    pool = VerifierPool(2, cpu_s=1.0)
    yield pool
    pool.close()


def _idle_worker(pool):
    worker = pool._places.queue[0]
    assert worker is not None
    return worker


@pytest.mark.fault("B033")
def test_a_blow_up_is_wrong_and_costs_no_other_verdict(pool):
    """huggingface/Math-Verify#63 and #65: nested powers hang or exhaust memory."""
    good = [(r"\sqrt{4}", "2", True), (r"\sqrt{4}", "3", False)]
    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        bad = [threads.submit(pool.check, "7", TOWER) for _ in range(2)]
        verdicts = [threads.submit(pool.check, gold, answer) for gold, answer, _ in good * 3]
        assert [v.result() for v in verdicts] == [right for _, _, right in good * 3]
        assert not any(v.result() for v in bad)
    assert pool.ended == {"cpu": 2}
    assert pool.check(r"\frac{\pi}{2}", r"\arcsin 1")


@pytest.mark.fault("B033")
def test_memory_is_bounded():
    pool = VerifierPool(1, memory_mb=700)
    try:
        assert pool.check("2", r"\sqrt{4}")
        pid = _idle_worker(pool).process.pid
        assert resource.prlimit(pid, resource.RLIMIT_AS) == (700 << 20, 700 << 20)
    finally:
        pool.close()


def test_the_wall_limit_ends_a_worker_that_does_not_answer():
    pool = VerifierPool(1, wall_s=0.5)
    try:
        assert pool.check("2", r"\sqrt{4}")
        worker = _idle_worker(pool)
        os.kill(worker.process.pid, signal.SIGSTOP)
        assert not pool.check("3", r"\sqrt{9}")
        pool.wall_s = 20.0
        assert pool.check("3", r"\sqrt{9}") and pool.started == 2 and pool.ended == {"wall": 1}
    finally:
        pool.close()


def test_a_worker_that_dies_of_itself_is_replaced_and_asked_again():
    pool = VerifierPool(1)
    try:
        assert pool.check("2", r"\sqrt{4}")
        os.kill(_idle_worker(pool).process.pid, signal.SIGTERM)
        assert pool.check("2", r"\sqrt{4}") and pool.started == 2 and pool.ended == {"died": 1}
    finally:
        pool.close()


def test_close_ends_all_workers(pool):
    pool.check("2", r"\sqrt{4}")
    processes = [worker.process for worker in pool._places.queue if worker]
    pool.close()
    assert processes and all(p.poll() is not None for p in processes)


@pytest.mark.fault("B032")
def test_a_worker_that_cannot_start_is_a_failure_and_no_verdict(monkeypatch):
    """verl-project/verl PR#5635: an internal error became a score of 0 for every answer."""
    monkeypatch.setattr(math_pool, "START", "import sys; sys.exit(3)  # {root} {cpu} {mb}")
    with pytest.raises(VerifierFailure, match="exit code 3"):
        VerifierPool(1).check("2", r"\sqrt{4}")
    monkeypatch.setattr(math_pool, "START", 'print(\'{{"error": "no math_verify"}}\', flush=True)')
    with pytest.raises(VerifierFailure, match="no math_verify"):
        VerifierPool(1).check("2", r"\sqrt{4}")
