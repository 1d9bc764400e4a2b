"""What single jobs need beyond training: groups of settings with their defaults and their checks.

A config file asks for them by name: `base("examples")`. `config` reads the tables at the end.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_collections

from metaagent_x.setting import ConfigError, Settings, is_address


def _examples() -> Settings:
    """What `sft.py` learns from. How it learns: the optimizer, the rows, `fill` and `eval_every` of the group `sft`,
    whose other fields are of the cold start on generated examples. `steps` becomes the number of updates."""
    e: Settings = ml_collections.ConfigDict()
    e.files = ()  # JSONL, one conversation a line (examples.py)
    e.epochs = 2  # so often is every example seen; over all of them the rate falls to 0 (cosine)
    e.designer = 0.3  # the Designer's share in the loss of every update; 0: every token weighs alike
    e.hold_out = 0.02  # share of the tasks whose examples are measured and never learned, by a hash of the id
    return e


def _teacher() -> Settings:
    """Whose answers `distill` keeps: any endpoint of OpenAI's protocol. Its key stands in OPENAI_API_KEY."""
    t: Settings = ml_collections.ConfigDict()
    t.url = ""  # up to and with the version: https://HOST/v1
    t.model = ""  # its name there
    t.prompt_price = 0.0  # of a million tokens, in the currency of distill.budget
    t.completion_price = 0.0
    t.requests_per_minute = 0  # limits of the endpoint; 0: none
    t.tokens_per_minute = 0
    t.concurrency = 32  # attempts, and requests, at a time
    t.timeout_s = 600.0  # one try of a request
    t.tries = 8  # of one request
    return t


def _distill() -> Settings:
    d: Settings = ml_collections.ConfigDict()
    d.designers = 3000  # examples wanted
    d.executors = 8000
    d.attempts = 4  # designs a task, each played once; the best right one is kept
    d.templates = (2, 3)  # workflow templates shown to the teacher's Designer, fewest and most; (0, 0): none
    d.round = 64  # tasks between two looks at what is still wanted
    d.budget = 0.0  # nothing more is begun once so much is spent; 0: no limit
    d.quotas = ml_collections.ConfigDict()  # ((value, most share of each role's examples), ...); (): no limit
    d.quotas.dataset = ()  # as named in data.train
    d.quotas.structure = ()  # of mas.classify
    d.quotas.difficulty = ()
    d.same_script = 0.1  # most share of Designer examples with one script
    d.replies = 1  # right replies to one prompt, the shortest first
    d.per_task = 6  # Executor examples of one task at most
    d.near = 0.8  # Jaccard index of 5-word shingles from which on two examples are the same; 1.0: only if equal
    d.reasoning_chars = 80  # that a Designer must say besides its script
    d.benchmarks = ()  # (name, path): tasks that share 13 words in a row with one of these are never asked
    return d


def _evaluate() -> Settings:
    """What `evaluate.py` and `solve.py` need besides."""
    e: Settings = ml_collections.ConfigDict()
    e.model = ""  # a run folder, a Hugging Face folder, or the URL of an endpoint up to and with its version
    e.step = -1  # of a run folder: its checkpoint; -1: the newest
    e.weights = ""  # filled in: which weights these are: by sizes and times of files, those of a run by checksums
    e.methods = ("metaagent_x", "single")  # of baselines.registry, with their options
    e.benchmarks = ()  # (name with its options, path): datasets, or generated families
    e.limit = 0  # tasks of each benchmark; 0: all
    e.samples = 1  # how often every task is played
    e.runs = (("aime24", 3), ("aime25", 3), ("amc23", 3))  # benchmarks that are played more often, if `samples` is less
    e.generated = 512  # test tasks of a generated family
    e.in_flight = 64  # tasks that are played at a time
    # Of all methods and both roles alike. At 0, on the built-in engine, samples of one task are copies of each other.
    e.temperature = 0.0
    e.top_p = 1.0
    e.top_k = -1
    e.min_p = 0.0
    e.repetition_penalty = 1.0
    e.members = 5  # samples that single_majority votes over
    e.vote_temperature = 0.7  # of such samples where `temperature` is 0
    e.level = 0.95  # of intervals
    e.resamples = 10_000
    e.published = ""  # size of the model, "4B" or "8B", whose published figures stand beside; "": by the network
    return e


def _check_examples(c: Settings) -> None:
    files, each = c.examples.files, c.sft.micro_rows * c.mesh.fsdp
    if not files or not all(isinstance(path, str) and path for path in files):
        raise ConfigError(
            f"examples.files={files!r} must name at least one file, e.g. ('designer.jsonl', 'executor.jsonl')"
        )
    if len(set(files)) < len(files):
        raise ConfigError(f"examples.files={files!r} names a file twice; raise examples.epochs to see all more often")
    if c.sft.rows % each:
        raise ConfigError(
            f"sft.rows={c.sft.rows} is no multiple of sft.micro_rows={c.sft.micro_rows} x mesh.fsdp={c.mesh.fsdp}; set "
            f"it to {-(-c.sft.rows // each) * each}"
        )
    if not 0 < c.sft.fill <= 1:
        raise ConfigError(f"sft.fill={c.sft.fill} must be above 0 and at most 1")


def _check_distill(c: Settings) -> None:
    d, t = c.distill, c.teacher
    if not is_address(t.url) or not t.model:
        raise ConfigError(
            f"teacher.url={t.url!r} and teacher.model={t.model!r}: name the endpoint, up to and with its version "
            "('https://HOST/v1'), and the model"
        )
    if d.designers + d.executors == 0:
        raise ConfigError("distill.designers=0 and distill.executors=0: there is nothing to do; raise one")
    if (
        len(d.templates) != 2
        or not all(type(n) is int for n in d.templates)
        or not 0 <= d.templates[0] <= d.templates[1]
    ):
        raise ConfigError(f"distill.templates={d.templates!r} must be the fewest and the most to show, such as (2, 3)")
    for field, quotas in d.quotas.items():
        for entry in quotas:
            if not (isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str) and 0 < entry[1] <= 1):
                raise ConfigError(
                    f"distill.quotas.{field} holds {entry!r}; every entry must be (value, share), such as "
                    "('single', 0.4)"
                )
    names = {name for name, _, _ in c.data.train}
    if unknown := next((name for name, _ in d.quotas.dataset if name not in names), None):
        raise ConfigError(f"distill.quotas.dataset names {unknown!r}, which is not in data.train: {sorted(names)}")
    for entry in d.benchmarks:
        if not (isinstance(entry, tuple) and len(entry) == 2 and all(isinstance(part, str) for part in entry)):
            raise ConfigError(
                f"distill.benchmarks holds {entry!r}; every entry must be (name, path), path '' for data/"
            )
    if d.budget and not (t.prompt_price or t.completion_price):
        raise ConfigError(
            f"distill.budget={d.budget} with teacher.prompt_price=0 and teacher.completion_price=0 would never be "
            "spent; say what a million tokens cost"
        )


def _check_evaluation(c: Settings) -> None:
    e = c.evaluate
    for field, form, example in (("benchmarks", (str, str), "('aime24', '')"), ("runs", (str, int), "('aime24', 3)")):
        if wrong := [x for x in e[field] if not isinstance(x, tuple) or tuple(map(type, x)) != form]:
            raise ConfigError(f"evaluate.{field} holds {wrong[0]!r}; every entry must be like {example}")
    if wrong := [x for x in e.methods if not isinstance(x, str)]:
        raise ConfigError(f"evaluate.methods holds {wrong[0]!r}; every entry must be a name, like 'single'")
    if not (0 < e.top_p <= 1 and e.level > 0 and e.vote_temperature > 0 and e.repetition_penalty > 0):
        raise ConfigError(
            f"evaluate.top_p={e.top_p}, level={e.level}, vote_temperature={e.vote_temperature}, "
            f"repetition_penalty={e.repetition_penalty}: all must be above 0, and top_p at most 1"
        )
    plain = (e.top_p, e.min_p, e.repetition_penalty) == (1.0, 0.0, 1.0) and e.top_k in (-1, 0)
    if c.engine.kind == "jax" and not plain:
        raise ConfigError(
            f"evaluate.top_p={e.top_p}, top_k={e.top_k}, min_p={e.min_p}, repetition_penalty={e.repetition_penalty} "
            "with engine.kind='jax': the built-in engine samples plainly (1.0, -1, 0.0, 1.0); use engine.kind='vllm'"
        )


GROUPS: dict[str, Callable[[], Settings]] = {
    "examples": _examples, "teacher": _teacher, "distill": _distill, "evaluate": _evaluate,
}  # fmt: skip
CHECKS: dict[str, Callable[[Settings], None]] = {
    "examples": _check_examples, "distill": _check_distill, "evaluate": _check_evaluation,
}  # fmt: skip
CHOICES = {"evaluate.published": ("", "4B", "8B")}
AT_LEAST = {
    "examples.epochs": 1, "examples.designer": 0, "examples.hold_out": 0,
    "teacher.prompt_price": 0, "teacher.completion_price": 0, "teacher.requests_per_minute": 0,
    "teacher.tokens_per_minute": 0, "teacher.concurrency": 1, "teacher.timeout_s": 0.1, "teacher.tries": 1,
    "distill.designers": 0, "distill.executors": 0, "distill.attempts": 1, "distill.round": 1, "distill.budget": 0,
    "distill.same_script": 0, "distill.replies": 1, "distill.per_task": 1, "distill.near": 0,
    "distill.reasoning_chars": 0,
    "evaluate.step": -1, "evaluate.limit": 0, "evaluate.samples": 1, "evaluate.generated": 1, "evaluate.in_flight": 1,
    "evaluate.temperature": 0, "evaluate.members": 2, "evaluate.resamples": 1,
}  # fmt: skip
BELOW_ONE = ("evaluate.level", "examples.designer", "examples.hold_out")
