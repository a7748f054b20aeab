"""Task rows: read and check them, and convert between the raw shape and the trainer's.

A raw NeMo Gym row wraps the prompt and the tools in `responses_create_params`. The trainer
(Relax) reads `{"input", "metadata"}` and gives a session `{"messages", "metadata"}`.
Guarantees:
- `to_run_request` gives the same raw row for a row and for its form by `to_relax`
- a row that cannot run is refused by its key, in a file by file and line too
- standard library only

It does not look up whether a tool exists: only the environment knows.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from common.failure import Failure

WRAPPER = "responses_create_params"
FILE_PREFIX = "workplace_assistant_"
# What the converter moves out of the wrapper: metadata key -> key in the wrapper.
MOVED = {"tools": "tools", "parallel_tool_calls": "parallel_tool_calls", "developer_message": "instructions"}
TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
ENVIRONMENT = "workplace_assistant"
ROLES = ("user", "assistant", "system", "developer")
ITEM_TYPES = ("function_call", "function_call_output", "reasoning")
PART_TYPES = ("input_text", "input_image", "input_file", "output_text", "refusal")
# What a file of another kind begins with, and what to do about it.
NO_ROWS = (
    (b"version https://git-lfs", "is a Git LFS pointer, not the rows; run: git lfs pull"),
    (b"\x1f\x8b", "is compressed with gzip; run: gunzip"),
    (b"PAR1", "is a Parquet file; rows are JSON Lines: convert it, each row with its own keys alone"),
    (b"\xff\xfe", "is UTF-16; save it as UTF-8"),
    (b"\xfe\xff", "is UTF-16; save it as UTF-8"),
    (b"<", "is a web page or XML, not JSON Lines; was the download redirected to a login?"),
)
# Routes of the resource server; a tool of such a name would call them, since the agent puts it in the path.
INTERNAL_ROUTES = frozenset({"seed_session", "verify", "aggregate_metrics", "cleanup", "sessions"})
SURROGATE = re.compile("[\ud800-\udfff]")
MAX_DEPTH = 64
MAX_INT = 2**63 - 1
TYPE_NAMES = {dict: "an object", list: "a list", str: "a string", int: "a whole number", bool: "true or false"}


class Row(TypedDict):
    """A raw NeMo Gym task row, checked; its other keys are passed on."""

    id: int
    category: str
    environment_name: str
    responses_create_params: dict[str, Any]
    ground_truth: list[dict[str, Any]]


class RowError(ValueError):
    """A row that cannot run: `key` is the path of the fault, `message` says what it is."""

    def __init__(self, key: str, message: str):
        super().__init__(f"{key}: {message}" if key else message)
        self.key, self.message = key, message


def read_rows(path: str | Path, limit: int = 0) -> list[Row]:
    """Read and check the first `limit` raw rows (0: all) of a JSON Lines file.

    Blank lines are skipped. Raises Failure with file, line and key at the first bad row,
    and when the file cannot be read or holds no row.
    """
    return [row for _, row in read_numbered(path, limit)]


def read_numbered(path: str | Path, limit: int = 0) -> list[tuple[int, Row]]:
    """The same as [(line number, row)]."""
    path, rows = Path(path), []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if number == 1 and (other := next((what for head, what in NO_ROWS if line.startswith(head)), None)):
                    raise Failure(f"{path}: {other}")
                if line.strip():
                    rows.append((number, _read_line(line.rstrip(), f"{path}:{number}")))
                if limit and len(rows) == limit:
                    break
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; {_cure(path)}") from None
    if not rows:
        raise Failure(f"{path}: holds no rows; {_cure(path)}")
    return rows


def place(path: Path, number: int, row: Row) -> str:
    """The name of the row in line `number` of a file, for messages."""
    return f"{path}:{number} (id {row['id']})"


def repeated_id(numbered: Sequence[tuple[int, Row]]) -> str | None:
    """A sentence on the first id that two rows share; None without one. Dumps and comparisons tell rows by their id."""
    lines: dict[Any, int] = {}
    for number, row in numbered:
        if (first := lines.setdefault(row["id"], number)) != number:
            return f"lines {first} and {number} share the id {row['id']}, by which dumps and comparisons tell rows"
    return None


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


def parse_json(line: bytes) -> Any:
    """Parse the bytes of one JSON value. Raises ValueError, in words, if it is not JSON or too deep."""
    if line.startswith(b"\xef\xbb\xbf"):
        raise ValueError("begins with a byte order mark; save the file as plain UTF-8")
    try:
        text = line.decode("utf-8")
        return json.loads(
            text, parse_constant=_refuse_constant, parse_int=_parse_int, object_pairs_hook=_refuse_equal_keys
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON at column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from None


def _refuse_constant(text):
    raise ValueError(f"holds {text}, which is not JSON")


def _refuse_equal_keys(pairs):
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"holds the key {next(name for name in names if names.count(name) > 1)[:80]!r} twice")
    return members


def _parse_int(text):
    if len(text) > len(str(-MAX_INT)):
        raise ValueError("holds a whole number of more than 64 bits")
    return int(text)


def check_row(row: Any) -> None:
    """Refuse a raw row that NeMo Gym could not run. Raises RowError at the first wrong key."""
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
    if (name := _require(row, "", "environment_name", str)) != ENVIRONMENT:
        raise RowError("environment_name", f"is {name[:80]!r}, a row of another environment than {ENVIRONMENT!r}")


def check_values(tree: dict[str, Any] | list[Any]) -> None:
    """Refuse values that do not survive JSON and 64-bit readers: too deep, NaN, huge, half a surrogate pair.

    It runs for each trial, so it passes over plain values at once. It uses no recursion, so that
    depth cannot exhaust the stack. Raises RowError.
    """
    waiting: list[tuple[Any, Any, int]] = [(tree, None, 1)]
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
    """The fault of one value, its items left out; None without one."""
    if isinstance(value, str) and not value.isascii() and SURROGATE.search(value):
        return "holds half a surrogate pair, which is no text"
    if isinstance(value, float) and not math.isfinite(value):
        return "is not a finite number"
    if isinstance(value, int) and abs(value) > MAX_INT:
        return "is a whole number of more than 64 bits"
    return None


def _key_of(path):
    """Write a chain of (parent, name or index) as `a.b[0]`, cut at 200 characters."""
    parts = []
    while path:
        path, name = path
        parts.append(f"[{name}]" if isinstance(name, int) else f".{name}")
    return "".join(reversed(parts)).removeprefix(".").encode("utf-8", "replace").decode()[:200]


def _check_params(params):
    prompt = params.get("input")
    if not isinstance(prompt, str):
        for index, item in enumerate(_require(params, WRAPPER, "input", list)):
            _check_item(item, f"{WRAPPER}.input[{index}]")
    if not prompt:
        raise RowError(f"{WRAPPER}.input", "is empty")
    for name, kind in (("metadata", dict), ("instructions", str), ("parallel_tool_calls", bool)):
        if params.get(name) is not None:
            _expect(params[name], f"{WRAPPER}.{name}", kind)
    if "tools" in params:
        _expect(params["tools"], f"{WRAPPER}.tools", list)
    for index, tool in enumerate(params.get("tools") or []):
        _check_tool(tool, f"{WRAPPER}.tools[{index}]")


def _check_item(item, key):
    """Refuse an item of the prompt that NeMo Gym's request model refuses."""
    _expect(item, key, dict)
    kind = item.get("type", "message")
    if kind != "message":
        if kind not in ITEM_TYPES:
            raise RowError(f"{key}.type", f"is {str(kind)[:80]!r}, none of message, {', '.join(ITEM_TYPES)}")
        return
    if (role := _require(item, key, "role", str)) not in ROLES:
        raise RowError(f"{key}.role", f"is {role[:80]!r}, none of {', '.join(ROLES)}")
    if not isinstance(content := item.get("content"), (str, list)):
        raise RowError(f"{key}.content", f"is neither a string nor a list of parts but {_type_name(content)}")
    for index, part in enumerate(content if isinstance(content, list) else []):
        place = f"{key}.content[{index}]"
        if (kind := _expect(part, place, dict).get("type")) not in PART_TYPES:
            raise RowError(f"{place}.type", f"is {str(kind)[:80]!r}, none of {', '.join(PART_TYPES)}")


def _check_tool(tool, key):
    _expect(tool, key, dict)
    name = _require(tool, key, "name", str)
    if not TOOL_NAME.fullmatch(name):
        raise RowError(f"{key}.name", f"{name[:80]!r} is not 1 to 64 of letters, digits, '_' and '-'")
    if name in INTERNAL_ROUTES:
        raise RowError(f"{key}.name", f"{name!r} is an internal route of the resource server, not a tool")
    parameters = tool.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    for argument, schema in properties.items() if isinstance(properties, dict) else ():
        if schema is None:
            where = f"{key}.parameters.properties.{argument[:80]}"
            raise RowError(where, "is null: a table tool padded the row; write each row with its own keys alone")


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
    # True and False are integers in Python, but not in a row.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise RowError(key, f"is not {TYPE_NAMES[kind]} but {_type_name(value)}")
    return value


def _type_name(value):
    return "null" if value is None else TYPE_NAMES.get(type(value), "a number")


def _names(row):
    return ", ".join(sorted(row)[:8])[:200] or "none"


def to_relax(row: Row) -> dict[str, Any]:
    """Convert a raw row to `{"input": list or str, "metadata": {...}}`. Raises RowError.

    Metadata keeps every other key of the row and, under its name, the wrapper without its keys in MOVED.
    A row with a key of its own by one of those names is refused, since it could not be converted back.
    """
    check_row(row)
    params = dict(row["responses_create_params"])
    prompt = params.pop("input")
    metadata: dict[str, Any] = {key: value for key, value in row.items() if key != WRAPPER}
    for name, source in MOVED.items():
        if name in metadata:
            raise RowError(name, f"stands outside {WRAPPER}, where the converted row keeps its own")
        if source in params:
            metadata[name] = params.pop(source)
    metadata[WRAPPER] = params
    return {"input": prompt, "metadata": metadata}


def to_run_request(task: Any, checked: bool = False) -> Row:
    """The raw row of `task`, which is a raw row or a session input `{"messages", "metadata"}`.

    Raises RowError with the key as the task has it. A `checked` task passed before and is only converted.
    """
    if not isinstance(task, dict):
        raise RowError("", f"the task is not an object but {_type_name(task)}")
    converted = WRAPPER not in task and "messages" in task
    row: Any = _from_session(task["messages"], _require(task, "", "metadata", dict)) if converted else task
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
    """The key in a session input for a key of the raw row."""
    inner = key.removeprefix(f"{WRAPPER}.")
    if inner.startswith("input"):
        return f"messages{inner.removeprefix('input')}"
    for name, source in MOVED.items():
        if inner.startswith(source):
            return f"metadata.{name}{inner.removeprefix(source)}"
    return f"metadata.{key}"
