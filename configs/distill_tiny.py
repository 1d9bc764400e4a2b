"""A tiny policy as its own teacher: examples of both roles on generated tasks, on a CPU.

  python -m metaagent_x.serve --config=configs/tiny.py &                 # the cold start of configs/tiny.py
  python -m metaagent_x.distill --config=configs/distill_tiny.py

The teacher is asked with the student's own prompts: it has never seen a template. What it says wrong is left out, so
the examples are better than it is.

Expect (one run): 770 Designer examples and 3,200 of agents, nine in ten of math, from 1,950 tasks of which 92 % were
solved; 4,121 of 7,800 attempts right; 25,373 requests, 1.04 M tokens; five minutes on two cores. A student that learns
them from random weights (`configs/sft_tiny.py`) passes the headroom gate of `configs/tiny.py`.
"""

from configs import tiny
from metaagent_x.config import Settings, base


def get_config() -> Settings:
    t = tiny.get_config()
    c = base("teacher", "distill")
    c.workdir = "runs/distill_tiny"
    c.steps = 0
    c.rollout = t.rollout
    c.rollout.max_prompt_tokens = 1024  # here in bytes: without a tokenizer of its own a job counts bytes
    c.sft.max_steps = 0

    c.teacher.url = "http://127.0.0.1:8123/v1"
    c.teacher.model = "policy"
    c.teacher.concurrency = 64  # as many as the engine decodes together

    c.data.train = (("tiny_math", "", 0.75), ("tiny_code", "", 0.25))
    c.data.train_size = 6000

    c.distill.designers = 800
    c.distill.executors = 3200
    c.distill.attempts = 4
    c.distill.templates = (0, 0)
    # Right answers only make a student that is better at code than its teacher: more of it would leave RL no room.
    c.distill.quotas.dataset = (("tiny_math", 0.9), ("tiny_code", 0.1))
    # Few easy tasks are different ones, and each of them is asked; of the hard ones no more than that.
    c.distill.quotas.difficulty = (("3", 0.25), ("4", 0.325), ("5", 0.325), ("1", 0.045), ("2", 0.055))
    c.distill.same_script = 0.125  # eight structures
    c.distill.per_task = 8
    c.distill.near = 1.0  # all generated tasks read alike
    c.distill.reasoning_chars = 0
    return c
