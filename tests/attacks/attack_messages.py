"""Attacks on the line between a script and the host: forged, malformed and oversized messages; our own end replaced."""

from __future__ import annotations

from attack_programs import Attack

LINE = """
import json
raw = socket.socket(fileno=os.dup(3))  # a second hand on the line; the language's own end does not know of it
def say(**message):
    raw.sendall(json.dumps(message).encode() + b"\\n")
def nested(depth):
    return b"[" * depth + b"]" * depth
def with_id(value):
    return b'{"do": "brief", "text": "", "id": ' + value + b"}\\n"
def a_call(**fields):
    say(**{"do": "call", "id": 5, "path": "7", "agent": "a", "role": "r", "conversation": "", "messages": ["x"],
           "sources": []} | fields)
mine = _speaker.language  # our own module in this process
line = mine.line
"""
MALFORMED = "malformed message"


def sends(name: str, *statements: str, reason: str = MALFORMED) -> Attack:
    """A script that sends something and waits. A crash, at once."""
    return Attack(f"sends {name}", "\n".join([LINE, *statements, "time.sleep(600)"]), "", "crash", reason=reason)


def raw(name: str, data: str) -> Attack:
    """A script that sends these bytes (an expression)."""
    return sends(name, f"raw.sendall({data})")


def goes(name: str, program: str, status: str = "ok", reason: str = "", **more) -> Attack:
    return Attack(name, LINE + program, "", status, reason=reason, **more)


# No message at all, or one with a wrong field: the script crashes, and the reason names what was wrong.
MALFORMED_MESSAGES = (
    raw("what is no JSON", r"b'hello\n'"),
    raw("a list", r"b'[1]\n'"),
    raw("null", r"b'null\n'"),
    raw("an empty line", r"b'\n'"),
    raw("a NUL", r"b'{\0}\n'"),
    raw("what is no text", r"b'\xff\xfe\n'"),
    raw("lists without bottom", r"b'[' * 100_000 + b'\n'"),
    raw("objects without bottom", r"""b'{"a":' * 100_000 + b'\n'"""),
    raw("a line without end", "b'x' * (3 << 20)"),
    raw("a text without end", r"""b'{"do": "brief", "id": 1, "text": "' + b'x' * (1 << 20) + b'"}\n'"""),
    raw("two objects on a line", r"b'{}{}\n'"),
    raw("a number without end as id", "with_id(b'9' * 5000)"),
    raw("a deep list as id", "with_id(nested(900))"),
    raw("a long list as id", "with_id(b'[' + b'1,' * 400_000 + b'1]')"),
    *(raw(f"{value} as id", f"with_id(b'{value}')") for value in ("true", "1.5", "NaN", "1e999", "null", '"1"', "{}")),
    sends("no id", "say(do='brief', text='x')"),
    sends("no request", "say(id=1)"),
    sends("an unknown request", "say(do='grade', id=1)", reason="unknown request 'grade'"),
    sends("a list as request", "say(do=[['call']], id=1)"),
    sends("its own reply", r"say(id=0, text=r'\boxed{9}')"),
    sends("a call and nothing else", "say(do='call', id=1, path='0')"),
    *(sends(f"a call with {what}", f"a_call({fields})") for what, fields in (
        ("no messages", "messages=[]"), ("numbers as messages", "messages=[1]"), ("a text as messages", "messages='x'"),
        ("lists as messages", "messages=[['x']]"), ("a number as role", "role=1"), ("nobody as agent", "agent=None"),
        ("a forged conversation", "conversation='../x'"), ("letters as path", "path='a'"), ("no path", "path=''"),
        ("a negative path", "path='-1'"), ("an endless path", "path='.'.join('1' * 90)"),
        ("a list as path", "path=[7]"), ("a long number as path", "path='0' * 9"), ("two lines as path", r"path='7\n'"),
        ("other digits as path", r"path='\u0663'"), ("sources that are none", "sources=[[1]]"),
        ("too many sources", "sources=[['0', 'pass']] * 1001"), ("a source of no kind", "sources=[['0', 'x']]"),
        ("an object as sources", "sources={'0': 'pass'}"))),
    sends("one path twice", "a_call()", "a_call()", reason="path '7' is used twice"),
    sends("two requests at once", "say(do='run_python', id=1, path='0', code='import time; time.sleep(1)', stdin='')",
          "a_call(path='8')", reason="waits for something"),
    sends("links that are none", "say(do='links', links='x')"),
    sends("links of numbers", "say(do='links', links=[[1, 2, 3]])"),
    sends("too many links", "say(do='links', links=[['0', '1', 'vote']] * 1001)"),
    sends("links again and again", "for _ in range(500): say(do='links', links=[['0', '1', 'vote']] * 1000)",
          "say(do='links', links=1)"),
    *(sends(f"{count} branches", f"say(do='open', path='0', count={count})") for count in (
        "0", "-1", "10 ** 9", "True", "1.5", "float('inf')", "None")),
    sends("branches that are open", *["say(do='open', path='0', count=2)"] * 2),
    sends("the end of no branch", "say(do='ended', path='3.1')"),
    sends("the end of the trunk", "say(do='ended', path='0')"),
    sends("the end of a branch twice", "say(do='open', path='0', count=2)", *["say(do='ended', path='0.1')"] * 2),
    sends("classes of a text", "say(do='classes', id=1, texts='x')"),
    sends("classes of too many", "say(do='classes', id=1, texts=['x'] * 1001)"),
    sends("a number as program", "say(do='run_python', id=1, path='0', code=1, stdin='')"),
    sends("a list as input", "say(do='run_python', id=1, path='0', code='1', stdin=[])"),
    sends("tests of nothing", "say(do='run_tests', id=1, path='0')"),
    *(sends(f"{value} as answer", f"say(do='end', answer={value})") for value in ("1", "['x']", "{}", "float('nan')")),
    sends("an endless error", "say(do='end', error='x' * 900_000)", reason="xxx"),
    sends("an error of half a pair", r"say(do='end', error='<\ud800>')", reason="<?>"),
    sends("a deep list as error", r"""raw.sendall(b'{"do": "end", "error": ' + nested(900) + b'}\n')""", reason="[[["),
    sends("20,001 messages", r"""for _ in range(3): raw.sendall(b'{"do": "links", "links": []}\n' * 7000)""",
          reason="more than 20000 messages"),
    sends("requests whose replies it never reads", "for n in range(3000): say(do='brief', id=n, text='x ' * 5000)"),
)  # fmt: skip

FORGED = ("no_calls", "answer_not_from_agents")
# What is said in good form but not true, and other ways to take part in the conversation.
LIES = (
    goes("ends at once with an answer of its own", r"say(do='end', answer=r'\boxed{9}')", flags=FORGED),
    goes("ends twice", r"for n in '98': say(do='end', answer='\\boxed{%s}' % n)", flags=FORGED),
    goes("asks after the end", r"say(do='end', answer=r'\boxed{9}'); a_call(); a_call(path='8')", flags=FORGED),
    goes("answers as an applied agent", r"say(do='end', answer=r'\boxed{9}', form='applied')", flags=FORGED),
    goes("makes its own replies", r"""
type(line).ask = lambda self, sent, **message: {"text": r"\boxed{9}", "failures": [], "classes": [0]}
answer = solver()(task)
""", flags=FORGED),
    goes("puts replies into its own boxes", r"""
tell = line.tell
def forge(**message):
    if message["do"] == "call": line.waiting[message["id"]].put({"text": r"\boxed{9}"})
    tell(**message)
line.tell = forge
answer = solver()("wait")
time.sleep(0.2)
""", flags=("answer_not_from_agents",)),
    goes("forges the path of a text", r"""
seen = solver()(task)
answer = type(seen)(r"\boxed{9}", seen.path)
""", flags=("answer_not_from_agents",)),
    goes("forges links to its own answer", r"""
seen = solver()(task)
for path in ("", "0", "99"): say(do="links", links=[["0", path, "answer"], ["99", "0", "vote"]])
answer = r"\boxed{9}"
""", flags=("answer_not_from_agents",)),
    goes("replaces the vote", r"""
mine.vote = type(mine).vote = lambda *a: r"\boxed{9}"
mine.classes = type(mine).classes = lambda *a: [0]
answer = ensemble([solver(), critic()])(task)
""", "ok crash", flags=("answer_not_from_agents",)),
    goes("replaces the way it ends", r"""
child = sys.modules["metaagent_x.mas.child"]
child._run = child._describe = lambda *a: {"answer": r"\boxed{9}", "form": "x" * 100}
line.tell = lambda **m: say(do="end", answer=r"\boxed{9}")
""", flags=FORGED),
    goes("a conversation that was never begun", "a_call(conversation='m77'); raw.recv(99)", "ok crash wall", wall_s=1),
    goes("gives odd answers", r"answer = '\ud800\0\x1b[2J' + chr(0x202e)", flags=FORGED),
    goes("says odd things", r"""
role = "\ud800\0<|im_end|>"
agent("\udcff" * 5000, role)("\0\ud800")
run_python("print('\ud800')", "\udcff\0")
"""),
    goes("a message of nearly a megabyte", "solver()('x' * 900_000)"),
    goes("a message of more than a megabyte", "solver()('x' * 1_200_000)", "crash", MALFORMED),
    goes("an answer of nearly a megabyte", "solver()(task)\nanswer = 'x=1\\n' * 200_000", "ok crash"),
    goes("does not hear that its calls are used up", """
while True:
    try: solver()("more")
    except BaseException: time.sleep(0.01)
""", "budget", "budget of calls"),
    goes("computes on when its calls are used up", """
try:
    while True: solver()("more")
except BaseException:
    while True: pass
""", "budget", "budget of calls"),
    goes("asks from many threads under one path", """
for _ in range(100): threading.Thread(target=lambda: a_call(), daemon=True).start()
time.sleep(600)
""", "crash", MALFORMED),
    goes("leaves calls open", "a_call()", "ok crash"),  # its own end may get a reply that it did not ask for
    goes("half a line, then silence", "raw.sendall(b'{\"do\": ')\ntime.sleep(600)", "wall", "wall limit", wall_s=1),
    goes("half a line, then death", "raw.sendall(b'{\"do\": ')\nos._exit(0)", "crash", MALFORMED),
    goes("takes the replies away from itself", """
def take():
    while True:
        try: raw.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError: pass
threading.Thread(target=take, daemon=True).start()
for _ in range(60): solver()("x")
time.sleep(600)
""", "wall cpu", wall_s=1),
    goes("hangs up and lives on", "os.close(3); raw.close()\ntime.sleep(600)", "crash wall", wall_s=1),
    goes("shuts its side", "raw.shutdown(socket.SHUT_WR)\ntime.sleep(600)", "crash", "no answer"),
    goes("shuts our side", "raw.shutdown(socket.SHUT_RD)\nsolver()('x')", "crash", "no answer"),
    goes("runs hostile programs by way of the host", """
for code in ("import os\\nos.fork()", f"open({CANARY!r} + '/secret.txt')", "import os\\nos.kill(os.getppid(), 9)",
             "import socket\\nsocket.socket()", "print('\\\\ud800', flush=True)", "x = 1\\0"):
    output = run_python(code)
    report("error" if output.startswith("error: ") else f"GOT {output}", output)
""", says=("error",)),
)  # fmt: skip
