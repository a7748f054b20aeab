"""Deadline and lease with real servers, wherever they can end a trial; no end leaves a session."""

import threading
import time

import pytest

from proofs.rig import CONCURRENCY
from support.scripted_model import DONE, Answer, call

SEARCH = call("email_search_emails", query="carlos")


def assert_deadline(snapshot):
    assert (snapshot["status"], snapshot["reward"]) == ("truncated", None), snapshot
    assert snapshot["error"] == {"code": "deadline_exceeded"}


def assert_lease(snapshot):
    assert (snapshot["status"], snapshot["reward"]) == ("aborted", None), snapshot
    assert snapshot["error"] == {"code": "lease_expired"}


def test_the_deadline_ends_a_first_and_a_later_model_call(graph, models):
    later = models.policy(lambda call: SEARCH if call.turn < 2 else models.released.wait(60) or DONE)
    policies = [models.hanging(), later]
    began = time.monotonic()
    for request_id in [graph.start(graph.payload(policy, deadline_s=2)) for policy in policies]:
        assert_deadline(graph.wait(request_id))
    assert time.monotonic() - began < 15
    assert [len(policy.calls) for policy in policies] == [1, 3]
    graph.wait_released()


def test_a_wait_that_is_longer_than_the_deadline_ends_the_trial_at_once_with_the_endpoints_words(graph, models):
    policy = models.script(Answer(503, {"error": {"message": "come back later"}}, {"Retry-After": "600"}))
    snapshot = graph.finish(policy, deadline_s=20)
    assert (snapshot["status"], snapshot["reward"], len(policy.calls)) == ("failed", None, 1), snapshot
    assert "come back later" in snapshot["error"]["cause"] and "longer than the trial has left" in str(snapshot)


def test_the_deadline_counts_from_creation_and_ends_a_trial_in_the_queue(graph, models):
    held = [graph.start(graph.payload(models.hanging())) for _ in range(CONCURRENCY)]
    for request_id in held:
        graph.wait_running(request_id)
    policy = models.script(DONE)
    assert_deadline(graph.finish(policy, deadline_s=0.5))
    assert not policy.calls
    for request_id in held:
        graph.http.post(f"/v1/trials/{request_id}/abort")


def test_a_deadline_too_short_to_start_is_an_end_like_others(graph, models):
    for _ in range(5):
        assert_deadline(graph.finish(models.script(DONE), deadline_s=0.001))


def test_a_lease_that_is_renewed_holds_until_it_is_not(graph, models):
    request_id = graph.start(graph.payload(models.hanging(), lease_s=1.5))
    began = time.monotonic()
    while time.monotonic() - began < 3.5:
        assert graph.http.post(f"/v1/trials/{request_id}/renew").status_code == 204
        assert graph.show(request_id).json()["status"] in ("queued", "running")
        time.sleep(0.3)
    assert_lease(graph.wait(request_id))
    graph.wait_released()


def test_a_late_answer_of_the_model_changes_nothing(graph, models):
    late = threading.Event()
    policy = models.policy(lambda call: late.wait(30) and DONE)
    request_id = graph.start(graph.payload(policy, deadline_s=1))
    ended = graph.wait(request_id)
    late.set()
    time.sleep(0.5)
    assert_deadline(ended)
    assert graph.show(request_id).json() == ended


@pytest.mark.parametrize("moment", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_an_abort_at_any_moment_leaves_one_end_and_no_session(graph, models, example_rows, moment):
    ids = [graph.start(graph.payload(models.oracle(example_rows[2]))) for _ in range(4)]
    time.sleep(moment)
    for request_id in ids:
        assert graph.http.post(f"/v1/trials/{request_id}/abort").status_code == 202
    for request_id in ids:
        ended = graph.wait(request_id)
        assert (ended["status"], ended["reward"]) in (("aborted", None), ("completed", 0.0), ("completed", 1.0))
        assert graph.show(request_id).json() == ended
    graph.wait_released()
