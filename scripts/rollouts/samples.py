"""The shape of a stored sample: a line of an evaluation, or of a rollout dump.

Guarantees:
- a line that fits can be sorted, counted, averaged and replayed by every reader
- a field may be missing; what a field says is not judged
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, NotRequired, TypedDict


class Sample(TypedDict):
    """A line of an evaluation; without a reward it may lack the fields that follow `reward`.

    `row` and `repeat` count from 0; `error` may hold code, type, cause; `input` and `output` are Responses items.
    """

    row: int
    row_id: Any
    row_key: NotRequired[str | None]  # of a dump's sample
    models_reported: NotRequired[list[str]]
    category: Any
    repeat: int
    request_id: str | None
    status: Any
    error: dict[str, Any] | None
    seconds: float | None
    reward: float | None
    metrics: dict[str, Any] | None
    usage: dict[str, Any] | None
    input: Any
    ground_truth: list[dict[str, Any]] | None
    output: list[dict[str, Any]] | None


class DumpRecord(TypedDict):
    """A line of a rollout dump; the trainer writes the fields up to `response`, a rehearsal all."""

    rollout_id: int
    sample_index: int
    status: str
    reward: float | None
    agent_turns: int
    prompt_token_count: int | None
    response_token_count: int | None
    total_token_count: int | None
    response: str
    group_id: Any
    advantage: float | None
    row_id: Any
    category: Any
    error: str | None
    truncated_by: str | None
    request_id: str | None
    history_branches: int
    input: Any
    ground_truth: Any
    seconds: float


def number(value: Any) -> bool:
    """Whether it is a finite number, one that a float can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _place(value: Any) -> bool:
    return type(value) is int and value >= 0


def _name(value: Any) -> bool:
    return isinstance(value, str) or number(value)


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _items(value: Any) -> bool:
    return isinstance(value, list) and all(map(_object, value))


def _calls(value: Any) -> bool:
    return _items(value) and all(isinstance(call.get(key), str) for call in value for key in ("name", "arguments"))


def _usage(value: Any) -> bool:
    return _object(value) and all(map(_optional(_place), value.values()))


def _prompt(value: Any) -> bool:
    return isinstance(value, str) or _items(value)


def _optional(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or holds(value)


NAMED = dict.fromkeys(("row_id", "category", "status"), _optional(_name))
SHARED = {"seconds": _optional(number), "ground_truth": _optional(_calls), "input": _optional(_prompt)}
FAILURE = NAMED | SHARED | {"row": _place, "repeat": _place, "error": _optional(_object)}
SAMPLE = FAILURE | {"reward": number, "output": _items, "metrics": _object, "usage": _optional(_usage)}
COUNTED = dict.fromkeys(("prompt_token_count", "response_token_count", "sample_index", "rollout_id"), _optional(_place))
DUMPED = NAMED | SHARED | COUNTED | {"group_id": _optional(_name)}


def fit(record: Mapping[str, Any], fields: Mapping[str, Callable[[Any], bool]]) -> bool:
    """Whether a record's fields are what FAILURE, SAMPLE or DUMPED says of them."""
    return all(holds(record[name]) for name, holds in fields.items() if name in record)


def row_key(item: Mapping[str, Any]) -> str | None:
    """What tells a dump's row from others: its id with its category and prompt, since ids alone may repeat.

    None for a dump that names no rows.
    """
    if item.get("row_id") is None:
        return None
    name = item["row_id"]
    # Tables of data frames turn whole numbers into floats.
    name = int(name) if isinstance(name, float) and name.is_integer() else name
    prompt = item.get("input") or item.get("prompt") or ""
    digest = hashlib.sha256(json.dumps(prompt, sort_keys=True).encode()).hexdigest()[:16] if prompt else ""
    return f"{name} {item.get('category')} {digest}"
