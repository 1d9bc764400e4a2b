"""Which files of a path are read for a dataset and its options, and the rows of these.

Splits are told by the paths of the hub ("data/train-*.parquet"), or else by the words in a file's name or its folder's
("train.jsonl", "test/rows.parquet"). A dataset with one split takes every file.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping

from metaagent_x.tasks.datasets import rows
from metaagent_x.tasks.datasets.registry import Dataset, parse
from metaagent_x.tasks.datasets.rows import DatasetError, Row

_WORDS = {
    "train": ("train", "training"), "test": ("test",), "valid": ("valid", "validation", "val", "dev"),
    "validation": ("valid", "validation", "val", "dev"), "prompt": ("prompt",),
}  # fmt: skip


def open_rows(name: str, path: str | None = None, *, all_columns: bool = False) -> Iterator[Row]:
    """The rows of a dataset that its options ask for, in file order, one at a time.

    Args:
      name, path: as `load_report`.
      all_columns: read also the columns that conversion does not need (of Parquet and Arrow).

    Raises:
      DatasetError: as `load_report`, but for rows that only a conversion can find broken.
    """
    dataset, options = parse(name)
    at = place_of(dataset, path, options)
    wanted = options.get("split") or (dataset.splits[0] if at.is_dir() else "all")  # where rows tell their split
    one_split = dataset.splits[0] if len(dataset.splits) == 1 else ""
    number, chosen, last = 0, 0, None
    for file, where, values, split in _raw(dataset, options, at, all_columns):
        place = f"{dataset.name}: {file} {where}"
        if file != last:
            _check_columns(dataset, place, values)
        last = file
        row = Row(place, number, values, one_split or split or dataset.splits[0])
        number += 1
        if dataset.split_of:
            row = dataclasses.replace(row, split=dataset.split_of(row))
            if wanted not in ("all", row.split):
                continue
        if dataset.select is None or dataset.select(row, options):
            chosen += 1
            yield row
    if not chosen:
        none = f"none of its {number} rows is of {name.partition(':')[2]}" if number else "holds no rows"
        raise DatasetError(f"{dataset.name}: {at} {none}")


def _raw(
    dataset: Dataset, options: Mapping[str, str], at: pathlib.Path, all_columns: bool
) -> Iterator[tuple[pathlib.Path, str, Mapping, str]]:
    unused = () if all_columns else dataset.unused
    if rows.is_tfds(at):
        for split in _tfds_splits(dataset, options, at):
            yield from ((at, where, values, split) for where, values in rows.read_tfds(dataset.name, at, split))
        return
    for file, split in _files(dataset, options, at):
        yield from ((file, where, values, split) for where, values in rows.read(dataset.name, file, unused))


def place_of(dataset: Dataset, path: str | None, options: Mapping[str, str]) -> pathlib.Path:
    """The file or folder that a path means, or that is read without one. Raises DatasetError if it is not there."""
    if path and path.startswith("hub:"):
        return _from_hub(dataset, path, options)
    if path:
        at = pathlib.Path(path.removeprefix("tfds:")).expanduser()
        if path.startswith("tfds:") and not rows.is_tfds(at):
            raise DatasetError(f"{dataset.name}: {at} holds no dataset_info.json and features.json: not a TFDS folder")
        if not at.exists():
            raise DatasetError(f"{dataset.name}: {at} does not exist; give a file or folder of rows")
        return at
    folder = _home()
    at = folder / dataset.name
    if not at.exists():
        raise DatasetError(
            f"{dataset.name}: {at} does not exist. Give a path, or fetch the dataset: "
            f"python -m metaagent_x.tasks.datasets fetch {dataset.name} --to {folder}"
        )
    return at


def _home() -> pathlib.Path:
    return pathlib.Path(os.environ.get("METAAGENT_X_DATA") or "data").expanduser()


def _from_hub(dataset: Dataset, path: str, options: Mapping[str, str]) -> pathlib.Path:
    """The folder of a repository, fetched first where it is not yet. Every commit, and every mirror, has its own."""
    from metaagent_x.tasks.datasets import fetch  # only here: reading needs no HTTP client

    repo, _, revision = path.removeprefix("hub:").partition("@")
    repo = repo or dataset.hub.repo
    revision = revision or (dataset.hub.revision if repo == dataset.hub.repo else "")
    to = _home() / "hub" / f"{repo.replace('/', '--')}@{revision or 'newest'}"
    wanted = {key: value for key, value in options.items() if key != "split"} if dataset.wanted_file else {}
    split = options.get("split") or dataset.splits[0]
    hub = dataclasses.replace(dataset.hub, repo=repo, revision="")
    try:
        fetch.fetch(
            dataclasses.replace(dataset, hub=hub), to, splits=dataset.splits if split == "all" else (split,),
            options=wanted, revision=revision,
        )  # fmt: skip
    except fetch.FetchError as failure:
        raise DatasetError(f"{dataset.name}: {path}: {failure}") from failure
    return to / dataset.name


def _check_columns(dataset: Dataset, place: str, values: Mapping) -> None:
    """The first row of a file shows whether a hub or a library has changed the form (huggingface/datasets#7676)."""
    absent = [column for column in dataset.columns if not any(name in values for name in column.split("|"))]
    if absent:
        expected = ", ".join(column.replace("|", " or ") for column in dataset.columns)
        raise DatasetError(
            f"{place}: field {absent[0].split('|')[0]!r}: is missing; the row has "
            f"{', '.join(sorted(values)) or 'no fields'}; a row of {dataset.name} has {expected}"
        )


def _files(dataset: Dataset, options: Mapping[str, str], at: pathlib.Path) -> list[tuple[pathlib.Path, str]]:
    """The files to read, in the order of their names, each with its split ("" if nothing tells it)."""
    if at.is_file():
        if not rows.is_readable(at):
            raise DatasetError(f"{dataset.name}: {at} is no file of rows; {', '.join(rows.SUFFIXES)} can be read")
        files = {at: _split_by_name(dataset, at.name)}
        asked = options.get("split", "all")
        if asked != "all" and files[at] == "":
            files[at] = asked
    else:
        files = _fetched(dataset, at) or _found(dataset, at)
        asked = options.get("split") or (dataset.splits[0] if any(files.values()) else "all")
    try:
        if dataset.wanted_file:
            files = {file: split for file, split in files.items() if dataset.wanted_file(file.name, options)}
    except ValueError as problem:
        raise DatasetError(f"{dataset.name}: {at}: {problem}") from None
    if asked == "all" or len(dataset.splits) == 1:
        chosen = files
    elif dataset.split_of:
        chosen = {file: split for file, split in files.items() if split in ("", asked)}
    elif unclear := [file for file, split in files.items() if not split]:
        raise DatasetError(
            f"{dataset.name}: {at}: the split of {unclear[0].name} is unclear; the name of a file, or of its folder, "
            f"must hold one of {', '.join(dataset.splits)}. Or name the file itself, or read it all with split=all"
        )
    else:
        chosen = {file: split for file, split in files.items() if split == asked}
    if not chosen:
        there = ", ".join(sorted(set(filter(None, files.values())))) or "no file"
        raise DatasetError(
            f"{dataset.name}: {at} holds nothing of split {asked} {dict(options) or ''}; it has {there}. "
            f"Ask for another as {dataset.name}:split=..."
        )
    return sorted(chosen.items())


def _found(dataset: Dataset, folder: pathlib.Path) -> dict[pathlib.Path, str]:
    """The files of rows in a folder and its subfolders. If some are where the hub has them, these are the dataset."""
    inside = {file: file.relative_to(folder).as_posix() for file in folder.rglob("*") if rows.is_readable(file)}
    inside = {file: path for file, path in inside.items() if "/." not in f"/{path}"}
    if not inside:
        raise DatasetError(f"{dataset.name}: {folder} holds no file of rows ({', '.join(rows.SUFFIXES)})")
    by_hub = {file: _split_by_hub(dataset, path) for file, path in inside.items()}
    return {file: by_hub[file] or _split_by_name(dataset, path) for file, path in inside.items()}


def _fetched(dataset: Dataset, folder: pathlib.Path) -> dict[pathlib.Path, str]:
    """The files of a folder that `fetch` made, by its own list; empty if it is another folder."""
    listing = folder / "dataset.json"
    if not listing.is_file():
        return {}
    again = f"repeat: python -m metaagent_x.tasks.datasets fetch {dataset.name} --to {folder.parent}"
    try:
        files = json.loads(listing.read_text(encoding="utf-8"))["files"]
        sizes = {str(path): int(entry["bytes"]) for path, entry in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise DatasetError(f"{dataset.name}: {listing} is damaged ({problem!r}); {again}") from None
    for path, size in sizes.items():
        file = folder / path
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            has = "is missing" if found is None else f"has {found} bytes instead of {size}"
            raise DatasetError(f"{dataset.name}: {file} {has}: the download is damaged; {again}")
    return {
        folder / path: _split_by_hub(dataset, path) or _split_by_name(dataset, path)
        for path in sizes if rows.is_readable(folder / path)
    }  # fmt: skip


def _split_by_hub(dataset: Dataset, path: str) -> str:
    for split, patterns in dataset.hub.files.items():
        if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns):
            return split
    return ""


def _split_by_name(dataset: Dataset, path: str) -> str:
    """The split that a path tells: by the first word of the file's name that is one, or else of its folder's."""
    if len(dataset.splits) == 1:
        return dataset.splits[0]
    for part in reversed(path.split("/")):
        for word in re.findall("[a-z]+", part.lower()):
            for split in dataset.splits:
                if word in _WORDS[split]:
                    return split
    return ""


def _tfds_splits(dataset: Dataset, options: Mapping[str, str], folder: pathlib.Path) -> list[str]:
    there = rows.tfds_splits(dataset.name, folder)
    if len(dataset.splits) == 1 or options.get("split") == "all":
        return there
    asked = options.get("split", dataset.splits[0])
    if asked not in there:
        raise DatasetError(f"{dataset.name}: {folder} has no split {asked}; it has {', '.join(there)}")
    return [asked]
