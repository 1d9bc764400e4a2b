"""What a distillation gave: figures for the terminal, `summary.json`, and one page that needs no network."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from metaagent_x.analysis.html import Markup, join, table, tag
from metaagent_x.analysis.style import CSS
from metaagent_x.distillation.attempt import Attempt
from metaagent_x.distillation.cost import Prices, Usage
from metaagent_x.distillation.selection import FIELDS, ROLES, Example, Selection

POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # nothing on the page loads, runs or sends anything
SHOWN = 3  # examples of each role and structure on the page
Summary = dict[str, Any]


def summarise(
    attempts: Sequence[Attempt], selection: Selection, usage: Usage, prices: Prices, *, ended: str, beyond: int
) -> Summary:
    """All figures of a job as plain values.

    Args:
      attempts: those that the selection was made from. usage: everything that was paid for.
      ended: why the job is not going on. beyond: attempts that were made and not looked at.
    """
    wanted = selection.wanted.numbers
    fields = {
        "dataset": lambda a: a.dataset,
        "difficulty": lambda a: f"{a.dataset}: {a.difficulty}",
        "structure": lambda a: a.structure or "not run",
    }
    return {
        "ended": ended,
        "examples": {role: {"chosen": len(selection.examples[role]), "wanted": wanted[role]} for role in ROLES},
        "tasks": selection.tasks,
        "solved": len({a.task_id for a in attempts if a.right}),
        "attempts": len(attempts),
        "beyond": beyond,
        "right": sum(a.right for a in attempts),
        "accepted": {name: _shares(attempts, key) for name, key in fields.items()},
        "rejected": dict(collections.Counter(a.reason for a in attempts if not a.right).most_common()),
        "conversations_left_out": dict(sum((collections.Counter(a.left_out) for a in attempts), collections.Counter())),
        "not_chosen": {
            role: {why: n for (r, why), n in selection.left_out.most_common() if r == role} for role in ROLES
        },
        "chosen": {role: {f: _counts(selection.examples[role], f) for f in FIELDS} for role in ROLES},
        "agents": _counts(selection.examples["executor"], "agent"),
        "scripts": len({a.script for a in attempts if a.right}),
        "usage": dataclasses.asdict(usage),
        "cost": round(prices.of(usage), 6),
    }


def _shares(attempts: Sequence[Attempt], key: Callable[[Attempt], str]) -> dict[str, dict[str, int]]:
    made, right = (
        collections.Counter(key(a) for a in attempts if keep(a)) for keep in (lambda _: True, lambda a: a.right)
    )
    return {name: {"attempts": made[name], "right": right[name]} for name in sorted(made)}


def _counts(examples: Sequence[Example], field: str) -> dict[str, int]:
    return dict(collections.Counter(example[field] for example in examples).most_common())


def tables(s: Summary) -> list[tuple[str, list[str], list[list[str]]]]:
    """(title, head, rows) of everything that is a table, as text."""
    out: list[tuple[str, list[str], list[list[str]]]] = []
    for name, values in s["accepted"].items():
        rows = [
            [v, f"{n['attempts']}", f"{n['right']}", f"{n['right'] / n['attempts']:.0%}"] for v, n in values.items()
        ]
        out.append((f"attempts by {name}", [name, "attempts", "right", "share"], rows))
    for title, counts in (
        ("attempts rejected", s["rejected"]),
        ("conversations of right executions left out", s["conversations_left_out"]),
        *((f"{role} examples not chosen", s["not_chosen"][role]) for role in ROLES),
    ):
        out.append((title, ["reason", "number"], [[why, f"{n}"] for why, n in counts.items()]))
    for field in FIELDS:
        values = {value for role in ROLES for value in s["chosen"][role][field]}
        rows = [[v or "-", *(f"{s['chosen'][role][field].get(v, 0)}" for role in ROLES)] for v in sorted(values)]
        out.append((f"examples by {field}", [field, *ROLES], rows))
    out.append(("executor examples by agent", ["agent", "number"], [[a, f"{n}"] for a, n in s["agents"].items()]))
    return out


def headline(s: Summary) -> str:
    """One line."""
    parts = [f"{role}s {s['examples'][role]['chosen']} of {s['examples'][role]['wanted']}" for role in ROLES]
    u, right = s["usage"], f"{s['right']} of {s['attempts']} attempts right, {s['solved']} of {s['tasks']} tasks solved"
    millions = (u["prompt"] + u["completion"]) / 1e6
    return (
        f"{s['ended']}: {', '.join(parts)}; {right}; {u['requests']} requests, {millions:.2f} M tokens, cost "
        f"{s['cost']:.2f}"
    )


def page(s: Summary, examples: Mapping[str, Sequence[Example]], name: str) -> str:
    """The page: figures, then some examples in full. Whatever a model wrote is shown as text."""
    u = s["usage"]
    counted = f" {u['counted_here']} requests without reported usage were counted here." if u["counted_here"] else ""
    beyond = f" {s['beyond']} more attempts were made and not needed." if s["beyond"] else ""
    body = join(
        tag("h1", f"{name}: distilled examples"),
        tag("p", headline(s) + ".", class_="note"),
        tag("p", f"{u['prompt']:,} prompt and {u['completion']:,} completion tokens in {u['requests']:,} requests."
            f"{counted}{beyond}", class_="note"),
        tag("div", *(tag("div", tag("h2", title), table(list(head), [list(row) for row in rows]))
                     for title, head, rows in tables(s) if rows), class_="columns"),
        *(join(tag("h2", f"{role} examples"), *map(_example, _some(examples[role]))) for role in ROLES),
    )  # fmt: skip
    head = tag(
        "head", tag("meta", charset="utf-8"), tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{name}: distilled examples"), tag("style", Markup(CSS)),
    )  # fmt: skip
    return f"<!doctype html>\n{tag('html', head, tag('body', tag('main', body)), lang='en')}\n"


def _some(examples: Sequence[Example]) -> list[Example]:
    """The first few of every structure."""
    shown: collections.Counter[str] = collections.Counter()
    out = []
    for example in examples:
        if shown[example["structure"]] < SHOWN:
            shown[example["structure"]] += 1
            out.append(example)
    return sorted(out, key=lambda e: e["structure"])


def _example(example: Example) -> Markup:
    title = " · ".join(
        filter(None, (example["structure"], example["agent"], example["task_id"], example["difficulty"]))
    )
    turns = [join(tag("h3", m["role"]), tag("pre", m["content"])) for m in example["messages"]]
    return tag("details", tag("summary", title), *turns)
