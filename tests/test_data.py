"""The data of a job: dev splits, benchmarks, tasks too long to read, what is counted, what a resumed run must find."""

import dataclasses
import hashlib
import json

import pytest

from configs import smoke, tiny
from metaagent_x import config as settings
from metaagent_x import data, loop
from metaagent_x.config import ConfigError
from metaagent_x.run_folder import RunFolder, RunFolderError
from metaagent_x.tasks import splits
from metaagent_x.tasks.datasets import DatasetError

TINY = ("71b28498c652f74a", "80e237e564296083", "05ebd248294b6bd7")
SMOKE = ("094e1ebcae61645a", "c10a1b1e5b612835", "f23d0eb6ee94de1b")


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def rows(numbers, words=""):
    return [{"problem": f"What is {n} + 0? {words}", "answer": str(n), "difficulty": "1/8"} for n in numbers]


def job(*train, tokenizer="", **fields):
    """Settings over sets of Polaris form, with the byte tokenizer."""
    c = settings.base()
    c.data.train, c.batch, c.tokenizer = train, 2, tokenizer
    for name, value in fields.items():
        c.data[name] = value
    settings.validate(c)
    return c


def ids(pairs):
    return [task.id for task, _ in pairs]


def trained(pools, steps=200):
    return {i for step in range(steps) for i in ids(pools.train.batch_at(step))}


def test_the_held_out_part_validates_and_is_never_trained_on(tmp_path):
    path = write(tmp_path / "a.jsonl", rows(range(200)))
    pools = data.open_pools(job(("polaris", path, 1.0), hold_out=0.2))
    dev = set(ids(pools.dev))
    assert 20 < len(dev) < 60 and dev == {i for i in map("polaris/{}".format, range(200)) if splits.held_out(i, 0.2)}
    assert trained(pools) == {f"polaris/{i}" for i in range(200)} - dev
    (origin,) = pools.origins
    assert (origin.read, origin.dev, origin.tasks, origin.dropped) == (200, len(dev), 200 - len(dev), {})


def test_dev_tasks_stay_the_same_with_another_seed_further_rows_and_another_size(tmp_path):
    path, longer = write(tmp_path / "a.jsonl", rows(range(100))), write(tmp_path / "b.jsonl", rows(range(150)))
    first = job(("polaris", path, 1.0), hold_out=0.2)
    other = job(("polaris", longer, 1.0), hold_out=0.2)
    other.seed = 5
    known = {f"polaris/{i}" for i in range(100)}
    before, after = ids(data.open_pools(first).dev), ids(data.open_pools(other).dev)
    assert set(before) == set(after) & known and len(after) > len(before)
    first.data.dev_size = 7
    assert ids(data.open_pools(first).dev) == before[:7]


def test_a_question_of_the_dev_or_test_split_is_not_trained_on_under_another_id(tmp_path):
    numbers = range(100)
    held = next(n for n in numbers if splits.held_out(f"polaris/{n}", 0.1))
    path = write(tmp_path / "a.jsonl", rows(numbers))
    copies = [{"question": f"What is  {n} + 0?", "answer": f"so #### {n}"} for n in (held, 500, 501, 502)]
    other = write(tmp_path / "train.jsonl", copies)
    test = write(tmp_path / "t.jsonl", [{"problem": "WHAT is 501 + 0?", "answer": 501}])
    c = job(("polaris", path, 0.5), ("gsm8k", other, 0.5), hold_out=0.1, test=(("aime24", test, 1.0),))
    pools = data.open_pools(c)
    assert "gsm8k/train/0" not in trained(pools) and "gsm8k/train/2" not in trained(pools)
    assert pools.origins[1].dropped == {data.DUPLICATE: 2} and ids(pools.test) == ["aime24/0"]


def test_holding_out_nothing_at_all_is_an_error(tmp_path):
    path = write(tmp_path / "a.jsonl", rows(range(3)))
    with pytest.raises(DatasetError, match=r"hold_out=0.001 holds no task"):
        data.open_pools(job(("polaris", path, 1.0), hold_out=0.001))


@pytest.mark.parametrize("use", ["train", "dev"])
def test_a_benchmark_is_refused_in_train_and_dev_unless_allowed(tmp_path, use):
    path = write(tmp_path / "a.jsonl", rows(range(4)))
    own = write(tmp_path / "b.jsonl", rows(range(10, 14)))
    sets = {"train": (("polaris", own, 1.0),), "dev": ()} | {use: (("math500", path, 1.0),)}
    c = job(*sets["train"], dev=sets["dev"])
    with pytest.raises(DatasetError, match=rf"data\.{use} names 'math500', but math500 is a bench.*allow_benchmarks"):
        data.open_pools(c)
    c.data.allow_benchmarks = True
    assert len(data.open_pools(c).origins) == 1 + (use == "dev")
    c.data.train, c.data.dev, c.data.test = (("polaris", own, 1.0),), (), (("math500", path, 1.0),)
    c.data.allow_benchmarks = False
    assert len(data.open_pools(c).test) == 4
    c.data.test = (("math500", own, 1.0),)
    with pytest.raises(DatasetError, match=r"every task of 'polaris' is asked in the dev or test split"):
        data.open_pools(c)


def test_tasks_that_are_too_long_are_left_out_and_counted_and_the_longest_that_fits_is_not_cut(tmp_path):
    """With the byte tokenizer one byte is one token."""
    c = job(("polaris", "", 1.0))
    c.rollout.prompts, c.rollout.max_prompt_tokens = "tiny", 300
    room = data.room_for_tasks(c)
    texts = ["x" * (room - 1) + "1", "x" * room + "2", "y" * 10 + "3", "z" * 5000]
    path = write(tmp_path / "a.jsonl", [{"problem": t, "answer": "1", "difficulty": ""} for t in texts])
    c.data.train = (("polaris", path, 1.0),)
    pools = data.open_pools(c)
    assert trained(pools, 9) == {"polaris/0", "polaris/2"} and pools.origins[0].too_long == 2
    chat, prompts = data.chat_for(""), data.prompt_sets.get("tiny")
    longest = next(t for t, _ in pools.train.batch_at(0) if t.id == "polaris/0")
    for system, user in [(prompts.designer_system, prompts.designer_user(longest))] + [
        (prompts.role(role, "math", style), longest.prompt)
        for role in prompts.roles["math"]
        for style in prompts.styles["math"]
    ]:
        assert chat.fit(system, user, 300)[1] is False
    c.data.max_task_tokens = 11
    c.batch = 1
    assert trained(data.open_pools(c), 3) == {"polaris/2"}


def test_prompts_that_leave_no_room_for_a_task_are_refused(tmp_path):
    c = job(("polaris", write(tmp_path / "a.jsonl", rows(range(4))), 1.0), max_task_tokens=8000)
    with pytest.raises(ConfigError, match=r"max_task_tokens=8000: the prompts take up to \d+ tokens"):
        data.open_pools(c)
    c.data.max_task_tokens, c.rollout.max_prompt_tokens = 0, 100
    with pytest.raises(ConfigError, match="max_prompt_tokens=100"):
        data.open_pools(c)


def test_real_tasks_need_a_tokenizer_that_exists(tmp_path):
    c = job(("polaris", write(tmp_path / "a.jsonl", rows(range(4))), 1.0))
    c.sft.max_steps = 100
    with pytest.raises(ConfigError, match=r"tokenizer=''.*'polaris'"):
        data.open_pools(c)


def test_one_data_set_may_be_named_twice_with_other_files_if_no_task_comes_twice(tmp_path):
    def problems(file, names):
        made = [{"problem": f"Find {n}.", "answer": "1", "unique_id": n} for n in names]
        return write(tmp_path / file, made)

    a, b = problems("a.jsonl", "abcd"), problems("b.jsonl", "efgh")
    c = job(("math500", a, 0.5), ("math500", b, 0.5), allow_benchmarks=True)
    pools = data.open_pools(c)
    assert [o.name for o in pools.origins] == [f"math500 {a}", f"math500 {b}"]
    for step in range(4):
        assert sum(i[-1] in "abcd" for i in ids(pools.train.batch_at(step))) == 1
    c.data.train = (("math500", a, 0.5), ("math500", problems("c.jsonl", "dxyz"), 0.5))
    with pytest.raises(DatasetError, match=r"'math500/d' occurs twice, in 'math500 .*a\.jsonl' and in .*c\.jsonl'"):
        data.open_pools(c)


def test_any_head_of_the_test_tasks_holds_the_sets_by_their_shares():
    sets = [
        ([(n, i) for i in range(size)], share) for n, size, share in (("a", 20, 0.5), ("b", 10, 0.25), ("c", 3, 0.25))
    ]
    mixed = data._interleaved(sets, 0)
    assert [n for n, _ in mixed[:8]] == list("aabcaabc") and len(mixed) == 33
    assert [i for n, i in mixed if n == "a"] == list(range(20))
    assert [n for n, _ in data._interleaved(sets, 8)] == list("aabcaabc")


@pytest.mark.parametrize(("module", "expected"), [(tiny, TINY), (smoke, SMOKE)], ids=["tiny", "smoke"])
def test_the_generated_tasks_of_every_step_stay_what_they_were(module, expected):
    """Published numbers of these configurations hold only for these tasks in this order."""

    def digest(texts):
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]

    pools = data.open_pools(module.get_config())
    steps = [ids(pools.train.batch_at(step)) for step in (0, 1, 2, 63, 499, 500, 501, 1000)]
    assert (digest(i for step in steps for i in step), digest(ids(pools.dev)), digest(ids(pools.test))) == expected


def test_what_was_left_out_is_shown_with_its_reason(tmp_path, capsys):
    path = write(tmp_path / "a.jsonl", [*rows(range(10)), *rows(range(2)), *rows([77], "word " * 3000)])
    loop.show_data(data.open_pools(job(("polaris", path, 1.0), hold_out=0.2)))
    shown = capsys.readouterr().out
    held = sum(splits.held_out(f"polaris/{i}", 0.2) for i in range(10))
    for text in ("polaris", "13", "2 question", f"{held}", f"{10 - held}"):
        assert text in shown
    line = next(line for line in shown.splitlines() if "polaris" in line)
    assert [cell.strip() for cell in line.strip("│ ").split("│")][4:] == ["1", f"{held}", f"{10 - held}"]


def test_a_run_goes_on_only_with_the_data_that_it_began_with(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, rows(range(40)))
    c = job(("polaris", str(path), 1.0), hold_out=0.2)

    def origins():
        return [dataclasses.asdict(o) for o in data.open_pools(c).origins]

    folder = RunFolder(tmp_path / "run", c)
    folder.check_data(origins())
    before = (folder.path / "data.json").read_bytes()
    folder.check_data(origins())
    assert (folder.path / "data.json").read_bytes() == before
    held = next(n for n in range(40) if splits.held_out(f"polaris/{n}", 0.2))
    kept = next(n for n in range(40) if not splits.held_out(f"polaris/{n}", 0.2))
    for changed in (held, kept):
        write(path, [row | ({"answer": "-1"} if n == changed else {}) for n, row in enumerate(rows(range(40)))])
        with pytest.raises(RunFolderError, match=r"other data \(polaris for train: \d+ tasks .* there, \d+ tasks"):
            folder.check_data(origins())
    write(path, rows(range(40)))
    with pytest.raises(RunFolderError, match="aime24 for test: absent there, 2 tasks"):
        folder.check_data([*origins(), {"use": "test", "name": "aime24", "tasks": 2, "hash": "x"}])
    assert (folder.path / "data.json").read_bytes() == before
    (folder.path / "data.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"data\.json: not readable"):
        folder.check_data(origins())


def test_a_test_set_without_hidden_tests_says_so_where_the_run_starts(tmp_path, capsys):
    path = write(tmp_path / "a.jsonl", rows(range(10)))
    public = json.dumps([{"input": "1", "output": "1", "testtype": "stdin"}])
    bare = {"question_id": "a", "question_content": "Echo.", "public_test_cases": public}
    c = job(("polaris", path, 1.0), test=(("livecodebench", write(tmp_path / "l.jsonl", [bare]), 1.0),))
    loop.show_data(pools := data.open_pools(c))
    assert [origin.public_only for origin in pools.origins] == [0, 1]
    assert "1 judged on public tests only" in " ".join(capsys.readouterr().out.replace("│", " ").split())
