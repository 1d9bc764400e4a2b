"""Qwen3-4B, the paper's main setting, on one node of eight H200. Not measured.

  python -m metaagent_x.train --config=configs/qwen3_4b.py

Needs vLLM (`launch/setup_vllm.sh cuda`), a cold-started Qwen3-4B as a Hugging Face folder (`--config.model.path=...`)
and the training sets in `data/`:

  python -m metaagent_x.tasks.datasets fetch polaris apps code_contests --to data

Trains on Polaris (half of every batch), introductory APPS and CodeContests. 2 % of each are held out: on up to 512 of
them the policy is measured before RL, and on 128 at every stage boundary. Benchmarks are for `data.test`, at the end.

All eight GPUs train and all eight generate: one vLLM server on each, beside the learner (`engine.layout`, see
docs/engines.md). `--dry_run` compiles the learner's step for the machine and tells whether it fits. On 2026-11-30 it
printed (dry run, not measured; temporaries are an estimate from a CPU compile; GB of a device, rows of 16,384 tokens,
one row a device):

  policy     weights  moments  other policy  start  gradients  saved  temporaries  learner  vLLM  margin   free
  shared        2.01     4.02             -   2.01       2.01   7.93         8.81    26.79  70.5    7.05  36.66
  separate      2.01     4.02          6.04   2.01       2.01   7.93         8.81    32.83  70.5    7.05  30.62

A micro-batch of 131,072 tokens: 784 TFLOP and 21 GB sent by each device, log-prob pass 213 TFLOP and 7 GB. Updates on
2^20 tokens take at least 6.35 s (165,000 tokens/s, MFU 81 %), their log-probs 1.73 s.

Budget of a step that samples and trains 2^20 tokens, by its limits, not measured (shared / separate): rollout 37.3 /
43.0 s (28,100 / 24,400 tokens/s, mean context 8,192), graded meanwhile; train 8.1 s; push 0.16 / 0.33 s; together
45.5 / 51.4 s.
"""

from metaagent_x.config import Settings, base


def get_config() -> Settings:
    c = base()
    c.workdir = "runs/qwen3_4b"
    c.model.path = "models/qwen3-4b-cold-start"
    c.tokenizer = "models/qwen3-4b-cold-start"
    c.engine.kind = "vllm"
    c.engine.servers = 0  # one on each GPU
    c.mesh.fsdp = 8
    c.data.hold_out = 0.02
    c.data.dev_size = 512
    return c
