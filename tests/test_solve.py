"""The command: what it shows, keeps and returns."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from chat_endpoint import ChatEndpoint

from metaagent_x.rollout import traces
from metaagent_x.rollout.chat import train_bpe

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_question_is_solved_shown_and_kept(tmp_path):
    train_bpe(["What is 3 + 4?"] * 5, 300, str(tmp_path / "tokenizer"))

    def run(*more, given=None):
        flags = [f"--model={endpoint.url}", "--config.engine.model=m", f"--config.tokenizer={tmp_path / 'tokenizer'}"]
        return subprocess.run(
            [sys.executable, "-m", "metaagent_x.solve", *flags, "--config.rollout.max_prompt_tokens=8000", *more],
            cwd=ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu"}, input=given, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

    with ChatEndpoint() as endpoint:
        done = run("What is 3 + 4?", f"--save={tmp_path / 'kept'}")
        assert done.returncode == 0, done.stdout + done.stderr
        for mark in ("math task (guessed", "lint: nothing to say", "solver 0.0", "\\boxed{7}", "wins", "4 calls"):
            assert mark in done.stdout, done.stdout
        kept = json.loads((tmp_path / "kept" / "solution.json").read_text())
        assert (kept["answer"], kept["structure"], len(kept["calls"]), kept["lint"]) == (
            "\\boxed{7}",
            "ensemble",
            4,
            [],
        )
        rows = traces.read(tmp_path / "kept" / "traces" / "step_000000.parquet")
        assert [row["role"] for row in rows] == ["designer"] + ["executor"] * 3
        asked = endpoint.asked
        again = run("What is 3 + 4?", f"--save={tmp_path / 'kept'}")
        assert again.returncode == 2 and "holds another answer" in again.stdout and endpoint.asked == asked
        read = run("--file=-", "--design=answer = solver()(task)", given="What is 5 + 1?")
        assert read.returncode == 0 and "\\boxed{6}" in read.stdout and endpoint.asked == asked + 1
    broken = run("What is 3 + 4?", "--config.engine.request_timeout_s=0.2")
    assert broken.returncode == 1 and "void" in broken.stdout
