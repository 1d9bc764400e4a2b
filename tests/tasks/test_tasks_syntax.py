"""Many threads read programs at once, as graders do."""

import concurrent.futures
import gc
import time

import pytest

from metaagent_x.mas.script import parse as parse_script
from metaagent_x.tasks.code import parse

PROGRAM = "x = " + "(1 + " * 30 + "1" + ")" * 30


@pytest.fixture
def busy_collector():
    """A collector that lets other threads run, as libraries with callbacks make it do."""

    def switch(phase, info):
        time.sleep(0)

    before = gc.get_threshold()
    gc.callbacks.append(switch)
    gc.set_threshold(50)
    yield
    gc.set_threshold(*before)
    gc.callbacks.remove(switch)


@pytest.mark.parametrize("read", [parse, parse_script])
def test_threads_that_read_programs_at_once_do_not_disturb_each_other(busy_collector, read):
    """Python 3.11 counts the depth of all threads together (python/cpython#106905)."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        trees = list(pool.map(read, [PROGRAM] * 40))
    assert all(tree is not None and len(tree.body) == 1 for tree in trees)
