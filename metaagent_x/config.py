"""The one place where every setting of a run has its name, its default (the paper's where it states one) and its check.
What single jobs need beyond training stands in `job_settings`, and is reached through here all the same.

A config file in `configs/` calls `base()`, changes what it must and returns the result; flags and
`--config.x.y=value` change single fields. `validate` runs before any compute is spent.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys

import ml_collections
from absl import flags

from metaagent_x import job_settings
from metaagent_x.job_settings import GROUPS
from metaagent_x.setting import ConfigError, Settings, is_address

PHASES = ("cold_start", "collect", "update", "push", "save", "evaluate")  # of a run
# Limit, and what happens beyond it: off | warn (a line, also in alerts.jsonl) | stop (exit code 1) | roll_back (to the
# newest checkpoint from before the window, then on with other samples).
GUARDS = {
    "repetition": (0.5, "stop"),  # completions/repetition above
    "truncated": (0.5, "warn"),  # completions/truncated above
    "entropy": (0.01, "warn"),  # entropy below, nats a token
    "one_structure": (0.98, "warn"),  # structures/top_share above
    "flat": (0.95, "warn"),  # groups/flat/<role> of a role that learns, above
    "stale": (0.0, "warn"),  # calls/stale above
    "ratio": (0.1, "warn"),  # ratio/first_dev above
    "mismatch": (0.05, "warn"),  # mismatch/mean above, nats
    "mismatch_max": (5.0, "warn"),  # mismatch/max above, nats
}


def base(*groups: str) -> Settings:
    """Returns all settings with their defaults, and those groups of `GROUPS` that the job needs besides."""
    c: Settings = ml_collections.ConfigDict()
    c.seed = 0
    c.workdir = "runs/default"
    c.steps = 400  # RL steps, at most
    c.tokens = 0  # the run ends with the step in which so many tokens have been sampled, of both roles; 0: no limit
    c.batch = 8  # tasks per step: half math, half code
    c.designs = 4  # M, designs per task
    c.executions = 4  # N, executions per design
    c.policy = "shared"  # "shared": one set of weights plays both roles; "separate": one each
    c.schedule = "stagewise"  # stagewise | coupled | designer_only | executor_only
    c.stage_length = 30  # K, steps per stage, and between two evaluations under every schedule
    c.first = "executor"  # the role that learns in the first stage
    c.sandbox = "strict"  # "strict": refuse to run what cannot be contained; "process": limits only (macOS)
    c.tokenizer = ""  # folder with tokenizer.json; "" = trained on the cold-start examples (generated tasks only)

    c.model = ml_collections.ConfigDict()
    # Hugging Face folder with the starting weights, whose config.json then sets every size below (and its tokenizer, if
    # none is named); "" = random initialisation
    c.model.path = ""
    c.model.vocab_size = 151_936
    c.model.hidden_size = 2560
    c.model.num_layers = 36
    c.model.num_heads = 32
    c.model.num_kv_heads = 8
    c.model.head_dim = 128
    c.model.intermediate_size = 9728
    c.model.rope_theta = 1e6
    c.model.rms_norm_eps = 1e-6
    c.model.tie_embeddings = True
    c.model.qk_norm = True  # Qwen3; False with qkv_bias True: Qwen2 and 2.5
    c.model.qkv_bias = False
    c.model.max_positions = 40_960  # exported for other engines; limits nothing here
    c.model.compute_dtype = "bfloat16"  # master weights and Adam moments are float32 always
    c.model.attention = "xla"  # xla: anywhere; cudnn: NVIDIA GPUs from Hopper on, at most 32 trajectories in a row
    c.model.remat = "block"  # none | block | full
    c.model.unroll = 1  # layers in each step of the loop over layers: all of them, for a small network of few

    c.mesh = ml_collections.ConfigDict()
    c.mesh.fsdp = 1
    c.mesh.tensor = 1
    c.mesh.zero = 3  # ZeRO over fsdp: 3 gathers each layer when it is used; 1 all once an update, for more memory
    c.mesh.simulate = 0  # CPU: so many simulated devices

    c.data = ml_collections.ConfigDict()
    # (name with its options, path, share of every batch): half math, half code
    c.data.train = (("polaris", "", 0.5), ("apps:difficulty=introductory", "", 0.25), ("code_contests", "", 0.25))
    c.data.hold_out = 0.0  # share of every training set that validates and never trains, chosen by a hash of the id
    c.data.dev = ()  # instead of hold_out: sets of their own; dev tasks decide (cold start, gate), they are no result
    c.data.test = ()  # held-out evaluation: benchmarks, or generated tasks
    c.data.train_size = 0  # generated families: distinct training tasks of each kind
    c.data.dev_size = 0  # dev tasks of all sets together, by their shares; 0: all there are
    c.data.test_size = 0  # the same for test tasks
    c.data.max_task_tokens = 0  # longer tasks are left out of train and dev; 0: as long as the prompts leave room for
    c.data.allow_benchmarks = False  # True: train or validate on a benchmark, where the result is meant for nothing

    c.rollout = ml_collections.ConfigDict()
    c.rollout.temperature = 1.0
    c.rollout.top_p = 1.0
    c.rollout.top_k = -1
    c.rollout.min_p = 0.0
    c.rollout.repetition_penalty = 1.0
    c.rollout.max_prompt_tokens = 8192
    c.rollout.max_designer_tokens = 8192
    c.rollout.max_executor_tokens = 8192
    # full: the documented language; tiny: the few-token prompts of configs/tiny.py; published: the paper's checkpoint
    c.rollout.prompts = "full"
    c.rollout.concurrency = 256  # executions in flight
    c.rollout.design = ""  # a script that every task gets, and no Designer is asked; "": the Designer writes them
    c.rollout.forbid_answer_in_script = False
    c.rollout.budget = ml_collections.ConfigDict()
    c.rollout.budget.calls = 32
    c.rollout.budget.tokens = 131_072
    c.rollout.budget.depth = 6
    c.rollout.budget.tool_runs = 16
    c.rollout.budget.wall_s = 1200.0
    c.rollout.budget.cpu_s = 10.0
    c.rollout.budget.memory_mb = 512

    c.engine = ml_collections.ConfigDict()
    # jax: built in; vllm: large models; openai: any endpoint, to answer only; scripted: rehearsed samples
    c.engine.kind = "jax"
    c.engine.slots = 64  # sequences decoded together (vllm: by each server)
    c.engine.cache_tokens = 16_384  # prompt + completion of one sequence
    c.engine.chunk = 16  # jax: decode steps between two looks at the queue
    # From here on: vllm (docs/engines.md). openai uses urls, model and the time limit of a request.
    c.engine.python = ""  # interpreter of its environment; "": METAAGENT_X_VLLM_PYTHON, or what launch/ made
    c.engine.urls = ()  # running servers to attach to; (): start them. Policies of their own get equal parts, in order
    # to start for each policy; on GPUs, server i of every policy lives on one GPU. 0: one on each of the learner's
    c.engine.servers = 1
    c.engine.layout = "colocated"  # "colocated": on the learner's GPUs; "split": on those that come after them
    c.engine.memory_share = 0.5  # of a GPU, for all its servers; with "split", 0.9 is usual
    c.engine.in_flight = "keep"  # what is being sampled when new weights come: "keep": goes on; "abort": begins again
    c.engine.request_timeout_s = 900.0  # one request, one try
    c.engine.push_timeout_s = 300.0  # one call of an update of the weights; then the server is started again
    c.engine.start_timeout_s = 900.0  # until a started server answers, and for a restart
    c.engine.weights_dir = "/dev/shm"  # where weights pass from the learner to servers; all of them must see it
    c.engine.model = ""  # openai: name of the model that the endpoint is asked for

    c.reward = ml_collections.ConfigDict()
    c.reward.format_bonus = 0.4  # lambda
    c.reward.code = "fraction"  # fraction | all
    c.reward.call_cost = 0.0  # taken off the Designer's reward per agent call

    c.learner = ml_collections.ConfigDict()
    c.learner.learning_rate = 5e-6
    c.learner.warmup_steps = 0
    c.learner.b1 = 0.9
    c.learner.b2 = 0.999
    c.learner.weight_decay = 0.0
    c.learner.clip_norm = 1.0
    c.learner.row_tokens = 16_384  # length of a packed row
    c.learner.micro_rows = 1  # rows per device in one forward-backward
    c.learner.updates_per_step = 4
    c.learner.weigh = "trajectory"  # eq. 7 as written; "execution": each execution once
    c.learner.aggregate = "token_mean"  # token_mean | sequence_mean | group_mean | constant
    c.learner.constant_denominator = 0.0  # needed by aggregate="constant"
    c.learner.ratio = "token"  # token | sequence | sequence_geometric
    c.learner.clip_low = 0.2
    c.learner.clip_high = 0.2
    c.learner.dual_clip = 0.0  # 0 = off; the reference uses 3.0
    c.learner.kl = 0.0  # 0: no reference model exists
    c.learner.truncated = "train"  # train | mask
    c.learner.flat_groups = "keep"  # keep | top_up: sample more tasks when a whole batch carries no signal
    c.learner.correction_cap = 2.0  # min(exp(learner - engine), cap) weighs each token; 0: no correction

    c.sft = ml_collections.ConfigDict()
    c.sft.learning_rate = 3e-3
    c.sft.row_tokens = 256
    c.sft.rows = 8
    c.sft.max_steps = 0  # updates at most; the rate falls to 0 over so many (cosine); 0: no cold start
    c.sft.eval_every = 100  # updates between two measurements
    c.sft.first_eval = 100  # updates before the first one
    c.sft.eval_tasks = 128  # dev tasks played at each measurement
    c.sft.target = 0.45  # every kind at least so accurate at T=1, then the cold start ends
    c.sft.valid = 0.95  # and so many designs valid
    c.sft.vocab_size = 512  # entries of the byte-level BPE trained on the examples, and rows of the embedding
    c.sft.tokenizer_examples = 4000
    c.sft.fill = 0.9  # share of rows x row_tokens that the examples of one update fill
    c.sft.cache = "runs/cold_starts"  # kept by a hash of settings, seed and data
    c.sft.warmup_steps = 60
    c.sft.average = 0.98  # the cold start is a moving average of the weights with this decay
    c.sft.b1 = 0.9
    c.sft.b2 = 0.98
    c.sft.weight_decay = 0.01
    c.sft.clip_norm = 1.0
    c.sft.micro_rows = 8

    c.gate = ml_collections.ConfigDict()  # RL starts only inside these
    c.gate.enforce = True  # False: print the table and go on (smoke runs, ablations of the cold start)
    c.gate.tasks = 128  # dev tasks on which every structure is forced
    c.gate.low = 0.30
    c.gate.high = 0.70
    c.gate.valid = 0.90
    c.gate.spread = 0.10
    c.gate.stop_valid = 0.70  # RL stops below this share of valid designs (mean of guard.window steps)

    # What ends a run that goes wrong, and what is told (docs/operations.md). May be changed when a run goes on.
    c.guard = ml_collections.ConfigDict()
    c.guard.window = 4  # steps that a metric's mean is taken over
    c.guard.max_roll_backs = 2  # of a run, by all guards with action "roll_back"; then it stops
    c.guard.nonfinite = 3  # updates in a row skipped as not finite, then the run stops; 0: never
    c.guard.dumps = 3  # so many skipped updates are kept for --replay, each as large as the float32 weights; 0: none
    c.guard.stuck = "report"  # a phase over its limit: "report": say where all waits; "exit": and end the run
    for name in PHASES:
        c.guard[f"{name}_s"] = 3600.0  # limit of each phase, seconds; 0: none
    c.guard.heartbeat_s = 5.0  # between two lines of heartbeat.json
    for name, (limit, action) in GUARDS.items():
        c.guard[name] = ml_collections.ConfigDict({"limit": limit, "action": action})
    c.guard.valid = ml_collections.ConfigDict({"action": "stop"})  # designs/valid below gate.stop_valid

    c.eval = ml_collections.ConfigDict()
    c.eval.tasks = 512  # held-out tasks before and after
    c.eval.stage_tasks = 128  # after every stage_length steps
    c.eval.cross = True  # cross table: cold or RL Designer x cold or RL Executor

    c.checkpoint = ml_collections.ConfigDict()
    c.checkpoint.every = 10
    c.checkpoint.keep = 2  # the newest
    c.checkpoint.keep_every = 0  # steps that are a multiple of this stay for good; 0: none
    c.checkpoint.best = False  # the best on dev tasks stays as well, of those measured after every stage_length steps
    for group in groups:
        c[group] = GROUPS[group]()
    return c


CHOICES = {
    "policy": ("shared", "separate"),
    "sandbox": ("strict", "process"),
    "schedule": ("stagewise", "coupled", "designer_only", "executor_only"),
    "first": ("executor", "designer"),
    "model.compute_dtype": ("float32", "bfloat16"),
    "model.attention": ("xla", "cudnn"),
    "model.remat": ("none", "block", "full"),
    "rollout.prompts": ("full", "tiny", "published"),
    "engine.kind": ("jax", "vllm", "openai", "scripted"),
    "engine.layout": ("colocated", "split"),
    "engine.in_flight": ("keep", "abort"),
    "reward.code": ("fraction", "all"),
    "learner.weigh": ("trajectory", "execution"),
    "learner.aggregate": ("token_mean", "sequence_mean", "group_mean", "constant"),
    "learner.ratio": ("token", "sequence", "sequence_geometric"),
    "learner.truncated": ("train", "mask"),
    "mesh.zero": (1, 3),
    "learner.flat_groups": ("keep", "top_up"),
    "guard.stuck": ("report", "exit"),
    **{f"guard.{name}.action": ("off", "warn", "stop", "roll_back") for name in (*GUARDS, "valid")},
    **job_settings.CHOICES,
}
AT_LEAST = {
    "steps": 0, "tokens": 0, "batch": 1, "designs": 1, "executions": 1, "stage_length": 1,
    "rollout.max_prompt_tokens": 1, "rollout.max_designer_tokens": 1, "rollout.max_executor_tokens": 1,
    "rollout.concurrency": 1, "engine.slots": 1, "engine.chunk": 1, "learner.row_tokens": 2, "learner.micro_rows": 1,
    "learner.updates_per_step": 1,
    "checkpoint.every": 1, "checkpoint.keep": 1, "checkpoint.keep_every": 0, "mesh.fsdp": 1, "mesh.tensor": 1,
    "rollout.temperature": 0, "learner.kl": 0, "reward.call_cost": 0, "reward.format_bonus": 0,
    "learner.learning_rate": 0, "seed": 0, "mesh.simulate": 0, "data.train_size": 0, "data.dev_size": 0,
    "data.test_size": 0, "data.hold_out": 0, "data.max_task_tokens": 0, "engine.cache_tokens": 2,
    "rollout.budget.calls": 1, "rollout.budget.tokens": 1, "rollout.budget.depth": 0, "rollout.budget.tool_runs": 0,
    "rollout.budget.wall_s": 0.1, "rollout.budget.cpu_s": 0.1, "rollout.budget.memory_mb": 1,
    "learner.warmup_steps": 0, "learner.b1": 0, "learner.b2": 0, "learner.weight_decay": 0, "learner.clip_norm": 0,
    "learner.clip_low": 0, "learner.clip_high": 0, "learner.correction_cap": 0, "sft.learning_rate": 0,
    "sft.row_tokens": 2, "sft.rows": 1, "sft.micro_rows": 1, "sft.max_steps": 0, "sft.eval_every": 1,
    "sft.eval_tasks": 1, "sft.warmup_steps": 0, "sft.average": 0, "sft.b1": 0, "sft.b2": 0, "gate.tasks": 1,
    "eval.tasks": 0, "eval.stage_tasks": 0, "engine.memory_share": 0, "engine.servers": 0,
    "engine.request_timeout_s": 0.1, "engine.push_timeout_s": 0.1, "engine.start_timeout_s": 1,
    "guard.window": 1, "guard.max_roll_backs": 0, "guard.nonfinite": 0, "guard.dumps": 0, "guard.heartbeat_s": 0.01,
    **{f"guard.{name}_s": 0 for name in PHASES},
    **job_settings.AT_LEAST,
}  # fmt: skip
BELOW_ONE = (
    "data.hold_out", "engine.memory_share", "learner.b1", "learner.b2", "learner.clip_low", "sft.b1", "sft.b2",
    "sft.average", *job_settings.BELOW_ONE,
)  # fmt: skip


def fingerprint(c: Settings) -> str:
    """Hash of all settings: the same for the same values, whatever set them."""
    return hashlib.sha256(json.dumps(c.to_dict(), sort_keys=True).encode()).hexdigest()[:16]


def get(config: Settings, field: str) -> object:
    """The value of a dotted field name."""
    for part in field.split("."):
        config = config[part]
    return config


def _has(c: Settings, field: str) -> bool:
    """Whether the settings have the group that a field is in: that of another job they do not."""
    return field.split(".")[0] in c


def validate(c: Settings) -> None:
    """Refuses settings that cannot work, before anything is loaded or compiled.

    Raises:
      ConfigError: unknown field, wrong type, value out of range, lengths that cannot fit, groups that cannot learn.
    """
    _check_fields(c, base(*(group for group in GROUPS if group in c)), "")
    for field, allowed in CHOICES.items():
        if _has(c, field) and get(c, field) not in allowed:
            raise ConfigError(f"{field}={get(c, field)!r} is not one of {', '.join(map(str, allowed))}")
    for field, low in AT_LEAST.items():
        if _has(c, field) and get(c, field) < low:  # type: ignore[operator]
            raise ConfigError(f"{field}={get(c, field)} must be at least {low}")
    for field in BELOW_ONE:
        if _has(c, field) and get(c, field) >= 1:  # type: ignore[operator]
            raise ConfigError(f"{field}={get(c, field)} must be below 1")
    if c.learner.dual_clip and c.learner.dual_clip <= 1:
        raise ConfigError(f"learner.dual_clip={c.learner.dual_clip} must be above 1, or 0 to turn it off")
    _check_groups(c)
    _check_sampling(c)
    _check_lengths(c)
    _check_servers(c)
    if c.learner.aggregate == "constant" and c.learner.constant_denominator <= 0:
        raise ConfigError("learner.aggregate='constant' needs learner.constant_denominator above 0 (tokens per update)")
    _check_data(c)
    for group, check in job_settings.CHECKS.items():
        if group in c:
            check(c)


def _check_fields(c: Settings, reference: Settings, prefix: str) -> None:
    for name in c:
        if name not in reference:
            known = ", ".join(sorted(reference))
            raise ConfigError(f"unknown field {prefix}{name}; known here: {known}")
    for name, default in reference.items():
        value = c.get(name)
        if isinstance(default, ml_collections.ConfigDict):
            if not isinstance(value, ml_collections.ConfigDict):
                raise ConfigError(f"{prefix}{name}={value!r} must be a group of fields")
            _check_fields(value, default, f"{prefix}{name}.")
        elif isinstance(default, float) and type(value) is int:
            c[name] = float(value)  # type: ignore[arg-type]
        elif type(value) is not type(default):
            expected, got = type(default).__name__, type(value).__name__
            raise ConfigError(f"{prefix}{name}={value!r} is of type {got}; it must be {expected}")
        elif isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{prefix}{name}={value} must be a finite number")


def _check_data(c: Settings) -> None:
    for use in ("train", "dev", "test"):
        for entry in c.data[use]:
            shape = tuple(map(type, entry)) if isinstance(entry, tuple) else ()
            if shape not in ((str, str, float), (str, str, int)):
                raise ConfigError(
                    f"data.{use} holds {entry!r}; every entry must be (name, path, share), e.g. ('polaris', "
                    "'data/polaris.jsonl', 0.5)"
                )
        shares = [share for _, _, share in c.data[use]]
        needed = bool(shares) or (use == "train" and c.steps > 0)
        if needed and not (abs(sum(shares) - 1) <= 1e-6 and min(shares) > 0):
            raise ConfigError(f"data.{use} shares sum to {sum(shares):g}; they must be above 0 and sum to 1")
        sets = [entry[:2] for entry in c.data[use]]
        if twice := next((s for s in sets if sets.count(s) > 1), None):
            raise ConfigError(f"data.{use} names {twice} twice; give it one entry with both shares")
    if c.checkpoint.best and not (c.data.hold_out or c.data.dev):
        raise ConfigError(
            "checkpoint.best=True chooses by dev tasks, and there are none; set data.hold_out or data.dev, or "
            "checkpoint.best=False"
        )
    if c.data.hold_out and c.data.dev:
        raise ConfigError(
            f"data.hold_out={c.data.hold_out} and data.dev={c.data.dev!r}: dev tasks are held out of the training sets "
            "or come from sets of their own, not both; set one of the two to 0 or ()"
        )


def _check_groups(c: Settings) -> None:
    learns = {"designer_only": ("designer",), "executor_only": ("executor",)}.get(c.schedule, ("designer", "executor"))
    if "designer" in learns and c.designs == 1:
        raise ConfigError(
            f"designs=1 with schedule={c.schedule!r}: every Designer group would be a singleton, whose advantage is 0; "
            "set designs to 2 or more, or schedule=executor_only"
        )
    if c.rollout.design and (c.schedule != "executor_only" or c.designs != 1):
        raise ConfigError(
            f"rollout.design gives every task the same script, so no Designer can learn: it needs "
            f"schedule='executor_only' and designs=1, not {c.schedule!r} and {c.designs}; the group of a task is its "
            "executions"
        )
    if c.rollout.design and c.policy != "shared":
        raise ConfigError(
            f"policy={c.policy!r} keeps weights for a Designer, and rollout.design asks none; set policy='shared'"
        )
    if c.designs * c.executions == 1:
        raise ConfigError("designs=1 and executions=1: every Executor group is a single outcome, whose advantage is 0")


def _check_sampling(c: Settings) -> None:
    r = c.rollout
    if r.temperature == 0:
        raise ConfigError("rollout.temperature=0: greedy rollouts are copies of each other and teach nothing; use 1.0")
    for field, off in (("top_p", 1.0), ("top_k", -1), ("min_p", 0.0), ("repetition_penalty", 1.0)):
        if r[field] not in ((off, 0) if field == "top_k" else (off,)):
            raise ConfigError(
                f"rollout.{field}={r[field]}: the sampler's log-probs would differ from the policy's, and the "
                f"importance ratio with them; training needs {field}={off:g}"
            )


def _check_lengths(c: Settings) -> None:
    r, designer = c.rollout, not c.rollout.design or c.sft.max_steps > 0  # a cold start asks one in any case
    longest = max(r.max_executor_tokens, r.max_designer_tokens if designer else 0)
    rooms = [("engine.cache_tokens", c.engine.cache_tokens)]
    if "evaluate" not in c:  # which learns nothing
        rooms.append(("learner.row_tokens", c.learner.row_tokens))
    for field, room in rooms:
        if r.max_prompt_tokens + longest > room:
            raise ConfigError(
                f"rollout.max_prompt_tokens={r.max_prompt_tokens} + {longest} completion tokens do not fit into "
                f"{field}={room}; shorten one of the first two or raise {field} to {r.max_prompt_tokens + longest}"
            )


def _check_servers(c: Settings) -> None:
    e, policies = c.engine, 2 if c.policy == "separate" else 1
    if wrong := next((u for u in e.urls if not is_address(u)), None):
        raise ConfigError(f"engine.urls holds {wrong!r}; every entry must be like 'http://127.0.0.1:8000'")
    if twice := next((u for i, u in enumerate(e.urls) if u.rstrip("/") in [v.rstrip("/") for v in e.urls[:i]]), None):
        raise ConfigError(f"engine.urls has {twice!r} twice: a server holds one policy and takes its requests once")
    if e.kind == "openai" and not (e.urls and e.model):
        raise ConfigError(
            f"engine.kind='openai' with engine.urls={e.urls!r} and engine.model={e.model!r}; name the endpoint, up to "
            "and with its version (('https://HOST/v1',)), and the model"
        )
    if e.kind == "openai" and len(e.urls) > 1:
        raise ConfigError(f"engine.kind='openai' asks one endpoint, and engine.urls has {len(e.urls)}; name one")
    if e.kind != "vllm":
        return
    if len(e.urls) % policies:
        raise ConfigError(
            f"engine.urls has {len(e.urls)} servers and policy={c.policy!r} needs {policies} equal groups of them, the "
            "Designer's first"
        )
    if not 0 < e.memory_share <= 0.9:
        raise ConfigError(
            f"engine.memory_share={e.memory_share} must be above 0 and at most 0.9: a GPU has other things to hold too"
        )
    if e.layout == "split" and not (e.servers or e.urls):
        raise ConfigError("engine.layout='split' with engine.servers=0: say how many GPUs generate, one server on each")
    devices = c.mesh.fsdp * c.mesh.tensor
    if e.layout == "colocated" and not e.urls and e.servers > devices:
        raise ConfigError(
            f"engine.servers={e.servers} with engine.layout='colocated': the learner's mesh has {devices} devices, and "
            "each takes one server of a policy; lower engine.servers, or set engine.layout='split'"
        )


def parse_flags(argv: list[str], *, positional: int = 0) -> list[str]:
    """For `absl.app.run(flags_parser=...)`: bad flags and unknown config fields are one clear line and exit code 2.

    `positional`: so many words may stand without a flag.
    """
    try:
        rest = flags.FLAGS(argv)
        if len(rest) > 1 + positional:
            raise flags.Error(f"{' '.join(rest[1 + positional :])!r} is not a flag; flags start with --")
        if flags.FLAGS["config"].value is None:
            raise flags.Error("no settings; give a file of configs/, e.g. --config=configs/tiny.py")
        _ = flags.FLAGS["config"].value.seed  # a file that could not be loaded says so only when it is used
        return rest
    except (AttributeError, KeyError) as error:  # ml_collections: a field of the config that does not exist
        near = re.search(r"Did you mean \W*(\w+)", str(error))
        given = [a for a in argv[1:] if a.startswith("--config.")]
        named = [a for a in given if _names(a, str(error))] or given
        problem = f"{', '.join(named)}: no such field" + (f"; did you mean {near[1]}?" if near else "")
    except (flags.Error, TypeError, ValueError) as error:
        problem = str(error)
    except (OSError, ImportError, SyntaxError) as error:
        problem = f"cannot read the settings: {' '.join(str(error).split())}"
    print(f"bad input: {problem}", file=sys.stderr)
    sys.exit(2)


def _names(flag: str, message: str) -> bool:
    return any(f"'{part}'" in message.replace("\\", "") for part in flag.split("=")[0].split(".")[1:])
