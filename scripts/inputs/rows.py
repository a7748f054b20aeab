"""Task rows: read and check them, and convert between the raw shape and the trainer's.

A raw NeMo Gym row wraps the prompt and the tools in `responses_create_params`. The trainer
(Relax) knows `{"input", "metadata"}` and hands `{"messages", "metadata"}` to a session.
Guarantees: `to_run_request` gives the same raw row for a row and for what `to_relax` made
of it; a row that is not fit to run is refused by its key, in a file by file and line too.
It does not look up whether a tool exists: the environment knows. Standard library only.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, TypedDict

from common.failure import Failure

WRAPPER = "responses_create_params"
FILE_PREFIX = "workplace_assistant_"
# Where the converter puts what it takes out of the wrapper: metadata key -> key in the wrapper.
MOVED = {"tools": "tools", "parallel_tool_calls": "parallel_tool_calls", "developer_message": "instructions"}
TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Routes of the resource server that no tool may be named after: the agent puts the name into the path.
INTERNAL_ROUTES = frozenset({"seed_session", "verify", "aggregate_metrics", "cleanup", "sessions"})
SURROGATE = re.compile("[\ud800-\udfff]")
MAX_DEPTH = 64
MAX_INT = 2**63 - 1
TYPE_NAMES = {dict: "an object", list: "a list", str: "a string", int: "a whole number", bool: "true or false"}


class Row(TypedDict):
    """A raw NeMo Gym task row; what else it holds is passed on."""

    id: Any
    category: str
    environment_name: str
    responses_create_params: dict[str, Any]
    ground_truth: list[dict[str, Any]]


class RowError(ValueError):
    """A row that cannot run: `key` is the path of what is wrong, `message` says what."""

    def __init__(self, key, message):
        super().__init__(f"{key}: {message}" if key else message)
        self.key, self.message = key, message


def read_rows(path, limit=0):
    """Read the first `limit` rows (0: all) of a JSON Lines file, checked: a list of raw rows.

    Blank lines are skipped. Raises Failure with file, line and key at the first bad row,
    and when the file cannot be read or holds no row.
    """
    return [row for _, row in read_numbered(path, limit)]


def read_numbered(path, limit=0):
    """The same as [(line number, row)]."""
    path, rows = Path(path), []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    rows.append((number, _read_line(line.rstrip(), f"{path}:{number}")))
                if limit and len(rows) == limit:
                    break
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; {_cure(path)}") from None
    if not rows:
        raise Failure(f"{path}: holds no rows; {_cure(path)}")
    return rows


def place(path, number, row):
    """How messages name the row in line `number` of a file."""
    return f"{path}:{number} (id {row['id']})"


def _cure(path):
    split = path.stem.removeprefix(FILE_PREFIX)
    if split in ("example", "train", "validation"):
        return f"make data SPLIT={split}"
    return "mend NEMO_GYM_SOURCE_DATA, or leave it empty for the rows of SPLIT"


def _read_line(line, place):
    try:
        row = parse_json(line)
        check_row(row)
    except ValueError as error:
        raise Failure(f"{place}: {error}") from None
    return row


def parse_json(line):
    """Parse the bytes of one JSON value. Raises ValueError, in words, on whatever is no JSON or too deep."""
    if line.startswith(b"\xef\xbb\xbf"):
        raise ValueError("begins with a byte order mark; save the file as plain UTF-8")
    try:
        return json.loads(line.decode("utf-8"), parse_constant=_refuse_constant, parse_int=_parse_int)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON at column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from None


def _refuse_constant(text):
    raise ValueError(f"holds {text}, which is not JSON")


def _parse_int(text):
    if len(text) > len(str(-MAX_INT)):
        raise ValueError("holds a whole number of more than 64 bits")
    return int(text)


def check_row(row):
    """Refuse a raw row that NeMo Gym could not run. Raises RowError at the first key that is wrong."""
    if not isinstance(row, dict):
        raise RowError("", f"the row is not an object but {_type_name(row)}")
    check_values(row)
    if WRAPPER not in row:
        raise RowError(WRAPPER, f"missing: it wraps the row's input and tools (keys found: {_names(row)})")
    _check_params(_require(row, "", WRAPPER, dict))
    for index, call in enumerate(_require(row, "", "ground_truth", list)):
        _check_call(call, f"ground_truth[{index}]")
    _require(row, "", "id", int)
    _require(row, "", "category", str)
    _require(row, "", "environment_name", str)


def check_values(tree):
    """Refuse values that do not survive JSON and 64-bit readers: too deep, NaN, huge, half a surrogate pair.

    `tree` is an object or a list. Walks without recursion, so that depth cannot exhaust the
    stack, and passes over plain values at once: this runs for each trial. Raises RowError.
    """
    waiting = [(tree, None, 1)]
    while waiting:
        value, path, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise RowError(_key_of(path), f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, dict) and not (keys := "".join(value)).isascii() and (fault := _value_fault(keys)):
            raise RowError(_key_of((path, "(a key)")), fault)
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(item, str) and item.isascii() or item is True or item is False or item is None:
                continue
            if isinstance(item, (dict, list)):
                waiting.append((item, (path, name), depth + 1))
            elif fault := _value_fault(item):
                raise RowError(_key_of((path, name)), fault)


def _value_fault(value):
    """What is wrong with one value, its items apart; None if nothing is."""
    if isinstance(value, str) and not value.isascii() and SURROGATE.search(value):
        return "holds half a surrogate pair, which is no text"
    if isinstance(value, float) and not math.isfinite(value):
        return "is not a finite number"
    if isinstance(value, int) and abs(value) > MAX_INT:
        return "is a whole number of more than 64 bits"
    return None


def _key_of(path):
    """Spell a chain of (parent, name or index) as `a.b[0]`, its end left out when it is long."""
    parts = []
    while path:
        path, name = path
        parts.append(f"[{name}]" if isinstance(name, int) else f".{name}")
    return "".join(reversed(parts)).removeprefix(".").encode("utf-8", "replace").decode()[:200]


def _check_params(params):
    prompt = params.get("input")
    if not isinstance(prompt, str):
        for index, item in enumerate(_require(params, WRAPPER, "input", list)):
            _expect(item, f"{WRAPPER}.input[{index}]", dict)
    if not prompt:
        raise RowError(f"{WRAPPER}.input", "is empty")
    for name, kind in (("metadata", dict), ("instructions", str), ("parallel_tool_calls", bool), ("tools", list)):
        if params.get(name) is not None:
            _expect(params[name], f"{WRAPPER}.{name}", kind)
    for index, tool in enumerate(params.get("tools") or []):
        _check_tool(tool, f"{WRAPPER}.tools[{index}]")


def _check_tool(tool, key):
    _expect(tool, key, dict)
    name = _require(tool, key, "name", str)
    if not TOOL_NAME.fullmatch(name):
        raise RowError(f"{key}.name", f"{name[:80]!r} is not 1 to 64 of letters, digits, '_' and '-'")
    if name in INTERNAL_ROUTES:
        raise RowError(f"{key}.name", f"{name!r} is an internal route of the resource server, not a tool")


def _check_call(call, key):
    _expect(call, key, dict)
    _require(call, key, "name", str)
    try:
        arguments = json.loads(_require(call, key, "arguments", str))
    except (ValueError, RecursionError):
        raise RowError(f"{key}.arguments", "is not the JSON text of an object") from None
    if not isinstance(arguments, dict):
        raise RowError(f"{key}.arguments", "is JSON text, but not of an object")


def _require(parent, parent_key, name, kind):
    key = f"{parent_key}.{name}" if parent_key else name
    if name not in parent:
        raise RowError(key, "missing")
    return _expect(parent[name], key, kind)


def _expect(value, key, kind):
    # True and False are integers to Python, not to a row.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise RowError(key, f"is not {TYPE_NAMES[kind]} but {_type_name(value)}")
    return value


def _type_name(value):
    return "null" if value is None else TYPE_NAMES.get(type(value), "a number")


def _names(row):
    return ", ".join(sorted(row)[:8])[:200] or "none"


def to_relax(row):
    """Convert a raw row: `{"input": list or str, "metadata": {...}}`. Raises RowError if it is not fit.

    Metadata keeps every other key of the row; see MOVED for what leaves the wrapper, and
    what is left of the wrapper stays under its name. A row that has a key of its own by
    one of those names could not be told apart afterwards, so it is refused.
    """
    check_row(row)
    params = dict(row[WRAPPER])
    prompt = params.pop("input")
    metadata = {key: value for key, value in row.items() if key != WRAPPER}
    for name, source in MOVED.items():
        if name in metadata:
            raise RowError(name, f"stands outside {WRAPPER}, where the converted row keeps its own")
        if source in params:
            metadata[name] = params.pop(source)
    metadata[WRAPPER] = params
    return {"input": prompt, "metadata": metadata}


def to_run_request(task, checked=False):
    """Give the raw row of `task`: a raw row itself, or a session input `{"messages", "metadata"}`.

    Raises RowError; for a session input the key is named as it stands there. A task that is
    `checked`, since it passed before, is only converted.
    """
    if not isinstance(task, dict):
        raise RowError("", f"the task is not an object but {_type_name(task)}")
    converted = WRAPPER not in task and "messages" in task
    row = _from_session(task["messages"], _require(task, "", "metadata", dict)) if converted else task
    if not checked:
        try:
            check_row(row)
        except RowError as error:
            raise RowError(_session_key(error.key) if converted else error.key, error.message) from None
    return row


def _from_session(messages, metadata):
    row = {key: value for key, value in metadata.items() if key != WRAPPER and key not in MOVED}
    params = dict(_expect(metadata.get(WRAPPER, {}), f"metadata.{WRAPPER}", dict))
    params |= {source: metadata[name] for name, source in MOVED.items() if name in metadata}
    params["input"] = messages
    return {WRAPPER: params, **row}


def _session_key(key):
    """Where a key of the raw row stands in a session input."""
    inner = key.removeprefix(f"{WRAPPER}.")
    if inner.startswith("input"):
        return f"messages{inner.removeprefix('input')}"
    for name, source in MOVED.items():
        if inner.startswith(source):
            return f"metadata.{name}{inner.removeprefix(source)}"
    return f"metadata.{key}"
