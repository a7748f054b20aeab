"""What trials leave behind (field cases E3 and E7): no session, no descriptor, no memory, nothing of one another."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from proofs.rig import PAIRS
from support.footprint import Footprint
from support.http_server import nobody
from support.scripted_model import DONE, Answer, call

ENDINGS = ("completed", "failed", "aborted", "timed out", "truncated")


def end_one(graph, models, kind, row):
    """Run one trial to an ending of the kind. Returns its status."""
    if kind == "aborted":
        request_id = graph.start(graph.payload(models.hanging()))
        graph.wait_running(request_id)
        graph.http.post(f"/v1/trials/{request_id}/abort")
        return graph.wait(request_id)["status"]
    searches = [item for nth in range(30) for item in call("email_search_emails", query=f"x{nth}")]
    policy = {
        "completed": lambda: models.oracle(row),
        "failed": lambda: models.script(searches[:1], Answer(400)),
        "refused": nobody,
        "timed out": models.hanging,
        "truncated": lambda: models.script(searches),
    }[kind]()
    return graph.finish(policy, **{"deadline_s": 0.5} if kind == "timed out" else {})["status"]


def end_many(graph, models, row, count):
    """Run `count` trials of every ending, several at once. Returns how often each status came."""
    with ThreadPoolExecutor(6) as pool:
        return Counter(pool.map(lambda kind: end_one(graph, models, kind, row), ENDINGS * count))


@pytest.mark.parametrize("kind", [*ENDINGS, "refused"])
def test_e3_no_session_is_left_after(graph, models, example_rows, kind):
    end_one(graph, models, kind, example_rows[0])
    assert graph.open_sessions() == 0
    graph.wait_released(5)


@pytest.mark.slow
def test_e3_two_hundred_trials_of_every_ending_leave_nothing(graph, models, example_rows):
    end_many(graph, models, example_rows[0], 8)
    graph.wait_released()
    before = Footprint(graph, ("gateway", *PAIRS[0], *PAIRS[1]))
    ended = end_many(graph, models, example_rows[0], 40)
    assert ended == {"completed": 40, "failed": 40, "aborted": 40, "truncated": 80}
    graph.wait_released()
    before.assert_kept(megabytes=25, connections=12, seconds=30)


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
