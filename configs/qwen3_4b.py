"""Qwen3-4B, the paper's main setting, on one node of eight H200. Not measured.

  python -m metaagent_x.train --config=configs/qwen3_4b.py

Needs a cold-started Qwen3-4B as a Hugging Face folder (`--config.model.path=...`) and the training sets in `data/`:

  python -m metaagent_x.tasks.datasets fetch polaris apps code_contests --to data

Trains on Polaris (half of every batch), introductory APPS and CodeContests. 2 % of each are held out: on up to 512 of
them the policy is measured before RL, and on 128 at every stage boundary. Benchmarks are for `data.test`, at the end.

This version has no vLLM engine yet: the command checks the settings and says so.
"""

from metaagent_x.config import Settings, base


def get_config() -> Settings:
    c = base()
    c.workdir = "runs/qwen3_4b"
    c.model.path = "models/qwen3-4b-cold-start"
    c.tokenizer = "models/qwen3-4b-cold-start"
    c.engine.kind = "vllm"
    c.mesh.fsdp = 8
    c.data.hold_out = 0.02
    c.data.dev_size = 512
    return c
