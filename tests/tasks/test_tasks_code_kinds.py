"""Call and assert tests, and what holds for all three kinds: limits, crashes, nothing to read and nothing to forge."""

import concurrent.futures
import dataclasses
import os
import random
import textwrap

import pytest

from metaagent_x.sandbox import Limits, SandboxFailure
from metaagent_x.tasks import contained, kinds
from metaagent_x.tasks.code import UnsupportedTest, judge

KINDS = ("stdin", "call", "assert")
LIMITS = Limits(cpu_s=1.0, wall_s=3.0, memory_mb=128, output_bytes=1 << 20)


def call_test(arguments, expected, entry_point="f"):
    return {"kind": "call", "input": arguments, "output": expected, "entry_point": entry_point}


def assert_test(source, entry_point="f"):
    return {"kind": "assert", "input": source, "output": "", "entry_point": entry_point}


def one(program, test, limits=LIMITS):
    (result,) = judge(program, [test], limits=limits).per_test
    return result


def posed(kind, expected, given: int | str = 7):
    """A test of that kind that asks for f(given) == expected; both are text for stdin."""
    if kind == "stdin":
        return {"kind": "stdin", "input": str(given), "output": str(expected)}
    return call_test([given], expected) if kind == "call" else assert_test(f"assert f({given!r}) == {expected!r}")


def answering(kind, program):
    """A program that defines f, for a test of that kind."""
    return program + ("\nprint(f(int(input())))" if kind == "stdin" else "")


def body(kind, statements):
    return answering(kind, "def f(x):\n" + textwrap.indent(statements, "    "))


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -1, 2**63, 10**6000, 1.5, float("inf"), "é\ud800\n", b"\x00", 1 + 2j, [], [[1], [2.0]],
        (), (1, [2]), {1, "a"}, frozenset({(1, 2)}), {}, {"tuple": [1]}, {(1, 2): {"int": None}}, int, [str],
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_plain_data_arrive_as_they_are(value):
    arrived = contained.decode(contained.encode(value))
    assert arrived == value and type(arrived) is type(value)
    assert one("def f(x): return x", call_test([value], value)).passed
    if not isinstance(value, (int, float, type, list)):
        assert one("def f(x): return x", assert_test(f"assert f({value!r}) == {value!r}")).passed


@pytest.mark.parametrize(
    "data", [{"x": 1}, {"set": [[]]}, {"int": 5}, {"dict": [1]}, {}, {"type": "len"}, {"handle": 0}]
)
def test_what_is_no_plain_data_is_refused(data):
    with pytest.raises(contained.NotPlain):
        contained.decode(data)
    deep = []
    for _ in range(200):
        deep = [deep]
    for function in (contained.encode, contained.decode):
        with pytest.raises(contained.NotPlain, match="deep"):
            function(deep)


@pytest.mark.fault("F137")
@pytest.mark.parametrize(
    ("program", "test", "status"),
    [
        ("def f(x): return [[0.1 + 0.2], (x,)]", call_test([1], [[0.3], [1]]), "passed"),
        ("def f(x): return [[0.31]]", call_test([1], [[0.3]]), "wrong_answer"),
        ("def f(a, b): return a + b", call_test([[1], [2]], [1, 2]), "passed"),
        ("def f(a, b): return a + b", call_test('"x"\n"y"', '"xy"'), "passed"),
        ("def f(): return 5", call_test("", "5"), "passed"),
        ("def f(): return 5", call_test([], [5]), "passed"),
        ("def f(): return [5]", call_test([], [5]), "passed"),
        ("def f(): return 5", call_test("", "[5]"), "wrong_answer"),
        ("class Solution:\n    def f(self, x: List[int]) -> int: return max(x)", call_test([[1, 3]], 3), "passed"),
        ("class Solution:\n    pass\ndef f(x): return x", call_test([1], 1), "passed"),
        ("def f(x): return Counter(x).most_common(1)[0][0] + int(sqrt(16))", call_test([[1, 2, 2]], 6), "passed"),
        ("def f(x):\n    return x if x == 0 else f(x - 1)", call_test([20_000], 0), "passed"),
        ("print('loaded')\ndef f(x):\n    print('{\"value\": 1}')\n    return 2", call_test([0], 2), "passed"),
        ("def f(x): return 1\nif __name__ == '__main__':\n    f = input()", call_test([0], 1), "passed"),
        ("import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int\ndef f(x): return A(x).x",
         call_test([3], 3), "passed"),
        ("import numpy\ndef f(x): return numpy.cumsum(x), numpy.float32(0.5)",
         call_test([[1, 2]], [[1, 3], 0.5]), "passed"),
        ("import fractions\ndef f(x): return fractions.Fraction(x, 2)", call_test([1], 0.5), "passed"),
        ("import sympy\ndef f(x): return [sympy.Integer(x) ** 70, sympy.Float(0.5)]",
         call_test([2], [2**70, 0.5]), "passed"),
        ("def f(x): return 10**5000", call_test([0], 10**5000), "passed"),
        ("def f(x): return 10**5000", call_test([0], 10**5000 + 1), "wrong_answer"),
        ("def g(x): return x", call_test([0], 0), "error"),
        ("def f(): return 0", call_test([0], 0), "error"),
        ("def f(x):\n    input()\n    return x", call_test([0], 0), "error"),
    ],
)  # fmt: skip
def test_calls(program, test, status):
    """A method of `Solution` or a function; starter code's names are there; what it prints is no result."""
    assert one(program, test, dataclasses.replace(LIMITS, memory_mb=512)).status == status


STACK = "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 26)\n"
STYLES = {
    "stdin": [
        "input()\nprint(sum(map(int, input().split())), end='')\nexit()",
        "print(sum(map(int, open(0).read().split()[1:])))",
        "import os, sys\nprint(sum(map(int, os.read(0, os.fstat(0).st_size).split()[1:])))\n"
        "sys.stdout.flush()\nos._exit(0)",
        "import mmap\nprint(sum(map(int, mmap.mmap(0, 0, prot=mmap.PROT_READ).read().split()[1:])))",
        "words = []\ntry:\n    while True: words += input().split()\nexcept EOFError: print(sum(map(int, words[1:])))",
        "import sys\ninput = sys.stdin.buffer.readline\ninput()\n"
        "sys.stdout.buffer.write(b'%d' % sum(map(int, input().split())))",
        "import fileinput\nprint(sum(map(int, list(fileinput.input())[1].split())))",
        "import atexit\ninput()\natexit.register(print, sum(map(int, input().split())))",
        "import io, sys\nsys.stdout = io.StringIO()\ninput()\nprint(sum(map(int, input().split())))\n"
        "sys.__stdout__.write(sys.stdout.getvalue())",
        STACK + "def f(n): return n and 1 + f(n - 1)\ndef main(): print(f(20_000) and 6)\n"
        "thread = threading.Thread(target=main)\nthread.start()\nthread.join()",
        "import resource\nresource.setrlimit(resource.RLIMIT_STACK, (resource.RLIM_INFINITY,) * 2)\nprint(6)",
        "import asyncio\nasync def main():\n    await asyncio.sleep(0)\n    print(6)\nasyncio.run(main())",
        "import __main__, pickle\nclass A: x = 6\nif __name__ == '__main__':\n"
        "    print(pickle.loads(pickle.dumps(A())).x if __main__.A is A else 0)",
        "from concurrent.futures import ThreadPoolExecutor as T\ninput()\n"
        "with T(2) as t: print(sum(t.map(int, input().split())))",
        "from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass(order=True, slots=True)\n"
        "class A:\n    x: int\n    y: list[A] | None = None\nprint(max(A(1), A(6)).x)",
    ],
    "call": [
        "class Solution:\n    @staticmethod\n    def f(x): return sum(x)",
        "class Solution:\n    def __init__(self): self.n = 0\n    def f(self, x): self.n += sum(x); return self.n",
    ],
    "both": [
        "def f(x): return sum(x)\ndef main():\n    print(f(list(map(int, input().split()))))\n"
        "if __name__ == '__main__':\n    main()",
        "import doctest\ndef f(x): return sum(x)\nif __name__ == '__main__':\n    doctest.testmod()\n    exit()",
        "import functools\nf = functools.partial(sum)",
        "import functools\n@functools.cache\ndef g(x): return x[0] + g(x[1:]) if x else 0\n"
        "def f(x): return g(tuple(x))",
        "def f(x):\n    n = 0\n    while x: n += x.pop()\n    return n",
        "import asyncio\nasync def g(x): return sum(x)\ndef f(x): return asyncio.run(g(x))",
        "import sys\ndef g(x): return sum(x)\ndef f(x): return getattr(sys.modules[__name__], 'g')(x)",
        "import enum\nclass E(enum.IntEnum): A = 6\ndef f(x): return E(sum(x))",
        "class F:\n    def __call__(self, x): return sum(x)\nf = F()",
        "import inspect\ndef f(x): return sum(x) if 'sum' in inspect.getsource(f) else 0",
        STACK + "def f(x):\n    out = []\n    thread = threading.Thread(target=lambda: out.append(sum(x)))\n"
        "    thread.start()\n    thread.join()\n    return out[0]",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("style", "kinds_of_test"), [("stdin", "stdin"), ("call", "call"), ("both", "call assert")])
def test_right_programs_pass_in_all_styles(style, kinds_of_test):
    tests = {
        "stdin": {"kind": "stdin", "input": "3\n1 2 3\n", "output": "6\n"}, "call": call_test([[1, 2, 3]], 6),
        "assert": assert_test("assert f([1, 2, 3]) == 6"),
    }  # fmt: skip
    limits = dataclasses.replace(LIMITS, memory_mb=512)
    results = [(text, one(text, tests[kind], limits)) for kind in kinds_of_test.split() for text in STYLES[style]]
    assert not [pair for pair in results if not pair[1].passed]


HELPERS = "def double(x): return 2 * x\ndef f(x): return double(x) + 1\n"
PAIRS = "class Pair:\n    def __init__(self, a, b): self.a, self.b = a, b\n    def sum(self): return self.a + self.b\n"
TREES = "class Node:\n    def __init__(self, v): self.v = v; self.left = self.right = None\n" + (
    "def f(t): return 0 if t is None else 1 + max(f(t.left), f(t.right))\n"
)


@pytest.mark.parametrize(
    ("program", "source", "status"),
    [
        (HELPERS, "def check(c):\n    assert c(2) == double(2) + 1\ncheck(f)", "passed"),
        (HELPERS, "def check(c):\n    for i in range(50):\n        assert c(i) == 2 * i + 1\ncheck(f)", "passed"),
        (HELPERS, "import math\nassert math.isclose(f(2.5), 6) and abs(f(2) - 5) < 1e-6", "passed"),
        (PAIRS + "def f(ps): return [p.sum() for p in ps]",
         "assert f([Pair(1, 2), Pair(a=3, b=4)]) == [3, 7]", "passed"),
        (PAIRS + "def f(a): return Pair(a, a)", "p = f(3)\nassert p.a == 3 and p.sum() == 6 and p == p", "passed"),
        (TREES, "root = Node(1)\nroot.left = Node(2)\nroot.left.left = Node(3)\nassert f(root) == 3", "passed"),
        ("def f(x, kind): return [v for v in x if type(v) is kind]", "assert f([1, 'a'], int) == [1]", "passed"),
        ("def f(x): yield from x", "assert list(f([1, 2])) == [1, 2]", "passed"),
        ("def f(x): raise ValueError(x)",
         "try:\n    f(1)\n    assert 0\nexcept ValueError as e:\n    assert str(e) == '1'", "passed"),
        ("def f(x): return {(1, 2): {3}}", "assert f(0) == {(1, 2): {3}}", "passed"),
        ("def f(x): return (1, 2)", "assert f(0) == [1, 2]", "wrong_answer"),
        ("def f(x): return 1", "assert f(0) == 2, 'no'", "wrong_answer"),
        ("def f(x): return None", "assert abs(f(0) - 1) < 1", "wrong_answer"),
        ("def f(x): return 1 // 0", "assert f(0) == 2", "error"),
        ("def f(x): raise AssertionError", "assert f(0) == 2", "error"),
        ("def g(x): return 1", "assert f(0) == 2", "error"),
        ("f = 1", "assert f(0) == 1", "wrong_answer"),
        ("f = str", "assert f(1) == '1'", "passed"),
        ("class F(dict):\n    __call__ = lambda self, x: x\nf = F()", "assert f(1) == 1", "passed"),
    ],
)  # fmt: skip
def test_assertions(program, source, status):
    """Helpers, classes and objects of the program serve its tests; everything plain travels by value."""
    assert one(program, assert_test(source)).status == status


def test_details_say_what_and_where():
    assert one("def f(x): return 3", call_test([0], 4)).detail == "expected 4, got 3"
    assert one("def f(x):\n    raise KeyError(1)", call_test([0], 4)).detail == "KeyError: 1 (line 2)"
    assert one("def f(x):\n    raise KeyError(1)", assert_test("f(1)")).detail == "KeyError: 1 (line 2)"
    result = one("def f(x): return 3", assert_test("assert f(0) == 3\nassert f(1) == 4, 'four'"))
    assert (result.detail, result.got) == ("AssertionError: four (line 2)", "3")
    assert one("x = 1", call_test([0], 4)).detail == "NameError: the program defines no f"
    long = "def f(x):\n    try: 1 / 0\n    except ZeroDivisionError: raise KeyError('x' * 2**20)"
    for test in (call_test([0], 4), assert_test("f(1)")):
        assert one(long, test).status == "error"


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ({"kind": "exec", "input": "", "output": ""}, "kind 'exec', which is not one of stdin, call, assert"),
        ({"input": "", "output": ""}, "kind None"),
        ({"kind": "stdin", "input": ""}, "has no output"),
        ({"kind": "stdin", "input": "", "output": 3}, "output is int, not text"),
        ({"kind": "call", "input": [1], "output": 1}, "has no entry_point"),
        (call_test([1], 1, "a b"), "'a b', which is no name"),
        (call_test({"x": 1}, 1), "input is dict, not a list"),
        (call_test("[1", "1"), "cannot be read"),
        (call_test([object()], 1), "object, which is no plain data"),
        (assert_test("assert f(1"), "cannot be read"),
        ({"kind": "stdin", "input": "", "output": "", "checker": "close"}, "'close' is not one of unordered_lines"),
        (call_test([1], 1) | {"checker": "any_case"}, "kind 'call'; a checker reads printed text only"),
        (assert_test(None), "input is NoneType, not text"),
    ],
)
def test_a_malformed_test_is_named_before_anything_runs(test, message, monkeypatch):
    monkeypatch.setattr("metaagent_x.tasks.kinds.Program", lambda *a, **k: pytest.fail("ran"))
    with pytest.raises(UnsupportedTest, match=message) as caught:
        judge("print(1)", [posed("stdin", 1), test])
    assert str(caught.value).startswith("test 1")


def test_a_test_that_asserts_nothing_is_no_test():
    with pytest.raises(UnsupportedTest, match="used nothing"):
        judge("def f(x): return 1", [assert_test("def check(c):\n    assert c(1) == 2")])


@pytest.mark.fault("F138")
@pytest.mark.fault("B021")
@pytest.mark.fault("B023")
@pytest.mark.parametrize("kind", KINDS)
def test_how_a_program_ends_is_said_for_every_kind(kind):
    """cuga-project/cuga-agent#629, LiveCodeBench/LiveCodeBench PR#56, verl-project/verl#3569, #7853."""
    ends = [
        ("raise ValueError('no')", "error"),
        ("import sys; sys.exit(2)", "error"),
        ("import os; os._exit(3)", "error"),
        ("import os; os.abort()", "crash"),
        ("import ctypes; ctypes.string_at(0)", "crash"),
        ("import os; os.kill(os.getpid(), 9)", "crash"),
        ("open('/etc/passwd')", "refused"),
        ("import os; os.fork()", "refused"),
        ("while True: pass", "cpu"),
        ("import time; time.sleep(99)", "wall"),
        ("x = []\nwhile True: x.append(' ' * 10**6)", "memory"),
        ("while True: print('x' * 10**6)", "output"),
        ("return x + 1", "wrong_answer"),
        ("return x", "passed"),
    ]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda end: (end[0], one(body(kind, end[0]), posed(kind, 7)).status), ends))
    assert found == ends


@pytest.mark.fault("F143")
@pytest.mark.parametrize(
    "given", ["'\"\\", "a\\nb", "')]}\n\"\"\"\n'''", "{x} %s \x00 é 漢 \u2028", "```\nimport os", "\ud800"]
)
def test_arguments_are_data(given):
    """promptfoo/promptfoo#5477."""
    for test in (call_test([given], given), assert_test(f"assert f({given!r}) == {given!r}")):
        assert one("def f(x): return x", test).passed
        assert one("def f(x): return x + '.'", test).status == "wrong_answer"


@pytest.mark.fault("F143")
def test_programs_are_data():
    for program in ("def f(x): return ''' '\" \\\\ '''", "x = '''\ndef f(x): return 1", "def f(x): return 1\n\\", "\0"):
        for kind in ("call", "assert"):
            fine = program.endswith("'''")
            assert one(program, posed(kind, " '\" \\ ")).status == ("passed" if fine else "error")


SPY = r"""
import gc, os, re, sys
def f(x):
    found = [repr(x)]
    frame = sys._getframe()
    while frame:
        found.append(str(frame.f_locals) + str(frame.f_globals))
        frame = frame.f_back
    found += [str(vars(sys.modules[name]))[:1_000_000] for name in ('__main__', 'solution') if name in sys.modules]
    for fd in range(64):
        for read in (lambda: os.pread(fd, 100_000, 0), lambda: open('/proc/self/fd/%d' % fd, 'rb').read(1000)):
            try:
                found.append(read().decode('latin1'))
            except OSError:
                pass
    for root in ('.', '..', '/tmp', '/proc/self'):
        for path, _, files in os.walk(root):
            for name in files[:50]:
                try:
                    found.append(open(os.path.join(path, name), 'rb').read(100_000).decode('latin1'))
                except OSError:
                    pass
    found.append(str(dict(os.environ)))
    found += [str(o) for o in gc.get_objects() if isinstance(o, (str, list, tuple, dict)) and len(o) < 10_000][:20_000]
    return next((m.group() for t in found if (m := re.search('secret[0-9]{15,}', t))), 'nothing')
"""


@pytest.mark.fault("F144")
@pytest.mark.parametrize("kind", KINDS)
def test_expected_values_never_reach_the_program(kind, monkeypatch):
    """pettingllms-ai/PettingLLMs: programs ran beside the answer files, with the full environment."""
    secret = f"secret{random.Random(5).getrandbits(64)}"
    monkeypatch.setenv("METAAGENT_TEST_SECRET", secret)
    limits = dataclasses.replace(LIMITS, cpu_s=20.0, wall_s=40.0, memory_mb=512, output_bytes=4 << 20)
    result = one(answering(kind, SPY), posed(kind, secret), limits)
    assert result.status == "wrong_answer" and "nothing" in result.got


@pytest.mark.fault("F144")
@pytest.mark.parametrize("kind", ("call", "assert"))
def test_nothing_goes_from_one_test_to_the_next(kind):
    keeper = (
        "import builtins, os, pathlib\nkept = getattr(builtins, 'kept', '')\n"
        "kept = kept or (pathlib.Path('kept').read_text() if os.path.exists('kept') else 'none')\n"
        "def f(x):\n    builtins.kept = x\n    pathlib.Path('kept').write_text(x)\n    return kept\nimport builtins"
    )
    assert judge(keeper, [posed(kind, "none", "a"), posed(kind, "none", "b")]).passed == 2


ALWAYS = (
    "__eq__ = __ge__ = __le__ = __contains__ = lambda *_: True\n    __ne__ = lambda *_: 0\n    __hash__ = lambda _: 0"
)
PASSED = '{"status": "passed", "detail": "", "got": "", "asked": 1, "value": true}'
FORGERIES = {
    "exit 0": "import sys\nsys.exit(0)",
    "exit at once": "import os\nos._exit(0)",
    "exit in the call": "import os\ndef f(x): os._exit(0)",
    "system exit in the call": "def f(x): raise SystemExit(0)",
    "exit at exit": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): raise SystemExit",
    "patched print": "import builtins\nbuiltins.print = lambda *a, **k: None\ndef f(x): return 1",
    "patched builtins": (
        "import builtins\nfor name in ('isinstance', 'all', 'any', 'hasattr', 'issubclass'):\n"
        "    setattr(builtins, name, lambda *a: True)\nbuiltins.AssertionError = Exception\ndef f(x): return 1"
    ),
    "equal to everything": f"class E:\n    {ALWAYS}\ndef f(x): return E()",
    "number equal to everything": f"class E(int):\n    {ALWAYS}\ndef f(x): return E(1)",
    "real equal to everything": f"class E(float):\n    {ALWAYS}\ndef f(x): return E(1)",
    "text equal to everything": f"class E(str):\n    {ALWAYS}\ndef f(x): return E('1')",
    "list equal to everything": f"class E(list):\n    {ALWAYS}\ndef f(x): return E([1])",
    "dict equal to everything": f"class E(dict):\n    {ALWAYS}\ndef f(x): return E()",
    "class equal to everything": f"class M(type):\n    {ALWAYS}\nclass E(metaclass=M): pass\ndef f(x): return E",
    "class that lies": "class E:\n    __class__ = property(lambda self: str)\ndef f(x): return E()",
    "patched json": f"import json\njson.dumps = lambda *a, **k: {PASSED!r}\njson.loads = dict\ndef f(x): return 1",
    "patched judge": (
        "import sys\njudge = sys.modules['__main__']\nfor name in list(vars(judge)):\n"
        "    if name[0] != '_' or name in ('_find', '_load', '_told'):\n        setattr(judge, name, lambda *a: None)\n"
        "def f(x): return 1"
    ),
    "patched os": "import os\nos.write = lambda fd, data: len(data)\nos._exit = lambda code: None\ndef f(x): return 1",
    "verdict on all descriptors": (
        f"import os\ndef f(x):\n    for fd in range(64):\n        try:\n            os.write(fd, b'{PASSED}\\n')\n"
        "        except OSError:\n            pass\n    os._exit(0)"
    ),
    "answers ahead of questions": (
        "import os\nfor fd in range(3, 64):\n    try:\n"
        "        os.write(fd, b'{\"value\": [\"f\"]}\\n{\"raised\": \"SystemExit\", \"told\": \"0\"}\\n' * 9)\n"
        "    except OSError:\n        pass\nos._exit(0)"
    ),
    "closed descriptors": "import os\ndef f(x):\n    os.closerange(0, 64)\n    return 1",
    "endless output": "def f(x):\n    while True: print('x' * 1000)",
    "endless line to all descriptors": (
        "import os\ndef f(x):\n    for _ in range(200):\n        for fd in range(3, 64):\n            try:\n"
        "                os.write(fd, b'{' * 65536)\n            except OSError:\n                pass"
    ),
    "raising repr": (
        "class E(Exception):\n    def __repr__(self): raise self\n    __str__ = __repr__\ndef f(x): raise E"
    ),
    "unprintable object": "class E:\n    def __repr__(self): raise SystemExit(0)\ndef f(x): return E()",
    "thread that prints later": (
        f"import os, threading, time\ndef late():\n    time.sleep(0.2)\n    os.write(1, b'{PASSED}')\n    os._exit(0)\n"
        "threading.Thread(target=late).start()\ndef f(x): return 1"
    ),
    "sleeps for ever": "import time\ndef f(x): time.sleep(1e6)",
    "generator": "def f(x):\n    while True: yield x",
    "recursion in the result": "def f(x):\n    y = []\n    y.append(y)\n    return y",
    "deep result": "def f(x):\n    y = 1\n    for _ in range(10**5): y = [y]\n    return y",
    "wide result": "def f(x): return [[]] * 10**5 + ['x' * 5 * 10**6]",
    "huge number": "def f(x): return 1 << 3 * 10**7",
    "assertion error": "def f(x): raise AssertionError",
    "stopped iteration": "def f(x): raise StopIteration",
    "own base exception": "class E(BaseException): pass\ndef f(x): raise E",
    "exit at deletion": "import os\nclass E:\n    def __del__(self): os._exit(0)\ndef f(x): E()",
    "names of the test": (
        "check = print = abs = all = len = sorted = isinstance = lambda *a: True\n"
        "class AssertionError(Exception): pass\ndef f(x): return 1"
    ),
}  # fmt: skip


@pytest.mark.fault("B021")
@pytest.mark.fault("F144")
@pytest.mark.parametrize("kind", KINDS)
def test_a_verdict_cannot_be_forged(kind):
    """What a program does beside returning the right value makes no test pass."""
    limits = dataclasses.replace(LIMITS, wall_s=1.0)
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        results = threads.map(
            lambda text: one(answering(kind, text), posed(kind, "1234567"), limits), FORGERIES.values()
        )
        found = dict(zip(FORGERIES, results, strict=True))
    assert not [name for name, result in found.items() if result.passed]
    assert {result.status for result in found.values()} >= {"wrong_answer", "error", "wall", "output"}


@pytest.mark.fault("B021")
@pytest.mark.parametrize(
    "source",
    [
        "for got, wanted in zip(map(f, [1, 2]), [3, 4]):\n    assert got == wanted",
        "assert all(map(lambda x: f(x) == 3, [1, 2]))",
        "assert [*map(f, [1])] in ([], [3])",
    ],
)
@pytest.mark.parametrize("name", ["StopIteration", "StopAsyncIteration", "ExceptionGroup", "GeneratorExit"])
def test_what_a_program_raises_ends_no_loop_of_its_test(source, name):
    assert one(f"def f(x): raise {name}('', [OSError()])", assert_test(source)).status == "error"


def test_an_entry_point_may_have_the_name_of_a_builtin():
    """MBPP asks for a function `sum` of two numbers."""
    test = assert_test("assert sum(10, 15) == 6", "sum")
    assert one("def sum(a, b): return 6", test).passed
    assert one("def sum(a, b): return 7", test).status == "wrong_answer"


def test_only_names_that_a_test_reads_are_asked_of_the_program():
    """An attribute of that name is none."""
    table = "count = list(range(10**6))\ndef f(x): return [1, 1, 2]"
    assert one(table, assert_test("assert f(0).count(1) == 2")).passed
    result = one(table, assert_test("assert f(0) == count"))
    assert (result.status, result.detail) == ("error", "ValueError: a value of more than 4 MiB")


def test_an_answer_much_longer_than_the_expected_one_is_not_read():
    """The host would need a hundred times its memory; and its hashes may be chosen to take quadratic time."""
    result = one("def f(x): return [[]] * 10**5", call_test([0], [[]]))
    assert result.status == "wrong_answer" and result.detail.startswith("returned much more than expected: ")
    assert one("def f(x): return [(0j,)] * 10**4", call_test([0], [[0]] * 10**4)).passed
    equal_hashes = [number * (2**61 - 1) for number in range(contained.MAX_HASHED + 1)]
    for data in ({"set": equal_hashes}, {"frozenset": equal_hashes}, {"dict": [[key, 0] for key in equal_hashes]}):
        with pytest.raises(contained.NotPlain, match="more than 10000"):
            contained.decode(data)
    texts = {str(number): number for number in equal_hashes}
    assert contained.decode(contained.encode(texts)) == texts


def test_what_a_result_says_can_be_written_as_text():
    """A program's text may hold halves of characters, which no file and no tokenizer takes."""
    write = 'import os\ndef f(x):\n    os.write(3, b\'{"problem": "\\\\ud800"}\')\n    os._exit(0)'
    raising = "def f(x): raise ValueError('\\ud800')"
    for result in (one(write, call_test([0], 1)), one(raising, assert_test("f(1)")), one(raising, call_test([0], 1))):
        assert "ud800" in result.detail and (result.detail + result.got).encode()


@pytest.mark.fault("B025")
def test_processes_of_assert_tests_are_kept_but_not_without_end(monkeypatch):
    """verl-project/verl PR#7254: one more server for each sample."""
    test, run = assert_test("assert f(1) == 1"), kinds.Program.run
    for wall_s in range(5, 5 + 2 * kinds.KEPT):
        assert one("def f(x): return x", test, dataclasses.replace(LIMITS, wall_s=wall_s)).passed
    assert len(kinds._shelf) == kinds.KEPT

    def fail(program, *given):
        if program.driver.endswith("serve"):
            raise SandboxFailure("no process")
        return run(program, *given)

    before = open_descriptors()
    monkeypatch.setattr(kinds.Program, "run", fail)
    for _ in range(2 * kinds.KEPT):
        with pytest.raises(SandboxFailure, match="no process"):
            one("def f(x): return x", test)
    assert open_descriptors() <= before + 2


@pytest.mark.parametrize(
    "source", ["assert f(1) and f(1) == 5", "assert math.isclose(f(1), 5)", "assert all([f(1) == 5])"]
)
def test_what_a_test_uses_is_not_the_programs(source):
    """No builtin and no module of a test comes from the program, which would decide on its own verdict."""
    program = "class math:\n    isclose = lambda *a: True\nall = lambda *a: True\ndef f(x): return 4"
    assert one(program, assert_test(source)).status == "wrong_answer"
    assert one(program + " + x", assert_test(source)).passed


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
@pytest.mark.fault("B022")
@pytest.mark.fault("B025")
def test_many_jobs_on_two_threads_give_the_verdicts_of_one_at_a_time():
    """LiveCodeBench/LiveCodeBench PR#103, verl-project/verl PR#7254, rllm-org/rllm PR#411."""
    bodies = ("return x", "return x + 1", "return 1 // 0", "import os; os._exit(0)", "return [0] * 10**9", "return")
    jobs = [(body(kind, text), posed(kind, 7)) for kind in KINDS for text in bodies]
    alone = [one(*job) for job in jobs]
    assert {result.status for result in alone} == {"passed", "wrong_answer", "error", "memory"}
    before, kept = open_descriptors(), len(kinds._shelf)
    order = random.Random(3).choices(range(len(jobs)), k=512)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        together = list(threads.map(lambda number: one(*jobs[number]), order))
    assert together == [alone[number] for number in order]
    more = 6 * (len(kinds._shelf) - kept)  # of the processes kept ready for assert tests
    assert abs(open_descriptors() - before - more) <= 2


@pytest.mark.slow
@pytest.mark.fault("B022")
@pytest.mark.parametrize("kind", KINDS)
def test_memory_bombs_beside_each_other_spare_their_neighbours(kind):
    bomb, fine = (body(kind, text) for text in ("x = []\nwhile True: x.append(' ' * 10**6)", "return x"))
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        results = list(threads.map(lambda program: one(program, posed(kind, 7)).status, [bomb, fine] * 16))
    assert results == ["memory", "passed"] * 16
