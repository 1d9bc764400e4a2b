"""Makes small run folders with real traces, by `traces.write`: what the viewer's tests open."""

import json

from metaagent_x.mas.records import Call, Execution, ToolRun
from metaagent_x.rollout import traces
from metaagent_x.rollout.chat import Chat
from metaagent_x.rollout.tree import Design, RolloutTree
from metaagent_x.tasks.task import Task, Verdict

HOSTILE = "</pre><script>window.hit=1</script><img src=x onerror=window.hit=1>\u202e javascript:alert(1) &lt; ünï"
SCRIPT = """# three look at it
first, second = together([solver("forward"), solver("backward")], task)
answer = ensemble([solver()] * 2, judge=judge())(first)
"""
CHAT = Chat("")  # id b is byte b


def call(path, text, told="Solve.", saw=("What is 3 + 4?",), agent="solver", conversation="", before=(), **fields):
    """A call whose ids are the bytes of its texts. `before`: ids of the earlier turns of its memory."""
    prompt = [*before, *saw[-1].encode(), 1] if before else [*told.encode(), 0, *saw[-1].encode(), 1]
    sampled = [*text.encode()]
    logprobs = tuple(-0.01 * (1 + i % 300) for i in range(len(sampled)))
    return Call(
        path, agent, told, tuple(prompt), tuple(sampled), logprobs, fields.pop("finish_reason", "stop"), 4, text,
        seed=7, conversation=conversation, messages=tuple(saw), **fields,
    )  # fmt: skip


def right(text="\\boxed{7}"):
    return Execution([call("0", text)], answer=text, structure="single", verdict=Verdict(True, 1.0, 1.0, 1.0, "ok"))


def ensemble():
    """Two drafts and a judge who saw both; one draft was run as a program."""
    drafts = [call("0.0.0", "a first draft with \\boxed{6} in it"), call("0.1.0", "print(3 + 4)\nso it is \\boxed{7}")]
    judge = call("0.2.0", "The second: \\boxed{7}", "Judge.", ("Which one? 6 or 7?",), "judge", finish_reason="length")
    return Execution(
        [*drafts, judge], [ToolRun("0.1.1", "run_python", "print(3 + 4)", "", "7\n", "ok")], "The second: \\boxed{7}",
        links=[("0.0.0", "0.2.0", "judge"), ("0.1.0", "0.2.0", "judge"), ("0.2.0", "", "answer")],
        structure="ensemble", verdict=Verdict(False, 0.0, 1.0, 0.4, "wrong_answer"),
        flags={"truncated", "answer_not_from_agents"},
    )  # fmt: skip


def memory():
    """One agent that remembers: its second prompt holds its first completion."""
    first = call("0", "I think \\boxed{6}", conversation="m0")
    before = (*first.prompt_ids, *first.completion_ids)
    second = call("1", "No, \\boxed{7}", saw=("Sure?",), conversation="m0", before=before, prompt_cut=True)
    verdict = Verdict(True, 1.0, 1.0, 1.0, "ok")
    return Execution([first, second], answer="No, \\boxed{7}", structure="single", verdict=verdict)


def hostile():
    texts = call("0", HOSTILE, HOSTILE, (HOSTILE,), HOSTILE)
    tool = ToolRun("1", "run_python", HOSTILE, HOSTILE, HOSTILE, HOSTILE)
    return Execution(
        [texts], [tool], HOSTILE, "budget", HOSTILE, {HOSTILE}, structure=HOSTILE,
        verdict=Verdict(False, 0.0, 0.0, 0.0, HOSTILE),
    )  # fmt: skip


def void():
    return Execution([call("0", "…")], status="void", reason="engine: HTTP 500", structure="single")


def trees(step):
    """Two tasks: "math/1", in every step, and one of the step's own with a hostile id."""

    def design(script, *executions, **fields):
        return Design(call("", f"```python\n{script}```", "Design.", agent="designer"), script, **fields,
                      executions=list(executions))  # fmt: skip

    designs = [
        design(SCRIPT, ensemble(), right(), void()),
        design("answer = solver(memory=True)(task)\n", memory(), right("\\boxed{8}")),
        design("answer = SOLVE(task)\n", problem="line 1: SOLVE: unknown name SOLVE (nearest word: solver)"),
    ]
    odd = [design(HOSTILE, hostile())]
    return [
        RolloutTree(Task("math/1", "math", "What is 3 + 4?"), designs, 0, step, 3),
        RolloutTree(Task(f"odd/{step}/{HOSTILE}", "math", HOSTILE), odd, 1, step, 3),
    ]


def write_run(folder, steps=3):
    """A run of so many steps; the designs that differ in reward are trained."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"steps": steps, "batch": 2, "designs": 3, "executions": 3, "seed": 0, "tokenizer": "",
              "rollout": {"temperature": 1.0, "top_p": 0.5, "max_executor_tokens": 64, "design": ""}}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    lines, evaluations = [], []
    for step in range(1, steps + 1):
        role = "executor" if step % 2 else "designer"
        grown = trees(step)
        trained = [t for tree in grown for t in getattr(tree, f"{role}_trajectories")()]
        for i, t in enumerate(trained):
            t.advantage = 0.5 - i
            t.old_logprobs = tuple(p - 0.001 * (n % 3 - 1) for n, p in enumerate(sampled(t)))
        traces.write(folder / "traces", grown, trained, run=folder.name, step=step)
        lines.append({"step": step, "stage": role, "role/active": [role], "accuracy": 0.4 + 0.1 * step, "calls": 9.0,
                      "reward/mean": 0.5, "designs/valid": 0.75, "structure/single": 0.6, "structure/ensemble": 0.4,
                      "executions/void": 1.0})  # fmt: skip
    for name, step in (("cold", 0), ("final", steps)):
        evaluations.append({"name": name, "step": step, "designer": "rl", "executor": "rl", "temperature": 1.0,
                            "tasks": 2, "void": 0, "accuracy": 0.5, "valid": 1.0, "outcomes": {"t": 1}})  # fmt: skip
    alert = {"step": 2, "guard": "flat", "metric": "m", "value": 1, "limit": 0, "action": "warn", "message": HOSTILE}
    for name, found in (("metrics", lines), ("evaluations", evaluations), ("alerts", [alert])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in found))
    CHAT_FOLDER = folder / "model"
    CHAT_FOLDER.mkdir(exist_ok=True)
    (CHAT_FOLDER / "tokenizer.json").write_text(json.dumps(CHAT._spec))
    return folder


def sampled(trajectory):
    return [p for p, mask in zip(trajectory.logprobs, trajectory.mask, strict=True) if mask]


DESIGNS = (
    "answer = debate([solver(), solver('case by case')], judge=judge(), rounds=2)(task)",
    "answer = solve_and_test(solver(), tester(), rounds=2)(task)",
    "a = solver(memory=True)\na(task)\nrun_python(code_of(a('Write it as a program.')))\nanswer = a('Sure?')",
    "answer = SOLVE(task)",
)


def _reply(request):
    """The two of a debate never agree."""
    if "program" in request.messages[-1]:
        return "```python\nprint(3)\n```"
    answer = 7 if "case by case" in request.role_prompt else 5
    return f"The {request.agent} says \\boxed{{{answer}}}, after some thought."


def play_run(folder):
    """A run of one step that was really played: scripts in their sandbox, graders, tools; answers by a rule."""
    import asyncio
    import itertools

    from metaagent_x import config
    from metaagent_x.rollout.collect import collect
    from metaagent_x.rollout.scripted import ScriptedEngine
    from metaagent_x.tasks.families import generate
    from metaagent_x.tasks.grader import Grader

    settings, turns = config.base(), itertools.count()
    settings.rollout.prompts = "tiny"
    settings.steps, settings.batch, settings.designs, settings.executions = 1, 2, len(DESIGNS), 2
    engines = {
        "designer": ScriptedEngine(lambda request: DESIGNS[next(turns) % len(DESIGNS)]),
        "executor": ScriptedEngine(_reply),
    }
    pairs = [*generate("math", "train", 1), *generate("code", "train", 1)]
    grader = Grader()
    try:
        grown = asyncio.run(
            collect(pairs, engines, grader, designs=len(DESIGNS), executions=2, config=settings, step=0)
        )
    finally:
        grader.close()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings.to_dict()))
    trained = [t for tree in grown for t in tree.executor_trajectories()]
    traces.write(folder / "traces", grown, trained, run=folder.name, step=1)
    line = {"step": 1, "stage": "executor", "role/active": ["executor"], "accuracy": 0.5, "structure/single": 1.0}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return folder
