"""Qwen3 once more, for the tests: NumPy float64, one head and one query at a time, sharing only parameter names."""

import jax
import numpy as np

from metaagent_x.model.parameters import abstract_params


def random_params(config, seed=0):
    """Weights without compiling an initialiser; norm scales are random too, so that forgetting one shows."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        if "norm" in jax.tree_util.keystr(path):
            return jax.numpy.asarray(rng.uniform(0.5, 1.5, leaf.shape), "float32")
        return jax.numpy.asarray(rng.normal(size=leaf.shape) * 0.1, "float32")

    return jax.tree_util.tree_map_with_path(draw, abstract_params(config)[0])


def _norm(x, scale):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * scale


def _rotate(x, position, theta):
    d = len(x)
    out = np.empty(d)
    for i in range(d // 2):
        angle = position * theta ** (-2 * i / d)
        out[i] = x[i] * np.cos(angle) - x[i + d // 2] * np.sin(angle)
        out[i + d // 2] = x[i + d // 2] * np.cos(angle) + x[i] * np.sin(angle)
    return out


def _attend(layer, config, h, first):
    """Attention of one sequence h [T, D] whose first token has position `first`."""
    d, group = config.head_dim, config.num_heads // config.num_kv_heads
    out = np.zeros((len(h), config.num_heads, d))
    for head in range(config.num_heads):
        q, k = h @ layer["q"][:, head], h @ layer["k"][:, head // group]
        v = h @ layer["v"][:, head // group]
        q = [_rotate(x, first + t, config.rope_theta) for t, x in enumerate(_norm(q, layer["q_norm"]))]
        k = [_rotate(x, first + t, config.rope_theta) for t, x in enumerate(_norm(k, layer["k_norm"]))]
        for t in range(len(h)):
            scores = np.array([q[t] @ k[s] / np.sqrt(d) for s in range(t + 1)])
            weights = np.exp(scores - scores.max())
            out[t, head] = (weights / weights.sum()) @ v[: t + 1]
    return np.einsum("thd,hdm->tm", out, layer["o"])


def reference_hidden(params, config, tokens, first=0):
    """Hidden states [T, D] after the final norm, of one sequence of ids."""
    p = {k: np.asarray(v, np.float64) for k, v in params.items() if k != "layers"}
    x = p["embed"][np.asarray(tokens)]
    for i in range(config.num_layers):
        layer = {k: np.asarray(v[i], np.float64) for k, v in params["layers"].items()}
        x = x + _attend(layer, config, _norm(x, layer["attn_norm"]), first)
        h = _norm(x, layer["mlp_norm"])
        gate = h @ layer["gate"]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ layer["up"])) @ layer["down"]
    return _norm(x, p["norm"])


def reference_logprobs(logits):
    """log softmax over the last axis, float64."""
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
