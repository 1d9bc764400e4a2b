"""Qwen3-4B, the paper's main setting, on one node of eight H200. Not measured.

  python -m metaagent_x.train --config=configs/qwen3_4b.py

Needs a cold-started Qwen3-4B as a Hugging Face folder (`--config.model.path=...`) and the datasets as local files
(`--config.data.train=...`). This version has neither the reader of Hugging Face weights nor the vLLM engine yet: the
command checks the settings and says what is missing.
"""

from metaagent_x.config import Settings, base


def get_config() -> Settings:
    c = base()
    c.workdir = "runs/qwen3_4b"
    c.model.path = "models/qwen3-4b-cold-start"
    c.tokenizer = "models/qwen3-4b-cold-start"
    c.mesh.fsdp = 8
    c.data.train = (("polaris", "data/polaris", 0.5), ("apps", "data/apps", 0.25), ("code_contests", "data/code_contests", 0.25))  # fmt: skip  # noqa: E501
    return c
