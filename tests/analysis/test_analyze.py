"""The analysis as a whole: every section from files alone, files beside the page, bad input."""

import csv
import json
import re
import xml.etree.ElementTree as ElementTree

import pytest
import run_files
from test_evaluations import row, write
from test_report import Page

from metaagent_x import analyze


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three seeds of 4 x 4 and one run of 8 x 1."""
    runs, out = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("out")
    for seed in range(3):
        run_files.write_run(runs / f"seed{seed}", steps=12, stage=4, seed=seed, lift=0.02 * seed)
    run_files.write_run(runs / "other", steps=12, stage=4, lift=-0.1, designs=8, executions=1)
    folders = [str(runs / name) for name in ("seed0", "seed1", "seed2", "other")]
    assert analyze.main([*folders, "--out", str(out)]) == 0
    return runs, out, Page((out / "index.html").read_text())


def rows(out, name):
    return list(csv.DictReader((out / "tables" / f"{name}.csv").read_text().splitlines()))


@pytest.mark.slow
def test_every_section_is_there(made):
    text = "".join(made[2].text)
    for heading in ("What was read", "Structures", "Learning curves", "Who improved?", "Variants", "Credit", "Cost"):
        assert heading in text
    assert "3 seeds" in text and "published" in text and "M × N = 8 × 1" in text


@pytest.mark.slow
def test_every_figure_is_on_the_page_and_beside_it_in_two_forms(made):
    _, out, page = made
    names = {p.stem for p in (out / "figures").iterdir()}
    assert page.elements.count("svg") == len(names) >= 9
    for name in names:
        svg, png = (out / "figures" / f"{name}.{ending}" for ending in ("svg", "png"))
        assert png.read_bytes().startswith(b"\x89PNG")
        text = svg.read_text()
        ElementTree.fromstring(text)
        assert "#0a0b" not in text and "var(--" not in text and "#ffffff" in text


@pytest.mark.slow
def test_every_table_is_on_the_page_and_beside_it_in_two_forms(made):
    _, out, page = made
    markdown = sorted((out / "tables").glob("*.md"))
    assert len(markdown) == len(list((out / "tables").glob("*.csv"))) == page.elements.count("table")
    text = "".join(page.text)
    for path in markdown:
        assert path.read_text().splitlines()[0].removeprefix("### ") in text


@pytest.mark.slow
def test_the_tables_hold_what_the_files_say(made):
    runs, out, _ = made
    record = [json.loads(line) for line in (runs / "other" / "evaluations.jsonl").read_text().splitlines()]
    final = next(r for r in record if r["name"] == "final" and r["temperature"] == 1)
    other = rows(out, "ablation_T1")[1]
    assert float(other["accuracy"]) == pytest.approx(final["accuracy"])
    assert other["interval over"] == "512 tasks" and "aime24 33.3" in other["published, Qwen3-8B, %"]
    attributed = {row["from, to"]: row for row in rows(out, "attribution_folded")}
    own = attributed["M × N = 8 × 1: cold to final, T = 1"]
    cold = next(r for r in record if r["name"] == "cold" and r["temperature"] == 1)
    solved = [t for t, right in final["outcomes"].items() if right and not cold["outcomes"][t]]
    same = sum(final["structures_by_task"][t] == cold["structures_by_task"][t] for t in solved)
    assert (int(own["solved, same"]), int(own["solved, other"])) == (same, len(solved) - same)


@pytest.mark.slow
def test_nothing_is_loaded_from_anywhere(made):
    _, out, page = made
    text = (out / "index.html").read_text()
    assert not {"script", "link", "img", "iframe", "object", "form"} & set(page.elements)
    links = [v for _, k, v in page.attributes if k in ("src", "href", "xlink:href", "action")]
    assert all(v.startswith("#") for v in links) and "url(http" not in text and "@import" not in text
    assert len(page.ids) == len(set(page.ids))
    figures = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert not re.findall(r"#[0-9a-f]{6}\b", re.sub(r"#[a-z][0-9a-f]{9,}", "", figures))


@pytest.mark.slow
def test_the_same_files_give_the_same_page(made, tmp_path):
    runs, out, _ = made
    folders = [str(runs / name) for name in ("seed0", "seed1", "seed2", "other")]
    assert analyze.main([*folders, "--out", str(tmp_path)]) == 0
    for path in out.rglob("*.*"):
        assert (tmp_path / path.relative_to(out)).read_bytes() == path.read_bytes(), path.name


def test_a_run_that_has_hardly_begun_and_hostile_text_are_no_obstacle(tmp_path):
    run_files.write_run(tmp_path / "run", steps=1, stage=1, text=run_files.HOSTILE)
    (tmp_path / "run" / "evaluations.jsonl").unlink()
    assert analyze.main([str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    page = Page((tmp_path / "out" / "index.html").read_text())
    assert "script" not in page.elements and not [a for a in page.attributes if a[1].startswith("on")]


def test_evaluations_of_two_checkpoints_are_attributed_too(tmp_path):
    before = write(tmp_path / "cold", *(row(f"aime24/{i}", i < 2) for i in range(6)))
    after = write(tmp_path / "rl", *(row(f"aime24/{i}", i < 4, structure="single" if i == 3 else "reflection")
                                     for i in range(6)))  # fmt: skip
    assert analyze.main([str(before), str(after), "--out", str(tmp_path / "out")]) == 0
    found = rows(tmp_path / "out", "attribution_folded")[0]
    assert found["from, to"] == "aime24: cold to rl, metaagent_x"
    assert [found[k] for k in ("solved, same", "solved, other", "lost, same", "lost, other")] == ["1", "1", "0", "0"]
    right = [(row["method"], row["aime24"]) for row in rows(tmp_path / "out", "accuracy")]
    assert right[:2] == [("metaagent_x", str(2 / 6)), ("metaagent_x", str(4 / 6))]
    assert ("MaAS, Qwen3-8B", "45.80") in right and ("MetaAgent-X RL, Qwen3-4B", "33.33") in right
    table = (tmp_path / "out" / "tables" / "structures_folded.md").read_text()
    assert "| published, Qwen3-8B after RL | 18.9 % | 70.0 % | 11.1 % |" in table


def test_the_papers_average_stands_beside_ours_where_all_its_benchmarks_were_played(tmp_path):
    names = ("aime24", "aime25", "apps", "code_contests", "livecodebench", "olympiadbench")
    right = dict(zip(names, (0, 1, 1, 1, 1, 0), strict=True))
    write(tmp_path / "all", *(row(f"{name}/1", bool(right[name]), benchmark=name) for name in names))
    assert analyze.main([str(tmp_path / "all"), "--out", str(tmp_path / "out")]) == 0
    found = {line["method"]: line["average"] for line in rows(tmp_path / "out", "accuracy")}
    assert float(found["metaagent_x"]) == pytest.approx(4 / 6)
    assert (found["MetaAgent-X RL, Qwen3-8B"], found["MaAS, Qwen3-8B"]) == ("38.33*", "32.22")


def test_bad_input_is_one_line_and_exit_code_2(tmp_path, capsys):
    out = ["--out", str(tmp_path / "out")]
    assert analyze.main([str(tmp_path), *out]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    run_files.write_run(tmp_path / "run", steps=1, stage=1)
    (tmp_path / "run" / "traces" / "step_000001.parquet").write_bytes(b"PAR1 half")
    assert analyze.main([str(tmp_path / "run"), *out]) == 2
    assert "step_000001.parquet" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_exit_code_1(tmp_path, capsys):
    run_files.write_run(tmp_path / "run", steps=1, stage=1)
    (tmp_path / "file").write_text("")
    assert analyze.main([str(tmp_path / "run"), "--out", str(tmp_path / "file")]) == 1
    assert f"write {tmp_path / 'file'}" in capsys.readouterr().err


def test_an_interrupted_analysis_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(analyze, "gather", interrupted)
    assert analyze.main([str(tmp_path), "--out", str(tmp_path / "out")]) == 3
    assert "the same command starts again" in capsys.readouterr().err
