"""Rows of local files: JSONL (also gzipped), JSON, Parquet, Arrow and TFDS folders, one row at a time.

Nothing here knows a dataset. Files are streamed, but for `.json`, which must be parsed whole.
"""

from __future__ import annotations

import dataclasses
import datetime
import gzip
import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet", ".arrow")
BATCH_ROWS = 64  # of a columnar file in memory at once: rows of code datasets hold megabytes
NOT_ROWS = (
    "dataset.json",
    "dataset_info.json",
    "dataset_infos.json",
    "dataset_dict.json",
    "state.json",
    "features.json",
)


class DatasetError(ValueError):
    """A dataset that cannot be used as asked. The message names the dataset, the file, the line and the field."""


class Dropped(Exception):
    """A sound row that cannot be graded; the argument is the reason under which it is counted."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One row and where it stands. Its readers check what they read, so that no odd value reaches a task.

    Attributes:
      place: "polaris: /data/train.jsonl line 17", for messages.
      number: position among all rows read, from 0; part of the task id where rows have no id of their own.
      values: what the row holds, by field.
      split: the split that it belongs to.
    """

    place: str
    number: int
    values: Mapping[str, Any]
    split: str = ""

    def error(self, field: str, problem: str) -> DatasetError:
        return DatasetError(f"{self.place}: field {field!r}: {problem}")

    def has(self, *fields: str) -> bool:
        """True if one of the fields is there and is not null."""
        return any(self.values.get(field) is not None for field in fields)

    def text(self, *fields: str) -> str:
        """The first of the fields that is there, which must be a non-empty string."""
        for field in fields:
            if field in self.values:
                value = self.as_text(field, self.values[field])
                if not value.strip():
                    raise self.error(field, "is empty")
                return value
        raise self.error(fields[0], f"is missing; the row has {', '.join(sorted(self.values)) or 'no fields'}")

    def optional_text(self, field: str) -> str:
        """A string, or "" for a field that is missing or null."""
        return self.as_text(field, self.values[field]) if self.has(field) else ""

    def as_text(self, field: str, value: Any) -> str:
        """A value inside a field, which must be text that UTF-8 can hold."""
        if not isinstance(value, str):
            raise self.error(field, f"is {type(value).__name__}, it must be text")
        try:
            if not value.isascii():
                value.encode()
        except UnicodeEncodeError:
            raise self.error(field, "holds half a character (a lone surrogate), it must be text") from None
        return value

    def texts(self, field: str) -> list[str]:
        """A list of strings; a single string stands for a list of one."""
        value = self.values.get(field)
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list):
            raise self.error(field, f"is {type(value).__name__}, it must be a list of texts")
        return [self.as_text(field, item) for item in items]

    def answer(self, *fields: str) -> str:
        """The first of the fields that holds something, as text; a number is accepted, 36.0 as "36".

        Raises:
          DatasetError: "a row without an answer".
        """
        for field in fields:
            value = self.values.get(field)
            if value is None or (isinstance(value, str) and not value.strip()):
                continue
            if isinstance(value, float) and math.isfinite(value):
                value = int(value) if value.is_integer() else repr(value)
            if isinstance(value, bool) or not isinstance(value, str | int):
                raise self.error(field, f"is {type(value).__name__}, it must be text or a number")
            try:
                return self.as_text(field, str(value)).strip()
            except ValueError as problem:  # an integer of more than 4,300 digits
                raise self.error(field, f"cannot be read: {problem}") from None
        raise self.error(fields[0], "is missing or empty: a row without an answer")

    def ident(self, *fields: str) -> str:
        """The row's own id, or its number where it has none."""
        for field in fields:
            if self.has(field):
                value = self.values[field]
                if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
                    raise self.error(field, f"is {value!r:.40}, it must be a name or a number")
                return self.as_text(field, str(value).strip())
        return str(self.number)

    def flag(self, field: str) -> bool:
        """A boolean, False for a field that is missing or null."""
        value = self.values.get(field)
        if value is not None and not isinstance(value, bool):
            raise self.error(field, f"is {type(value).__name__}, it must be true or false")
        return bool(value)

    def number_of(self, field: str, value: Any) -> float:
        """A value inside a field as a number of at least 0; 0 for null."""
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**63:
            raise self.error(field, f"is {value!r:.40}, it must be a number of at least 0")
        return value

    def plain(self, *fields: str) -> dict[str, Any]:
        """Those of the fields that hold something, for metadata; they must hold text, numbers or booleans."""
        for field in (field for field in fields if self.has(field)):
            if not isinstance(self.values[field], str | int | float):
                raise self.error(field, f"is {type(self.values[field]).__name__}, it must be text or a number")
        return {field: self.values[field] for field in fields if self.has(field)}


def is_readable(file: pathlib.Path) -> bool:
    """True for a file of rows, by its name."""
    return file.name.endswith(SUFFIXES) and file.name not in NOT_ROWS and not file.name.startswith(".")


def is_tfds(path: pathlib.Path) -> bool:
    """True for a folder that a TFDS builder prepared (NAME/VERSION or NAME/CONFIG/VERSION)."""
    return (path / "dataset_info.json").is_file() and (path / "features.json").is_file()


def read(name: str, file: pathlib.Path, unused: Sequence[str] = ()) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of one file, in order, each with its place in the file ("line 3", "row 3").

    Args:
      name: of the dataset, for messages.
      unused: columns that columnar files need not decode.

    Raises:
      DatasetError: unreadable file or row; names the place.
    """
    if file.name.endswith((".jsonl", ".jsonl.gz")):
        rows = _json_lines(name, file)
    elif file.suffix == ".json":
        rows = _json_file(name, file)
    else:
        rows = _columnar(name, file, unused)
    for where, values in rows:
        if not isinstance(values, dict):
            raise DatasetError(f"{name}: {file} {where}: holds {type(values).__name__}, it must be an object")
        yield where, values


def parse_json(text: str) -> Any:
    """JSON, with one exception for all that can be wrong with it. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _json_lines(name: str, file: pathlib.Path) -> Iterator[tuple[str, Any]]:
    number = 0
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
            # Bytes end at "\n" only: JSON text may hold U+2028, at which text would be cut too.
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"line {number}", parse_json(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except json.JSONDecodeError as problem:
        raise DatasetError(f"{name}: {file} line {number}: unreadable JSON: {problem}") from None
    except (OSError, EOFError, ValueError) as problem:
        raise DatasetError(f"{name}: {file} cannot be read after line {max(number - 1, 0)}: {problem}") from None


def _json_file(name: str, file: pathlib.Path) -> Iterator[tuple[str, Any]]:
    """A list of rows, or one row a line under the wrong name."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        lines = text.lstrip().startswith("{")
        rows = [] if lines else parse_json(text)
    except json.JSONDecodeError as problem:
        raise DatasetError(f"{name}: {file} line {problem.lineno}: unreadable JSON: {problem}") from None
    except (OSError, ValueError) as problem:
        raise DatasetError(f"{name}: {file} cannot be read: {problem}") from None
    if lines:
        yield from _json_lines(name, file)
        return
    if not isinstance(rows, list):
        raise DatasetError(f"{name}: {file} holds {type(rows).__name__}; a .json file must hold a list of rows")
    yield from ((f"row {number}", values) for number, values in enumerate(rows, 1))


def _columnar(name: str, file: pathlib.Path, unused: Sequence[str]) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa  # here: most readers never need it

    number = 0
    try:
        for batch in _batches(file, unused):
            for values in batch.to_pylist():
                number += 1
                yield f"row {number}", {key: _plain_time(value) for key, value in values.items()}
    except (OSError, pa.ArrowException, UnicodeDecodeError) as problem:
        said = " ".join(str(problem).split())
        raise DatasetError(f"{name}: {file} cannot be read after row {number}: {said}") from None


def _batches(file: pathlib.Path, unused: Sequence[str]) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet

    if file.suffix == ".parquet":
        with pyarrow.parquet.ParquetFile(file) as table:
            columns = [column for column in table.schema_arrow.names if column not in unused]
            yield from table.iter_batches(BATCH_ROWS, columns=columns)
        return
    with pa.memory_map(str(file)) as source:
        try:  # Arrow files come in two forms under one name: for random access, or as a stream
            reader = pa.ipc.open_file(source)
            batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        except pa.ArrowInvalid:
            source.seek(0)
            batches = iter(pa.ipc.open_stream(source))
        for batch in batches:
            batch = batch.drop_columns([column for column in unused if column in batch.schema.names])
            yield from (batch.slice(start, BATCH_ROWS) for start in range(0, batch.num_rows, BATCH_ROWS))


def _plain_time(value: Any) -> Any:
    """JSON has no dates: a column of dates reads as the text that JSONL files give."""
    return value.isoformat() if isinstance(value, datetime.date) else value


def tfds_splits(name: str, folder: pathlib.Path) -> list[str]:
    """The splits of a TFDS folder."""
    return list(_tfds_builder(name, folder).info.splits)


def read_tfds(name: str, folder: pathlib.Path, split: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of one split of a TFDS folder, read by random access from its ArrayRecord files, without TensorFlow."""
    source = _tfds_builder(name, folder).as_data_source(split)
    for number in range(len(source)):
        yield f"{split} row {number + 1}", _from_tfds(f"{name}: {folder} {split} row {number + 1}", source[number])


def _tfds_builder(name: str, folder: pathlib.Path) -> Any:
    try:
        import tensorflow_datasets as tfds
    except ImportError as problem:
        raise DatasetError(
            f"{name}: {folder} is a TFDS folder; tensorflow-datasets cannot be imported: {problem}"
        ) from None
    try:
        builder = tfds.builder_from_directory(folder)
    except Exception as problem:  # the library documents no exceptions
        raise DatasetError(f"{name}: {folder} is not a readable TFDS folder: {problem!r}") from None
    form = builder.info.file_format
    if form is None or form.value != "array_record":
        raise DatasetError(
            f"{name}: {folder} holds {form.value if form else 'unknown'} files, which only TensorFlow can read; "
            "prepare the builder with file_format='array_record'"
        )
    return builder


def _from_tfds(place: str, value: Any) -> Any:
    """TFDS gives bytes for text, and NumPy values for the rest."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as problem:
            raise DatasetError(f"{place}: text is not UTF-8: {problem}") from None
    if isinstance(value, Mapping):
        return {key: _from_tfds(place, item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # arrays and scalars of NumPy
        value = value.tolist()
        return _from_tfds(place, value) if isinstance(value, bytes | list) else value
    if isinstance(value, list):
        return [_from_tfds(place, item) for item in value]
    return value
