"""Hostile clients at the Gateway's surface: no 5xx, one error shape, nobody else waits, nothing without the token."""

import http.client
import json
import socket
from contextlib import ExitStack
from types import SimpleNamespace

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode

from gateway import routes
from proofs.rig import assert_error, eventually
from support.abuse import size
from support.scripted_model import DONE, call

FEW = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)


def operations(graph):
    document = graph.http.get("/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    return {operation.ok().label: operation.ok() for operation in schema.get_all_operations()}


def requests_of(operation):
    """Requests that fit the operation's description and, where it has inputs, such that do not."""
    modes = [GenerationMode.POSITIVE] + [GenerationMode.NEGATIVE] * bool(operation.query or operation.body)
    return st.one_of([operation.as_strategy(generation_mode=mode) for mode in modes])


def send(graph, case):
    """Send a generated request as it is; None where HTTP cannot carry it."""
    with requests.Session() as client:
        client.trust_env = False
        # A poll may be asked to wait for a minute.
        headers = {"Authorization": f"Bearer {graph.token}"} | dict(case.headers or {})
        try:
            return case.call(base_url=graph.url, session=client, headers=headers, timeout=90)
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, UnicodeError):
            return None


@pytest.mark.parametrize(
    "label",
    [
        "POST /v1/trials", "GET /v1/trials/{request_id}", "POST /v1/trials/{request_id}/renew",
        "POST /v1/trials/{request_id}/abort", "GET /healthz", "GET /readyz", "GET /metrics",
    ],
)  # fmt: skip
def test_whatever_the_openapi_document_allows_is_answered_in_order(graph, label):
    answered = []

    @settings(max_examples=size("ABUSE_EXAMPLES"), **FEW)
    @given(case=requests_of(operations(graph)[label]))
    def attack(case):
        answer = send(graph, case)
        if answer is None:
            return
        answered.append(answer.status_code)
        if answer.status_code >= 400 and case.method != "HEAD":
            body = answer.json()
            assert answer.status_code < 500 and set(body) == {"error"}, answer.text
            assert {"code", "message"} <= set(body["error"]) <= {"code", "message", "field"}

    attack()
    assert answered


def test_the_openapi_document_names_every_route(graph):
    nothing = SimpleNamespace(GATEWAY_TOKEN=None, GATEWAY_TOKEN_FILE=None, GATEWAY_MAX_BODY_BYTES=0)
    served = {f"{method} {path}" for method, path, _ in routes.public(nothing, None, None, None).routes}
    assert set(operations(graph)) == served - {"GET /openapi.json", "GET /", "GET /status.json"}


def places(value, path=()):
    """Paths of all values inside a payload."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    paths = [path] if path else []
    for key, item in inner:
        paths += places(item, (*path, key))
    return paths


def replaced(payload, path, value):
    *parents, last = path
    place = payload
    for key in parents:
        place = place[key]
    place[last] = value
    return payload


def test_any_value_anywhere_in_a_payload_is_taken_or_refused_by_name(graph):
    @settings(max_examples=size("ABUSE_EXAMPLES") * 4, **FEW)
    @given(data=st.data(), value=JSON)
    def attack(data, value):
        payload = graph.payload("http://127.0.0.1:9/x", deadline_s=0.2)
        path = data.draw(st.sampled_from(places(payload)))
        body = json.dumps(replaced(payload, path, value)).encode()
        answer = graph.http.post("/v1/trials", data=body)
        if answer.status_code == 429:  # the ones before it have not ended yet
            graph.wait_released()
        elif answer.status_code != 202:
            assert answer.status_code in (400, 422), answer.text
            assert_error(answer, answer.status_code)

    attack()


def test_slow_clients_keep_nobody_waiting(graph, models):
    head = f"GET /v1/trials/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {graph.token}\r\nX: ".encode()
    address = ("127.0.0.1", graph.settings.port("gateway"))
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(address)) for _ in range(size("ABUSE_CLIENTS") // 4)]
        for connection in slow:
            connection.sendall(head)
        assert graph.finish(models.script(DONE))["status"] == "completed"


@pytest.mark.parametrize(
    "lengths",
    [
        "Content-Length: 5\r\nContent-Length: 6\r\n", "Content-Length: +5\r\n", "Content-Length: 5, 6\r\n",
        "Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding: xchunked\r\n", "Content-Length: -1\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    ],
)  # fmt: skip
def test_a_lie_about_the_length_is_refused(graph, lengths):
    head = f"POST /v1/trials HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {graph.token}\r\n{lengths}\r\nhello"
    with socket.create_connection(("127.0.0.1", graph.settings.port("gateway")), timeout=20) as connection:
        connection.sendall(head.encode())
        answer = connection.recv(65536)
    assert answer[9:10] == b"4" or answer[9:12] == b"501", answer[:80]
    assert graph.http.get("/healthz").status_code == 200


ODD_PATHS = [
    "/v1", "/v1/", "//v1/trials", "/v1/trials/%2e%2e/x", "/v1/trials/..%2f..%2fx", "/v1/trials/a%00b", "/V1/trials",
    "/v1/trials/x;y", "/v1/trials/x%2fabort", "/%76%31/trials/x", "/v1%2ftrials%2fx", "/v1/./trials/x", "/v1//trials/x",
    "/healthz/../v1/trials/x", "/v1/trials/\\x", "/v1/trials/x?wait_s=1&wait_s=2", "/v1/trials/%ff",
    "/v1/trials/x%0d%0aA:b",
]  # fmt: skip


@pytest.mark.parametrize("path", ODD_PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"])
def test_no_spelling_of_a_path_gets_past_the_token(graph, path, method):
    connection = http.client.HTTPConnection("127.0.0.1", graph.settings.port("gateway"), timeout=20)
    connection.putrequest(method, path, skip_accept_encoding=True)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status in (401, 404, 405), (answer.status, text)
    assert b"request_id" not in text and b"status" not in text


@pytest.mark.parametrize("header", [None, "Bearer wrong", "never-show-me-", ""])
def test_nothing_under_v1_answers_without_the_token(graph, header):
    headers = {} if header is None else {"Authorization": header}
    guarded = [label.split(" ", 1) for label in operations(graph) if " /v1" in label]
    assert len(guarded) == 5
    for method, path in guarded:
        url = graph.url + path.replace("{request_id}", "x")
        assert_error(httpx.request(method, url, headers=headers, trust_env=False), 401, "token_missing")


def test_hostile_tool_names_and_arguments_are_the_policys_fault(graph, models):
    @settings(max_examples=size("ABUSE_EXAMPLES"), **FEW)
    @given(name=st.text(max_size=60), arguments=st.text(max_size=60) | JSON.map(json.dumps))
    def attack(name, arguments):
        item = call("x")[0] | {"name": name, "arguments": arguments}
        policy = models.script([item], DONE)
        snapshot = graph.finish(policy)
        assert (snapshot["status"], snapshot["reward"]) == ("completed", 0.0), snapshot
        assert len(policy.calls[1].outputs) == 1

    attack()
    eventually(lambda: graph.open_sessions() == 0)
