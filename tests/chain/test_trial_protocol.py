"""The trial protocol against the real graph: each route, each status code."""

import socket
import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.payload import VERSION
from proofs.rig import CONCURRENCY, QUEUE, assert_error, eventually
from support.scripted_model import DONE, call
from support.task_rows import session_input

SNAPSHOT = {"protocol_version", "request_id", "status", "reward", "metrics", "artifact_ref", "error"}
COUNTS = {"tool_calls", "tool_outputs", "assistant_messages", "model_output_items"}
HEALTH = {
    "protocol_version", "service_epoch", "gym_commit", "config_fingerprint", "trials", "active_trials",
    "terminal_trials", "janitor_healthy",
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(graph_started, models, example_rows):
    """(payload, terminal snapshot) of one trial that earned its reward."""
    payload = graph_started.payload(models.oracle(example_rows[0]))
    return payload, graph_started.wait(graph_started.start(payload))


@pytest.fixture
def running(graph, models):
    """Request id of a trial that waits for its model."""
    request_id = graph.start(graph.payload(models.hanging()))
    graph.wait_running(request_id)
    yield request_id
    graph.http.post(f"/v1/trials/{request_id}/abort")


def test_a_trial_is_taken_and_runs_to_its_reward(graph, models, example_rows):
    payload = graph.payload(models.oracle(example_rows[0]))
    answer = graph.create(payload)
    assert answer.status_code == 202
    taken = answer.json()
    assert set(taken) == SNAPSHOT and taken["request_id"] == payload["request_id"]
    assert taken["status"] in ("queued", "running") and taken["reward"] is None and taken["error"] is None
    ended = graph.wait(payload["request_id"])
    assert set(ended) == SNAPSHOT and set(ended["metrics"]) >= COUNTS
    assert (ended["status"], ended["reward"], ended["error"]) == ("completed", 1.0, None)
    assert (ended["metrics"]["tool_calls"], ended["metrics"]["tool_outputs"]) == (1, 1)


def test_a_trajectory_is_kept_where_the_metadata_asks_for_it(graph, models, example_rows):
    payload = graph.payload(models.oracle(example_rows[0]), metadata={"trajectory": True})
    ended = graph.wait(graph.start(payload))
    assert ended["artifact_ref"] == f"/v1/trials/{payload['request_id']}/trajectory"
    kept = graph.http.get(ended["artifact_ref"]).json()
    params = example_rows[0]["responses_create_params"]
    assert [item["content"] for item in kept["input"]] == [item["content"] for item in params["input"]]
    assert [item["type"] for item in kept["output"]] == ["function_call", "function_call_output", "message"]
    assert kept["output"][0]["arguments"] == example_rows[0]["ground_truth"][0]["arguments"]
    assert (kept["request_id"], kept["reward"]) == (payload["request_id"], 1.0)
    silent = graph.wait(graph.start(graph.payload(models.script(DONE), metadata={"trajectory": 1})))
    assert silent["artifact_ref"] is None
    answer = graph.http.get(f"/v1/trials/{silent['request_id']}/trajectory")
    assert_error(answer, 404, "trajectory_unknown")


def test_a_session_input_runs_like_the_row_it_came_from(graph, models, example_rows):
    policies = [models.oracle(example_rows[0]), models.oracle(example_rows[0])]
    ended = [graph.finish(policies[0]), graph.finish(policies[1], row=session_input(example_rows[0]))]
    assert [snapshot["reward"] for snapshot in ended] == [1.0, 1.0]
    assert policies[0].calls[0].body == policies[1].calls[0].body


def test_the_model_call_carries_key_model_parameters_and_the_rows_own_metadata(graph, models, example_rows):
    policy = models.script(DONE)
    params = example_rows[0]["responses_create_params"] | {"metadata": {"mine": "kept"}}
    payload = graph.payload(policy, example_rows[0] | {"responses_create_params": params})
    payload["generation"] = {"responses_create_params": {"temperature": 0.25}, "sampling_params": {"top_p": 0.5}}
    payload["model_endpoint"] |= {"model": "other", "headers": {"X-Extra": "yes"}}
    assert graph.wait(graph.start(payload))["status"] == "completed"
    headers, body = policy.calls[0].headers, policy.calls[0].body
    assert headers["Authorization"] == f"Bearer {payload['session']['session_id']}" and headers["X-Extra"] == "yes"
    assert (body["model"], body["temperature"], body["top_p"]) == ("other", 0.25, 0.5)
    assert body["metadata"] == {"mine": "kept"}


def test_each_model_call_carries_the_rows_tools_whole(graph, models, example_rows):
    policy = models.script(call("email_search_emails", query="x"), DONE)
    assert graph.wait(graph.start(graph.payload(policy, example_rows[0])))["status"] == "completed"
    tools = example_rows[0]["responses_create_params"]["tools"]
    assert [call.body["tools"] for call in policy.calls] == [tools, tools] and len(tools) == 27
    assert "Error" not in policy.calls[1].body["input"][-1]["output"]


def test_the_key_may_go_into_another_header(graph, models):
    policy = models.script(DONE)
    payload = graph.payload(policy)
    payload["model_endpoint"] |= {"api_key_header": "X-Key", "api_key_prefix": ""}
    graph.wait(graph.start(payload))
    assert policy.calls[0].headers["X-Key"] == payload["model_endpoint"]["api_key"]
    assert "Authorization" not in policy.calls[0].headers


def test_the_same_create_again_starts_nothing_and_another_under_its_id_is_refused(graph, finished):
    payload, ended = finished
    changed_form = dict(reversed(payload.items())) | {"deadline_s": 30.0, "lease_s": 60.0}
    answer = graph.create(changed_form)
    assert (answer.status_code, answer.json()) == (202, ended)
    assert_error(graph.create(payload | {"deadline_s": 31}), 409, "payload_differs", "request_id")


def test_a_full_queue_is_answered_with_429_and_a_time(graph, models):
    policy = models.hanging()
    ids = [graph.start(graph.payload(policy)) for _ in range(CONCURRENCY)]
    for request_id in ids:
        graph.wait_running(request_id)
    ids += [graph.start(graph.payload(policy)) for _ in range(QUEUE)]
    answer = graph.create(graph.payload(policy))
    assert_error(answer, 429, "queue_full")
    assert answer.headers["Retry-After"].isdecimal()
    assert graph.show(ids[-1]).json()["status"] == "queued"
    for request_id in reversed(ids):
        assert graph.http.post(f"/v1/trials/{request_id}/abort").status_code == 202
    assert {graph.wait(request_id)["status"] for request_id in ids} == {"aborted"}
    assert len(policy.calls) == CONCURRENCY


REFUSED = {
    (404, "trial_unknown"): [
        "GET /v1/trials/none", "GET /v1/trials/none/trajectory", "POST /v1/trials/none/renew",
        "POST /v1/trials/none/abort",
    ],
    (405, "method_not_allowed"): [
        "GET /v1/trials", "DELETE /v1/trials/x", "POST /readyz", "GET /v1/trials/x/abort", "POST /",
    ],
    (404, "route_unknown"): [
        "GET /v1/other", "GET /docs", "POST /v1/trials/", "GET /readyz/", "POST /v1/responses",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("code", "route"), [(code, route) for code in REFUSED for route in REFUSED[code]])
def test_unknown_trials_and_routes_and_wrong_methods(graph_started, code, route):
    assert_error(graph_started.http.request(*route.split()), *code)


def test_renew_is_204_abort_is_202_and_the_first_end_stays(graph, finished, running):
    payload, ended = finished
    for request_id in (running, payload["request_id"]):
        answer = graph.http.post(f"/v1/trials/{request_id}/renew")
        assert (answer.status_code, answer.content) == (204, b"")
    answer = graph.http.post(f"/v1/trials/{payload['request_id']}/abort")
    assert (answer.status_code, answer.json()) == (202, ended)
    assert graph.http.post(f"/v1/trials/{running}/abort").status_code == 202
    snapshot = graph.wait(running)
    assert (snapshot["status"], snapshot["reward"], snapshot["error"]) == ("aborted", None, {"code": "aborted"})
    assert graph.http.post(f"/v1/trials/{running}/abort").json() == snapshot


def test_a_long_poll_ends_with_the_trial_or_its_time(graph, running):
    began = time.monotonic()
    assert graph.show(running, wait_s=0.7).json()["status"] == "running"
    assert time.monotonic() - began >= 0.7
    policy_ends = time.monotonic()
    graph.http.post(f"/v1/trials/{running}/abort")
    assert graph.show(running, wait_s=60).json()["status"] == "aborted"
    assert time.monotonic() - policy_ends < 30


BAD_WAITS = ["", "x", "nan", "inf", "-1", "61", "1e9", "1e999", "0x1", "1 2", "\u0661\u0662\u0663"]


@pytest.mark.parametrize("value", BAD_WAITS)
def test_a_bad_wait_is_named(graph_started, value):
    answer = graph_started.http.get("/v1/trials/none", params={"wait_s": value})
    assert_error(answer, 422, "invalid_payload", "wait_s")


def test_health_and_readiness_hold_their_keys(graph, running):
    health, ready = graph.http.get("/healthz"), graph.http.get("/readyz")
    assert health.status_code == ready.status_code == 200
    assert set(health.json()) >= HEALTH and HEALTH | {"ready"} <= set(ready.json())
    state = ready.json()
    assert state["ready"] is True and state["janitor_healthy"] is True
    assert state["protocol_version"] == "relax-nemo-gym/v1" and len(state["gym_commit"]) == 40
    assert state["active_trials"] == 1 and state["trials"] == state["terminal_trials"] + 1
    assert state["gateway_version"] == VERSION == graph.http.get("/openapi.json").json()["info"]["version"]
    assert state["environment"]["pandas"] == "2.3.2" and state["config_fingerprint"]


def samples(graph):
    """{(sample name, labels): value} of /metrics."""
    answer = graph.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(answer.text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_metrics_count_trials_in_prometheus_text(graph, models):
    ended = ("gateway_trials_ended_total", (("code", ""), ("status", "completed")))
    before = samples(graph)
    graph.finish(models.script(call("company_directory_find_email_address", name="carlos"), DONE))
    after = samples(graph)
    assert after[ended] == before.get(ended, 0) + 1
    assert after["gateway_model_call_seconds_count", ()] == before["gateway_model_call_seconds_count", ()] + 2
    assert (after["gateway_ready", ()], after["gateway_active_trials", ()]) == (1, 0)
    assert {"gateway_queued_trials", "gateway_open_sessions", "gateway_trial_seconds_bucket"} <= {n for n, _ in after}


def test_the_callbacks_port_knows_nothing_of_trials(graph):
    url = graph.settings.local_url("callbacks")
    for method, path in (("POST", "/v1/trials"), ("GET", "/v1/trials/x"), ("GET", "/readyz"), ("GET", "/metrics")):
        assert_error(httpx.request(method, url + path, trust_env=False), 404, "route_unknown")


@pytest.mark.parametrize("metadata", [None, {}, {"relax_nemo_gym_rollout_id": "x"}, {"relax_nemo_gym_rollout_id": []}])
def test_a_model_call_of_no_live_rollout_is_refused(graph, metadata):
    url = graph.settings.local_url("callbacks") + "/v1/responses"
    answer = httpx.post(url, json={"input": [], "metadata": metadata}, trust_env=False)
    assert_error(answer, 410, "rollout_ended")


def test_a_client_that_leaves_does_no_harm(graph, running):
    host, port = "127.0.0.1", graph.settings.port("gateway")
    request = f"GET /v1/trials/{running}?wait_s=60 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {graph.token}\r\n\r\n"
    for _ in range(20):
        with socket.create_connection((host, port)) as connection:
            connection.sendall(request.encode())
    assert graph.show(running).json()["status"] == "running"
    eventually(lambda: graph.health()[0] == 200, 5)
