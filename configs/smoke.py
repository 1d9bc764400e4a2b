"""Every station of a run in under three minutes: is it wired up? No claim that anything is learned.

python -m metaagent_x.train --config=configs/smoke.py
"""

from configs import tiny
from metaagent_x.config import Settings


def get_config() -> Settings:
    c = tiny.get_config()
    c.workdir = "runs/smoke"
    c.steps = 4
    c.stage_length = 2
    c.batch = 2
    c.designs = 2
    c.executions = 2
    c.model.hidden_size = 96
    c.model.num_layers = 2
    c.model.intermediate_size = 128
    c.data.train_size = 200
    c.data.dev_size = 32
    c.data.test_size = 32
    c.eval.tasks = 32
    c.eval.stage_tasks = 16
    c.gate.enforce = False
    c.gate.tasks = 8
    c.gate.stop_valid = 0.0
    c.guard.repetition.action = "warn"  # so little of a cold start may well repeat itself
    c.sft.eval_every = 100
    c.sft.eval_tasks = 16
    c.sft.target = 0.0
    c.sft.valid = 0.0
    c.checkpoint.every = 2
    return c
