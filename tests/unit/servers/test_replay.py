"""Differences of final states: each kind by its words, and never another verdict than the verifier's own."""

import contextlib
import io
import json
import warnings

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from resources_servers.workplace_assistant.utils import is_correct

from servers import replay
from support import odd_actions
from support.task_rows import SHARED_DATA

FIRST, SECOND = "00000487", "00000057"
EVENT = {"event_name": "a", "participant_email": "a@atlas.com", "event_start": "2023-12-01 09:00:00", "duration": "30"}


def calls(*pairs):
    """(name, arguments) pairs as calls; text arguments stay as they are."""
    return [{"name": n, "arguments": a if isinstance(a, str) else json.dumps(a)} for n, a in pairs]


def delete(email):
    return ("email_delete_email", {"email_id": email})


def create(**changes):
    return ("calendar_create_event", EVENT | changes)


def move(customer, status):
    return ("customer_relationship_manager_update_customer", customer | {"field": "status", "new_value": status})


CUSTOMER = {"customer_id": "00000189"}
KINDS = [
    ([delete(FIRST)], [], "emails row 00000487 deleted, ground truth keeps it"),
    ([], [delete(FIRST)], "emails row 00000487 kept, ground truth deletes it"),
    ([create()], [], "calendar row 00000300 created, ground truth does not"),
    ([], [create()], "calendar row 00000300 not created, ground truth creates it"),
    ([create(event_name="b")], [create()], "calendar row 00000300 event_name: “b”, ground truth has “a”"),
    ([create(event_name="A")], [create()], None),
    (
        [move(CUSTOMER, "Proposal")],
        [move(CUSTOMER, "Won")],
        "customers row 00000189 status: “Proposal”, ground truth has “Won”",
    ),
    ([create(), delete(FIRST)], [delete(FIRST), create()], None),
    ([create(duration=30)], [create()], "calendar row 00000300 duration: “30 (no text)”, ground truth has “30”"),
    ([create(duration=30)], [create(duration=60)], None),
]


@pytest.mark.parametrize(("policy", "truth", "words"), KINDS)
def test_each_kind_of_difference_by_its_words(policy, truth, words):
    found = replay.explain(calls(*policy), calls(*truth))
    assert found["equal"] is (words is None) and found["fault"] is None
    assert [difference["words"] for difference in found["differences"]] == ([words] if words else [])


def test_rows_equal_but_in_another_order_are_told_apart():
    add = ("email_send_email", {"recipient": "a@atlas.com", "subject": "s", "body": "b"})
    found = replay.explain(calls(delete(SECOND), add), calls(add, delete(SECOND)))
    assert found["equal"] is False
    [difference] = found["differences"]
    assert (difference["kind"], difference["table"]) == ("order", "emails") and "another order" in difference["words"]


def test_a_difference_shows_both_values_and_the_one_before():
    [difference] = replay.explain(calls(move(CUSTOMER, "Won")), [])["differences"]
    assert (difference["policy"], difference["truth"], difference["before"]) == ("Won", "Lost", "Lost")
    [difference] = replay.explain(calls(delete(FIRST)), [])["differences"]
    assert difference["policy"] is None and difference["truth"] == difference["before"]
    assert difference["truth"]["email_id"] == FIRST


@pytest.mark.parametrize(
    ("name", "arguments", "fault"),
    [
        ("email_delete_email", "{", "malformed arguments: not JSON"),
        ("email_delete_email", None, "malformed arguments: not JSON"),
        ("email_delete_email", "[" * 100_000, "malformed arguments: not JSON"),
        ("email_delete_email", "[1]", "malformed arguments: not an object"),
        ("email_delete_email", '{"id": "1"}', "unexpected keyword argument 'id'"),
        ("verify", "{}", "no such tool"),
        ("", "{}", "no call that could be read"),
    ],
)
def test_a_call_that_cannot_be_made_says_why_and_changes_nothing(name, arguments, fault):
    found = replay.explain([{"name": name, "arguments": arguments}], [])
    [step] = found["steps"]
    assert fault in step["fault"] and step["wrote"] == [] and found["equal"] is True


def test_each_step_names_what_it_changed():
    search = ("email_search_emails", {"query": "report"})
    steps = replay.explain(calls(search, delete(FIRST), delete(FIRST), create()), [])["steps"]
    assert [step["wrote"] for step in steps] == [[], ["emails row 00000487"], [], ["calendar row 00000300"]]


def verdict(policy, truth):
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return is_correct(policy, truth, None)
        except Exception:
            return None


@settings(
    max_examples=60,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(policy=odd_actions.sequences, truth=odd_actions.sequences)
def test_there_is_a_difference_exactly_where_the_verifier_finds_one(policy, truth):
    found = replay.explain(policy, truth)
    assert found["equal"] == verdict(policy, truth)
    assert found["equal"] is None or bool(found["differences"]) is not found["equal"]


@pytest.mark.shared_data
def test_recorded_runs_differ_exactly_where_they_earned_nothing():
    rows = map(json.loads, (SHARED_DATA / "workbench_dev.jsonl").open())
    truths = {row["id"]: row["ground_truth"] for row in rows}
    runs = [json.loads(line) for line in (SHARED_DATA / "workbench_traces_dev.jsonl").open()][::4]
    for run in runs:
        found = replay.explain(run["actions"], truths[run["task_id"]])
        assert found["equal"] is (run["reward"] == 1.0) is not bool(found["differences"])
