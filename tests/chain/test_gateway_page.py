"""The Gateway's page in a real browser, in front of a scripted environment: figures that move, and hostile text."""

import pytest

from proofs.rig import SECRET_PREFIX, secret
from support.looks import WIDTHS, assert_fits
from support.scripted_environment import RESPONSE, gateway_alone

HOSTILE = "</script><img src=x onerror='window.harmed=1'>\u202e"
RUNNING = 2


def figure(name):
    """The figure of a tile, as an expression."""
    label = f"[...document.querySelectorAll('#now dt')].find((label) => label.innerText === '{name}')"
    return f"{label}?.nextSibling.firstChild.innerText"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory, example_rows):
    changes = {"GATEWAY_TOKEN": secret(), "WORKPLACE_ASSISTANT_MAX_CONCURRENCY": str(RUNNING)}
    with gateway_alone(tmp_path_factory.mktemp("page"), example_rows[0], **changes) as gateway:
        yield gateway


@pytest.fixture
def scripted(gateway):
    return gateway.pairs[0]


@pytest.fixture(params=WIDTHS)
def page(browser, gateway, scripted, request):
    gateway.renew()
    opened = browser.page(request.param)
    opened.open(f"{gateway.url}/")
    yield opened
    scripted.gone.set()
    gateway.wait_released()
    assert {url.removeprefix(gateway.url) for url in opened.requests} == {"/", "/status.json"}
    assert opened.errors == [] and opened.run("window.harmed") is None
    opened.close()


def test_figures_move_as_trials_wait_run_and_end(page, gateway, scripted):
    page.until(f"{figure('Running')} === '0'")
    ended = int(page.run(figure("Ended trials")))
    scripted.run = lambda body: scripted.hang() and (200, body | {"reward": 1.0, "response": RESPONSE})
    ids = [gateway.begin() for _ in range(RUNNING + 3)]
    page.until(f"{figure('Running')} === '{RUNNING}' && {figure('Queued')} === '3'")
    assert f"{RUNNING} running, 3 queued" in page.run("document.title")
    scripted.gone.set()
    assert {gateway.wait(request_id)["reward"] for request_id in ids} == {1.0}
    page.until(f"{figure('Running')} === '0' && {figure('Ended trials')} === '{ended + len(ids)}'")
    assert page.run("document.querySelectorAll('#history .passed').length") > 0
    assert_fits(page)


def test_causes_and_categories_need_the_token_and_stay_text(page, gateway, scripted):
    scripted.run = lambda body: (500, {"detail": HOSTILE})
    gateway.finish(row=gateway.row | {"category": HOSTILE})
    page.until("document.querySelector('#failures .pill')?.innerText === 'agent_error'")
    assert "onerror" not in page.text("body")
    page.type("#token", "wrong")
    page.click("#unlock button")
    page.until("document.getElementById('refused').innerText !== ''")
    page.type("#token", gateway.token)
    page.click("#unlock button")
    page.until("document.getElementById('unlock').hidden")
    assert "<img src=x onerror='window.harmed=1'>" in page.text("#failures")
    assert "</script>" in page.text("#categories")
    assert page.run("document.querySelectorAll('img, main script').length") == 0
    assert SECRET_PREFIX not in page.run("document.documentElement.outerHTML")
    for dark in (False, True):
        page.prefer(dark)
        assert_fits(page)


def test_a_server_that_is_down_is_shown_so(page, scripted):
    page.until("document.getElementById('ready').innerText === 'ready'")
    healthy, scripted.sessions = scripted.sessions, lambda: (500, {})
    page.until("document.getElementById('ready').innerText === 'not ready'")
    page.until("document.querySelector('#servers .bad')?.innerText === 'down'")
    scripted.sessions = healthy
    page.until("document.getElementById('ready').innerText === 'ready'")


def test_a_gateway_that_is_gone_is_shown_so(browser, gateway):  # the last one: it ends the Gateway
    page = browser.page(WIDTHS[0])
    page.open(f"{gateway.url}/")
    page.until("document.getElementById('ready').innerText === 'ready'")
    gateway.down()
    page.until("!document.getElementById('lost').hidden", 20)
    assert "No answer" in page.text("#lost")
    page.close()
