"""Readers: every form gives the same rows, and a damaged file is named with the place of the damage."""

import datetime
import gzip
import json
import pathlib
import subprocess
import sys

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest

from metaagent_x.tasks.datasets import DatasetError, load, rows, solutions

ROOT = pathlib.Path(__file__).resolve().parents[3]
POLARIS = [{"problem": f"question {i} é", "answer": str(i), "difficulty": "1/8"} for i in range(5)]


def lines(values):
    return "".join(json.dumps(row) + "\n" for row in values)


def write_arrow(path, values, stream):
    table = pa.Table.from_pylist(values)
    open_file = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, open_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


FORMS = {
    "rows.jsonl": lambda path: path.write_text(lines(POLARIS)),
    "bom.jsonl": lambda path: path.write_text(lines(POLARIS), encoding="utf-8-sig"),
    "rows.jsonl.gz": lambda path: path.write_bytes(gzip.compress(lines(POLARIS).encode())),
    "rows.json": lambda path: path.write_text(json.dumps(POLARIS, indent=1, ensure_ascii=False), encoding="utf-8"),
    "lines.json": lambda path: path.write_text(lines(POLARIS)),
    "rows.parquet": lambda path: pa.parquet.write_table(pa.Table.from_pylist(POLARIS), path, row_group_size=2),
    "file.arrow": lambda path: write_arrow(path, POLARIS, stream=False),
    "stream.arrow": lambda path: write_arrow(path, POLARIS, stream=True),
}


@pytest.mark.fault("F145")
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_file_gives_the_same_pairs(tmp_path, write, form):
    FORMS[form](tmp_path / form)
    assert load("polaris", str(tmp_path / form)) == load("polaris", write(*POLARIS, name="expected/rows.jsonl"))


@pytest.mark.parametrize("form", FORMS)
def test_damaged_files_are_named(tmp_path, form):
    path = tmp_path / form
    FORMS[form](path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DatasetError, match=rf"polaris: .*{form} .*(unreadable JSON|cannot be read)"):
        load("polaris", str(path))


@pytest.mark.parametrize("form", ["rows.jsonl.gz", "rows.parquet", "rows.arrow", "rows.json"])
def test_files_of_another_form_than_their_name_says_are_named(tmp_path, form):
    (tmp_path / form).write_bytes(b"\x00\x01 not rows " * 20)
    with pytest.raises(DatasetError, match=rf"polaris: .*{form} .*(unreadable JSON|cannot be read)"):
        load("polaris", str(tmp_path / form))


def test_broken_lines_are_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(POLARIS[0]) + "\n\n{'problem'\n")
    with pytest.raises(DatasetError, match=r"polaris: .*rows.jsonl line 3: unreadable JSON"):
        load("polaris", str(path))
    path.write_bytes(json.dumps(POLARIS[0]).encode() + b'\n{"problem": "\xff"}')
    with pytest.raises(DatasetError, match=r"rows.jsonl cannot be read after line 1: .*invalid start byte"):
        load("polaris", str(path))
    path.write_text("[" * 100_000)
    with pytest.raises(DatasetError, match=r"rows.jsonl cannot be read after line 0: nested too deeply"):
        load("polaris", str(path))
    (tmp_path / "rows.json").write_text('"text"')
    with pytest.raises(DatasetError, match=r"holds str; a .json file must hold a list"):
        load("polaris", str(tmp_path / "rows.json"))
    (tmp_path / "rows.json").write_text('{"problem":\n"a"}')
    with pytest.raises(DatasetError, match=r"^polaris: \S+rows.json line 1: unreadable JSON: [^/]*$"):
        load("polaris", str(tmp_path / "rows.json"))
    path.write_text("[1]\n")
    with pytest.raises(DatasetError, match="line 1: holds list, it must be an object"):
        load("polaris", str(path))


def test_line_separators_inside_a_row_do_not_cut_it(tmp_path):
    (tmp_path / "r.jsonl").write_text('{"problem": "a\u2028b", "answer": "1"}\r\n', encoding="utf-8", newline="")
    assert load("polaris", str(tmp_path / "r.jsonl"))[0][0].prompt == "a\u2028b"


def test_rows_are_read_as_they_are_asked_for(tmp_path):
    """No file is read whole: the first rows come before the damage behind them is met."""
    path = tmp_path / "rows.jsonl"
    path.write_text(lines(POLARIS) + "{")
    reader = rows.read("polaris", path)
    assert [next(reader)[0] for _ in POLARIS] == [f"line {i}" for i in range(1, 6)]
    with pytest.raises(DatasetError):
        next(reader)


def test_columns_hold_nested_tests_and_dates(tmp_path):
    """Parquet has types that JSON has not: structs of lists, null, dates."""
    row = {
        "name": "a", "description": "d", "public_tests": {"input": ["1"], "output": ["1"]},
        "private_tests": {"input": ["2"], "output": ["2"]}, "generated_tests": {"input": [], "output": []},
        "time_limit": {"seconds": 1, "nanos": 500_000_000}, "solutions": {"language": [3], "solution": ["p"]},
    }  # fmt: skip
    pa.parquet.write_table(
        pa.Table.from_pylist([row, row | {"name": "b", "description": "e", "time_limit": None}]), tmp_path / "r.parquet"
    )
    (_, a), (_, b) = load("code_contests", str(tmp_path / "r.parquet"))
    assert (a.time_limit_s, b.time_limit_s) == (1.5, 4.0) and a.tests[0]["input"] == "2"
    assert dict(solutions("code_contests", str(tmp_path / "r.parquet"))) == {
        "code_contests/a": ["p"], "code_contests/b": ["p"]
    }  # fmt: skip
    lcb = {
        "question_id": "1", "question_content": "q", "contest_date": datetime.datetime(2025, 1, 4), "metadata": "{}",
        "public_test_cases": '[{"input": "1", "output": "1", "testtype": "stdin"}]', "private_test_cases": "[]",
    }  # fmt: skip
    pa.parquet.write_table(pa.Table.from_pylist([lcb]), tmp_path / "l.parquet")
    ((task, _),) = load("livecodebench:from=2025-01-04", str(tmp_path / "l.parquet"))
    assert task.metadata["contest_date"] == "2025-01-04T00:00:00"


def test_columns_that_no_conversion_needs_are_not_decoded(tmp_path):
    wide = [row | {"solutions": "x"} for row in POLARIS]
    pa.parquet.write_table(pa.Table.from_pylist(wide), tmp_path / "r.parquet")
    write_arrow(tmp_path / "r.arrow", wide, stream=False)
    for name in ("r.parquet", "r.arrow"):
        assert [values for _, values in rows.read("polaris", tmp_path / name, unused=["solutions"])] == POLARIS
        assert [values for _, values in rows.read("polaris", tmp_path / name)] == wide


@pytest.mark.parametrize(
    "value", ["\ud800", "a\udfff"], ids=["high", "low"]
)  # what no tokenizer, file or pipe could carry  # fmt: skip
def test_half_characters_are_named(write, value):
    with pytest.raises(DatasetError, match="field 'problem': holds half a character"):
        load("polaris", write({"problem": value, "answer": "1"}))


TFDS = """
import json, sys
import numpy as np
import tensorflow_datasets as tfds

class Polaris(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")
    def _info(self):
        text = tfds.features.Text()
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(
            {"problem": text, "answer": text, "number": np.int64, "more": tfds.features.Sequence({"a": text})}))
    def _split_generators(self, _):
        return {"train": self._generate_examples()}
    def _generate_examples(self):
        for i in range(5):
            yield i, {"problem": f"question {i} é", "answer": str(i), "number": i, "more": [{"a": "b"}] * i}

class Gsm8k(Polaris):
    def _info(self):
        text = tfds.features.Text()
        features = tfds.features.FeaturesDict({"question": text, "answer": text})
        return tfds.core.DatasetInfo(builder=self, features=features)
    def _split_generators(self, _):
        return {"train": self._generate_examples(), "test": [(0, {"question": "q", "answer": "#### 7"})]}
    def _generate_examples(self):
        yield 0, {"question": "p", "answer": "#### 5"}

for builder in Polaris, Gsm8k:
    builder(data_dir=sys.argv[1], file_format="array_record").download_and_prepare()

from metaagent_x.tasks.datasets import load, open_rows
folder = sys.argv[1] + "/polaris/1.0.0"
pairs = load("polaris", folder)
assert pairs == load("polaris", "tfds:" + folder)
gsm8k = sys.argv[1] + "/gsm8k/1.0.0"
print(json.dumps({
    "rows": [dict(row.values) for row in open_rows("polaris", folder)],
    "pairs": sorted([task.prompt, rubric.gold[0]] for task, rubric in pairs),
    "place": next(open_rows("polaris", folder)).place,
    "splits": [[rubric.gold[0] for _, rubric in load("gsm8k:split=" + split, gsm8k)]
               for split in ("train", "test", "all")],
    "tensorflow": [name for name in sys.modules if name.partition(".")[0] == "tensorflow"],
}))
"""


@pytest.fixture(scope="module")
def tfds_folder(tmp_path_factory):
    """Two TFDS folders, prepared and read in a process of its own: what is imported there is seen there."""
    folder = tmp_path_factory.mktemp("tfds")
    (folder / "script.py").write_text(TFDS, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(folder / "script.py"), str(folder)], cwd=ROOT, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(folder), "NO_GCE_CHECK": "true"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, json.loads(done.stdout.strip().split("\n")[-1])


def test_tfds_folders_are_read_without_tensorflow(tfds_folder):
    folder, seen = tfds_folder
    assert seen["tensorflow"] == []
    assert seen["pairs"] == [[f"question {i} é", str(i)] for i in range(5)]
    by_number = sorted(seen["rows"], key=lambda row: row["number"])
    assert by_number[2] == {"problem": "question 2 é", "answer": "2", "number": 2, "more": {"a": ["b", "b"]}}
    assert seen["place"] == f"polaris: {folder}/polaris/1.0.0 train row 1"
    assert seen["splits"] == [["5"], ["7"], ["5", "7"]]


def test_tfds_folders_that_only_tensorflow_can_read_are_named(tfds_folder):
    folder = tfds_folder[0] / "gsm8k" / "1.0.0"
    with pytest.raises(DatasetError, match=r"gsm8k: .* has no split|splits train, test"):
        load("gsm8k:split=valid", str(folder))
    info = folder / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(DatasetError, match="holds tfrecord files, which only TensorFlow can read"):
        load("gsm8k", str(folder))
    info.write_text("{")
    with pytest.raises(DatasetError, match="is not a readable TFDS folder"):
        load("gsm8k", str(folder))
    with pytest.raises(DatasetError, match="not a TFDS folder"):
        load("gsm8k", f"tfds:{folder.parent}")
