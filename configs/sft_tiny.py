"""Cold start of the network of `configs/tiny.py` on distilled examples, from random weights.

  python -m metaagent_x.sft --config=configs/sft_tiny.py --config.examples.files="('designer.jsonl','executor.jsonl')"
  python -m metaagent_x.train --config=configs/tiny.py --config.model.path=runs/sft_tiny/hf --config.sft.max_steps=0

The tokenizer is trained on the examples, as the cold start of `configs/tiny.py` trains one on those that it generates.
"""

from configs import tiny
from metaagent_x.config import GROUPS, Settings


def get_config() -> Settings:
    c = tiny.get_config()
    c.workdir = "runs/sft_tiny"

    c.examples = GROUPS["examples"]()
    c.examples.files = ("runs/distill_tiny/designer.jsonl", "runs/distill_tiny/executor.jsonl")
    c.examples.epochs = 1
    # By tokens the Designer has 5 % of the text of a cold start; its script is one of eight lines and soon learned.
    c.examples.designer = 0.1

    c.checkpoint.every = 100
    return c
