"""What the Gateway's page reads: nothing beyond /readyz and /metrics without the token."""

from types import SimpleNamespace

import httpx
import pytest

from gateway import page, routes
from gateway.metrics import Metrics
from gateway.trial import Outcome, Status, failed
from support.served import served

TOKEN = "token-that-nobody-may-see"
CAUSE = "words of an endpoint"
STATE = {
    "ready": True,
    "service_epoch": "e",
    "active_trials": 5,
    "terminal_trials": 7,
    "open_sessions": 3,
    "servers": {"agent": {"url": "http://a", "up": True}, "resource": {"url": "http://b", "up": False}},
}


def ask(token, path="/status.json", method="GET", given=None):
    """The answer of the page's routes behind a token."""
    trials = SimpleNamespace(metrics=Metrics(), queued=lambda: 2)
    trials.metrics.ended(failed("agent_error", "run_failed", CAUSE), 1.5, "secret category")
    trials.metrics.ended(Outcome(Status.COMPLETED, 1.0), 0.5, "secret category")
    settings = SimpleNamespace(WORKPLACE_ASSISTANT_MAX_CONCURRENCY=8, GATEWAY_QUEUE_LIMIT=9)
    application = routes.Application(*page.routes(settings, routes.bearer_of(token), trials, lambda: STATE))
    with served(application) as port:
        headers = {"Authorization": given} if given else {}
        return httpx.request(method, f"http://127.0.0.1:{port}{path}", headers=headers, trust_env=False)


def test_it_counts_what_runs_waits_and_ended():
    found = ask(None).json()
    assert (found["running"], found["queued"], found["ended"], found["open_sessions"]) == (3, 2, 7, 3)
    assert found["servers"] == [
        {"name": "agent", "url": "http://a", "up": True},
        {"name": "resource", "url": "http://b", "up": False},
    ]
    [category] = found["categories"]
    assert category == {"category": "secret category", "rewarded": 1, "mean_reward": 1.0, "unrewarded": 1}
    assert found["failures"][0]["cause"] == CAUSE


@pytest.mark.parametrize(
    "given", [None, "Bearer wrong", f"Bearer {TOKEN}x", f"bearer {TOKEN}", "Bearer", TOKEN, "é", b"\xff"]
)
def test_without_the_token_there_are_no_words_of_clients_and_endpoints(given):
    answer = ask(TOKEN, given=given.encode() if isinstance(given, str) else given)
    content = answer.json()
    assert answer.status_code == 200 and content["details"] is False and content["categories"] is None
    assert [set(failure) for failure in content["failures"]] == [{"age_s", "status", "code"}]
    assert not any(word in answer.text for word in (CAUSE, "secret", "run_failed", TOKEN))


def test_with_the_token_there_are():
    answer = ask(TOKEN, given=f"Bearer {TOKEN}")
    assert answer.json()["failures"][0]["cause"] == CAUSE and TOKEN not in answer.text


@pytest.mark.parametrize("path", ["/", "/status.json"])
@pytest.mark.parametrize(
    ("method", "status"), [("GET", 200), ("HEAD", 200), ("POST", 405), ("PUT", 405), ("DELETE", 405)]
)
def test_both_routes_only_show(path, method, status):
    answer = ask(None, path, method)
    assert answer.status_code == status
    if status == 200:
        assert answer.headers["cache-control"] == "no-store" and answer.headers["x-content-type-options"] == "nosniff"


def test_the_page_may_call_its_own_gateway_alone_and_be_framed_by_nobody():
    policy = ask(None, "/").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
