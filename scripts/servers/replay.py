"""Where the databases after a policy's calls differ from those after the ground truth: table, row, column, both values.

Calls are replayed on fresh state with the tools of the installed Workplace Assistant, and compared as its verifier
compares: letter case counts only in `status`, `list_name` and `board`, a value that is no text counts as missing, and
the order of rows counts.

Guarantees:
- `equal` is the verifier's own answer, and there is a difference exactly if it is False.
- It explains rewards and gives none: the reward of a run is the one that the run recorded.
"""

import contextlib
import io
import json
import warnings
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, TypedDict

from resources_servers.workplace_assistant.tables import CASE_MATTERS, same_states
from resources_servers.workplace_assistant.utils import get_tools

# Container of the tools -> its table's name for readers, and the column that identifies a row.
TABLES = {
    "calendar": ("calendar", "event_id"),
    "email": ("emails", "email_id"),
    "analytics": ("plots", "file_path"),
    "project_management": ("tasks", "task_id"),
    "customer_relationship_manager": ("customers", "customer_id"),
}
SHOWN = 80
Call = dict[str, Any]
Row = dict[str, Any]
# Of a fresh state, the policy's or the ground truth's: a text, None if missing, or a whole row.
Value = str | dict[str, str | None] | None


class Difference(TypedDict):
    """`kind`: changed, deleted, kept, created, missing or order; `words`: all of it as a sentence."""

    table: str
    kind: str
    row: str | None
    column: str | None
    policy: Value
    truth: Value
    before: Value
    words: str


class Step(TypedDict):
    """What came of one call: why it could not be made, and what it changed ("emails row 00000487")."""

    fault: str | None
    wrote: list[str]


class Explanation(TypedDict):
    """`equal` is None, with a `fault`, if the verifier cannot compare such states."""

    equal: bool | None
    differences: list[Difference]
    steps: list[Step]
    fault: str | None


class Replay:
    """The tables (container -> Table) after some calls, and a step for each call."""

    def __init__(self, calls: Iterable[Call]) -> None:
        self._tools = get_tools(list(TABLES))
        self.tables = self._now()
        self.steps = [self._step(call) for call in calls]

    def _now(self) -> dict[str, Any]:
        return {name: self._tools["containers"][name].table for name in TABLES}

    def _step(self, call: Call) -> Step:
        before, fault = self.tables, None
        try:
            self._tools["functions"][call["name"]](**json.loads(call["arguments"]))
        except Exception as error:  # to the verifier, too, any exception means that the call was not made
            fault = _describe_fault(call, error)
        self.tables = self._now()
        changes = [
            change for name in TABLES for change in _compare(name, self.tables[name], before[name], before[name])
        ]
        return {
            "fault": fault,
            "wrote": list(dict.fromkeys(_place(change["table"], change["row"]) for change in changes)),
        }


def _describe_fault(call: Call, error: Exception) -> str:
    """Why a call could not be made, in words."""
    if isinstance(error, KeyError) and error.args == (call["name"],):
        return "no such tool" if call["name"] else "no call that could be read"
    try:
        arguments = json.loads(call["arguments"])
    except (ValueError, TypeError, RecursionError):
        return "malformed arguments: not JSON"
    if not isinstance(arguments, dict):
        return "malformed arguments: not an object"
    return f"{type(error).__name__}: {str(error)[:SHOWN]}"


@lru_cache(maxsize=64)
def _truth(text: str) -> Replay:
    return Replay(json.loads(text))


@lru_cache(maxsize=1)
def _fresh() -> dict[str, Any]:
    return Replay([]).tables


def explain(calls: Sequence[Call], ground_truth: Sequence[Call]) -> Explanation:
    """Replay both; each call is {"name", "arguments": JSON text}."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        policy, truth = Replay(calls), _truth(json.dumps(ground_truth))
    differences = [
        difference
        for name in TABLES
        for difference in _compare(name, policy.tables[name], truth.tables[name], _fresh()[name])
    ]
    equal, fault = None, None
    try:
        equal = same_states([(policy.tables[name], truth.tables[name]) for name in TABLES])
    except Exception as error:  # what pandas raises on a column of which nothing is text
        fault = f"{type(error).__name__}: {error}"
    return {"equal": equal, "differences": differences, "steps": policy.steps, "fault": fault}


def _rows(table: Any) -> list[tuple[Any, Row]]:
    """[(label, row)] of a Table, in order."""
    if table.rows is not None:
        return list(zip(table.labels, table.rows, strict=True))
    return list(zip(table.frame.index, table.frame.to_dict(orient="records"), strict=True))


def _by_key(rows: list[tuple[Any, Row]], key: str) -> dict[tuple[str, int], Row]:
    """{(key's value, how many before it have the same): row}."""
    keyed, counts = {}, {}
    for _, row in rows:
        value = str(row.get(key))
        counts[value] = counts.get(value, -1) + 1
        keyed[value, counts[value]] = row
    return keyed


def _compare(name: str, policy: Any, truth: Any, fresh: Any) -> list[Difference]:
    """The differences of one table."""
    if policy is truth:
        return []
    table, key = TABLES[name]
    ours, theirs, before = _rows(policy), _rows(truth), _by_key(_rows(fresh), key)
    mine, wanted = _by_key(ours, key), _by_key(theirs, key)
    differences = [
        difference
        for row, nth in wanted | mine
        for difference in _row(table, row, mine.get((row, nth)), wanted.get((row, nth)), before.get((row, nth)))
    ]
    order, wanted_order = ([(label, row.get(key)) for label, row in rows] for rows in (ours, theirs))
    return differences if differences or order == wanted_order else [_difference("order", table, None)]


def _row(table: str, row: str, mine: Row | None, wanted: Row | None, before: Row | None) -> list[Difference]:
    """The differences of one row; None: there is no such row."""
    if mine is None or wanted is None:
        kinds = ("missing", "deleted") if mine is None else ("created", "kept")
        kind = kinds[before is not None]
        return [_difference(kind, table, row, None, _whole(mine), _whole(wanted), _whole(before))]
    if mine is wanted:
        return []
    return [
        _difference("changed", table, row, column, *(_shown(side.get(column)) for side in (mine, wanted, before or {})))
        for column in mine
        if column in wanted and _counts(column, mine[column]) != _counts(column, wanted[column])
    ]


def _difference(
    kind: str, table: str, row: str | None,
    column: str | None = None, policy: Value = None, truth: Value = None, before: Value = None,
) -> Difference:  # fmt: skip
    place = _place(table, row)
    sentences = {
        "changed": f"{place} {column}: {_quoted(policy)}, ground truth has {_quoted(truth)}",
        "deleted": f"{place} deleted, ground truth keeps it",
        "kept": f"{place} kept, ground truth deletes it",
        "created": f"{place} created, ground truth does not",
        "missing": f"{place} not created, ground truth creates it",
        "order": f"{table}: the same rows, deleted or created in another order than in the ground truth",
    }
    return {
        "table": table, "kind": kind, "row": row, "column": column, "policy": policy, "truth": truth, "before": before,
        "words": sentences[kind],
    }  # fmt: skip


def _counts(column: str, value: Any) -> Any:
    """What the verifier sees of a value."""
    if isinstance(value, str):
        return value if column in CASE_MATTERS else value.lower()
    return value if column in CASE_MATTERS and value is not None and value == value else None


def _shown(value: Any) -> str | None:
    """A value for a reader: text, or None if it is missing."""
    if isinstance(value, str):
        return value
    missing = value is None or (isinstance(value, float) and value != value)
    return None if missing else f"{value!r} (no text)"


def _whole(row: Row | None) -> dict[str, str | None] | None:
    return None if row is None else {column: _shown(value) for column, value in row.items()}


def _place(table: str, row: str | None) -> str:
    return f"{table} row {row}" if row else f"order of {table}"


def _quoted(value: Value) -> str:
    if not isinstance(value, str):
        return "missing"
    return f"“{value if len(value) <= SHOWN else value[: SHOWN - 1] + '…'}”"
