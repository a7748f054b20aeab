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

from gateway.model_calls import ITEMS_PER_CALL, MAX_TOKENS, EndpointFault, ModelCalls, TooManyCalls, complete, outgoing
from gateway.payload import ROLLOUT_KEY, Endpoint

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
            except (EndpointFault, TooManyCalls, TimeoutError) as error:
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


@pytest.mark.parametrize("text", ["soon", "-1", "1e3", "Wed, 21 Oct 2026 07:28:00 GMT", "９", "9" * 20, ""])
def test_a_retry_after_that_is_no_number_of_seconds_counts_for_nothing(text):
    given, server = call(answer("busy", 503, Retry_After=text.encode().decode("latin-1")), answer(ANSWER))
    assert given["id"] == "r1" and len(server.seen) == 2


def test_a_retry_after_beyond_the_deadline_ends_with_the_deadline():
    error, server = call(answer("busy", 503, Retry_After="60"), deadline_s=0.5)
    assert isinstance(error, TimeoutError) and len(server.seen) == 1


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


DEEP = json.loads("[" * 300 + "]" * 300)
NO_ANSWERS = [
    *((text, "not_json") for text in ("garbage", "", b"\xff\xfe\x00", '{"output": [NaN]}')),
    *((body, "schema") for body in ([ANSWER], "null", {"choices": []}, {"output": None}, {"output": "text"})),
    ({"error": {"message": "no"}}, "error_body"),
    (ANSWER | {"error": {"code": "server_error", "message": "no"}}, "error_body"),
    *((ANSWER | {"status": status}, "error_body") for status in ("failed", "cancelled")),
    *(
        (ANSWER | {"output": [item]}, "schema")
        for item in (None, "text", {"type": "unknown"}, MESSAGE | {"content": 7})
    ),
    *((ANSWER | {"output": [CALL | changes]}, "schema") for changes in ({"arguments": {"a": 1}}, {"name": None})),
    # The last can be read, but not be written again.
    *((ANSWER | changes, "schema") for changes in ({"created_at": "yesterday"}, {"usage": "much"}, {"extra": DEEP})),
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
    given, _ = call(answer(ANSWER | {"output": [item] * most}))
    assert len(given["output"]) == most
    error, server = call(answer(ANSWER | {"output": [item] * (most + 1)}))
    assert isinstance(error, TooManyCalls) and f"{most + 1} {what}" in str(error) and len(server.seen) == 1


def test_what_the_trainers_api_leaves_out_is_filled_in():
    output = [
        {"role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "hi"}]},
        {"type": "function_call", "name": "f", "arguments": "{}"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "because"}, {"type": "other"}]},
    ]
    given, _ = call(answer({"output": output, "usage": {"input_tokens": 3, "output_tokens": 4}}))
    assert NeMoGymResponse.model_validate(given)
    assert (given["parallel_tool_calls"], given["tool_choice"], given["tools"]) == (False, "auto", [])
    assert given["object"] == "response" and given["id"].startswith("resp_") and given["created_at"] > 0
    assert given["usage"] == {
        "input_tokens": 3,
        "output_tokens": 4,
        "total_tokens": 7,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    message, function_call, reasoning = given["output"]
    assert message["content"][0]["annotations"] == [] and message["id"].startswith("mes_")
    assert function_call["call_id"]
    assert reasoning["summary"] == [{"type": "summary_text", "text": "because"}]


def test_what_is_there_stays_as_it_is():
    details = {"input_tokens_details": {"cached_tokens": 2}, "output_tokens_details": {"reasoning_tokens": 1}}
    usage = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 9, **details}
    reasoning = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "short"}]}
    made = ANSWER | {
        "model": "m",
        "usage": usage,
        "parallel_tool_calls": True,
        "tool_choice": "required",
        "tools": [{"name": "large"}],
        "output": [MESSAGE | {"id": "m1"}, CALL | {"id": "f1"}, reasoning],
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
    }
    given, _ = call(answer(made))
    assert given == made | {"tools": []}
    assert complete(json.loads(json.dumps(given))) == given, "completing twice is completing once"


@pytest.mark.parametrize(
    "usage", [None, {}, {"input_tokens": None}, {"input_tokens": 1, "output_tokens_details": None}]
)
def test_usage_may_be_left_out_in_part_or_whole(usage):
    given, _ = call(answer(ANSWER | {"usage": usage}))
    assert given["usage"] is None or given["usage"]["total_tokens"] in (0, 1)


@pytest.mark.parametrize(("count", "taken"), [(5, 5), (MAX_TOKENS, MAX_TOKENS), (2**63, 0), (True, 0), (-1, 0)])
def test_token_counts_are_numbers_that_can_be_stored(count, taken):
    assert complete({"output": [], "usage": {"input_tokens": count}})["usage"]["input_tokens"] == taken


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
    except (EndpointFault, TooManyCalls):
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
    assert str(error).endswith("400: a b" + "c" * 197)
