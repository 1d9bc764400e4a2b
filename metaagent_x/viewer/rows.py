"""From the rows of a trace to what a page shows of them: plain functions of rows."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from metaagent_x.mas.records import Call, Execution, ToolRun
from metaagent_x.rollout.tree import trajectories_of

Row = dict[str, Any]


def order(path: str) -> tuple[tuple[int, str], ...]:
    """Paths in the order of their numbers: "0.10" after "0.9"; what is no number comes first."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in path.split("."))


def mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def task_ids(rows: Sequence[Row]) -> dict[str, None]:
    """Ids of the tasks of a step, in the order of the file: a task's number is its place here."""
    return dict.fromkeys(row["task_id"] for row in rows)


def mean_reward(rows: Sequence[Row]) -> float | None:
    """Over the executions that are not void and made a call."""
    played = [row for row in rows if row["execution"] >= 0 and row["status"] != "void"]
    return mean({(row["design"], row["execution"]): row["reward"] for row in played}.values())


def line_of(rows: Sequence[Row]) -> dict[str, Any]:
    """A design or an execution as one line of a table, from the small columns of its rows."""
    first = rows[0]
    flags = set(first["flags"] or ())
    flags |= {"truncated" for row in rows if row["finish_reason"] == "length"}
    flags |= {"prompt_cut" for row in rows if row["prompt_cut"]}
    flags |= {first["status"]} - {"ok", None, ""}
    advantages = sorted({row["advantage"] for row in rows if row["trained"] and row["advantage"] is not None})
    return {
        "design": first["design"], "execution": first["execution"], "role": first["role"], "kind": first["kind"],
        "structure": first["structure"] or "", "reward": first["reward"], "status": first["status"] or "",
        "correct": first["correct"], "verdict": first["verdict"] or "", "flags": sorted(flags),
        "problem": (first["problem"] or first["reason"] or "")[:200], "trained": any(row["trained"] for row in rows),
        "advantages": advantages[:: max(1, len(advantages) - 1)],  # the least and the greatest
        "version": first["version"], "agents": list(dict.fromkeys(row["agent"] or "" for row in rows)),
        "paths": [row["path"] for row in sorted(rows, key=lambda row: order(row["path"]))],
    }  # fmt: skip


def call_of(row: Row) -> dict[str, Any]:
    """A call without its tokens."""
    said = row.get("logprobs") or []
    return {
        "path": row["path"], "agent": row.get("agent") or "", "told": row.get("role_prompt") or "",
        "messages": row.get("messages") or [], "text": row.get("text") or "", "version": row.get("version"),
        "finish_reason": row.get("finish_reason"), "seed": row.get("seed"), "advantage": row.get("advantage"),
        "trained": bool(row.get("trained")), "prompt_cut": bool(row.get("prompt_cut")),
        "prompt_tokens": len(row.get("prompt_ids") or ()), "sampled_tokens": len(row.get("completion_ids") or ()),
        "mean_logprob": mean(said), "conversation": row.get("conversation") or "",
    }  # fmt: skip


def _record(row: Row, tokens: bool = False) -> Call:
    """A row as the record that it was; without its tokens where only texts matter."""
    ids = (tuple(row.get(name) or ()) for name in ("prompt_ids", "completion_ids", "logprobs"))
    prompt, sampled, logprobs = ids if tokens else ((), (), ())
    return Call(
        path=row["path"], agent=row.get("agent") or "", role_prompt=row.get("role_prompt") or "", prompt_ids=prompt,
        completion_ids=sampled, logprobs=logprobs, finish_reason=row.get("finish_reason") or "stop",
        version=row.get("version") or 0, text=row.get("text") or "", conversation=row.get("conversation") or "",
        messages=tuple(row.get("messages") or ()),
    )  # fmt: skip


def execution_of(rows: Sequence[Row]) -> Execution:
    """The execution of these rows, as far as its trace tells."""
    tools = [ToolRun(**run) for run in rows[0].get("tools") or ()]
    links = [(link["source"], link["target"], link["how"]) for link in rows[0].get("links") or ()]
    return Execution([_record(row) for row in rows], tools, links=links, answer=rows[0].get("answer") or "")


def lanes_of(rows: Sequence[Row], edges: Sequence[Mapping[str, str]]) -> dict[str, dict[str, Any]]:
    """Path of a call -> its lane, that of one agent in one branch, and its turn: after all whose text it saw."""
    sources = collections.defaultdict(list)
    for edge in edges:
        sources[edge["target"]].append(edge["source"])
    places: dict[str, dict[str, Any]] = {}
    lanes: dict[tuple, int] = {}
    turns: dict[int, int] = {}
    for row in rows:
        branch = row["path"].rpartition(".")[0]
        who = (row.get("conversation") or branch, row.get("agent"), row.get("role_prompt"))
        lane = lanes.setdefault(who, len(lanes))
        seen = [places[source]["turn"] for source in sources[row["path"]] if source in places]
        turns[lane] = max([turns.get(lane, -1), *seen]) + 1
        places[row["path"]] = {"lane": lane, "turn": turns[lane]}
    return places


def lane_names(calls: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the lanes are called."""
    return list({call["lane"]: call["agent"] for call in calls}.values())


def tool_runs(played: Execution, calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tool runs, each with the call `after` which it stands: the last one before it that wrote the program, else the
    last one in its branch, else the last one; "" if there is none."""
    out = []
    for run in played.tools:
        before = [call["path"] for call in calls if order(call["path"]) < order(run.path)]
        branch = [path for path in before if path.rpartition(".")[0] == run.path.rpartition(".")[0]]
        wrote = [call["path"] for call in calls if run.program.strip() and run.program.strip() in call["text"]]
        same = [path for path in wrote if path in before]
        out.append({**vars(run), "after": (same or branch or before or [""])[-1]})
    return out


def learned_places(row: Row, rows: Sequence[Row]) -> list[int]:
    """Places in the prompt of ids that the policy sampled in earlier turns of the same trajectory."""
    if not row.get("conversation"):
        return []
    mine = [_record(r, tokens=True) for r in rows if r.get("conversation") == row["conversation"]]
    prompt = tuple(row.get("prompt_ids") or ())
    for trajectory in trajectories_of(mine):
        if trajectory.tokens[: len(prompt)] == prompt:
            return [place for place in range(len(prompt)) if trajectory.mask[place]]
    return []
