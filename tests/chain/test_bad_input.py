"""What no client should send (field case E14): all is refused with 4xx and the field's name, never with a 500."""

import http.client
import json
import socket

import httpx
import pytest
import requests

from proofs.rig import SECRET_PREFIX, assert_error, own_address, secret
from support.scripted_model import DONE

URL_FIELD = "model_endpoint.base_url"
MEGABYTE = 1 << 20


def body_with(payload, key, raw):
    """The payload's JSON text with a top-level key whose value is `raw` text."""
    return (json.dumps(payload)[:-1] + f', "{key}": {raw}}}').encode()


@pytest.fixture
def good(graph_started):
    return graph_started.payload("http://127.0.0.1:1")


def post(graph, body, **headers):
    return graph.http.post("/v1/trials", data=body, headers={"Content-Type": "application/json"} | headers)


NO_OBJECTS = [
    b"", b"null", b"[]", b'"text"', b"{", b'{"request_id": "never-show-me-1"', b'{"request_id": never-show-me-1}',
    b"\xff\xfe{}", b'{"a": "\xc3\x28 never-show-me-2"}', b'{"a": 1,}', b"{'a': 1}", b"[" * 100_000, b'{"a":' * 100_000,
    b"\x00" * 100,
]  # fmt: skip


@pytest.mark.parametrize("body", NO_OBJECTS, ids=range(len(NO_OBJECTS)))
def test_a_body_that_is_no_json_object(graph_started, body):
    assert_error(post(graph_started, body), 422, "invalid_payload", "(body)")


@pytest.mark.parametrize("raw", ["NaN", "Infinity", "-Infinity", '"\\ud800"', "01", "[1,]", "[" * 900 + "]" * 900])
@pytest.mark.parametrize("key", ["extra", "metadata"])
def test_values_that_are_no_json_or_survive_no_reader(graph_started, good, key, raw):
    good.pop("metadata", None)
    assert_error(post(graph_started, body_with(good, key, raw)), 422, "invalid_payload")


@pytest.mark.parametrize("depth", [65, 1000, 100_000])
def test_a_task_nested_too_deep(graph_started, good, depth):
    good["environment"]["task"]["extra"] = "HERE"
    body = json.dumps(good).replace('"HERE"', "[" * depth + "]" * depth).encode()
    assert_error(post(graph_started, body), 422, "invalid_payload")


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


def test_a_body_without_end_is_refused_at_the_bound(graph_started):
    def parts():
        for _ in range(100):
            yield b"x" * MEGABYTE

    try:
        answer = graph_started.http.post("/v1/trials", data=parts())
    except requests.RequestException:  # cut off while it sent; the next request tells that nothing broke
        answer = graph_started.http.post("/v1/trials", data=b" " * (5 * MEGABYTE))
    assert_error(answer, 413, "body_too_large")


BAD_ADDRESSES = [
    "http://[::1", "http://127.0.0.1:abc/x", "http://127.0.0.1:99999/x", "http://127.0.0.1:0/x",
    "http://127.0.0.1:-1/x", "http://127.0.0.1:/x", "http://2130706433/", "http://0x7f000001/", "http://0x7f.0.0.1/",
    "http://0177.0.0.1/", "http://127.1/", "http://127.0.0.01/", "http://localhost:80/",
    "http://10.0.0.5.example.org/", "http://[::ffff:192.0.2.1]/", "http://[::ffff:c000:201]:80/",
    "http://[64:ff9b::a00:1]/", "http://[fe80::1%25eth0]/", "http://[fe80::1%eth0]/", "http://[::1%25lo]:80/",
    "http://[v1.x]/", "http://[10.0.0.1]/", "http://never-show-me-user:never-show-me-pass@127.0.0.1/",
    "http://10.0.0.1@192.0.2.1/", "http://@127.0.0.1/", "http://127.0.0.1/#fragment", "http://127.0.0.1/#",
    "http://127.0.0.1/?q=never-show-me-q", "http://127.0.0.1/?", "http://127.0.0.1\\@10.0.0.1/", "http:\\\\127.0.0.1/",
    "http://127.0.0.1/a b", " http://127.0.0.1/", "http://127.0.0.1/\n", "http://127.0.0.1/\x00",
    "http://127.0.0.1/\u00e9", "http://\uff11\uff12\uff17.0.0.1/", "ftp://127.0.0.1/", "file:///etc/passwd",
    "//127.0.0.1/", "127.0.0.1:80", "http:///x", "http://", "http:127.0.0.1", "http://0.0.0.0:80/",
    "http://[::]:80/", "http://169.254.169.254/latest", "http://192.0.2.1/", "http://11.0.0.1/",
    "http://[2001:db9::1]/",
]  # fmt: skip


@pytest.mark.parametrize("address", BAD_ADDRESSES)
def test_addresses_that_are_not_called(graph_started, good, address):
    good["model_endpoint"]["base_url"] = address
    assert_error(graph_started.create(good), 400, "callback_not_allowed", URL_FIELD)


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


BAD_HEADERS = [
    {"X-A": "nul\x00never-show-me-h"}, {"X-A": "line\r\nX-B: never-show-me-h"}, {"X-A": "caf\u00e9"}, {"X-A": "tab\t"},
    {"X-A": "x" * 5000}, {"X A": "v"}, {"": "v"}, {"X:A": "v"}, {"X-\u00e9": "v"},
    {"Authorization": "never-show-me-h"}, {"authorization": "never-show-me-h"}, {"Host": "x"}, {"Connection": "close"},
    {"Transfer-Encoding": "chunked"}, {"content-length": "1"}, {"Upgrade": "h2c"}, {"TE": "trailers"},
    {"Keep-Alive": "1"}, {"Proxy-Authorization": "never-show-me-h"},
]  # fmt: skip


@pytest.mark.parametrize("headers", BAD_HEADERS, ids=range(len(BAD_HEADERS)))
def test_headers_that_may_not_be_set(graph_started, good, headers):
    good["model_endpoint"]["headers"] = headers
    assert_error(graph_started.create(good), 422, "invalid_payload", "model_endpoint.headers")


UNFIT_FIELDS = [
    ("api_key_header", "Host"), ("api_key_header", "transfer-encoding"), ("api_key_header", "a b"),
    ("api_key_header", "X\r\nY"), ("api_key_prefix", "B\r\nX: "), ("api_key_prefix", "\x00"),
    ("api_key_prefix", "\u00e9"), ("api_key", "never-show-me-\r\nX: y"), ("api_key", "never-show-me-\u00e9"),
    ("api_key", "x" * MEGABYTE), ("model", "x" * MEGABYTE), ("base_url", "http://127.0.0.1/" + "x" * MEGABYTE),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), UNFIT_FIELDS, ids=range(len(UNFIT_FIELDS)))
def test_endpoint_fields_that_cannot_stand_in_a_request(graph_started, good, name, value):
    good["model_endpoint"][name] = value
    assert_error(graph_started.create(good), 422, "invalid_payload", f"model_endpoint.{name}")


@pytest.mark.parametrize("request_id", ["x" * MEGABYTE, "a\x00", "a/b", "\u00e9", "a\nb", "a%20", "\U0001f600"])
def test_ids_that_cannot_stand_in_a_path(graph_started, good, request_id):
    good["request_id"] = request_id
    assert_error(graph_started.create(good), 422, "invalid_payload", "request_id")


@pytest.mark.parametrize("path", ["x" * 10_000, "%00", "%ff%fe", "%2e%2e%2f", "a%0ab", "\u00e9", "%F0%9F%98%80"])
def test_odd_ids_in_a_path_are_unknown(graph_started, path):
    assert_error(graph_started.http.get(f"/v1/trials/{path}"), 404)


def test_a_session_id_that_is_too_long_or_no_header_value(graph_started, good):
    for value in (SECRET_PREFIX + "x" * 5000, secret() + "\n", secret() + "\x7f", secret() + "\u20ac"):
        good["session"]["session_id"] = value
        assert_error(graph_started.create(good), 422, "invalid_payload", "session.session_id")


TOOL = {"type": "function", "name": "verify", "parameters": {}, "strict": False}
UNFIT_PARAMS = [
    {"tools": [{"type": "function", "name": "verify"}]}, {"tools": [TOOL]}, {"tools": [TOOL | {"name": "x/../verify"}]},
    {"input": 5}, {"input": []}, {"temperature": "hot"}, {"metadata": {"relax_nemo_gym_rollout_id": "x"}},
    {"metadata": []},
]  # fmt: skip


@pytest.mark.parametrize("params", UNFIT_PARAMS, ids=range(len(UNFIT_PARAMS)))
def test_overrides_of_the_row_that_do_not_fit(graph_started, good, params):
    good["generation"] = {"responses_create_params": params}
    assert_error(graph_started.create(good), 422, "invalid_payload")


@pytest.mark.parametrize(("name", "value"), [("input", []), ("metadata", {}), ("stream", True)])
def test_what_is_no_sampling_parameter_is_named(graph_started, good, name, value):
    good["generation"] = {"sampling_params": {name: value}}
    assert_error(graph_started.create(good), 422, "invalid_payload", f"generation.sampling_params.{name}")


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"GET /nowhere HTTP/9.9\r\n\r\n",
        b"POST /v1/trials HTTP/1.1\r\nHost: x\r\nContent-Length: never\r\n\r\n",
        b"POST /v1/trials HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"x" * MEGABYTE + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"y" * MEGABYTE + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=range(7),
)
def test_what_is_no_http_is_refused_and_the_gateway_goes_on(graph_started, raw):
    with socket.create_connection(("127.0.0.1", graph_started.settings.port("gateway")), timeout=20) as connection:
        try:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(100)
        except OSError:  # it was cut off while it sent
            answer = b""
    assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), answer
    assert graph_started.http.get("/healthz").status_code == 200
