"""A recorded run, and a server that shows it: one of each for a file of tests."""

import pytest
from viewer_runs import write_run

from metaagent_x.viewer.answers import Answers
from metaagent_x.viewer.server import serving
from metaagent_x.viewer.store import Store


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("viewer") / "run")


@pytest.fixture(scope="module")
def server(run):
    with serving(Answers(Store(run))) as here:
        yield here
