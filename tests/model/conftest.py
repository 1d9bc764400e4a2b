"""One tiny network for all tests of the model: two layers, hidden 64, key heads shared by two query heads."""

import jax
import numpy as np
import pytest

from metaagent_x.model import qwen3
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
    """Random weights; norm scales are random too, so that forgetting one shows."""
    drawn = qwen3.init(config, jax.random.key(0))
    rng = np.random.default_rng(0)
    return jax.tree_util.tree_map_with_path(
        lambda path, x: x * rng.uniform(0.5, 1.5, x.shape).astype("float32") if "norm" in str(path[-1]) else x, drawn
    )
