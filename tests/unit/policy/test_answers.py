"""Replies of endpoints: each becomes the answer that it is, or somebody's fault, and never another answer."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.answers import read_chat, read_responses
from policy.replies import EndpointFault, PolicyFault, Reply

URL = "http://127.0.0.1:9/v1/x"
CALL = {"name": "email_delete_email", "arguments": '{"email_id": "00000057"}'}
FUNCTION_CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "status": "completed", **CALL}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
PART = {"type": "output_text", "text": "Done.", "annotations": [], "logprobs": []}
MESSAGE = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [PART]}
USAGE = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110, "input_tokens_details": {"cached_tokens": 0}}
ECHOED = {
    "temperature": 1.0, "top_p": 1.0, "service_tier": "default", "store": True, "parallel_tool_calls": False,
    "tool_choice": "auto", "tools": [], "text": {"format": {"type": "text"}}, "reasoning": {"effort": None},
}  # fmt: skip


def responses(*output, **changes):
    answer = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "error": None}
    return answer | {"incomplete_details": None, "output": list(output), "usage": USAGE} | ECHOED | changes


def chat(message, reason, **changes):
    choice = {"index": 0, "message": {"role": "assistant"} | message, "finish_reason": reason, "logprobs": None}
    answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return answer | {"usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}} | changes


def tool_call(**changes):
    return {"id": "call_1", "type": "function", "function": CALL} | changes


def to_items(message):
    """A clean chat message as items, without NeMo Gym's converter, which takes seconds to import."""
    calls = [
        {"type": "function_call", "call_id": call["id"], **call["function"]} for call in message.get("tool_calls", [])
    ]
    said = [{"type": "message", "content": message["content"]}] if message["content"] or not calls else []
    return said + calls


def read(answer, wire, status=200, first_call=False, headers=()):
    data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    reply = Reply(URL, status, dict(headers), data)
    return read_responses(reply, first_call) if wire == "responses" else read_chat(reply, first_call, to_items)


def actions(answer):
    """What a checked answer makes the agent do: its calls, and whether it ends the rollout."""
    calls = [
        (item["name"], json.loads(item["arguments"])) for item in answer["output"] if item["type"] == "function_call"
    ]
    said = any(item["type"] == "message" for item in answer["output"])
    return calls, bool(said and not calls) or "incomplete_details" in answer


GOOD = {
    "call": ("responses", responses(REASONING, FUNCTION_CALL)),
    "closing": ("responses", responses(REASONING, MESSAGE)),
    "chat call": ("chat", chat({"content": None, "tool_calls": [tool_call()]}, "tool_calls")),
    "chat closing": ("chat", chat({"content": "Done.", "reasoning_content": "hm"}, "stop")),
}
ASKED_AGAIN = ([], False)
# What a policy chose freely: another text there is another choice, which no wire can tell from damage.
FREE = {("name",), ("arguments",), ("text",)}


def places(value, path=()):
    """Paths of all that an answer holds."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inner:
        yield from places(child, (*path, key))


def mutated(answer, path, how, other):
    """An answer with one thing at `path` dropped, null, of another type, twice, or of an unknown value."""
    answer = copy.deepcopy(answer)
    *above, key = path
    holder = answer
    for step in above:
        holder = holder[step]
    if how == "drop":
        del holder[key]
    elif how == "twice" and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif how == "turned" and isinstance(holder[key], (list, dict)):
        turned = holder[key]
        holder[key] = turned[::-1] if isinstance(turned, list) else dict(reversed(turned.items()))
    else:
        holder[key] = other
    return answer


@pytest.mark.parametrize("name", GOOD)
@given(data=st.data())
def test_a_mutated_answer_gives_the_same_actions_or_a_cause_and_never_others(name, data):
    wire, answer = GOOD[name]
    path = data.draw(st.sampled_from([path for path in places(answer) if path]))
    how = data.draw(st.sampled_from(["drop", "twice", "turned", "other"]))
    texts = st.sampled_from(["", "zzz"]) if path[-1:] not in FREE else st.nothing()
    other = data.draw(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.just([]), st.just({}), texts))
    try:
        seen = actions(read(mutated(answer, path, how, other), wire))
    except EndpointFault as fault:
        assert str(fault).startswith(URL) and fault.kind
        return
    # An answer that lost its only item is asked for again: the policy says it anew.
    assert seen in (actions(read(answer, wire)), ASKED_AGAIN), (path, how, other)


@pytest.mark.parametrize("name", GOOD)
def test_a_cut_answer_is_no_answer(name):
    wire, answer = GOOD[name]
    data = json.dumps(answer).encode()
    for length in range(len(data)):
        with pytest.raises(EndpointFault, match="answered 200"):
            read(data[:length], wire)


def kind_of(answer, wire="responses", **more):
    with pytest.raises(EndpointFault) as caught:
        read(answer, wire, **more)
    return caught.value.kind


LATER = chat({"content": "I have mov"}, "stop")


@pytest.mark.parametrize(
    "reason", ["error", "abort", "network_error", "timeout", "cancelled", "max_tokens", "x", {"type": "stop"}, 7]
)
def test_an_ending_that_is_not_the_policys_is_no_answer(reason):
    assert kind_of(chat({"content": "I have mov"}, reason), "chat") == "ended_early"


def test_an_error_beside_the_choice_is_named_with_the_providers_words():
    broken = chat({"content": ""}, "stop")
    broken["choices"][0]["error"] = {"code": 502, "message": "Upstream provider disconnected"}
    with pytest.raises(EndpointFault, match="Upstream provider disconnected"):
        read(broken, "chat")


@pytest.mark.parametrize("reason", ["stop", "eos", "eos_token", None])
def test_known_endings_are_answers(reason):
    assert actions(read(chat({"content": "Done."}, reason), "chat")) == ([], True)


@pytest.mark.parametrize(("reason", "why"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_a_cut_chat_answer_is_incomplete(reason, why):
    assert read(chat({"content": "I"}, reason), "chat")["incomplete_details"] == {"reason": why}


@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_an_answer_that_is_not_finished_is_no_answer(status):
    assert kind_of(responses(status=status)) == "not_finished"


@pytest.mark.parametrize("details", [None, {}, {"reason": None}, {"reason": "max_tokens"}, "x", {"reason": "new"}])
def test_incomplete_is_cut_short_whatever_the_details(details):
    assert "incomplete_details" in read(
        responses(MESSAGE, status="incomplete", incomplete_details=details), "responses"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"reasoning": {"effort": "none", "summary": None}},
        {"service_tier": "standard"},
        {"created_at": None},
        {"created_at": "2026-01-05T10:00:00Z"},
        {"tool_choice": {"type": "something_new"}},
        {"id": None, "model": None},
        {"text": {"verbosity": "adaptive"}},
        {"temperature": "1.0"},
        {"error": {}},
        {"error": {"code": None}},
        {"usage": None},
        {"usage": {"prompt_tokens": 1.0}},
        {"usage": {"input_tokens": "many"}},
        {"seed": 10**30},
    ],
)
def test_what_is_merely_echoed_does_not_matter(changes):
    assert actions(read(responses(FUNCTION_CALL, **changes), "responses")) == actions(
        read(responses(FUNCTION_CALL), "responses")
    )


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"input_tokens": 5.0, "output_tokens": 2}, (5, 2)),
        ({"prompt_tokens": 5, "completion_tokens": 2}, (5, 2)),
        ({"input_tokens": 5, "cost": 0.1}, (5, 0)),
        ({"input_tokens": -1}, None),
        ({"input_tokens": True}, None),
        (7, None),
    ],
)
def test_token_counts_are_taken_where_they_are_counts(usage, counts):
    usage = read(responses(MESSAGE, usage=usage), "responses").get("usage")
    assert (usage and (usage["input_tokens"], usage["output_tokens"])) == counts


@pytest.mark.parametrize(
    "item",
    [
        REASONING | {"content": [{"type": "reasoning_text", "text": "hm"}], "summary": []},
        {"type": "reasoning", "summary": "hm"},
        {"type": "reasoning", "content": "hm"},
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "mcp_list_tools", "tools": []},
        {"type": "web_search_call", "action": {"query": "x"}},
    ],
)
def test_items_without_an_action_change_nothing(item):
    assert actions(read(responses(item, FUNCTION_CALL), "responses"))[0] == [
        (CALL["name"], json.loads(CALL["arguments"]))
    ]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "custom_tool_call", "name": "x", "input": "y"},
        {"type": "mcp_call", "name": "x", "arguments": "{}"},
        None,
        7,
        {"type": "something_new"},
        {},
        MESSAGE | {"role": "user"},
        FUNCTION_CALL | {"name": None},
        FUNCTION_CALL | {"arguments": None},
        FUNCTION_CALL | {"arguments": [1]},
        FUNCTION_CALL | {"arguments": {}},
        FUNCTION_CALL | {"type": "web_search_call"},
    ],
)
def test_an_item_that_may_have_been_a_call_is_no_answer(item):
    assert kind_of(responses(item)) == "schema"


def test_a_call_without_its_type_is_still_a_call():
    item = {key: value for key, value in FUNCTION_CALL.items() if key != "type"}
    assert actions(read(responses(item), "responses"))[0]


@pytest.mark.parametrize(
    ("changes", "identity"), [({"call_id": None}, "fc_1"), ({"call_id": 7}, "7"), ({"call_id": "", "id": ""}, "call_")]
)
def test_a_call_gets_an_id(changes, identity):
    assert read(responses(FUNCTION_CALL | changes), "responses")["output"][0]["call_id"].startswith(identity)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Done.", "Done."),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "Done."}], "Done."),
        ("Done \ud83d", "Done \ufffd"),
        (
            [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "Done."}],
            "Done.",
        ),
    ],
)
def test_content_may_be_a_text_or_parts(content, text):
    [item] = read(chat({"content": content}, "stop"), "chat")["output"]
    assert item["content"][0]["text"] == text


def test_a_refusal_is_kept():
    parts = [{"type": "refusal", "refusal": "I can't."}]
    assert read(responses(MESSAGE | {"content": parts}), "responses")["output"][0]["content"] == parts
    [item] = read(chat({"content": None, "refusal": "I cannot."}, "stop"), "chat")["output"]
    assert item["content"][0]["text"] == "I cannot."


@pytest.mark.parametrize(
    "data",
    [
        b'{"stats": NaN, "output": []}',
        b'{"x": -Infinity, "output": []}',
        b'\xef\xbb\xbf{"output": []}',
        b'\n \n{"output": []}',
        '{"output": []}'.encode("utf-16"),
        b'{"x": "\\ud83d", "output": []}',
    ],
)
def test_json_that_is_odd_where_nothing_needs_it_is_taken(data):
    assert read(data, "responses")["output"] == []


@pytest.mark.parametrize(
    ("data", "headers", "words"),
    [
        (b"", (), "an empty body"),
        (b"null", (), "instead of a JSON object"),
        (b"[]", (), "a list instead"),
        (b"<!DOCTYPE html><title>Sign in</title>", (), "a web page ('Sign in')"),
        (b"event: x\ndata: {}\n\n", (), "a stream of events"),
        (b"data", {"content-type": "text/event-stream"}, "a stream of events"),
        (b'{"object": "error", "message": "overloaded"}', (), "overloaded"),
        (b'{"detail": "not loaded"}', (), "not loaded"),
        (b'{"error": "model not found"}', (), "model not found"),
        (b'{"code": 500, "msg": "used up"}', (), "used up"),
        (b'{"choices": []}', (), "WIRE=chat"),
        ('{"output": [], "x": "Gr\xfc\xdfe"}'.encode("latin-1"), (), "without JSON"),
    ],
)
def test_what_is_no_answer_is_named(data, headers, words):
    with pytest.raises(EndpointFault) as caught:
        read(data, "responses", headers=headers)
    assert words in str(caught.value)


VLLM = "This model's maximum context length is 4096 tokens. However, you requested 4350 tokens in the messages."
FULL = [
    (400, {"error": {"message": VLLM, "type": "BadRequestError", "code": 400}}),
    (400, {"error": {"message": "too long", "code": "context_length_exceeded"}}),
    (
        400,
        {
            "error": {
                "message": "`inputs` tokens + `max_new_tokens` must be <= 4097. Given: 4300 `inputs` tokens and 512"
            }
        },
    ),
    (
        500,
        {
            "error": {
                "code": 500,
                "message": "exceeds the available context size",
                "n_prompt_tokens": 4300,
                "n_ctx": 4096,
            }
        },
    ),
    (400, {"object": "error", "message": VLLM, "code": 40303}),
    (422, {"detail": VLLM}),
]
NOT_FULL = [
    (400, {"error": {"message": "the context length parameter is not supported"}}, "status"),
    (400, {"error": {"message": "Unsupported value: 'temperature'"}}, "status"),
    (
        413,
        {"error": {"message": "Request too large. Limit 6000, Requested 8231", "code": "rate_limit_exceeded"}},
        "status",
    ),
    (404, {"error": {"message": VLLM}}, "status"),
]


@pytest.mark.parametrize(("status", "body"), FULL)
def test_a_full_context_is_the_policys_once_it_has_acted_and_a_fault_before(status, body):
    with pytest.raises(PolicyFault) as caught:
        read(body, "chat", status)
    assert caught.value.reason == "context_length_exceeded" and len(str(caught.value)) > 5
    assert kind_of(body, "chat", status=status, first_call=True) == "prompt_too_long"


@pytest.mark.parametrize(("status", "body", "kind"), NOT_FULL)
def test_one_word_is_no_full_context(status, body, kind):
    assert kind_of(body, "chat", status=status) == kind


@pytest.mark.parametrize(
    ("status", "error", "kind", "again"),
    [
        (429, {"code": "insufficient_quota"}, "quota", False),
        (429, {"message": "You exceeded your current quota"}, "quota", False),
        (402, {"message": "Insufficient credits"}, "quota", False),
        (429, {"message": "slow down"}, "status", True),
        (503, {"message": "loading"}, "status", True),
        (401, {"message": "no"}, "status", False),
        (301, {}, "redirect", False),
    ],
)
def test_a_refusal_says_whether_another_try_may_help(status, error, kind, again):
    with pytest.raises(EndpointFault) as caught:
        read({"error": error}, "responses", status)
    assert (caught.value.kind, caught.value.again) == (kind, again)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "300"}, 0.3),
        ({"Retry-After": "2"}, 2.0),
        ({"Retry-After": "x"}, None),
        ({}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "-1"}, 0.0),
        ({"Retry-After": "Mon, 01 Jan 2026 00:00:00 +999999999999999"}, None),
    ],
)
def test_the_wait_that_an_endpoint_asks_for(headers, seconds):
    with pytest.raises(EndpointFault) as caught:
        read({"error": {"message": "slow"}}, "responses", 429, headers=headers)
    assert caught.value.retry_after == seconds


def test_an_endpoint_that_says_not_to_try_again_is_heard():
    body = {"error": {"message": "Response parsers produced an empty assistant message"}}
    with pytest.raises(PolicyFault) as caught:
        read(body, "responses", 500, headers={"X-Should-Retry": "false"})
    assert caught.value.reason == "unparsable_call"
    with pytest.raises(EndpointFault) as fault:
        read({"error": {"message": "boom"}}, "responses", 500, headers={"x-should-retry": "false"})
    assert not fault.value.again


def test_the_same_call_twice_with_one_id_is_no_answer():
    assert kind_of(responses(FUNCTION_CALL, FUNCTION_CALL)) == "schema"
    # Ids that begin anew in each turn, or one id for all calls of a tool, are common; the calls differ.
    other = FUNCTION_CALL | {"arguments": '{"email_id": "00000058"}'}
    assert len(actions(read(responses(FUNCTION_CALL, other), "responses"))[0]) == 2


def test_a_secret_is_in_no_words():
    reply = Reply(URL, 500, {}, b'{"error": {"message": "key sk-secret is bad"}}')
    with pytest.raises(EndpointFault) as caught:
        read_responses(reply, False, lambda text: text.replace("sk-secret", "***"))
    assert "sk-secret" not in str(caught.value) and "***" in str(caught.value)


@pytest.mark.parametrize("wire", ["responses", "chat"])
def test_what_is_nested_too_deep_is_no_answer(wire):
    deep = b"[" * 900 + b'"x"' + b"]" * 900
    bodies = [
        b'{"error": %s, "output": [], "choices": []}' % deep,
        b'{"output": [{"type": "message", "content": %s}]}' % deep,
        b'{"choices": [{"message": {"content": null, "reasoning": %s}}]}' % deep,
    ]
    for body in bodies:
        with pytest.raises(EndpointFault):
            read(body, wire)
