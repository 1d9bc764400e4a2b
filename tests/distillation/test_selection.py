"""The selection: best of n, one reply a prompt, quotas, near-duplicates; the same whatever came in between."""

from metaagent_x.distillation.attempt import Attempt
from metaagent_x.distillation.selection import Selection, Wanted

SCRIPT = "answer = solver()(task)"


def example(
    role, task, reply, *, agent="solver", system="solve", asked="", dataset="sums", structure="single", difficulty=""
):
    messages = [{"role": "system", "content": system}, {"role": "user", "content": asked or f"question {task}"}]
    return {
        "messages": [*messages, {"role": "assistant", "content": reply}], "role": role, "agent": agent, "task_id": task,
        "dataset": dataset, "structure": structure, "difficulty": difficulty,
    }  # fmt: skip


def attempt(task, number=0, *replies, tokens=10, script=SCRIPT, right=True, agents=(), **about):
    """An attempt whose agents said these texts."""
    said = f"Reasoning about {task}.\n```python\n{script}\n```"
    examples = [example("designer", task, said, agent="designer", system="design", **about)]
    examples += [
        example("executor", task, reply, agent=agents[i] if agents else "solver", **about)
        for i, reply in enumerate(replies)
    ]
    usage, reason = (
        {"requests": 1, "prompt": 5, "completion": tokens, "counted_here": 0},
        "" if right else "wrong answer",
    )
    return Attempt(
        task, about.get("dataset", "sums"), "math", about.get("difficulty", ""), number, (), reason, "",
        about.get("structure", "single"), script, usage, examples if right else (), {},
    )  # fmt: skip


def selection(designers=100, executors=100, **fields):
    return Selection(Wanted({"designer": designers, "executor": executors}, near=1.0) if not fields else
                     Wanted({"designer": designers, "executor": executors}, **({"near": 1.0} | fields)))  # fmt: skip


def replies(chosen, role="executor"):
    return [e["messages"][-1]["content"] for e in chosen.examples[role]]


def scripts(chosen):
    return [text.split("```python\n")[1].split("\n```")[0] for text in replies(chosen, "designer")]


def test_of_right_designs_the_one_with_the_fewest_completion_tokens_is_kept():
    chosen = selection()
    two, three = "answer = ensemble([solver()] * 2)(task)", "answer = ensemble([solver()] * 3)(task)"
    chosen.add([
        attempt("t", 0, tokens=30, script=three), attempt("t", 1, tokens=20, script=two),
        attempt("t", 2, tokens=5, right=False), attempt("t", 3, tokens=20, script=three),
    ])  # fmt: skip
    assert scripts(chosen) == [two]


def test_a_task_that_was_never_right_gives_nothing():
    chosen = selection()
    chosen.add([attempt("t", 0, "a", right=False), attempt("t", 1, "b", right=False)])
    assert not chosen.examples["designer"] and not chosen.examples["executor"] and chosen.tasks == 1


def test_a_prompt_is_learned_with_its_shortest_right_reply():
    chosen = selection()
    chosen.add([attempt("t", 0, "long winded reply"), attempt("t", 1, "short"), attempt("t", 2, "not so short")])
    assert replies(chosen) == ["short"]
    chosen = selection(replies=2)
    chosen.add([attempt("t", 0, "long winded reply"), attempt("t", 1, "short"), attempt("t", 2, "short")])
    assert replies(chosen) == ["short", "long winded reply"]  # the same reply twice is one


def test_every_agent_of_a_task_has_its_turn_before_one_has_two():
    chosen = selection(per_task=3, replies=9)
    chosen.add([attempt("t", 0, "a", "bb", "ccc", "a long review", agents=("solver", "solver", "solver", "critic"))])
    assert replies(chosen) == ["a", "a long review", "bb"]


def test_a_full_quota_leaves_its_value_out_and_lets_others_in():
    quotas = {"structure": {"single": 0.5}, "difficulty": {"easy": 0.25}}
    chosen = selection(4, 8, quotas=quotas)
    for i in range(4):
        chosen.add([attempt(f"s{i}", 0, f"reply {i}")])
    assert len(replies(chosen, "designer")) == 2 and len(replies(chosen)) == 4  # half of 4 and of 8
    for i in range(4):
        chosen.add([attempt(f"e{i}", 0, f"other {i}", structure="ensemble", difficulty="easy")])
    assert len(replies(chosen, "designer")) == 3 and len(replies(chosen)) == 6  # and a quarter more
    assert chosen.left_out["designer", "quota of structure single"] == 2
    assert chosen.left_out["designer", "quota of difficulty easy"] == 3


def test_the_next_best_design_takes_the_place_of_one_whose_script_has_had_its_share():
    chosen = selection(4, 0, same_script=0.5)
    dear = "answer = ensemble([solver()] * 3)(task)"
    for i in range(4):
        chosen.add([attempt(f"t{i}", 0, tokens=1), attempt(f"t{i}", 1, tokens=9, script=dear)])
    assert scripts(chosen) == [SCRIPT, SCRIPT, dear, dear] and chosen.done
    spaced = selection(4, 0, same_script=0.25)
    spaced.add([attempt("a", 0)])
    spaced.add([attempt("b", 0, script="answer  =  solver( )( task )  # the same")])
    assert len(scripts(spaced)) == 1


def test_a_design_that_only_says_its_script_is_too_little():
    chosen = selection(reasoning_chars=30)
    chosen.add([attempt("t", 0)])  # "Reasoning about t." and the fence
    assert chosen.left_out["designer", "too little reasoning"] == 1
    chosen.add([attempt("a task with a longer name, so that more is said of it", 0)])
    assert len(scripts(chosen)) == 1


def test_near_duplicates_are_left_out_but_not_of_another_role():
    words = " ".join(f"w{i}" for i in range(60))
    chosen = selection(near=0.8)
    chosen.add([attempt("q", 0, words)])
    chosen.add([attempt("q", 0, words + " indeed")])
    assert chosen.left_out["executor", "near-duplicate"] == 1 and replies(chosen) == [words]
    other = example("executor", "q", words, agent="critic", system=" ".join(f"role{i}" for i in range(60)))
    assert chosen._take("executor", other)


def test_a_dataset_has_room_until_its_quota_of_both_roles_is_full():
    chosen = selection(2, 2, quotas={"dataset": {"sums": 0.5}})
    chosen.add([attempt("a", 0)])
    assert chosen.has_room("sums") and chosen.has_room("other")
    chosen.add([attempt("b", 0, "reply")])
    assert not chosen.has_room("sums") and chosen.has_room("other") and not chosen.done


def test_a_difficulty_has_room_until_its_quota_of_both_roles_is_full():
    chosen = selection(2, 2, quotas={"difficulty": {"easy": 0.5}})
    chosen.add([attempt("a", 0, "reply", difficulty="easy")])
    assert not chosen.has_room("sums", "easy") and chosen.has_room("sums", "hard")
