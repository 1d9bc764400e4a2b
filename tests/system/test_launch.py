"""The scripts of launch/, run as they are: a real small run, and a stand-in for the interpreter where only exit codes
and signals matter. The container recipe is read, not built."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
QUICK = "--xla_backend_optimization_level=0"  # it compiles far more than it computes
# Ends with the next of the codes in CODES (the last one again and again), and notes what it was asked.
STAND_IN = """#!/usr/bin/env bash
echo "$*" >> "$DIR/asked"
n=$(wc -l < "$DIR/asked"); codes=($CODES); code=${codes[$((n - 1))]:-${codes[-1]}}
echo "run $n"
echo "$WORDS"
[[ $* == *--preflight* || -z $GROW ]] || echo '{"step": 1}' >> "$DIR/run/metrics.jsonl"
if [[ $code == wait ]]; then
  trap 'echo saved; exit 3' TERM
  touch "$DIR/ready"
  while :; do sleep 0.05; done
fi
((code < 128)) || kill -$((code - 128)) $$
exit "$code"
"""


@pytest.fixture
def popen():
    """subprocess.Popen, whose processes are gone when the test ends, however it ends."""
    jobs = []

    def start(command, **settings):
        jobs.append(
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, **settings
            )
        )
        return jobs[-1]

    yield start
    for job in jobs:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


@pytest.fixture
def node(tmp_path, popen):
    """Starts launch/one_node.sh with the stand-in: start(codes, flags...) -> process."""
    (tmp_path / "python").write_text(STAND_IN)
    (tmp_path / "python").chmod(0o755)

    def start(codes, *flags, **env):
        environment = {
            **os.environ, "PYTHON": str(tmp_path / "python"), "DIR": str(tmp_path), "CODES": codes, "GROW": "",
            "WORDS": "", "BACKOFF_S": "0", **env,
        }  # fmt: skip
        command = [ROOT / "launch" / "one_node.sh", "configs/smoke.py", str(tmp_path / "run"), *flags]
        return popen(command, env=environment, cwd=tmp_path)

    return start


def end(job):
    output, _ = job.communicate(timeout=60)
    return job.returncode, output


def asked(folder):
    return (folder / "asked").read_text().splitlines()


def until_ready(folder):
    deadline = time.monotonic() + 30
    while not (folder / "ready").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_new_run_is_checked_whole_once_and_begun_again_after_crashes(node, tmp_path):
    code, output = end(node("0 1 139 0", "--seed=3"))
    assert code == 0, output
    same = f"-m metaagent_x.train --config=configs/smoke.py --workdir={tmp_path}/run --seed=3"
    assert asked(tmp_path) == [f"{same} --preflight", same, same, same]
    assert "restart 2 of 5" in output
    assert (tmp_path / "run" / "log").read_text() == output, "the log has what the terminal had"


def test_a_run_that_goes_on_gets_the_checks_alone(node, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    assert end(node("0"))[0] == 0
    assert asked(tmp_path)[0].endswith("--preflight --preflight_steps=0")


@pytest.mark.parametrize(("codes", "code", "runs"), [("0 2", 2, 2), ("0 3", 3, 2), ("2 0", 2, 1), ("3 0", 3, 1)])
def test_bad_input_and_interruptions_start_nothing_again(node, tmp_path, codes, code, runs):
    assert end(node(codes))[0] == code
    assert len(asked(tmp_path)) == runs


def test_a_run_that_stopped_itself_is_not_begun_again(node, tmp_path):
    code, output = end(node("0 1 0", WORDS="stopped: valid designs fell"))
    assert code == 1 and len(asked(tmp_path)) == 2 and "change what it names" in output


def test_a_run_that_hung_is_begun_again(node, tmp_path):
    assert end(node("0 1 0", WORDS="stuck: step 2: push has taken 10 s"))[0] == 0
    assert len(asked(tmp_path)) == 3


def test_a_run_that_keeps_crashing_is_given_up_with_its_code(node, tmp_path):
    code, output = end(node("0 1", RESTARTS="2"))
    assert code == 1 and len(asked(tmp_path)) == 1 + 3
    assert "given up after 2 restarts without a further step" in output


def test_crashes_with_steps_in_between_do_not_add_up(node, tmp_path):
    code, output = end(node("0 1 1 1 1 0", RESTARTS="1", GROW="yes"))
    assert code == 0 and len(asked(tmp_path)) == 6, output


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_ends_it_for_good(node, tmp_path, sign):
    job = node("0 wait")
    until_ready(tmp_path)
    job.send_signal(sign)
    code, output = end(job)
    assert code == 3 and "saved" in output and len(asked(tmp_path)) == 2, output


def test_a_signal_between_two_tries_ends_it_at_once(node, tmp_path):
    job = node("0 1", BACKOFF_S="600")
    for line in job.stdout:
        if "restart 1 of 5 in 600 s" in line:
            break
    job.send_signal(signal.SIGTERM)
    code, output = end(job)
    assert code == 3 and "interrupted between two tries" in output and len(asked(tmp_path)) == 2


def test_a_missing_config_or_interpreter_is_bad_input(tmp_path):
    script = str(ROOT / "launch" / "one_node.sh")
    for command, words in (
        ([script], "launch/one_node.sh CONFIG WORKDIR"),
        ([script, "configs/none.py", str(tmp_path / "run")], "no config configs/none.py"),
    ):
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHON": sys.executable})
        assert done.returncode == 2 and words in done.stderr
    env = {**os.environ, "PYTHON": str(tmp_path / "python")}
    done = subprocess.run(
        [script, "configs/smoke.py", str(tmp_path / "run")], capture_output=True, text=True, env=env
    )  # fmt: skip
    assert done.returncode == 2 and "no interpreter" in done.stderr and list(tmp_path.iterdir()) == []


def test_a_real_run_goes_from_the_checks_to_its_report(tmp_path):
    """One step of the smoke configuration; the second time there is nothing left to do."""
    command = [
        ROOT / "launch" / "one_node.sh", "configs/smoke.py", str(tmp_path / "run"), "--steps=1",
        f"--config.sft.cache={tmp_path / 'cold'}", "--config.sft.first_eval=1", "--config.sft.eval_every=1",
        "--config.sft.tokenizer_examples=1000", "--config.sft.eval_tasks=2", "--config.eval.tasks=2",
        "--config.gate.tasks=2", "--config.data.dev_size=4", "--config.data.test_size=4", "--config.eval.cross=False",
        "--config.model.num_layers=1", "--config.learner.micro_rows=2", "--config.sft.rows=2",
        "--config.sft.micro_rows=2",
    ]  # fmt: skip
    env = {**os.environ, "PYTHON": sys.executable, "XLA_FLAGS": QUICK, "COLUMNS": "160"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    output = done.stdout
    assert done.returncode == 0, output + done.stderr
    checks, _, rest = output.partition("measured, beside the dry run")
    assert "wrong" not in checks and "work folder" in checks
    for phase in ("collect", "update", "push", "save"):
        assert re.search(rf"│ {phase} +│ +[\d.-]+ │ +[\d.]+ │", rest), phase
    memory = re.findall(r"│ update +│.*│ +([\d.]+) │ +([\d.]+) │", rest)
    assert float(memory[0][0]) > float(memory[0][1]) > 0, "the process holds what the dry run counts, and itself"
    assert "report:" in rest and (tmp_path / "run" / "report.html").exists()
    assert not list(tmp_path.glob("**/.preflight-*"))
    assert (tmp_path / "run" / "log").read_text() == output


# ---- SLURM


@pytest.fixture
def slurm(tmp_path, popen):
    """Starts launch/slurm.sbatch where Slurm would: start(code, state) -> process. scontrol notes what it is told."""
    home = tmp_path / "submitted"
    (home / "launch").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    files = {
        home / "launch" / "one_node.sh": 'echo "$*" > "$DIR/asked"; trap "exit 3" TERM; touch "$DIR/ready"\n'
        'until [[ $CODE ]]; do sleep 0.05; done; exit "$CODE"',
        tmp_path / "bin" / "scontrol": 'echo "$*" >> "$DIR/scontrol"\n'
        '[[ $1 != show ]] || echo "JobId=7 JobName=metaagent_x JobState=$STATE Reason=None"',
    }
    for path, text in files.items():
        path.write_text(f"#!/usr/bin/env bash\n{text}\n")
        path.chmod(0o755)

    def start(code="", state="RUNNING"):
        env = {
            **os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(home),
            "SLURM_JOB_ID": "7", "DIR": str(tmp_path), "CODE": code, "STATE": state,
        }  # fmt: skip
        command = ["bash", str(ROOT / "launch" / "slurm.sbatch"), "configs/smoke.py", "runs/x", "--seed=3"]
        return popen(command, env=env, cwd="/")

    return start


def told(folder):
    path = folder / "scontrol"
    return [line for line in path.read_text().splitlines() if "show" not in line] if path.exists() else []


def test_a_job_at_the_end_of_its_time_saves_and_is_queued_again(slurm, tmp_path):
    job = slurm()
    until_ready(tmp_path)
    job.send_signal(signal.SIGTERM)
    code, output = end(job)
    assert code == 3 and told(tmp_path) == ["requeue 7"], output
    assert (tmp_path / "asked").read_text() == "configs/smoke.py runs/x --seed=3\n"


def test_a_job_that_was_cancelled_does_not_come_back(slurm, tmp_path):
    job = slurm(state="CANCELLED")
    until_ready(tmp_path)
    job.send_signal(signal.SIGTERM)
    assert end(job)[0] == 3 and told(tmp_path) == []


@pytest.mark.parametrize("code", ["0", "1", "2"])
def test_a_job_that_ended_is_not_queued_again(slurm, tmp_path, code):
    assert end(slurm(code))[0] == int(code) and told(tmp_path) == []


def test_slurm_is_asked_for_a_node_a_warning_and_a_requeue():
    text = (ROOT / "launch" / "slurm.sbatch").read_text()
    asked_for = set(re.findall(r"^#SBATCH (\S+)$", text, re.M))
    assert {"--nodes=1", "--gpus-per-node=8", "--requeue", "--signal=B:TERM@1200", "--open-mode=append"} <= asked_for
    first = next(i for i, line in enumerate(text.splitlines()) if line and not line.startswith("#"))
    assert "#SBATCH" not in "\n".join(text.splitlines()[first:]), "Slurm reads none after the first command"


# ---- the container


def test_the_container_recipe_copies_code_alone_and_runs_as_nobody_special():
    text = (ROOT / "launch" / "Containerfile").read_text().replace("\\\n", " ")
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    names = [name for name, _ in steps]
    assert names[0] == "FROM" and names.count("FROM") == 1 and "ADD" not in names and "ARG" not in names
    assert re.fullmatch(r"\S+/nvidia/cuda:[\d.]+-base-ubuntu24\.04", steps[0][1]), "a fixed base"
    copied = [source for name, rest in steps if name == "COPY" for source in rest.split()[:-1]]
    assert all((ROOT / source).exists() for source in copied)
    assert {"metaagent_x", "configs", "launch", "third_party"} <= set(copied) and "." not in copied
    user = next(rest for name, rest in reversed(steps) if name == "USER")
    assert user.isdecimal() and int(user) > 0
    assert names[-1] == "ENTRYPOINT" and (ROOT / "launch" / "one_node.sh").stat().st_mode & 0o111
