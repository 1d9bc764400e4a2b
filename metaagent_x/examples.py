"""Examples of what each role should write: read from files, turned into rows, put in order and weighed.

A file holds one conversation a line, in the common chat form:

  {"messages": [{"role": "system", "content": ...}, {"role": "user", ...}, {"role": "assistant", ...}, ...],
   "role": "designer" or "executor", "task_id": ...}

or as ShareGPT spells it (`conversations`, `from`, `value`; `human`, `gpt`). The system turn may be missing, `role` is
"executor" then, `task_id` the first user text; other fields are not looked at.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from metaagent_x import assemble
from metaagent_x.config import ConfigError, Settings
from metaagent_x.learner.packing import Batch, pack
from metaagent_x.learner.step import Learner
from metaagent_x.model.qwen3 import Params, Qwen3Config
from metaagent_x.rollout.chat import MARKERS, Chat
from metaagent_x.rollout.play import chat_for
from metaagent_x.rollout.tree import Role, Trajectory
from metaagent_x.tasks.splits import held_out

ROLES: tuple[Role, ...] = ("designer", "executor")
SHARE_GPT = {"human": "user", "gpt": "assistant"}


class ExamplesError(ConfigError):
    """A file of examples that cannot be used. Names the file, the line and the field."""


@dataclasses.dataclass(frozen=True)
class Example:
    """One conversation, as it should have gone.

    Attributes:
      role: who learns from it. system: system text, "" for none.
      turns: (what the user said, what to reply), in order.
      task_id: what decides whether it is held out.
    """

    role: Role
    system: str
    turns: tuple[tuple[str, str], ...]
    task_id: str = ""

    def texts(self) -> Iterable[str]:
        return (self.system, *(text for turn in self.turns for text in turn))


def read(path: str | Path) -> list[Example]:
    """The examples of a file, in its order. Raises ExamplesError."""
    out = []
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    out.append(_parsed(line, f"{path}, line {number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise ExamplesError(f"examples.files: cannot read {path}: {error}") from error
    if not out:
        raise ExamplesError(f"examples.files: {path} holds no example")
    return out


def _parsed(line: str, where: str) -> Example:
    """The example of one line. Raises ExamplesError, which begins with `where`."""
    try:
        record = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError(f"is {type(record).__name__}, not an object")
        field = "messages" if "messages" in record else "conversations"
        who, what = ("role", "content") if field == "messages" else ("from", "value")
        messages = record.get(field)
        if not isinstance(messages, list) or not messages:
            raise ValueError(f"{field} must be a list of messages, under this name or 'messages'")
        said = [_message(message, f"{field}[{i}]", who, what) for i, message in enumerate(messages)]
        system = said.pop(0)[1] if said[0][0] == "system" else ""
        first = len(messages) - len(said)
        if not said or len(said) % 2:
            raise ValueError(f"{field} must end with a reply of the assistant, after one of the user")
        for i, (speaker, text) in enumerate(said):
            expected = ("user", "assistant")[i % 2]
            if speaker != expected:
                raise ValueError(f"{field}[{first + i}].{who} is {speaker!r} where {expected!r} must speak")
            if speaker == "assistant":
                _check_reply(text, f"{field}[{first + i}].{what}")
        role = record.get("role", "executor")
        if role not in ROLES:
            raise ValueError(f"role is {role!r}; it must be one of {', '.join(ROLES)}")
        task_id = record.get("task_id", said[0][1])
        if not isinstance(task_id, str):
            raise ValueError(f"task_id is {task_id!r}; it must be a string")
    except ValueError as error:
        raise ExamplesError(f"{where}: {error}") from error
    turns = tuple((said[i][1], said[i + 1][1]) for i in range(0, len(said), 2))
    return Example(role, system, turns, task_id)


def _message(message: Any, place: str, who: str, what: str) -> tuple[str, str]:
    """(speaker, text) of one message. Raises ValueError."""
    if not isinstance(message, dict):
        raise ValueError(f"{place} is {type(message).__name__}, not an object")
    speaker, text = message.get(who), message.get(what)
    if not isinstance(text, str):
        raise ValueError(f"{place}.{what} is {text!r}; it must be a string")
    return SHARE_GPT.get(speaker, speaker) if isinstance(speaker, str) else repr(speaker), text


def _check_reply(text: str, place: str) -> None:
    """Raises ValueError for a reply that no sampling in no-thinking mode would give."""
    if not text.strip():
        raise ValueError(f"{place} is empty; there is nothing to learn")
    if marker := next((m for m in MARKERS if m in text), None):
        raise ValueError(
            f"{place} holds {marker}: the template's markers and the thinking are no part of a reply; take them out"
        )


def trajectory(chat: Chat, example: Example) -> Trajectory:
    """The ids that the rollout would have sent and sampled: prompts and the empty think block are context; replies and
    the stop id that ends each are learned."""
    ids: list[int] = []
    mask: list[bool] = []
    for user, reply in example.turns:
        ids = chat.extend(ids, user) if ids else chat.prompt(example.system, user)
        mask += [False] * (len(ids) - len(mask))
        ids += [*chat.encode(reply), chat.stop_ids[0]]
        mask += [True] * (len(ids) - len(mask))
    return Trajectory(tuple(ids), tuple(mask), (0.0,) * len(ids), role=example.role, task_id=example.task_id)


def order(roles: Sequence[Role], seed: int, epoch: int) -> list[int]:
    """Every index once, shuffled within its role; the roles are mixed evenly, so that any stretch of it holds about the
    same share of each."""
    rng = random.Random(f"examples/{seed}/{epoch}")
    placed = []
    for role in ROLES:
        mine = [i for i, r in enumerate(roles) if r == role]
        rng.shuffle(mine)
        placed += [((k + rng.random()) / len(mine), i) for k, i in enumerate(mine)]
    return [i for _, i in sorted(placed)]


def cut(sequence: Iterable[int], lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """A sequence of indices as runs of about equally many tokens, `tokens` at most on average: none is a small rest."""
    sequence = list(sequence)
    total = sum(lengths[i] for i in sequence)
    each = total / max(1, math.ceil(total / tokens))
    runs: dict[int, list[int]] = {}
    before = 0
    for i in sequence:
        runs.setdefault(int((before + lengths[i] / 2) / each), []).append(i)  # where its middle lies
        before += lengths[i]
    return list(runs.values())


def weigh(batch: Batch, designer: float) -> Batch:
    """The batch with token weights that sum to 1 over both roles, whatever it is cut into afterwards.

    Args:
      designer: the part that all Designer tokens have together, alike among themselves, as the others are; where only
        one role is in the batch, it has all. 0: every token weighs alike.
    """
    if not designer:
        return batch._replace(weights=(batch.mask / batch.mask.sum()).astype(np.float32))
    share = np.where(batch.roles == ROLES.index("designer") + 1, designer, 1 - designer)
    weights = batch.weights * share  # those of `pack` sum to 1 for each role
    return batch._replace(weights=(weights / weights.sum()).astype(np.float32))


def roles_in(batch: Batch) -> list[Role]:
    """Who learns from a batch."""
    return [role for code, role in enumerate(ROLES, 1) if (batch.roles == code).any()]


def skipped_last(lines: Sequence[Mapping[str, Any]]) -> int:
    """How many of the last updates of `metrics.jsonl` were skipped, one after the other."""
    return next((n for n, line in enumerate(reversed(lines)) if not line.get("nonfinite")), len(lines))


@dataclasses.dataclass(frozen=True)
class Pool:
    """The examples of a job as rows, in the order in which they are learned.

    Attributes:
      model, tokenizer: the network, and the folder of the tokenizer that made the rows.
      rows: what is learned. updates: the indices of the rows of each update.
      held: what is never learned. origins: what became of each file.
    """

    model: Qwen3Config
    tokenizer: str
    settings: Settings
    rows: Sequence[Trajectory]
    updates: Sequence[Sequence[int]]
    held: Sequence[Trajectory]
    origins: Sequence[Mapping[str, Any]]

    def batch(self, learner: Learner, update: int) -> Batch:
        """The batch of an update, 0 for the first."""
        return self._packed(learner, [self.rows[i] for i in self.updates[update]])

    def epoch(self, updates: int) -> float:
        """How often the examples have been seen after so many updates."""
        return sum(map(len, self.updates[:updates])) / len(self.rows)

    def metrics(self, update: int, batch: Batch, line: Mapping[str, float], seconds: float) -> dict[str, float]:
        """What is noted of an update, 1 for the first.

        Args:
          line: of `Learner.supervised_update`. seconds: that it took.

        Returns:
          `line` with `loss/<role>` as mean of -log-prob of the role's tokens; `examples`, `epoch`, `tokens` (with
          context), `time/tokens_per_s`.
        """
        out = {k: v for k, v in line.items() if not k.startswith("loss/")}
        for code, role in enumerate(ROLES, 1):
            if share := float(batch.weights[batch.roles == code].sum(dtype=np.float64)):
                out[f"loss/{role}"] = line[f"loss/{role}"] / share
        tokens = float((batch.segment_ids > 0).sum())
        out |= {"examples": float(len(self.updates[update - 1])), "epoch": self.epoch(update), "tokens": tokens}
        return out | {"time/tokens_per_s": tokens / seconds}

    def held_out_loss(self, learner: Learner, params: Params) -> dict[str, float]:
        """`held_out/loss/<role>`: mean of -log-prob of the held-out tokens; `held_out/loss`: of both, as weighed in
        training. Nothing if none are held out."""
        nll: dict[str, float] = dict.fromkeys(ROLES, 0.0)
        count: dict[str, int] = dict.fromkeys(ROLES, 0)
        for run in cut(range(len(self.held)), [len(t.tokens) for t in self.held], _tokens(self.settings)):
            batch = self._packed(learner, [self.held[i] for i in run])
            logp = learner.logprobs(params, batch)
            for code, role in enumerate(ROLES, 1):
                mine = batch.mask & (batch.roles == code)
                nll[role] -= float(logp[mine].sum(dtype=np.float64))
                count[role] += int(mine.sum())
        seen = [role for role in ROLES if count[role]]
        loss = {role: nll[role] / count[role] for role in seen}
        designer = self.settings.examples.designer
        share: Mapping[str, float] = {"designer": designer, "executor": 1 - designer} if designer else count
        total = sum(share[role] for role in seen)
        out = {f"held_out/loss/{role}": loss[role] for role in seen}
        return out | ({"held_out/loss": sum(share[r] * loss[r] for r in seen) / total} if seen else {})

    def _packed(self, learner: Learner, rows: Sequence[Trajectory]) -> Batch:
        s = self.settings.sft
        batch = pack(rows, s.row_tokens, rows_multiple=s.rows, row_segments=learner.row_segments)
        return weigh(batch, self.settings.examples.designer)


def open_pool(c: Settings, console: Console | None = None) -> Pool:
    """Reads the files of `examples.files`; trains a tokenizer on them if the settings name none. `c` is not changed.

    Progress is shown on `console`, if that is a terminal.

    Raises:
      ExamplesError: a line that is no example. ConfigError: examples that these settings cannot be used for.
    """
    e, s = c.examples, c.sft
    files = {path: read(path) for path in e.files}
    apart = {path: [held_out(x.task_id, e.hold_out) for x in found] for path, found in files.items()}
    kept = [x for path, found in files.items() for x, away in zip(found, apart[path], strict=True) if not away]
    model, tokenizer = _network(c, kept)
    chat = chat_for(tokenizer)
    rows: list[Trajectory] = []
    held: list[Trajectory] = []
    origins = []
    for path, found in files.items():
        hidden = console is None or not console.is_terminal
        shown = track(found, f"reading {path}", console=console, transient=True, disable=hidden)
        made = [trajectory(chat, x) for x in shown]
        fits = [len(t.tokens) - 1 <= s.row_tokens for t in made]  # the last id is no input
        sides = list(zip(made, fits, apart[path], strict=True))
        rows += (mine := [t for t, ok, away in sides if ok and not away])
        held += (others := [t for t, ok, away in sides if ok and away])
        origins.append(
            {
                "use": "train", "name": path, "read": len(found), "too_long": len(found) - sum(fits),
                "held_out": len(others), **{role: sum(t.role == role for t in mine) for role in ROLES},
                "tasks": len({x.task_id for x in found}), "hash": _hash([path]),
            }
        )  # fmt: skip
    _check(c, rows, held)
    roles: list[Role] = [t.role for t in rows]
    sequence = (i for epoch in range(e.epochs) for i in order(roles, c.seed, epoch))
    updates = cut(sequence, [len(t.tokens) for t in rows], _tokens(c))
    if len(updates) <= s.warmup_steps:
        raise ConfigError(
            f"sft.warmup_steps={s.warmup_steps}, but {len(rows)} examples give {len(updates)} updates in "
            f"examples.epochs={e.epochs}; shorten the warm-up, lower sft.rows, or raise the epochs"
        )
    return Pool(model, tokenizer, c, rows, updates, held, origins)


def table(pool: Pool) -> Table:
    """What every file gave and what was left out."""
    view = Table(title="examples")
    view.add_column("file", overflow="fold")
    for name in ("examples", "too long", "held out", *ROLES):
        view.add_column(name, justify="right", no_wrap=True)
    for o in pool.origins:
        view.add_row(o["name"], *(f"{o[k]:,}" for k in ("read", "too_long", "held_out", *ROLES)))
    learned = {role: sum(sum(t.mask) for t in pool.rows if t.role == role) for role in ROLES}
    view.add_section()
    view.add_row("tokens learned in an epoch", "", "", "", *(f"{learned[role]:,}" for role in ROLES))
    return view


def told(line: Mapping[str, Any]) -> str:
    """A line of `metrics.jsonl` in words: how far, the losses of both roles, of what is learned and of what is held
    out; those that are not finite are left out."""
    losses = ", ".join(f"{name} {line[f'loss/{name}']:.3f}" for name in ROLES if line.get(f"loss/{name}"))
    sides = [(name, line.get(f"held_out/loss/{name}")) for name in ROLES]  # None: not finite
    held = ", ".join(f"{name} {loss:.3f}" for name, loss in sides if loss is not None)
    rate = f", {line['time/tokens_per_s']:,.0f} tokens/s" if line["step"] else ""
    done = f"{line['step']:5d} updates, {line.get('epoch', 0):.2f} epochs"
    return f"{done}: loss {losses or '-'}; held out {held or '-'}{rate}"


def _tokens(c: Settings) -> int:
    """Tokens that the examples of one update have, on average at most."""
    return int(c.sft.fill * c.sft.rows * c.sft.row_tokens)


def _network(c: Settings, kept: Sequence[Example]) -> tuple[Qwen3Config, str]:
    """The network and the folder of its tokenizer. One that is trained lies where cold starts do, by a hash."""
    mixed = order([x.role for x in kept], c.seed, 0)[: c.sft.tokenizer_examples]
    texts = (text for i in mixed for text in kept[i].texts())
    key = [c.seed, c.sft.vocab_size, c.sft.tokenizer_examples, c.examples.hold_out, _hash(c.examples.files)]
    folder = Path(c.sft.cache) / hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    named = c.copy_and_resolve_references()
    return assemble.network(named, folder, texts), named.tokenizer


def _hash(paths: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()[:16]


def _check(c: Settings, rows: Sequence[Trajectory], held: Sequence[Trajectory]) -> None:
    """Raises ConfigError for examples that cannot be mixed or measured as the settings say."""
    e, files = c.examples, ", ".join(c.examples.files)
    if not rows:
        raise ConfigError(f"nothing is left to learn of {files}: lower examples.hold_out or raise sft.row_tokens")
    if e.hold_out and not held:
        raise ConfigError(f"examples.hold_out={e.hold_out} holds out nothing of {files}; raise it, or set it to 0")
    present = {t.role for t in rows}
    if e.designer and (missing := [role for role in ROLES if role not in present]):
        raise ConfigError(
            f"examples.designer={e.designer} is the Designer's share, but {files} have no example of the {missing[0]}; "
            "add some, or set it to 0: every token weighs alike"
        )
