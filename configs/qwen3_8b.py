"""Qwen3-8B on one node of eight H200. Not measured. See configs/qwen3_4b.py for what it needs.

python -m metaagent_x.train --config=configs/qwen3_8b.py
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
