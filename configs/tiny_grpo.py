"""Single-agent GRPO on the tasks of configs/tiny.py: one role, one agent, the same trainer and the same cold start.

  python -m metaagent_x.train --config=configs/tiny_grpo.py
  python -m metaagent_x.report runs/tiny --beside runs/tiny_grpo

No Designer is asked: every task gets the design below, and the group of a task is its M x N = 1 x 16 executions. The
run ends when it has sampled as many tokens as a run of configs/tiny.py with seed 0; for another run, `--tokens` (the
report of that run says how many). Needs what configs/tiny.py needs.

Expect (1 run, seed 0, 512 held-out tasks, T=1): accuracy 0.41 after the cold start, 0.90 after 139 steps of about 2,400
tokens; configs/tiny.py reached 0.83 with as many tokens. A step takes 2 to 3 seconds.
"""

from configs import tiny
from metaagent_x.config import Settings


def get_config() -> Settings:
    c = tiny.get_config()
    c.workdir = "runs/tiny_grpo"
    c.rollout.design = "answer = solver()(task)"
    c.schedule = "executor_only"
    c.designs = 1
    c.executions = 16
    c.steps = 1000  # never reached: the tokens end it
    c.tokens = 327_088  # of 64 steps of configs/tiny.py, seed 0
    c.stage_length = 16
    c.gate.low = 0.15  # the cold start aims at what a Designer's choices score; one agent without them scores less
    return c
