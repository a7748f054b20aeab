"""What the Gateway's page reads: bounded memory, and nothing beyond /readyz and /metrics without the token."""

import json
from types import SimpleNamespace

import httpx
import pytest

from gateway import page, recent
from gateway import routes as surface
from gateway.metrics import Metrics
from gateway.trial import Fault, Outcome, Status, failed
from support.served import served

TOKEN = "token-that-nobody-may-see"
CAUSE = "words of an endpoint"
STATE = {
    "ready": True,
    "service_epoch": "e",
    "active_trials": 5,
    "terminal_trials": 7,
    "open_sessions": 3,
    "servers": {"agent": {"url": "http://a", "up": True}, "agent_2": {"url": "http://b", "up": False}},
}


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def passed(reward=1.0):
    return Outcome(Status.COMPLETED, reward)


def ask(token, path="/status.json", method="GET", given=None):
    """The answer of the page's routes behind a token."""
    trials = SimpleNamespace(metrics=Metrics(), queued=lambda: 2)
    trials.metrics.ended(failed("agent_error", "run_failed", CAUSE), 1.5, "secret category")
    trials.metrics.ended(passed(), 0.5, "secret category")
    settings = SimpleNamespace(WORKPLACE_ASSISTANT_MAX_CONCURRENCY=8, GATEWAY_QUEUE_LIMIT=9)
    routes = page.routes(settings, surface.bearer_of(token), trials, lambda: STATE)
    with served(surface.Application(*routes)) as port:
        headers = {"Authorization": given} if given else {}
        return httpx.request(method, f"http://127.0.0.1:{port}{path}", headers=headers, trust_env=False)


def test_it_counts_what_runs_waits_and_ended():
    found = ask(None).json()
    assert (found["running"], found["queued"], found["ended"], found["open_sessions"]) == (3, 2, 7, 3)
    assert found["servers"] == [
        {"name": "agent", "url": "http://a", "up": True},
        {"name": "agent_2", "url": "http://b", "up": False},
    ]
    assert found["categories"] == [
        {"category": "secret category", "rewarded": 1, "mean_reward": 1.0, "unrewarded": 1},
    ]  # fmt: skip
    assert found["failures"][0]["cause"] == CAUSE


@pytest.mark.parametrize(
    "given", [None, "Bearer wrong", f"Bearer {TOKEN}x", f"bearer {TOKEN}", "Bearer", TOKEN, "é", b"\xff"]
)
def test_without_the_token_there_are_no_words_of_clients_and_endpoints(given):
    answer = ask(TOKEN, given=given.encode() if isinstance(given, str) else given)
    assert answer.status_code == 200 and answer.json()["details"] is False and answer.json()["categories"] is None
    assert [set(each) for each in answer.json()["failures"]] == [{"age_s", "status", "code"}]
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


# --- memory --------------------------------------------------------------------------------


def test_a_great_many_events_take_no_more_memory_than_some():
    clock = Clock()
    told = recent.Recent(clock)

    def tell(count):
        for nth in range(count):
            clock.now += 0.5
            told.started(0.1)
            told.called(0.1)
            told.ended(failed("agent_error", "t" * 5000, "c" * 5000), 1.0, f"{nth}" + "x" * 5000)
        return len(json.dumps(told.shown(True)))

    tell(3000)
    before = tell(1)
    assert tell(20_000) - before < 200, "as many slots, categories and failures; some figures have a digit more"
    assert before < 60_000
    found = told.shown(True)
    assert len(found["slots"]) == recent.SLOTS and len(found["failures"]) == recent.FAILURES
    assert len(found["categories"]) == recent.CATEGORIES + 1
    assert {each["category"]: each["unrewarded"] for each in found["categories"]}[recent.OTHERS] > 20_000


def test_slots_hold_what_happened_in_them_and_fall_silent():
    clock = Clock()
    told = recent.Recent(clock)
    told.ended(passed(), 1.0, "c")
    told.ended(passed(0.0), 1.0, "c")
    clock.now += recent.SLOT_S * 2
    told.called(0.1)
    slots = told.shown(False)["slots"]
    assert slots[-3] == {"ended": 2, "passed": 1, "unrewarded": 0, "calls": 0}
    assert slots[-2] == dict.fromkeys(recent.COUNTED, 0) and slots[-1]["calls"] == 1
    clock.now += recent.SLOT_S * recent.SLOTS
    assert told.shown(False)["slots"] == [dict.fromkeys(recent.COUNTED, 0)] * recent.SLOTS


def test_a_truncated_trial_with_a_reward_is_a_failure_that_has_one():
    told = recent.Recent(Clock())
    told.ended(Outcome(Status.TRUNCATED, 0.0, fault=Fault("too_many_calls")), 1.0, "c")
    found = told.shown(True)
    assert found["failures"][0]["code"] == "too_many_calls"
    assert found["categories"][0] == {"category": "c", "rewarded": 1, "mean_reward": 0.0, "unrewarded": 0}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], {"count": 0, "p50": None, "p95": None}),
        ([3.0], {"count": 1, "p50": 3.0, "p95": 3.0}),
        (list(range(100)), {"count": 100, "p50": 50, "p95": 95}),
    ],
)
def test_quantiles(values, expected):
    assert recent.quantiles(values) == expected
