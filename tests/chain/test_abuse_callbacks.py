"""Model addresses that try to lead elsewhere, and callbacks by whoever is no live rollout."""

import sqlite3

import httpx
import pytest

from proofs.rig import assert_error
from support.scripted_model import DONE, Answer

URL_FIELD = "model_endpoint.base_url"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_leads_nowhere(graph, models, status):
    elsewhere = models.script(DONE)
    moved = models.script(Answer(status, b"", {"Location": f"{elsewhere.base_url}/v1/responses"}))
    snapshot = graph.finish(moved)
    assert (snapshot["status"], snapshot["error"]["type"]) == ("failed", "endpoint_redirect")
    assert moved.base_url in snapshot["error"]["cause"] and len(moved.calls) == 1 and not elsewhere.calls


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "127.0.0.1.nip.io", "[::ffff:8.8.8.8]", "134744072", "0x08080808", "010.010.010.010", "8.8.8.8",
        "10.0.0.1@8.8.8.8", "8.8.8.8#@10.0.0.1", "10.0.0.1:80@8.8.8.8", "[::ffff:0:8.8.8.8]", "[2002:808:808::]",
        "10.0.0.1%2f@8.8.8.8", "8.8.8.8\\@10.0.0.1", "[64:ff9b::8.8.8.8]", "10.0.0.1\u3002", "\u2488.1.1.1",
    ],
)  # fmt: skip
def test_no_form_of_an_address_leaves_the_allowed_networks(graph, host):
    payload = graph.payload(f"http://{host}:80/x")
    assert_error(graph.create(payload), 400, "callback_not_allowed", URL_FIELD)


def rollout_of(graph, request_id):
    """The rollout id, which no route shows."""
    with sqlite3.connect(graph.run_dir / "trials.sqlite") as store:
        return store.execute("SELECT rollout_id FROM trials WHERE request_id = ?", (request_id,)).fetchone()[0]


def model_call(graph, rollout_id):
    body = {"input": [], "metadata": {"relax_nemo_gym_rollout_id": rollout_id}}
    return httpx.post(graph.settings.local_url("callbacks") + "/v1/responses", json=body, trust_env=False)


def test_a_rollout_id_replayed_after_the_end_opens_nothing(graph, models):
    policy = models.script(DONE)
    request_id = graph.start(graph.payload(policy))
    graph.wait(request_id)
    rollout_id, calls = rollout_of(graph, request_id), len(policy.calls)
    assert_error(model_call(graph, rollout_id), 410, "rollout_ended")
    seeded = [
        httpx.post(f"{url}/seed_session", json=graph.row | {"rollout_id": rollout_id}, trust_env=False)
        for url in graph.resource_urls()
    ]
    for url in graph.resource_urls():  # the pair that never had it cannot know
        httpx.post(f"{url}/cleanup/{rollout_id}", trust_env=False)
    assert 410 in {answer.status_code for answer in seeded}, "the pair that ran it knows that it ended"
    assert len(policy.calls) == calls


@pytest.mark.parametrize("change", [lambda text: "0" * 32, lambda text: text[:-1], lambda text: text + " ", str.title])
def test_a_guessed_rollout_id_calls_nobody(graph, models, change):
    policy = models.hanging()
    request_id = graph.start(graph.payload(policy))
    graph.wait_running(request_id)
    rollout_id = rollout_of(graph, request_id)
    assert_error(model_call(graph, change(rollout_id)), 410, "rollout_ended")
    graph.http.post(f"/v1/trials/{request_id}/abort")
    graph.wait(request_id)
    assert len(policy.calls) <= 1
