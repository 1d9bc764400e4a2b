"""Single-agent GRPO from Qwen3-4B on one node of eight H200. Not measured."""

from configs import qwen3_4b
from metaagent_x.config import Settings


def get_config() -> Settings:
    c = qwen3_4b.get_config()
    c.workdir = "runs/qwen3_4b_grpo"
    c.rollout.design = "answer = solver()(task)"
    c.schedule = "executor_only"
    c.designs = 1
    c.executions = 16
    return c
