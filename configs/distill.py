"""3,000 Designer and 8,000 Executor examples for the cold start of a larger policy. Not measured.

  OPENAI_API_KEY=... python -m metaagent_x.distill --config=configs/distill.py \\
    --config.teacher.url=https://HOST/v1 --config.teacher.model=NAME --config.tokenizer=FOLDER

Needs an endpoint of OpenAI's protocol, the training sets and the benchmarks in `data/`, and the student's tokenizer
(a folder with tokenizer.json), by which prompts are cut:

  python -m metaagent_x.tasks.datasets fetch polaris apps code_contests --to data
  python -m metaagent_x.tasks.datasets fetch aime24 aime25 olympiadbench livecodebench --to data

To know beforehand what it costs, give prices and a small budget: the summary says what an example cost.

  --config.teacher.prompt_price=0.28 --config.teacher.completion_price=0.42 --config.distill.budget=2

The paper distilled from DeepSeek-V3.2, two or three random templates shown, right answers only.
"""

from metaagent_x.config import Settings, base


def get_config() -> Settings:
    c = base("teacher", "distill")
    c.workdir = "runs/distill"
    c.steps = 0
    c.sft.max_steps = 0
    c.rollout.max_prompt_tokens = 16_384  # a student reads shorter ones: templates and other agents' texts come on top
    c.rollout.max_designer_tokens = 4096
    c.rollout.forbid_answer_in_script = True  # a strong teacher may solve the task while it designs
    c.learner.row_tokens = 32_768
    c.engine.cache_tokens = 32_768

    c.distill.quotas.dataset = (
        ("polaris", 0.5), ("apps:difficulty=introductory", 0.3), ("code_contests", 0.3),
    )  # fmt: skip
    # A teacher likes ensembles; the student should see every structure work.
    c.distill.quotas.structure = (
        ("single", 0.3), ("ensemble", 0.4), ("reflection", 0.3), ("solver-tester", 0.3), ("debate", 0.2),
        ("other", 0.1),
    )  # fmt: skip
    # Polaris says how many of 8 trials a 7B model got right; what it always gets right teaches little.
    c.distill.quotas.difficulty = (("8/8", 0.02), ("7/8", 0.1))
    c.distill.benchmarks = (
        ("aime24", ""), ("aime25", ""), ("olympiadbench", ""), ("livecodebench:release=v6", ""),
        ("apps:split=test", ""), ("code_contests:split=test", ""),
    )  # fmt: skip
    return c
