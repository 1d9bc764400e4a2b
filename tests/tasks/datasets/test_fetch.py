"""Fetching, against a stand-in for the hub on this machine: whole, broken, hostile and absent. Nothing leaves it."""

import contextlib
import dataclasses
import hashlib
import http.server
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest

from metaagent_x.tasks import datasets
from metaagent_x.tasks.datasets import fetch as fetching
from metaagent_x.tasks.datasets.__main__ import main
from metaagent_x.tasks.datasets.fetch import FetchError, fetch, read_record
from metaagent_x.tasks.datasets.registry import DATASETS
from metaagent_x.tasks.datasets.rows import DatasetError

ROOT = pathlib.Path(__file__).resolve().parents[3]
TOKEN = "hf_secret_of_the_test"
A, B = "a" * 40, "b" * 40


def rows(n, start=0):
    lines = [json.dumps({"problem": f"What is {i} + 1?", "answer": str(i + 1)}) for i in range(start, start + n)]
    return ("\n".join(lines) + "\n").encode()


class Hub:
    """A hub with one repository. Tests set `commits`, make it fail through `faults`, and read `requests`."""

    def __init__(self, dataset):
        self.repo = dataset.hub.repo
        self.commits = {}  # commit -> {path: content}
        self.branches = {}
        self.lfs = True  # whether the hub knows SHA-256
        self.faults = []  # functions of a handler and a content; true: answered
        self.promised = {}  # path -> content that hashes are taken of
        self.requests = []
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                hub.requests.append((self.path, {key.lower(): value for key, value in self.headers.items()}))
                hub.answer(self)

        self.servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
        for server in self.servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        self.url, self.store = (f"http://127.0.0.1:{server.server_address[1]}" for server in self.servers)

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    @property
    def downloads(self):
        """Paths and ranges of the files that were asked for, in order."""
        return [(path.rpartition("/")[2], h.get("range")) for path, h in self.requests if path.startswith("/store/")]

    def answer(self, request):
        path = request.path.partition("?")[0]
        if api := re.fullmatch(rf"/api/datasets/{self.repo}(?:/revision/(.+))?", path):
            return self.describe(request, api[1] or "main")
        file = re.fullmatch(rf"/datasets/{self.repo}/resolve/(\w+)/(.+)", path)
        if file and file[2] in self.commits.get(file[1], {}):
            return send(request, 302, location=f"{self.store}/store/{file[1]}/{file[2]}")
        if file := re.fullmatch(r"/store/(\w+)/(.+)", path):
            return self.serve(request, self.commits[file[1]][file[2]])
        return send(request, 404, **{"X-Error-Code": "RepoNotFound"})

    def describe(self, request, revision):
        if self.faults and getattr(self.faults[0], "api", False):
            return self.faults.pop(0)(request, b"")
        commit = self.branches.get(revision, revision)
        if commit not in self.commits:
            return send(request, 404, **{"X-Error-Code": "RevisionNotFound"})
        files = []
        for path, content in self.commits[commit].items():
            content = self.promised.get(path, content)
            entry = {"rfilename": path, "size": len(content), "blobId": git_id(content)}
            if self.lfs:
                size = len(content)
                entry["lfs"] = {"size": size, "sha256": hashlib.sha256(content).hexdigest(), "pointerSize": 130}
            files.append(entry)
        send(request, 200, json.dumps({"id": self.repo, "sha": commit, "siblings": files, "tags": []}).encode())

    def serve(self, request, content):
        if self.faults and self.faults.pop(0)(request, content):
            return
        start = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range") or "")
        if not start:
            return send(request, 200, content)
        at = int(start[1])
        send(request, 206, content[at:], **{"Content-Range": f"bytes {at}-{len(content) - 1}/{len(content)}"})


def git_id(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def send(request, status, body=b"", length=None, **headers):
    request.send_response(status)
    for key, value in headers.items():
        request.send_header(key, value)
    request.send_header("Content-Length", str(len(body) if length is None else length))
    request.end_headers()
    with contextlib.suppress(OSError):
        request.wfile.write(body)


def cut(request, content):
    """Sends half of what is asked for, then hangs up."""
    at = int((request.headers.get("Range") or "bytes=0-")[6:-1])
    rest = content[at:]
    extra = {"Content-Range": f"bytes {at}-{len(content) - 1}/{len(content)}"} if at else {}
    send(request, 206 if at else 200, rest[: len(rest) // 2], len(rest), **extra)
    request.close_connection = True
    return True


def status(code, api=False, **headers):
    def fault(request, content):
        send(request, code, **headers)
        return True

    fault.api = api
    return fault


def healthy(request, content):
    return False


@pytest.fixture
def hub(monkeypatch, tmp_path):
    for name in ("HF_TOKEN", "HF_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy",
                 "all_proxy"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(fetching.time, "sleep", lambda s: waits.append(s))
    waits = []
    one = Hub(DATASETS["math500"])
    one.waits = waits
    commit = DATASETS["math500"].hub.revision
    one.commits[commit] = {"test.jsonl": rows(2000), "README.md": b"hello"}
    one.commit = commit
    yield one
    one.close()


def get(hub, to, name="math500", **more):
    return fetch(DATASETS[name], to, endpoint=hub.url, **more)


def test_a_fetched_folder_has_the_files_and_says_what_they_are(hub, tmp_path):
    record, fetched = get(hub, tmp_path)
    content = hub.commits[hub.commit]["test.jsonl"]
    assert fetched == ["test.jsonl"]
    assert (tmp_path / "math500" / "test.jsonl").read_bytes() == content
    written = json.loads((tmp_path / "math500" / "dataset.json").read_text())
    assert written["repo"] == hub.repo and written["revision"] == hub.commit == record.revision
    known = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert written["files"] == {"test.jsonl": known}
    assert not list((tmp_path / "math500").rglob("*.partial"))
    pairs = datasets.load("math500", str(tmp_path / "math500"))
    assert len(pairs) == 2000 and pairs[7][1].gold == ("8",)


def test_a_dataset_opens_from_the_hub_by_id_and_revision(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("METAAGENT_X_DATA", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    assert len(datasets.load("math500", "hub:")) == 2000
    other = "0" * 40
    hub.commits[other] = {"test.jsonl": rows(3)}
    assert len(datasets.load("math500", f"hub:{hub.repo}@{other}")) == 3
    hub.close()
    hub.servers = []
    assert len(datasets.load("math500", "hub:")) == 2000, "what was fetched once is there"
    assert len(datasets.load("math500", f"hub:{hub.repo}@{other}")) == 3
    with pytest.raises(datasets.DatasetError, match=r"revision/1111.*check the repository|hub:@1111"):
        datasets.load("math500", "hub:@" + "1" * 40)


@pytest.mark.fault("F146")
def test_a_whole_folder_needs_no_network(hub, tmp_path):
    get(hub, tmp_path)
    hub.close()
    hub.servers = []
    before = (tmp_path / "math500" / "dataset.json").read_text()
    assert get(hub, tmp_path)[1] == []
    assert (tmp_path / "math500" / "dataset.json").read_text() == before


@pytest.mark.fault("F146")
def test_without_network_the_error_names_the_address_and_the_way_out(hub, tmp_path):
    hub.close()
    hub.servers = []
    with pytest.raises(FetchError) as error:
        get(hub, tmp_path)
    assert hub.url in str(error.value) and hub.repo in str(error.value) and "HF_ENDPOINT" in str(error.value)
    assert not (tmp_path / "math500" / "dataset.json").exists()


@pytest.mark.parametrize("damage", ["gone", "longer", "changed"])
def test_only_what_is_damaged_is_fetched_again(hub, tmp_path, damage):
    hub.commits[hub.commit] = {"main/train-0.parquet": b"train" * 99, "main/test-0.parquet": b"test" * 99}
    hub.repo = DATASETS["gsm8k"].hub.repo
    hub.commits[DATASETS["gsm8k"].hub.revision] = hub.commits[hub.commit]
    get(hub, tmp_path, "gsm8k")
    file = tmp_path / "gsm8k" / "main" / "test-0.parquet"
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes() + b"x" if damage == "longer" else b"x" + file.read_bytes()[1:])
    hub.requests.clear()
    assert get(hub, tmp_path, "gsm8k", splits=["train"])[1] == ["main/test-0.parquet"]
    assert [name for name, _ in hub.downloads] == ["test-0.parquet"]
    assert file.read_bytes() == b"test" * 99


def test_splits_are_added_one_by_one(hub, tmp_path):
    hub.repo = DATASETS["gsm8k"].hub.repo
    hub.commits[DATASETS["gsm8k"].hub.revision] = {"main/train-0.parquet": b"train", "main/test-0.parquet": b"test"}
    assert get(hub, tmp_path, "gsm8k", splits=["test"])[1] == ["main/test-0.parquet"]
    record, fetched = get(hub, tmp_path, "gsm8k")
    assert fetched == ["main/train-0.parquet"]
    assert list(record.files) == ["main/test-0.parquet", "main/train-0.parquet"]
    with pytest.raises(DatasetError, match="no split 'dev'; it has train, test"):
        get(hub, tmp_path, "gsm8k", splits=["dev"])


def test_a_cut_connection_goes_on_where_it_ended(hub, tmp_path):
    hub.faults = [cut, cut]
    get(hub, tmp_path)
    content = hub.commits[hub.commit]["test.jsonl"]
    starts = [int(r[6:-1]) if r else 0 for _, r in hub.downloads]
    assert starts == [0, len(content) // 2, len(content) // 2 + (len(content) - len(content) // 2) // 2]
    assert (tmp_path / "math500" / "test.jsonl").read_bytes() == content


def test_a_line_that_breaks_often_but_moves_on_is_not_given_up(hub, tmp_path):
    hub.faults = [cut] * (fetching.ATTEMPTS + 3)
    get(hub, tmp_path)
    assert (tmp_path / "math500" / "test.jsonl").read_bytes() == hub.commits[hub.commit]["test.jsonl"]


def test_a_line_that_always_breaks_is_given_up_and_resumed_by_the_next_command(hub, tmp_path):
    hub.faults = [cut] + [status(503)] * fetching.ATTEMPTS
    with pytest.raises(FetchError, match=r"resolve/.*/test.jsonl: answers 503, 5 times in a row"):
        get(hub, tmp_path)
    assert not (tmp_path / "math500" / "dataset.json").exists()
    with pytest.raises(DatasetError):
        datasets.load("math500", str(tmp_path / "math500"))
    hub.requests.clear()
    hub.faults = []
    get(hub, tmp_path)
    content = hub.commits[hub.commit]["test.jsonl"]
    assert hub.downloads == [("test.jsonl", f"bytes={len(content) // 2}-")]
    assert (tmp_path / "math500" / "test.jsonl").read_bytes() == content


def test_a_server_without_ranges_starts_over(hub, tmp_path):
    hub.faults = [cut, lambda request, content: send(request, 200, content) or True]
    get(hub, tmp_path)
    assert len(hub.downloads) == 2
    assert (tmp_path / "math500" / "test.jsonl").read_bytes() == hub.commits[hub.commit]["test.jsonl"]


def test_a_damaged_partial_file_is_thrown_away_once(hub, tmp_path):
    content = hub.commits[hub.commit]["test.jsonl"]
    partial = tmp_path / "math500" / f"test.jsonl.{hashlib.sha256(content).hexdigest()[:16]}.partial"
    partial.parent.mkdir()
    partial.write_bytes(b"?" * 100)
    get(hub, tmp_path)
    assert [r for _, r in hub.downloads] == ["bytes=100-", None]
    assert (tmp_path / "math500" / "test.jsonl").read_bytes() == content


@pytest.mark.parametrize("lfs", [True, False])
@pytest.mark.parametrize("change", [lambda c: c[:-2] + b"?\n", lambda c: c + b"more"])
def test_a_file_that_is_not_what_the_hub_says_is_refused(hub, tmp_path, lfs, change):
    content = hub.commits[hub.commit]["test.jsonl"]
    hub.lfs, hub.promised = lfs, {"test.jsonl": content}
    hub.commits[hub.commit]["test.jsonl"] = change(content)
    with pytest.raises(FetchError, match="twice not what the hub promises") as error:
        get(hub, tmp_path)
    assert (hashlib.sha256(content).hexdigest() if lfs else git_id(content)) in str(error.value)
    assert not (tmp_path / "math500" / "dataset.json").exists() and not (tmp_path / "math500" / "test.jsonl").exists()


def test_files_that_git_keeps_are_checked_by_their_git_id(hub, tmp_path):
    hub.lfs = False
    record, _ = get(hub, tmp_path)
    content = hub.commits[hub.commit]["test.jsonl"]
    assert record.files["test.jsonl"]["sha256"] == hashlib.sha256(content).hexdigest()


def test_a_busy_hub_is_waited_for_as_long_as_it_asks(hub, tmp_path):
    hub.faults = [status(429, api=True, **{"Retry-After": "7"}), status(429, **{"Retry-After": "9999"}), healthy]
    get(hub, tmp_path)
    assert hub.waits == [7.0, fetching.LONGEST_WAIT_S]
    hub.faults = [status(429, api=True)] * fetching.ATTEMPTS
    with pytest.raises(FetchError, match="too many requests"):
        get(hub, tmp_path / "other")


@pytest.mark.parametrize(
    "code, header, hint",
    [(401, "GatedRepo", "HF_TOKEN"), (403, "GatedRepo", "terms"), (404, "RepoNotFound", "--revision")],
)
def test_no_access_is_bad_input_that_says_what_to_do(hub, tmp_path, monkeypatch, code, header, hint):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.faults = [status(code, api=True, **{"X-Error-Code": header})]
    with pytest.raises(DatasetError, match=f"answers {code}") as error:
        get(hub, tmp_path)
    assert hint in str(error.value) and hub.url in str(error.value) and TOKEN not in str(error.value)


def test_the_token_goes_to_the_hub_and_not_to_where_it_redirects(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    get(hub, tmp_path)
    sent = {path.split("/")[1]: "authorization" in headers for path, headers in hub.requests}
    assert sent == {"api": True, "datasets": True, "store": False}
    assert not any(TOKEN in file.read_text() for file in (tmp_path / "math500").iterdir() if file.is_file())


def test_another_commit_is_refused_unless_asked_for(hub, tmp_path):
    hub.commits |= {A: {"test.jsonl": rows(3)}, B: {"test.jsonl": rows(4), "data.txt": b""}}
    hub.branches = {"main": B}
    get(hub, tmp_path, revision=A)
    with pytest.raises(DatasetError, match=f"holds commit {A}; wanted is {B}.*--update"):
        get(hub, tmp_path, revision="main")
    assert len(datasets.load("math500", str(tmp_path / "math500"))) == 3
    record, fetched = get(hub, tmp_path, revision="main", update=True)
    assert record.revision == B and fetched == ["test.jsonl"]
    assert len(datasets.load("math500", str(tmp_path / "math500"))) == 4


def test_an_update_leaves_no_file_of_the_old_commit(hub, tmp_path):
    hub.repo = DATASETS["gsm8k"].hub.repo
    hub.commits |= {c: {f"main/{s}-{c[0]}.parquet": b"same" for s in ("train", "test")} for c in (A, B)}
    get(hub, tmp_path, "gsm8k", revision=A)
    record, _ = get(hub, tmp_path, "gsm8k", revision=B, update=True)
    files = sorted(f.relative_to(tmp_path / "gsm8k").as_posix() for f in (tmp_path / "gsm8k").rglob("*.parquet"))
    assert files == sorted(record.files) == ["main/test-b.parquet", "main/train-b.parquet"]


def test_an_interrupted_update_leaves_the_old_commit_usable(hub, tmp_path):
    hub.commits |= {A: {"test.jsonl": rows(3)}, B: {"test.jsonl": rows(400)}}
    get(hub, tmp_path, revision=A)
    hub.faults = [cut] + [status(503)] * fetching.ATTEMPTS
    with pytest.raises(FetchError):
        get(hub, tmp_path, revision=B, update=True)
    assert len(datasets.load("math500", str(tmp_path / "math500"))) == 3


def test_a_dataset_without_a_pin_keeps_the_commit_of_its_first_fetch(hub, tmp_path):
    dataset = DATASETS["math500"]
    unpinned = dataclasses.replace(dataset, hub=dataclasses.replace(dataset.hub, revision=""))
    hub.commits |= {A: {"test.jsonl": rows(3)}, B: {"test.jsonl": rows(4)}}
    hub.branches = {"main": A}
    assert fetch(unpinned, tmp_path, endpoint=hub.url)[0].revision == A
    hub.branches = {"main": B}
    (tmp_path / "math500" / "test.jsonl").unlink()
    assert fetch(unpinned, tmp_path, endpoint=hub.url)[0].revision == A
    assert fetch(unpinned, tmp_path, endpoint=hub.url, update=True)[0].revision == B


def test_a_release_is_fetched_alone(hub, tmp_path):
    lcb = DATASETS["livecodebench"]
    hub.repo = lcb.hub.repo
    names = ["test.jsonl", *(f"test{i}.jsonl" for i in range(2, 7))]
    hub.commits[lcb.hub.revision] = {name: name.encode() for name in names}
    assert get(hub, tmp_path, "livecodebench", options={"release": "v6"})[1] == ["test6.jsonl"]
    assert get(hub, tmp_path, "livecodebench")[1] == names[:-1]


@pytest.mark.parametrize("path", ["../evil.jsonl", "/etc/evil.jsonl", "a/../../evil.jsonl"])
def test_a_hub_cannot_write_outside_the_folder(hub, tmp_path, path):
    hub.commits[hub.commit] = {path: b"x", "test.jsonl": rows(1)}
    with pytest.raises(FetchError, match="outside its folder"):
        get(hub, tmp_path / "to")
    assert not (tmp_path / "evil.jsonl").exists()


def test_files_that_are_not_there_are_named(hub, tmp_path):
    hub.commits[hub.commit] = {"README.md": b"", "renamed.jsonl": b""}
    with pytest.raises(DatasetError, match=r"has no file test.jsonl for split 'test'; it has README.md, renamed.jsonl"):
        get(hub, tmp_path)


def test_an_answer_that_is_no_hubs_is_an_error(hub, tmp_path):
    fault = lambda request, content: send(request, 200, b"<html>please log in</html>")  # noqa: E731
    fault.api = True
    hub.faults = [fault]
    with pytest.raises(FetchError, match="not the hub's"):
        get(hub, tmp_path)


def test_an_unreadable_record_is_an_error(hub, tmp_path):
    get(hub, tmp_path)
    (tmp_path / "math500" / "dataset.json").write_text('{"repo": 1')
    with pytest.raises(DatasetError, match=r"dataset.json cannot be read.*fetch again"):
        read_record(tmp_path / "math500")


def test_two_fetches_into_one_folder_do_not_mix(hub, tmp_path):
    with fetching._alone(tmp_path), pytest.raises(FetchError, match="another fetch"), fetching._alone(tmp_path):
        pass


def test_a_full_disk_is_known_before(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 10}))
    with pytest.raises(FetchError, match="are free"):
        get(hub, tmp_path)
    assert hub.downloads == []


def test_a_disk_that_fills_keeps_what_arrived(hub, tmp_path):
    """A limit on the size of files stands in for the disk: the message names the file, the next command goes on."""
    hub.commits[hub.commit]["test.jsonl"] = rows(10_000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(FetchError, match=r"test\.jsonl\.\w+\.partial: File too large; the same command goes on"):
            get(hub, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert hub.waits == [] and read_record(tmp_path / "math500") is None
    get(hub, tmp_path)
    assert hub.downloads == [("test.jsonl", None), ("test.jsonl", "bytes=100000-")]


@pytest.mark.parametrize("endpoint", ["hub.example", "ftp://hub.example"])
def test_an_endpoint_that_is_no_web_address_is_bad_input_at_once(hub, tmp_path, endpoint):
    with pytest.raises(DatasetError, match=r"--endpoint or HF_ENDPOINT must begin with https://"):
        fetch(DATASETS["math500"], tmp_path, endpoint=endpoint)
    assert hub.waits == []


def test_a_check_finds_a_file_that_was_changed_after_it_was_fetched(hub, tmp_path, capsys):
    """Of the same length, so that reading alone cannot tell."""
    get(hub, tmp_path)
    folder = tmp_path / "math500"
    assert main(["check", "math500", "--path", str(folder)]) == 0
    (folder / "test.jsonl").write_bytes(rows(2000).replace(b'"answer": "7"', b'"answer": "8"'))
    assert main(["check", "math500", "--path", str(folder)]) == 2
    assert "test.jsonl is not what was fetched; repeat: " in capsys.readouterr().out
    assert main(["check", "math500", "--path", str(folder / "test.jsonl")]) == 0


def test_the_command_fetches_and_ends_with_the_codes_of_the_project(hub, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    assert main(["fetch", "math500", "--to", str(tmp_path)]) == 0
    assert hub.commit[:12] in capsys.readouterr().out
    assert main(["fetch", "math500", "--to", str(tmp_path), "--revision", "nowhere"]) == 2
    assert main(["fetch", "no_such_set", "--to", str(tmp_path)]) == 2
    assert "known: " in capsys.readouterr().out
    assert main(["fetch", "math500", "--to", str(tmp_path / "b"), "--endpoint", "http://127.0.0.1:9"]) == 1
    assert "http://127.0.0.1:9/api/datasets/" in capsys.readouterr().out.replace("\n", "")


def test_interrupting_the_command_leaves_a_state_to_go_on_from(hub, tmp_path):
    """Ctrl-C in the middle of a file: exit code 3, no record; the same command asks for the rest only."""
    half = threading.Event()

    def stall(request, content):
        send(request, 200, content[: len(content) // 2], len(content))
        half.set()
        time.sleep(20)
        return True

    hub.commits[hub.commit]["test.jsonl"] = rows(100_000)
    hub.faults = [stall]
    command = [sys.executable, "-m", "metaagent_x.tasks.datasets", "fetch", "math500", "--to", str(tmp_path)]
    environment = dict(os.environ, HF_ENDPOINT=hub.url)
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while not half.wait(0.05):
        assert process.poll() is None
    folder = tmp_path / "math500"
    while not any(file.stat().st_size for file in folder.glob("*.partial")):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 3 and b"interrupted" in output and b"Traceback" not in output
    assert not (folder / "dataset.json").exists()
    hub.faults, hub.requests = [], []
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    ((_, start),) = hub.downloads
    assert int(start[6:-1]) > 0
    assert (folder / "test.jsonl").read_bytes() == hub.commits[hub.commit]["test.jsonl"]
