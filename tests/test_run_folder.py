"""The folder of a run: whole lines, one set of settings, seamless resume, full disk."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaagent_x import config
from metaagent_x.config import ConfigError
from metaagent_x.run_folder import RunFolder, RunFolderError, RunWriteError, flatten, read_lines, sampled_tokens


def settings(**changes):
    c = config.base()
    for field, value in changes.items():
        c[field] = value
    return c


def step_line(folder, step):
    folder.log(step, {"executor"}, {"accuracy": step / 3, "reward/mean": 0.1 * step, "time/step": step * 1.5})


def test_one_object_a_step_with_exact_numbers(tmp_path):
    folder = RunFolder(tmp_path / "run", settings())
    values = {"accuracy": 1 / 3, "loss/executor": 1e-17, "grad_norm": 0.1 + 0.2}
    folder.log(1, {"executor", "designer"}, values)
    (line,) = folder.metrics()
    assert (
        line["step"] == 1 and line["stage"] == "designer+executor" and line["role/active"] == ["designer", "executor"]
    )
    assert {k: line[k] for k in values} == values
    assert folder.name == "run" and list((folder.path / "tensorboard").iterdir())


def test_a_number_that_is_not_finite_is_null_and_named(tmp_path):
    folder = RunFolder(tmp_path, settings())
    folder.log(1, {"executor"}, {"grad_norm": float("nan"), "loss/executor": float("inf"), "accuracy": 0.5})
    text = (tmp_path / "metrics.jsonl").read_text()
    line = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert (
        line["grad_norm"] is None and line["not_finite"] == ["grad_norm", "loss/executor"] and line["accuracy"] == 0.5
    )


def test_a_resumed_run_writes_what_an_uninterrupted_one_does(tmp_path):
    straight = RunFolder(tmp_path / "a", settings())
    for step in range(1, 7):
        step_line(straight, step)
    stopped = RunFolder(tmp_path / "b", settings())
    for step in range(1, 6):
        step_line(stopped, step)
    stopped.log_evaluation({"step": 0, "name": "cold"})
    stopped.log_evaluation({"step": 5, "name": "stage"})
    (stopped.path / "traces").mkdir()
    for step in (2, 3, 4):
        (stopped.path / "traces" / f"step_{step:06d}.parquet").write_bytes(b"x")
    with open(stopped.path / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "accu')  # killed in the middle of a line
    again = RunFolder(tmp_path / "b", settings())
    again.truncate_after(3)
    assert [line["step"] for line in again.metrics()] == [1, 2, 3]
    assert [r["name"] for r in again.evaluations()] == ["cold"]
    assert sorted(p.name for p in (again.path / "traces").iterdir()) == ["step_000002.parquet", "step_000003.parquet"]
    for step in range(4, 7):
        step_line(again, step)
    assert (again.path / "metrics.jsonl").read_bytes() == (straight.path / "metrics.jsonl").read_bytes()


@pytest.mark.fault("F102")
def test_a_folder_of_other_settings_is_refused_with_every_difference(tmp_path):
    """A second run must not mix its steps into the first's. maxtext#1443, orbax#527."""
    first = RunFolder(tmp_path, settings(seed=1))
    step_line(first, 1)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    other = settings(seed=2)
    other.learner.learning_rate = 0.5
    with pytest.raises(RunFolderError) as error:
        RunFolder(tmp_path, other)
    text = str(error.value)
    assert "seed: 1 there, 2 here" in text and "learner.learning_rate: 5e-06 there, 0.5 here" in text
    assert str(tmp_path) in text and "--workdir" in text and isinstance(error.value, ConfigError)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_field_may_be_changed_on_purpose_and_the_change_is_kept(tmp_path):
    step_line(RunFolder(tmp_path, settings(seed=1)), 1)
    other = settings(seed=1)
    other.learner.learning_rate, other.designs = 0.5, 8
    with pytest.raises(RunFolderError, match="designs: 4 there, 8 here") as error:
        RunFolder(tmp_path, other, allow=["learner.learning_rate"])
    assert "learning_rate: " not in str(error.value) and "--allow_change=designs" in str(error.value)
    assert not (tmp_path / "changes.jsonl").exists()
    with pytest.raises(RunFolderError, match=r"--allow_change=learner\.lerning_rate: no such field"):
        RunFolder(tmp_path, other, allow=["learner.lerning_rate"])
    RunFolder(tmp_path, other, allow=["learner.learning_rate", "designs"], look=True)
    assert not (tmp_path / "changes.jsonl").exists(), "whoever only looks changes nothing"
    folder = RunFolder(tmp_path, other, allow=["learner.learning_rate", "designs", "batch"])
    folder.log_changes(1)
    folder.log_changes(0)  # a run that went back
    RunFolder(tmp_path, other).log_changes(1)  # from now on these are its settings
    change = {"designs": [4, 8], "learner.learning_rate": [5e-06, 0.5]}
    assert read_lines(tmp_path / "changes.jsonl") == [{"after_step": 1, "changes": change}]


def test_a_run_that_lost_its_checkpoints_is_not_begun_again(tmp_path):
    folder = RunFolder(tmp_path, settings())
    for step in range(1, 22):
        folder.check_begins(every=10)
        step_line(folder, step)
    with pytest.raises(RunFolderError, match="holds 21 steps and no checkpoint"):
        folder.check_begins(every=10)
    folder.log_roll_back({"after_step": 21, "to": 0, "why": "it collapsed"})
    folder.check_begins(every=10)


def test_a_run_may_be_prolonged_and_moved(tmp_path):
    step_line(RunFolder(tmp_path / "a", settings(steps=3, workdir="a")), 1)
    os.rename(tmp_path / "a", tmp_path / "b")
    folder = RunFolder(tmp_path / "b", settings(steps=9, workdir="b"))
    assert len(folder.metrics()) == 1
    assert json.loads((folder.path / "config.json").read_text())["steps"] == 9


def test_remains_of_unknown_settings_are_refused(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl but no config\.json"):
        RunFolder(tmp_path, settings())


@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl"])
def test_a_full_disk_is_named_and_harms_nothing(tmp_path, name):
    folder = RunFolder(tmp_path, settings())
    (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(RunWriteError, match=rf"^cannot write .*{name}: No space left on device; free some space"):
        step_line(folder, 1) if name == "metrics.jsonl" else folder.log_evaluation({"step": 0})


def test_a_line_that_fits_only_in_part_is_taken_back(tmp_path):
    """A file-size limit stands in for the disk: the write stops in the middle of a line."""
    program = f"""
import resource, signal
from metaagent_x import config
from metaagent_x.run_folder import RunFolder, RunWriteError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = RunFolder({str(tmp_path)!r}, config.base())
folder.log_evaluation({{"step": 0, "text": "a" * 100}})
size = (folder.path / "evaluations.jsonl").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, size + 50))
try:
    folder.log_evaluation({{"step": 1, "text": "b" * 100}})
except RunWriteError as error:
    print(error)
print((folder.path / "evaluations.jsonl").stat().st_size == size, len(folder.evaluations()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "evaluations.jsonl: File too large" in done.stdout and done.stdout.endswith("True 1\n")


def test_no_room_is_found_out_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(RunFolderError, match=f"cannot write {tmp_path}: No space left"):
        RunFolder(tmp_path, settings())
    assert not (tmp_path / ".probe").exists() and not (tmp_path / "config.json").exists()


def test_a_path_that_cannot_be_a_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run", "/proc/run"):
        with pytest.raises(RunFolderError, match="choose another --workdir"):
            RunFolder(path, settings())


def test_two_processes_cannot_write_one_run(tmp_path):
    folder = RunFolder(tmp_path, settings())
    program = f"from metaagent_x import config, run_folder; run_folder.RunFolder({str(tmp_path)!r}, config.base())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode and "another process is writing this run" in done.stderr
    del folder
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0


def test_a_damaged_line_is_named(tmp_path):
    (tmp_path / "m.jsonl").write_text('{"step": 1}\n{"ste\n{"step": 3}\n')
    with pytest.raises(RunFolderError, match=r"m\.jsonl, line 2"):
        read_lines(tmp_path / "m.jsonl")


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=4))
def test_numbers_survive_the_file(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("n") / "m.jsonl"
    path.write_text(json.dumps(values) + "\n")
    assert read_lines(path) == [values]


def test_the_tokens_of_a_run_are_those_that_both_roles_sampled():
    lines = [{"tokens/designer": 10.0, "tokens/executor": 90.0}, {"tokens/designer": 0.0, "tokens/executor": 31.0}]
    assert [sampled_tokens(lines[:n]) for n in range(3)] == [0, 100, 131]
    assert sampled_tokens([{"step": 0, "loss": 2.0}, *lines]) == 131


def test_flatten_names_nested_fields():
    assert flatten({"a": {"b": 1, "c": {"d": [2]}}, "e": None}) == {"a.b": 1, "a.c.d": [2], "e": None}


def test_fewer_steps_than_were_played_are_refused_and_nothing_is_rewritten(tmp_path):
    folder = RunFolder(tmp_path / "run", settings(steps=8))
    for step in range(1, 6):
        step_line(folder, step)
    before = (folder.path / "config.json").read_bytes()
    with pytest.raises(RunFolderError, match=r"holds 5 steps, more than steps=4"):
        RunFolder(tmp_path / "run", settings(steps=4))
    assert (folder.path / "config.json").read_bytes() == before
    RunFolder(tmp_path / "run", settings(steps=5))
