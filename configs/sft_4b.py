"""Cold start of Qwen3-4B by supervised fine-tuning on distilled examples, on one node of eight H200. Not measured.

  python -m metaagent_x.sft --config=configs/sft_4b.py
  python -m metaagent_x.train --config=configs/qwen3_4b.py --config.model.path=runs/sft_4b/hf

Needs Qwen3-4B as a Hugging Face folder and the two files of `distill.py`: 3,000 Designer and 8,000 Executor examples in
the paper. `--dry_run` says (2026-12-01, not measured) that an update holds 24.8 GB of a device and takes at least
0.80 s (131,072 positions at 165,000 tokens/s, MFU 80 %).

The paper does not publish how it trained. The reasons for what stands below:

- All weights, not adapters: RL goes on with all of them.
- Learning rate 1e-5, AdamW (0.9, 0.95): the usual range for all weights of a model of this size that is instructed
  already is 5e-6 to 2e-5 (Tulu 3 8B: 5e-6; LIMA: 1e-5; Alpaca 7B: 2e-5). b2 = 0.95 since there are only a few hundred
  updates: 0.999 would average over more than that.
- 3 epochs: 11,000 examples are few, and the language of the Designer is new to the model. From the third epoch on small
  sets are learned by heart: watch `held_out/loss/designer`. Checkpoints stay at every 100 updates, so that an earlier
  one can be exported, and RL wants a policy that still varies.
- 8 rows of 16,384 tokens in an update, one a GPU: the row length of RL, so that no example that RL could sample is
  dropped. With conversations of about 1,000 tokens these are some 120 examples; Alpaca and Tulu 3 use 128.
- Warm-up over 20 updates and a cosine to 0: the moments are unknown at the start, and the last weights are exported as
  they are, without an average, so they must have come to rest.
- Weight decay 0: so few steps at 1e-5 could not pull the weights anywhere (0.1 x 1e-5 x 300 is 0.03 %).
- Clip at norm 1: one odd example must not turn an update.
- Designer share 0.3: that of its examples (3 of 11). By tokens it would be about a tenth, since scripts are short
  beside solutions; but a script that does not parse is worth nothing, while the Executor mostly does what the model
  can do already. Weights, not copies: each example is seen equally often.
- 4 % of the tasks held out. Those that `data.hold_out = 0.02` holds out of RL are among them, and not the only ones:
  the examples may have been distilled without RL's.
"""

from metaagent_x.config import Settings, base


def get_config() -> Settings:
    c = base("examples")
    c.workdir = "runs/sft_4b"
    c.model.path = "models/Qwen3-4B"
    c.mesh.fsdp = 8

    c.examples.files = ("runs/distill/designer.jsonl", "runs/distill/executor.jsonl")
    c.examples.epochs = 3
    c.examples.designer = 0.3
    c.examples.hold_out = 0.04

    c.sft.learning_rate = 1e-5
    c.sft.warmup_steps = 20
    c.sft.b2 = 0.95
    c.sft.weight_decay = 0.0
    c.sft.rows = 8
    c.sft.row_tokens = 16_384
    c.sft.micro_rows = 1
    c.sft.eval_every = 25

    c.checkpoint.every = 50
    c.checkpoint.keep_every = 100
    return c
