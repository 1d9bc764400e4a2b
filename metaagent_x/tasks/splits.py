"""Which tasks may be trained on: the part held out for validation is not, and a benchmark is not."""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePath

from metaagent_x.tasks.datasets import DATASETS, parse


def place(task_id: str) -> float:
    """Where a task stands between 0 and 1, evenly spread, a function of its id alone."""
    digest = hashlib.blake2b(task_id.encode("utf-8", "replace"), digest_size=8, person=b"dev split").digest()
    return int.from_bytes(digest, "big") / 2**64


def held_out(task_id: str, share: float) -> bool:
    """True for the `share` of all ids that validate and never train.

    No seed, order or further row moves a task to the other side, and a larger share only adds tasks.
    """
    return place(task_id) < share


def benchmark(name: str, path: str = "") -> str:
    """Says why a data set is a benchmark: "" if it is none.

    Args:
      name: name of a data set with its options ("apps:split=test").
      path: its file or folder. Where no split is named, one that is called "test" ("test.jsonl",
        "test-00000-of-00001.parquet"), or that lies in a folder so called, is the test split of the sets that have one.

    Raises:
      DatasetError: options that the data set does not have.
    """
    base = name.partition(":")[0]
    if base not in DATASETS or not DATASETS[base].benchmarks:
        return ""
    dataset, options = parse(name)
    if dataset.benchmarks == dataset.splits:
        return f"{base} is a benchmark"
    split = options.get("split") or ("test" if _is_test(path) else dataset.splits[0])
    if split == "all" or split in dataset.benchmarks:
        other = f" ({base}:split=train is none)" if "train" in dataset.splits else ""
        return f"split={split} of {base} is a benchmark or holds one{other}"
    return ""


def _is_test(path: str) -> bool:
    for part in PurePath(path).parts[:-3:-1]:
        words = re.split(r"[^a-z]+", part.lower())
        if any(word in words for word in ("train", "training", "test")):
            return "test" in words
    return False
