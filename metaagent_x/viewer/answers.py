"""Every answer that the front end can ask for, by address. A page and an answer have the same address:

run                  settings, metrics, evaluations, alerts, steps with a trace, what could not be read
pulse                a mark that changes when the run goes on, and its heartbeat
figure/NAME          a figure of the report, as SVG
same/STEP/TASK       steps that hold the same task
12                   step 12: its tasks, one row a design and an execution
12/3                 its task number 3: what was asked, its designs and executions
12/3/0               design 0: the script, its colours and lint, what the Designer was told
12/3/0/design        the Designer's call, with its tokens
12/3/0/1             execution 1 of the design: calls, tool runs, who saw whose text
12/3/0/1/0.2.1       a call of it, with its tokens
"""

from __future__ import annotations

import collections
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from metaagent_x.mas.classify import edges_of
from metaagent_x.run_folder import DESCRIPTION, flatten
from metaagent_x.viewer import rows as shown
from metaagent_x.viewer.store import Damaged, NotThere, Row, Store
from metaagent_x.viewer.tokens import Pieces

# Of a step's line, for the table and the curve.
METRICS = (
    "step", "stage", "accuracy", "reward/mean", "reward/math", "reward/code", "designs/valid", "calls",
    "executions/void", "grad_norm", "ratio/max_dev", "mismatch/max", "entropy", "completions/truncated", "time/step",
)  # fmt: skip
EVALUATION = ("name", "step", "designer", "executor", "temperature", "tasks", "accuracy", "accuracy/math",
              "accuracy/code", "valid", "void")  # fmt: skip
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
DESIGNER = "design"  # the last part of the address of a Designer's call


class Answers:
    """Answers about one folder. May be asked by several threads."""

    def __init__(self, store: Store, tokenizer: Path | None = None) -> None:
        """
        Args:
          tokenizer: folder with the `tokenizer.json` that the traces' ids belong to; None: that of the run.
        """
        self.store = store
        self._drawing = threading.Lock()  # matplotlib's settings are those of the process
        self._figures: dict[str, tuple[str, dict[str, Any]]] = {}  # name -> mark of the run, answer
        self._ids: dict[int, tuple[tuple[int, int], list[str]]] = {}  # step -> stamp, ids of its tasks
        given = store.config().get("tokenizer")
        named = [Path(given)] if isinstance(given, str) and given else []
        self.pieces = Pieces([tokenizer] if tokenizer else [store.folder / DESCRIPTION, *named])

    def get(self, address: str) -> dict[str, Any]:
        """The answer of an address, in values that JSON holds.

        Raises:
          NotThere: it names nothing. Damaged: the file that it needs cannot be read.
        """
        match address.split("/"):
            case ["run"]:
                answer = self.run()
            case ["pulse"]:
                answer = {"mark": self.store.mark(), "heartbeat": self.store.heartbeat()}
            case ["figure", name]:
                answer = self.figure(name)
            case ["same", step, task]:
                answer = self.same(_number(step), _number(task))
            case [step]:
                answer = self.step(_number(step))
            case [step, task]:
                answer = self.task(_number(step), _number(task))
            case [step, task, design]:
                answer = self.design(_number(step), _number(task), _number(design))
            case [step, task, design, last] if last != DESIGNER:
                answer = self.execution(_number(step), _number(task), _number(design), _number(last))
            case [step, task, design, last]:
                answer = self.call(_number(step), _number(task), _number(design), -1, "")
            case [step, task, design, execution, path]:
                answer = self.call(_number(step), _number(task), _number(design), _number(execution), path)
            case _:
                raise NotThere(f"there is no page {address[:80]!r}")
        return finite(answer)

    def run(self) -> dict[str, Any]:
        run, problems = self.store.run()
        alerts = self.store.lines("alerts.jsonl", problems)
        return {
            "name": self.store.name, "steps": self.store.steps(), "problems": problems, "alerts": alerts,
            "config": {key: repr(value) for key, value in flatten(run.config).items()},
            "wanted": None if self._evaluates or run.config.get("tokens") else run.config.get("steps"),
            "executions": None if self._evaluates else run.config.get("executions"),
            "metrics": [_only(line, METRICS) for line in run.metrics],
            "evaluations": [_only(line, EVALUATION) for line in run.evaluations],
        }  # fmt: skip

    def figure(self, name: str) -> dict[str, Any]:
        """`learning` or `structures`, as the report draws them. `svg` is "" before there is anything to draw.

        It holds numbers and names of structures, never a text that a model wrote.
        """
        from metaagent_x.analysis import report  # matplotlib: not before it is needed

        draw = {"learning": report.learning_figure, "structures": report.structures_figure}.get(name)
        if draw is None:
            raise NotThere(f"there is no figure {name[:40]!r}")
        with self._drawing:
            mark = self.store.mark()
            if self._figures.get(name, ("",))[0] != mark:
                try:
                    svg, problem = str(draw(self.store.run()[0]) or ""), ""
                except (KeyError, TypeError, ValueError) as failure:  # lines of another program
                    svg, problem = "", f"the figure cannot be drawn from metrics.jsonl: {failure!r}"
                self._figures[name] = mark, {"svg": svg, "problem": problem}
            return self._figures[name][1]

    def same(self, step: int, task: int) -> dict[str, Any]:
        """Steps that hold the task, each with its number there and the mean reward of its executions."""
        wanted = self._task_rows(step, task)[0][1]["task_id"]
        found, problems = [], []
        for other in self.store.steps():
            try:
                ids = self._task_ids(other)
                if wanted in ids:
                    mine = [row for row in self.store.small(other) if row["task_id"] == wanted]
                    found.append({"step": other, "task": ids.index(wanted), "reward": shown.mean_reward(mine)})
            except (Damaged, NotThere) as problem:
                problems.append(str(problem))
        return {"task_id": wanted, "steps": found, "problems": problems}

    def step(self, step: int) -> dict[str, Any]:
        rows = self.store.small(step)
        numbers = {task: number for number, task in enumerate(shown.task_ids(rows))}
        groups: dict[tuple, list[Row]] = {}
        for row in rows:
            groups.setdefault((numbers[row["task_id"]], row["design"], row["execution"]), []).append(row)
        return {
            "step": step, "steps": self.store.steps(), "executions": self._wanted(rows),
            "tasks": [
                {"task": number, "task_id": task, "kind": next(r["kind"] for r in rows if r["task_id"] == task)}
                for task, number in numbers.items()
            ],
            "rows": [shown.line_of(calls) | {"task": task} for (task, _, _), calls in sorted(groups.items())],
        }  # fmt: skip

    def task(self, step: int, task: int) -> dict[str, Any]:
        numbered = self._task_rows(step, task)
        small = [row for _, row in numbered]
        designers = {row["design"]: number for number, row in numbered if row["role"] == "designer"}
        whole = dict(zip(designers, self.store.rows(step, list(designers.values())), strict=True))
        asked = whole or {0: self.store.rows(step, [numbered[0][0]])[0]}
        groups = collections.defaultdict(list)
        for row in small:
            groups[row["design"], row["execution"]].append(row)
        lines = {key: shown.line_of(rows) for key, rows in sorted(groups.items())}
        return {
            "step": step, "task": task, "task_id": small[0]["task_id"], "kind": small[0]["kind"],
            "tasks": len(shown.task_ids(self.store.small(step))), "executions": self._wanted(self.store.small(step)),
            "question": "\n".join(next(iter(asked.values())).get("messages") or []),
            "designs": [
                {
                    "design": design, "script": self._script(whole.get(design)), "line": lines.get((design, -1)),
                    "executions": [line for (d, e), line in lines.items() if d == design and e >= 0],
                }
                for design in sorted({d for d, _ in lines})
            ],
        }  # fmt: skip

    def design(self, step: int, task: int, design: int) -> dict[str, Any]:
        from metaagent_x.viewer import scripts

        answer = self.task(step, task)
        mine = next((d for d in answer["designs"] if d["design"] == design), None)
        if mine is None:
            raise NotThere(f"task {task} of step {step} has no design {design}")
        numbers = [n for n, r in self._task_rows(step, task) if (r["design"], r["role"]) == (design, "designer")]
        row = self.store.rows(step, numbers)[0] if numbers else {}
        script = mine.pop("script")
        return mine | {
            "step": step, "task": task, "task_id": answer["task_id"], "kind": answer["kind"],
            "designs": [d["design"] for d in answer["designs"]], "wanted": answer["executions"],
            "lines": scripts.coloured(script), "script": script, "lint": scripts.lint(script) if script else [],
            "text": row.get("text") or "", "problem": row.get("problem") or "", "told": row.get("role_prompt") or "",
            "messages": row.get("messages") or [],
        }  # fmt: skip

    def execution(self, step: int, task: int, design: int, execution: int) -> dict[str, Any]:
        numbers = self._execution(step, task, design, execution)
        rows = self.store.rows(step, numbers)
        small = [self.store.small(step)[number] for number in numbers]
        first, played = rows[0], shown.execution_of(rows)
        edges = [
            {"source": source, "target": target, "how": how}
            for target, sources in edges_of(played).items()
            for source, how in sources.items()
        ]
        answered = [source for source, _, how in played.links if how == "answer"]
        said = [row["path"] for row in rows if row.get("text") == first.get("answer")]
        lanes = shown.lanes_of(rows, edges)
        calls = [shown.call_of(row) | lanes[row["path"]] for row in rows]
        return {
            "step": step, "task": task, "design": design, "execution": execution, "line": shown.line_of(small),
            "task_id": first["task_id"], "kind": first.get("kind"), "calls": calls, "edges": edges,
            "lanes": shown.lane_names(calls), "answer": first.get("answer") or "", "reason": first.get("reason") or "",
            "answered": answered[-1:] or said[-1:], "recorded": first.get("tools") is not None,
            "tools": shown.tool_runs(played, calls), "fraction": first.get("fraction"), "format": first.get("format"),
            "votes": [list(link) for link in played.links if link[2] == "vote"],
            "siblings": self._siblings(step, task, design),
        }  # fmt: skip

    def call(self, step: int, task: int, design: int, execution: int, path: str) -> dict[str, Any]:
        numbers = self._execution(step, task, design, execution)
        rows = self.store.rows(step, numbers)
        row = next((row for row in rows if row["path"] == path), None)
        if row is None:
            raise NotThere(f"execution {execution} of design {design} has no call {path[:40]!r}")
        prompt, sampled = row.get("prompt_ids") or [], row.get("completion_ids") or []
        rollout = self.store.config().get("rollout", {})
        sampling = self.store.config()["evaluate"] if self._evaluates else rollout
        request = {key: sampling[key] for key in SAMPLING if key in sampling} | {"seed": row.get("seed")}
        limit = rollout.get("max_designer_tokens" if execution < 0 else "max_executor_tokens")
        return shown.call_of(row) | {
            "step": step, "task": task, "design": design, "execution": execution, "task_id": row["task_id"],
            "role": row["role"], "reward": row.get("reward"), "paths": [r["path"] for r in rows],
            "prompt": {"ids": prompt, "pieces": self.pieces.of(prompt), "learned": shown.learned_places(row, rows)},
            "sampled": {
                "ids": sampled, "pieces": self.pieces.of(sampled), "logprobs": row.get("logprobs") or [],
                "old_logprobs": row.get("old_logprobs"),
            },
            "request": request | ({"max_tokens": limit} if limit else {}),
        }  # fmt: skip

    def addresses(self, step: int) -> Iterable[str]:
        """Of all answers about a step, but for `same`."""
        answer = self.step(step)
        yield str(step)
        for task in answer["tasks"]:
            at = f"{step}/{task['task']}"
            yield at
            mine = [row for row in answer["rows"] if row["task"] == task["task"]]
            yield from sorted({f"{at}/{row['design']}" for row in mine})
            for row in mine:
                if row["execution"] < 0:
                    yield f"{at}/{row['design']}/{DESIGNER}"
                    continue
                whole = f"{at}/{row['design']}/{row['execution']}"
                yield whole
                yield from (f"{whole}/{path}" for path in row["paths"])

    def _task_ids(self, step: int) -> list[str]:
        """Ids of the tasks of a step, kept as long as its file is the same."""
        stamp = self.store.stamp(step)
        if self._ids.get(step, (None,))[0] != stamp:
            self._ids[step] = stamp, self.store.task_ids(step)
        return self._ids[step][1]

    def _task_rows(self, step: int, task: int) -> list[tuple[int, Row]]:
        """(number in the file, row) of all rows of a task."""
        rows = self.store.small(step)
        names = list(shown.task_ids(rows))
        if task >= len(names):
            raise NotThere(f"step {step} has no task {task}; it has {len(names)}")
        return [(number, row) for number, row in enumerate(rows) if row["task_id"] == names[task]]

    def _execution(self, step: int, task: int, design: int, execution: int) -> list[int]:
        """Numbers in the file of an execution's rows, in the order of their paths."""
        mine = [
            (shown.order(row["path"]), number)
            for number, row in self._task_rows(step, task)
            if (row["design"], row["execution"]) == (design, execution)
        ]
        if not mine:
            what = f"execution {execution}" if execution >= 0 else "call of a Designer"
            raise NotThere(f"design {design} of task {task} at step {step} has no {what} in the trace")
        return [number for _, number in sorted(mine)]

    def _siblings(self, step: int, task: int, design: int) -> list[int]:
        rows = (row for _, row in self._task_rows(step, task) if row["design"] == design and row["execution"] >= 0)
        return sorted({row["execution"] for row in rows})

    @property
    def _evaluates(self) -> bool:
        """Whether it is a folder of `evaluate`, whose settings hold those of training too, without a meaning."""
        return isinstance(self.store.config().get("evaluate"), dict)

    def _wanted(self, rows: Sequence[Row]) -> int:
        """N: as the settings say, or as many as were seen. An execution without any call has no row."""
        seen = max((row["execution"] for row in rows), default=-1) + 1
        wanted = None if self._evaluates else self.store.config().get("executions")
        return max(seen, wanted) if isinstance(wanted, int) else seen

    def _script(self, row: Row | None) -> str:
        """What a design ran: of its row, or the one that the settings give to every task."""
        if row is None:
            return str(self.store.config().get("rollout", {}).get("design") or "")
        return row.get("answer") or row.get("text") or ""


def finite(value: Any) -> Any:
    """Numbers that are not finite as null, at any depth: JSON has no others."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def _number(part: str) -> int:
    if not (part.isascii() and part.isdigit() and len(part) < 10):
        raise NotThere(f"{part[:40]!r} is not a number of a step, task, design or execution")
    return int(part)


def _only(line: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: line[key] for key in keys if key in line}
