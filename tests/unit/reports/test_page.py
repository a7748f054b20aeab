"""A report in a real browser, on a phone and on a wide window: what a reader sees, and what hostile text cannot do."""

import os
import re
import subprocess
import sys

import pytest

from common.settings import ROOT
from support import report_runs
from support.looks import WIDTHS, assert_fits
from support.report_runs import HOSTILE

ROWS = "document.querySelectorAll('#rows tr').length"
# As a reader sees it: what turns text or cannot be seen stands there by its number.
SEEN = re.sub(r"[\u2028\u2029\u202e\u202c\x00\x1b]", lambda odd: f"U+{ord(odd[0]):04X}", HOSTILE)


def write(folder, graded=None, failed=report_runs.FAILED):
    run = report_runs.evaluation(folder / "tiny", graded, failed)
    command = [sys.executable, str(ROOT / "scripts" / "report.py")]
    ended = subprocess.run(command, env=os.environ | {"RUN": str(run)}, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return f"file://{run}/report.html"


@pytest.fixture(scope="module")
def report(browser, tmp_path_factory):
    return write(tmp_path_factory.mktemp("page"))


@pytest.fixture
def open_page(browser):
    """open_page(width, address): a page that has no errors and is closed at the end of the test."""
    pages = []

    def open_at(width, address):
        pages.append(browser.page(width))
        pages[-1].open(address)
        return pages[-1]

    yield open_at
    for page in pages:
        assert page.errors == [] and page.run("window.harmed") is None
        page.close()


@pytest.fixture(params=WIDTHS)
def page(open_page, report, request):
    page = open_page(request.param, report)
    yield page
    assert page.requests == [report], "a request left the page"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_and_can_be_read_on_its_first_screen_and_in_every_sample(page, dark):
    page.prefer(dark)
    assert_fits(page)
    for nth in range(9):
        page.run(f"openSample({nth})")
        assert_fits(page)
        page.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        assert_fits(page)


def test_the_summary_shows_the_rate_with_its_interval(page):
    assert page.text("#rate .value") == "28.6 %" and "95 % interval" in page.text("#rate")
    assert "7 samples with a reward, of 4 rows" in page.text("#rate")
    assert page.run("document.querySelectorAll('#plots .plot svg circle').length") > 0


def test_filters_narrow_the_table_and_can_be_cleared(page):
    assert page.run(ROWS) == 9
    page.choose("#reward", "0")
    assert page.run(ROWS) == 5 and page.text("#count").startswith("5 of 9 samples; 0 of 5 with a reward passed")
    page.choose("#status", "truncated")
    assert page.run(ROWS) == 1
    page.click("#reset")
    assert page.run(ROWS) == 9
    page.choose("#category", HOSTILE)
    assert page.run(ROWS) == 2
    page.click("#reset")
    page.choose("#reward", "none")
    assert page.run(ROWS) == 2 and "with a reward" not in page.text("#count")


@pytest.mark.parametrize(
    ("text", "count"),
    [("EMAIL_DELETE", 4), ("00000487", 3), ("</script>", 5), ("\u202edesrever", 5), ("nothing differs", 2), (".*", 0)],
)
def test_text_is_sought_in_tasks_calls_results_and_reasons(page, text, count):
    page.type("#text", text)
    page.until("document.getElementById('reset').hidden === false")
    assert page.run(ROWS) == count
    assert page.run("document.getElementById('none').hidden") is (count > 0)


def test_a_sample_opens_with_its_calls_results_difference_and_reason(page):
    page.click("#row-1 button")
    page.until("document.getElementById('view').open")
    page.run("document.querySelectorAll('#trajectory details').forEach((each) => { each.open = true; })")
    shown = page.text("#trajectory")
    assert "emails row 00000487 deleted, ground truth keeps it" in shown and "changes emails row 00000487" in shown
    assert "email_search_emails" in shown and "email_delete_email" in shown and "row deleted" in shown
    assert "Email deleted successfully." in shown and "Today is Thursday." in shown
    page.key("Escape")
    page.until("!document.getElementById('view').open")
    assert page.run("document.activeElement.closest('tr').id") == "row-1", "the focus goes back to where it was"


def test_hostile_text_stays_text(page):
    assert page.text("#row-2 .task button") == SEEN
    page.run("openSample(1)")
    assert SEEN in page.text("#trajectory")
    page.run("openSample(4)")
    assert page.text(".call .code") == SEEN
    page.run("openSample(8)")
    assert SEEN in page.text(".why")
    assert page.run("document.querySelectorAll('img, #trajectory svg, #trajectory script, iframe').length") == 0
    page.click("#close")
    # Whatever gets into the page by another way is shut in by its policy.
    page.run("document.body.insertAdjacentHTML('beforeend', \"<p onclick='window.harmed=1' id='trap'>x</p>\")")
    page.click("#trap")
    refused = [error for error in page.errors if "Content Security Policy" in error]
    assert refused and page.run("window.harmed") is None
    page.errors[:] = [error for error in page.errors if error not in refused]


def test_a_huge_text_is_shown_in_parts(page):
    page.run("openSample(3)")
    assert len(page.text("#trajectory")) < 10_000
    while page.run("document.querySelectorAll('.clip').length"):
        page.click(".clip")
    assert "y" * 100_000 in page.text("#trajectory")


def test_the_keyboard_walks_through_samples(page):
    page.run("document.querySelector('#row-0 button').focus()")
    page.key("Enter")
    page.until("location.hash === '#sample-0'")
    page.key("ArrowRight")
    page.until("location.hash === '#sample-1'")
    page.key("ArrowLeft")
    page.until("location.hash === '#sample-0'")
    assert page.run("document.activeElement.closest('dialog') !== null")
    page.key("Escape")
    page.until("!document.getElementById('view').open")


def test_the_list_to_sort_by_sorts(page):
    page.choose("#order", "reward down")
    rewards = page.run("[...document.querySelectorAll('#rows td:first-child')].map((each) => each.innerText)")
    assert rewards == ["1", "1", "0", "0", "0", "0", "0", "none", "none"]


def test_a_heads_click_sorts_and_a_second_one_turns_it(open_page, report):
    page = open_page(1400, report)
    seconds = "[...document.querySelectorAll('#rows td:last-child')].map((each) => each.innerText)"
    page.click('[data-key="seconds"] button')
    assert page.run(seconds) == ["1.5"] * 7 + ["9"] * 2
    assert page.run("document.querySelector('[data-key=\"seconds\"]').ariaSort") == "ascending"
    page.click('[data-key="seconds"] button')
    assert page.run(seconds) == ["9"] * 2 + ["1.5"] * 7
    page.click("#plots .plot button")
    assert page.run("document.getElementById('category').value") != ""


def test_a_link_to_a_sample_opens_it(open_page, report):
    page = open_page(WIDTHS[0], f"{report}#sample-4")
    assert page.run("document.getElementById('view').open") and "row 102" in page.text("#view-title")


def test_many_large_samples_stay_usable(open_page, tmp_path):
    """As many as a split has, four tries each, 20 KB of trajectory: drawn in parts, found by their text."""
    filler = "a long answer, with nothing in it. " * 600
    graded = [
        report_runs.sample(row, repeat, 1.0, [report_runs.message(f"needle-{row}-{repeat} {filler}")], calls=())
        for row in range(545)
        for repeat in range(4)
    ]  # fmt: skip
    page = open_page(1400, write(tmp_path, graded, []))
    assert page.run(ROWS) == 100 and page.text("#count").startswith("2,180 of 2,180 samples")
    page.click("#more")
    assert page.run(ROWS) == 200
    page.type("#text", "NEEDLE-544-3")
    page.until(f"{ROWS} === 1")
    page.click("#rows button")
    assert "needle-544-3" in page.text("#trajectory")
