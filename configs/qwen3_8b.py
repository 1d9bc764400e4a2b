"""Qwen3-8B on one node of eight H200. Not measured. See configs/qwen3_4b.py for what it needs.

  python -m metaagent_x.train --config=configs/qwen3_8b.py

What `--dry_run` printed on 2026-11-30 (dry run, not measured; columns as in configs/qwen3_4b.py):

  policy     weights  moments  other policy  start  gradients  saved  temporaries  learner  vLLM  margin   free
  shared        4.10     8.19             -   4.10       4.10   9.74        10.04    40.26  70.5    7.05  23.19
  separate      4.10     8.19         12.29   4.10       4.10   9.74        10.04    52.55  70.5    7.05  10.90

A micro-batch of 131,072 tokens: 1,218 TFLOP and 40 GB sent by each device, log-prob pass 330 TFLOP and 13 GB. Updates
on 2^20 tokens take at least 9.88 s (106,000 tokens/s, MFU 80 %), their log-probs 2.67 s.

Budget of a step that samples and trains 2^20 tokens, by its limits, not measured (shared / separate): rollout 55.8 /
60.5 s (24,700 / 17,300 tokens/s, mean context 8,192), graded meanwhile; train 12.6 s; push 0.34 / 0.67 s; together
68.7 / 73.8 s.
"""

from configs import qwen3_4b
from metaagent_x.config import Settings


def get_config() -> Settings:
    c = qwen3_4b.get_config()
    c.workdir = "runs/qwen3_8b"
    c.model.path = "models/qwen3-8b-cold-start"
    c.tokenizer = c.model.path
    c.model.hidden_size = 4096
    c.model.num_layers = 36
    c.model.intermediate_size = 12_288
    c.model.tie_embeddings = False
    return c
