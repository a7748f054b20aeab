"""What the Gateway remembers for its page: the last minutes, in bounded memory."""

import json

import pytest

from gateway import recent
from gateway.trial import Fault, Outcome, Status, failed


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def test_a_great_many_events_take_no_more_memory_than_some():
    clock = Clock()
    events = recent.Recent(clock)

    def tell(count):
        for nth in range(count):
            clock.now += 0.5
            events.started(0.1)
            events.called(0.1)
            events.ended(failed("agent_error", "t" * 5000, "c" * 5000), 1.0, f"{nth}" + "x" * 5000)
        return len(json.dumps(events.shown(True)))

    tell(3000)
    before = tell(1)
    assert tell(20_000) - before < 200, "as many slots, categories and failures; some figures have a digit more"
    assert before < 60_000
    found = events.shown(True)
    assert len(found["slots"]) == recent.SLOTS and len(found["failures"]) == recent.FAILURES
    assert len(found["categories"]) == recent.CATEGORIES + 1
    assert {row["category"]: row["unrewarded"] for row in found["categories"]}[recent.OTHERS] > 20_000


def test_slots_hold_what_happened_in_them_and_fall_silent():
    clock = Clock()
    events = recent.Recent(clock)
    events.ended(Outcome(Status.COMPLETED, 1.0), 1.0, "c")
    events.ended(Outcome(Status.COMPLETED, 0.0), 1.0, "c")
    clock.now += recent.SLOT_S * 2
    events.called(0.1)
    slots = events.shown(False)["slots"]
    assert slots[-3] == {"ended": 2, "passed": 1, "unrewarded": 0, "calls": 0}
    assert slots[-2] == dict.fromkeys(recent.COUNTED, 0) and slots[-1]["calls"] == 1
    clock.now += recent.SLOT_S * recent.SLOTS
    assert events.shown(False)["slots"] == [dict.fromkeys(recent.COUNTED, 0)] * recent.SLOTS


def test_a_truncated_trial_with_a_reward_is_a_failure_that_has_one():
    events = recent.Recent(Clock())
    events.ended(Outcome(Status.TRUNCATED, 0.0, fault=Fault("too_many_calls")), 1.0, "c")
    found = events.shown(True)
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
