"""Evaluation of a policy on benchmarks, beside the systems that it is compared with. Not measured at 4B or 8B.

  python -m metaagent_x.evaluate --config=configs/eval.py --model=MODEL

MODEL is a run folder, a Hugging Face folder (add `--engine=vllm` where it is large) or the URL of a chat endpoint.
Needs the benchmarks in `data/`:

  python -m metaagent_x.tasks.datasets fetch aime24 aime25 olympiadbench apps livecodebench code_contests --to data

The paper's protocol: no thinking, greedy, the AIMEs three times and the others once, all tests of a program must pass.
On the built-in engine three greedy runs are copies of each other; on a vLLM server they differ by the company in which
a request is computed. `--temperature=0.7 --samples=16` adds pass@k and majority@k. A quick look at a run on a laptop:

  python -m metaagent_x.evaluate --config=configs/eval.py --model=runs/tiny --benchmarks=tiny_math,tiny_code --limit=64
"""

from metaagent_x.config import Settings, base


def get_config() -> Settings:
    c = base("evaluate")
    c.workdir = ""  # runs/evaluations/NAME-OF-THE-MODEL
    c.evaluate.methods = ("metaagent_x", "single", "single_majority:like=metaagent_x")
    c.evaluate.benchmarks = (
        ("aime24", ""),
        ("aime25", ""),
        ("olympiadbench", ""),
        ("apps", ""),
        ("livecodebench:release=v6", ""),
        ("code_contests", ""),
    )
    return c
