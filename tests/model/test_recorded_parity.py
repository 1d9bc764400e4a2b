"""Equal to what transformers computed when `record_parity.py` was run: held without torch."""

from pathlib import Path

import numpy as np
import pytest
from hf_samples import CONFIGS, PARTS, logits, loss_and_gradients, norm_inputs, packed, projections, write

from metaagent_x.model import hf, numerics


@pytest.fixture(scope="module")
def recorded():
    return np.load(Path(__file__).with_name("parity.npz"))


@pytest.mark.fault("F006")
@pytest.mark.parametrize("name", ["wide_heads", pytest.param("qwen2_untied", marks=pytest.mark.slow)])
def test_logits_loss_and_gradients_are_those_recorded(name, recorded, tmp_path):
    """Packed and padded rows here, each segment alone there (pegainfer-project/pegainfer#174)."""
    raw = CONFIGS[name]
    config, params = hf.load(write(tmp_path, raw), "float32")
    batch = packed(raw)
    ours = np.asarray(logits(params, config, batch.tokens, batch.positions, batch.segments))
    ours, theirs = np.concatenate([ours[part] for part in PARTS]), recorded[f"{name}/logits"]
    np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)
    np.testing.assert_array_equal(ours.argmax(-1), theirs.argmax(-1))
    loss, grads = loss_and_gradients(params, config, batch)
    assert abs(float(loss) - float(recorded[f"{name}/loss"])) < 1e-5
    found = projections(dict(hf.named_tensors(config, grads)))
    np.testing.assert_allclose(found, recorded[f"{name}/gradients"], atol=1e-4, rtol=0)
    assert np.abs(found).max(axis=1).min() > 1e-3


@pytest.mark.fault("F006")
def test_rms_norm_casts_as_recorded_bit_by_bit(recorded):
    """Scaling before the cast moves a quarter of the values by one ulp (verl-project/verl-omni#637)."""
    x, scale = norm_inputs()
    np.testing.assert_array_equal(np.asarray(numerics.rms_norm(x, scale, 1e-6), np.float32), recorded["norm"])
