"""One trial's state machine, every order of events; no clocks, no tasks."""

import contextlib
import copy
import math

import pytest

from gateway.trial import Fault, Outcome, Status, Trial, aborted, failed

DEADLINE_S, LEASE_S = 100, 30
COMPLETED = Outcome(Status.COMPLETED, 1.0, {"tool_calls": 2})
UNCLEAN = Fault("cleanup_unverified", "state_left", "still there")
SETTLING = {
    "completed": lambda trial: COMPLETED,
    "abort": lambda trial: aborted(),
    "lease": lambda trial: trial.due(LEASE_S),
    "deadline": lambda trial: trial.due(DEADLINE_S + LEASE_S),
}
EVENTS = ("start", *SETTLING, "clean", "unclean")


def trial(deadline_s=DEADLINE_S, lease_s=LEASE_S):
    return Trial("relax-1", 0, deadline_s, lease_s)


class Model:
    """What the module docstring says, kept beside the trial while events come."""

    def __init__(self):
        self.trial, self.started, self.first, self.final = trial(), False, None, None

    def after(self, event):
        """The model and its trial as `event` leaves them; this one stays as it is."""
        model = copy.copy(self)
        model.trial = copy.copy(self.trial)
        getattr(model, event)() if event in ("start", "clean", "unclean") else model.settle(event)
        model.check()
        return model

    def start(self):
        can = not self.started and self.first is None
        assert self.trial.start() is can
        self.started = self.started or can

    def settle(self, event):
        if event == "deadline":
            self.trial.renew(DEADLINE_S)
        outcome = SETTLING[event](self.trial)
        if outcome is None:  # a renewed lease is not over yet
            return
        assert self.trial.settle(outcome) is (self.first is None)
        self.first = self.first or outcome

    def clean(self):
        self.release(None)

    def unclean(self):
        self.release(UNCLEAN)

    def release(self, fault):
        if self.first is None or self.final:
            with contextlib.suppress(RuntimeError):
                self.trial.release(fault)
                raise AssertionError("released out of turn")
            return
        self.trial.release(fault)
        self.final = self.trial.snapshot()
        self.check_final(fault)

    def check_final(self, fault):
        shown = self.final
        if fault is None:
            assert shown["status"] == self.first.status and shown["reward"] == self.first.reward
            assert shown["error"] == (self.first.fault.as_json() if self.first.fault else None)
            return
        after = self.first.fault.code if self.first.fault else self.first.status.value
        assert shown["status"] == "failed" and shown["reward"] is None
        assert shown["error"] == {"code": fault.code, "type": fault.type, "cause": f"after {after}: still there"}

    def check(self):
        shown = self.trial.snapshot()
        assert self.trial.settled is (self.first is not None)
        assert self.trial.terminal is (self.final is not None)
        if self.final:
            assert shown == self.final
        else:
            assert shown["status"] == ("running" if self.started else "queued")
            assert (shown["reward"], shown["metrics"], shown["error"]) == (None, {}, None)
        assert shown["reward"] is None or shown["status"] == "completed"


def test_every_order_of_up_to_six_events_keeps_the_invariants():
    models = [Model()]
    for _ in range(6):
        models = [model.after(event) for model in models for event in EVENTS]
    assert len(models) == len(EVENTS) ** 6


def test_of_lease_and_deadline_the_one_that_ends_first_is_named():
    def code(deadline_s, lease_s, now):
        due = trial(deadline_s, lease_s).due(now)
        return due and (due.status.value, due.fault.code, due.reward)

    lease, deadline = ("aborted", "lease_expired", None), ("truncated", "deadline_exceeded", None)
    assert code(100, 30, 29.9) is None
    assert code(100, 30, 30) == code(100, 30, 1000) == lease
    assert code(30, 100, 29.9) is None
    assert code(30, 100, 30) == code(30, 100, 1000) == deadline
    assert code(30, 30, 30) == deadline


def test_renewals_move_the_lease_from_the_moment_they_come_but_never_the_deadline():
    kept = trial()
    for now in range(0, 101, 10):
        assert kept.due(now) is None or now >= DEADLINE_S
        kept.renew(now)
    assert kept.due(99.9) is None
    assert kept.due(100).fault.code == "deadline_exceeded"


def test_a_renewal_after_the_end_was_settled_changes_nothing():
    late = trial()
    late.settle(late.due(LEASE_S))
    late.renew(LEASE_S)
    assert late.due(LEASE_S).fault.code == "lease_expired"
    late.release()
    assert late.snapshot()["error"] == {"code": "lease_expired"}


@pytest.mark.parametrize(
    ("outcome", "after"),
    [
        (COMPLETED, "completed"),
        (Outcome(Status.TRUNCATED, 0.0, fault=Fault("response_incomplete", "max_tokens")), "response_incomplete"),
        (aborted(), "aborted"),
        (failed("agent_error", "run_failed", "why"), "agent_error"),
    ],
)
def test_without_proof_of_clean_up_every_ending_is_failed_and_says_after_what(outcome, after):
    for fault in (UNCLEAN, Fault("cleanup_failed"), Fault("cleanup_probe_failed", None, "no answer")):
        ended = trial()
        ended.settle(outcome)
        ended.release(fault)
        shown = ended.snapshot()
        assert (shown["status"], shown["reward"], shown["metrics"]) == ("failed", None, {})
        assert shown["error"]["code"] == fault.code
        assert shown["error"]["cause"] == f"after {after}" + (f": {fault.cause}" if fault.cause else "")


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_is_finite(reward):
    with pytest.raises(ValueError):
        Outcome(Status.COMPLETED, reward)


def test_a_graded_trial_is_shown_in_full():
    graded = trial()
    graded.start()
    graded.settle(COMPLETED)
    graded.release()
    assert graded.snapshot() == {
        "protocol_version": "relax-nemo-gym/v1",
        "request_id": "relax-1",
        "status": "completed",
        "reward": 1.0,
        "metrics": {"tool_calls": 2},
        "artifact_ref": None,
        "error": None,
    }
