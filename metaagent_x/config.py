"""The one place where every setting has its name, its default (the paper's where it states one) and its check.

A config file in `configs/` calls `base()`, changes what it must and returns the result; flags and
`--config.x.y=value` change single fields. `validate` runs before any compute is spent.
"""

from __future__ import annotations

import ml_collections


class ConfigError(ValueError):
    """A setting that cannot work. The message names the field, its value and the way out. Exit code 2."""


def base() -> ml_collections.ConfigDict:
    """Returns all settings with their defaults."""
    c = ml_collections.ConfigDict()
    c.seed = 0
    c.workdir = "runs/default"
    c.steps = 400  # RL steps
    c.batch = 8  # tasks per step: half math, half code
    c.designs = 4  # M, designs per task
    c.executions = 4  # N, executions per design
    c.policy = "shared"  # "shared": one set of weights plays both roles; "separate": one each
    c.schedule = "stagewise"  # stagewise | coupled | designer_only | executor_only
    c.stage_length = 30  # K, steps per stage
    c.first = "executor"  # the role that learns in the first stage
    c.tokenizer = ""  # folder with tokenizer.json; "" = trained on the cold-start examples (generated tasks only)

    c.model = ml_collections.ConfigDict()
    c.model.path = ""  # Hugging Face folder with the starting weights; "" = random initialisation
    c.model.vocab_size = 151_936
    c.model.hidden_size = 2560
    c.model.num_layers = 36
    c.model.num_heads = 32
    c.model.num_kv_heads = 8
    c.model.head_dim = 128
    c.model.intermediate_size = 9728
    c.model.rope_theta = 1e6
    c.model.rms_norm_eps = 1e-6
    c.model.tie_embeddings = True
    c.model.compute_dtype = "bfloat16"  # master weights and Adam moments are float32 always
    c.model.attention = "xla"
    c.model.remat = "block"  # none | block | full

    c.mesh = ml_collections.ConfigDict()
    c.mesh.fsdp = 1
    c.mesh.tensor = 1

    c.data = ml_collections.ConfigDict()
    c.data.train = (("polaris", "", 0.5), ("apps", "", 0.25), ("code_contests", "", 0.25))  # (name, path, share)
    c.data.dev = ()  # generated: (name, share); used for the cold start and the gate
    c.data.test = ()  # held-out evaluation
    c.data.train_size = 0  # generated families: distinct training tasks of each kind
    c.data.dev_size = 0
    c.data.test_size = 0

    c.rollout = ml_collections.ConfigDict()
    c.rollout.temperature = 1.0
    c.rollout.top_p = 1.0
    c.rollout.top_k = -1
    c.rollout.min_p = 0.0
    c.rollout.repetition_penalty = 1.0
    c.rollout.max_prompt_tokens = 8192
    c.rollout.max_designer_tokens = 8192
    c.rollout.max_executor_tokens = 8192
    c.rollout.prompts = "full"  # "full": documented language; "tiny": the few-token prompts of configs/tiny.py
    c.rollout.concurrency = 256  # executions in flight
    c.rollout.forbid_answer_in_script = False
    c.rollout.budget = ml_collections.ConfigDict()
    c.rollout.budget.calls = 32
    c.rollout.budget.tokens = 131_072
    c.rollout.budget.depth = 6
    c.rollout.budget.tool_runs = 16
    c.rollout.budget.wall_s = 1200.0
    c.rollout.budget.cpu_s = 10.0
    c.rollout.budget.memory_mb = 512

    c.engine = ml_collections.ConfigDict()
    c.engine.kind = "jax"  # jax | vllm | scripted
    c.engine.slots = 64  # sequences decoded together
    c.engine.cache_tokens = 16_384  # prompt + completion of one sequence
    c.engine.chunk = 16  # decode steps between two looks at the queue

    c.reward = ml_collections.ConfigDict()
    c.reward.format_bonus = 0.4  # lambda
    c.reward.code = "fraction"  # fraction | all
    c.reward.call_cost = 0.0  # taken off the Designer's reward per agent call

    c.learner = ml_collections.ConfigDict()
    c.learner.learning_rate = 5e-6
    c.learner.warmup_steps = 0
    c.learner.b1 = 0.9
    c.learner.b2 = 0.999
    c.learner.weight_decay = 0.0
    c.learner.clip_norm = 1.0
    c.learner.row_tokens = 16_384  # length of a packed row
    c.learner.micro_rows = 1  # rows per device in one forward-backward
    c.learner.updates_per_step = 4
    c.learner.weigh = "trajectory"  # eq. 7 as written; "execution": each execution once
    c.learner.aggregate = "token_mean"  # token_mean | sequence_mean | group_mean | constant
    c.learner.constant_denominator = 0.0  # needed by aggregate="constant"
    c.learner.ratio = "token"  # token | sequence | sequence_geometric
    c.learner.clip_low = 0.2
    c.learner.clip_high = 0.2
    c.learner.dual_clip = 0.0  # 0 = off; the reference uses 3.0
    c.learner.kl = 0.0  # 0: no reference model exists
    c.learner.truncated = "train"  # train | mask
    c.learner.flat_groups = "keep"  # keep | top_up: sample more tasks when a whole batch carries no signal
    c.learner.correction_cap = 2.0  # min(exp(learner - engine), cap) weighs each token

    c.sft = ml_collections.ConfigDict()
    c.sft.learning_rate = 3e-3
    c.sft.row_tokens = 256
    c.sft.rows = 6
    c.sft.max_steps = 0  # 0: no cold start
    c.sft.eval_every = 250
    c.sft.vocab_size = 512

    c.gate = ml_collections.ConfigDict()  # RL starts only inside these
    c.gate.low = 0.30
    c.gate.high = 0.70
    c.gate.valid = 0.90
    c.gate.spread = 0.10
    c.gate.stop_valid = 0.70  # RL stops below this share of valid designs (mean of 4 steps)

    c.eval = ml_collections.ConfigDict()
    c.eval.tasks = 512  # held-out tasks before and after
    c.eval.stage_tasks = 128  # at stage boundaries
    c.eval.cross = True  # cross table: cold or RL Designer x cold or RL Executor

    c.checkpoint = ml_collections.ConfigDict()
    c.checkpoint.every = 10
    c.checkpoint.keep = 2
    return c
