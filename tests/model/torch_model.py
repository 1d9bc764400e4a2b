"""The published implementation, run beside ours. Imports torch and transformers only when it is used."""

import importlib.util
import os

import numpy as np
import pytest
from hf_samples import PARTS

needs_torch = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("torch", "transformers"))),
    reason="torch and transformers are not installed (requirements-parity.txt)",
)


def published(folder, dtype="float32"):
    """transformers' model of a folder, and what it found missing or unexpected."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", output_loading_info=True
    )


def logits_of(model, tokens, positions=None):
    """float32 logits [T, V] of one sequence; explicit positions with an explicit causal mask."""
    import torch

    n, more = len(tokens), {}
    if positions is not None:
        hidden = torch.triu(torch.full((1, 1, n, n), torch.finfo(model.dtype).min, dtype=model.dtype), 1)
        more = {"attention_mask": hidden, "position_ids": torch.tensor(positions)[None]}
    return model(torch.tensor(np.asarray(tokens))[None], **more).logits[0].float()


def weighted_loss(model, tokens, weights):
    """-sum of weight times log-prob of each next token, of one sequence: tokens [T], weights [T - 1]."""
    import torch

    scores = torch.log_softmax(logits_of(model, tokens), -1)[:-1]
    chosen = scores.gather(1, torch.tensor(np.asarray(tokens[1:]))[:, None])[:, 0]
    return -(chosen * torch.tensor(np.asarray(weights), dtype=torch.float32)).sum()


def gradients(model, batch):
    """The loss of `hf_samples.packed`, each segment alone, and name -> gradient."""
    model.zero_grad()
    loss = 0.0
    for row, part in PARTS:
        inner = slice(part.start, part.stop - 1)
        loss = loss + weighted_loss(model, batch.tokens[row, part], batch.weights[row, inner])
    loss.backward()
    return float(loss.detach()), {name: p.grad.numpy() for name, p in model.named_parameters()}


def published_norm(x, scale, eps=1e-6):
    """transformers' RMS norm of bfloat16 arrays, as float32."""
    import torch
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    norm = Qwen3RMSNorm(len(scale), eps=eps)
    norm.weight.data = torch.tensor(np.asarray(scale, np.float32)).bfloat16()
    return norm(torch.tensor(np.asarray(x, np.float32)).bfloat16()).float().detach().numpy()
