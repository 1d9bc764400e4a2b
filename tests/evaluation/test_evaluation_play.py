"""Playing: what is asked, what a row says that it cost, what is left to do, and how it ends."""

import asyncio

import pytest

from metaagent_x import config
from metaagent_x.baselines.method import MethodError
from metaagent_x.evaluation import job
from metaagent_x.evaluation.benchmarks import Benchmark
from metaagent_x.evaluation.journal import Journal
from metaagent_x.evaluation.play import missing, play, units
from metaagent_x.evaluation.rows import row_of
from metaagent_x.mas.records import Execution, ToolRun
from metaagent_x.rollout.engine import EngineFailure
from metaagent_x.rollout.scripted import ScriptedEngine
from metaagent_x.tasks.grader import Grader
from metaagent_x.tasks.task import Rubric, Task, Verdict

DESIGN = "```python\nanswer = vote(together([solver(), solver()], task))\n```"


def benchmark(tasks=3, name="sums"):
    pairs = [
        (Task(f"{name}/{i}", "math", f"add {i}+1"), Rubric(f"{name}/{i}", "math", (str(i + 1),))) for i in range(tasks)
    ]
    return Benchmark(name, name, pairs, tasks, {}, "")


def right(request):
    if request.agent == "designer":
        return DESIGN
    a, b = request.messages[0].split()[1].split("+")
    return f"\\boxed{{{int(a) + int(b)}}}"


class Scene:
    def __init__(self, folder, reply=right, methods=("metaagent_x", "single"), samples=1, engine=None, **settings):
        c = config.base("evaluate")
        c.rollout.max_prompt_tokens = 8192
        c.evaluate.methods = methods
        c.evaluate.update(settings)
        self.c, self.folder, self.samples = c, folder, samples
        self.engine = engine or ScriptedEngine(reply)

    async def play(self, *benchmarks, in_flight=4):
        journal, grader = Journal(self.folder), Grader(format_bonus=0.0, code="all")
        plan = units(self.c.evaluate.methods, benchmarks, lambda _: self.samples)
        methods, means = job.make_methods(self.c, {"designer": self.engine, "executor": self.engine}, journal.rows)
        try:
            await play(missing(plan, journal), methods, means, grader, journal, scorer="s/1", in_flight=in_flight)
        finally:
            grader.close()
        return Journal(self.folder).rows


async def test_every_method_plays_every_task_as_often_as_asked_and_a_row_says_what_it_cost(tmp_path):
    scene = Scene(tmp_path, samples=2)
    rows = await scene.play(benchmark(3))
    assert len(rows) == 2 * 3 * 2 and all(row["correct"] for row in rows.values())
    designed, single = (rows[m, "sums", 1, "sums/2"] for m in ("metaagent_x", "single"))
    reply = len("\\boxed{3}") + 1
    assert (single["calls"], single["sampled_tokens"], single["designer_tokens"]) == (1, reply, 0)
    assert (designed["calls"], designed["designer_tokens"]) == (3, len(DESIGN) + 1)
    assert designed["sampled_tokens"] == len(DESIGN) + 1 + 2 * reply and designed["prompt_tokens"] > 0
    assert (designed["answer"], designed["verdict"], designed["scorer"]) == ("3", "ok", "s/1")
    assert designed["script"].startswith("answer = vote") and designed["structure"] == "ensemble"
    assert single["time/wall_s"] > 0


async def test_no_agent_reads_a_gold(tmp_path):
    sets = benchmark(1)
    secret = Rubric("sums/0", "math", ("987654321",))
    scene = Scene(tmp_path)
    rows = await scene.play(Benchmark("sums", "sums", [(sets.pairs[0][0], secret)], 1, {}, ""))
    assert not any(row["correct"] for row in rows.values())
    assert "987654321" not in str(scene.engine.requests)


async def test_faults_are_counted_where_they_happen(tmp_path):
    def faulty(request):
        if request.agent == "designer":
            return "no script at all"
        return {"0": "", "1": "I do not know.", "2": "x" * 500}[request.messages[0][4]]

    scene = Scene(tmp_path, faulty)
    scene.c.rollout.max_executor_tokens = 100
    rows = await scene.play(benchmark(3))
    designs = [row for row in rows.values() if row["method"] == "metaagent_x"]
    assert all(
        r["invalid"] and r["correct"] is False and r["calls"] == 1 and r["verdict"] == "invalid" for r in designs
    )
    empty, silent, long = (rows["single", "sums", 0, f"sums/{i}"] for i in range(3))
    assert (empty["empty"], silent["empty"], long["truncated"], silent["truncated"]) == (1, 0, 1, 0)
    assert {r["answer"] for r in (empty, silent, long)} == {""} and not any(r["void"] for r in rows.values())


def test_limits_of_contained_programs_are_counted():
    ran = [ToolRun("0", "run_python", "", "", "", status) for status in ("ok", "wall", "error", "memory", "wall")]
    verdict = Verdict(False, 0.0, 1.0, 0.0, "test 3: cpu")
    execution = Execution(tools=ran, status="wall", verdict=verdict)
    options = {"method": "m", "benchmark": "b", "sample": 0, "scorer": "s/1", "wall_s": 0.0}
    row = row_of(execution, Task("t", "code", ""), **options)
    assert row["limits"] == ["script wall", "tool wall", "tool memory", "tool wall", "test cpu"] and row["tools"] == 5
    execution.tools, execution.status, execution.verdict = [], "crash", Verdict(False, 0.0, 0.0, 0.0, "test 3: error")
    assert row_of(execution, Task("t", "code", ""), **options)["limits"] == []


async def test_what_is_there_is_not_played_again_and_what_is_void_is(tmp_path):
    down = {"sums/1"}

    def flaky(request):
        if down and request.messages[0] == "add 1+1":
            raise EngineFailure("away")
        return right(request)

    scene = Scene(tmp_path, flaky, ("single",))
    rows = await scene.play(benchmark(3))
    assert [row["void"] for _, row in sorted(rows.items())] == [False, True, False]
    assert rows["single", "sums", 0, "sums/1"]["correct"] is None
    down.clear()
    again = Scene(tmp_path, flaky, ("single", "metaagent_x"))
    rows = await again.play(benchmark(3))
    assert not any(row["void"] for row in rows.values()) and len(rows) == 6
    assert sum(request.agent == "designer" for request in again.engine.requests) == 3
    assert len(again.engine.requests) == 1 + 3 * 3  # the void one, and the new method


async def test_as_many_tasks_are_in_flight_as_asked_and_no_more(tmp_path):
    class Crowd(ScriptedEngine):
        now = most = 0

        async def generate(self, prompt_ids, sampling, seed, *, request=None):
            self.now += 1
            self.most = max(self.most, self.now)
            if self.now == 3:
                three.set()
            await three.wait()
            self.now -= 1
            return await super().generate(prompt_ids, sampling, seed, request=request)

    three, engine = asyncio.Event(), Crowd(right)
    await Scene(tmp_path, methods=("single",), engine=engine).play(benchmark(9), in_flight=3)
    assert engine.most == 3


async def test_an_interruption_leaves_what_has_ended_on_disk(tmp_path):
    asked = []

    class Hangs(ScriptedEngine):
        async def generate(self, prompt_ids, sampling, seed, *, request=None):
            asked.append(request)
            if len(asked) > 2:
                await asyncio.Event().wait()
            return await super().generate(prompt_ids, sampling, seed, request=request)

    scene = Scene(tmp_path, methods=("single",), engine=Hangs(right))
    job_ = asyncio.create_task(scene.play(benchmark(5), in_flight=1))
    while len(asked) < 3:
        await asyncio.sleep(0.01)
    job_.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job_
    assert {key[3] for key in Journal(tmp_path).rows} == {"sums/0", "sums/1"}
    rows = await Scene(tmp_path, methods=("single",)).play(benchmark(5))
    assert len(rows) == 5 and all(row["correct"] for row in rows.values())


async def test_a_defect_ends_the_evaluation_and_is_raised_as_it_is(tmp_path):
    def broken(request):
        if request.messages[0] == "add 2+1":
            raise ZeroDivisionError("a defect")
        return right(request)

    with pytest.raises(ZeroDivisionError, match="a defect"):
        await Scene(tmp_path, broken, ("single",)).play(benchmark(4), in_flight=1)
    assert {key[3] for key in Journal(tmp_path).rows} == {"sums/0", "sums/1"}


async def test_a_matched_vote_is_played_after_what_it_is_matched_to_and_at_its_price(tmp_path):
    """A design of 4 replies of 10 tokens costs 40 and the Designer's own; single replies of 10 tokens are drawn until
    that is reached."""
    script = "```python\nanswer = vote(together([solver()] * 4, task))\n```"
    scene = Scene(
        tmp_path, lambda r: script if r.agent == "designer" else right(r),
        ("single_majority:like=metaagent_x", "metaagent_x"),
    )  # fmt: skip
    rows = await scene.play(benchmark(2))
    for i in range(2):
        team, vote = (rows[m, "sums", 0, f"sums/{i}"] for m in reversed(scene.c.evaluate.methods))
        assert team["sampled_tokens"] == 40 + len(script) + 1
        assert vote["sampled_tokens"] == 10 * vote["calls"]
        assert 0 <= vote["sampled_tokens"] - team["sampled_tokens"] < 10


@pytest.mark.parametrize("methods", [("single_majority:like=metaagent_x",), ("single_majority:like=x", "single")])
def test_a_method_whose_needs_are_not_met_is_refused_before_anything_is_played(tmp_path, methods):
    scene = Scene(tmp_path, methods=methods)
    with pytest.raises(MethodError, match="needs the results of"):
        job.make_methods(scene.c, {}, {})


def test_the_budget_of_a_void_sample_is_the_mean_of_the_others():
    rows = {
        i: {"method": "m", "task_id": "t", "sample": i, "void": i == 1, "sampled_tokens": tokens}
        for i, tokens in enumerate((10, 99, 21))
    }
    spent = job.spent(rows)
    assert (spent("m", "t", 0), spent("m", "t", 1), spent("m", "t", 2)) == (10, 16, 21)
    assert spent("m", "u", 0) is None and spent("other", "t", 0) is None


def test_the_aimes_are_played_three_times_and_everything_as_often_as_asked_at_least():
    c = config.base("evaluate")
    assert [job.times(c, benchmark(1, name)) for name in ("aime24", "aime25", "apps")] == [3, 3, 1]
    c.evaluate.samples = 16
    assert [job.times(c, benchmark(1, name)) for name in ("aime24", "apps")] == [16, 16]
