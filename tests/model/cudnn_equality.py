"""The kernel "cudnn" against "xla" on the GPU of this machine: python tests/model/cudnn_equality.py

Exit code 0 if outputs and gradients agree, 3 with the reason if there is nothing to run on.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np

from metaagent_x.model.attention import attention
from metaagent_x.model.attention_cudnn import missing

CASES = [  # heads, key heads, width, row length, lengths of the segments of each row
    (8, 8, 64, 256, [[256], [100, 156]]),
    (8, 2, 128, 512, [[200, 300], [512], []]),  # shared key heads, padding, an empty row
    (16, 4, 128, 1000, [[1, 333, 400], [31] * 32]),  # odd lengths, as many segments as there may be
]


def rows(length: int, lengths: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    segments, positions = np.zeros((2, len(lengths), length), np.int32)
    for r, row in enumerate(lengths):
        start = 0
        for i, n in enumerate(row):
            segments[r, start : start + n], positions[r, start : start + n] = i + 1, np.arange(n)
            start += n
    return segments, positions


@functools.partial(jax.jit, static_argnums=0)
def run(kernel: str, segments: jax.Array, positions: jax.Array, d_out: jax.Array, *arrays: jax.Array) -> list:
    """Output and the three gradients; nothing comes back from padding."""
    d_out = jnp.where((segments > 0)[..., None, None], d_out, 0).astype(arrays[0].dtype)
    out, back = jax.vjp(lambda *qkv: attention(*qkv, segments, positions, kernel=kernel), *arrays)
    return [out, *back(d_out)]


def main() -> int:
    if why := missing():
        print(f"the kernel {why}")
        return 3
    for heads, kv_heads, width, length, lengths in CASES:
        segments, positions = rows(length, lengths)
        keys = jax.random.split(jax.random.key(0), 4)
        shapes = [(len(lengths), length, n, width) for n in (heads, kv_heads, kv_heads, heads)]
        *inputs, d_out = (jax.random.normal(k, s, jnp.bfloat16) for k, s in zip(keys, shapes, strict=True))
        real = (segments > 0)[..., None, None]

        got = run("cudnn", segments, positions, d_out, *inputs)
        want = run("xla", segments, positions, d_out, *(x.astype(jnp.float32) for x in inputs))
        for name, a, b in zip(("output", "dq", "dk", "dv"), got, want, strict=True):
            a, b = np.asarray(a, np.float32), np.where(real, np.asarray(b), 0)
            worst = np.abs(a - b).max() / np.abs(b).max()
            print(f"{heads} heads on {kv_heads}, width {width}, row {length}: {name} differs by {worst:.1e}")
            assert not a[~real[..., 0, 0]].any(), f"{name} of padding is not 0"
            assert worst < 0.02, f"{name} differs"
    return 0


if __name__ == "__main__":
    sys.exit(main())
