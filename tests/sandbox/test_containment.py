"""What contains a program on this machine, on poorer ones, and what strict mode says where it cannot."""

import errno
import os
import pathlib
import platform
import re
import shutil
import socket
import subprocess

import pytest

from metaagent_x import sandbox
from metaagent_x.sandbox import client, containment, landlock, run_python, seccomp

ROOT = pathlib.Path(sandbox.__file__).parents[2]
NUMBERS = {"x86_64": {"unshare": 272, "prctl": 157}, "aarch64": {"unshare": 97, "prctl": 167}}[platform.machine()]
LANDLOCK = dict.fromkeys((444, 445, 446), errno.ENOSYS)
NO_NAMESPACES = {NUMBERS["unshare"]: errno.EPERM}
NO_SECCOMP = {seccomp.SECCOMP[platform.machine()]: errno.ENOSYS}
ESCAPES = {
    "network": "import socket; socket.socket()",
    "processes": "import os; os.fork()",
    "signals": "import os; os.kill(os.getppid(), 0)",
    "reads": "open({outside!r}).read()",
    "writes": "open({outside!r} + '.new', 'w')",
}


@pytest.fixture(autouse=True)
def fresh():
    yield
    sandbox.close()
    sandbox.use("strict")


def refusing(calls):
    """A filter that refuses some calls (number -> errno) and allows the rest."""
    arch = seccomp.ARCHITECTURES[platform.machine()][1]
    out = [(seccomp.LD, 0, 0, 4), (seccomp.JEQ, 1, 0, arch), (seccomp.RET, 0, 0, seccomp.KILL), (seccomp.LD, 0, 0, 0)]
    for number, code in calls.items():
        out += [(seccomp.JEQ, 0, 1, number), (seccomp.RET, 0, 0, seccomp.ERRNO | code)]
    return [*out, (seccomp.RET, 0, 0, seccomp.ALLOW)]


def poorer(monkeypatch, calls):
    """The next zygote is started under a filter that refuses these calls, as an older or stricter system would."""
    sandbox.close()
    refuse = (
        f"import sys, os, ctypes; sys.path.insert(0, {str(ROOT)!r}); from metaagent_x.sandbox import seccomp; "
        f"seccomp.Filter({refusing(calls)!r}).install(ctypes.CDLL(None, use_errno=True), os.getpid()); "
    )
    monkeypatch.setattr(client, "START", refuse.replace("{", "{{").replace("}", "}}") + client.START)


def statuses(tmp_path) -> dict[str, str]:
    outside = tmp_path / "outside"
    outside.write_text("x")
    return {effect: run_python(code.format(outside=str(outside))).status for effect, code in ESCAPES.items()}


CONTAINED = dict.fromkeys(containment.EFFECTS, "refused")


def test_every_effect_is_contained_here(tmp_path):
    layers = sandbox.use("strict")
    assert "seccomp" in layers
    assert statuses(tmp_path) == CONTAINED
    assert os.listdir(tmp_path) == ["outside"]


def test_packages_are_hidden_but_for_a_few():
    """Our own, with its graders, may be installed among them."""
    hidden = run_python("import pytest")
    assert hidden.status in ("refused", "error") and hidden.stdout == ""
    assert run_python(f"print(open({pytest.__file__!r}).read())").status == "refused"
    shown = "import numpy, sympy, statistics, zoneinfo, sqlite3, ctypes.util, email.message, xml.dom.minidom\nprint(1)"
    assert run_python(shown).stdout == "1\n"


def test_what_stands_beside_hidden_folders_is_found(tmp_path):
    for name in ("a/site-packages/x", "a/b", "c/d", "e"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a" / "f").write_text("")
    (tmp_path / "link").symlink_to("/")
    names = {os.path.relpath(p, tmp_path) for p in landlock._beside(str(tmp_path), ("site-packages",))}
    assert names == {"a/b", "a/f", "c", "e"}
    assert landlock._beside(str(tmp_path / "c"), ("site-packages",)) == [str(tmp_path / "c")]


def test_without_namespaces_nothing_is_missing(monkeypatch, tmp_path):
    """Containers forbid them, and so do some distributions."""
    poorer(monkeypatch, NO_NAMESPACES)
    assert not any("namespaces" in layer for layer in sandbox.use("strict"))
    assert statuses(tmp_path) == CONTAINED
    assert run_python("open('a', 'w').write('b')\nprint(open('a').read())").stdout == "b\n"


def test_without_landlock_no_file_can_be_opened(monkeypatch, tmp_path):
    """Kernels before 5.13: what cannot be guarded is not there."""
    poorer(monkeypatch, {**LANDLOCK, **NO_NAMESPACES})
    assert any("no files at all (Landlock: ENOSYS)" in layer for layer in sandbox.use("strict"))
    assert statuses(tmp_path) == CONTAINED
    assert run_python("open('a', 'w')").status == "refused"
    code = "import math, statistics, json, re, heapq, traceback\nprint(statistics.mean([1, 2]), input())\n1/0"
    result = run_python(code, "in")
    assert result.stdout == "1.5 in\n" and result.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_strict_mode_refuses_where_an_effect_is_open(monkeypatch):
    poorer(monkeypatch, {**NO_SECCOMP, **NO_NAMESPACES})
    with pytest.raises(sandbox.SandboxRefused, match=r"could reach network.*no seccomp.*sandbox=process"):
        sandbox.use("strict")
    with pytest.raises(sandbox.SandboxRefused):  # and goes on refusing
        run_python("print(1)")


def test_process_mode_is_asked_for_by_name(monkeypatch):
    poorer(monkeypatch, {**NO_SECCOMP, **LANDLOCK, **NO_NAMESPACES})
    assert sandbox.use("process") == ["own process and limits only"]
    assert run_python("import socket; socket.socket(); print(1)").stdout == "1\n"


def test_process_mode_needs_nothing_of_linux(monkeypatch):
    """Plays macOS: no packet sockets, no files in memory, no prctl, no /proc."""
    sandbox.close()
    monkeypatch.setattr(client, "PACKETS", socket.SOCK_DGRAM)
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(client, "START", "import sys; sys.platform = 'darwin'; " + client.START)
    assert sandbox.use("process") == ["own process and limits only, none on memory"]
    process = client.zygote().process
    assert run_python("print(input(), 'x')", "in").stdout == "in x\n"
    assert run_python("while True: pass", limits=sandbox.Limits(cpu_s=1)).status == "cpu"
    assert run_python("import time; time.sleep(60)", limits=sandbox.Limits(wall_s=0.3)).status == "wall"
    sandbox.close()
    assert process.returncode == 0  # it was told


def test_strict_mode_refuses_elsewhere_than_on_linux(monkeypatch):
    sandbox.close()
    monkeypatch.setattr(client, "START", "import sys; sys.platform = 'darwin'; " + client.START)
    with pytest.raises(sandbox.SandboxRefused, match=r"no seccomp.*darwin"):
        sandbox.use("strict")


def test_an_unknown_mode_is_named():
    with pytest.raises(ValueError, match=r"sandbox='jail' is not one of strict, process"):
        sandbox.use("jail")


def test_a_child_that_cannot_be_contained_does_not_run(monkeypatch):
    """What worked at the start may fail later: the run is refused as infrastructure, its program never starts."""
    sandbox.close()
    broken = "from metaagent_x.sandbox import containment; containment.drop_capabilities = lambda libc: 1 / 0; "
    late = "import sys; sys.path.insert(0, {root!r}); " + broken
    probe = "containment.Containment.open_effects = lambda *_: []; "
    monkeypatch.setattr(client, "START", late + probe + client.START)
    with pytest.raises(sandbox.SandboxFailure, match="could not start a program: ZeroDivisionError"):
        run_python("print(1)")


@pytest.mark.skipif(os.getuid() != 0 or not os.path.exists("/usr/bin/python3"), reason="needs root to become nobody")
def test_an_ordinary_user_is_contained_alike(tmp_path):
    """Run by the system's Python from a copy that everybody can read."""
    home = pathlib.Path("/var/tmp") / f"metaagent_x-{os.getpid()}"
    shutil.copytree(ROOT / "metaagent_x" / "sandbox", home / "metaagent_x" / "sandbox")
    shutil.copy(ROOT / "metaagent_x" / "__init__.py", home / "metaagent_x")
    secret = home / "secret"
    secret.write_text("x")
    escapes = {effect: code.format(outside=str(secret)) for effect, code in ESCAPES.items()}
    code = f"""
import os, sys
sys.path.insert(0, {str(home)!r})
from metaagent_x.sandbox import run_python, use
use("strict")
print(os.getuid(), run_python("print(2)").stdout.strip(), *(run_python(c).status for c in {list(escapes.values())!r}))
"""
    try:
        for path in [home, *home.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        done = subprocess.run(
            ["/usr/bin/python3", "-c", code], user=65534, group=65534, extra_groups=[], cwd="/", text=True, timeout=60,
            env={"TMPDIR": "/tmp"}, capture_output=True,
        )  # fmt: skip
    finally:
        shutil.rmtree(home)
    assert done.stdout.split() == ["65534", "2", *["refused"] * 5], done.stderr


# The filter as the kernel would read it, for machines that are not at hand


def decide(machine: str, number: int, *arguments: int, files: bool = True) -> str:
    """Runs the filter of a machine on one call."""
    return run_filter(seccomp.program(machine, files=files), machine, number, *arguments)


def run_filter(program: list[seccomp.Instruction], machine: str, number: int, *arguments: int) -> str:
    data = {0: number, 4: seccomp.ARCHITECTURES[machine][1]}
    for i in range(6):
        value = arguments[i] if i < len(arguments) else 0
        data |= {16 + 8 * i: value & seccomp.ALL, 20 + 8 * i: value >> 32}
    at = a = 0
    while True:
        code, true, false, k = program[at]
        at += 1
        if code == seccomp.LD:
            a = data[k]
        elif code == seccomp.AND:
            a &= k
        elif code in (seccomp.JEQ, seccomp.JGE):
            at += true if (a == k if code == seccomp.JEQ else a >= k) else false
        else:
            return {seccomp.ALLOW: "allow", seccomp.KILL: "kill"}.get(k) or errno.errorcode[k & 0xFFFF]


ME = seccomp.PID
CALLS = [  # x86_64, aarch64, arguments, what is decided
    ("read", 0, 63, (), "allow"), ("futex", 202, 98, (), "allow"),
    ("socket", 41, 198, (), "EPERM"), ("connect", 42, 203, (), "EPERM"), ("sendmsg", 46, 211, (), "EPERM"),
    ("sendto its peer", 44, 206, (3, 1, 1, 0, 0), "allow"),
    ("sendto an address", 44, 206, (3, 1, 1, 0, 1 << 40), "EPERM"),
    ("socketpair of Unix sockets", 53, 199, (1,), "allow"), ("socketpair of others", 53, 199, (16,), "EPERM"),
    ("clone of a thread", 56, 220, (0x3D0F00,), "allow"), ("clone of a process", 56, 220, (0x1200011,), "EPERM"),
    ("clone of a thread in a new namespace", 56, 220, (0x3D0F00 | 0x10000000,), "EPERM"),
    ("close_range", 436, 436, (3, 9, 0), "allow"), ("close_range in a table of its own", 436, 436, (3, 9, 2), "EPERM"),
    ("clone3", 435, 435, (), "ENOSYS"), ("execve", 59, 221, (), "EPERM"), ("execveat", 322, 281, (), "EPERM"),
    ("kill itself", 62, 129, (ME,), "allow"), ("kill another", 62, 129, (1,), "EPERM"),
    ("kill all", 62, 129, (seccomp.ALL,), "EPERM"), ("kill the group", 62, 129, (0,), "EPERM"),
    ("tgkill itself", 234, 131, (ME, 7), "allow"), ("tgkill another", 234, 131, (2, 7), "EPERM"),
    ("pidfd_send_signal", 424, 424, (), "ENOSYS"), ("io_uring_setup", 425, 425, (), "ENOSYS"),
    ("fcntl F_SETFL", 72, 25, (3, 4), "allow"), ("fcntl F_SETOWN", 72, 25, (3, 8), "EPERM"),
    ("ioctl FIONBIO", 16, 29, (3, 0x5421), "allow"), ("ioctl TIOCSTI", 16, 29, (0, 0x5412), "EPERM"),
    ("prlimit itself", 302, 261, (0,), "allow"), ("prlimit of another", 302, 261, (1,), "EPERM"),
    ("prctl name", 157, 167, (15,), "allow"), ("prctl dumpable", 157, 167, (4,), "EPERM"),
    ("openat", 257, 56, (0, 1, 0o2), "allow"), ("openat and empty", 257, 56, (0, 1, 0o1001), "allow"),
    ("openat as a reader and empty", 257, 56, (0, 1, 0o1000), "EPERM"), ("openat2", 437, 437, (), "ENOSYS"),
    ("ptrace", 101, 117, (), "EPERM"), ("process_vm_readv", 310, 270, (), "EPERM"), ("mount", 165, 40, (), "EPERM"),
    ("unshare", 272, 97, (), "EPERM"), ("setuid", 105, 146, (), "EPERM"), ("fchmodat", 268, 53, (), "EPERM"),
    ("symlinkat", 266, 36, (), "EPERM"), ("linkat", 265, 37, (), "EPERM"), ("shmget", 29, 194, (), "EPERM"),
    ("keyctl", 250, 219, (), "EPERM"), ("bpf", 321, 280, (), "EPERM"), ("sched_setaffinity", 203, 122, (), "EPERM"),
    ("setpriority", 141, 140, (), "EPERM"), ("personality", 135, 92, (), "EPERM"),
]  # fmt: skip


@pytest.mark.parametrize("name,x86,arm,arguments,decision", CALLS, ids=[c[0] for c in CALLS])
def test_the_filter_decides(name, x86, arm, arguments, decision):
    assert (decide("x86_64", x86, *arguments), decide("aarch64", arm, *arguments)) == (decision, decision)


@pytest.mark.parametrize("machine", seccomp.ARCHITECTURES)
@pytest.mark.parametrize("files", [True, False])
def test_the_filters_of_a_nest_and_of_its_programs_are_together_the_one_filter(machine, files):
    """The kernel asks both, and takes the stricter answer; of two errors that of the filter installed last."""
    strict, nest = (seccomp.program(machine, files=files, nest=nest) for nest in (False, True))
    narrowing = seccomp.narrowing(machine, files=files)
    arguments = {arguments for _, _, _, arguments, _ in CALLS}
    freed = set()
    for number in [*range(470), 0x40000000, 2**31]:
        for values in arguments:
            last, first = (run_filter(f, machine, number, *values) for f in (narrowing, nest))
            assert (first if last == "allow" else last) == run_filter(strict, machine, number, *values), number
            if first != run_filter(strict, machine, number, *values):
                freed.add(number)
    fork = {"x86_64": 56, "aarch64": 220}[machine]
    assert fork in freed and len(freed) < 20 + (0 if files else len(seccomp.FILES) + 2)


def test_the_filter_knows_its_architecture_and_has_no_way_around_it():
    assert decide("x86_64", 0x40000000) == "ENOSYS"  # the x32 read
    program = seccomp.program("x86_64", files=True)
    assert program[:3] == [(0x20, 0, 0, 4), (0x15, 1, 0, 0xC000003E), (0x06, 0, 0, seccomp.KILL)]
    with pytest.raises(seccomp.Unsupported, match="riscv64"):
        seccomp.program("riscv64", files=True)


@pytest.mark.parametrize("number", [n[0] for n in seccomp.FILES.values()] + [2, 257])
def test_without_files_no_call_names_one(number):
    assert decide("x86_64", number, files=True) == "allow"
    assert decide("x86_64", number, files=False) in ("EPERM", "ENOSYS")


HEADERS = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/include/asm-generic/unistd.h",
}


@pytest.mark.parametrize("machine", HEADERS)
def test_numbers_are_the_kernels(machine):
    header = pathlib.Path(HEADERS[machine])
    if not header.exists():
        pytest.skip(f"no kernel headers: {header}")
    known = {m[1]: int(m[2]) for m in re.finditer(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())}
    column = seccomp.ARCHITECTURES[machine][0]
    conditional = {name: numbers for name, (numbers, _) in seccomp.CONDITIONAL.items()}
    ours = {n: v[column] for n, v in {**seccomp.PLAIN, **seccomp.FILES, **conditional}.items() if v[column] is not None}
    missing = {name for name in ours if name not in known}
    assert missing <= {"newfstatat", "futex_waitv", "epoll_pwait2", "close_range", "faccessat2"}
    assert {name: ours[name] for name in ours if name in known} == {n: known[n] for n in ours if n in known}
