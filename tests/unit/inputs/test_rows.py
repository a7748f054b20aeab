"""Rows: reading, checking and converting, on shipped rows, made-up rows and every kind of bad row."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.failure import Failure
from inputs import rows
from support.task_rows import EXAMPLE, SHARED_DATA, session_input

P = rows.WRAPPER


def row(**params):
    tool = {"type": "function", "name": "email_search_emails", "parameters": {}, "strict": False}
    return {
        "id": 7,
        "responses_create_params": {"input": [{"role": "user", "content": "hello"}], "tools": [tool], **params},
        "ground_truth": [{"name": "email_search_emails", "arguments": '{"query": "x"}'}],
        "category": "workplace_assistant_email",
        "environment_name": "workplace_assistant",
    }


def round_trip(raw):
    before = copy.deepcopy(raw)
    session = json.loads(json.dumps(session_input(raw)))
    assert rows.to_run_request(session) == before == raw
    assert rows.to_run_request(raw) == before


@pytest.mark.parametrize(
    ("path", "count"),
    [
        (EXAMPLE, 5),
        pytest.param(SHARED_DATA / "workbench_dev.jsonl", 345, marks=pytest.mark.shared_data),
    ],
)
def test_every_row_at_hand_comes_back_from_its_converted_form(path, count):
    raw_rows = rows.read_rows(path)
    assert len(raw_rows) == count
    for raw in raw_rows:
        round_trip(raw)


@pytest.mark.parametrize(
    "raw",
    [
        row(instructions="be brief", parallel_tool_calls=True),
        row(instructions=None, input="one string"),
        row(metadata={"a": "b"}, tools=[]),
        row(temperature=0.5, top_p=1, max_output_tokens=100),
        row() | {"metadata": {"x": 1}, "messages": "kept", "input": [1], "developer": None},
    ],
)
def test_params_and_keys_of_the_row_come_back(raw):
    round_trip(raw)


def test_converted_row_has_the_trainers_shape():
    relax = rows.to_relax(row(instructions="be brief", temperature=1.0))
    assert relax["input"] == row()[P]["input"]
    rest = {name: row()[name] for name in ("id", "ground_truth", "category", "environment_name")}
    moved = {"developer_message": "be brief", "tools": row()[P]["tools"]}
    assert relax["metadata"] == {**rest, **moved, P: {"temperature": 1.0}}


@pytest.mark.parametrize("name", ["tools", "parallel_tool_calls", "developer_message"])
def test_a_key_that_the_converted_row_uses_itself_is_refused(name):
    with pytest.raises(rows.RowError, match=name):
        rows.to_relax(row() | {name: []})


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
messages = st.builds(
    lambda more, role, text: more | {"role": role, "content": text, "type": "message"},
    st.dictionaries(st.text(max_size=5), json_values, max_size=3),
    st.sampled_from(rows.ROLES),
    st.text(),
)
OURS = {"tools", "parallel_tool_calls", "developer_message", *row()}
PARAMS = {"input", "tools", "metadata", "instructions", "parallel_tool_calls"}


@settings(max_examples=60, deadline=None)
@given(
    extra=st.dictionaries(st.text(max_size=12).filter(lambda key: key not in OURS), json_values, max_size=4),
    params=st.dictionaries(st.text(max_size=12).filter(lambda key: key not in PARAMS), json_values, max_size=4),
    instructions=st.none() | st.text(),
    prompt=st.text(min_size=1) | st.lists(messages, min_size=1),
)
def test_any_row_comes_back(extra, params, instructions, prompt):
    round_trip(row(**{**params, "instructions": instructions, "input": prompt}) | extra)


@settings(max_examples=100, deadline=None)
@given(task=json_values | st.fixed_dictionaries({"messages": json_values, "metadata": json_values}))
def test_whatever_is_no_row_gets_a_row_error(task):
    with pytest.raises(rows.RowError):
        rows.to_run_request(task)


def changed(path, value):
    """The good row with the value at `path` replaced, or removed by `...`."""
    raw = row()
    at = raw
    for step in path[:-1]:
        at = at[step]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return raw


BAD = [
    ((P,), ..., P),
    ((P,), [], P),
    ((P, "input"), ..., f"{P}.input"),
    ((P, "input"), 5, f"{P}.input"),
    ((P, "input"), [], f"{P}.input"),
    ((P, "input"), "", f"{P}.input"),
    ((P, "input"), ["text"], f"{P}.input[0]"),
    ((P, "tools"), {}, f"{P}.tools"),
    ((P, "tools", 0), "verify", f"{P}.tools[0]"),
    ((P, "tools", 0, "name"), ..., f"{P}.tools[0].name"),
    *(((P, "tools", 0, "name"), name, f"{P}.tools[0].name") for name in (5, "", "a" * 65, "é", "a\n", "x?y=1#f")),
    *(((P, "tools", 0, "name"), name, f"{P}.tools[0].name") for name in sorted(rows.INTERNAL_ROUTES)),
    *(((P, "tools", 0, "name"), name, f"{P}.tools[0].name") for name in ("x/../verify", "%2e%2e/verify", "cleanup/1")),
    ((P, "metadata"), "text", f"{P}.metadata"),
    ((P, "instructions"), 1, f"{P}.instructions"),
    ((P, "parallel_tool_calls"), 0, f"{P}.parallel_tool_calls"),
    ((P, "temperature"), float("nan"), f"{P}.temperature"),
    ((P, "temperature"), float("inf"), f"{P}.temperature"),
    (("id",), ..., "id"),
    (("id",), "7", "id"),
    (("id",), True, "id"),
    (("id",), 7.0, "id"),
    (("id",), 10**30, "id"),
    (("category",), None, "category"),
    (("category",), "\ud800", "category"),
    (("environment_name",), ..., "environment_name"),
    (("ground_truth",), ..., "ground_truth"),
    (("ground_truth",), "[]", "ground_truth"),
    (("ground_truth", 0), [], "ground_truth[0]"),
    (("ground_truth", 0, "name"), ..., "ground_truth[0].name"),
    (("ground_truth", 0, "arguments"), {}, "ground_truth[0].arguments"),
    (("ground_truth", 0, "arguments"), "{", "ground_truth[0].arguments"),
    (("ground_truth", 0, "arguments"), "[]", "ground_truth[0].arguments"),
    (("ground_truth", 0, "arguments"), "[" * 100_000, "ground_truth[0].arguments"),
    (("ground_truth", 0, "arguments"), "9" * 5000, "ground_truth[0].arguments"),
]


@pytest.mark.parametrize(("path", "value", "key"), BAD, ids=lambda part: repr(part)[:40])
def test_a_bad_row_is_refused_by_its_key(path, value, key):
    with pytest.raises(rows.RowError) as caught:
        rows.check_row(changed(path, value))
    assert caught.value.key == key
    assert str(caught.value).startswith(key)
    assert len(str(caught.value)) < 400
    str(caught.value).encode("utf-8")


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"messages": 5}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"metadata": None}, "metadata"),
        ({"tools": [{"name": "verify"}]}, "metadata.tools[0].name"),
        ({"developer_message": 3}, "metadata.developer_message"),
        ({"id": "7"}, "metadata.id"),
        ({P: []}, f"metadata.{P}"),
        ({P: {"temperature": float("nan")}}, f"metadata.{P}.temperature"),
    ],
)
def test_a_session_input_names_the_key_as_it_stands_there(change, key):
    session = session_input(row())
    for name, value in change.items():
        (session if name in session else session["metadata"])[name] = value
    with pytest.raises(rows.RowError) as caught:
        rows.to_run_request(session)
    assert caught.value.key == key


def nested(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


def test_depth_is_bounded_whatever_it_is():
    rows.check_row(row() | {"extra": nested(60)})
    for levels in (64, 1000, 100_000):
        with pytest.raises(rows.RowError, match="nested deeper than 64 levels"):
            rows.check_row(row() | {"extra": nested(levels)})


GOOD = json.dumps(row()).encode()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.jsonl"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "not JSON at column 2"),
        (b"NaN", "holds NaN"),
        (GOOD.replace(b'"id": 7', b'"id": NaN'), "holds NaN"),
        (GOOD.replace(b'"id": 7', b'"id": 1e999'), "id: is not a finite number"),
        (GOOD.replace(b'"id": 7', b'"id": ' + b"9" * 5000), "more than 64 bits"),
        (GOOD.replace(b'"hello"', b'"\\ud800"'), "input[0].content: holds half a surrogate pair"),
        (b"[" * 100_000 + b"]" * 100_000, "nested deeper"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested deeper"),
        (b"[]", "the row is not an object but a list"),
        (b"null", "the row is not an object but null"),
        (b'"\xff"', "not UTF-8 at byte 2"),
        (b"\x00\x00", "not JSON"),
        (b'{"input": [], "id": 1}', f"{P}: missing: it wraps the row's input and tools (keys found: id"),
    ],
    ids=range(13),
)
def test_a_bad_line_is_named_by_file_and_line(path, line, words):
    path.write_bytes(GOOD + b"\n\n" + line + b"\n")
    with pytest.raises(Failure) as caught:
        rows.read_rows(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:3: ") and words in message
    assert "\n" not in message and len(message) < 400


def test_records_are_counted_not_newlines_and_a_limit_stops_before_later_rows(path):
    separators = json.dumps(row(input="a\u2028b\x85c"), ensure_ascii=False).encode()
    path.write_bytes(b"\n \r\n" + GOOD + b"\r\n\n" + separators)
    assert len(rows.read_rows(path)) == 2
    path.write_bytes(GOOD + b"\n{")
    assert len(rows.read_rows(path, limit=1)) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no rows"),
        (b"\n \n", "holds no rows"),
        (b"\xef\xbb\xbf" + GOOD, "rows.jsonl:1: begins with a byte order mark"),
    ],
)
def test_a_file_without_rows_or_with_a_byte_order_mark_is_refused(path, content, words):
    path.write_bytes(content)
    with pytest.raises(Failure, match=words):
        rows.read_rows(path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none.jsonl", "No such file.*; mend NEMO_GYM_SOURCE_DATA"),
        ("", "Is a directory"),
        ("workplace_assistant_train.jsonl", "No such file.*; make data SPLIT=train"),
    ],
)
def test_a_missing_file_and_a_folder_are_named(tmp_path, name, words):
    with pytest.raises(Failure, match=words):
        rows.read_rows(tmp_path / name)
