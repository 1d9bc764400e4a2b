"""Records what transformers computes for a few small networks, so that the numbers are held where torch is absent.

  PYTHONPATH=. python tests/model/record_parity.py

Writes tests/model/parity.npz, and prints how far this project is from each network of `hf_samples`.
"""

import tempfile
from pathlib import Path

import numpy as np
from hf_samples import CONFIGS, PARTS, logits, loss_and_gradients, norm_inputs, packed, projections, write
from torch_model import gradients, logits_of, published, published_norm

from metaagent_x.model import hf

RECORDED = Path(__file__).with_name("parity.npz")
NAMES = ("wide_heads", "qwen2_untied")


def main():
    found: dict[str, np.ndarray] = {}
    for name, raw in CONFIGS.items():
        with tempfile.TemporaryDirectory() as folder:
            config, params = hf.load(write(folder, raw), "float32")
            model, _ = published(folder)
            batch = packed(raw)
            theirs = [logits_of(model, batch.tokens[part]).detach().numpy() for part in PARTS]
            ours = np.asarray(logits(params, config, batch.tokens, batch.positions, batch.segments))
            apart = max(float(np.abs(ours[part] - want).max()) for part, want in zip(PARTS, theirs, strict=True))
            loss, grads = gradients(model, batch)
            own_loss, own = loss_and_gradients(params, config, batch)
            own = dict(hf.named_tensors(config, own))
            far = max(float(np.abs(np.asarray(own[key]) - grad).max()) for key, grad in grads.items())
        print(f"{name:28s} logits {apart:.1e} of {np.abs(np.concatenate(theirs)).max():4.1f}   "
              f"loss {abs(loss - float(own_loss)):.1e}   gradients {far:.1e} of "
              f"{max(np.abs(g).max() for g in grads.values()):4.1f}")  # fmt: skip
        if name in NAMES:
            found |= {f"{name}/logits": np.concatenate(theirs), f"{name}/loss": np.array(loss)}
            found[f"{name}/gradients"] = projections(grads)
    found["norm"] = published_norm(*norm_inputs())
    np.savez_compressed(RECORDED, **found)


if __name__ == "__main__":
    main()
