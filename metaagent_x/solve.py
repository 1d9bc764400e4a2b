"""Solves one question and shows how: the design, each agent's turn as it comes, and the answer.

  python -m metaagent_x.solve "What is the sum of the first 100 odd numbers?" --model=runs/tiny
  python -m metaagent_x.solve --file=question.txt --kind=code --model=models/qwen3-4b --engine=vllm --save=solved
  python -m metaagent_x.solve "..." --model=http://127.0.0.1:8000/v1 --config.engine.model=NAME \\
      --config.tokenizer=FOLDER

`--model` as in `evaluate.py`. `--file=-` reads standard input. `--save` keeps the whole tree: solution.json, and the
trace (`traces/`) for the viewer. Nothing is graded: nobody knows the answer.

Exit codes: 0 done, 2 bad input, 3 interrupted, 1 anything else, a question left without an answer among them.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import sys
import time
from pathlib import Path

from absl import app, flags
from ml_collections import config_flags

from metaagent_x import accelerators, assemble, config, mas, policies
from metaagent_x.baselines.method import Means
from metaagent_x.command import console, ending, override, say
from metaagent_x.evaluation import job
from metaagent_x.evaluation.rows import tree_of
from metaagent_x.interruption import to_the_end
from metaagent_x.live import Live, guess_kind, question
from metaagent_x.mas.records import Execution
from metaagent_x.rollout import traces
from metaagent_x.rollout.engine import EngineRefused
from metaagent_x.tasks.task import Kind, Task

SLOTS = 4  # of the built-in engine with a folder of weights: one question asks for few at a time
SAVED = "solution.json"

_CONFIG = config_flags.DEFINE_config_file("config", "configs/eval.py", "Settings: a file of configs/.")
_FILE = flags.DEFINE_string("file", None, "Read the question from this file; -: from standard input.")
_KIND = flags.DEFINE_enum("kind", None, ("math", "code"), "What the question asks for; guessed from its words.")
_SAVE = flags.DEFINE_string("save", None, "Folder for the tree of this answer.")
_OVERRIDES = {
    "evaluate.model": flags.DEFINE_string("model", None, "A run folder, a Hugging Face folder, or a URL."),
    "evaluate.step": flags.DEFINE_integer("step", None, "Checkpoint of a run folder; the newest by default."),
    "evaluate.temperature": flags.DEFINE_float("temperature", None, "0: greedy."),
    "engine.kind": flags.DEFINE_enum("engine", None, config.CHOICES["engine.kind"], "What samples the tokens."),
    "rollout.design": flags.DEFINE_string("design", None, "Run this script instead of asking the Designer."),
    "sandbox": flags.DEFINE_enum("sandbox", None, config.CHOICES["sandbox"], "How scripts and programs are contained."),
    "seed": flags.DEFINE_integer("seed", None, "Seed of the samples."),
}


def main(argv: list[str]) -> None:
    c = _CONFIG.value
    with ending(c, EngineRefused) as interruption:
        text = question(argv[1:], _FILE.value)
        kind: Kind = "code" if (_KIND.value or guess_kind(text)) == "code" else "math"
        task = Task(f"solve/{hashlib.sha256(text.encode()).hexdigest()[:8]}", kind, text)
        override(c, _OVERRIDES)
        policy = policies.adopt(c, _OVERRIDES["engine.kind"].value)
        if policy.kind == "folder" and c.engine.slots == config.base().engine.slots:
            c.engine.slots = SLOTS
        c.workdir = _SAVE.value or "runs/solve"
        folder = Path(c.workdir)
        if _SAVE.value and (folder / SAVED).exists():
            raise config.ConfigError(f"--save={folder} holds another answer; choose another folder")
        if c.rollout.design:  # as the settings of training want it
            c.schedule, c.designs = "executor_only", 1
        config.validate(c)
        accelerators.prepare(c)
        assemble.check_vocabulary(c, assemble.model_config(c))
        say(f"{kind} task{'' if _KIND.value else ' (guessed; --kind says it)'}, {job.header(c, str(policy))}")
        assemble.contain(c)
        execution = interruption.run(solve(c, policy, task, folder))
        if _SAVE.value:
            save(folder, task, execution)
            say(f"saved: {folder / SAVED}, and its trace; to look at it: python -m metaagent_x.view {folder}")
        sys.exit(0 if execution.answer.strip() else 1)


async def solve(c: config.Settings, policy: policies.Policy, task: Task, folder: Path) -> Execution:
    """Plays one design of one task and shows it."""
    engines = await policies.engines(c, policy, folder)
    view, began = Live(console), time.perf_counter()
    try:
        player = Means(engines, job.sampled(c), watch=view.watch).player(design=c.rollout.design)
        design = await player.design(task, 0)
        view.design(design)
        status = "void" if design.void else "invalid"
        execution = await player.execute(task, design, 0, 0) if design.valid else Execution(status=status)
        execution.designer, execution.script = design.call, design.script or ""
        execution.reason = execution.reason or design.problem
        view.end(execution, task.kind, time.perf_counter() - began)
        if player.defect:
            raise player.defect
        return execution
    finally:
        for engine in {id(one): one for one in engines.values()}.values():
            await to_the_end(engine.close())


def save(folder: Path, task: Task, execution: Execution) -> None:
    """Writes the tree of an answer: all of it as JSON but token ids and log-probs, which stand in the trace."""
    folder.mkdir(parents=True, exist_ok=True)
    tree = tree_of(execution, task)
    traces.write(folder / "traces", [tree], [], run=folder.name, step=0)
    problems = [dataclasses.asdict(p) for p in mas.lint(mas.Script.of(execution.script))] if execution.script else []
    left_out = ("prompt_ids", "completion_ids", "logprobs")
    calls = [dataclasses.asdict(call) for call in tree.calls()]
    record = {
        "question": task.prompt, "kind": task.kind, "script": execution.script, "lint": problems,
        "answer": execution.answer, "status": execution.status, "reason": execution.reason,
        "structure": execution.structure, "flags": sorted(execution.flags), "links": execution.links,
        "calls": [{k: v for k, v in call.items() if k not in left_out} for call in calls],
        "tools": [dataclasses.asdict(tool) for tool in execution.tools],
    }  # fmt: skip
    (folder / SAVED).write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    app.run(main, flags_parser=functools.partial(config.parse_flags, positional=1))
