"""The viewer in a real browser: clicked through from the start page, offline, with hostile text and damaged files."""

import json
import re

import pytest
from browser import FOUND, QUIET, chromium
from viewer_runs import HOSTILE, play_run, write_run

from metaagent_x import view
from metaagent_x.viewer.answers import Answers
from metaagent_x.viewer.server import serving
from metaagent_x.viewer.store import Store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(FOUND is None, reason="no chromium: the front end is not tried in a browser"),
]


@pytest.fixture(scope="module")
def page():
    with chromium() as tab:
        yield tab


@pytest.fixture(autouse=True)
def quiet(page):
    """No page may complain: no blocked load or style, no exception, no dialog."""
    yield
    said, page.said = page.said, []
    assert [s for s in said if "404" not in s and "422" not in s] == []


@pytest.fixture(scope="module")
def url(server):
    return server.url


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    return play_run(tmp_path_factory.mktemp("played") / "played")


def click_through(page):
    """From the start page down to a call, by the mouse alone; then up again by keys."""
    page.until("document.querySelector('figure svg')")
    assert "Accuracy" in page.text() and "Steps" in page.text()
    page.click("td a.go[href='#/1']")
    assert "Designs and executions" in page.text()
    page.click(".card header a[href='#/1/0']")
    assert "Designs × executions" in page.text() and page.js("document.querySelectorAll('a.cell').length") == 6
    page.click("a.go[href='#/1/0/0']")
    page.until("document.querySelector('svg.graph .call')")
    assert page.js("document.querySelectorAll('svg.graph .call').length") == 5, "a debate of two, and the judge"
    page.click(".choices button:nth-child(2)")
    assert page.js("document.querySelector('.code .code-word').textContent") == "answer"
    page.click("td a.go[href='#/1/0/0/1']")
    assert "Turn 3" in page.text() and "saw the text of 0.0.0 (pass), 0.1.0 (pass)" in page.text()
    page.click(".turn-card a[href='#/1/0/0/1/0.2.0']")
    assert "judge" in page.text() and page.js("document.querySelectorAll('.token.said').length") > 10
    for expected in ("#/1/0/0/1", "#/1/0/0", "#/1/0", "#/1", "#/"):
        page.key("u")
        page.until(f"location.hash === '{expected}' && document.querySelector('#page').dataset.opened === '{expected}'")


def test_every_level_opens_by_clicking_on_a_run_that_was_played(page, played):
    with serving(Answers(Store(played))) as server:
        page.go(server.url)
        click_through(page)
        page.go(server.url + "#/1/1/1/0")
        assert "run_tests" in page.text() and "tester" in page.text()
        page.go(server.url + "#/1/0/3")
        assert page.js("document.querySelectorAll('.code .bad').length") == 1 and "unknown name SOLVE" in page.text()


def test_an_export_opens_from_disk_and_is_clicked_through(page, played, tmp_path):
    file = tmp_path / "run.html"
    assert view.main([str(played), "--export", str(file)]) == 0
    page.go(file.as_uri())
    click_through(page)
    page.go(file.as_uri() + "#/find?structure=debate")
    page.until("document.querySelectorAll('tr.row').length === 4")
    page.go(file.as_uri() + "#/7")
    assert "exported with the steps 1" in page.text()


@pytest.mark.parametrize("exported", [False, True])
def test_hostile_text_stays_text_on_every_page(page, run, url, tmp_path, exported):
    """Of task ids, agents, scripts, prompts, tool runs, verdicts, flags, reasons and alerts."""
    if exported:
        file = tmp_path / "run.html"
        assert view.main([str(run), "--export", str(file), "--steps", "1-3"]) == 0
        url = file.as_uri()
    for address in ("#/", "#/1", "#/1/1", "#/1/1/0", "#/1/1/0/0", "#/1/1/0/0/0", "#/1/1/0/design", "#/compare/1/1/1",
                    "#/find?text=odd", "#/2"):  # fmt: skip
        page.go(url + address)
        page.until("!document.querySelector('figure .note')")
        page.until("document.body.textContent.includes('<script>window.hit=1</script>')")
        shown = page.js("document.body.textContent")
        assert "\\u202e" in shown and "\u202e" not in shown, "what reorders text is shown by its code"
        assert page.js("window.hit === undefined") and page.js("document.querySelectorAll('img, iframe').length") == 0
    assert HOSTILE.split(">")[0] in page.text()


def test_filters_and_order_are_kept_in_the_address(page, url):
    page.go(url + "#/1?structure=single&sort=reward&down=1")
    assert page.js("[...document.querySelectorAll('tr.row td:nth-child(5)')].map((e) => e.textContent)") == [
        "1.00", "1.00", "1.00", "0.00",
    ]  # fmt: skip
    page.js("(() => { const f = document.querySelector('select[name=flag]'); f.value = 'prompt_cut';"
            " f.dispatchEvent(new Event('change')); })()")  # fmt: skip
    assert page.js("document.querySelectorAll('tr.row').length") == 1 and "flag=prompt_cut" in page.js("location.hash")
    page.click("th:nth-child(5) button")
    assert "sort=reward" in page.js("location.hash")


def test_a_search_goes_through_all_steps(page, url):
    page.go(url + "#/find?flag=answer_not_from_agents")
    page.until("document.querySelectorAll('tr.row').length === 3")
    assert "3 found in 3 of 3 steps" in page.text()
    page.js("document.querySelector('input[name=flag]').focus()")
    page.js("document.querySelector('input[name=flag]').select()")
    page.ask("Input.insertText", text="void")
    page.until("document.body.innerText.includes('3 found') && location.hash.includes('flag=void')")
    page.until("[...document.querySelectorAll('tr.row')].every((row) => row.innerText.includes('void'))")


def test_tokens_are_coloured_by_log_prob_difference_and_mask(page, url):
    alphas = "[...document.querySelectorAll('.token.said')].map((e) => Number(e.style.getPropertyValue('--alpha')))"
    page.go(url + "#/1/0/0/0/0.0.0")
    by_logprob = page.js(alphas)
    assert (
        by_logprob[:2] == pytest.approx([0.75 * 0.01 / 5, 0.75 * 0.02 / 5], abs=6e-4) and by_logprob[0] < by_logprob[30]
    )
    page.key("2")
    # Engine minus learner is -0.001, 0, 0.001, ...: full colour at both ends, and the learner's side in its own.
    assert page.js(alphas)[:3] == pytest.approx([0.75, 0.0, 0.75], abs=2e-3)
    less = "[...document.querySelectorAll('.token.said')].slice(0, 3).map((e) => e.classList.contains('less'))"
    assert page.js(less) == [True, False, False] and "by=difference" in page.js("location.hash")
    page.go(url + "#/1/0/1/0/1?by=mask")
    marked = "[...document.querySelectorAll('.token')].filter((e) => Number(e.style.getPropertyValue('--alpha')) > 0)"
    assert page.js(f"{marked}.map((e) => e.textContent).join('')") == "I think \\boxed{6}No, \\boxed{7}"
    page.go(url + "#/1/0/0/design?by=difference")  # the learner did not score it: shown by log-prob
    assert page.js("document.querySelector('[aria-pressed=true]').dataset.mode") == "logprob"
    page.go(url + "#/1/0/1/0/1")
    request = json.loads(page.js("document.querySelector('details pre').textContent"))
    assert (request["seed"], request["top_p"], request["max_tokens"]) == (7, 0.5, 64) and request["prompt"][-1] == 1


def test_keys_walk_along_rows_and_levels(page, url):
    page.go(url + "#/1/0")
    page.key("j")
    page.key("j")
    assert page.js("document.activeElement.getAttribute('href')") == "#/1/0/0/0"
    page.key("Enter")
    page.until("document.querySelector('#page').dataset.opened === '#/1/0/0/0'")
    page.key("]")
    page.until("document.querySelector('#page').dataset.opened === '#/1/0/0/1'")
    page.key("?")
    assert page.js("document.querySelector('dialog').open")
    page.js("document.querySelector('dialog').close()")


def test_a_click_on_the_curve_opens_the_step_there(page, url):
    page.go(url + "#/")
    page.until("document.querySelector('.pointer')")
    page.js("document.querySelector('.pointer').focus()")
    page.key("ArrowRight")
    page.key("ArrowRight")
    assert "step 2" in page.js("document.querySelector('.told').textContent")
    page.key("Enter")
    page.until("document.querySelector('#page').dataset.opened === '#/2'")
    page.go(url + "#/")
    page.until("document.querySelector('.pointer')")
    page.click(".pointer")  # near its left end
    assert page.js("location.hash") == "#/1"


def test_two_steps_stand_side_by_side_on_the_same_task(page, url):
    page.go(url + "#/1/0")
    page.until("[...document.querySelectorAll('a')].some((a) => a.getAttribute('href') === '#/compare/1/0/3')")
    page.click("a[href='#/compare/1/0/3']")
    assert page.js("document.querySelectorAll('table.grid').length") == 2 and "Step 3" in page.text()


def test_a_damaged_step_gives_a_message_and_the_rest_works(page, tmp_path):
    run = write_run(tmp_path / "broken")
    file = run / "traces" / "step_000002.parquet"
    file.write_bytes(file.read_bytes()[:4000])
    (run / "metrics.jsonl").write_text("{}\n{broken\n")
    with serving(Answers(Store(run))) as server:
        page.go(server.url)
        assert "metrics.jsonl, line 2" in page.text()
        page.click("td a.go[href='#/2']")
        assert "cannot read trace step_000002.parquet" in page.text()
        page.go(server.url + "#/find")
        page.until("document.body.innerText.includes('of 3 steps')")
        assert "step_000002.parquet" in page.text() and page.js("document.querySelectorAll('tr.row').length") == 20
        page.go(server.url + "#/3/0/0/0/0.0.0")
        assert page.js("document.querySelectorAll('.token').length") > 10


def test_a_run_is_followed_while_it_is_written(page, tmp_path):
    run = write_run(tmp_path / "live", steps=2)
    with serving(Answers(Store(run))) as server:
        page.go(server.url)
        page.click("#follow")
        page.js("new Promise((done) => setTimeout(done, 500))")
        write_run(run, steps=3)
        (run / "heartbeat.json").write_text('{"step": 4, "phase": "collect"}')
        page.until("document.querySelector(\"td a[href='#/3']\")")
        page.until("document.querySelector('#state').textContent === 'step 4, collect'")
        page.click("#follow")


def test_no_page_is_wider_than_a_laptop_screen_or_a_narrow_one(page, url):
    for width in (1366, 700):
        page.ask("Emulation.setDeviceMetricsOverride", width=width, height=768, deviceScaleFactor=1, mobile=False)
        for address in (
            "#/",
            "#/1",
            "#/1/0",
            "#/1/0/0",
            "#/1/0/0/0",
            "#/1/0/0/0/0.0.0",
            "#/1/1/0/0",
            "#/compare/1/0/3",
        ):
            page.go(url + address)
            page.js("new Promise((done) => setTimeout(done, 200))")
            wide = page.js("document.documentElement.scrollWidth")
            assert wide <= width, f"{address} is {wide} wide at {width}"
    page.ask("Emulation.setDeviceMetricsOverride", width=1366, height=768, deviceScaleFactor=1, mobile=False)


def test_what_the_pages_say_is_readable_in_light_and_dark(page, url):
    """Contrast of body text, notes, links and marks against the paper: at least 4.5 to 1 (WCAG AA)."""
    ask = "['--ink', '--muted', '--executor', '--designer', '--good', '--bad'].concat('--paper')" \
          ".map((n) => getComputedStyle(document.documentElement).getPropertyValue(n).trim())"  # fmt: skip
    for dark in (False, True):
        page.dark(dark)
        page.go(url + "#/1")
        *colours, paper = page.js(ask)
        assert all(re.fullmatch("#[0-9a-f]{6}", c) for c in (*colours, paper))
        assert min(contrast(c, paper) for c in colours) >= 4.5, (dark, colours)
    page.dark(False)


def contrast(one, other):
    def light(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_an_address_that_cannot_be_read_is_said_to_be_none(page, url):
    page.go(url + "#/12/%")
    assert "there is no page at the address #/12/%" in page.text()


def test_following_brings_an_old_start_page_up_to_date_and_leaves_a_search_alone(page, tmp_path):
    run = write_run(tmp_path / "live", steps=2)
    with serving(Answers(Store(run))) as server:
        page.go(server.url)
        write_run(run, steps=3)
        for _ in range(3):  # off and on at once: one loop is left
            page.js("document.querySelector('#follow').click()")
        page.until("document.querySelector(\"td a[href='#/3']\")")
        page.js("location.hash = '#/find'")
        page.until(f"{QUIET} && document.querySelector('.filter')")
        page.js("document.querySelector('.filter').dataset.mine = 1; window.asked = 0; const f = window.fetch;"
                "window.fetch = (a) => { window.asked += String(a).endsWith('pulse'); return f(a); }")  # fmt: skip
        write_run(run, steps=4)
        page.js("new Promise((done) => setTimeout(done, 4500))")
        assert page.js("document.querySelector('.filter').dataset.mine") == "1"
        assert page.js("window.asked") <= 3, "a second loop asks too"
        page.js("document.querySelector('#follow').click()")


def test_gains_are_of_evaluations_on_as_many_tasks(page, tmp_path):
    run = write_run(tmp_path / "run")
    record = json.loads((run / "evaluations.jsonl").read_text().splitlines()[0])
    later = [record | {"name": "stage", "step": 2, "tasks": 1, "accuracy": 0.9}]
    (run / "evaluations.jsonl").write_text("".join(json.dumps(r) + "\n" for r in [record, *later]))
    with serving(Answers(Store(run))) as server:
        page.go(server.url)
        assert "step 0, 2 tasks" in page.js("document.querySelector('.tiles').innerText")
