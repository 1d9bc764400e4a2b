"""Budgets in parallel branches: which calls are made depends on the script, never on who is quick."""

import asyncio
import random
import time

import pytest
from mas_host import CODE, MATH, Host, program

from metaagent_x.mas import Budget
from metaagent_x.mas.messages import Malformed
from metaagent_x.mas.shares import MAX_BRANCHES, NEEDS, Ledger

REFLECT = "reflect(solver(), critic(), rounds=9)"
SHORT = "reflect(solver(), critic(), rounds=1)"


async def outcome(script, budget, seed, task=MATH, tokens=1, **options):
    """What was run, and how it ended, with random delays."""
    rng = random.Random(seed)
    texts = lambda r: "WRONG" if r.agent == "critic" else program(f"print({len(r.path)})") + f"\\boxed{{{r.path}}}"  # noqa: E731
    host = Host(texts, delay=lambda r: rng.choice((0.0, 0.001, 0.01)), tokens=tokens)
    e = await host.run(script, task, budget=budget, **options)
    assert len(e.calls) <= budget.calls and len(e.tools) <= budget.tool_runs
    return [c.path for c in e.calls], [t.path for t in e.tools], e.status, e.reason, e.answer, sorted(e.flags)


@pytest.mark.parametrize("script,budget", [
    (f"ensemble([{REFLECT}, {REFLECT}])(task)", Budget(calls=7)),
    (f"ensemble([{REFLECT}] * 3, judge())(task)", Budget(tokens=10)),
    (f"debate([{SHORT}, solver(), {REFLECT}], rounds=3)(task)", Budget(calls=17)),
    (f"together([ensemble([{SHORT}, {REFLECT}]), {REFLECT}, debate([solver(), {REFLECT}])], task)", Budget(calls=13)),
    ("together([lambda t: [run_python('print(1)') for _ in range(9)][0], lambda t: solver()(run_python('2'))], task)",
     Budget(tool_runs=6)),
    (f"s = {SHORT}\nfor _ in range(2): s = reflect(s, critic(), rounds=1)\ntogether([s, {REFLECT}, solver()], task)",
     Budget(depth=2, calls=9)),
])  # fmt: skip
async def test_which_calls_are_made_does_not_depend_on_arrival(script, budget):
    outcomes = await asyncio.gather(*(outcome("answer = None\n" + script, budget, seed) for seed in range(6)))
    assert all(o == outcomes[0] for o in outcomes) and outcomes[0][2] == "budget" and outcomes[0][0]


async def test_test_runs_are_shared_out_too():
    def slow_tests(task, code):
        time.sleep(random.choice((0.0, 0.01)))
        return ["wrong"]

    script = "answer = ensemble([solve_and_test(solver(), rounds=4)] * 4)(task)"
    outcomes = [await outcome(script, Budget(), seed, CODE, run_tests=slow_tests) for seed in range(4)]
    paths = [f"0.{i}.0.0.{n}" for i in range(4) for n in ((1, 3) if i < 2 else (1,))]
    assert all(o == outcomes[0] for o in outcomes) and outcomes[0][3] == "budget of tests reached"
    assert outcomes[0][1] == paths


@pytest.mark.parametrize("calls", [8, 9])
async def test_what_a_branch_does_not_use_goes_to_those_that_wait(calls):
    """Even shares of 9 are 3, 3 and 3; the last branch needs 7 and gets what the two single calls leave."""
    script = "answer = ensemble([solver(), solver(), reflect(solver(), critic(), rounds=3)])(task)"
    made, _, status, *_ = await outcome(script, Budget(calls=calls), 0)
    assert len(made) == calls and status == ("ok" if calls == 9 else "budget")


async def test_what_branches_leave_returns_when_they_have_joined():
    made, _, status, *_ = await outcome(
        "together([solver(), solver()], task)\nfor _ in range(7): answer = solver()(task)", Budget(calls=9), 0
    )
    assert len(made) == 9 and status == "ok"


@pytest.mark.parametrize("width,cap,tokens", [(1, 25, 10), (4, 30, 10), (4, 43, 10), (3, 2, 10)])
async def test_tokens_exceed_their_budget_by_less_than_a_completion_for_each_branch(width, cap, tokens):
    script = f"together([{REFLECT}] * {width}, task)"
    made, *_, flags = await outcome(script, Budget(tokens=cap, calls=99), 0, tokens=tokens)
    assert "budget_tokens" in flags and cap <= len(made) * tokens <= cap + width * (tokens - 1)


SEND = """
import json, os, socket, time
s = socket.socket(fileno=os.dup(3))
def send(**m): s.sendall(json.dumps(m).encode() + b"\\n")
def call(path, id): send(id=id, do='call', path=path, agent='a', role='r', conversation='', messages=['x'], sources=[])
"""


@pytest.mark.parametrize("lie", [
    "send(do='open', path='0', count=10 ** 9)",
    "send(do='open', path='0', count=-3)",
    "send(do='open', path='0', count='2')",
    "send(do='open', path='0', count=2)\nsend(do='open', path='0', count=2)",
    "send(do='open', path='0', count=2)\ncall('1', 900)",
    "send(do='ended', path='0.0')",
    "send(do='ended', path='0')",
    "send(do='open', path='0', count=2)\ncall('0.0.0', 900)\nsend(do='ended', path='0.0')",
    "call('0', 900)\ncall('1', 901)",
    "call('0', 900)\nsend(do='open', path='1', count=2)",
])  # fmt: skip
async def test_a_lie_about_branches_is_a_crash_with_a_reason(lie):
    e = await Host(lambda r: "x", delay=lambda r: 0.2).run(SEND + lie + "\ntime.sleep(60)", budget=Budget(wall_s=20))
    assert e.status == "crash" and e.reason.startswith("malformed message: ") and len(e.calls) <= 1


async def test_branches_that_are_only_claimed_give_no_call_more():
    claim = "for k in range(3):\n    p = '.'.join(['0', '0'] * k + ['0'])\n    send(do='open', path=p, count=9)\n"
    ask = "for i in range(9): call(f'0.0.0.0.0.{i}.0', 900 + i)\nfor i in range(1, 9): call(f'0.{i}.0', 950 + i)\n"
    e = await Host(lambda r: "x").run(SEND + claim + ask + "time.sleep(60)", budget=Budget(calls=5, wall_s=1.0))
    assert e.status == "wall" and 1 <= len(e.calls) <= 5


# The ledger alone, under many schedules


def grow(rng, depth):
    """A random program of a branch: steps that cost something, and groups of branches."""
    steps = []
    for _ in range(rng.randint(0, 5)):
        if depth and rng.random() < 0.35:
            steps.append([grow(rng, depth - 1) for _ in range(rng.randint(2, 4))])
        else:
            steps.append((rng.choice(("call", "call", "run_python", "run_tests")), rng.randint(1, 9)))
    return steps


class Simulation:
    """Runs a program against a ledger; `rng` decides which branch moves next."""

    def __init__(self, program, limits, rng):
        self.ledger, self.rng = Ledger(**limits), rng
        self.started, self.reasons, self.tokens, self.width = set(), set(), 0, 1
        self.ready = []
        self.start((), program, None)
        while self.ready:
            self.ready.pop(rng.randrange(len(self.ready)))()

    def start(self, path, program, joined):
        number = iter(range(10**6))
        steps = iter(program)

        def move():
            step = None if self.reasons else next(steps, None)
            if step is None:
                if path:
                    self.decide(self.ledger.end(".".join(map(str, path))))
                    joined()
            elif isinstance(step, list):
                inner, left = (*path, next(number)), [len(step)]
                self.ledger.open(".".join(map(str, inner)), len(step))
                self.width = max(self.width, len(self.ledger.shares))

                def one_less():
                    left[0] -= 1
                    if not left[0]:
                        self.ready.append(move)

                for i, branch in enumerate(step):
                    self.start((*inner, i), branch, one_less)
            else:
                place = ".".join(map(str, (*path, next(number))))
                self.decide(self.ledger.ask(place, NEEDS[step[0]], (place, step, move)))

        self.ready.append(move)

    def decide(self, decided):
        for share, (place, step, move), reason in decided:
            if reason:
                self.reasons.add(reason)
                self.ready.append(move)
            else:
                self.started.add((place, step[0]))
                self.ready.append(lambda s=share, t=step, m=move: self.finish(s, t, m))

    def finish(self, share, step, move):
        if step[0] == "call":
            share.left["tokens"] -= step[1]
            self.tokens += step[1]
        share.busy = False
        self.ready.append(move)


def test_every_schedule_of_a_program_makes_the_same_requests():
    rng, ended_early = random.Random(3), 0
    for _ in range(150):
        limits = {"calls": rng.randint(0, 14), "tokens": rng.randint(0, 90), "tools": rng.randint(0, 8), "tests": 3}
        program = grow(rng, 3)
        runs = [Simulation(program, limits, random.Random(seed)) for seed in range(5)]
        first = runs[0]
        assert all((r.started, r.reasons, r.tokens) == (first.started, first.reasons, first.tokens) for r in runs)
        kinds = [kind for _, kind in first.started]
        assert kinds.count("call") <= limits["calls"] and kinds.count("run_tests") <= limits["tests"]
        assert len(kinds) - kinds.count("call") <= limits["tools"]
        assert first.tokens <= limits["tokens"] + max(r.width for r in runs) * 8
        ended_early += bool(first.reasons)
        if not first.reasons:
            assert list(first.ledger.shares) == [()] and not first.ledger.root.members
    assert 30 < ended_early < 140


def test_a_budget_is_used_up_before_anything_stops():
    """Programs of calls only: they end early exactly if they hold more calls than the budget, and then use all."""
    rng = random.Random(5)

    def calls_of(program):
        return sum(sum(map(calls_of, s)) if isinstance(s, list) else 1 for s in program)

    def calls_only(program):
        return [[calls_only(b) for b in s] if isinstance(s, list) else ("call", 0) for s in program]

    for _ in range(100):
        program, calls = calls_only(grow(rng, 3)), rng.randint(1, 12)
        run = Simulation(program, {"calls": calls, "tokens": 1000}, rng)
        assert len(run.started) == min(calls, calls_of(program))
        assert run.reasons == ({"calls"} if calls_of(program) > calls else set())


def test_at_most_so_many_branches_are_open_at_once():
    ledger = Ledger(calls=1, tokens=1)
    ledger.open("0", MAX_BRANCHES - 1)
    with pytest.raises(Malformed, match=f"2 branches at '0.0.0': at most {MAX_BRANCHES}"):
        ledger.open("0.0.0", 2)
