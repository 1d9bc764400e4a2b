"""The table of the datasets: what each is, where the hub has it, and which function reads its rows.

A new dataset is one function from a `Row` to a pair of `Task` and `Rubric`, and one entry here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from metaagent_x.tasks.datasets import code_sets, math_sets
from metaagent_x.tasks.datasets.rows import DatasetError, Row
from metaagent_x.tasks.task import Kind, Rubric, Task

Convert = Callable[[Row], tuple[Task, Rubric]]


@dataclasses.dataclass(frozen=True)
class Hub:
    """Where the Hugging Face hub has a dataset.

    Attributes:
      repo: "openai/gsm8k".
      revision: the commit, or "": what the hub gives at the first fetch, recorded and kept from then on.
      files: split -> paths inside the repository, each a path or a glob (of `fnmatch`: "*" matches "/" too), of which
        at least one file must match. Only JSONL and Parquet: no script is run.
    """

    repo: str
    revision: str
    files: Mapping[str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Dataset:
    """One dataset.

    Attributes:
      name: what configs call it.
      kind: of its tasks, "math" or "code".
      convert: a row -> its pair. Raises `DatasetError` (the row is broken) and `Dropped` (it cannot be graded).
      hub: where it is fetched from.
      columns: what every row must have; "a|b" where published forms differ in the name.
      benchmarks: splits that results are reported on. They keep every row, and nobody trains on them.
      options: the options of `NAME:option=value` besides `split`.
      select: (row, options) -> whether the options want the row.
      wanted_file: (file name, options) -> whether the options want the file.
      split_of: a row -> its split, for a dataset that is published as one file.
      check_options: raises ValueError for a value that cannot be meant.
      review: all pairs of a reading -> the same, repaired, for faults that one row does not show.
      unused: columns that `convert` does not read and that are large.
      solutions: a row -> its reference programs. They are in no task.
    """

    name: str
    kind: Kind
    convert: Convert
    hub: Hub
    columns: tuple[str, ...]
    benchmarks: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    select: Callable[[Row, Mapping[str, str]], bool] | None = None
    wanted_file: Callable[[str, Mapping[str, str]], bool] | None = None
    split_of: Callable[[Row], str] | None = None
    check_options: Callable[[Mapping[str, str]], None] | None = None
    review: Callable[[list[tuple[Task, Rubric]]], list[tuple[Task, Rubric]]] | None = None
    unused: tuple[str, ...] = ()
    solutions: Callable[[Row], list[str]] | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        """Its splits; the first is read if none is asked for."""
        return tuple(self.hub.files)


def _shards(split: str, folder: str = "data") -> dict[str, tuple[str, ...]]:
    return {split: (f"{folder}/{split}-*.parquet",)}


# Commits are those that published evaluation code pins for the same repositories.
_ALL = (
    Dataset(
        "polaris", "math", math_sets.polaris,
        Hub("POLARIS-Project/Polaris-Dataset-53K", "296f8e34132e63f4a1d70e0dcc8bddebb43f03e4",
            {"train": ("*.parquet", "*.jsonl")}),
        ("problem", "answer"),
    ),
    Dataset(
        "apps", "code", code_sets.apps,
        Hub("codeparrot/apps", "21e74ddf8de1a21436da12e3e653065c5213e9d1",
            {"train": ("train.jsonl",), "test": ("test.jsonl",)}),
        ("question", "input_output"), benchmarks=("test",), options=("difficulty",),
        select=code_sets.apps_select, check_options=code_sets.apps_options,
        solutions=code_sets.apps_solutions, unused=("solutions",),
    ),
    Dataset(
        "code_contests", "code", code_sets.code_contests,
        Hub("deepmind/code_contests", "802411c3010cb00d1b05bad57ca77365a3c699d6",
            _shards("train") | _shards("valid") | _shards("test")),
        ("name", "description", "public_tests", "private_tests", "generated_tests"),
        benchmarks=("test",), solutions=code_sets.code_contests_solutions,
        unused=("solutions", "incorrect_solutions", "untranslated_description"),
    ),
    Dataset(
        "livecodebench", "code", code_sets.livecodebench,
        Hub("livecodebench/code_generation_lite", "0fe84c3912ea0c4d4a78037083943e8f0c4dd505",
            {"test": ("test.jsonl", "test[2-6].jsonl")}),
        ("question_content|problem", "public_test_cases|tests"), benchmarks=("test",),
        options=("release", "from", "to", "platform"),
        select=code_sets.livecodebench_select, wanted_file=code_sets.livecodebench_file,
        check_options=code_sets.livecodebench_options, review=code_sets.livecodebench_review,
    ),
    Dataset(
        "humaneval", "code", code_sets.humaneval,
        Hub("openai/openai_humaneval", "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
            _shards("test", "openai_humaneval")),
        ("task_id", "prompt", "test", "entry_point"), benchmarks=("test",), solutions=code_sets.humaneval_solutions,
    ),
    Dataset(
        "mbpp", "code", code_sets.mbpp,
        Hub("google-research-datasets/mbpp", "4bb6404fdc6cacfda99d4ac4205087b89d32030c",
            _shards("test", "full") | _shards("train", "full") | _shards("validation", "full")
            | _shards("prompt", "full")),
        ("task_id", "text|prompt", "test_list"), benchmarks=("test",), split_of=code_sets.mbpp_split,
        solutions=code_sets.mbpp_solutions,
    ),
    Dataset(
        "gsm8k", "math", math_sets.gsm8k,
        Hub("openai/gsm8k", "740312add88f781978c0658806c59bc2815b9866",
            _shards("train", "main") | _shards("test", "main")),
        ("question", "answer"), benchmarks=("test",),
    ),
    Dataset(
        "math500", "math", math_sets.math500,
        Hub("HuggingFaceH4/MATH-500", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be", {"test": ("test.jsonl",)}),
        ("problem", "answer"), benchmarks=("test",),
    ),
    Dataset(
        "aime24", "math", math_sets.aime24,
        Hub("math-ai/aime24", "83a7f387baaa524a8bda0022eac0541582297103", {"test": ("test-*.parquet",)}),
        ("problem|Problem|question", "answer|Answer|solution|Solution"), benchmarks=("test",),
    ),
    Dataset(
        "aime25", "math", math_sets.aime25,
        Hub("math-ai/aime25", "563bb8404243c5f09de6ec262f2db674fe5bce9b", {"test": ("test.jsonl",)}),
        ("problem|Problem|question", "answer|Answer|solution|Solution"), benchmarks=("test",),
    ),
    Dataset(
        "amc23", "math", math_sets.amc23,
        Hub("math-ai/amc23", "80815d37005feb82cd7f8fbc6901d5d3eff43057", {"test": ("test-*.parquet",)}),
        ("problem|question", "answer"), benchmarks=("test",),
    ),
    Dataset(
        "olympiadbench", "math", math_sets.olympiadbench,
        Hub("Hothan/OlympiadBench", "91184b52131e7fc9455fef848035173aea8cc01a",
            {"test": ("OlympiadBench/OE_TO_maths_en_COMP/OE_TO_maths_en_COMP.parquet",)}),
        ("question", "final_answer"), benchmarks=("test",),
    ),
)  # fmt: skip

DATASETS: dict[str, Dataset] = {dataset.name: dataset for dataset in _ALL}


def parse(spec: str) -> tuple[Dataset, dict[str, str]]:
    """Splits "apps:split=train,difficulty=introductory" into the dataset and its options.

    Raises:
      DatasetError: an unknown dataset or option, a value that cannot be meant.
    """
    name, _, text = spec.partition(":")
    if name not in DATASETS:
        raise DatasetError(f"unknown dataset {name!r}; known: {', '.join(DATASETS)}")
    dataset, options = DATASETS[name], {}
    known = ("split", *dataset.options)
    for part in filter(None, text.split(",")):
        option, equals, value = (side.strip() for side in part.partition("="))
        if not equals or not value or option not in known or option in options:
            ways = ", ".join(f"{one}=..." for one in known)
            raise DatasetError(f"{spec!r}: {part!r} is not an option of {name}, each once; it has {ways}")
        options[option] = value
    if options.get("split", "all") not in (*dataset.splits, "all"):
        raise DatasetError(f"{spec!r}: {name} has the splits {', '.join(dataset.splits)}; all reads every one")
    try:
        if dataset.check_options:
            dataset.check_options(options)
    except ValueError as problem:
        raise DatasetError(f"{spec!r}: {problem}") from None
    return dataset, options
