"""What evaluation adds to the engine's own time: 64 tasks in flight, real rows, a scripted engine with delays.

  python -m benchmarks.evaluate ../shared/data ../shared/tokenizer_qwen3            # prints a table
  python -m benchmarks.evaluate ../shared/data ../shared/tokenizer_qwen3 --append   # and adds it to RESULTS.md

The named alternative is the engine itself: the very calls that the evaluation made, each task's in the same order and
side by side where they were so, the same 64 tasks in flight, and nothing else: no script process, no sandbox, no
prompt, no grading, no file. A call takes 2 to 10 s, by its seed, as one of a 4B model on a shared GPU does; replies are
right or wrong by the parity of the seed, about 250 tokens with the reasoning. Designs rotate among four structures.

Two figures: the time of all, which one long task at the end can shift by seconds on either side, and the mean time of
one task from its first request to its answer (in the evaluation: from before the design is asked for, to grading).
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import datetime
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from metaagent_x import config, sandbox
from metaagent_x.evaluation import job
from metaagent_x.evaluation.benchmarks import Benchmark, open_benchmark
from metaagent_x.evaluation.journal import Journal
from metaagent_x.evaluation.play import play, units
from metaagent_x.mas.records import CallRequest
from metaagent_x.rollout.chat import Chat
from metaagent_x.rollout.engine import Completion, Sampling
from metaagent_x.rollout.rehearsal import PLANS, right_answer, wrong_answer
from metaagent_x.rollout.scripted import ScriptedEngine
from metaagent_x.tasks.grader import Grader

SETS = {
    "aime24": ("aime24/test.jsonl", 20), "aime25": ("aime25/test.jsonl", 20),
    "olympiadbench": ("olympiadbench/OE_TO_maths_en_COMP.jsonl", 120),
    "apps": ("apps/test_selected150_hf_schema.jsonl", 80), "code_contests": ("code_contests/test.jsonl", 80),
}  # fmt: skip
IN_FLIGHT = 64
DELAY_S = (2.0, 10.0)
LONGEST = 4000  # characters of an answer
REASONING = "We look at the cases one after another and keep what the earlier ones have shown. " * 14


def delay_of(seed: int) -> float:
    low, high = DELAY_S
    return low + (high - low) * (seed % 10_007) / 10_007


class Delayed:
    """A scripted engine that takes its time, and writes down when each call of each task began and ended."""

    def __init__(self, sets: list[Benchmark], chat: Chat) -> None:
        self.pairs = {task.prompt: (i, rubric) for i, (task, rubric) in enumerate(p for s in sets for p in s.pairs)}
        self.inner = ScriptedEngine(self.reply, chat=chat)
        self.calls: dict[int, list[tuple[float, float, tuple[int, ...], Sampling, int, CallRequest]]]
        self.calls = collections.defaultdict(list)
        self.seed = 0

    def reply(self, request: CallRequest) -> str:
        i, rubric = self.task(request)
        if request.agent == "designer":
            return f"{REASONING}\n```python\n{PLANS[i % len(PLANS)]}\n```"
        if request.agent == "critic":
            return REASONING + ("\nCORRECT" if self.seed % 2 else "\nLine 1 is wrong.\nWRONG")
        right = right_answer(rubric)  # a table of all tests: longer than any program that a model writes, for some
        return REASONING + "\n" + (right if self.seed % 2 and len(right) < LONGEST else wrong_answer(rubric))

    def task(self, request: CallRequest) -> Any:
        text = "\n".join(request.messages)
        return next(found for prompt, found in self.pairs.items() if prompt in text)

    async def generate(
        self, prompt_ids: tuple[int, ...], sampling: Sampling, seed: int, *, request: CallRequest | None = None
    ) -> Completion:
        assert request is not None
        began = time.perf_counter()
        await asyncio.sleep(delay_of(seed))
        self.seed = seed
        done = await self.inner.generate(prompt_ids, sampling, seed, request=request)
        call = (began, time.perf_counter(), prompt_ids, sampling, seed, request)
        self.calls[self.task(request)[0]].append(call)
        return done

    async def update_weights(self, params: Any, version: int) -> None: ...

    async def close(self) -> None: ...


async def bare(engine: Delayed) -> tuple[float, float]:
    """Seconds of the same calls alone, and of one task on average. A call waits for those of its task that had ended
    before it began."""
    recorded = {i: sorted(calls, key=lambda call: call[0]) for i, calls in engine.calls.items()}
    engine.calls = collections.defaultdict(list)
    queue = iter(sorted(recorded.values(), key=lambda calls: calls[0][0]))
    each: list[float] = []

    async def one(jobs: list[asyncio.Task], before: list[int], call: tuple) -> None:
        await asyncio.gather(*(jobs[j] for j in before))
        _, _, ids, sampling, seed, request = call
        await engine.generate(ids, sampling, seed, request=request)

    async def worker() -> None:
        for calls in queue:
            task_began = time.perf_counter()
            jobs: list[asyncio.Task] = []
            for i, call in enumerate(calls):
                before = [j for j in range(i) if calls[j][1] <= call[0]]
                jobs.append(asyncio.create_task(one(jobs, before, call)))
            await asyncio.gather(*jobs)
            each.append(time.perf_counter() - task_began)

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return time.perf_counter() - began, statistics.mean(each)


async def evaluated(c: Any, sets: list[Benchmark], engine: Delayed, folder: Path) -> tuple[float, Journal]:
    journal, grader = Journal(folder), Grader(format_bonus=0.0, code="all")
    todo = units(c.evaluate.methods, sets, lambda _: 1)
    methods, means = job.make_methods(c, {"designer": engine, "executor": engine}, journal.rows)
    began = time.perf_counter()
    await play(todo, methods, means, grader, journal, scorer="metaagent_x/benchmark", in_flight=IN_FLIGHT)
    seconds = time.perf_counter() - began
    grader.close()
    return seconds, journal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the rows")
    parser.add_argument("tokenizer", type=Path, help="folder with Qwen3's tokenizer.json")
    parser.add_argument("--append", action="store_true")
    args = parser.parse_args()
    c = config.base("evaluate")
    c.tokenizer, c.evaluate.methods = str(args.tokenizer), ("metaagent_x",)
    sets = [open_benchmark((name, str(args.data / path)), generated=1, limit=n) for name, (path, n) in SETS.items()]
    layers = sandbox.use("strict")
    engine = Delayed(sets, Chat(c.tokenizer))
    with tempfile.TemporaryDirectory() as folder:
        load, cpu = os.getloadavg()[0], time.process_time()
        whole, journal = asyncio.run(evaluated(c, sets, engine, Path(folder)))
        cpu = time.process_time() - cpu
    calls = sum(map(len, engine.calls.values()))
    alone, alone_each = asyncio.run(bare(engine))
    each = statistics.mean(row["time/wall_s"] for row in journal.rows.values())
    right = sum(bool(row["correct"]) for row in journal.rows.values())
    void = sum(row["void"] for row in journal.rows.values())
    table = (
        "| of | engine alone, s | evaluation, s | added |\n"
        "|---|---|---|---|\n"
        f"| all {len(journal.rows)} tasks, {calls} calls | {alone:.1f} | {whole:.1f} | {whole / alone - 1:+.1%} |\n"
        f"| one task, mean | {alone_each:.2f} | {each:.2f} | {each / alone_each - 1:+.1%} |\n\n"
        f"{right} answers were right, {void} void; the process used {cpu:.1f} s of CPU, scripts and programs aside."
    )
    print(f"load before: {load:.1f}; {', '.join(layers)}\n{table}")
    if args.append:
        machine = f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}"
        said = f"{machine}; {IN_FLIGHT} tasks in flight, calls of {DELAY_S[0]:g} to {DELAY_S[1]:g} s"
        text = f"\n## Evaluation\n\n`python -m benchmarks.evaluate`, {datetime.date.today()}: {said}.\n\n{table}\n"
        with open(Path(__file__).with_name("RESULTS.md"), "a") as file:
            file.write(text)


if __name__ == "__main__":
    main()
