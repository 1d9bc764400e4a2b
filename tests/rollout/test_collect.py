"""Collecting rollouts: what is asked of the engine, what becomes void, what becomes zero, what is kept."""

import asyncio
import dataclasses
import functools
import itertools

import numpy as np
import pytest

from metaagent_x import config as settings
from metaagent_x.mas.records import Execution
from metaagent_x.rollout import measure
from metaagent_x.rollout.collect import collect
from metaagent_x.rollout.engine import Completion, EngineFailure
from metaagent_x.rollout.measure import evaluate, headroom
from metaagent_x.rollout.play import with_rollout
from metaagent_x.rollout.scripted import ScriptedEngine
from metaagent_x.rollout.tree import Design, RolloutTree, Trajectory, trajectories_of
from metaagent_x.rollout.vllm_engine import Guest
from metaagent_x.tasks.math import extract_answer
from metaagent_x.tasks.task import Rubric, Task, Verdict

SINGLE = "answer = solver()(task)"
step_metrics = functools.partial(measure.step_metrics, format_bonus=0.0)


class BoxGrader:
    """Right if the boxed answer is the gold; `failing` breaks like a grader whose machine died."""

    def __init__(self, failing=False):
        self.failing, self.seen = failing, []

    async def grade(self, rubric, text):
        self.seen.append(text)
        if self.failing:
            raise EngineFailure("grader unreachable")
        ok = extract_answer(text) in rubric.gold
        return Verdict(ok, float(ok), 1.0, float(ok), "ok" if ok else "wrong_answer")


def make_config(**rollout):
    c = settings.base()
    c.seed = 5
    c.rollout.prompts = "tiny"
    c.rollout.budget.wall_s = 30.0
    for name, value in rollout.items():
        c.rollout[name] = value
    return c


def tasks(n=1):
    return [(Task(f"t/{i}", "math", f"compute {i}+2"), Rubric(f"t/{i}", "math", gold=(str(i + 2),))) for i in range(n)]


def run(pairs, designer, executor, *, m=2, n=2, config=None, grader=None, step=0):
    engines = {"designer": ScriptedEngine(designer), "executor": ScriptedEngine(executor)}
    job = collect(
        pairs, engines, grader or BoxGrader(), designs=m, executions=n, config=config or make_config(), step=step
    )
    return asyncio.run(job), engines


def box(request, right=True):
    a, b = request.messages[0].split()[1].split("+")
    return f"\\boxed{{{int(a) + int(b) + (not right)}}}"


def test_every_task_gets_m_designs_and_n_executions_each_graded():
    grader = BoxGrader()
    trees, _ = run(tasks(3), lambda r: SINGLE, box, m=3, n=2, grader=grader)
    assert [t.task.id for t in trees] == ["t/0", "t/1", "t/2"] and [t.question for t in trees] == [0, 1, 2]
    assert all(t.rewards().shape == (3, 2) and (t.rewards() == 1).all() for t in trees)
    assert len(grader.seen) == 18
    assert {e.structure for t in trees for d in t.designs for e in d.executions} == {"single"}


def test_a_fixed_design_is_run_for_every_task_and_no_designer_is_asked():
    pair = "answer = vote(together([solver('a'), solver('b')], task))"

    def nobody(request):
        raise AssertionError("asked")

    trees, _ = run(tasks(2), nobody, box, m=1, n=3, config=make_config(design=pair))
    for tree in trees:
        (design,) = tree.designs
        assert design.call is None and design.valid and design.script == pair and len(design.executions) == 3
        assert (tree.rewards() == 1).all() and not tree.designer_trajectories()
        assert len(tree.executor_trajectories()) == 6


def test_an_evaluation_keeps_outcome_structure_and_difficulty_of_every_task_that_is_not_void():
    scripts = {"0": SINGLE, "1": "answer = vote(together([solver('a'), solver('b')], task))", "2": "answer = SOLVE"}

    def designer(request):
        if "3+2" in request.messages[0]:
            raise EngineFailure("gone")
        return scripts[request.messages[0].split("compute ")[1][0]]

    pairs = tasks(4)
    pairs[1] = (dataclasses.replace(pairs[1][0], metadata={"level": 2}), pairs[1][1])
    engines = {"designer": ScriptedEngine(designer), "executor": ScriptedEngine(box)}
    record = asyncio.run(evaluate(pairs, engines, BoxGrader(), make_config()))
    assert record["outcomes"] == {"t/0": 1, "t/1": 1, "t/2": 0}
    assert record["structures_by_task"] == {"t/0": "single", "t/1": "ensemble", "t/2": "invalid"}
    assert record["difficulty_by_task"] == {"t/1": "2"} and record["void"] == 1


@pytest.mark.parametrize(("m", "n"), [(0, 1), (1, 0)])
def test_m_and_n_below_one_are_refused(m, n):
    with pytest.raises(ValueError, match="at least 1"):
        run(tasks(), lambda r: SINGLE, box, m=m, n=n)


@pytest.mark.fault("F023")
def test_all_seeds_of_two_steps_are_distinct_and_the_same_again():
    """64 seeds for 2 questions x 4 designs x 4 executions over 2 steps; a repeat gives the same (vllm#10852)."""

    def seeds():
        out = []
        for step in (0, 1):
            trees, _ = run(tasks(2), lambda r: SINGLE, box, m=4, n=4, step=step)
            out += [c.seed for t in trees for d in t.designs for e in d.executions for c in e.calls]
        return out

    first = seeds()
    assert len(set(first)) == len(first) == 64
    assert seeds() == first


@pytest.mark.fault("F027")
def test_a_failing_engine_makes_the_execution_void_and_the_mean_is_over_the_others():
    """HTTP 500 for 1 of 4 requests: out of loss and statistics, counted (UniRL#214)."""
    count = itertools.count()

    def sometimes(request):
        if next(count) == 1:
            raise EngineFailure("HTTP 500")
        return box(request)

    (tree,), _ = run(tasks(), lambda r: SINGLE, sometimes, m=1, n=4)
    assert tree.counted().sum() == 3 and tree.rewards()[tree.counted()].tolist() == [1, 1, 1]
    assert tree.designer_trajectories()[0].reward == 1.0
    assert len(tree.executor_trajectories()) == 3
    assert step_metrics([tree])["executions/void"] == 1.0
    void = next(e for e in tree.designs[0].executions if e.void)
    assert "HTTP 500" in void.reason


@pytest.mark.fault("F027")
def test_a_failing_grader_makes_the_execution_void_not_wrong():
    (tree,), _ = run(tasks(), lambda r: SINGLE, box, m=1, n=2, grader=BoxGrader(failing=True))
    assert not tree.counted().any()
    assert tree.designer_trajectories() == [] and tree.executor_trajectories() == []


def test_an_engine_that_fails_on_a_design_takes_it_out_of_the_group():
    count = itertools.count()

    def sometimes(request):
        if next(count) == 0:
            raise EngineFailure("gone")
        return SINGLE

    (tree,), _ = run(tasks(), sometimes, box, m=3, n=2)
    assert tree.counted().all(axis=1).sum() == 2 and len(tree.designer_trajectories()) == 2


def test_a_defect_in_an_engine_is_raised_not_counted_as_void():
    def broken(request):
        raise ZeroDivisionError("a bug of ours")

    with pytest.raises(ZeroDivisionError):
        run(tasks(), lambda r: SINGLE, broken)


@pytest.mark.parametrize("agent", ["agent('x', 'word ' * 9000)", "solver('word ' * 9000)"])
def test_a_role_prompt_that_no_prompt_can_hold_fails_its_execution_not_the_run(agent):
    """Found in review: a Designer that multiplies a string ended the whole training run with a ValueError."""
    scripts = itertools.cycle([f"draft = solver()(task)\nanswer = {agent}(draft)", SINGLE])
    (tree,), _ = run(tasks(), lambda r: next(scripts), box, m=2, n=1)
    failed, fine = sorted((d.executions[0] for d in tree.designs), key=lambda e: e.reward)
    assert (failed.status, failed.reward, len(failed.calls)) == ("crash", 0.0, 1) and "role prompt" in failed.reason
    assert fine.reward == 1.0 and tree.counted().all()


@pytest.mark.parametrize(
    ("completion", "problem"),
    [("let me think", "no_script"), ("answer = sovler()(task)", "sovler"), ("answer = (", "")],
)
def test_an_invalid_design_runs_nothing_and_is_a_counted_row_of_zeros(completion, problem):
    (tree,), engines = run(tasks(), lambda r: completion, box, m=2, n=3)
    assert engines["executor"].requests == []
    assert problem in tree.designs[0].problem and not tree.designs[0].valid
    assert tree.counted().all() and (tree.rewards() == 0).all()
    assert [t.reward for t in tree.designer_trajectories()] == [0.0, 0.0]
    assert step_metrics([tree])["structure/invalid"] == 1.0 and step_metrics([tree])["designs/valid"] == 0.0


@pytest.mark.fault("F166")
def test_a_crash_keeps_its_calls_with_reward_zero_and_stays_in_the_design_mean():
    """N=2, one right, one crash after 2 calls: design reward 0.5, 2 rows of the crashed run kept (reference code)."""
    script = "a = solver()(task)\nb = solver()(task)\nanswer = a if a == b else a[10000]"
    count = itertools.count()

    def reply(request):  # the two calls of the first execution agree, those of the second do not
        return box(request) + (" " * next(count) if request.path.endswith("1") else "")

    async def one_by_one():
        c = make_config(concurrency=1)
        engines = {"designer": ScriptedEngine(lambda r: script), "executor": ScriptedEngine(reply)}
        return await collect(tasks(), engines, BoxGrader(), designs=1, executions=2, config=c, step=0)

    (tree,) = asyncio.run(one_by_one())
    statuses = sorted(e.status for e in tree.designs[0].executions)
    if statuses == ["ok", "ok"]:
        pytest.fail("the second execution was meant to crash")
    assert statuses == ["crash", "ok"]
    assert tree.designer_trajectories()[0].reward == 0.5
    rows = tree.executor_trajectories()
    assert sorted(r.reward for r in rows) == [0.0, 0.0, 1.0, 1.0]


@pytest.mark.fault("F167")
def test_a_crash_before_the_first_call_leaves_no_rows_and_every_row_names_its_origin():
    """Stale rows of another question must be impossible (reference code)."""
    (tree,), _ = run(tasks(), lambda r: "x = task[10000]\nanswer = solver()(task)", box, m=1, n=2)
    assert tree.executor_trajectories() == []
    trees, _ = run(tasks(2), lambda r: SINGLE, box, m=2, n=2)
    ids = {(t.task_id, t.question, t.design, t.execution) for tree in trees for t in tree.executor_trajectories()}
    assert ids == {(f"t/{q}", q, i, j) for q in range(2) for i in range(2) for j in range(2)}


@pytest.mark.fault("F170")
def test_executors_sample_as_configured_in_training_and_greedily_in_evaluation():
    """The reference runs executors greedy with penalty 1.2 in training: no exploration (reference code)."""
    seen = []

    class Recording(ScriptedEngine):
        async def generate(self, prompt_ids, sampling, seed, *, request=None):
            seen.append((request.agent, sampling, seed))
            return await super().generate(prompt_ids, sampling, seed, request=request)

    both = Recording(lambda r: SINGLE if r.agent == "designer" else box(r))
    engines = {"designer": both, "executor": both}
    c = make_config()
    asyncio.run(collect(tasks(), engines, BoxGrader(), designs=2, executions=2, config=c, step=0))
    assert all(
        (s.temperature, s.top_p, s.top_k, s.min_p, s.repetition_penalty) == (1.0, 1.0, -1, 0.0, 1.0) for _, s, _ in seen
    )
    assert len({seed for _, _, seed in seen}) == len(seen) == 6
    seen.clear()
    asyncio.run(evaluate(tasks(), engines, BoxGrader(), c, temperature=0.0))
    assert {s.temperature for _, s, _ in seen} == {0.0} and c.rollout.temperature == 1.0


@pytest.mark.fault("F172")
@pytest.mark.parametrize(
    ("script", "flag"),
    [
        ("answer = '\\\\boxed{2}'", "no_calls"),
        ("x = solver()(task)\nanswer = '\\\\boxed{2}'", "answer_not_from_agents"),
    ],
)
def test_an_answer_that_no_agent_gave_scores_zero(script, flag):
    """The Designer must not bypass the Executor (reference code)."""
    (tree,), _ = run(tasks(), lambda r: script, lambda r: "\\boxed{9}", m=1, n=1)
    (execution,) = tree.designs[0].executions
    assert execution.reward == 0.0 and execution.verdict.reason == flag and flag in execution.flags


@pytest.mark.fault("B007")
def test_empty_and_truncated_answers_are_counted_not_just_scored_zero():
    """max_tokens eaten by something else: rows carry it and the summary shows it (ADAS port)."""
    (tree,), _ = run(tasks(), lambda r: SINGLE, lambda r: Completion((), (), "length", 0), m=1, n=2)
    m = step_metrics([tree])
    assert m["calls/empty"] == 1.0 and m["calls/truncated"] == 1.0 and m["reward/mean"] == 0.0


@pytest.mark.parametrize("mode", ["fraction", "all"])
def test_every_component_of_the_reward_is_recorded_and_they_add_up(mode):
    """Hand-made verdicts: a void one, an invalid design and a void design beside graded ones of both kinds."""

    def done(correct, fraction, form, reason, void=False):
        correctness = fraction if mode == "fraction" else float(correct)
        reward = 0.0 if void else correctness + 0.4 * form
        return Execution(structure="single", verdict=Verdict(correct, fraction, form, reward, reason, void))

    math = [
        Design(None, executions=[done(True, 1.0, 1.0, "ok"), done(False, 0.0, 1.0, "wrong_answer")]),
        Design(None, problem="no_script"),
    ]
    code = [
        Design(None, executions=[done(False, 0.5, 1.0, "test 3: wall"), done(False, 0.0, 0.0, "syntax_error")]),
        Design(None, executions=[done(False, 0.25, 1.0, "test 12: wall"), done(True, 1.0, 1.0, "grader: x", True)]),
        Design(None, problem="engine: gone", void=True),
    ]
    trees = [RolloutTree(Task(k, k, "?"), d, executions=2) for k, d in (("math", math), ("code", code))]
    m = measure.step_metrics(trees, format_bonus=0.4)
    assert (m["accuracy"], m["accuracy/math"], m["accuracy/code"]) == (1 / 7, 1 / 4, 0.0)
    assert (m["reward/fraction"], m["reward/fraction/code"]) == (1.75 / 7, 0.75 / 3)
    assert (m["reward/format"], m["reward/format/math"], m["reward/format/code"]) == (4 / 7, 2 / 4, 2 / 3)
    trains = "reward/fraction" if mode == "fraction" else "accuracy"
    for whole, kind in (("mean", ""), ("math", "/math"), ("code", "/code")):
        assert m[f"reward/correctness{kind}"] == pytest.approx(m[trains + kind])
        parts = m[f"reward/correctness{kind}"] + 0.4 * m[f"reward/format{kind}"]
        assert m[f"reward/{whole}"] == pytest.approx(parts)
    counts = {k: v for k, v in m.items() if k.startswith("verdicts/")}
    assert counts == {"verdicts/ok": 1, "verdicts/wrong_answer": 1, "verdicts/test_wall": 2, "verdicts/syntax_error": 1}
    assert m["executions/void"] == 1.0 + 2.0


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("ok", "ok"), ("test 0: wrong", "test_wrong"), ("test 17: memory: 512 MiB", "test_memory"), ("cpu", "cpu"),
        ("answer_not_from_agents", "answer_not_from_agents"), ("grader: KeyError('x/y')", "grader"), ("", "none"),
    ],
)  # fmt: skip
def test_reasons_are_counted_without_what_differs_from_task_to_task(reason, name):
    assert measure.reason_class(reason) == name


@pytest.mark.fault("B012")
def test_a_step_in_which_every_design_fails_gives_no_executor_rows_and_finite_metrics():
    trees, _ = run(tasks(2), lambda r: "???", box)
    assert not any(t.executor_trajectories() for t in trees)
    assert all(np.isfinite(v) for v in step_metrics(trees).values())


@pytest.mark.fault("B040")
def test_braces_in_a_task_reach_the_model_unchanged():
    task = Task("b", "math", 'Let A = {1; 2}, f(x)=\\frac{x}{2}, print "{0}" {name}')
    _, engines = run([(task, Rubric("b", "math", gold=("1",)))], lambda r: SINGLE, lambda r: "\\boxed{1}", m=1, n=1)
    assert task.prompt in engines["executor"].requests[0].messages[0]
    assert task.prompt in engines["designer"].requests[0].messages[0]


@pytest.mark.parametrize("whisper", ["'the answer is 1234'", "str(1200 + 34)"])
def test_a_whispered_answer_is_counted_and_can_be_forbidden(whisper):
    pair = (Task("w", "math", "compute 1200+34"), Rubric("w", "math", gold=("1234",)))
    script = f"answer = solver({whisper})(task)"
    (tree,), _ = run([pair], lambda r: script, lambda r: "\\boxed{1234}", m=1, n=1)
    assert tree.rewards().item() == 1.0 and step_metrics([tree])["designs/answer_in_script"] == 1.0
    (tree,), _ = run(
        [pair], lambda r: script, lambda r: "\\boxed{1234}", m=1, n=1, config=make_config(forbid_answer_in_script=True)
    )
    assert tree.rewards().item() == 0.0


HUGE = "```python\nx = 0x" + "f" * 5000 + "\nprint(x)\n```"


@pytest.mark.parametrize(
    "script", [SINGLE, "answer = ensemble([solver()] * 2)(task)", "answer = code_of(solver()(task))"]
)
def test_a_number_that_python_will_not_write_in_decimals_ends_no_step(script):
    """A program with 5,000 hexadecimal digits parses; `ast.dump` of it raises a ValueError."""
    pair = Task("c", "code", "Print a number."), Rubric("c", "code", tests=())
    (tree,), _ = run([pair], lambda r: script, lambda r: HUGE, m=1, n=1)
    (execution,) = tree.designs[0].executions
    assert (execution.status, execution.answer) == ("ok", HUGE) and "answer_not_from_agents" not in execution.flags


@pytest.mark.parametrize("name", ["parse_completion", "own_imports", "lint"])
def test_a_completion_that_our_own_reading_fails_on_is_an_invalid_design_and_is_counted(name, monkeypatch):
    def broken(_):
        raise RecursionError("too deep")

    monkeypatch.setattr(f"metaagent_x.mas.{name}", broken)
    (tree,), engines = run(tasks(), lambda r: SINGLE, box, m=2, n=2)
    assert [d.problem for d in tree.designs] == ["unreadable: RecursionError('too deep')"] * 2
    assert engines["executor"].requests == [] and (tree.rewards() == 0).all() and tree.counted().all()
    m = step_metrics([tree])
    assert (m["designs/unreadable"], m["designs/valid"]) == (2.0, 0.0)


def test_an_execution_that_cannot_be_classified_is_other_and_is_counted(monkeypatch):
    def broken(_):
        raise KeyError("0.1")

    monkeypatch.setattr("metaagent_x.mas.classify", broken)
    (tree,), _ = run(tasks(), lambda r: SINGLE, box, m=1, n=1)
    (execution,) = tree.designs[0].executions
    assert (execution.structure, execution.reason, execution.reward) == ("other", "classify: KeyError('0.1')", 1.0)
    m = step_metrics([tree])
    assert (m["flags/unclassified"], m["structure/other"], m["designs/unreadable"]) == (1.0, 1.0, 0.0)


def test_the_designer_is_told_the_budget_that_is_set():
    c = make_config(prompts="full")
    c.rollout.budget.calls, c.rollout.budget.tool_runs = 5, 7
    _, engines = run(tasks(), lambda r: SINGLE, box, m=1, n=1, config=c)
    assert "Limits: 5 calls, 7 tool runs, 6 of them run_tests." in engines["designer"].requests[0].role_prompt


def test_imports_of_our_own_names_are_left_out_and_counted():
    scripts = itertools.cycle(
        ["from metaagent_x.mas import solver, judge\nimport mas\n" + SINGLE, SINGLE, "import mas\nanswer = x"]
    )
    (tree,), _ = run(tasks(), lambda r: next(scripts), box, m=3, n=1)
    assert sorted((d.own_imports, d.valid) for d in tree.designs) == [(0, True), (1, False), (2, True)]
    assert tree.rewards().sum() == 2.0 and step_metrics([tree])["designs/own_imports"] == 3.0


def test_memory_goes_on_as_token_ids_and_becomes_one_trajectory():
    script = "a = agent('bob', 'solve', memory=True)\nx = a(task)\nanswer = a('again')"
    (tree,), _ = run(tasks(), lambda r: script, lambda r: "\\boxed{2}", m=1, n=1)
    first, second = tree.designs[0].executions[0].calls
    assert second.prompt_ids[: len(first.prompt_ids) + len(first.completion_ids)] == (
        *first.prompt_ids,
        *first.completion_ids,
    )
    (row,) = tree.executor_trajectories()
    assert sum(row.mask) == len(first.completion_ids) + len(second.completion_ids)


@pytest.mark.fault("F164")
def test_each_sampled_id_lands_in_exactly_one_row_even_if_history_is_rewritten():
    """3 turns where turn 2 rewrites history: nothing is trained twice or lost (trl#6250)."""
    (tree,), _ = run(tasks(), lambda r: SINGLE, box, m=1, n=1)
    (call,) = tree.designs[0].executions[0].calls
    import dataclasses

    def turn(path, prompt, completion):
        return dataclasses.replace(
            call,
            path=path,
            conversation="c",
            prompt_ids=prompt,
            completion_ids=completion,
            logprobs=(-1.0,) * len(completion),
        )

    turns = [turn("0", (1, 2), (3, 4)), turn("1", (1, 9), (5,)), turn("2", (1, 9, 5, 7), (6, 8))]
    rows = trajectories_of(turns)
    sampled = [i for r in rows for i, m in zip(r.tokens, r.mask, strict=True) if m]
    assert sorted(sampled) == [3, 4, 5, 6, 8] and len(rows) == 2


@pytest.mark.fault("F080")
@pytest.mark.parametrize("field", ["mask", "logprobs"])
def test_a_row_with_a_short_mask_or_log_probs_cannot_be_built(field):
    """7 ids with 6 mask values: the constructor raises and names the row (slime#2207)."""
    fields = {"tokens": (1,) * 7, "mask": (True,) * 7, "logprobs": (0.0,) * 7, "task_id": "t/7"}
    fields[field] = fields[field][:6]
    with pytest.raises(ValueError, match=r"t/7.*6"):
        Trajectory(**fields)


def test_the_headroom_gate_says_which_knob_to_turn():
    gate = settings.base().gate
    good = {"accuracy/math": 0.5, "accuracy/code": 0.4, "valid": 0.95}
    table = {"a": {"math": 0.5, "code": 0.4}, "b": {"math": 0.3, "code": 0.6}}
    assert headroom(good, table, gate)[0]
    for change, word in (
        ({"accuracy/math": 0.2}, "math accuracy 0.20 is below"),
        ({"accuracy/code": 0.8}, "code accuracy 0.80 is above"),
        ({"valid": 0.8}, "valid designs 0.80"),
    ):
        passed, message = headroom(good | change, table, gate)
        assert not passed and word in message
    passed, message = headroom(good, {"a": table["a"], "b": {"math": 0.5, "code": 0.6}}, gate)
    assert not passed and "math: best structure minus worst is 0.00" in message


def test_evaluation_leaves_the_settings_alone():
    c = make_config()
    assert with_rollout(c, temperature=0.0).rollout.temperature == 0.0 and c.rollout.temperature == 1.0


@pytest.mark.parametrize("lost", [0, 1])
async def test_a_wall_limit_met_while_a_server_was_away_is_void_and_otherwise_zero(lost):
    class Slow(Guest):
        """Servers one of which may go away while an answer is waited for."""

        outages = 0

        def __init__(self):
            pass

        async def generate(self, prompt_ids, sampling, seed, *, request=None):
            type(self).outages += lost
            await asyncio.sleep(30)

    config = make_config()
    config.rollout.budget.wall_s = 0.3
    engines = {"designer": ScriptedEngine(lambda r: SINGLE), "executor": Slow()}
    (tree,) = await collect(tasks(), engines, BoxGrader(), designs=1, executions=1, config=config, step=0)
    (execution,) = tree.designs[0].executions
    if lost:
        assert execution.status == "void" and "while a server was away" in execution.reason
        assert not tree.counted().any()
    else:
        assert execution.status == "wall" and tree.counted().all() and not tree.rewards().any()
