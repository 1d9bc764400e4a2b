"""The command: serving, exporting, and what it refuses."""

import base64
import gzip
import hashlib
import json
import random
import re
import signal
import subprocess
import sys
import urllib.request

import pytest
from rich.console import Console
from viewer_runs import HOSTILE

from metaagent_x import view
from metaagent_x.viewer import pages
from metaagent_x.viewer.answers import Answers
from metaagent_x.viewer.store import Store


def held(page):
    """The answers in an exported file."""
    block = re.search(r'<script type="application/octet-stream" id="answers">([^<]*)</script>', page)
    return json.loads(gzip.decompress(base64.b64decode(block[1])))


def test_an_export_holds_every_page_of_the_chosen_steps_and_no_other(run, tmp_path, capsys):
    file = tmp_path / "out.html"
    assert view.main([str(run), "--export", str(file), "--steps", "1,3"]) == 0
    assert "2 steps" in capsys.readouterr().out
    answers = held(file.read_text())
    assert answers["run"]["steps"] == [1, 3] and answers["1"]["steps"] == [1, 3]
    calls = {a for a in answers if re.fullmatch(r"1/0/\d+/(design|\d+/[\d.]+)", a)}
    assert calls == {
        "1/0/0/design", "1/0/0/0/0.0.0", "1/0/0/0/0.1.0", "1/0/0/0/0.2.0", "1/0/0/1/0", "1/0/0/2/0", "1/0/1/design",
        "1/0/1/0/0", "1/0/1/0/1", "1/0/1/1/0", "1/0/2/design",
    }  # fmt: skip
    assert not [a for a in answers if a.split("/")[0] == "2"]
    assert [s["step"] for s in answers["same/1/0"]["steps"]] == [1, 3]
    assert answers["figure/learning"]["svg"].startswith("<svg")
    assert [p.name for p in tmp_path.iterdir()] == ["out.html"]


def test_an_export_loads_nothing_and_only_our_own_script_and_style_may_act(run, tmp_path):
    file = tmp_path / "out.html"
    assert view.main([str(run), "--export", str(file)]) == 0
    page = file.read_text()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert "unsafe" not in policy and policy.startswith("default-src 'none'") and "http" not in policy
    for name in ('script type="module"', "style"):
        body = re.search(rf"<{name}>(.*?)</{name.split()[0]}>", page, re.S)[1]
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert (
        not re.findall(r"(?:src|href)=\"(?!data:,\")[^#\"$]", page) and "@import" not in page and "import " not in page
    )
    assert "window.hit" not in page and HOSTILE not in page


def test_one_file_is_made_of_modules_whose_names_do_not_collide():
    known = set()
    for name in pages.MODULES:
        text = pages.file(name)[1]
        for names, source in re.findall(r"^import \{([^}]*)\} from \"\./([a-z]+\.js)\";$", text, re.M):
            assert pages.MODULES.index(source) < pages.MODULES.index(name), f"{name} needs {source} before it"
            exported = set(re.findall(r"^export (?:async )?(?:function|const) (\w+)", pages.file(source)[1], re.M))
            assert {n.strip() for n in names.split(",") if n.strip()} <= exported
        own = set(re.findall(r"^(?:export )?(?:async )?(?:function|const|let) (\w+)", text, re.M))
        assert not own & known, f"{name} declares what another module has: {own & known}"
        known |= own
    folder = pages.resources.files("metaagent_x.viewer").joinpath("static")
    assert sorted(pages.MODULES) == sorted(p.name for p in folder.iterdir() if p.name.endswith(".js"))


def test_no_module_turns_a_text_into_markup_or_code():
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|createContextual"
    assert [name for name in pages.MODULES if re.search(ways, pages.file(name)[1])] == []


@pytest.mark.parametrize(
    ("text", "steps"),
    [(None, [9]), ("3", [3]), ("1, 5-8", [1, 5, 7]), ("1-100", [1, 3, 5, 7, 9]), ("9,1,1", [1, 9])],
)  # fmt: skip
def test_steps_are_chosen_by_number_and_by_range(text, steps):
    assert view.chosen(text, [1, 3, 5, 7, 9]) == steps


@pytest.mark.parametrize("text", ["2", "10-20", "a", "1-", "-3", "", "1,,3", "3-1"])
def test_steps_that_name_nothing_are_refused(text):
    with pytest.raises(view.ViewError, match="--steps="):
        view.chosen(text, [1, 3, 5, 7, 9])


def test_what_cannot_be_done_is_said_and_leaves_nothing_behind(run, tmp_path, capsys):
    file = tmp_path / "out.html"

    def refused(*arguments):
        assert view.main([*map(str, arguments)]) == 2 and list(tmp_path.iterdir()) == []
        return capsys.readouterr().err

    assert "no run" in refused(tmp_path)
    assert "more than --max_mb=0.01; name fewer --steps" in refused(run, "--export", file, "--max_mb", 0.01)
    assert "there is no folder" in refused(run, "--export", tmp_path / "gone" / "out.html")
    assert "--steps=7: no trace of 7; there are 1 to 3" in refused(run, "--export", file, "--steps", 7)
    assert "--port=99999" in refused(run, "--port", 99999)
    assert "--export=FILE.html" in refused(run, "--steps", 1)
    assert "no tokenizer.json" in refused(run, "--tokenizer", tmp_path)


def test_the_command_serves_until_it_is_told_to_end(run):
    command = [sys.executable, "-m", "metaagent_x.view", str(run), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    url = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())[0]
    assert json.loads(urllib.request.urlopen(url + "answers/run", timeout=30).read())["steps"] == [1, 2, 3]
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    process.stdout.close()


def test_an_export_that_grows_far_too_large_is_not_read_to_its_end(run, tmp_path, monkeypatch):
    """Pages of 0.3 MB that cannot be packed, of which 0.2 MB are allowed: the second one is one too many."""
    answers, read = Answers(Store(run)), []
    get = answers.get

    def large(address):
        read.append(address)
        return get(address) | {"more": random.Random(len(read)).randbytes(150_000).hex()}

    monkeypatch.setattr(answers, "get", large)
    with pytest.raises(view.ViewError, match=r"1 steps make a file of over .* MB, more than --max_mb=0\.2; name fewer"):
        view.export(answers, tmp_path / "out.html", "1", 0.2, Console())
    assert len(read) <= 6 and list(tmp_path.iterdir()) == []
