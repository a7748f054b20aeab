"""What no client should send (field case E14): all is refused with 4xx and the field's name, never with a 500."""

import http.client

import httpx
import pytest

from proofs.rig import SECRET_PREFIX, assert_error, own_address
from support.scripted_model import DONE

URL_FIELD = "model_endpoint.base_url"
MEGABYTE = 1 << 20


@pytest.fixture
def good(graph_started):
    return graph_started.payload("http://127.0.0.1:1")


def post(graph, body, **headers):
    return graph.http.post("/v1/trials", data=body, headers={"Content-Type": "application/json"} | headers)


NO_OBJECTS = [
    b"", b"[]", b'{"request_id": "never-show-me-1"', b'{"request_id": never-show-me-1}', b"[" * 100_000, b"\x00" * 100,
    b'{"a": "\xc3\x28 never-show-me-2"}', b'{"a": 1,}', b"{'a': 1}", b'{"a": 01}', b'{"a": NaN}',
]  # fmt: skip


@pytest.mark.parametrize("body", NO_OBJECTS, ids=range(len(NO_OBJECTS)))
def test_a_body_that_is_no_json_object(graph_started, body):
    assert_error(post(graph_started, body), 422, "invalid_payload", "(body)")


def test_a_task_of_10_megabytes(graph_started, good):
    good["environment"]["task"]["extra"] = "x" * (10 * MEGABYTE)
    assert_error(graph_started.create(good), 413, "body_too_large")


def test_a_body_of_100_megabytes_is_refused_unread(graph_started):
    connection = http.client.HTTPConnection("127.0.0.1", graph_started.settings.port("gateway"), timeout=20)
    connection.putrequest("POST", "/v1/trials")
    connection.putheader("Authorization", f"Bearer {graph_started.token}")
    connection.putheader("Content-Length", str(100 * MEGABYTE))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize("server", ["gateway", "agent", "resource", "head", "callbacks", "agent_2", "resource_2"])
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "own"])
def test_the_graphs_own_ports_are_not_called(graph_started, good, host, server):
    if host == "own" and not (host := own_address()):
        pytest.skip("this machine has no outward address")
    good["model_endpoint"]["base_url"] = f"http://{host}:{graph_started.settings.port(server)}/x"
    assert_error(graph_started.create(good), 400, "callback_not_allowed", URL_FIELD)


@pytest.mark.parametrize("address", ["http://10.1.2.3:9/x", "https://198.51.100.7/", "http://[2001:db8::5]:8000"])
def test_addresses_of_the_listed_networks_are_taken(graph_started, good, address):
    good["model_endpoint"]["base_url"] = address
    good["deadline_s"] = 0.1
    assert graph_started.create(good).status_code == 202


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "X-Forwarded-Host"])
def test_a_header_makes_no_request_come_over_loopback(graph_started, good, header):
    if not (host := own_address()):
        pytest.skip("this machine has no outward address")
    url = f"http://{host}:{graph_started.settings.port('gateway')}/v1/trials"
    value = "for=127.0.0.1" if header == "Forwarded" else "127.0.0.1"
    headers = {"Authorization": f"Bearer {graph_started.token}", header: value}
    answer = httpx.post(url, json=good, headers=headers, trust_env=False)
    assert_error(answer, 400, "callback_not_allowed", URL_FIELD)
    good["model_endpoint"]["base_url"], good["deadline_s"] = "http://10.1.2.3:9/x", 0.1
    assert httpx.post(url, json=good, headers=headers, trust_env=False).status_code == 202


def test_a_loopback_peer_stays_one_whatever_a_header_says(graph_started, models):
    payload = graph_started.payload(models.script(DONE))
    assert graph_started.create(payload, headers={"X-Forwarded-For": "192.0.2.1"}).status_code == 202
    assert graph_started.wait(payload["request_id"])["status"] == "completed"


def changed(payload, path, value):
    """The payload with another value at a dotted path; `...` removes it."""
    *parents, last = path.split(".")
    place = payload
    for name in parents:
        place = place[name]
    place[last] = value
    if value is ...:
        del place[last]
    return payload


LONG = SECRET_PREFIX + "x" * MEGABYTE
# One of each kind that unit/gateway/test_payload.py holds, and what is odd only on the wire.
UNFIT = {
    "protocol_version": ["relax-nemo-gym/v2", ...],
    "request_id": [LONG, "a\x00", "../x", "a%20", "\U0001f600"],
    "session.session_id": [LONG, *(SECRET_PREFIX + odd for odd in "\n\x7f\u20ac")],
    "session.attempt": [True],
    "environment.task.id": ["0"],
    "environment.task.responses_create_params": [...],
    "model_endpoint.base_url": [f"http://127.0.0.1/{LONG}"],
    "model_endpoint.model": [LONG],
    "model_endpoint.api_key": [LONG, "never-show-me-\r\nX: y", "never-show-me-\u00e9"],
    "model_endpoint.api_key_header": ["Host", "transfer-encoding", "a b", "X\r\nY"],
    "model_endpoint.api_key_prefix": ["B\r\nX: ", "\x00", "\u00e9"],
    "model_endpoint.headers": [
        [], {"X-A": LONG}, *({"X-A": f"{odd}never-show-me"} for odd in ("\x00", "\r\nX-B: ", "\u00e9", "\t")),
        *({name: "never-show-me"} for name in ("X A", "", "X:A", "X-\u00e9", "Authorization", "authorization", "Host")),
        *({name: "1"} for name in ("content-length", "Upgrade", "TE", "Keep-Alive", "Proxy-Authorization")),
    ],
    "deadline_s": [None, ...],
}  # fmt: skip
CASES = [(422, "invalid_payload", path, path, value) for path, values in UNFIT.items() for value in values]
CASES += [(400, "environment_not_registered", "environment", "environment.config", "v2")]
CASES += [
    (400, "callback_not_allowed", URL_FIELD, URL_FIELD, address)
    for address in (
        "http://192.0.2.1:80/x", "http://localhost:80/", "http://[2001:db9::1]/", "http://127.0.0.1:/x",
        "http://127.0.0.1/?q=never-show-me-q", "http://never-show-me-user:never-show-me-pass@127.0.0.1/",
    )
]  # fmt: skip


@pytest.mark.parametrize(("status", "code", "field", "path", "value"), CASES, ids=range(len(CASES)))
def test_what_is_unfit_or_not_allowed_is_named(graph_started, good, status, code, field, path, value):
    assert_error(graph_started.create(changed(good, path, value)), status, code, field)


@pytest.mark.parametrize("path", ["x" * 10_000, "%00", "%ff%fe", "%2e%2e%2f", "a%0ab", "\u00e9", "%F0%9F%98%80"])
def test_odd_ids_in_a_path_are_unknown(graph_started, path):
    assert_error(graph_started.http.get(f"/v1/trials/{path}"), 404)
