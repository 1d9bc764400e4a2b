"""The report: built from files alone, complete, offline, and safe to open whatever a model wrote."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import run_files

from metaagent_x import config, report
from metaagent_x.analysis import beside, html, tree_view
from metaagent_x.analysis.figures import spread
from metaagent_x.analysis.intervals import paired_gain
from metaagent_x.analysis.read import read_run
from metaagent_x.analysis.report import write_report
from metaagent_x.run_folder import RunFolder, RunFolderError


class Page(HTMLParser):
    """Element names, attributes and visible text; fails on elements that are closed in the wrong order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.attributes, self.text, self.ids = [], [], [], [], []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, name, attributes):
        self.elements.append(name)
        self.attributes += [(name, *pair) for pair in attributes]
        self.ids += [v for k, v in attributes if k == "id"]
        if name not in ("meta", "br"):
            self.open.append(name)

    def handle_startendtag(self, name, attributes):
        self.elements.append(name)
        self.attributes += [(name, *pair) for pair in attributes]

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = run_files.write_run(tmp_path_factory.mktemp("runs") / "tiny")
    path = write_report(folder.path)
    return folder, path, Page(path.read_text())


def test_every_section_is_there(finished):
    folder, path, page = finished
    text = "".join(page.text)
    assert path == folder.path / "report.html"
    for heading in ("Accuracy", "Structures that the Designer chose", "Who learned?", "Headroom at the start",
                    "Course of the run", "One rollout tree", "Settings"):  # fmt: skip
        assert heading in text
    assert page.elements.count("svg") == 5


def test_headline_numbers_come_from_the_evaluations(finished):
    folder, _, page = finished
    text = "".join(page.text)
    cold, final = (
        next(e for e in folder.evaluations() if e["name"] == n and e["temperature"] == 1) for n in ("cold", "final")
    )
    assert f"{cold['accuracy']:.1%} → {final['accuracy']:.1%}" in text
    assert f"{100 * (final['accuracy'] - cold['accuracy']):+.1f} points" in text
    swap = next(e for e in folder.evaluations() if e["designer"] == "rl" and e["executor"] == "cold")
    assert f"{swap['accuracy']:.1%}" in text


def test_the_tree_shows_scripts_rewards_turns_and_advantages(finished):
    text = "".join(finished[2].text)
    assert 'answer = ensemble([solver("step by step")] * 3)(task)' in text
    assert "unknown name SOLVE, line 1" in text and "advantage +0.85" in text and "reward 0.25" in text
    assert (
        "Execution 4" in text and "3 calls" in text and "mean log-prob -0.250, stop, weights 64, not trained on" in text
    )


def test_nothing_is_loaded_from_anywhere(finished):
    _, path, page = finished
    text = path.read_text()
    assert not {"script", "link", "img", "iframe", "object", "form"} & set(page.elements)
    # Names of XML namespaces are not addresses.
    links = [v for _, k, v in page.attributes if k in ("src", "href", "xlink:href", "action")]
    assert all(v.startswith("#") for v in links) and "url(http" not in text and "@import" not in text
    assert ("meta", "content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes
    assert len(page.ids) == len(set(page.ids))


def test_figures_follow_the_theme(finished):
    text = finished[1].read_text()
    figures = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert "var(--executor)" in figures and "var(--ink)" in figures and "prefers-color-scheme: dark" in text
    assert not re.findall(r"#[0-9a-f]{6}\b", re.sub(r"#[a-z][0-9a-f]{9,}", "", figures))


def test_hostile_text_stays_text(tmp_path, finished):
    folder = run_files.write_run(tmp_path / "run", steps=4, text=run_files.HOSTILE)
    gate = json.loads((folder.path / "gate.json").read_text())
    folder.write_gate(
        gate | {"message": run_files.HOSTILE, "passed": False, "table": {run_files.HOSTILE: gate["accuracy"]}}
    )
    page = Page(write_report(folder.path).read_text())
    assert set(page.elements) <= set(finished[2].elements)
    assert not [a for a in page.attributes if a[1].startswith("on")]
    assert "</pre><script>alert('run')</script>" in "".join(page.text) and "\u202e" not in "".join(page.text)


def test_a_run_without_steps_has_a_report_too(tmp_path):
    folder = RunFolder(tmp_path / "new", config.base())
    text = "".join(Page(write_report(folder.path).read_text()).text)
    assert "0 of 400 steps so far" in text
    gate = {"accuracy": {"math": 0.9, "code": 0.1}, "valid": 0.5, "table": {"solver": {"math": 1, "code": 0}}}
    folder.write_gate(gate | {"passed": False, "message": "math accuracy 0.90 is above 0.70"})
    text = "".join(Page(write_report(folder.path).read_text()).text)
    assert "Headroom gate not passed: math accuracy 0.90 is above 0.70" in text


@pytest.mark.parametrize("mode", ["strict", "process", None])
def test_how_programs_were_contained_is_said(tmp_path, mode):
    """A run from before the setting was contained by limits only."""
    settings = config.base()
    settings.sandbox = mode or "strict"
    folder = RunFolder(tmp_path / "run", settings)
    if mode is None:
        values = json.loads((folder.path / "config.json").read_text())
        del values["sandbox"]
        (folder.path / "config.json").write_text(json.dumps(values))
    page = write_report(folder.path).read_text()
    assert f"sandbox={mode or 'process'}." in page
    assert ("could have reached what they were judged by" in page) == (mode != "strict")


@pytest.mark.parametrize("steps", [1, 2])
def test_short_runs_have_figures(tmp_path, steps):
    folder = run_files.write_run(tmp_path / "run", steps=steps, stage=1)
    assert Page(write_report(folder.path).read_text()).elements.count("svg") == 5


def test_the_report_is_a_function_of_the_files(finished):
    _, path, _ = finished
    before = path.read_bytes()
    assert write_report(path.parent).read_bytes() == before


@pytest.mark.parametrize(
    ("name", "text"), [("metrics.jsonl", '{"step": 1}\n{"st\n'), ("gate.json", "{"), ("config.json", "[]")]
)
def test_a_damaged_file_is_named(tmp_path, name, text):
    RunFolder(tmp_path, config.base())
    (tmp_path / name).write_text(text)
    with pytest.raises(RunFolderError, match=re.escape(name)):
        write_report(tmp_path)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match=r"no config\.json"):
        write_report(tmp_path)


def test_the_tree_shown_is_the_one_whose_designs_differ_most():
    rows = [
        {"task_id": t, "role": role, "reward": r}
        for t, role, r in [
            ("a", "designer", 0.5), ("a", "designer", 0.5), ("a", "executor", 0.0), ("a", "executor", 1.0),
            ("b", "designer", 0.25), ("b", "designer", 0.75), ("c", "designer", 0.0), ("c", "designer", 0.5),
            ("c", "executor", 0.0), ("c", "executor", 1.0),
        ]
    ]  # fmt: skip
    assert {r["task_id"] for r in tree_view.telling_tree(rows)} == {"c"}
    assert tree_view.telling_tree([]) == []


def test_markup_escapes_everything_but_itself():
    assert html.tag("p", "a<b", html.tag("i", '"'), class_="x") == '<p class="x">a&lt;b<i>&quot;</i></p>'
    assert html.escape("a\x00b\u200bc\nd") == "a\\u0000b\\u200bc\nd"
    assert html.tag("td", 3, None, open=True, hidden=False) == "<td open>3</td>"


SINGLE = "answer = solver()(task)"


@pytest.fixture(scope="module")
def fixed(tmp_path_factory):
    return run_files.write_fixed_run(tmp_path_factory.mktemp("fixed") / "grpo", SINGLE)


def test_what_needs_a_designer_is_not_on_the_page_of_a_fixed_design(fixed):
    page = Page(write_report(fixed.path).read_text())
    text = "".join(page.text)
    for absent in ("Structures that the Designer chose", "Who learned?", "Valid designs", "Designer learns",
                   "Designer's own choice", "what the Designer wrote"):  # fmt: skip
        assert absent not in text
    assert f"M × N = 1 × 16; fixed design {SINGLE}; seed 0" in text and "grpo: run report" in text
    assert "8 steps, 8,000 sampled tokens; " in text and "so far" not in text, "its limit is of tokens"
    assert "Executor learns" in text
    assert f"Design 1{SINGLE}" in text and page.elements.count("svg") == 3


def test_runs_stand_beside_each_other_over_sampled_tokens(finished, fixed, tmp_path):
    """Final accuracy 0.74 and 0.60 of the same tasks by the same luck: those between are lost, none is won."""
    folder = run_files.write_run(tmp_path / "tiny")
    page = Page(write_report(folder.path, [fixed.path]).read_text())
    text = "".join(page.text)
    assert "Beside other runs" in text and page.elements.count("svg") == 6 and text.count("grpo") >= 2
    luck = np.random.default_rng(0).random(512)
    lost = ((luck >= 0.6) & (luck < 0.74)).mean()
    final = {name: (luck < p).mean() for name, p in (("tiny", 0.74), ("grpo", 0.6))}
    row = next(r for r in re.findall(r"<tr>.*?</tr>", folder.path.joinpath("report.html").read_text()) if "grpo" in r)
    cells = [re.sub("<.*?>", " ", cell).split() for cell in re.findall(r"<t[dh].*?</t[dh]>", row)]
    assert cells[1:5] == [["8"], ["8,000"], [f"{(luck < 0.4).mean():.1%}"], [f"{final['grpo']:.1%}"]]
    assert cells[6][:2] == [f"{-100 * lost:+.1f}", "points"] and final["tiny"] - final["grpo"] == pytest.approx(lost)


def test_a_gain_on_every_task_or_of_one_task_claims_no_certainty():
    none, all_ = ({str(i): outcome for i in range(128)} for outcome in (0, 1))
    shown = [re.sub("<.*?>", "", beside.in_points(paired_gain(*sides).gain)) for sides in ((none, all_), (all_, all_))]
    assert shown == ["+100.0 points [+94.3, +100.0]", "+0.0 points [-2.8, +2.8]"]
    assert re.sub("<.*?>", "", beside.in_points(paired_gain({"a": 0}, {"a": 1}).gain)) == "+100.0 points"


def test_a_curve_is_accuracy_over_the_tokens_sampled_until_then(fixed):
    run = read_run(fixed.path)
    assert run.sampled() == {step: 1000 * step for step in range(9)} and run.tokens == 8000
    assert [tokens for tokens, _ in beside.curve(run, 1.0)] == [0, 4000, 8000]
    assert beside.curve(run, 0.0) == [(8000, run.evaluation("final")["accuracy"])]


def test_runs_with_other_held_out_tasks_are_not_paired_though_their_ids_are_the_same(fixed, tmp_path):
    other = run_files.write_fixed_run(tmp_path / "b" / "grpo", SINGLE, hash="another")
    text = "".join(Page(write_report(other.path, [fixed.path]).read_text()).text)
    assert " points [" not in text.partition("Beside other runs")[2].partition("Headroom")[0]
    assert "against b/grpo" in text and "fixed0/grpo" in text


def test_the_command_writes_the_page_and_names_what_is_no_run(fixed, tmp_path, capsys):
    assert report.main([str(fixed.path), "--beside", str(fixed.path)]) == 0
    assert capsys.readouterr().out.strip() == str(fixed.path / "report.html")
    assert "Beside other runs" in (fixed.path / "report.html").read_text()
    assert report.main([str(fixed.path), "--beside", str(tmp_path)]) == 2
    assert f"bad input: {tmp_path} is not a run folder" in capsys.readouterr().err
    assert report.main([str(fixed.path)]) == 0 and "Beside" not in (fixed.path / "report.html").read_text()


@pytest.mark.parametrize("wanted", [[0.5, 0.99, 0.995, 1.0], [0.0, 0.01, 0.5], [0.2]])
def test_labels_at_the_edge_keep_their_distance_and_stay_in_the_figure(wanted):
    at = spread(np.array(wanted), gap=0.1)
    assert (np.diff(at) >= 0.1 - 1e-9).all() and at.max() <= 1.0
