"""Single-agent GRPO from Qwen3-4B, on one node of eight H200: the baseline of configs/qwen3_4b.py. Not measured.

  python -m metaagent_x.train --config=configs/qwen3_4b_grpo.py
  python -m metaagent_x.train --config=configs/qwen3_4b_grpo.py --steps=10000 --tokens=TOKENS   # as many as another run

One role and no Designer: every task gets the design below, and the group of a task is its M x N = 1 x 16 executions
(the paper does not say how many it takes). Tasks, learner and engine are those of configs/qwen3_4b.py, which also says
what is needed; only the start differs, the published Qwen3-4B. For the cold start of that file:
`--config.model.path=models/qwen3-4b-cold-start`. The gate prints where one agent stands and stops nothing.

Memory and limits are those of configs/qwen3_4b.py, except that the longest chain of a step is one completion.
"""

from configs import qwen3_4b
from metaagent_x.config import Settings


def get_config() -> Settings:
    c = qwen3_4b.get_config()
    c.workdir = "runs/qwen3_4b_grpo"
    c.model.path = "models/Qwen3-4B"
    c.tokenizer = c.model.path
    c.rollout.design = "answer = solver()(task)"
    c.schedule = "executor_only"
    c.designs = 1
    c.executions = 16
    c.gate.enforce = False
    return c
