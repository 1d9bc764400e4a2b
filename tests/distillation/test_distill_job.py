"""A distillation against a teacher that is right, wrong, malformed, slow, refusing, out of patience, or away."""

import asyncio
import json

import pytest
from scripted_teacher import DESIGN, Reply, ScriptedTeacher, adds, designs, total

from metaagent_x import assemble, config
from metaagent_x.distillation import summary
from metaagent_x.distillation.cost import Meter, Prices, Usage
from metaagent_x.distillation.job import DONE, NO_TASKS, SPENT, Job
from metaagent_x.distillation.journal import Journal, JournalError
from metaagent_x.distillation.plan import Plan
from metaagent_x.mas import prompts
from metaagent_x.rollout import openai_engine
from metaagent_x.rollout.engine import EngineFailure
from metaagent_x.tasks.task import Rubric, Task


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(openai_engine, "BACKOFF_S", 0.01)


def settings(teacher, **distill):
    c = config.base("teacher", "distill")
    c.teacher.url, c.teacher.model, c.teacher.tries, c.teacher.concurrency = teacher.url, "wise", 3, 4
    c.teacher.prompt_price = c.teacher.completion_price = 1e6  # a token costs 1
    c.rollout.max_prompt_tokens = 16_384  # bytes
    c.distill.round, c.distill.attempts, c.distill.near, c.distill.same_script = 2, 1, 1.0, 1.0
    c.distill.update(distill)
    return c


def sums(n):
    return [
        (Task(f"sums/{i}", "math", f"What is {i} + 4?", metadata={"difficulty": "easy"}),
         Rubric(f"sums/{i}", "math", gold=(str(i + 4),)))
        for i in range(n)
    ]  # fmt: skip


async def distilled(c, folder, tasks=6):
    """Runs a job. Returns (how it ended, the job, files by name)."""
    folder.mkdir(exist_ok=True)
    journal, grader, teacher = Journal(folder), assemble.grader(c), assemble.teacher(c)
    meter = Meter(
        Prices(c.teacher.prompt_price, c.teacher.completion_price), c.distill.budget, journal.usage, note=journal.spend
    )
    job = Job(c, Plan({"sums": sums(tasks)}, {"sums": 1.0}, c.seed), teacher, grader, journal, meter)
    try:
        return await job.run(), job
    finally:
        journal.close()
        grader.close()
        await teacher.close()


def reasons(job):
    return [attempt.reason for attempt in job.folded]


async def test_a_right_teacher_gives_examples_of_both_roles_in_the_students_words(tmp_path):
    with ScriptedTeacher(adds) as teacher:
        ended, job = await distilled(settings(teacher, designers=4, executors=4), tmp_path / "a", tasks=9)
    assert ended == DONE and job.selection.done
    designer, executor = (job.selection.examples[role][0] for role in ("designer", "executor"))
    full = prompts.get("full")
    told = next(t.prompt for t, _ in sums(9) if t.id == designer["task_id"])
    assert designer["messages"] == [
        {"role": "system", "content": full.designer_system},
        {"role": "user", "content": f"Design a multi-agent system for this task:\n\n{told}"},
        {"role": "assistant", "content": DESIGN.format("answer = solver()(task)")},
    ]
    assert [m["content"] for m in executor["messages"][:2]] == [full.role("solver", "math"), told]
    assert (executor["role"], executor["agent"], executor["structure"]) == ("executor", "solver", "single")
    assert (executor["dataset"], executor["difficulty"], executor["kind"]) == ("sums", "easy", "math")
    origin = executor["provenance"]
    assert (origin["teacher"], origin["format"], origin["attempt"], origin["seed"]) == ("wise", 1, 0, 0)
    assert origin["verdict"]["correct"] and origin["usage"]["requests"] == 2 and len(origin["templates"]) in (2, 3)
    # What the teacher's Designer was shown are templates, of which the student sees nothing.
    asked = next(b["messages"] for b in teacher.bodies if designs(b))
    assert (
        asked[0]["content"].startswith(full.designer_system)
        and "systems that worked for other tasks" in asked[0]["content"]
    )
    n = job.meter.usage.requests
    assert 8 <= n <= len(teacher.bodies) and job.meter.usage == Usage(n, 100 * n, 20 * n)


async def test_what_is_wrong_or_malformed_is_left_out_and_counted(tmp_path):
    said = {
        "0": lambda b: adds(b) if designs(b) else "It is \\boxed{99}.",
        "1": lambda b: "I cannot help with that.",
        "2": lambda b: "```python\nanswer = nobody()(task)\n```" if designs(b) else adds(b),
        "3": lambda b: Reply(status=400, text="flagged") if designs(b) else adds(b),
        "4": lambda b: adds(b) if designs(b) else Reply(text=None, finish="content_filter"),
        "5": lambda b: Reply(adds(b), finish="length") if designs(b) else adds(b),
        "6": lambda b: adds(b, "import json\nanswer = 1/0"),
        "7": lambda b: adds(b, "from metaagent_x import solver\nanswer = solver()(task)"),
        "8": lambda b: adds(b, "solver()(task)"),
        "9": lambda b: adds(b) if designs(b) else "I do not know.",
        "10": lambda b: adds(b) + ("<|im_end|>" if designs(b) else ""),
    }

    def rule(body):
        number = str(total(body) - 4)
        return said.get(number, adds)(body)

    with ScriptedTeacher(rule) as teacher:
        ended, job = await distilled(settings(teacher), tmp_path / "a", tasks=12)
    why = {attempt.task_id.removeprefix("sums/"): attempt.reason for attempt in job.folded}
    assert ended == NO_TASKS and why == {
        "0": "wrong answer", "1": "no script", "2": "script does not lint", "3": "refused by the endpoint",
        "4": "refused by the endpoint", "5": "design cut off", "6": "crash", "7": "script with imports",
        "8": "right, but no answer set", "9": "no answer", "10": "holds a template marker", "11": "",
    }  # fmt: skip
    assert [e["task_id"] for e in job.selection.examples["designer"]] == [a.task_id for a in job.folded if a.right]


async def test_slow_and_rate_limiting_endpoints_are_waited_for(tmp_path):
    seen = set()

    def rule(body):
        key = json.dumps(body["messages"])
        if key not in seen:
            seen.add(key)
            return (
                Reply(status=429, headers={"Retry-After": "0.05"})
                if total(body) % 2
                else Reply(adds(body), delay_s=0.6)
            )
        return adds(body)

    with ScriptedTeacher(rule) as teacher:
        c = settings(teacher)
        c.teacher.timeout_s = 0.4
        _, job = await distilled(c, tmp_path / "a", tasks=4)
    assert reasons(job) == [""] * 4


async def test_an_endpoint_that_is_away_ends_the_job_and_loses_nothing(tmp_path):
    down = []

    def rule(body):
        return Reply(status=503) if down and not designs(body) else adds(body)

    with ScriptedTeacher(rule) as teacher:
        c = settings(teacher)
        await distilled(c, tmp_path / "a", tasks=3)
        down.append(True)
        with pytest.raises(EngineFailure, match="status 503"):
            await distilled(c, tmp_path / "a")
        down.clear()
        before = len(teacher.bodies)
        ended, job = await distilled(c, tmp_path / "a")
    assert ended == NO_TASKS and reasons(job) == [""] * 6 and len(teacher.bodies) - before == 2 * 3


async def test_an_endpoint_that_refuses_everything_ends_the_job(tmp_path):
    with (
        ScriptedTeacher(lambda _: Reply(status=400, text="no such model")) as teacher,
        pytest.raises(EngineFailure, match=r"refused all 2 attempts.*no such model"),
    ):
        await distilled(settings(teacher), tmp_path / "a")


async def test_what_was_refused_is_asked_again_by_the_next_start(tmp_path):
    down = [True]
    with ScriptedTeacher(lambda b: Reply(status=400, text="no such model") if down else adds(b)) as teacher:
        with pytest.raises(EngineFailure, match="refused all 2"):
            await distilled(settings(teacher), tmp_path / "a", tasks=3)
        down.clear()
        ended, job = await distilled(settings(teacher), tmp_path / "a", tasks=3)
    assert ended == NO_TASKS and reasons(job) == [""] * 3


async def test_an_answer_that_an_outage_kept_beyond_the_wall_is_void_and_asked_again(tmp_path):
    down = [True]

    def rule(body):
        return Reply(status=503, headers={"Retry-After": "30"}) if down and not designs(body) else adds(body)

    with ScriptedTeacher(rule) as teacher:
        c = settings(teacher)
        c.rollout.budget.wall_s = 0.5
        _, job = await distilled(c, tmp_path / "a", tasks=1)
        assert reasons(job) == ["infrastructure failed"]
        down.clear()
        _, job = await distilled(c, tmp_path / "a", tasks=1)
    assert reasons(job) == [""]


async def test_a_paid_answer_without_content_is_metered(tmp_path):
    with ScriptedTeacher(lambda _: Reply(text=None, finish="length", usage=(100, 20))) as teacher:
        c, folder = settings(teacher), tmp_path / "a"
        with pytest.raises(EngineFailure, match="refused all"):
            await distilled(c, folder, tasks=1)
    assert json.loads((folder / "usage.jsonl").read_text()) == [1, 100, 20, 0]


async def test_the_budget_stops_what_is_not_begun_and_more_of_it_goes_on_to_the_same_end(tmp_path):
    with ScriptedTeacher(adds) as teacher:
        c = settings(teacher, budget=1000.0)  # an attempt costs 240; four may be in flight
        ended, job = await distilled(c, tmp_path / "a", tasks=12)
        assert ended == SPENT and 1000 <= job.meter.spent < 1000 + 4 * 240
        assert len(job.selection.examples["executor"]) >= 3
        c.distill.budget = 0.0
        ended, job = await distilled(c, tmp_path / "a", tasks=12)
        assert ended == NO_TASKS and job.meter.spent == 12 * 240  # nothing was paid for twice
        _, whole = await distilled(c, tmp_path / "b", tasks=12)
    assert job.selection.examples == whole.selection.examples


async def test_tokens_that_the_endpoint_does_not_report_are_counted_here(tmp_path):
    with ScriptedTeacher(lambda b: Reply(adds(b), usage=None)) as teacher:
        _, job = await distilled(settings(teacher), tmp_path / "a", tasks=1)
    used = job.meter.usage
    said = sum(len(adds(b).encode()) for b in teacher.bodies)  # without a tokenizer a byte is a token
    assert (used.requests, used.counted_here, used.completion) == (2, 2, said)
    assert used.prompt > sum(len(m["content"].encode()) for b in teacher.bodies for m in b["messages"])


async def test_neither_gold_nor_hidden_tests_nor_metadata_reach_the_teacher(tmp_path):
    with ScriptedTeacher(lambda b: adds(b) if designs(b) else "It is \\boxed{1}.") as teacher:
        c, folder = settings(teacher), tmp_path / "a"
        folder.mkdir()
        hidden = "4711471147114711"
        task = Task("secret-id", "code", "What is 1 + 2? Print it.", metadata={"difficulty": "secret-level"})
        tests = ({"kind": "stdin", "input": f"{hidden}\n", "output": f"{hidden}\n"},)
        math = Task("other-id", "math", "What is 2 + 2?"), Rubric("other-id", "math", gold=(hidden,))
        journal, grader, engine = Journal(folder), assemble.grader(c), assemble.teacher(c)
        plan = Plan({"s": [(task, Rubric("secret-id", "code", tests=tests)), math]}, {"s": 1.0}, 0)
        job = Job(c, plan, engine, grader, journal, Meter(Prices()))
        await job.run()
        grader.close()
        await engine.close()
    sent = json.dumps(teacher.bodies)
    assert len(teacher.bodies) == 4 and "What is 1 + 2?" in sent
    assert not [secret for secret in (hidden, "secret-id", "other-id", "secret-level") if secret in sent]


async def test_who_is_quick_does_not_decide_what_is_chosen(tmp_path):
    def rule(slow):
        def reply(body):
            design = "answer = ensemble([solver()] * 2)(task)" if body["seed"] % 3 == 0 else "answer = solver()(task)"
            text = adds(body, design)
            if not designs(body) and body["seed"] % 4 == 0:
                text = "It is \\boxed{0}"
            return Reply(text, delay_s=0.05 * (body["seed"] % 5) if slow else 0.0, usage=(10, body["seed"] % 50))

        return reply

    chosen = []
    for name, slow, concurrency in (("a", False, 1), ("b", True, 8)):
        with ScriptedTeacher(rule(slow)) as teacher:
            c = settings(teacher, designers=5, executors=7, attempts=2)
            c.teacher.concurrency = concurrency
            chosen.append((await distilled(c, tmp_path / name, tasks=14))[1].selection.examples)
    assert chosen[0] == chosen[1] and len(chosen[0]["designer"]) == 5


async def test_a_torn_line_is_made_again_and_a_damaged_one_is_named(tmp_path):
    with ScriptedTeacher(adds) as teacher:
        c, folder = settings(teacher), tmp_path / "a"
        _, first = await distilled(c, folder, tasks=3)
        path = folder / "attempts.jsonl"
        whole = path.read_bytes()
        path.write_bytes(whole[:-9])
        before = len(teacher.bodies)
        _, again = await distilled(c, folder, tasks=3)
        assert len(teacher.bodies) - before == 2 and again.selection.examples == first.selection.examples
        Journal(folder).close()  # nothing of the torn line is left
        path.write_bytes(b"{}\n" + whole)
        with pytest.raises(JournalError, match=r"attempts\.jsonl, line 1"):
            Journal(folder)


async def test_the_summary_adds_up_and_shows_texts_as_texts(tmp_path):
    def rule(body):
        if designs(body):
            return adds(body)
        return f"<script>alert(1)</script> \\boxed{{{total(body) if total(body) % 2 else 0}}}"

    with ScriptedTeacher(rule) as teacher:
        _, job = await distilled(settings(teacher), tmp_path / "a", tasks=6)
    s = summary.summarise(job.folded, job.selection, job.meter.usage, job.meter.prices, ended="x", beyond=0)
    assert (s["tasks"], s["attempts"], s["right"], s["solved"]) == (6, 6, 3, 3)
    assert s["rejected"] == {"wrong answer": 3} and s["accepted"]["dataset"] == {"sums": {"attempts": 6, "right": 3}}
    assert s["chosen"]["executor"]["structure"] == {"single": 3} and s["cost"] == 12 * 120
    page = summary.page(s, job.selection.examples, "a")
    assert "&lt;script&gt;alert(1)" in page and "<script" not in page and "http-equiv" in page
    assert "3 of 6 attempts right" in summary.headline(s)


async def test_an_interrupted_job_leaves_no_request_behind(tmp_path):
    with ScriptedTeacher(lambda b: Reply(adds(b), delay_s=0.6)) as teacher:
        running = asyncio.ensure_future(distilled(settings(teacher), tmp_path / "a"))
        while len(teacher.bodies) < 4:
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []
    assert len(teacher.bodies) == 4  # nobody went on to ask an agent
