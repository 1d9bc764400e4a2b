"""How long the trace viewer takes on a large run, and how much memory: 400 steps of 128 executions of 3 calls.

  python -m benchmarks.view                                       # over HTTP; writes about 0.6 GB to a temporary folder
  python -m benchmarks.view --browser --tokenizer TOKENIZER       # in Chromium too, with the pieces of a real tokenizer

Limits: the start page at most 2 s, a call at most 0.5 s after the click, at most 500 MB of memory, on 2 cores. Exit
code 1 if one is passed. The run is synthetic: tokens and rewards are random, sizes those of a run with short answers
(400 prompt and 300 sampled tokens a call). The start counts from the command on, Python's own start included. Beside
each time stands what the server computed for it, which tells a slow viewer from a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import track
from rich.table import Table

from metaagent_x.rollout import traces

ROOT = Path(__file__).parents[1]
TASKS, DESIGNS, EXECUTIONS, CALLS = 8, 4, 4, 3
PROMPT, SAMPLED = 400, 300
Time = tuple[float, float]  # seconds that were waited, and that the server computed meanwhile
LIMITS = {"start page": 2.0, "call": 0.5, "memory": 500.0}
SCRIPT = 'drafts = together([solver("forward"), solver("backward")], task)\nanswer = judge()(drafts[0] + drafts[1])\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--clicks", type=int, default=40, help="calls that are opened, at random steps")
    parser.add_argument("--browser", action="store_true", help="also click in a headless Chromium")
    parser.add_argument(
        "--tokenizer", type=Path, help="folder with tokenizer.json; without one, ids stand for themselves"
    )
    parsed = parser.parse_args()
    console, rng = Console(), np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        write_run(run, parsed.steps, parsed.tokenizer, rng, console)
        size = sum(file.stat().st_size for file in run.rglob("*.parquet")) / 1e6
        places = [(int(rng.integers(1, parsed.steps + 1)), *map(int, rng.integers(0, (TASKS, DESIGNS, EXECUTIONS))))
                  for _ in range(parsed.clicks)]  # fmt: skip
        measured, memory = over_http(run, places)
        if parsed.browser:
            clicked, more = in_browser(run, places)
            measured, memory = measured | clicked, max(memory, more)
    table = Table("what", "median", "most", "limit", "computed", title=f"{parsed.steps} steps, {size:.0f} MB of traces")
    failed = memory > LIMITS["memory"]
    for name, times in measured.items():
        limit = LIMITS["start page" if name.startswith("start") else "call"]
        waited, computed = np.array(times).T
        failed |= max(waited) > limit
        row = (f"{np.median(waited):.3f} s", f"{max(waited):.3f} s", f"{limit} s", f"{np.median(computed):.3f} s")
        table.add_row(name, *row)
    table.add_row("memory of the server", "", f"{memory:.0f} MB", f"{LIMITS['memory']:.0f} MB")
    console.print(table)
    return int(failed)


def write_run(run: Path, steps: int, tokenizer: Path | None, rng: np.random.Generator, console: Console) -> None:
    """A run folder as training leaves one; every step has its own random tokens, tasks come back every 50 steps."""
    run.mkdir()
    settings = {"steps": steps, "batch": TASKS, "designs": DESIGNS, "executions": EXECUTIONS, "rollout": {"top_p": 1.0}}
    (run / "config.json").write_text(json.dumps(settings))
    if tokenizer:
        (run / "model").mkdir()
        shutil.copy(tokenizer / "tokenizer.json", run / "model")
    (run / "traces").mkdir()
    lines = []
    for step in track(range(1, steps + 1), "writing", console=console, transient=True):
        table = step_table(step, rng)
        pq.write_table(table, traces.path_of(run / "traces", step), compression="zstd", row_group_size=traces.ROW_GROUP)
        role = "executor" if (step - 1) // 30 % 2 == 0 else "designer"
        shares = {"structure/ensemble": 0.6, "structure/single": 0.4}
        metrics = {f"metric/{i}": float(rng.random()) for i in range(60)}  # as many as a run has
        lines.append({"step": step, "stage": role, "role/active": [role], "accuracy": float(rng.uniform(0.4, 0.6)),
                      "reward/mean": 0.5, "calls": 384.0, **shares, **metrics})  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def step_table(step: int, rng: np.random.Generator) -> pa.Table:
    """One step: a row a Designer's call and an agent's call."""
    places = [(t, d, e, p) for t in range(TASKS) for d in range(DESIGNS) for e in range(-1, EXECUTIONS)
              for p in range(CALLS if e >= 0 else 1)]  # fmt: skip
    rows = len(places)
    reward = rng.integers(0, 2, (TASKS, DESIGNS, EXECUTIONS + 1)).astype(float)
    names = [f"task/{(step % 50) * TASKS + t}" for t, *_ in places]
    text = ["Let us see: " + " ".join(map(str, rng.integers(0, 999, 200))) + " \\boxed{7}" for _ in places]
    designer = [e < 0 for _, _, e, _ in places]
    values = {
        "run": ["run"] * rows, "step": [step] * rows, "task_id": names, "kind": ["math"] * rows,
        "design": [d for _, d, _, _ in places], "execution": [e for _, _, e, _ in places],
        "path": ["" if e < 0 else ("0.0.0", "0.1.0", "1")[p] for _, _, e, p in places],
        "role": ["designer" if d else "executor" for d in designer],
        "agent": ["designer" if d else "solver" for d in designer],
        "structure": ["" if d else "ensemble" for d in designer], "prompt_ids": ids(rng, rows, PROMPT),
        "completion_ids": ids(rng, rows, SAMPLED), "logprobs": logprobs(rng, rows), "old_logprobs": logprobs(rng, rows),
        "finish_reason": ["stop"] * rows, "version": [step - 1] * rows,
        "text": [SCRIPT if d else t for d, t in zip(designer, text, strict=True)],
        "reward": [reward[t, d, e] for t, d, e, _ in places], "advantage": rng.normal(size=rows),
        "trained": [True] * rows, "status": ["ok"] * rows, "reason": [""] * rows,
        "answer": [SCRIPT if d else t for d, t in zip(designer, text, strict=True)], "problem": [""] * rows,
        "flags": [["truncated"] if rng.random() < 0.02 else [] for _ in places], "seed": [7] * rows,
        "role_prompt": ["Solve the task."] * rows, "messages": [["What is 3 + 4?" * 20]] * rows,
        "verdict": ["ok"] * rows, "prompt_cut": [False] * rows, "correct": [True] * rows, "fraction": [1.0] * rows,
        "format": [1.0] * rows, "conversation": [""] * rows, "tools": [None] * rows, "links": [None] * rows,
        "prompt_tokens": [PROMPT] * rows, "completion_tokens": [SAMPLED] * rows, "difficulty": [""] * rows,
    }  # fmt: skip
    columns = [v if isinstance(v, pa.Array) else pa.array(v) for v in (values[name] for name in traces.SCHEMA.names)]
    return pa.table(columns, names=traces.SCHEMA.names).cast(traces.SCHEMA)


def ids(rng: np.random.Generator, rows: int, mean: int) -> pa.Array:
    ends = np.concatenate([[0], np.cumsum(rng.integers(mean // 2, mean * 3 // 2, rows))])
    return pa.ListArray.from_arrays(ends.astype(np.int32), rng.zipf(1.3, ends[-1]).clip(0, 150_000).astype(np.int32))


def logprobs(rng: np.random.Generator, rows: int) -> pa.Array:
    ends = np.arange(rows + 1) * SAMPLED
    return pa.ListArray.from_arrays(ends.astype(np.int32), -rng.exponential(0.3, ends[-1]).astype(np.float32))


class Viewer:
    """The command in a process of its own."""

    def __init__(self, run: Path) -> None:
        self.began = time.perf_counter()
        command = [sys.executable, "-m", "metaagent_x.view", str(run), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/", self.process.stdout.readline())
        assert found is not None, "the viewer did not start"
        self.url = found[0]

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=60) as reply:
            return reply.read()

    def computed(self) -> float:
        """Seconds that the server has computed so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def started(self) -> Time:
        """Since the command was given."""
        return time.perf_counter() - self.began, self.computed()

    def timed(self, work: Callable[[], object]) -> Time:
        before, began = self.computed(), time.perf_counter()
        work()
        return time.perf_counter() - began, self.computed() - before

    def close(self) -> float:
        """Ends it. Returns the MB that it has held at most."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        os.kill(self.process.pid, signal.SIGTERM)
        self.process.wait(30)
        return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024


def over_http(run: Path, places: Sequence[Sequence[int]]) -> tuple[dict[str, list[Time]], float]:
    """Name -> times of the start page, of each level from the request to its last byte, and of searches through every
    step; and the memory of the server in MB."""
    viewer = Viewer(run)
    for path in ("", "static/main.js", "static/viewer.css", "answers/run"):
        viewer.get(path)
    measured = {"start page without its curve": [viewer.started()]}
    viewer.get("answers/figure/learning")
    measured["start page with its curve"] = [viewer.started()]
    for parts, name in enumerate(("step", "task", "design", "execution", "call"), 1):
        addresses = ["answers/" + "/".join(map(str, (*place, "0.1.0")[:parts])) for place in places]
        measured[name] = [viewer.timed(lambda address=address: viewer.get(address)) for address in addresses]
    steps = json.loads(viewer.get("answers/run"))["steps"]
    measured["one step of a search through all"] = [viewer.timed(lambda s=s: viewer.get(f"answers/{s}")) for s in steps]
    measured["a task's other steps, after that"] = [viewer.timed(lambda: viewer.get("answers/same/1/0"))]
    return measured, viewer.close()


def in_browser(run: Path, places: Sequence[Sequence[int]]) -> tuple[dict[str, list[Time]], float]:
    """The same in Chromium, from the click on a link to the page that is built."""
    sys.path.insert(0, str(ROOT / "tests" / "viewer"))
    from browser import chromium  # type: ignore[import-not-found]

    measured: dict[str, list[Time]] = {}
    with chromium() as page:
        viewer = Viewer(run)
        page.go(viewer.url)
        page.until("document.querySelector('figure svg')")
        measured["start page in the browser, drawn"] = [viewer.started()]

        def opened(name: str, work: Callable[[], object]) -> None:
            measured.setdefault(f"{name}, clicked in the browser", []).append(viewer.timed(work))

        for step, task, design, execution in places:
            page.js(f"location.hash = '#/{step}'")
            page.until(f"document.querySelector('#page').dataset.opened === '#/{step}'")
            where = f"#/{step}/{task}/{design}/{execution}"
            opened("task", lambda: page.click(f".card header a[href='#/{step}/{task}']"))  # noqa: B023  called at once
            opened("execution", lambda: page.click(f"a.cell[href='{where}']"))  # noqa: B023
            opened("call", lambda: page.click(f".turn-card a[href='{where}/0.1.0']"))  # noqa: B023
        return measured, viewer.close()


if __name__ == "__main__":
    sys.exit(main())
