"""The training loop on real rows of Polaris, APPS and CodeContests with the real Qwen3 tokenizer and template.

  python -m metaagent_x.train --config=configs/real_rows.py

Needs 8 GB and about two minutes on 2 cores; `tokenizer` and `data.train` below name the files.

One Executor and one Designer step, M = N = 4, on 8 simulated devices, with a small random Qwen3 of the full vocabulary.
A random policy cannot write a design: the samples are rehearsed (gold-derived right and wrong completions, an invalid
design, a crash, a void execution), graded by the real tests, and learned from with the learner's own log-probs. The
tests of CodeContests give programs an input to read; those of APPS, in the hub's own form, call a function.
"""

from metaagent_x.config import Settings, base


def get_config() -> Settings:
    c = base()
    c.workdir = "runs/real_rows"
    c.steps = 2
    c.stage_length = 1
    c.batch = 4
    c.tokenizer = "../shared/tokenizer_qwen3"
    c.data.train = (
        ("polaris", "../shared/data/polaris/train.jsonl", 0.5),
        ("apps", "../shared/data/apps", 0.25),
        ("code_contests", "../shared/data/code_contests/train_with_solutions.jsonl", 0.25),
    )
    c.mesh.fsdp = 8
    c.mesh.simulate = 8

    c.model.hidden_size = 32
    c.model.num_layers = 2
    c.model.num_heads = 2
    c.model.num_kv_heads = 1
    c.model.head_dim = 16
    c.model.intermediate_size = 64
    c.model.compute_dtype = "float32"

    c.engine.kind = "scripted"
    c.rollout.max_prompt_tokens = 1536
    c.rollout.max_designer_tokens = 256
    c.rollout.max_executor_tokens = 1024
    c.engine.cache_tokens = 2560
    c.learner.row_tokens = 2560
    c.learner.correction_cap = 0.0  # a script has no log-probs of its own: no correction, and no match
    c.guard.mismatch.action = c.guard.mismatch_max.action = "off"
    c.learner.updates_per_step = 1
    c.eval.cross = False
    c.checkpoint.every = 1
    return c
