"""The code grader: which program, which verdict, and what a program cannot do."""

import pathlib
import random
import time

import pytest

from metaagent_x import sandbox
from metaagent_x.tasks.code import (
    UnsupportedTest,
    extract_code,
    extract_code_with_flag,
    is_program,
    judge,
)


def stdin_test(given, expected):
    return {"kind": "stdin", "input": given, "output": expected}


def statuses(program, *tests, **limits):
    limits = {"time_limit_s": 1.0, "memory_mb": 256} | limits
    return [result.status for result in judge(program, [stdin_test(*t) for t in tests], **limits).per_test]


FINAL = '''def f(n):
    """Use it so:
```
f(3)
```
    and not ``` otherwise."""
    return n + 1

print(f(int(input())))
'''


@pytest.mark.fault("B037")
@pytest.mark.parametrize(
    ("text", "program", "cut"),
    [
        (f"A first try:\n```python\nprint(0)\n```\nIt is wrong. Better:\n```python\n{FINAL}```\nDone.", FINAL, False),
        (f"```\n{FINAL}```", FINAL, False),
        (f"```py\n{FINAL}```\nPrints for 4:\n```\n5\n```", FINAL, False),
        (f"```python\n{FINAL}```\nRun it:\n```bash\npython main.py\n```", FINAL, False),
        ("```python\nprint(1)```", "print(1)\n", False),
        (FINAL, FINAL, False),
        (f"<solution>\n{FINAL}</solution>", FINAL, False),
        (f"<solution>\n```python\n{FINAL}```\n</solution>", FINAL, False),
        (f"<solution>x = 1</solution> <solution>\n{FINAL}</solution> and </solution> <solution>", FINAL, False),
        (f"{'<solution>' * 10**5}", None, False),  # read in linear time
        ("```python\nfor i in range(3)\n    print(i)\n```", "for i in range(3)\n    print(i)\n", False),
        ("```python\nprint(1)\n```\nBetter:\n```python\nprint(2", "print(1)\n", True),
        ("```python\nprint(1)\n", None, True),
        ("The answer is 5.", None, False),
        ("Yes", None, False),
        ("```\n5\n```", None, False),
        ("", None, False),
    ],
)
def test_the_last_complete_program_is_taken(text, program, cut):
    """huggingface/smolagents#1219, FoundationAgents/MetaGPT#1984: inner fences, earlier examples, cut fences."""
    assert extract_code_with_flag(text) == (program, cut)
    assert extract_code(text) == program


def test_extraction_stands_hostile_text():
    start = time.process_time()
    extract_code("```python\n" * 2000)
    assert extract_code("```\n(" + "((((" * 3000 + "\n```") is None
    assert not is_program("[" * 100_000) and not is_program("x\0")
    assert time.process_time() - start < 60


@pytest.mark.fault("F135")
@pytest.mark.fault("B036")
def test_byte_streams_and_long_integers_work():
    """NVIDIA-NeMo/Gym#2956: stdout was a string buffer without `.buffer`; integers above 4,300 digits failed."""
    assert statuses("import sys\nsys.stdout.buffer.write(b'7 8\\n')", ("", "7 8")) == ["passed"]
    assert statuses("import sys\nprint(len(sys.stdin.buffer.read()))", ("abc\n", "4")) == ["passed"]
    assert statuses("import os\nos.write(1, os.read(0, 9))", ("abc", "abc")) == ["passed"]
    assert statuses("print(10**5000 - 1)", ("", "9" * 5000)) == ["passed"]
    assert statuses("print(int(input()) + 1)", ("1" * 5000, "1" * 4999 + "2")) == ["passed"]


@pytest.mark.fault("F138")
@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("raise ValueError('no')", "error"),
        ("def f(): raise KeyError(1)\nf()", "error"),
        ("import sys\nsys.exit(2)", "error"),
        ("print(1", "error"),
        ("pass", "passed"),
        ("print(1)", "wrong_answer"),
        ("import os\nos.abort()", "crash"),
    ],
)
def test_a_crash_is_no_empty_output(program, status):
    """verl-project/verl#7853: a program that raised was compared by its (empty) output."""
    assert statuses(program, ("", "")) == [status]


@pytest.mark.fault("F139")
def test_a_test_ends_at_its_limits():
    """rllm-org/rllm#915, #918."""
    assert statuses("while True: pass", ("", "")) == ["cpu"]
    assert statuses("x = bytearray(900 << 20)", ("", "")) == ["memory"]
    sleeper = (
        "import subprocess\ntry:\n    subprocess.Popen(['sleep', '97'])\nexcept Exception:\n    pass\nwhile True: pass"
    )
    assert statuses(sleeper, ("", "")) == ["cpu"]
    marks = [p for p in pathlib.Path("/proc").glob("[0-9]*/cmdline") if _reads(p) == b"sleep\x0097\x00"]
    assert not marks


def _reads(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.fault("F143")
@pytest.mark.parametrize("given", ["'\"\\", "a\\nb", "')]}\n\"\"\"\n'''", "{x} %s \x00 é 漢 \u2028", "```\nimport os"])
def test_inputs_are_data(given):
    """promptfoo/promptfoo#5477."""
    echo = "import sys\nsys.stdout.write(sys.stdin.read())"
    assert statuses(echo, (given, given), (given + "x", given)) == ["passed", "wrong_answer"]


SPY = """
import gc, os, re
found = []
for root in ('.', '..'):
    for path, _, files in os.walk(root):
        for name in files[:50]:
            try:
                found.append(open(os.path.join(path, name), 'rb').read(100_000).decode('latin1'))
            except OSError:
                pass
        if len(found) > 300:
            break
for fd in range(3, 64):
    try:
        found.append(os.pread(fd, 100_000, 0).decode('latin1'))
    except OSError:
        pass
found.append(str(dict(os.environ)))
found.append(str([o for o in gc.get_objects() if isinstance(o, (str, list, tuple, dict))][:20000]))
print('FOUND' if any(re.search('secret[0-9]{15,}', text) for text in found) else 'nothing')
"""


@pytest.mark.fault("F144")
def test_expected_outputs_never_reach_the_program(monkeypatch):
    """pettingllms-ai/PettingLLMs: programs ran beside the answer files, with the full environment."""
    secret = f"secret{random.Random(5).getrandbits(64)}"
    monkeypatch.setenv("METAAGENT_TEST_SECRET", secret)
    tests = [stdin_test("1", secret), stdin_test("2", secret)]
    judgement = judge(SPY, tests, time_limit_s=20.0)
    assert [r.detail for r in judgement.per_test] == [f"token 0: expected {secret!r}, got 'nothing'"] * 2


@pytest.mark.fault("F144")
def test_nothing_goes_from_one_test_to_the_next():
    """A program that notes its first input and prints it at the second."""
    keeper = (
        "import builtins, os, pathlib\nlast = getattr(builtins, 'kept', '')\n"
        "last = last or (pathlib.Path('kept').read_text() if os.path.exists('kept') else 'none')\n"
        "builtins.kept = input()\npathlib.Path('kept').write_text(builtins.kept)\nprint(last)"
    )
    assert statuses(keeper, ("a", "none"), ("b", "none")) == ["passed", "passed"]


def test_a_failing_sandbox_is_no_verdict(monkeypatch):
    def fail(*_args, **_options):
        raise sandbox.SandboxFailure("no process")

    monkeypatch.setattr(sandbox.Program, "run", fail)
    call = {"kind": "call", "input": [], "output": 1, "entry_point": "f"}
    asserting = {"kind": "assert", "input": "assert f() == 1", "output": "", "entry_point": "f"}
    for test in (stdin_test("", "1"), call, asserting):
        with pytest.raises(sandbox.SandboxFailure, match="no process"):
            judge("print(1)", [test])


def test_a_program_that_the_sandbox_ended_has_failed_its_test(monkeypatch):
    """Else a solution could make its verdict void, which counts for nothing."""
    ended = sandbox.Result("", "PermissionError: no", "refused", 1)
    monkeypatch.setattr(sandbox.Program, "run", lambda *a, **k: ended)
    (result,) = judge("import os\nos.fork()", [stdin_test("", "1")]).per_test
    assert (result.status, result.detail) == ("refused", "PermissionError: no")


def test_first_failure_stops_if_asked():
    tests = [stdin_test("", "1"), stdin_test("", "2"), stdin_test("", "1")]
    assert judge("print(1)", tests).passed == 2
    stopped = judge("print(1)", tests, stop_at_first_failure=True)
    assert (stopped.passed, stopped.total, len(stopped.per_test)) == (1, 3, 2)


@pytest.mark.fault("B036")
def test_a_checker_decides_where_several_outputs_are_right():
    program, test = "print('b c')\nprint('a')", stdin_test("x", "a\nb c")
    assert judge(program, [test]).passed == 0
    assert judge(program, [test], checker="unordered_lines").passed == 1
    seen = []
    assert judge(program, [test], checker=lambda *texts: seen.append(texts) or True).passed == 1
    assert seen == [("x", "a\nb c", "b c\na\n")]
    assert judge("1 / 0", [test], checker=lambda *texts: True).passed == 0
    assert judge(program, [test | {"checker": "unordered_lines"}, test]).passed == 1
    with pytest.raises(UnsupportedTest, match="'sorted' is not one of unordered_lines, any_case"):
        judge(program, [test], checker="sorted")
    with pytest.raises(UnsupportedTest, match="a checker reads printed text only"):
        judge(program, [{"kind": "call", "input": [], "output": 1, "entry_point": "f"}], checker="any_case")
