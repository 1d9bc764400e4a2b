"""Opens the data sets of a job: what trains, what validates (dev), what judges (test), what is left out and why."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from metaagent_x.config import ConfigError, Settings
from metaagent_x.mas import prompts as prompt_sets
from metaagent_x.mas.records import Budget
from metaagent_x.rollout.play import chat_for
from metaagent_x.tasks import datasets, families, splits
from metaagent_x.tasks.datasets import DatasetError, Pairs
from metaagent_x.tasks.datasets.overlap import normalise
from metaagent_x.tasks.mixture import Mixture, fingerprint
from metaagent_x.tasks.task import Task

JOIN = 8  # tokens that a task may grow by when it is joined to the text around it
DUPLICATE = "asked in the dev or test split"


@dataclasses.dataclass(frozen=True)
class Origin:
    """What became of one data set.

    Attributes:
      use: "train", "dev" or "test". name: with its options, and its path where the name alone would be ambiguous.
      read: rows read. dropped: rows that cannot be graded and tasks that must not be trained on, by reason.
      public_only: tasks of a code benchmark that have no hidden test.
      too_long: tasks of more tokens than `data.max_task_tokens`. dev: tasks held out for validation.
      tasks: those that are left for this use. hash: of what these and the held-out ones ask and count as right.
    """

    use: str
    name: str
    read: int
    dropped: dict[str, int]
    public_only: int
    too_long: int
    dev: int
    tasks: int
    hash: str


@dataclasses.dataclass(frozen=True)
class Pools:
    """Tasks by use. `train` is drawn from by step; `dev` decides, `test` judges. `origins`: one for each entry."""

    train: Mixture
    dev: Pairs
    test: Pairs
    origins: tuple[Origin, ...] = ()


@dataclasses.dataclass
class _Set:
    """One entry of `data.train`, `data.dev` or `data.test` while it is sorted out."""

    use: str
    label: str
    name: str
    share: float
    pairs: Pairs
    dropped: collections.Counter[str]
    read: int
    too_long: int = 0
    held: Pairs = dataclasses.field(default_factory=list)

    @property
    def generated(self) -> bool:
        return self.name in families.NAMES

    def origin(self) -> Origin:
        pairs = self.pairs + self.held
        return Origin(
            self.use, self.label, self.read, dict(self.dropped), len(datasets.public_only(pairs)), self.too_long,
            len(self.held), len(self.pairs), fingerprint(pairs),
        )  # fmt: skip


def open_pools(config: Settings) -> Pools:
    """Opens every data set that the job names.

    Tasks of real data sets that are too long for the prompts are left out of training and dev; test sets are played
    whole. With `data.hold_out`, that share of every training set becomes the dev split, chosen by a hash of the task's
    id. A question of the dev or test sets is not trained on under another id either.

    Raises (before any compute is spent):
      DatasetError: a set is missing, unreadable, empty, or a benchmark that must not be trained or validated on.
      ConfigError: no task can fit the prompts; a real data set with a tokenizer that does not exist yet.
    """
    d = config.data
    for use in ("train", "dev"):
        for name, path, _ in d[use]:
            if (why := splits.benchmark(name, path)) and not d.allow_benchmarks:
                raise DatasetError(
                    f"data.{use} names {name!r}, but {why}: a result on it would mean nothing afterwards; name it in "
                    "data.test, or set data.allow_benchmarks=True to do without that result"
                )
    train, dev, test = (_open(config, use) for use in ("train", "dev", "test"))
    fit = [s for s in (*train, *dev) if not s.generated]
    if fit:
        _leave_out_long(fit, config)
    for s in train:
        if not s.generated and d.hold_out:
            sides: tuple[Pairs, Pairs] = ([], [])
            for pair in s.pairs:
                sides[splits.held_out(pair[0].id, d.hold_out)].append(pair)
            s.pairs, s.held = sides
    _leave_out_asked(train, [*(s.held for s in train), *(s.pairs for s in (*dev, *test))])
    held = [(sorted(s.held, key=lambda pair: splits.place(pair[0].id)), s.share) for s in train]
    dev_pairs = _interleaved([*held, *((s.pairs, s.share) for s in dev)], d.dev_size)
    if d.hold_out and not dev_pairs:
        raise DatasetError(f"data.hold_out={d.hold_out} holds no task out of {[s.label for s in train]}; raise it")
    host = (jax.process_index(), jax.process_count()) if jax.distributed.is_initialized() else (0, 1)
    mixture = Mixture(
        {s.label: s.pairs for s in train}, {s.label: s.share for s in train}, config.batch, config.seed,
        host=host[0], hosts=host[1],
    )  # fmt: skip
    test_pairs = _interleaved([(s.pairs, s.share) for s in test], d.test_size)
    return Pools(mixture, dev_pairs, test_pairs, tuple(s.origin() for s in (*train, *dev, *test)))


def room_for_tasks(config: Settings) -> int:
    """Tokens a task may have so that the Designer and every role of the templates read it whole.

    What later turns add (earlier texts, reviews, failures) may still be cut, and is counted where it is.

    Raises:
      ConfigError: there is no room at all, or less than `data.max_task_tokens` asks for.
    """
    r, asked = config.rollout, config.data.max_task_tokens
    prompts, chat = prompt_sets.get(r.prompts).within(Budget(**r.budget)), chat_for(config.tokenizer)
    around = [chat.prompt(prompts.designer_system, prompts.designer_user(Task("", "math", "")))]
    for kind, roles in prompts.roles.items():
        styles = ("", *prompts.styles[kind])
        around += [chat.prompt(prompts.role(role, kind, style), "") for role in roles for style in styles]
    taken = max(map(len, around)) + JOIN
    room = r.max_prompt_tokens - taken
    if room < max(asked, 1):
        raise ConfigError(
            f"data.max_task_tokens={asked}: the prompts take up to {taken} tokens, which leaves {room} of "
            f"rollout.max_prompt_tokens={r.max_prompt_tokens} for a task; raise the latter"
        )
    return asked or room


def _open(config: Settings, use: families.Split) -> list[_Set]:
    entries = config.data[use]
    names = [name for name, _, _ in entries]
    size = config.data[f"{use}_size"]
    out = []
    for name, path, share in entries:
        label = name if names.count(name) == 1 else f"{name} {path}".rstrip()
        dropped: collections.Counter[str] = collections.Counter()
        if name in families.NAMES:
            # A number for each training set; dev and test sizes are those of all sets together.
            count = size if use == "train" else _part(size, share)
            seed = 0 if use == "test" else config.seed
            pairs = families.generate(families.NAMES[name], use, count, seed=seed)
        else:
            pairs, dropped = datasets.load_report(name, path or None)
            if not pairs:
                raise DatasetError(f"data.{use}: {label!r} holds no usable task; dropped: {dict(dropped) or 'nothing'}")
        out.append(_Set(use, label, name, share, pairs, dropped, len(pairs) + dropped.total()))
    return out


def _part(size: int, share: float) -> int:
    return int(size * share + 1e-9)


def _leave_out_long(sets: Sequence[_Set], config: Settings) -> None:
    if not config.tokenizer and config.sft.max_steps:
        raise ConfigError(
            f"tokenizer='': it is trained on generated tasks, and data names {sets[0].label!r}; give a folder with "
            "tokenizer.json"
        )
    limit, lengths = room_for_tasks(config), chat_for(config.tokenizer).lengths
    for s in sets:
        # A token is at least a byte, and Unicode normalisation makes a text at most three times as long in bytes.
        doubtful = [i for i, (task, _) in enumerate(s.pairs) if 3 * len(task.prompt.encode("utf-8", "replace")) > limit]
        counts = lengths([s.pairs[i][0].prompt for i in doubtful])
        long = {i for i, n in zip(doubtful, counts, strict=True) if n > limit}
        s.pairs, s.too_long = _without(s.pairs, lambda i, _, long=long: i in long), len(long)
        if not s.pairs:
            raise DatasetError(f"data.{s.use}: every task of {s.label!r} has more than {limit} tokens")


def _leave_out_asked(train: Sequence[_Set], others: Sequence[Pairs]) -> None:
    asked = {normalise(task.prompt) for pairs in others for task, _ in pairs}
    for s in train:
        if asked and not s.generated:  # generated splits are disjoint as they are made
            kept = _without(s.pairs, lambda _, task: normalise(task.prompt) in asked)
            s.dropped[DUPLICATE] += len(s.pairs) - len(kept)
            s.dropped, s.pairs = +s.dropped, kept
            if not kept:
                raise DatasetError(f"data.train: every task of {s.label!r} is {DUPLICATE}; nothing is left to train on")


def _without(pairs: Pairs, leave: Callable[[int, Task], Any]) -> Pairs:
    return [pair for i, pair in enumerate(pairs) if not leave(i, pair[0])]


def _interleaved(sets: Sequence[tuple[Pairs, float]], size: int) -> Pairs:
    """At most `size` tasks (0: all), of each set its share, in an order of which any head has these shares too."""
    order = []
    for number, (pairs, share) in enumerate(sets):
        kept = pairs[: _part(size, share)] if size else pairs
        order += [((i + 1) / share, number, pair) for i, pair in enumerate(kept)]
    return [pair for _, _, pair in sorted(order, key=lambda item: item[:2])]
