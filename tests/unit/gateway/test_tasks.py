"""What is remembered of tasks that passed, and the keyed hashes by which they are known."""

import json

import orjson
import pytest

from gateway import tasks
from gateway.tasks import KnownTasks

SALT = b"s" * 32
DEEP = json.loads('{"a":' * 300 + "1" + "}" * 300)


def digest(tree, salt=SALT):
    return KnownTasks(salt).digest(tree)


def test_a_digest_minds_neither_the_order_of_keys_nor_how_a_whole_number_is_written():
    one = {"a": 30, "b": [{"c": 1, "d": "x"}]}
    assert digest(one) == digest({"b": [{"d": "x", "c": 1.0}], "a": 30.0})


@pytest.mark.parametrize("value", [True, "1", 1.5, None, [1], {"1": 1}, 1e300, 2], ids=str)
def test_a_digest_tells_all_else_apart(value):
    assert digest({"a": value}) != digest({"a": 1})


def test_nobody_without_the_salt_finds_a_digest():
    assert len({digest({"a": 1}, salt * 32) for salt in (b"a", b"b")}) == 2


def test_a_task_is_known_in_the_order_in_which_it_came():
    known = KnownTasks(SALT)
    assert known.key({"a": 1, "b": 2}) == known.key({"a": 1, "b": 2}) != known.key({"b": 2, "a": 1})
    known.add(known.key({"a": 1}), b"digest", b'[{"name": "a"}]')
    found, param = known.get(known.key({"a": 1}))
    assert found == b"digest" and json.loads(orjson.dumps(param)) == {"tools": [{"name": "a"}]}
    assert known.get(known.key({"a": 2})) is None


def test_what_is_nested_too_deep_has_no_key_and_no_digest():
    assert KnownTasks(SALT).key(DEEP) is None
    with pytest.raises(orjson.JSONEncodeError):
        digest(DEEP)


@pytest.mark.parametrize(("different_tools", "most"), [(False, 5), (True, 3)])
def test_the_memory_is_bounded_in_tasks_and_in_tools(monkeypatch, different_tools, most):
    monkeypatch.setattr(tasks, "KNOWN_TASKS", 5)
    monkeypatch.setattr(tasks, "KNOWN_TOOLS", 3)
    known, keys = KnownTasks(SALT), []
    for number in range(24):
        keys.append(bytes([number]))
        known.add(keys[-1], b"digest", b"[%d]" % (number if different_tools else 0))
        assert known.get(keys[-1]) and sum(known.get(key) is not None for key in keys) <= most


def test_large_tools_are_not_remembered():
    known = KnownTasks(SALT)
    known.add(b"key", b"digest", b"x" * (tasks.KNOWN_TOOLS_BYTES + 1))
    assert known.get(b"key") is None
