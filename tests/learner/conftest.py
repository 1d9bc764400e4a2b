"""One compiled learner for all tests that can share it."""

import jax
import pytest
from learner_samples import MODEL, settings

from metaagent_x.learner.step import Learner
from metaagent_x.model import qwen3
from metaagent_x.model.parameters import Params


@pytest.fixture(scope="session")
def params() -> Params:
    return qwen3.init(MODEL, jax.random.key(0))


@pytest.fixture(scope="session")
def learner() -> Learner:
    return Learner(MODEL, settings())
