"""Model calls against a scripted endpoint: what is sent, what is sent again, what becomes of each answer."""

import asyncio
import contextlib
import json
import socket
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from nemo_gym.openai_utils import NeMoGymResponse

from gateway.model_calls import ITEMS_PER_CALL, ModelCalls, TooManyCalls, outgoing
from gateway.payload import ROLLOUT_KEY, Endpoint
from policy.replies import EndpointFault, PolicyFault

SECRET = "bearer-that-nobody-may-see"
MESSAGE = {"type": "message", "role": "assistant", "status": "completed", "content": []}
CALL = {"type": "function_call", "name": "email_search_emails", "arguments": "{}", "call_id": "c1"}
ANSWER = {"id": "r1", "object": "response", "status": "completed", "created_at": 1, "output": [MESSAGE]}
BODY = {"input": [{"role": "user", "content": "hello"}], "metadata": {ROLLOUT_KEY: "r", "mine": "kept"}}
LIMITS = {
    "GATEWAY_MODEL_TRIES": 4,
    "GATEWAY_MODEL_BACKOFF_S": 0.01,
    "GATEWAY_MAX_ANSWER_BYTES": 100_000,
    "GATEWAY_MAX_CALLS_PER_ANSWER": 3,
}


def answer(body, status=200, **headers):
    text = body if isinstance(body, (bytes, str)) else json.dumps(body)
    return lambda: web.Response(body=text, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()})


class ScriptedEndpoint:
    """Gives the scripted answers one after the other, the last one for ever; keeps what it was sent."""

    def __init__(self, *script):
        self.script, self.seen, self.moments = list(script), [], []

    async def handle(self, request):
        self.seen.append((request.path, dict(request.headers), await request.json()))
        self.moments.append(asyncio.get_running_loop().time())
        step = self.script[min(len(self.seen), len(self.script)) - 1]
        if step in (DROP, HANG):
            return await step(request)
        return step()

    async def __aenter__(self):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}/api/v1/responses"
        return self

    async def __aexit__(self, *_):
        await self.runner.cleanup()


async def DROP(request):
    request.transport.abort()
    return web.Response()


async def HANG(request):
    await asyncio.sleep(30)


def call(*script, body=BODY, sampling=None, deadline_s=20, url=None, secret=SECRET, **limits):
    """Forward one call to an endpoint that answers as scripted: (answer or exception, endpoint)."""

    async def run():
        deadline = asyncio.get_running_loop().time() + deadline_s
        async with ScriptedEndpoint(*script) as server, aiohttp.ClientSession() as http:
            calls = ModelCalls(http, SimpleNamespace(**LIMITS | limits), NeMoGymResponse.model_validate)
            headers = {"Authorization": f"Bearer {secret}", "X-Extra": "1"}
            endpoint = Endpoint(url or server.url, "the-model", headers, (secret,))
            try:
                return await calls.forward(endpoint, sampling or {}, body, deadline), server
            except (EndpointFault, PolicyFault, TooManyCalls, TimeoutError) as error:
                assert SECRET not in str(error)
                return error, server

    return asyncio.run(run())


def fault(*script, **more):
    error, server = call(*script, **more)
    assert isinstance(error, EndpointFault), error
    assert (more.get("url") or server.url) in str(error)
    return error, server


# --- what is sent --------------------------------------------------------------------------


def test_a_call_goes_out_once_with_the_key_and_without_the_rollout_id(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    given, server = call(answer(ANSWER), sampling={"top_p": 0.5})
    assert given["output"][0]["type"] == "message"
    [(path, headers, sent)] = server.seen
    assert path == "/api/v1/responses"
    assert headers["Authorization"] == f"Bearer {SECRET}" and headers["X-Extra"] == "1" and "Cookie" not in headers
    assert sent == {"input": BODY["input"], "metadata": {"mine": "kept"}, "model": "the-model", "top_p": 0.5}


def test_outgoing_leaves_the_agents_body_alone_and_sends_no_empty_metadata():
    body = {"input": "x", "model": "policy_model", "metadata": {ROLLOUT_KEY: "r"}, "temperature": 1}
    before = json.dumps(body)
    assert outgoing(body, "m", {"temperature": 0.5}) == {"input": "x", "model": "m", "temperature": 0.5}
    assert json.dumps(body) == before
    assert outgoing({"input": "x", "metadata": None}, "m", {}) == {"input": "x", "model": "m"}
    assert outgoing({"input": "x"}, "m", {}) == {"input": "x", "model": "m"}


# --- what is sent again --------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_an_explicit_status_is_tried_again_with_the_same_call(status):
    given, server = call(answer("busy", status), answer("busy", status), answer(ANSWER))
    assert given["id"] == "r1" and len(server.seen) == 3
    assert len({json.dumps(sent) for _, _, sent in server.seen}) == 1


def test_tries_are_bounded_and_their_waits_double():
    error, server = fault(answer("busy", 503), GATEWAY_MODEL_BACKOFF_S=0.1)
    assert error.kind == "status" and "503" in str(error) and len(server.seen) == 4
    waits = [later - sooner for sooner, later in zip(server.moments, server.moments[1:], strict=False)]
    assert waits[0] >= 0.1 and waits[1] >= 0.2 and waits[2] >= 0.4


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_kept_to(status):
    given, server = call(answer("busy", status, Retry_After="1"), answer(ANSWER))
    assert given["id"] == "r1"
    assert 1 <= server.moments[1] - server.moments[0] < 5
    given, server = call(answer("busy", status, Retry_After="0"), answer(ANSWER), GATEWAY_MODEL_BACKOFF_S=15)
    assert given["id"] == "r1" and len(server.seen) == 2


@pytest.mark.parametrize("text", ["soon", "-1", "Wed, 21 Oct 2020 07:28:00 GMT", "９", "nan", ""])
def test_a_retry_after_that_is_no_time_to_come_counts_for_nothing(text):
    given, server = call(answer("busy", 503, Retry_After=text.encode().decode("latin-1")), answer(ANSWER))
    assert given["id"] == "r1" and len(server.seen) == 2


@pytest.mark.parametrize(("status", "kind"), [(503, "status"), (429, "quota")])
def test_a_wait_beyond_the_deadline_is_not_begun(status, kind):
    error, server = fault(answer("busy", status, Retry_After="60"), deadline_s=5)
    assert error.kind == kind and "longer than the trial has left" in str(error) and len(server.seen) == 1


def test_an_endpoint_that_says_not_to_try_again_is_heard():
    error, server = fault(answer("boom", 500, x_should_retry="false"), answer(ANSWER))
    assert error.kind == "status" and len(server.seen) == 1


def test_a_full_context_is_the_endpoints_fault_at_the_first_call_and_the_policys_later():
    full = answer({"error": {"code": "context_length_exceeded", "message": "8192 tokens are the limit"}}, 400)
    assert fault(full)[0].kind == "prompt_too_long"
    later = BODY | {"input": [*BODY["input"], CALL, {"type": "function_call_output", "call_id": "c1", "output": "x"}]}
    error, server = call(full, body=later)
    assert isinstance(error, PolicyFault) and error.reason == "context_length_exceeded"
    assert "8192 tokens" in str(error) and len(server.seen) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 409, 422, 501])
def test_another_status_is_final(status):
    error, server = fault(answer("no such thing", status))
    assert error.kind == "status" and f"{status}: no such thing" in str(error) and len(server.seen) == 1


def test_a_broken_connection_is_never_tried_again():
    error, server = fault(DROP, answer(ANSWER))
    assert error.kind == "connection_broken" and len(server.seen) == 1


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"


@pytest.mark.parametrize("text", [HEAD + b'{"id": ', b"", b"SSH-2.0-OpenSSH\r\n"])
def test_an_answer_that_breaks_off_is_never_asked_for_again(text):
    accepted = []

    async def serve(reader, writer):
        accepted.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(text)
        await writer.drain()
        writer.close()

    async def run():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/responses"
        async with server, aiohttp.ClientSession() as http:
            calls = ModelCalls(http, SimpleNamespace(**LIMITS), NeMoGymResponse.model_validate)
            await calls.forward(Endpoint(url, "m", {}, ()), {}, BODY, asyncio.get_running_loop().time() + 10)

    with pytest.raises(EndpointFault) as error:
        asyncio.run(run())
    assert (error.value.kind, len(accepted)) == ("connection_broken", 1)


def test_nobody_there_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1/responses"
        error, server = fault(answer(ANSWER), url=url)
    assert error.kind == "unreachable" and not server.seen


def test_a_redirect_is_not_followed():
    error, server = fault(answer("", 307, Location="/elsewhere"))
    assert error.kind == "redirect" and "307" in str(error) and len(server.seen) == 1


def test_the_deadline_lies_over_everything():
    for script in ([HANG], [answer("busy", 503)]):
        error, _ = call(*script, deadline_s=0.3, GATEWAY_MODEL_TRIES=100, GATEWAY_MODEL_BACKOFF_S=0.2)
        assert isinstance(error, TimeoutError)


# --- what becomes of an answer -------------------------------------------------------------


NO_ANSWERS = [
    *((text, "not_json") for text in ("garbage", "", b"\xff\xfe\x00", [ANSWER], "null")),
    *((body, "schema") for body in ({"choices": []}, {"output": None}, {"output": "text"})),
    ({"error": {"message": "no"}}, "error_body"),
    *((ANSWER | {"status": status}, kind) for status, kind in (("failed", "error_body"), ("queued", "not_finished"))),
    *((ANSWER | {"output": [item]}, "schema") for item in (None, "text", {"type": "unknown"}, CALL | {"name": None})),
]


@pytest.mark.parametrize(("body", "kind"), NO_ANSWERS)
def test_an_answer_that_is_none_is_named_by_its_kind_and_final(body, kind):
    error, server = fault(answer(body))
    assert error.kind == kind and len(server.seen) == 1


def test_an_answer_may_be_as_large_as_the_bound_and_no_larger():
    padded = json.dumps(ANSWER).encode().ljust(100_000)
    given, _ = call(answer(padded))
    assert given["id"] == "r1"
    error, server = fault(answer(padded + b" "))
    assert error.kind == "too_large" and "100000 bytes" in str(error) and len(server.seen) == 1
    assert fault(answer(padded + b" ", 500))[0].kind == "too_large"


@pytest.mark.parametrize(
    ("item", "most", "what"), [(CALL, 3, "tool calls"), (MESSAGE | {"id": "m"}, 3 * ITEMS_PER_CALL, "items")]
)
def test_more_calls_or_items_than_the_bound_are_the_policys_fault(item, most, what):
    items = [item | {"call_id": f"c{nth}"} for nth in range(most + 1)]
    given, _ = call(answer(ANSWER | {"output": items[:most]}))
    assert len(given["output"]) == most
    error, server = call(answer(ANSWER | {"output": items}))
    assert isinstance(error, TooManyCalls) and f"{most + 1} {what}" in str(error) and len(server.seen) == 1


def test_what_the_trainers_api_leaves_out_is_filled_in():
    output = [
        {"role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "hi"}]},
        {"type": "function_call", "name": "f", "arguments": "{}"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "because"}, {"type": "other"}]},
    ]
    given, _ = call(answer({"output": output, "usage": {"input_tokens": 3, "output_tokens": 4}}))
    assert NeMoGymResponse.model_validate(given)
    assert given["usage"]["total_tokens"] == 7 and given["output"][1]["call_id"]
    assert given["output"][2]["summary"] == [{"type": "summary_text", "text": "because"}]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
ITEM_KEYS = ("type", "id", "role", "status", "content", "summary", "name", "arguments", "call_id")
KINDS = st.sampled_from(["message", "function_call", "reasoning", "other"])
ITEMS = st.dictionaries(st.sampled_from(ITEM_KEYS), JSON, max_size=5) | st.builds(
    lambda kind, item: item | {"type": kind}, KINDS, st.dictionaries(st.sampled_from(ITEM_KEYS), JSON, max_size=5)
)
USAGE_KEYS = ("input_tokens", "output_tokens", "total_tokens", "input_tokens_details", "output_tokens_details")
ANSWERS = st.fixed_dictionaries(
    {"output": st.lists(ITEMS | JSON, max_size=3)},
    optional={"usage": JSON | st.dictionaries(st.sampled_from(USAGE_KEYS), JSON, max_size=4)}
    | dict.fromkeys(
        ("id", "created_at", "model", "tool_choice", "parallel_tool_calls", "incomplete_details", "text"), JSON
    ),
)


class Answered:
    """An HTTP client, its answer, and the answer's content."""

    status, headers = 200, {}

    def __init__(self, body):
        self.body, self.content = body, self

    def post(self, *_, **__):
        return contextlib.nullcontext(self)

    async def iter_any(self):
        yield json.dumps(self.body).encode()


@settings(max_examples=150, deadline=None)
@given(ANSWERS)
def test_no_answer_is_more_than_a_fault_of_the_endpoint(body):
    calls = ModelCalls(Answered(body), SimpleNamespace(**LIMITS), NeMoGymResponse.model_validate)

    async def run():
        deadline = asyncio.get_running_loop().time() + 60
        return await calls.forward(Endpoint("http://h", "m", {}, ()), {}, BODY, deadline)

    try:
        given = asyncio.run(run())
    except (EndpointFault, PolicyFault, TooManyCalls):
        return
    assert NeMoGymResponse.model_validate(given)
    for name in ("input_tokens", "output_tokens"):
        assert isinstance((given.get("usage") or {}).get(name, 0), int)


# --- redaction -----------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 150, 190, 199, 200, 65_520, 65_535])
@pytest.mark.parametrize("filler", ["x", " ", "\n"])
def test_the_key_is_not_shown_wherever_the_excerpt_is_cut(before, filler):
    error, _ = fault(answer(filler * before + SECRET + " tail", 400))
    assert not any(SECRET[:length] in str(error) for length in range(8, len(SECRET)))


@pytest.mark.parametrize("kind", [400, 200])
@pytest.mark.parametrize("secret", ['se"cret-of-quotes', "se\\cret-of-slashes", "secret/with/slashes"])
def test_the_key_is_not_shown_in_json_either(secret, kind):
    error, _ = fault(answer({"error": f"bad key {secret}"}, kind), secret=secret)
    assert "cret" not in str(error).replace("secrets", "")


def test_an_excerpt_is_one_short_line():
    error, _ = fault(answer("a\r\n\tb" + "c" * 10_000, 400))
    assert len(str(error).splitlines()) == 1 and len(str(error)) < 400 and "400: a b" + "c" * 100 in str(error)
