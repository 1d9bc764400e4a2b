"""The published MetaAgent-X checkpoint (Qwen3-8B) under its own protocol, with our graders. Not measured.

  python -m metaagent_x.evaluate --config=configs/eval_published_8b.py --model=FOLDER

FOLDER is the checkpoint from the Hugging Face hub, `Mercury7353/MetaAgent-X` (Apache-2.0). Needs vLLM
(`launch/setup_vllm.sh cuda`), a GPU of 80 GB, and the benchmarks in `data/` (see configs/eval.py).

Its Designer gets one line of a role (in our words: `mas/prompts.py`, PUBLISHED) and "Design Multi Agent System for the
Question: " before the task; the API that its scripts use (`from workflow import ...`) was learned and is not described.
Scripts of that form run as they are (`mas/dialects/`), in the sandbox; the task is given by us, whatever the script
re-types. Sampling as in the reference code's evaluation: greedy, with a repetition penalty of 1.2 for both roles;
prompts of up to 8,192 tokens, replies of up to 4,096. It states no limit of calls, only 1,200 s for a script: both hold
here, with 64 calls.

What differs on purpose: the grader. The reference accepts numbers within 0.5 % and samples at most 50 tests of a
program; here equal means equal and every test must pass, so some published figures are harder to reach.
"""

from configs import eval as evaluation
from metaagent_x.config import Settings


def get_config() -> Settings:
    c = evaluation.get_config()
    c.engine.kind = "vllm"
    c.engine.memory_share = 0.4  # 16 GB of weights besides the key-value cache; the learner's copy takes 33 GB
    c.engine.cache_tokens = 12_288
    c.rollout.prompts = "published"
    c.rollout.max_prompt_tokens = 8192
    c.rollout.max_designer_tokens = 4096
    c.rollout.max_executor_tokens = 4096
    c.rollout.budget.calls = 64
    c.evaluate.methods = ("metaagent_x", "single")
    c.evaluate.temperature = 0.0
    c.evaluate.repetition_penalty = 1.2
    return c
