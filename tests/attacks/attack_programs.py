"""The attack programs, as a table. None of them is linted: containment must hold for any text.

Each program follows a head that tells it where the canaries are and whom to shoot at (`CANARY`, `ROOT`, `TAG`, `HOST`,
`ZYGOTE`, `NEIGHBOUR`, addresses of listeners), gives it `report`, and the tools of `PRELUDE`. A line of its report that
begins with "GOT" is something that it should not have been able to do. Should an attempt succeed, it does no lasting
harm beyond the canaries and files that carry `TAG`.
"""

from __future__ import annotations

import dataclasses
import itertools
import platform
import re


@dataclasses.dataclass(frozen=True)
class Attack:
    """One program and how it may end.

    Attributes:
      tool, script: allowed statuses as tool code and as a script, separated by blanks; "" if not run so.
      says: what its report must hold, to show how far it got. reason: what the script's reason must hold.
      flags: what the script must be flagged with. wall_s: wall limit. slow: of a kind that others show sooner.
    """

    name: str
    program: str
    tool: str = "ok"
    script: str = "ok"
    says: tuple[str, ...] = ()
    reason: str = ""
    flags: tuple[str, ...] = ()
    wall_s: float = 20.0
    slow: bool = False


# How a program speaks: it prints, or asks an agent.
VOICE = {
    "tool": "def report(*words):\n    print(*words, flush=True)\n",
    "script": "_speaker = solver()\ndef report(*words):\n    _speaker(' '.join(map(str, words)))\n",
}
PRELUDE = '''
import ctypes, errno, os, platform, signal, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
NUMBERS = {  # x86_64, aarch64
    "clone": (56, 220), "clone3": (435, 435), "close_range": (436, 436),
    "execveat": (322, 281), "tkill": (200, 130), "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138), "pidfd_getfd": (438, 438), "timer_create": (222, 107), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272), "linkat": (265, 37),
    "io_uring_setup": (425, 425), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "chroot": (161, 51),
    "pivot_root": (155, 41), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "add_key": (248, 217), "keyctl": (250, 219), "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186),
    "mq_open": (240, 180), "memfd_secret": (447, 447), "open_by_handle_at": (304, 265), "inotify_init1": (294, 26),
    "sethostname": (170, 161), "personality": (135, 92), "seccomp": (317, 277),
    "ioprio_set": (251, 30), "openat2": (437, 437),
    "exit": (60, 93), "fsopen": (430, 430), "open_tree": (428, 428), "syslog": (103, 116), "vmsplice": (278, 75),
    "renameat2": (316, 276), "io_setup": (206, 0), "mlockall": (151, 230),
}

def call(name, *arguments):
    """A raw system call; an OSError if it fails."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(NUMBERS[name][platform.machine() == "aarch64"], *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def done(result):
    """For attempts that fail without an exception."""
    if not result:
        raise OSError("no effect")
    return result

def forked(fork):
    """A child that it made, should there be one, ends at once."""
    pid = fork()
    if pid == 0:
        os._exit(0)
    return pid

def attempt(texts):
    """Evaluates expressions, goes on after each failure, reports them all."""
    said = []
    for text in texts:
        try:
            got = eval(text, globals())
        except BaseException as problem:
            said.append(f"{text}: {problem!r}")
        else:
            said.append(f"GOT {text} -> {got!r}"[:300])
    report("\\n".join(said) + "\\nall tried")

def read(path):
    with open(path, "rb") as file:
        return file.read()

def write(path, mode="w"):
    with open(path, mode) as file:
        file.write("y")
'''


def tries(name: str, attempts: str, setup: str = "") -> Attack:
    """A program that tries expressions, one a line, none of which may succeed.

    `<a|b>` in a line stands for one line with a and one with b; EACH for `<HOST|ZYGOTE|NEIGHBOUR>`.
    """
    lines = attempts.replace("EACH", "<HOST|ZYGOTE|NEIGHBOUR>").strip().split("\n")
    texts = [text for line in lines for text in spelt_out(line)]
    return Attack(name, f"{setup}\nattempt({texts!r})", says=("all tried",))


def spelt_out(line: str) -> list[str]:
    parts = re.split(r"<([^<>]*\|[^<>]*)>", line)
    choices = [part.split("|") if i % 2 else [part] for i, part in enumerate(parts)]
    return ["".join(words) for words in itertools.product(*choices)]


# What must be refused, each attempt by itself.
REFUSED = (
    tries("new processes", """
forked(os.fork)
forked(lambda: os.forkpty()[0])
forked(lambda: call('clone', <17|0x10900>, 0, 0, 0, 0))
forked(lambda: call('clone3', (ctypes.c_uint64 * 8)(0, 0, 0, 0, 17), 64))
os.posix_spawn('/bin/true', ['true'], {})
done(os.system('true') == 0)
os.popen('echo x').read()[0]
subprocess.run(['true'])
subprocess.Popen(['sleep', '60'], start_new_session=True)
multiprocessing.get_context('<fork|spawn>').Process(target=int).start()
""", setup="import multiprocessing, subprocess"),
    tries("a session or a group of its own", """
os.setsid()
os.setpgid(0, ZYGOTE)
os.setpgid(NEIGHBOUR, 0)
forked(lambda: os.fork() or os.setsid() or os.fork())
os.tcsetpgrp(0, os.getpid())
os.open('/dev/tty', os.O_RDWR)
"""),
    tries("other programs", """
os.execv('/bin/true', ['true'])
os.execv('./x', ['x'])
os.execv(sys.executable, ['python', '-c', ''])
os.execv('/lib64/ld-linux-x86-64.so.2', ['ld', '/bin/true'])
os.execve(fd, ['x'], {})
call('execveat', fd, b'', (ctypes.c_char_p * 2)(b'x', None), None, 0x1000)
os.memfd_create('x')
call('memfd_secret', 0)
""", setup="""
fd = os.open('x', os.O_RDWR | os.O_CREAT, 0o755)
os.write(fd, b'#!/bin/true')
fd = os.open('x', os.O_RDONLY)
"""),
    tries("signals to others", """
os.kill(EACH, <0|signal.SIGUSR1>)
os.kill(<0|-1|-HOST|1>, 0)
os.killpg(<0|os.getpgid(ZYGOTE)>, 0)
call('tkill', EACH, signal.SIGUSR1)
[call('tgkill', pid, pid, signal.SIGUSR1) for pid in [EACH]]
call('rt_sigqueueinfo', EACH, signal.SIGUSR1, information)
os.pidfd_open(EACH)
signal.pidfd_send_signal(peer.getsockopt(1, 77), signal.SIGUSR1)
call('pidfd_getfd', peer.getsockopt(1, 77), 0, 0)
""", setup="""
information = (ctypes.c_int * 32)(signal.SIGUSR1, 0, -1)
peer = socket.socket(fileno=os.dup(3)) if WAY == 'script' else socket.socketpair()[0]
"""),
    tries("signals by way of the kernel", """
fcntl.fcntl(a, F_SETOWN, EACH)
fcntl.fcntl(a, F_SETOWN_EX, struct.pack('ii', 1, HOST))
fcntl.fcntl(a, F_SETSIG, signal.SIGUSR1)
fcntl.fcntl(os.open('.', os.O_RDONLY), F_NOTIFY, 1)
fcntl.fcntl(open('x', 'w'), F_SETLEASE, 1)
fcntl.ioctl(a, <FIOSETOWN|SIOCSPGRP|FIOASYNC>, struct.pack('i', HOST))
fcntl.ioctl(0, TIOCSTI, b'x')
fcntl.ioctl(0, TIOCSCTTY, 0)
call('timer_create', 1, None, ctypes.byref(ctypes.c_int()))
call('inotify_init1', 0)
done(libc.prctl(<1|36>, <0|1>, 0, 0, 0) == 0)
""", setup="""
import fcntl
a, b = socket.socketpair()
F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY = 8, 10, 15, 1024, 1026
FIOSETOWN, SIOCSPGRP, FIOASYNC, TIOCSTI, TIOCSCTTY = 0x8901, 0x8902, 0x5452, 0x5412, 0x540E
"""),
    tries("memory of other processes", """
call('ptrace', PTRACE_SEIZE, EACH, 0, 0)
call('ptrace', PTRACE_TRACEME, 0, 0, 0)
call('<process_vm_readv|process_vm_writev>', EACH, ours, 1, theirs, 1, 0)
call('kcmp', os.getpid(), EACH, 1, 0, 0)
os.open(f'/proc/{<"self"|HOST|ZYGOTE|NEIGHBOUR>}/mem', <os.O_RDONLY|os.O_RDWR>)
""", setup="""
PTRACE_TRACEME, PTRACE_SEIZE = 0, 0x4206
room = ctypes.create_string_buffer(64)
ours, theirs = struct.pack('PP', ctypes.addressof(room), 64), struct.pack('PP', id(struct), 64)
"""),
    tries("/proc and /sys", """
read(f'/proc/{<"self"|"thread-self"|1|HOST|ZYGOTE|NEIGHBOUR>}/<environ|cmdline|maps|status|stat|io|mountinfo>')
os.listdir(f'/proc/{<"self"|1|HOST|ZYGOTE|NEIGHBOUR>}/<.|fd|task|root>')
os.listdir(f'/proc/{<1|HOST|ZYGOTE|NEIGHBOUR>}/cwd')
os.readlink(f'/proc/{<1|HOST|ZYGOTE|NEIGHBOUR>}/<exe|cwd|fd/3>')
read('/proc/<net/tcp|net/unix|keys|kallsyms|mounts|version>')
os.listdir('/<proc|sys>')
read('/sys/kernel/mm/transparent_hugepage/enabled')
os.open('/proc/self/<oom_score_adj|comm|autogroup|attr/current>', os.O_WRONLY)
os.open(f'/proc/{ZYGOTE}/oom_score_adj', os.O_WRONLY)
os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY)
"""),
    tries("reading the project and the graders", """
read(ROOT + '/<pyproject.toml|metaagent_x/tasks/grader.py|metaagent_x/sandbox/zygote.py|tests/attacks/conftest.py>')
os.listdir(ROOT + '/<|metaagent_x|metaagent_x/tasks|configs|tests>')
importlib.import_module('metaagent_x.<train|learner.objective>')
runpy.run_path(ROOT + '/metaagent_x/tasks/grader.py')
zipimport.zipimporter(ROOT)
inspect.getsource(sys.modules['metaagent_x.tasks.math'])
done(linecache.getlines(ROOT + '/pyproject.toml'))
pkgutil.get_data('metaagent_x', 'train.py')
done(list(pkgutil.iter_modules([ROOT])))
""", setup="import importlib, inspect, linecache, pkgutil, runpy, zipimport\nsys.path.insert(0, ROOT)"),
    tries("reading files", """
read(CANARY + '/<secret.txt|data/rows.jsonl>')
read('/<etc/passwd|etc/shadow|etc/hostname|etc/machine-id|usr/bin/env|var/lib/dpkg/status>')
os.listdir('/<|tmp|home|root|var|etc|dev|usr|usr/bin|run>')
os.listdir(<CANARY|'..'|'../..'>)
os.scandir(os.path.expanduser('~'))
os.open(CANARY, os.O_RDONLY | os.O_DIRECTORY)
done(glob.glob(<'/*'|CANARY + '/*'>))
done(list(os.walk(CANARY)))
[os.listdir(f'../{n}') for n in range(5000) if os.path.isdir(f'../{n}') and f'/{n}' not in os.getcwd()][0]
call('open_by_handle_at', folder, ctypes.create_string_buffer(64), 0)
call('openat2', -100, (CANARY + '/secret.txt').encode(), (ctypes.c_uint64 * 3)(), 24)
os.open('secret.txt', os.O_RDONLY, dir_fd=folder)
os.read(os.open(CANARY + '/secret.txt', os.O_PATH), 9)
os.open(f'/dev/fd/{os.open(CANARY + "/secret.txt", os.O_PATH)}', os.O_RDONLY)
[os.<fchdir(folder)|chdir(CANARY)>, read('secret.txt')]
mmap.mmap(os.open(CANARY + '/secret.txt', os.O_RDONLY), 8, mmap.MAP_PRIVATE)
""", setup="import glob, mmap\nfolder = os.open(CANARY, os.O_PATH)"),
    tries("writing files", """
write(CANARY + '/secret.txt', '<w|a|r+|x>')
write(<CANARY|ROOT|'/tmp'|'/var/tmp'|'/dev/shm'|'/run'|'/'|'/usr/lib'|sys.prefix|'..'> + '/' + TAG)
os.mkdir(CANARY + '/new')
os.unlink(CANARY + '/secret.txt')
<os.rmdir|shutil.rmtree>(CANARY + '/data')
os.rename(CANARY + '/<secret.txt|data>', 'mine')
os.rename('own', CANARY + '/new')
os.replace('own', CANARY + '/secret.txt')
os.rename('folder', '../other')
os.rename(os.getcwd(), '../other')
os.rmdir(os.getcwd())
call('renameat2', -100, b'own', -100, (CANARY + '/secret.txt').encode(), 2)
os.open(CANARY + '/secret.txt', os.O_RDONLY | os.O_TRUNC)
os.open(CANARY, os.O_TMPFILE | os.O_RDWR)
os.open('secret.txt', os.O_WRONLY, dir_fd=os.open(CANARY, os.O_PATH))
tempfile.NamedTemporaryFile(dir=CANARY)
open(os.__file__, 'a').close()
""", setup="import shutil, tempfile\nopen('own', 'w').close()\nos.mkdir('folder')"),
    tries("attributes of files", """
os.chmod(CANARY + '<|/secret.txt>', 0)
os.fchmod(os.open(CANARY + '/secret.txt', os.O_PATH), 0)
os.chown(CANARY + '/secret.txt', 1, 1)
os.utime(CANARY + '<|/secret.txt>', (1, 1))
os.truncate(CANARY + '/secret.txt', 0)
os.setxattr(CANARY + '/secret.txt', 'user.x', b'y')
os.<getxattr|removexattr>(CANARY + '/secret.txt', 'user.x')
os.chmod('..', 0o777)
os.chmod('own', 0o4755)
os.chmod(os.__file__, os.stat(os.__file__).st_mode & 0o777)
os.utime(os.__file__, ns=(os.stat(os.__file__).st_atime_ns, os.stat(os.__file__).st_mtime_ns))
""", setup="open('own', 'w').close()"),
    tries("links and devices", """
os.symlink(<CANARY|'/'>, 'out')
os.link(CANARY + '/secret.txt', 'in')
os.link('own', <'other'|CANARY + '/' + TAG>)
call('linkat', os.open('.', os.O_TMPFILE | os.O_RDWR), b'', -100, b'x', 0x1000)
os.mkfifo(<'pipe'|CANARY + '/new'>)
os.mknod('device', 0o600 | 0o20000, os.makedev(1, 1))
os.mknod('socket', 0o140600)
[os.open('/dev/' + name, 0) for name in 'sda vda mem kmsg ptmx fuse kvm'.split() if os.path.exists('/dev/' + name)][0]
""", setup="open('own', 'w').close()"),
    tries("sockets of the network", """
socket.create_connection(TCP, 2)
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', UDP)
socket.socket(socket.<AF_INET6|AF_VSOCK>)
socket.socket(socket.<AF_NETLINK|AF_PACKET>, socket.SOCK_RAW)
socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)
socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)
socket.socketpair(socket.AF_INET)
socket.create_server(('127.0.0.1', 0))
socket.getaddrinfo('<localhost|example.com>', 80)
done(socket.if_nameindex())
done(libc.socket(2, 1, 0) >= 0)
urllib.request.urlopen(f'http://127.0.0.1:{TCP[1]}/', timeout=2)
call('io_uring_setup', 8, ctypes.create_string_buffer(120))
""", setup="import urllib.request"),
    tries("sockets of the machine", """
socket.socket(socket.AF_UNIX).connect(UNIX)
socket.socket(socket.AF_UNIX).bind('s')
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', <UNIX_DATAGRAM|ABSTRACT>)
a.sendto(b'x', <UNIX_DATAGRAM|ABSTRACT>)
a.sendmsg([b'x'], [], 0, <UNIX_DATAGRAM|ABSTRACT>)
a.connect(<UNIX_DATAGRAM|ABSTRACT>)
a.bind('\\0' + TAG + 'new')
a.sendmsg([b'x'], [(1, 1, struct.pack('i', 0))])
socket.send_fds(a, [b'x'], [0])
a.setsockopt(1, 7, 1 << 30)
<a.listen|b.accept>()
""", setup="a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)"),
    tries("memory shared with others", """
call('shmget', 77, 4096, 0o1666)
call('semget', 77, 1, 0o1666)
call('msgget', 77, 0o1666)
call('mq_open', TAG.encode(), 0o102, 0o666, None)
done(libc.shm_open(b'/' + TAG.encode(), os.O_CREAT | os.O_RDWR, 0o666) >= 0)
done(libc.sem_open(TAG.encode(), os.O_CREAT, 0o666, 1))
shared_memory.SharedMemory(TAG + 'x', True, 4096)
multiprocessing.<Semaphore(1)|Queue()>
call('add_key', b'user', TAG.encode(), b'x', 1, -4)
call('keyctl', 0, -4, 1)
""", setup="import multiprocessing\nfrom multiprocessing import shared_memory"),
    tries("privileges and namespaces", """
call('unshare', <0x10000000|0x40000000|0x20000000|0x20000|0x8000000|0x4000000|0x400>)
call('mount', b'none', b'.', b'tmpfs', 0, None)
call('pivot_root', b'.', b'.')
call('fsopen', b'tmpfs', 0)
call('open_tree', -100, b'.', 1)
call('setns', 0, 0)
os.chroot('.')
os.<setuid|seteuid|setgid>(<0|1>)
os.setgroups([])
os.setresuid(1, 1, 1)
call('sethostname', socket.gethostname().encode(), len(socket.gethostname()))
call('bpf', 0, ctypes.create_string_buffer(128), 128)
call('perf_event_open', ctypes.create_string_buffer(struct.pack('II', 1, 112), 112), 0, -1, -1, 0)
call('io_setup', 8, ctypes.byref(ctypes.c_ulong(0)))
call('<userfaultfd|personality>', 1)
call('syslog', 10, None, 0)
call('mlockall', 3)
call('vmsplice', 1, b'', 0, 0)
call('seccomp', 1, 0, ctypes.byref(ctypes.c_uint64(0)))
done(libc.prctl(<4|22|38>, 1, 0, 0, 0) == 0)
os.sched_setaffinity(0, [0])
os.listdir('shut')
call('close_range', 1000, 2000, 2)
""", setup="os.mkdir('shut', 0)"),
    tries("limits and priorities of others", """
os.sched_setaffinity(EACH, [0])
os.setpriority(os.PRIO_PROCESS, EACH, 5)
os.getpriority(os.PRIO_USER, 0)
os.nice(<-5|5>)
resource.prlimit(EACH, resource.RLIMIT_NOFILE<|, (64, 64)>)
os.sched_setscheduler(<0|HOST|ZYGOTE|NEIGHBOUR>, os.SCHED_IDLE, os.sched_param(0))
call('ioprio_set', 1, EACH, 3 << 13)
os.<sched_getaffinity|sched_getparam|sched_getscheduler>(HOST)
""", setup="import resource"),
    tries("more than its own limits", """
resource.setrlimit(resource.RLIMIT_<CPU|AS|FSIZE|NOFILE|CORE>, (1 << 40, 1 << 40))
resource.setrlimit(resource.RLIMIT_<CPU|AS>, (-1, -1))
resource.prlimit(0, resource.RLIMIT_AS, (-1, -1))
mmap.mmap(-1, 1 << 40)
[os.dup(0) for _ in range(70)]
[os.open('x', os.O_RDWR | os.O_CREAT) for _ in range(70)]
""", setup="import mmap, resource"),
    tries("payloads", """
forked(lambda: pickle.loads(b'cposix\\nfork\\n(tR.'))
done(pickle.loads(b'cposix\\nsystem\\n(Vtrue\\ntR.') == 0)
pickle.loads(b'cmetaagent_x.train\\nmain\\n.')
forked(lambda: done(ctypes.CDLL('libc.so.6').fork() + 1) - 1)
forked(__import__('os').fork)
[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'Popen'][0](['true'])
exec(compile('import os; os.execv("/bin/true", ["x"])', 'x', 'exec'))
codecs.open(CANARY + '/secret.txt').read()
SourceFileLoader('x', '').get_data(CANARY + '/secret.txt')
""", setup="import codecs, pickle, subprocess\nfrom importlib.machinery import SourceFileLoader"),
)  # fmt: skip

# What a program looks for and does not find. These do not try something that is refused: there is nothing there.
SEARCH = '''
import gc
NEEDLE = b"MA" + b"RK-"
planted = NEEDLE + b"planted"
read_end, write_end = os.pipe()

def pages(start, size):
    """Readable memory in a range: a page that is not there makes write() fail, not the process."""
    for page in range(start & ~4095, start + size, 4096):
        if libc.write(write_end, ctypes.c_void_p(page), 4096) == 4096:
            yield os.read(read_end, 4096)
        else:
            yield b""

found = set()
libc.sbrk.restype = ctypes.c_void_p
environment = ctypes.c_void_p.in_dll(libc, "environ").value or 1 << 20  # at the top of the stack
near = {id(object()) - (40 << 20): 80 << 20, libc.sbrk(0) - (30 << 20): 30 << 20, environment - (1 << 20): 2 << 20}
for start, size in near.items():
    last = b""
    for page in pages(start, size):
        text = last + page
        at = text.find(NEEDLE)
        while at >= 0:
            found.add(text[at : at + 40])
            at = text.find(NEEDLE, at + 1)
        last = text[-64:]
'''
FINDS_NOTHING = (
    Attack("the environment", '''
environ = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
libc.getenv.restype = ctypes.c_char_p
left = [environ[i] for i in range(20)] if environ and environ[0] else []
report(dict(os.environ), libc.getenv(b"ATTACK_SECRET"), left, sys.argv, "looked")
''', says=("{} None [] ['main.py'] looked",)),
    Attack("memory page by page", SEARCH + '''
report(len(found), sorted(found), "planted" if any(planted in text for text in found) else "blind")
''', says=("planted",)),
    Attack("objects of earlier runs", '''
import gc
needle = "MA" + "RK-"
seen, queue = set(), [sys.modules, gc.get_objects(), object.__subclasses__(), sys._current_frames(), sys._getframe()]
frame = sys._getframe()
while frame is not None:
    queue += [frame.f_locals, frame.f_globals]
    frame = frame.f_back
mine, texts, frames = set(globals()), 0, []
while queue:
    thing = queue.pop()
    if id(thing) in seen or len(seen) > 150_000:
        continue
    seen.add(id(thing))
    if isinstance(thing, (str, bytes)):
        text = thing if isinstance(thing, str) else thing.decode("latin-1")
        if needle in text and text != needle:
            texts += 1
            frames.append(text[max(text.find(needle), 0):][:60])
    else:
        try:
            queue += gc.get_referents(thing)
        except Exception:
            pass
report(len(seen) > 20_000, texts, frames, "walked")
''', says=("True 0 [] walked",)),
    Attack("the zygote's objects", '''
def found(name):
    frame = sys._getframe()
    while frame is not None:
        if name in frame.f_locals:
            return frame.f_locals[name]
        frame = frame.f_back
zygote, job, sent = found("self"), found("job"), []
for what in ("zygote.control.send(b'{}')", "zygote._kill(zygote.runs[NEIGHBOUR], 'host')", "zygote._hunt()",
             "found('report').send(b'{}')", "zygote._accept()", "os.killpg(NEIGHBOUR, 9)", "zygote.control.close()",
             "zygote.containment.restrict_files(CANARY)", "zygote.containment.restrict_calls()"):
    try:
        sent.append(f"{what}: {eval(what)}")
    except BaseException as problem:
        sent.append(f"{what}: {problem!r}")
sent.append([k for k in (job or {}) if "code" in k or "script" in k])
report(type(zygote).__name__, sent, "met")
''', says=("met",)),
    Attack("open descriptors", '''
import stat
def kind(fd):
    try:
        return stat.filemode(os.fstat(fd).st_mode)[0]
    except OSError:
        return ""
there = {fd: kind(fd) for fd in range(1024) if kind(fd)}
expected = {"tool": "{0: '-', 1: '-', 2: '-'}", "script": "{0: 'c', 1: 'c', 2: 'c', 3: 's'}"}[WAY]
null = WAY == "tool" or all(os.fstat(fd).st_rdev == os.makedev(1, 3) for fd in range(3))
report("only" if str(there) == expected and null else "GOT", there, "counted")
for fd in there:
    for other in (os.dup(fd), f"/dev/fd/{fd}", f"/proc/self/fd/{fd}", f"/proc/{os.getpid()}/fd/{fd}"):
        try:
            os.close(other) if isinstance(other, int) else os.close(os.open(other, os.O_RDWR))
        except OSError:
            pass
''', says=("counted",)),
    Attack("walks from a value to its class", '''
class Bomb:
    def __del__(self):
        globals()["again"] = self
        os.open(CANARY + "/secret.txt", 0)
Bomb()
looked = ["{0.__class__.__mro__}".format("x"), f"{''.__class__.__base__}", str(().__class__.__bases__),
          "{0.__init__.__globals__}".format(Bomb()) if hasattr(Bomb.__init__, "__globals__") else "slot"]
hits = [c for c in object.__subclasses__() if "Rubric" in c.__name__ or "Verdict" in c.__name__]
report(len(looked), [vars(x) for c in hits for x in __import__("gc").get_referrers(c) if isinstance(x, c)], "walked")
''', says=("4 [] walked",)),
)  # fmt: skip

# What ends at a limit, or by itself, with its proper name; status as tool and as script.
SPIN = "while True: pass"
ENDS = (
    Attack("endless loop", SPIN, "cpu", "cpu"),
    Attack("one huge integer", "n = 10 ** 10 ** 8\nreport(len(str(n)))", "cpu", "cpu"),
    Attack("a regular expression that explodes", "import re\nre.match('(a*)*b', 'a' * 40)", "cpu", "cpu", slow=True),
    Attack("a loop that ignores SIGXCPU and raises its limit", '''
import resource
signal.signal(signal.SIGXCPU, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_CPU, (resource.getrlimit(resource.RLIMIT_CPU)[1],) * 2)
while True: pass
''', "cpu", ""),
    Attack("threads that compute without the interpreter lock", '''
import hashlib
threading.stack_size(1 << 18)
for _ in range(20):
    threading.Thread(target=hashlib.pbkdf2_hmac, args=("sha256", b"x" * 64, b"y", 10**9), daemon=True).start()
while True: time.sleep(1)
''', "cpu", "cpu"),
    Attack("fork bomb that does not give up", '''
while True:
    try:
        forked(os.fork)
    except OSError:
        pass
''', "cpu", "cpu"),
    Attack("fork bomb", "while True: forked(os.fork)", "refused", "crash"),
    Attack("sleep", "time.sleep(600)", "wall", "wall", wall_s=1),
    Attack("sleep with every signal ignored or blocked", '''
for number in signal.valid_signals():
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
threading.Thread(target=time.sleep, args=(600,)).start()
time.sleep(600)
''', "wall", "wall", wall_s=1),
    Attack("stops itself", "os.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(600)", "wall", "wall", wall_s=1),
    Attack("its first thread ends, others stay", '''
threading.Thread(target=time.sleep, args=(600,)).start()
call("exit", 0)
''', "wall", "wall", wall_s=1),
    Attack("waits for itself", "lock = threading.Lock()\nlock.acquire()\nlock.acquire()", "wall", "wall", wall_s=1),
    Attack("reads from a pipe that nobody writes", "os.read(os.pipe()[0], 1)", "wall", "wall", wall_s=1),
    Attack("starves for input", '''
said = []
for text in ("input()", "sys.stdin.read()", "os.read(0, 10)", "open(0, closefd=False).readline()"):
    try: said.append(eval(text))
    except BaseException as problem: said.append(type(problem).__name__)
report(said, "fed up")
''', says=("fed up", "EOFError")),
    Attack("timers that never stop firing", '''
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 1e-5, 1e-5)
while True: time.sleep(600)
''', "wall cpu", "wall cpu", wall_s=1),
    Attack("memory", "a = []\nwhile True: a.append(' ' * 10**6)", "memory", "memory"),
    Attack("memory at one stroke", "bytearray(1 << 40)", "memory", "memory"),
    Attack("memory again and again", '''
a = []
while True:
    try: a.append(" " * 10**6)
    except MemoryError: pass
''', "cpu", "cpu", slow=True),
    Attack("memory in C, never given back", '''
libc.mmap.restype = ctypes.c_void_p
pieces = 0
while libc.mmap(None, ctypes.c_size_t(1 << 20), 3, 0x22, -1, ctypes.c_long(0)) != ctypes.c_void_p(-1).value:
    pieces += 1
report(pieces, "GOT too much" if pieces > 300 else "enough")
''', "ok memory", "ok memory"),
    Attack("memory of the kernel: pipes and sockets", '''
import fcntl
kept = []
try:
    while True:
        kept.append(os.pipe())
        os.set_blocking(kept[-1][1], False)
        try: fcntl.fcntl(kept[-1][1], 1031, 1 << 20)
        except OSError: pass
        os.write(kept[-1][1], b"x" * (1 << 20))
except OSError as problem:
    report(len(kept), "GOT too many" if len(kept) > 40 else problem.errno)
'''),
    Attack("recursion", '''
sys.setrecursionlimit(10**9)
def f(n): return f(n + 1)
f(0)
''', "memory crash cpu", "memory crash cpu"),
    Attack("recursion in C", '''
x = ()
for _ in range(3 * 10**5): x = (x,)
hash(x)
''', "crash", "crash"),
    Attack("a null pointer", "ctypes.string_at(0)", "crash", "crash"),
    Attack("abort", "libc.abort()", "crash", "crash"),
    Attack("kills itself", "os.kill(os.getpid(), signal.SIGKILL)", "crash", "crash"),
    Attack("kills itself with the signal of the filter", "os.kill(os.getpid(), signal.SIGSYS)", "crash", "crash"),
    Attack("writes over the interpreter", "ctypes.memset(id(int), 0x41, 400)\n1 + 1", "crash", "crash"),
    Attack("exit", "exit()"),
    Attack("exit with a code", "sys.exit(3)", "error", "ok"),
    Attack("os._exit", "os._exit(0)", "ok", "crash"),
    Attack("os._exit with a code, in a thread", '''
threading.Thread(target=os._exit, args=(7,)).start()
time.sleep(600)
''', "error", "crash"),
    Attack("endless exit handler", '''
import atexit
@atexit.register
def f():
    while True: pass
''', "cpu", "ok"),
    Attack("a thread that outlives the program", '''
threading.Thread(target=time.sleep, args=(600,)).start()
report("answered")
''', "wall", "ok", says=("answered",), wall_s=1),
    Attack("time bombs", '''
def bomb():
    while True:
        try: open(CANARY + "/secret.txt", "w").write("boom")
        except OSError: pass
        try: os.kill(HOST, signal.SIGUSR1)
        except OSError: pass
for _ in range(4): threading.Thread(target=bomb, daemon=True).start()
signal.signal(signal.SIGALRM, lambda *_: bomb())
signal.setitimer(signal.ITIMER_REAL, 0.01)
import atexit
atexit.register(lambda: open(CANARY + "/data/rows.jsonl", "w"))
report("set")
''', "ok error refused cpu", "ok cpu", says=("set",)),
    Attack("threads", '''
threading.stack_size(32768)
while True:
    try: threading.Thread(target=time.sleep, args=(600,)).start()
    except (RuntimeError, MemoryError): time.sleep(0.01)
''', "threads", "crash"),
    Attack("threads of the usual size", '''
made = []
try:
    while True:
        made.append(threading.Thread(target=time.sleep, args=(600,), daemon=True))
        made[-1].start()
except (RuntimeError, MemoryError):
    report("no more", "GOT" if len(made) > 1000 else "")
''', "ok memory threads", "ok memory crash wall", wall_s=3),
    Attack("a thread's name that is no text", '''
libc.prctl(15, b"\\xff\\xfe) Z \\n", 0, 0, 0)
threading.Thread(target=lambda: (libc.prctl(15, b"\\n\\xc3(", 0, 0, 0), time.sleep(1)), daemon=True).start()
end = time.monotonic() + 0.6
while time.monotonic() < end: sum(range(1000))
report("named")
''', says=("named",)),
    Attack("many small files", '''
n = 0
while True:
    open(str(n), "w").close()
    n += 1
''', "output", "crash"),
    Attack("many folders", '''
for n in range(10**6): os.makedirs(f"{n}/{n}/{n}")
''', "output", "crash"),
    Attack("few big files", '''
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
n = 0
while True:
    try:
        with open(str(n), "wb", 0) as file:
            while file.write(b"x" * 65536) == 65536: pass
    except OSError: pass
    n += 1
''', "output", "crash"),
    Attack("one big file", "file = open('x', 'wb')\nwhile True: file.write(b'x' * 65536)", "output", "crash"),
    Attack("files without a name", '''
libc.mmap.restype = ctypes.c_void_p
for _ in range(400):
    fd = os.open("f", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"x" * (1 << 20))
    libc.mmap(None, ctypes.c_size_t(4096), 1, 1, fd, ctypes.c_long(0))
    os.close(fd)
    os.unlink("f")
report("GOT 400 MB of disk")
''', "output", "crash"),
    Attack("files without a name, written through memory", '''
libc.mmap.restype = ctypes.c_void_p
for _ in range(400):
    fd = os.open("f", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 1 << 20)
    pages = libc.mmap(None, ctypes.c_size_t(1 << 20), 3, 1, fd, ctypes.c_long(0))
    ctypes.memset(pages, 1, 1 << 20)
    libc.munmap(ctypes.c_void_p(pages + 4096), ctypes.c_size_t((1 << 20) - 4096))
    os.close(fd)
    os.unlink("f")
report("GOT 400 MB of disk")
''', "output", "crash"),
    Attack("writes without end and removes what it wrote", '''
while True:
    fd = os.open("f", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"x" * (1 << 20))
    os.close(fd)
    os.unlink("f")
''', "output", "crash"),
    Attack("sparse files", '''
fd = os.open("x", os.O_RDWR | os.O_CREAT)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try: os.ftruncate(fd, 1 << 40)
except OSError as problem: report(problem.errno == errno.EFBIG, "held")
else: report("GOT a sparse file")
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
os.pwrite(fd, b"x", 1 << 40)
''', "output", "crash", says=("True held",)),
    Attack("folders without bottom", '''
while True:
    os.mkdir("d")
    os.chdir("d")
''', "output", "crash"),
    Attack("names that a cleaner trips over", '''
for n in range(1, 100): os.makedirs(f"\\x01{n}/k/k")
for name in ("\\x01", "a\\nb", "-rf", "*", "\\udcff", "..." , " ", "x" * 255): os.makedirs(f"{name}/c/d")
os.mkdir("shut", 0)
open("shut2", "w").close()
report("left")
''', "ok output", "ok crash", says=("left",)),
    Attack("output flood", "while True: print('x' * 1000)", "output", "crash"),
    Attack("output flood on the other channel", "while True: os.write(2, b'x' * 1000)", "output", "crash"),
    Attack("output flood that will not hear", '''
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
while True:
    try: os.write(1, b"x" * 1000)
    except OSError: pass
''', "cpu output", "crash"),
    Attack("opens and closes descriptors", '''
end = time.monotonic() + 0.5
while time.monotonic() < end:
    for fd in [os.open(".", os.O_RDONLY), *os.pipe(), *[s.detach() for s in socket.socketpair()]]: os.close(fd)
report("done with it")
''', says=("done with it",)),
    Attack("odd text", '''
report("a\\0b \\ud800 \\udcff \\x1b[2J \\u202e \\uffff " + chr(0x10FFFF), "said")
''', "error", "ok"),
    Attack("odd bytes", '''
report("said")
os.write(1, b"\\0\\xff\\xfe\\xc3(\\xed\\xa0\\x80\\r\\n\\x1b")
''', says=("said",)),
    Attack("a source with a NUL", "x = 1 \0", "error", "crash"),
    Attack("a source with half a pair", "x = '\ud800'", "error", "crash ok"),
    Attack("a source that is nested too deeply", "x = " + "(" * 5000 + ")" * 5000, "error memory", "crash memory"),
    Attack("a source that crashes compilers", "x = " + "-" * 100_000 + "1", "error memory crash", "crash memory"),
    Attack("builtins replaced", '''
import builtins, json, io
class Liar(str):
    def __eq__(self, other): return True
    def __hash__(self): return 0
for name in ("print", "open", "len", "isinstance", "compile", "exec", "str", "repr", "callable", "BaseException"):
    setattr(builtins, name, lambda *a, **k: Liar("x"))
sys.modules.clear()
sys.meta_path[:] = sys.path_hooks[:] = sys.path[:] = []
''', "ok error crash", "ok crash"),
    Attack("exits replaced", '''
report("patched")
os._exit = sys.exit = lambda *a: None
os.close = os.closerange = os.dup2 = lambda *a: None
''', "ok error refused crash", "ok crash", says=("patched",)),
    Attack("import hooks", '''
class Hook:
    def find_spec(self, name, path=None, target=None): raise MemoryError("hooked")
sys.meta_path.insert(0, Hook())
sys.path.insert(0, "/")
sys.setprofile(lambda *a: None)
sys.settrace(lambda *a: None)
sys.addaudithook(lambda *a: None)
report("hooked")
''', says=("hooked",)),
    Attack("a collector that never ends", '''
import gc, weakref
class Again:
    def __del__(self): Again()
Again()
gc.callbacks.append(lambda *a: None)
gc.set_threshold(1)
x = [Again() for _ in range(3)]
del x
''', "ok cpu memory error crash", "ok cpu memory crash", slow=True),
)  # fmt: skip

MACHINE_CODE = '''
import mmap
def run(code):
    """Runs machine code: a system call that does not go through the C library."""
    libc.mmap.restype = ctypes.c_void_p
    page = libc.mmap(None, ctypes.c_size_t(4096), 7, 0x22, -1, ctypes.c_long(0))
    ctypes.memmove(page, code, len(code))
    return ctypes.CFUNCTYPE(ctypes.c_long)(page)()
def number(n):
    return b"\\xb8" + struct.pack("<I", n)  # mov eax, n
'''
if platform.machine() == "x86_64":
    # Other tables have other numbers: for int 0x80, 2 is fork and 20 is getpid.
    for what, n in (("fork", 2), ("getpid", 20)):
        program = MACHINE_CODE + f"run(number({n}) + b'\\xcd\\x80\\xc3')"
        ENDS += (Attack(f"{what} by the 32-bit entry", program, "crash", "crash"),)
    REFUSED += (
        tries("fork and others by machine code", r"""
done(run(number(<39|41|56|57|58> | 0x40000000) + b'\x0f\x05\xc3') >= 0)
done(run(number(<57|58>) + b'\x0f\x05\xc3') >= 0)
""", setup=MACHINE_CODE),
    )  # fmt: skip
