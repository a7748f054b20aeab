"""Create payloads: what is taken, what is refused and how, and that no message shows a secret."""

import copy
import ipaddress
import json
from importlib import metadata
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming

from gateway.payload import ROLLOUT_KEY, ApiError, Registry, parse_json
from gateway.trial_request import PROTOCOL
from inputs import rows

EXAMPLE = Path(
    metadata.distribution("nemo-gym").locate_file("resources_servers/workplace_assistant/data/example.jsonl")
)
ROW = rows.read_rows(EXAMPLE, 1)[0]
SESSION_ID, API_KEY, HEADER = "session-SECRET", "key-SECRET", "header-SECRET"
OWN_PORTS = set(range(29000, 29005))
DELETE = object()
NAMES = ["10.0.0.0/8", "fd00::/8", "192.0.2.7/32"]


def registry(networks=NAMES, check=NeMoGymResponseCreateParamsNonStreaming.model_validate):
    return Registry([ipaddress.ip_network(name) for name in networks], OWN_PORTS, check, b"s" * 32)


def payload(**changes):
    """A payload that passes, with changes by dotted path (`session__attempt=2`)."""
    made = {
        "protocol_version": PROTOCOL,
        "request_id": "relax-1",
        "session": {"session_id": SESSION_ID, "group_id": "g", "rollout_mode": "train", "attempt": 1},
        "environment": {
            "name": "workplace_assistant",
            "config": "workplace-assistant-v1",
            "task": copy.deepcopy(ROW),
        },
        "model_endpoint": {
            "base_url": "http://10.0.0.5:8000/agentic_api",
            "api_key": API_KEY,
            "model": "model",
            "headers": {"X-Extra": HEADER},
        },
        "generation": {"responses_create_params": {}, "sampling_params": {}},
        "interrupt_policy": "protected",
        "deadline_s": 600,
        "lease_s": 60,
        "metadata": {},
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = made
        for name in parents:
            place = place[name]
        if value is DELETE:
            del place[last]
        else:
            place[last] = value
    return made


def with_params(**changes):
    """The row with other parameters."""
    return {**ROW, "responses_create_params": ROW["responses_create_params"] | changes}


def taken(from_loopback=False, networks=NAMES, **changes):
    return registry(networks).request(payload(**changes), from_loopback)


def refused(from_loopback=False, networks=NAMES, **changes):
    with pytest.raises(ApiError) as error:
        registry(networks).request(payload(**changes), from_loopback)
    assert "SECRET" not in json.dumps(error.value.body())
    return error.value


def nested(depth):
    value = {}
    for _ in range(depth):
        value = {"a": value}
    return value


# --- what is taken -------------------------------------------------------------------------


def test_a_payload_becomes_what_is_run_and_where():
    request = taken()
    assert request.request_id == "relax-1"
    assert (request.deadline_s, request.lease_s) == (600, 60)
    assert request.run_request == ROW
    assert request.endpoint.url == "http://10.0.0.5:8000/agentic_api/v1/responses"
    assert request.endpoint.model == "model"
    assert request.endpoint.headers == {"X-Extra": HEADER, "Authorization": f"Bearer {API_KEY}"}
    assert "SECRET" not in repr(request)


def test_what_may_be_left_out_has_its_meaning():
    request = taken(
        session__group_id=DELETE,
        session__attempt=DELETE,
        model_endpoint__api_key=DELETE,
        model_endpoint__headers=DELETE,
        generation=DELETE,
        interrupt_policy=DELETE,
        metadata=DELETE,
    )
    assert request.endpoint.headers == {"Authorization": f"Bearer {SESSION_ID}"}
    assert set(request.call_params) == {"tools"} and request.run_request == ROW


def test_fields_to_come_are_passed_over():
    assert taken(something_new={"a": 1}, session__new=1, environment__new=1, model_endpoint__new=1)


def test_the_key_header_and_its_prefix_may_be_chosen():
    request = taken(model_endpoint__api_key_header="X-Api-Key", model_endpoint__api_key_prefix="")
    assert request.endpoint.headers == {"X-Extra": HEADER, "X-Api-Key": API_KEY}


@pytest.mark.parametrize("row", rows.read_rows(EXAMPLE), ids=lambda row: str(row["id"]))
def test_both_shapes_of_a_task_give_the_same_run_request(row):
    relax = rows.to_relax(row)
    session = {"messages": relax["input"], "metadata": relax["metadata"]}
    assert taken(environment__task=session).run_request == taken(environment__task=row).run_request == row


def test_the_rows_own_metadata_and_instructions_stay_in_both_shapes():
    row = copy.deepcopy(ROW)
    row["responses_create_params"] |= {"metadata": {"mine": "kept"}, "instructions": "be brief", "temperature": 0.5}
    relax = rows.to_relax(row)
    for task in (row, {"messages": relax["input"], "metadata": relax["metadata"]}):
        assert taken(environment__task=task).run_request == row


def test_generation_goes_over_the_rows_parameters_and_leaves_the_payload_alone():
    made = payload(generation__responses_create_params={"temperature": 0.2, "max_output_tokens": 9})
    before = copy.deepcopy(made)
    params = registry().request(made, False).run_request["responses_create_params"]
    assert params == ROW["responses_create_params"] | {"temperature": 0.2, "max_output_tokens": 9}
    assert made == before


def test_sampling_parameters_and_the_rows_tools_go_into_the_model_calls():
    params = taken(generation__sampling_params={"top_p": 0.9}).call_params
    assert json.loads(orjson.dumps(params)) == {"top_p": 0.9, "tools": ROW["responses_create_params"]["tools"]}
    for tools in ([], DELETE):
        assert taken(environment__task__responses_create_params__tools=tools).call_params == {}


def test_the_tools_of_the_model_calls_are_what_nemo_gyms_model_makes_of_them():
    tool = {"type": "function", "name": "a", "parameters": None, "strict": "yes"}
    for changes in ({"environment__task__responses_create_params__tools": [tool]},
                    {"generation__responses_create_params": {"tools": [tool]}}):  # fmt: skip
        assert json.loads(orjson.dumps(taken(**changes).call_params))["tools"] == [tool | {"strict": True}]


# --- what is refused -----------------------------------------------------------------------


def off(path, *values, field=None):
    """Cases of the table below; the field is the path unless it is given."""
    return [(path, value, field or path.replace("__", ".")) for value in values]


UNFIT = [
    *off("protocol_version", DELETE, "relax-nemo-gym/v2"),
    *off("request_id", DELETE, "", "a/b", "a\n", "é", "x" * 201, 7),
    *off("session", DELETE, []),
    *off("session__session_id", DELETE, "", "a SECRET", "SECRET\r\nX: 1", "SECRET\0", "SECRETé", "SECRET" * 1000),
    *off("session__group_id", 3),
    *off("session__rollout_mode", "test", DELETE),
    *off("session__attempt", 0, "1", 1.5),
    *off("environment", DELETE, "workplace_assistant"),
    *off("environment__name", None),
    *off("environment__config", DELETE),
    *off("environment__task", DELETE, []),
    *off("environment__task", {}, field="environment.task.responses_create_params"),
    *off("environment__task__id", "7"),
    *off("environment__task__ground_truth", None),
    *off("environment__task__responses_create_params__input", 7),
    *off("environment__task", {"messages": "hello"}, field="environment.task.metadata"),
    *off("environment__new", nested(300), nested(1000), field="environment"),
    *off("environment__task__new", nested(70), nested(300), field="environment.task.new."),
    *off("model_endpoint", DELETE),
    *off("model_endpoint__base_url", DELETE, 7, "http://10.0.0.5/" + "a" * 2048),
    *off("model_endpoint__api_key", "", "SECRET\n"),
    *off("model_endpoint__model", "", "m" * 257),
    *off("model_endpoint__api_key_header", "X Y", "Host", "content-length"),
    *off("model_endpoint__api_key_prefix", "SECRET\n"),
    *off(
        "model_endpoint__headers",
        {"Connection": "close"},
        {"Transfer-Encoding": "chunked"},
        {"authorization": "SECRET"},
        {"X": "SECRET\r\nY: 1"},
        {"X": "SECRET\0"},
        {"X": "SECRETé"},
        {"X: SECRET": "1"},
        {"": "SECRET"},
    ),
    *off("model_endpoint__headers", {"X": 1}, field="model_endpoint.headers.X"),
    *off("model_endpoint__headers", {f"X-{n}": "SECRET" for n in range(33)}),
    *off("generation", None),
    *off("generation__responses_create_params", []),
    *off("generation__sampling_params", []),
    *off("generation__sampling_params", nested(70), field="generation.sampling_params."),
    *off("interrupt_policy", ""),
    *off("deadline_s", DELETE, 0, -1, "600", True, float("nan"), float("inf")),
    *off("lease_s", DELETE, 0, None),
    *off("metadata", []),
    *off("metadata", {"a": float("nan")}, {"a": "\ud800"}, field="metadata.a"),
    *off("metadata", nested(70), nested(2000), field="metadata."),
    *off("new", {"a": 2**70}, field="new.a"),
]


@pytest.mark.parametrize(("path", "value", "field"), UNFIT, ids=[f"{n}-{case[0]}" for n, case in enumerate(UNFIT)])
def test_each_field_off_its_shape_is_refused_by_name(path, value, field):
    error = refused(**{path: value})
    assert (error.status, error.code) == (422, "invalid_payload")
    assert error.field == field or (field.endswith(".") and error.field.startswith(field))
    assert error.message and len(error.message) < 300 and len(error.field) < 300


@pytest.mark.parametrize(
    ("path", "value", "code", "field"),
    [
        ("environment__name", "other", "environment_not_registered", "environment"),
        ("environment__config", "workplace-assistant-v2", "environment_not_registered", "environment"),
        ("interrupt_policy", "free", "policy_not_allowed", "interrupt_policy"),
        ("deadline_s", 1800.5, "deadline_not_allowed", "deadline_s"),
        ("lease_s", 1801, "deadline_not_allowed", "lease_s"),
    ],
)
def test_what_is_not_registered_is_a_400(path, value, code, field):
    error = refused(**{path: value})
    assert (error.status, error.code, error.field) == (400, code, field)
    assert taken(deadline_s=1800, lease_s=1800)


@pytest.mark.parametrize("name", ["input", "tools", "model", "metadata", "instructions", "stream"])
def test_sampling_parameters_do_not_replace_what_the_gateway_sets(name):
    error = refused(generation__sampling_params={"top_p": 1, name: "x"})
    assert error.field == f"generation.sampling_params.{name}"


@pytest.mark.parametrize(
    "overrides",
    [
        *(
            {"tools": [{"type": "function", "name": name, "parameters": {}, "strict": False}]}
            for name in ("verify", "x/../verify", "seed_session")
        ),
        {"input": []},
    ],
)
def test_an_override_is_held_to_the_rules_of_a_row(overrides):
    error = refused(generation__responses_create_params=overrides)
    assert error.status == 422 and error.field.startswith("generation.responses_create_params.")


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": "SECRET"}, {"metadata": {"a": 1}}, {"no_such_parameter": 1}, {"stream": "SECRET"},
        {"metadata": {ROLLOUT_KEY: "nobody brings their own"}},
    ],
)  # fmt: skip
def test_parameters_that_nemo_gym_or_the_gateway_would_refuse_are_refused_first(params):
    assert refused(generation__responses_create_params=params).status == 422
    assert refused(environment__task=with_params(**params)).status == 422


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
PATHS = sorted({path for path, *_ in UNFIT if not path.endswith("new")})


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(PATHS), JSON, min_size=1, max_size=2))
def test_no_value_anywhere_is_more_than_a_refusal(changes):
    deepest_first = dict(sorted(changes.items(), key=lambda change: -change[0].count("__")))
    try:
        request = registry().request(payload(**deepest_first), False)
    except ApiError as error:
        assert error.status in (400, 422) and error.field
    else:
        orjson.dumps(request.run_request), orjson.dumps(request.call_params)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"nonsense", b'{"a": NaN}', b'{"a": Infinity}', b'"text"', b"[]", b"null", b"\xff\xfe",
        b'{"a": "\\ud800"}', b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)  # fmt: skip
def test_a_body_that_is_no_json_object_is_a_422(body):
    with pytest.raises(ApiError) as error:
        parse_json(body)
    assert (error.value.status, error.value.field) == (422, "(body)")


# --- where model calls may go ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("http://10.0.0.5:8000/agentic_api", "http://10.0.0.5:8000/agentic_api/v1/responses"),
        ("http://10.0.0.5:8000/agentic_api/", "http://10.0.0.5:8000/agentic_api/v1/responses"),
        ("http://10.255.255.255", "http://10.255.255.255:80/v1/responses"),
        ("https://10.0.0.5", "https://10.0.0.5:443/v1/responses"),
        ("HTTP://10.0.0.5:1/", "http://10.0.0.5:1/v1/responses"),
        ("http://192.0.2.7:65535", "http://192.0.2.7:65535/v1/responses"),
        ("http://[fd00::0001]:8000", "http://[fd00::1]:8000/v1/responses"),
        ("http://[::ffff:10.0.0.5]:8000", "http://10.0.0.5:8000/v1/responses"),
        ("http://[::ffff:a00:5]:8000", "http://10.0.0.5:8000/v1/responses"),
        ("http://10.0.0.5:29000", "http://10.0.0.5:29000/v1/responses"),
    ],
)
def test_an_address_in_a_listed_network_is_taken(base_url, url):
    assert taken(model_endpoint__base_url=base_url).endpoint.url == url


@pytest.mark.parametrize("from_loopback", [False, True])
@pytest.mark.parametrize(
    "base_url",
    [
        "http://11.0.0.5:8000", "http://192.0.2.8", "http://169.254.169.254/latest", "http://0.0.0.0:8000",
        "http://[::]:8000", "http://[fe80::1]:8000", "http://[::10.0.0.5]:8000", "http://[64:ff9b::a00:5]:8000",
        "http://[::ffff:11.0.0.5]:8000", "http://[fd00::1%eth0]:8000", "http://[fd00::1%25eth0]:8000",
        "http://trainer:8000", "http://localhost:8000", "http://10.0.0.5.example.com", "http://167772165:8000",
        "http://0xa000005:8000", "http://0x0a.0.0.5", "http://010.0.0.5", "http://10.5", "http://10.0.0.5.",
        "http://[10.0.0.5]:8000", "http://10.0.0.5@11.0.0.5", "http://SECRET:SECRET@10.0.0.5", "http://@10.0.0.5",
        "http://10.0.0.5#SECRET", "http://10.0.0.5/?key=SECRET", "http://10.0.0.5/#", "http://10.0.0.5?",
        "http://11.0.0.5\\@10.0.0.5", "http://10.0.0.5:0", "http://10.0.0.5:", "http://10.0.0.5:99999",
        "http://10.0.0.5:SECRET", "http://10.0.0.5:-1", "http://10.0.0.5:+80", "http://10.0.0.5:8_0",
        "http://10.0.0.5: 80", "http://10.0.0.5:８０", "http://10.0.0.5 /", "http://10.0.0.5\t/", "http://10.0.0.5\n",
        " http://10.0.0.5", "http://１０.0.0.5", "http://[::1", "http://::1]", "http://[v1.a]:80", "http://",
        "http:///v1", "http:10.0.0.5", "//10.0.0.5", "10.0.0.5:8000", "ftp://10.0.0.5", "file:///etc/passwd",
        "unix://10.0.0.5/sock",
    ],
)  # fmt: skip
def test_every_other_address_is_refused_without_being_resolved_or_shown(base_url, from_loopback, monkeypatch):
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: pytest.fail("a name was resolved"))
    error = refused(from_loopback, model_endpoint__base_url=base_url)
    assert (error.status, error.code, error.field) == (400, "callback_not_allowed", "model_endpoint.base_url")


LOOPBACKS = ["http://127.0.0.1:8000", "http://127.255.0.9:8000", "http://[::1]:8000", "http://[::ffff:127.0.0.1]:8000"]


@pytest.mark.parametrize("base_url", LOOPBACKS)
def test_loopback_is_for_requests_that_came_over_loopback(base_url):
    assert taken(from_loopback=True, model_endpoint__base_url=base_url)
    assert taken(from_loopback=True, networks=[], model_endpoint__base_url=base_url)
    assert refused(from_loopback=False, model_endpoint__base_url=base_url).code == "callback_not_allowed"
    assert taken(from_loopback=False, networks=["127.0.0.0/8", "::1/128"], model_endpoint__base_url=base_url)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"])
def test_the_graphs_own_ports_are_no_model_api(host):
    for port in OWN_PORTS:
        error = refused(True, ["0.0.0.0/1", "::/1"], model_endpoint__base_url=f"http://{host}:{port}")
        assert "own" in error.message


def test_secrets_are_taken_out_of_a_text_the_longest_first():
    endpoint = taken(session__session_id="SECRET", model_endpoint__api_key="SECRET-longer").endpoint
    assert endpoint.redact(f"a SECRET-longer b SECRET c {HEADER}") == "a *** b *** c ***"


# --- repeated creates ------------------------------------------------------------------------


def test_the_same_payload_in_other_words_has_the_same_digest():
    made = payload()
    backwards = dict(reversed(made.items())) | {"session": dict(reversed(made["session"].items()))}
    others = [backwards, parse_json(orjson.dumps(made)), payload(deadline_s=600.0)]
    assert {registry().request(other, False).digest for other in others} == {taken().digest}
    assert taken(environment__task__new=[1]).digest == taken(environment__task__new=[1.0]).digest != taken().digest


@pytest.mark.parametrize(
    "changes",
    [
        {"deadline_s": 601}, {"lease_s": 60.5}, {"session__attempt": 2}, {"session__session_id": "other"},
        {"model_endpoint__api_key": "other"}, {"metadata": {"a": True}}, {"environment__task__id": 8}, {"new": 1},
    ],
    ids=str,
)  # fmt: skip
def test_every_other_payload_has_another_digest(changes):
    assert taken(**changes).digest != taken().digest


# --- tasks that come again -------------------------------------------------------------------


def test_a_task_is_checked_once_and_what_differs_again():
    checked = []
    check = NeMoGymResponseCreateParamsNonStreaming.model_validate
    one = registry(check=lambda params: checked.append(params) or check(params))
    first, again = (one.request(payload(request_id=name), False) for name in ("relax-1", "relax-2"))
    assert first.run_request == again.run_request and first.digest != again.digest and len(checked) == 1
    one.request(payload(environment__task__id=99), False)
    one.request(payload(generation__responses_create_params={"temperature": 0.2}), False)
    assert len(checked) == 3


def test_a_known_task_in_any_shape_is_still_taken_as_it_came_and_a_refused_one_is_never_known():
    one, relax = registry(), rows.to_relax(ROW)
    session_input = {"messages": relax["input"], "metadata": relax["metadata"]}
    for task in (ROW, session_input, ROW, session_input):
        assert one.request(payload(environment__task=task), False).run_request == ROW
    for _ in range(2):
        with pytest.raises(ApiError, match="is not a whole number"):
            one.request(payload(environment__task__id="7"), False)
        with pytest.raises(ApiError):
            one.request(payload(generation__responses_create_params={"temperature": "hot"}), False)


def test_tools_are_shown_in_the_order_that_this_task_has_whoever_was_first():
    def task(names):
        properties = {name: {"type": "string"} for name in names}
        return with_params(
            tools=[{"type": "function", "name": "a", "parameters": {"properties": properties}, "strict": True}]
        )

    one = registry()
    taken_in_turn = [one.request(payload(environment__task=task(names)), False) for names in ("ab", "ba")]
    assert taken_in_turn[0].digest == taken_in_turn[1].digest
    for request, names in zip(taken_in_turn, ("ab", "ba"), strict=True):
        [tool] = json.loads(orjson.dumps(request.call_params))["tools"]
        assert list(tool["parameters"]["properties"]) == list(names)


def test_a_parameter_is_named_where_it_was_given():
    bad, override = {"temperature": "hot"}, {"top_p": 0.5}
    task = with_params(**bad)
    field = "responses_create_params.temperature"
    assert refused(environment__task=task).field == f"environment.task.{field}"
    error = refused(environment__task=task, generation__responses_create_params=override)
    assert error.field == f"environment.task.{field}"
    assert refused(generation__responses_create_params=bad).field == f"generation.{field}"


def test_an_error_has_one_shape():
    assert ApiError(422, "code", "message", "field").body() == {
        "error": {"code": "code", "message": "message", "field": "field"}
    }
    assert ApiError(404, "code", "message").body() == {"error": {"code": "code", "message": "message"}}
