"""An endpoint over its two wires: what is sent, what becomes of each answer, which faults are tried again."""

import email.utils
import gzip
import json
import threading
import time
from contextlib import nullcontext, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from policy.endpoint import Endpoint, as_policy, insist
from policy.model_api import ModelError
from policy.replies import EndpointFault, PolicyFault, retry_after
from support.http_server import nobody
from support.scripted_endpoint import REPORTED, Reply, ScriptedEndpoint

KEY = "never-show-me-key"
TOOL = {"type": "function", "name": "find", "description": "d", "strict": False, "parameters": {"type": "object"}}
ROW = {
    "responses_create_params": {"input": [{"role": "system", "content": "S"}, {"role": "user", "content": "Find."}]},
    "ground_truth": [{"name": "find", "arguments": '{"a": 1}'}],
}
BODY = ROW["responses_create_params"] | {"tools": [TOOL], "parallel_tool_calls": False, "temperature": 1.0}
HISTORY = [
    {"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "I think."}]},
    {"type": "message", "id": "m1", "role": "assistant", "status": "completed",
     "content": [{"type": "output_text", "text": "So:", "annotations": []}]},
    {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"a": 1'},
    {"type": "function_call_output", "call_id": "c1", "output": '{"error": "no"}'},
]  # fmt: skip


@pytest.fixture
def scripted():
    with ScriptedEndpoint([ROW]) as server:
        yield server


class Raw(BaseHTTPRequestHandler):
    """Answers each call with the server's `parts`, bytes as they are, with a `pause` after each."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.client_address, self.headers))
        with suppress(ConnectionError):
            for part in self.server.parts:
                self.wfile.write(part)
                time.sleep(self.server.pause)
        self.close_connection = not self.server.keeps

    def log_message(self, *_):
        """The test reads the calls."""


@pytest.fixture
def raw():
    with ThreadingHTTPServer(("127.0.0.1", 0), Raw) as server:
        server.pause, server.keeps, server.asked = 0, False, []
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


def whole(body, status=200, headers=""):
    return f"HTTP/1.1 {status} S\r\nContent-Length: {len(body)}\r\n{headers}\r\n{body}".encode()


def endpoint(server, wire="responses"):
    return Endpoint(server.url, "m", KEY, 20, wire)


def chat_answer(message, finish="stop", **more):
    return json.dumps({"choices": [{"message": message, "finish_reason": finish}], "model": "x"} | more).encode()


@pytest.mark.parametrize("wire", ["responses", "chat"])
@pytest.mark.parametrize("suffix", ["", "/v1"])
def test_both_wires_give_the_same_call_and_its_usage(scripted, wire, suffix):
    answer = Endpoint(scripted.url + suffix, "m", KEY, 20, wire).answer(BODY)
    [call] = answer["output"]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "find", '{"a": 1}') and call["call_id"]
    assert answer["usage"]["total_tokens"] == 110 and answer["model"] == REPORTED
    [(path, headers, sent)] = scripted.requests
    assert path.startswith("/v1/") and headers["Authorization"] == f"Bearer {KEY}" and sent["model"] == "m"
    assert sent["stream"] is False, "some servers stream unless they are told otherwise"


def test_a_history_becomes_chat_messages_with_thoughts_beside_the_content(scripted):
    endpoint(scripted, "chat").answer(BODY | {"input": BODY["input"] + HISTORY})
    [(_, _, sent)] = scripted.requests
    assert [item["role"] for item in sent["messages"]] == ["system", "user", "assistant", "tool"]
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"a": 1'}}
    thoughts = {"content": "So:", "reasoning_content": "I think."}
    assert sent["messages"][2] == {"role": "assistant", **thoughts, "tool_calls": [call]}
    assert sent["messages"][3] == {"role": "tool", "tool_call_id": "c1", "content": '{"error": "no"}'}
    function = {name: TOOL[name] for name in ("name", "description", "parameters")}
    assert sent["tools"] == [{"type": "function", "function": function}] and sent["temperature"] == 1.0
    # Without calls there is no empty list of them.
    endpoint(scripted, "chat").answer(BODY | {"input": [*BODY["input"], HISTORY[1], BODY["input"][1]]})
    assert all("tool_calls" not in item for item in scripted.requests[1][2]["messages"])


@pytest.mark.parametrize(
    ("said", "finish", "kinds", "reason"),
    [
        ({"content": "Hi."}, "stop", ["message"], None),
        ({"content": "<think>t</think>Hi."}, "stop", ["reasoning", "message"], None),
        ({"content": None, "reasoning_content": "t"}, "stop", ["reasoning"], None),
        ({"content": "Hi", "reasoning": "t"}, "length", ["reasoning", "message"], "max_output_tokens"),
        ({"content": None, "tool_calls": None}, "content_filter", ["message"], "content_filter"),
        ({"tool_calls": [{"function": {"name": "find", "arguments": "{"}}]}, "tool_calls", ["function_call"], None),
    ],
)
def test_a_chat_answer_becomes_items(scripted, said, finish, kinds, reason):
    scripted.behaviour = lambda asked: Reply(body=chat_answer(said, finish))
    answer = endpoint(scripted, "chat").answer(BODY)
    assert [item["type"] for item in answer["output"]] == kinds
    assert (answer.get("incomplete_details") or {}).get("reason") == reason
    assert all(item.get("call_id") for item in answer["output"] if item["type"] == "function_call")
    assert "usage" not in answer


@pytest.mark.parametrize("wire", ["responses", "chat"])
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"no json", "without JSON: no json"),
        (b"[]", "a list instead of a JSON object"),
        (b'{"error": {"message": "overloaded"}}', "200 with an error: overloaded"),
        (b"{}", "is null"),
        (b'{"choices": [], "output": 1}', "choices is a list|output is a number"),
        (b"[" * 100_000, "without JSON"),
    ],
)
def test_a_200_that_is_no_answer_is_a_fault_that_no_other_try_cures(scripted, wire, body, words):
    scripted.behaviour = lambda asked: Reply(body=body)
    with pytest.raises(EndpointFault, match=words) as fault:
        endpoint(scripted, wire).answer(BODY)
    assert (fault.value.status, fault.value.again) == (502, False) and scripted.url in fault.value.message


@pytest.mark.parametrize(
    ("status", "shown", "again"),
    [(400, 400, False), (401, 401, False), (302, 502, False), (429, 429, True), (500, 500, True), (503, 503, True)],
)
def test_a_status_is_shown_with_what_came_and_without_the_key(raw, status, shown, again):
    raw.parts = [whole(f'{{"key": "{KEY}"}}', status, "Retry-After: 7\r\nLocation: http://127.0.0.1:9/\r\n")]
    with pytest.raises(EndpointFault) as fault:
        endpoint(raw).answer(BODY)
    error = fault.value
    assert (error.status, error.again, error.retry_after) == (shown, again, 7 if shown != 502 else None)
    assert f"answered {status}" in error.message and KEY not in error.message
    assert ("***" in error.message) == (status != 302)
    assert len(raw.asked) == 1


def test_a_full_context_is_the_policys_fault_once_it_has_acted(raw):
    raw.parts = [whole("This model's maximum context length is 8192 tokens. You requested 9000.", 400)]
    with pytest.raises(EndpointFault) as fault:
        endpoint(raw).answer(BODY)
    assert fault.value.kind == "prompt_too_long"
    with pytest.raises(PolicyFault, match="8192") as full:
        endpoint(raw).answer(BODY | {"input": BODY["input"] + HISTORY})
    assert full.value.reason == "context_length_exceeded"
    with pytest.raises(ModelError, match="8192") as answer:
        as_policy(endpoint(raw), BODY | {"input": BODY["input"] + HISTORY}, 1, threading.Event())
    assert (answer.value.status, answer.value.code) == (400, "context_length_exceeded")


def test_a_refused_parameter_is_no_full_context(raw):
    raw.parts = [whole("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", 400)]
    with pytest.raises(EndpointFault, match="max_completion_tokens"):
        endpoint(raw, "chat").answer(BODY)


def test_what_the_converter_does_not_take_is_said_in_a_line(scripted):
    with pytest.raises(EndpointFault, match="does not fit the chat wire") as fault:
        endpoint(scripted, "chat").answer({"input": [{"type": "nothing"}]})
    assert fault.value.status == 400 and "\n" not in fault.value.message and not scripted.requests
    assert fault.value.kind == "wire"


def test_no_cookie_is_kept_and_no_netrc_or_proxy_asked_for_this_machine(raw, tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login u password p\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    raw.parts = [whole('{"output": []}', headers="Set-Cookie: a=b\r\n")]
    without_key = Endpoint(raw.url, "m", None, 20)
    without_key.answer(BODY)
    # As for an endpoint elsewhere, which the environment may have a netrc for.
    without_key.http.trust_env = True
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    without_key.answer(BODY)
    assert all("Cookie" not in headers and "Authorization" not in headers for _, headers in raw.asked)


def test_models_are_listed_where_there_is_a_list(scripted):
    assert endpoint(scripted).models() == [REPORTED]
    assert Endpoint("http://127.0.0.1:9", "m", None, 5).models() == []


@pytest.mark.parametrize("wire", ["responses", "chat"])
@pytest.mark.parametrize("usage", ["5", [1], {"input_tokens": "a", "prompt_tokens": -5, "completion_tokens": True}])
def test_a_usage_that_counts_nothing_is_left_out(scripted, wire, usage):
    body = chat_answer({"content": "Hi."}, usage=usage, output=[])
    scripted.behaviour = lambda asked: Reply(body=body)
    assert "usage" not in endpoint(scripted, wire).answer(BODY)


@pytest.mark.parametrize("key", [KEY, "EMPTY"])
def test_a_key_that_comes_back_in_an_answer_is_hidden_unless_it_is_a_word(scripted, key):
    scripted.behaviour = lambda asked: Reply(body=json.dumps({"output": [], "model": f"of {key}"}).encode())
    assert Endpoint(scripted.url, "m", key, 20).answer(BODY)["model"] == ("of EMPTY" if key == "EMPTY" else "of ***")


HEAD = b"HTTP/1.1 200 OK\r\n%s\r\n\r\n"
REFUSED = b"HTTP/1.1 400 No\r\nContent-Length: 2\r\nContent-Type: text/plain; charset=%s\r\n\r\nno"


@pytest.mark.parametrize(
    ("parts", "words", "kind"),
    [
        ([], "hung up", "connection_broken"),
        ([HEAD % b"Transfer-Encoding: chunked", b"-5\r\nabc\r\n"], "http", "connection_broken"),
        ([HEAD % b"Transfer-Encoding: chunked", b"zz\r\nabc\r\n"], "http", "connection_broken"),
        ([HEAD % b"Content-Length: 99", b"{}"], "http", "connection_broken"),
        ([HEAD % b"Content-Encoding: gzip", b"no gzip"], "http", "connection_broken"),
        ([HEAD % b"Content-Encoding: gzip", gzip.compress(b" " * (64 << 20))], "more than 16777216 bytes", "too_large"),
        ([HEAD % b"X: y", *[b" " * (1 << 20)] * 20], "more than 16777216 bytes", "too_large"),
        ([REFUSED % b"idna"], "400: no", "status"),
        ([REFUSED % b"undefined"], "400: no", "status"),
    ],
)
def test_bytes_that_are_no_answer_are_a_fault(raw, parts, words, kind):
    raw.parts = parts
    with pytest.raises(EndpointFault, match=words) as fault:
        endpoint(raw).answer(BODY)
    assert raw.url in fault.value.message and fault.value.kind == kind


def test_an_endpoint_at_which_nobody_listens_is_unreachable():
    with pytest.raises(EndpointFault) as fault:
        Endpoint(nobody(), "m", KEY, 20).answer(BODY)
    assert fault.value.kind == "unreachable" and fault.value.again


@pytest.mark.parametrize(
    ("parts", "pause", "words"),
    [([HEAD % b"X: y", *[b" "] * 100], 0.2, "not whole within 1 s"), ([b"HTTP/1.1", b" "], 2, "timed out")],
)
def test_an_answer_that_comes_too_slowly_is_given_up(raw, parts, pause, words):
    raw.parts, raw.pause = parts, pause
    with pytest.raises(EndpointFault, match=words) as fault:
        Endpoint(raw.url, "m", KEY, 1).answer(BODY)
    assert fault.value.kind == "timeout"


def test_a_connection_is_kept_for_the_next_call(raw):
    raw.parts, raw.keeps = [whole('{"output": []}')], True
    kept = endpoint(raw)
    for _ in range(3):
        kept.answer(BODY)
    assert len(raw.asked) == 3 and len({address for address, _ in raw.asked}) == 1


# --- tries ---------------------------------------------------------------------------------


def answers(*outcomes):
    """An `ask` that raises or returns these in turn, and how often it was called."""
    waiting, calls = list(outcomes), []

    def ask():
        calls.append(1)
        outcome = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if isinstance(outcome, EndpointFault):
            raise outcome
        return outcome

    return ask, calls


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("policy.endpoint.BACKOFF_S", 0.001)


BROKEN = EndpointFault("connection_broken", "broken", again=True)
BAD = EndpointFault("status", "bad", status=400)
LIMITED = EndpointFault("status", "limited", again=True, status=429)


@pytest.mark.parametrize(
    ("outcomes", "tries", "calls", "words"),
    [
        (["ok"], 1, 1, None),
        ([BROKEN, BROKEN, "ok"], 3, 3, None),
        ([LIMITED] * 9 + ["ok"], 1, 10, None),
        ([LIMITED, BROKEN, "ok"], 2, 3, None),
        ([BROKEN], 3, 3, r"broken \(3 tries\)"),
        ([BAD], 5, 1, "bad$"),
        ([BROKEN, BAD], 5, 2, r"bad \(2 tries\)"),
        ([LIMITED, BROKEN, LIMITED, BROKEN], 2, 4, r"broken \(4 tries\)"),
    ],
)
def test_transport_is_tried_again_within_bounds_and_a_rate_limit_for_ever(quick, outcomes, tries, calls, words):
    ask, called = answers(*outcomes)
    with pytest.raises(EndpointFault, match=words) if words else nullcontext() as fault:
        assert insist(ask, tries, threading.Event()) == "ok"
    assert len(called) == calls and (not words or fault.value.kind == outcomes[-1].kind)


def test_the_wait_is_the_one_the_endpoint_asks_for_and_ends_with_the_trial():
    ended, waits = threading.Event(), []
    ended.wait = lambda seconds: waits.append(seconds) or len(waits) > 2
    fault = EndpointFault("status", "limited", True, 3, 429)
    with pytest.raises(EndpointFault, match="the time was up"):
        insist(answers(fault)[0], 1, ended)
    assert waits == [3.0, 3.0, 3.0]


def test_retry_after_is_a_number_or_a_date_within_bounds():
    def seconds(text):
        return retry_after({"retry-after": text})

    texts = ["3", "0.5", "-1", "1e9", "soon", "nan", "", "Wed, 21 Oct 2015 07:28:00 GMT"]
    assert [seconds(text) for text in texts] == [3, 0.5, 0, 86_400, None, None, None, 0]
    assert 20 < seconds(email.utils.formatdate(time.time() + 30, usegmt=True)) <= 30
