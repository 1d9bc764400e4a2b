"""Seeds of single requests: a pure function of what is asked, never of when."""

from __future__ import annotations

import hashlib


def call_seed(run_seed: int, step: int, task_id: str, design: int, execution: int, path: str) -> int:
    """The seed of one request, in [0, 2**31).

    Depends on nothing but its arguments, so that a repeated or resumed run, another arrival order and another number
    of processes draw the same samples, and no two requests of a group are clones (vllm-project/vllm#10852).

    Args:
      run_seed: seed of the run. step: training step. task_id: id of the task. design, execution: indices within the
        task (execution -1: the Designer's own call). path: call path within the execution ("" for the Designer).
    """
    # repr of a tuple keeps the parts apart: ("a", 1) and ("a1",) differ.
    parts = repr((int(run_seed), int(step), str(task_id), int(design), int(execution), str(path)))
    return int.from_bytes(hashlib.blake2b(parts.encode(), digest_size=4).digest(), "big") >> 1
