"""From the Hugging Face hub to a folder that `load` reads: one commit, every byte checked, nothing fetched twice.

`DIR/NAME/` gets the files under their paths in the repository, and last of all `dataset.json`, which says from which
commit they are and what each must weigh and hash to. A folder without it is unfinished. A file is downloaded beside its
place (`NAME.<hash>.partial`) and moved there once it is right, so whatever ends a download, the next one goes on from
there. huggingface_hub resolves the revision and knows the token and the errors; the files themselves are streamed here,
because its own downloads start afresh after an interruption.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import fnmatch
import hashlib
import json
import os
import pathlib
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import httpx2
from huggingface_hub import HfApi, get_session, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

from metaagent_x.tasks.datasets.registry import Dataset
from metaagent_x.tasks.datasets.rows import DatasetError

RECORD = "dataset.json"
ATTEMPTS = 5  # in a row without a single new byte
TIMEOUT_S = 30.0  # to connect, and between two blocks
LONGEST_WAIT_S = 60.0
BLOCK = 1 << 20

_COMMIT = re.compile(r"[0-9a-f]{40}")
_AGAIN = (408, 429, 500, 502, 503, 504)

Progress = Callable[[str, int, int], None]
"""Called with a file's path, the bytes there, the bytes of the whole file."""


class FetchError(RuntimeError):
    """The network, the hub or a file failed. What has arrived is kept: the same command goes on from there."""


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """A file as the hub describes it. `sha256` is "" for files that git itself keeps; then `git_id` is checked."""

    path: str
    bytes: int
    sha256: str
    git_id: str

    @property
    def partial(self) -> str:
        """Where it is downloaded to; no other content ever goes on from there."""
        return f"{self.path}.{(self.sha256 or self.git_id)[:16]}.partial"


@dataclasses.dataclass(frozen=True)
class Record:
    """What `dataset.json` says.

    Attributes:
      repo: on the hub. revision: the commit.
      files: path -> {"bytes", "sha256"}.
      complete: the selections ("train", "test release=v6") of which every file is here.
    """

    repo: str
    revision: str
    files: Mapping[str, Mapping[str, Any]]
    complete: tuple[str, ...] = ()


def read_record(folder: pathlib.Path) -> Record | None:
    """The record of a fetched folder; None if there is none.

    Raises:
      DatasetError: it cannot be read.
    """
    try:
        values = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        files = {path: {"bytes": int(f["bytes"]), "sha256": str(f["sha256"])} for path, f in values["files"].items()}
        return Record(str(values["repo"]), str(values["revision"]), files, tuple(values.get("complete", ())))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        text = f"{folder / RECORD} cannot be read ({problem!r}); delete it and fetch again, whole files are kept"
        raise DatasetError(text) from None


def altered(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files of a fetched folder that are not what was fetched; reads them all. Empty for any other folder."""
    record = read_record(folder) if folder.is_dir() else None
    if not record:
        return []
    whole = _whole(folder, record, lambda path, done, total: None)
    return [folder / path for path in record.files if path not in whole]


def fetch(
    dataset: Dataset,
    to: pathlib.Path,
    *,
    splits: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    revision: str = "",
    update: bool = False,
    endpoint: str = "",
    progress: Progress = lambda path, done, total: None,
) -> tuple[Record, list[str]]:
    """Makes `to/NAME` hold the files of some splits at one commit. Asks no network if it already does.

    Args:
      dataset: an entry of `DATASETS`.
      to: the folder of all datasets.
      splits: of the dataset; all if empty.
      options: of the dataset, those that decide which files are wanted (livecodebench's release).
      revision: commit, branch or tag. "": the commit that the registry pins, else the one that the folder already has,
        else the newest one.
      update: replace a folder of another commit.
      endpoint: of the hub; "": HF_ENDPOINT, else the public one.

    Returns:
      The record, and the paths that it did not vouch for before: fetched, or found whole.

    Raises:
      DatasetError: unknown split, nothing there, no access, or the folder has another commit.
      FetchError: the network or the hub failed, or what came is not what the hub promised.
    """
    options = options or {}
    splits = tuple(splits) or dataset.splits
    if unknown := [split for split in splits if split not in dataset.splits]:
        raise DatasetError(f"{dataset.name} has no split {unknown[0]!r}; it has {', '.join(dataset.splits)}")
    selections = {" ".join([split, *(f"{k}={v}" for k, v in sorted(options.items()))]) for split in splits}
    hub = _Hub(dataset.hub.repo, endpoint)
    folder = to / dataset.name
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        old = read_record(folder)
        if old and old.repo != dataset.hub.repo:
            raise DatasetError(f"{folder} holds {old.repo}, not {dataset.hub.repo}; choose another folder")
        commit, files = revision or dataset.hub.revision or (old.revision if old and not update else ""), None
        if not _COMMIT.fullmatch(commit):
            commit, files = hub.tree(commit)
        if old and old.revision != commit and not update:
            raise DatasetError(
                f"{folder} holds commit {old.revision}; wanted is {commit}. Pass --revision {old.revision} to keep it, "
                "or --update to replace it"
            )
        same = old if old and old.revision == commit else None
        kept = _whole(folder, same, progress) if same else {}
        if same and len(kept) == len(same.files) and selections <= set(same.complete):
            return same, []
        files = hub.tree(commit)[1] if files is None else files
        wanted = {f.path: f for split in splits for f in _select(dataset, split, options, files, commit)}
        if same:  # what is damaged is mended, whichever split it belongs to
            wanted |= {f.path: f for f in files if f.path in same.files}
        missing = [f for path, f in wanted.items() if path not in kept]
        _check_space(folder, missing)
        arrived = {f.path: {"bytes": f.bytes, "sha256": _get(hub, commit, f, folder, progress)} for f in missing}
        if old and not same:
            _forget(folder, old, wanted)
        for f in missing:
            if (folder / f.partial).exists():
                os.replace(folder / f.partial, folder / f.path)
        complete = tuple(sorted(selections | set(same.complete if same else ())))
        record = Record(dataset.hub.repo, commit, dict(sorted((kept | arrived).items())), complete)
        _write(folder, record)
        return record, list(arrived)


class _Hub:
    """One repository of the hub. Patient with it: waits and asks again when it is busy or the line breaks."""

    def __init__(self, repo: str, endpoint: str) -> None:
        self.repo = repo
        self.endpoint = (endpoint or os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
        self.page = f"{self.endpoint}/datasets/{repo}"

    def tree(self, revision: str) -> tuple[str, list[RemoteFile]]:
        """The commit that a revision ("" = the default branch) names, and its files."""

        def ask() -> Any:
            api = HfApi(endpoint=self.endpoint)
            return api.dataset_info(self.repo, revision=revision or None, files_metadata=True, timeout=TIMEOUT_S)

        url = f"{self.endpoint}/api/datasets/{self.repo}" + (f"/revision/{revision}" if revision else "")
        try:
            info = self.patiently(ask, url)
            commit, siblings = info.sha or "", info.siblings or []
        except DatasetError:
            raise
        except (ValueError, KeyError, TypeError) as problem:
            raise FetchError(f"{url}: the answer is not the hub's ({problem!r}); check HF_ENDPOINT") from None
        if not _COMMIT.fullmatch(commit) or (_COMMIT.fullmatch(revision) and commit != revision):
            raise FetchError(f"{url}: asked for {revision or 'the newest commit'}, the answer is for {commit!r}")
        files = []
        for s in siblings:
            if pathlib.PurePosixPath(s.rfilename).is_absolute() or ".." in s.rfilename.split("/"):
                raise FetchError(
                    f"{url}: lists a file outside its folder, {s.rfilename!r}; is this the right endpoint?"
                )
            size = s.lfs.size if s.lfs else s.size
            files.append(RemoteFile(s.rfilename, size or 0, s.lfs.sha256 if s.lfs else "", s.blob_id or ""))
        return commit, files

    def url(self, commit: str, path: str) -> str:
        return hf_hub_url(self.repo, path, repo_type="dataset", revision=commit, endpoint=self.endpoint)

    def patiently(self, action: Callable[[], Any], url: str, progressed: Callable[[], bool] = lambda: False) -> Any:
        """The result of `action`, which is repeated after failures that pass; `ATTEMPTS` in a row without progress."""
        failures = 0
        while True:
            try:
                return action()
            except OfflineModeIsEnabled:
                raise FetchError(
                    f"{url}: HF_HUB_OFFLINE forbids the network; unset it, or copy the folder here"
                ) from None
            except HfHubHTTPError as problem:
                status, wait = problem.response.status_code, problem.response.headers.get("Retry-After", "")
                if status not in _AGAIN:
                    raise self.refused(status, url) from None
                reason = "too many requests (429); HF_TOKEN raises the limit" if status == 429 else f"answers {status}"
            except httpx2.UnsupportedProtocol:
                raise DatasetError(f"{url}: --endpoint or HF_ENDPOINT must begin with https:// or http://") from None
            except httpx2.TransportError as problem:
                reason, wait = f"{type(problem).__name__}: {problem}", ""
            failures = 1 if progressed() else failures + 1
            if failures >= ATTEMPTS:
                raise FetchError(
                    f"{url}: {reason}, {ATTEMPTS} times in a row. Check the network, HF_ENDPOINT and HTTPS_PROXY; the "
                    "same command goes on from here"
                ) from None
            time.sleep(min(float(wait) if wait.isdecimal() else 2.0 ** (failures - 1), LONGEST_WAIT_S))

    def refused(self, status: int, url: str) -> DatasetError:
        if status in (401, 403):
            way = f"accept its terms at {self.page} and set HF_TOKEN to a token that may read it"
        elif status == 404:
            way = f"check the repository {self.repo} and --revision; private ones need HF_TOKEN"
        else:
            way = "check the endpoint"
        return DatasetError(f"{url}: the hub answers {status}; {way}")


def _select(
    dataset: Dataset, split: str, options: Mapping[str, str], files: Sequence[RemoteFile], commit: str
) -> list[RemoteFile]:
    """The files of a split, by the globs of the registry."""
    patterns = dataset.hub.files[split]
    found = [f for f in files if any(fnmatch.fnmatchcase(f.path, p) for p in patterns)]
    if dataset.wanted_file and options:
        found = [f for f in found if dataset.wanted_file(f.path.rpartition("/")[2], options)]
    if not found:
        raise DatasetError(
            f"{dataset.name}: {dataset.hub.repo} at {commit} has no file {' or '.join(patterns)} for split {split!r}; "
            f"it has {', '.join(f.path for f in files[:20]) or 'no files'}"
        )
    return found


def _get(hub: _Hub, commit: str, file: RemoteFile, folder: pathlib.Path, progress: Progress) -> str:
    """Makes a file lie whole at its place, or else at its partial place. Returns its SHA-256."""
    target, partial = folder / file.path, folder / file.partial
    if target.is_file() and _agrees(found := _measure(target), file):
        progress(file.path, file.bytes, file.bytes)
        return found.sha256
    target.parent.mkdir(parents=True, exist_ok=True)
    url = hub.url(commit, file.path)
    for _ in range(2):  # a partial file can be damaged too: once more, from its beginning
        _download(hub, url, file, partial, progress)
        if _agrees(found := _measure(partial), file):
            return found.sha256
        partial.unlink()
    raise FetchError(
        f"{url}: twice not what the hub promises: {file.bytes} bytes, hash {file.sha256 or file.git_id}; got "
        f"{found.bytes} bytes, hash {found.sha256 if file.sha256 else found.git_id}. Does a proxy or a mirror change "
        "files? Try another --endpoint"
    )


def _download(hub: _Hub, url: str, file: RemoteFile, partial: pathlib.Path, progress: Progress) -> None:
    """Brings a partial file to its full length."""
    with partial.open("ab") as out:
        seen = out.tell()

        def stream() -> None:
            nonlocal seen
            have = out.tell()
            if have > file.bytes:
                have = out.truncate(0)
            if have == file.bytes:
                return
            headers = build_hf_headers() | {"Accept-Encoding": "identity"}  # lengths and ranges are of the file itself
            headers |= {"Range": f"bytes={have}-"} if have else {}
            with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_S) as response:
                hf_raise_for_status(response)
                if have and response.status_code != 206:  # the whole file was sent
                    have = out.truncate(0)
                for block in response.iter_raw():  # as it comes: a fixed size would lose what came before a cut
                    out.write(block)
                    have += len(block)
                    progress(file.path, have, file.bytes)
                    if have > file.bytes:
                        return
            if have < file.bytes:
                raise httpx2.ReadError(f"{have} of {file.bytes} bytes came")

        def progressed() -> bool:
            nonlocal seen
            before, seen = seen, out.tell()
            return seen > before

        try:
            hub.patiently(stream, url, progressed)
            out.flush()
            os.fsync(out.fileno())
        except OSError as problem:
            raise FetchError(f"{partial}: {problem.strerror or problem}; the same command goes on from here") from None


def _measure(path: pathlib.Path) -> RemoteFile:
    """A local file as the hub would describe it."""
    size = path.stat().st_size
    sha256, git = hashlib.sha256(), hashlib.sha1(f"blob {size}\0".encode())
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            sha256.update(block)
            git.update(block)
    return RemoteFile(path.name, size, sha256.hexdigest(), git.hexdigest())


def _agrees(found: RemoteFile, wanted: RemoteFile) -> bool:
    same = found.sha256 == wanted.sha256 if wanted.sha256 else found.git_id == wanted.git_id
    return found.bytes == wanted.bytes and same


def _whole(folder: pathlib.Path, record: Record, progress: Progress) -> dict[str, Mapping[str, Any]]:
    """The files of a record that are still what it says."""
    whole = {}
    for path, known in record.files.items():
        at = folder / path
        if at.is_file() and at.stat().st_size == known["bytes"] and _measure(at).sha256 == known["sha256"]:
            whole[path] = known
            progress(path, known["bytes"], known["bytes"])
    return whole


def _check_space(folder: pathlib.Path, files: Sequence[RemoteFile]) -> None:
    partial = sum(at.stat().st_size for f in files if (at := folder / f.partial).exists())
    needed = sum(f.bytes for f in files if not (folder / f.path).exists()) - partial
    if (free := shutil.disk_usage(folder).free) < needed:
        raise FetchError(f"{folder}: {needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free")


def _forget(folder: pathlib.Path, record: Record, keep: Collection[str]) -> None:
    """Removes a fetched commit, its record first: no record ever vouches for a mixture of two commits."""
    (folder / RECORD).unlink()
    for path in set(record.files) - set(keep):
        (folder / path).unlink(missing_ok=True)


def _write(folder: pathlib.Path, record: Record) -> None:
    temporary = folder / f"{RECORD}.partial"
    with temporary.open("w", encoding="utf-8") as out:
        json.dump(dataclasses.asdict(record), out, indent=1)
        out.write("\n")
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, folder / RECORD)


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[None]:
    """Keeps a second fetch out of the folder. The lock ends with the process."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FetchError(f"{folder}: another fetch is at work there; wait for it") from None
        yield
