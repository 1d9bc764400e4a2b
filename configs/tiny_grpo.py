"""Single-agent GRPO on the tasks of configs/tiny.py: one role, one agent, the same trainer. Not measured.

  python -m metaagent_x.train --config=configs/tiny_grpo.py

The group of a task is its M x N = 1 x 16 executions of one fixed design.
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
    c.steps = 1000  # the limit is c.tokens
    c.tokens = 600_000
    return c
