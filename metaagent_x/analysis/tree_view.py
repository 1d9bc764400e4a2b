"""One rollout tree of a trace as HTML: the task, its designs, their executions, every turn."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from metaagent_x.analysis.html import Markup, join, tag

Row = Mapping[str, Any]


def telling_tree(rows: Sequence[Row]) -> list[Row]:
    """The rows of the task whose designs differ most in reward: where the choice of a design mattered most.

    Ties go to the larger spread of execution rewards, then to the first task id. Empty only if `rows` is.
    """

    def spread(values: list[float]) -> float:
        return max(values) - min(values) if values else 0.0

    best: list[Row] = []
    best_key: tuple[float, float] = (-1.0, -1.0)
    for _, group in itertools.groupby(sorted(rows, key=lambda r: r["task_id"]), key=lambda r: r["task_id"]):
        tree = list(group)
        by_role = {role: [r["reward"] for r in tree if r["role"] == role] for role in ("designer", "executor")}
        key = spread(by_role["designer"]), spread(by_role["executor"])
        if key > best_key:
            best, best_key = tree, key
    return best


def render(rows: Sequence[Row], question: str = "", script: str = "") -> Markup:
    """The tree of one task.

    Args:
      rows: of its trace. question: shown as the task; by default what the Designer was asked.
      script: shown as every design that no Designer wrote.
    """
    first = rows[0]
    designer = {r["design"]: r for r in rows if r["role"] == "designer"}
    question = question or "\n".join(_texts(next(iter(designer.values()), {}).get("messages")))
    head = tag(
        "p",
        tag("b", first["task_id"]),
        " ",
        tag("span", first["kind"], class_="tag"),
        f"  step {first['step']}",
        class_="number",
    )
    designs, shown = [], False
    for index in sorted({r["design"] for r in rows}):
        calls = [r for r in rows if r["design"] == index and r["role"] != "designer"]
        designs.append(_design(index, designer.get(index), calls, script, unfold=bool(calls) and not shown))
        shown |= bool(calls)
    return join(head, tag("pre", question) if question else None, *designs)


def _design(index: int, row: Row | None, calls: Sequence[Row], script: str, *, unfold: bool) -> Markup:
    problem = (row or {}).get("problem")
    head = [tag("b", f"Design {index + 1}", class_="designer")]
    if row:
        head += [*_credit(row), _tokens(row), tag("span", problem or row.get("structure") or "valid", class_="tag")]
    runs = [
        _execution(number, list(turns), unfolded=unfold and number == 0)
        for number, turns in itertools.groupby(
            sorted(calls, key=lambda r: (r["execution"], _order(r["path"]))), key=lambda r: r["execution"]
        )
    ]
    none = None if runs else tag("p", "No execution made a call.", class_="note")
    text = row["text"] if row else script
    return tag("section", tag("header", *head), tag("pre", text) if text else None, *runs, none, class_="design")


def _execution(number: int, turns: Sequence[Row], *, unfolded: bool) -> Markup:
    first = turns[0]
    notes = [*_texts(first.get("flags")), *([str(first["reason"])] if first.get("reason") else [])]
    if first.get("status") not in (None, "", "ok"):
        notes.insert(0, str(first["status"]))
    count = "1 call" if len(turns) == 1 else f"{len(turns)} calls"
    summary = tag(
        "summary", tag("b", f"Execution {number + 1}", class_="executor"), "  ",
        tag("span", f"reward {first['reward']:.2f}", class_="number"),
        tag("span", f"  {first.get('structure') or ''}, {count}  ", class_="note"),
        *(join(tag("span", note, class_="tag"), " ") for note in notes),
    )  # fmt: skip
    answer = first.get("answer")
    shown = any(row["text"] == answer for row in turns)
    end = [
        tag("p", "Graded: ", first.get("verdict") or "not", class_="note"),
        tag("pre", answer) if answer and not shown else None,
    ]
    body = [_turn(row) for row in turns]
    return tag("details", summary, *body, *end, class_="execution", open=unfolded)


def _turn(row: Row) -> Markup:
    said = row.get("logprobs") or []
    mean = f"mean log-prob {sum(said) / len(said):.3f}, " if said else ""
    meta = tag(
        "div", tag("b", row["agent"]), f", call {row['path']}  ", *_credit(row), "  ", _tokens(row),
        f", {mean}{row['finish_reason']}, weights {row['version']}", "" if row.get("trained") else ", not trained on",
        class_="meta",
    )  # fmt: skip
    asked = "\n\n".join(t for t in [str(row.get("role_prompt") or ""), *_texts(row.get("messages"))] if t)
    prompt = tag("details", tag("summary", "prompt", class_="note"), tag("pre", asked)) if asked else None
    return tag("div", meta, prompt, tag("pre", row["text"]), class_="turn")


def _credit(row: Row) -> list[Markup]:
    advantage = row.get("advantage")
    out = [tag("span", f"reward {row['reward']:.2f}", class_="number")] if row["role"] == "designer" else []
    if advantage is not None and row.get("trained"):
        side = "up" if advantage > 0 else "down" if advantage < 0 else "note"
        out.append(tag("span", "advantage ", tag("b", f"{advantage:+.2f}", class_=side), class_="number"))
    return out


def _tokens(row: Row) -> Markup:
    asked, said = len(row.get("prompt_ids") or ()), len(row.get("completion_ids") or ())
    return tag("span", f"{asked} prompt + {said} sampled tokens", class_="number note")


def _texts(value: Any) -> list[str]:
    """A list column, a single text, or nothing, as texts."""
    if value is None or value == "":
        return []
    return [str(value)] if isinstance(value, str) else [str(v) for v in value]


def _order(path: str) -> tuple[tuple[int, str], ...]:
    """Paths in the order of their numbers: "0.10" after "0.9"."""
    return tuple((int(p), "") if p.isdigit() else (-1, p) for p in str(path).split("."))
