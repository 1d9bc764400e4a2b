"""Qwen3-4B without a cold start, on one node of eight H200. Not measured. See configs/qwen3_4b.py for what it needs.

  python -m metaagent_x.train --config=configs/qwen3_4b_zero.py

Starts from the published Qwen3-4B (a Hugging Face folder; its tokenizer and chat template are used). What the script
language is, the Designer reads in its prompt: nothing was trained on it. Early designs may be invalid more often, so
the gate only prints its table, and the run stops for too few valid designs at a lower mark.

Memory and limits are those of configs/qwen3_4b.py (`--dry_run` printed the same figures, 2026-11-30, not measured).
"""

from configs import qwen3_4b
from metaagent_x.config import Settings


def get_config() -> Settings:
    c = qwen3_4b.get_config()
    c.workdir = "runs/qwen3_4b_zero"
    c.model.path = "models/Qwen3-4B"
    c.tokenizer = c.model.path
    c.rollout.prompts = "full"  # the prompt documents the language
    c.gate.enforce = False
    c.gate.stop_valid = 0.2
    return c
