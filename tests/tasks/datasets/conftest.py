import json
import pathlib

import pytest

DATA = pathlib.Path(__file__).resolve().parents[4] / "shared" / "data"


@pytest.fixture
def write(tmp_path):
    """Writes rows as a JSONL file and gives its path."""

    def to_file(*rows, name="rows.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
        return str(path)

    return to_file


@pytest.fixture
def real():
    """The folder of a dataset's real rows."""

    def folder(name):
        if not DATA.is_dir():
            pytest.skip(f"no real rows at {DATA}")
        return DATA / name

    return folder
