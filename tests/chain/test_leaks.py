"""What trials leave behind (field cases E3 and E7): no session, no descriptor, no memory, nothing of one another."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_policy_faults import nothing_listens

from proofs.rig import PAIRS, eventually
from support.scripted_model import DONE, Answer, call

ENDINGS = ("completed", "failed", "aborted", "timed out", "truncated")
MEGABYTE = 1 << 20


def end_one(graph, models, kind, row):
    """Run one trial to an ending of the kind. Returns the snapshot."""
    if kind == "completed":
        return graph.finish(models.oracle(row))
    if kind == "failed":
        policy = models.script(call("email_search_emails", query="x"), Answer(400))
        return graph.finish(policy)
    if kind == "timed out":
        return graph.finish(models.hanging(), deadline_s=0.5)
    if kind == "truncated":
        return graph.finish(models.script(call("email_search_emails", query="x") * 30))
    request_id = graph.start(graph.payload(models.hanging()))
    graph.wait_running(request_id)
    graph.http.post(f"/v1/trials/{request_id}/abort")
    return graph.wait(request_id)


def end_many(graph, models, rows, count):
    """Run `count` trials of every ending, several at once. Returns how often each status came."""
    kinds = [kind for _ in range(count) for kind in ENDINGS]
    with ThreadPoolExecutor(6) as pool:
        ended = list(pool.map(lambda kind: end_one(graph, models, kind, rows[0])["status"], kinds))
    return {status: ended.count(status) for status in sorted(set(ended))}


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident(pid):
    """Resident memory in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("kind", ENDINGS)
def test_e3_no_session_is_left_after(graph, models, example_rows, kind):
    end_one(graph, models, kind, example_rows[0])
    assert graph.open_sessions() == 0
    graph.wait_released(5)


@pytest.mark.slow
def test_e3_two_hundred_trials_of_every_ending_leave_nothing(graph, models, example_rows):
    pids = {name: graph.pid(name) for name in ("gateway", *PAIRS[0], *PAIRS[1])}
    end_many(graph, models, example_rows, 8)
    graph.wait_released()
    files = {name: descriptors(pid) for name, pid in pids.items()}
    memory = {name: resident(pid) for name, pid in pids.items()}
    ended = end_many(graph, models, example_rows, 40)
    assert ended == {"completed": 40, "failed": 40, "aborted": 40, "truncated": 80}
    graph.wait_released()

    def descriptors_are_back():
        # Idle connections between the servers come and go; hundreds would be a leak.
        return all(descriptors(pid) <= files[name] + 12 for name, pid in pids.items())

    eventually(descriptors_are_back, 30)
    for name, pid in pids.items():
        assert resident(pid) < memory[name] + 25 * MEGABYTE, name
    assert {name: graph.pid(name) for name in pids} == pids


def test_e3_a_refused_endpoint_leaves_nothing(graph):
    for _ in range(3):
        assert graph.finish(nothing_listens())["status"] == "failed"
    graph.wait_released(5)


def test_e7_two_trials_side_by_side_see_only_their_own_state(graph, models):
    both_wrote = threading.Barrier(2, timeout=30)

    def policy_of(mine, other):
        def play(model_call):
            if model_call.turn == 0:
                return call("email_reply_email", email_id="00000057", body=mine)
            if model_call.turn == 1:
                both_wrote.wait()
                return call("email_search_emails", query=mine) + call("email_search_emails", query=other)
            return DONE

        return models.policy(play)

    first, second = policy_of("first-words", "second-words"), policy_of("second-words", "first-words")
    ids = [graph.start(graph.payload(policy)) for policy in (first, second)]
    assert [graph.wait(request_id)["status"] for request_id in ids] == ["completed"] * 2
    for policy, mine, other in ((first, "first-words", "second-words"), (second, "second-words", "first-words")):
        own_search, other_search = policy.calls[-1].outputs[1:]
        assert mine in own_search and other not in other_search


def test_e7_the_next_trial_starts_from_fresh_state(graph, models):
    delete = call("email_delete_email", email_id="00000057")
    look = call("email_get_email_information_by_id", email_id="00000057", field="subject")
    before, after = models.script(delete, look, DONE), models.script(look, DONE)
    graph.finish(before)
    graph.finish(after)
    assert "not found" in before.calls[-1].outputs[-1] and "not found" not in after.calls[-1].outputs[-1]
    assert all("Cookie" not in model_call.headers for model_call in before.calls + after.calls)
