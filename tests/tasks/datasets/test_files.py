"""Which files of a path are read: splits are told apart or refused, and a damaged download is named."""

import json

import pytest

from metaagent_x.tasks.datasets import DatasetError, load


def rows(*answers):
    return [{"question": f"question {answer}", "answer": f"#### {answer}"} for answer in answers]


def golds(spec, path=None):
    return [rubric.gold[0] for _, rubric in load(spec, path)]


def fetched(folder, files):
    """A folder as `fetch` leaves it."""
    listing = {}
    for path, content in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in content))
        listing[path] = {"bytes": file.stat().st_size, "sha256": "0" * 64}
    record = {"repo": "openai/gsm8k", "revision": "a" * 40, "files": listing}
    (folder / "dataset.json").write_text(json.dumps(record))
    return str(folder)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train.jsonl", "test.jsonl"), ("gsm8k_train_v2.jsonl", "gsm8k-test.jsonl"), ("train/a.jsonl", "test/a.jsonl"),
        ("main/train-00000-of-00001.jsonl", "main/test-00000-of-00001.jsonl"),
        ("test/training.jsonl", "latest/test2.jsonl"),
    ],
)  # fmt: skip
def test_splits_are_told_by_names(write, tmp_path, train, test):
    write(*rows(1, 2), name=f"d/{train}")
    write(*rows(3), name=f"d/{test}")
    write(*rows(4), name="d/.cache/train.jsonl")
    folder = str(tmp_path / "d")
    assert golds("gsm8k", folder) == golds("gsm8k:split=train", folder) == ["1", "2"]
    assert golds("gsm8k:split=test", folder) == ["3"]
    assert sorted(golds("gsm8k:split=all", folder)) == ["1", "2", "3"]


def test_a_folder_that_mixes_splits_is_never_read_whole_unasked(write, tmp_path):
    write(*rows(1), name="d/train.jsonl")
    write(*rows(2), name="d/more.jsonl")
    with pytest.raises(DatasetError, match=r"the split of .*more.jsonl is unclear; .* must hold one of train, test"):
        load("gsm8k", str(tmp_path / "d"))
    assert golds("gsm8k:split=all", str(tmp_path / "d")) == ["2", "1"]
    write(*rows(3), name="t/test.jsonl")
    with pytest.raises(DatasetError, match=r"holds nothing of split train .*; it has test. Ask for another"):
        load("gsm8k", str(tmp_path / "t"))
    write(*rows(4), name="u/rows.jsonl")
    assert golds("gsm8k", str(tmp_path / "u")) == ["4"], "one set without names of splits is read whole"
    with pytest.raises(DatasetError, match=r"the split of .*rows.jsonl is unclear"):
        load("gsm8k:split=test", str(tmp_path / "u"))


def test_a_file_is_read_whole_unless_it_is_another_split(write):
    assert golds("gsm8k", write(*rows(1), name="test.jsonl")) == ["1"]
    assert golds("gsm8k:split=test", write(*rows(1), name="mine.jsonl")) == ["1"]
    with pytest.raises(DatasetError, match=r"holds nothing of split train .*; it has test"):
        load("gsm8k:split=train", write(*rows(1), name="test.jsonl"))


def test_a_dataset_with_one_split_takes_every_file(write, tmp_path):
    """Benchmarks are published under names such as train.jsonl."""
    write({"problem": "p", "answer": 1}, name="d/train.jsonl")
    (tmp_path / "d" / "b.json").write_text(json.dumps([{"problem": "q", "answer": 2}]))
    (tmp_path / "d" / "notes.txt").write_text("not data")
    assert golds("aime24", str(tmp_path / "d")) == golds("aime24:split=test", str(tmp_path / "d")) == ["2", "1"]


def test_paths_that_hold_nothing_are_named(tmp_path):
    with pytest.raises(DatasetError, match=r"absent does not exist; give a file or folder of rows"):
        load("polaris", str(tmp_path / "absent"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match=r"empty holds no file of rows \(\.jsonl, "):
        load("polaris", str(tmp_path / "empty"))
    (tmp_path / "rows.csv").write_text("a,b")
    with pytest.raises(DatasetError, match=r"rows.csv is no file of rows; \.jsonl, "):
        load("polaris", str(tmp_path / "rows.csv"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("polariss", "unknown dataset 'polariss'; known: polaris, apps"),
        ("gsm8k:split=dev", "gsm8k has the splits train, test; all reads every one"),
        ("gsm8k:level=1", "'level=1' is not an option of gsm8k, each once; it has split=..."),
        ("gsm8k:split", "'split' is not an option"),
        ("gsm8k:split=", "'split=' is not an option"),
        ("gsm8k:split=test,split=train", "'split=train' is not an option of gsm8k, each once"),
    ],
)
def test_names_and_options_that_cannot_be_meant_are_named(write, spec, message):
    with pytest.raises(DatasetError, match=message):
        load(spec, write(*rows(1)))


@pytest.mark.fault("F146")
def test_without_a_path_the_data_folder_is_used(write, tmp_path, monkeypatch):
    """UKGovernmentBEIS/inspect_ai#1526: no dataset is looked for on the network by a job."""
    monkeypatch.setenv("METAAGENT_X_DATA", str(tmp_path / "sets"))
    with pytest.raises(DatasetError) as problem:
        load("gsm8k:split=test")
    assert f"python -m metaagent_x.tasks.datasets fetch gsm8k --to {tmp_path / 'sets'}" in str(problem.value)
    write(*rows(1), name="sets/gsm8k/train.jsonl")
    assert golds("gsm8k") == ["1"]
    monkeypatch.delenv("METAAGENT_X_DATA")
    monkeypatch.chdir(tmp_path)
    write(*rows(2), name="data/gsm8k/test.jsonl")
    assert golds("gsm8k:split=test") == ["2"]


FILES = {"main/train-00000-of-00001.jsonl": rows(1, 2), "main/test-00000-of-00001.jsonl": rows(3)}


def test_a_fetched_folder_is_read_by_its_own_list(tmp_path):
    folder = fetched(tmp_path, FILES)
    (tmp_path / "main" / "train-stray.jsonl").write_text("{")
    assert golds("gsm8k", folder) == ["1", "2"] and golds("gsm8k:split=test", folder) == ["3"]


@pytest.mark.fault("F146")
def test_a_damaged_download_is_named(tmp_path):
    folder = fetched(tmp_path, FILES)
    test = tmp_path / "main" / "test-00000-of-00001.jsonl"
    size = test.stat().st_size
    test.write_bytes(test.read_bytes()[:-3])
    with pytest.raises(
        DatasetError, match=rf"test-00000.* has {size - 3} bytes instead of {size}: .*; repeat: python -m"
    ):
        load("gsm8k", folder)
    test.unlink()
    with pytest.raises(DatasetError, match=r"test-00000.* is missing: the download is damaged; repeat: "):
        load("gsm8k", folder)


@pytest.mark.parametrize(
    "record", ["", "[]", "{}", '{"files": 1}', '{"files": {"a": {}}}', '{"files": {"a": {"bytes": "x"}}}']
)
def test_a_damaged_record_is_named(tmp_path, record):
    folder = fetched(tmp_path, FILES)
    (tmp_path / "dataset.json").write_text(record)
    with pytest.raises(DatasetError, match=r"dataset.json is damaged .*repeat: python -m .* fetch gsm8k"):
        load("gsm8k", folder)
