"""The notebook runs from a clean kernel, top to bottom: with the run that it makes itself, and with a given one."""

import json
import re
import shutil
import sys
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from metaagent_x.analysis.executions import of_traces
from metaagent_x.analysis.structures import FOLDED, distribution

WHY = "is not installed (requirements-dev.txt)"
nbformat = pytest.importorskip("nbformat", reason=f"nbformat {WHY}")
nbclient = pytest.importorskip("nbclient", reason=f"nbclient {WHY}")
pytest.importorskip("pandas", reason=f"pandas {WHY}")
ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "notebooks" / "structure_distribution.ipynb"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of the notebook's own kind, a short one."""
    sys.path.insert(0, str(NOTEBOOK.parent))
    try:
        import scripted_run
    finally:
        sys.path.pop(0)
    return scripted_run.make(tmp_path_factory.mktemp("notebook") / "short", steps=8, held_out=8, say=lambda _: None)


def executed():
    """Its code cells after a run in a kernel of this interpreter."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        assert not cell.get("outputs"), "the notebook is kept without outputs"
    place = {"metadata": {"path": str(NOTEBOOK.parent)}}
    nbclient.NotebookClient(notebook, timeout=170, kernel_name="python3", resources=place).execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(cells, kind):
    return [o["data"][kind] for cell in cells for o in cell.outputs if kind in o.get("data", {})]


def test_it_makes_a_run_of_its_own_and_shows_every_table_and_figure(monkeypatch):
    monkeypatch.delenv("METAAGENT_X_RUN", raising=False)
    cells = executed()
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert len(outputs(cells, "image/png")) == 2 and len(outputs(cells, "text/html")) == 8
    said = "".join(o.get("text", "") for cell in cells for o in cell.outputs)
    assert "scripted: 24 steps, 4 tasks a step, M x N = 4 x 2, stages of 6" in said
    assert "Warning" not in said


def test_its_shares_of_a_given_run_are_those_of_the_analysis(run, monkeypatch):
    monkeypatch.setenv("METAAGENT_X_RUN", str(run))
    tables = outputs(executed(), "text/html")
    played = of_traces(sorted((run / "traces").glob("*.parquet")), executions=2).executions
    played = played.where(played.step > 6)
    shown = next(t for t in tables if "reflection" in t)
    for benchmark in ("tiny_code", "tiny_math"):
        found = distribution(played.where(played.benchmark == benchmark), folded=True)
        row = re.search(rf">{benchmark}</th>(.*?)</tr>", shown, re.DOTALL)
        assert row is not None
        percents = [float(p) / 100 for p in re.findall(r">([\d.]+)%</td>", row[1])]
        valid = 1 - found.invalid.value  # the notebook's shares are of all executions, invalid ones too
        expected = [found.shares[name].value * valid for name in FOLDED] + [found.invalid.value]
        assert percents == pytest.approx(expected, abs=0.00051)


def test_a_run_without_a_designer_and_traces_of_an_earlier_version_are_shown_too(run, tmp_path, monkeypatch):
    """The final evaluation that counts is the latest: it solves everything, so no task is lost."""
    alone = shutil.copytree(run, tmp_path / "alone")
    for file in (alone / "traces").glob("*.parquet"):
        table = pq.read_table(file)
        table = table.filter(pc.equal(table["role"], "executor")).drop_columns(["difficulty", "completion_tokens"])
        pq.write_table(table, file)
    records = [json.loads(line) for line in (alone / "evaluations.jsonl").read_text().splitlines()]
    final = next(r for r in records if r["name"] == "final" and r["temperature"] == 1)
    later = final | {"outcomes": dict.fromkeys(final["outcomes"], 1)}
    (alone / "evaluations.jsonl").write_text("".join(json.dumps(r) + "\n" for r in [*records, later]))
    monkeypatch.setenv("METAAGENT_X_RUN", str(alone))
    tables = outputs(executed(), "text/html")
    assert any("tokens per solved" in t for t in tables)
    assert "newly lost" not in next(t for t in tables if "newly solved" in t)
