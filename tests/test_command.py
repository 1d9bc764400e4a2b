"""What all long jobs share: flags that set fields, and one line and an exit code at the end."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from metaagent_x import command, config
from metaagent_x.learner.checkpoint import CheckpointError
from metaagent_x.rollout.engine import EngineFailure, EngineRefused
from metaagent_x.tasks.datasets import DatasetError


@pytest.fixture
def handlers():
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


def test_flags_that_were_given_set_their_fields():
    c = config.base("evaluate")
    given = {"designs": 3, "engine.kind": None, "evaluate.methods": "single,metaagent_x", "evaluate.limit": 0}
    command.override(
        c,
        {field: SimpleNamespace(value=value) for field, value in given.items()},
        {"evaluate.methods": lambda text: tuple(text.split(","))},
    )
    assert (c.designs, c.engine.kind, c.evaluate.methods, c.evaluate.limit) == (3, "jax", ("single", "metaagent_x"), 0)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (config.ConfigError("batch=0"), 2, "bad input: batch=0"),
        (DatasetError("[no] rows"), 2, "bad input: [no] rows"),
        (EngineFailure("away"), 1, "engine: away; the same command goes on from the last checkpoint in runs/there"),
        (CheckpointError("damaged"), 1, "checkpoint: damaged"),
        (OSError("no room"), 1, "runs/there: no room; what was written before is whole"),
        (KeyboardInterrupt(), 3, "interrupted; the same command goes on from the last checkpoint in runs/there"),
    ],
)
def test_what_ends_a_job_is_one_line_and_an_exit_code(error, code, line, capsys, handlers):
    c = config.base()
    with pytest.raises(SystemExit) as ended, command.ending(c, DatasetError, goes_on="from the last checkpoint"):
        c.workdir = "runs/there"
        raise error
    assert ended.value.code == code and capsys.readouterr().out == f"{line}\n"


def test_a_job_that_begins_again_promises_nothing(capsys, handlers):
    with pytest.raises(SystemExit), command.ending(config.base()):
        raise KeyboardInterrupt
    assert capsys.readouterr().out == "interrupted\n"


@pytest.mark.parametrize("error", [ZeroDivisionError(), EngineRefused("of another job"), SystemExit(7)])
def test_defects_and_exits_pass(error, handlers):
    with pytest.raises(type(error)) as ended, command.ending(config.base(), DatasetError):
        raise error
    assert ended.value is error


def test_a_signal_ends_what_runs_and_is_an_exit_code():
    program = """
import asyncio, os, signal
from metaagent_x import command, config
async def job():
    os.kill(os.getpid(), signal.SIGTERM)
    try:
        await asyncio.sleep(60)
    finally:
        print("closed")
with command.ending(config.base(), goes_on="with what is") as interruption:
    interruption.run(job())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env=os.environ | {"COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert done.stdout.splitlines()[1:] == [
        "closed",
        "interrupted; the same command goes on with what is in runs/default",
    ]
