"""One tiny network for all tests of the model: two layers, hidden 64, key heads shared by two query heads."""

import pytest
from qwen3_reference import random_params

from metaagent_x.model.parameters import Params, Qwen3Config


@pytest.fixture(scope="session")
def config() -> Qwen3Config:
    return Qwen3Config(
        vocab_size=96,
        hidden_size=64,
        num_layers=2,
        num_heads=8,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=128,
    )


@pytest.fixture(scope="session")
def params(config: Qwen3Config) -> Params:
    return random_params(config)
