"""Where the databases that tool calls lead to differ from those of the ground truth: table, row, column, both values.

Calls are replayed on fresh state with the tools of the installed Workplace Assistant, as its
verifier does, and compared as it compares: letter case counts only in `status`, `list_name` and
`board`, what is no text counts as missing, the order of rows counts. Guarantees: `equal` is the
verifier's own answer, and there is a difference exactly if it is False. It explains rewards; it
gives none: the reward of a run is the one that the run recorded.
"""

import contextlib
import io
import json
import warnings
from functools import lru_cache

from resources_servers.workplace_assistant.tables import CASE_MATTERS, same_states
from resources_servers.workplace_assistant.utils import get_tools

# Container of the tools -> how a reader calls its table, and the column that tells its rows apart.
TABLES = {
    "calendar": ("calendar", "event_id"),
    "email": ("emails", "email_id"),
    "analytics": ("plots", "file_path"),
    "project_management": ("tasks", "task_id"),
    "customer_relationship_manager": ("customers", "customer_id"),
}
SHOWN = 80
ORDER = {"kind": "order", "row": None, "column": None, "policy": None, "truth": None, "before": None}


class Replay:
    """The tables (container -> Table) after some calls, and a step for each call: its fault, and what it changed.

    A step is {"fault": why the call could not be made, or None; "wrote": ["emails row 00000487", ...]}.
    """

    def __init__(self, calls):
        self._tools = get_tools(list(TABLES))
        self.tables = self._now()
        self.steps = [self._step(call) for call in calls]

    def _now(self):
        return {name: self._tools["containers"][name].table for name in TABLES}

    def _step(self, call):
        before, fault = self.tables, None
        try:
            self._tools["functions"][call["name"]](**json.loads(call["arguments"]))
        except Exception as error:  # as the verifier does: whatever it is, the call has not been made
            fault = describe_fault(call, error)
        self.tables = self._now()
        changed = [name for name in TABLES if self.tables[name] is not before[name]]
        found = [each for name in changed for each in _compare(name, self.tables[name], before[name], before[name])]
        return {"fault": fault, "wrote": list(dict.fromkeys(_place(each) for each in found))}


def describe_fault(call, error):
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
def _truth(text):
    return Replay(json.loads(text))


@lru_cache(maxsize=1)
def _fresh():
    return Replay([]).tables


def explain(calls, ground_truth):
    """Replay both: {"equal": bool or None, "differences": [...], "steps": [...], "fault": None or text}.

    `calls` and `ground_truth` are lists of {"name", "arguments": JSON text}. `equal` None, with a
    fault: the verifier cannot compare such states. A difference has "table", "row", "kind"
    (changed, deleted, kept, created, missing, order), "column" and the values "policy", "truth" and
    "before" (of a fresh state): text, None for missing, or a whole row as {column: value}.
    """
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        replay, truth = Replay(calls), _truth(json.dumps(ground_truth))
    found = [
        each | {"table": table}
        for name, (table, _) in TABLES.items()
        for each in _compare(name, replay.tables[name], truth.tables[name], _fresh()[name])
    ]
    for each in found:
        each["words"] = words(each)
    try:
        equal = same_states([(replay.tables[name], truth.tables[name]) for name in TABLES])
    except Exception as error:  # what pandas raises on a column of which nothing is text
        return {"equal": None, "differences": found, "steps": replay.steps, "fault": f"{type(error).__name__}: {error}"}
    return {"equal": equal, "differences": found, "steps": replay.steps, "fault": None}


def _rows(table):
    """[(label, row)] of a Table, in order."""
    if table.rows is not None:
        return list(zip(table.labels, table.rows, strict=True))
    return list(zip(table.frame.index, table.frame.to_dict(orient="records"), strict=True))


def _by_key(rows, key):
    """{(key's value, how many before it have the same): row}."""
    found, seen = {}, {}
    for _, row in rows:
        name = str(row.get(key))
        seen[name] = seen.get(name, -1) + 1
        found[name, seen[name]] = row
    return found


def _compare(name, policy, truth, fresh):
    """The differences of one table."""
    if policy is truth:
        return []
    table, key = TABLES[name]
    ours, theirs, before = _rows(policy), _rows(truth), _by_key(_rows(fresh), key)
    mine, wanted = _by_key(ours, key), _by_key(theirs, key)
    found = []
    for place in wanted | mine:
        found += [each | {"row": place[0]} for each in _row(mine.get(place), wanted.get(place), before.get(place))]
    if not found and [(label, row.get(key)) for label, row in ours] != [(label, row.get(key)) for label, row in theirs]:
        found = [dict(ORDER)]
    return [each | {"table": table} for each in found]


def _row(mine, wanted, before):
    if mine is None:
        kind = "missing" if before is None else "deleted"
        return [_difference(kind, None, None, _whole(wanted), _whole(before))]
    if wanted is None:
        kind = "created" if before is None else "kept"
        return [_difference(kind, None, _whole(mine), None, _whole(before))]
    if mine is wanted:
        return []
    return [
        _difference("changed", column, _shown(mine[column]), _shown(wanted[column]), _shown((before or {}).get(column)))
        for column in mine
        if column in wanted and _counts(column, mine[column]) != _counts(column, wanted[column])
    ]


def _difference(kind, column, policy, truth, before):
    return {"kind": kind, "row": None, "column": column, "policy": policy, "truth": truth, "before": before}


def _counts(column, value):
    """What the verifier sees of a value."""
    if isinstance(value, str):
        return value if column in CASE_MATTERS else value.lower()
    return value if column in CASE_MATTERS and value is not None and value == value else None


def _shown(value):
    """A value for a reader: text, or None where it is missing."""
    if isinstance(value, str):
        return value
    missing = value is None or (isinstance(value, float) and value != value)
    return None if missing else f"{value!r} (no text)"


def _whole(row):
    return None if row is None else {column: _shown(value) for column, value in row.items()}


def _place(difference):
    return f"{difference['table']} row {difference['row']}" if difference["row"] else f"order of {difference['table']}"


def words(difference):
    """One difference as a sentence."""
    place = _place(difference)
    sentences = {
        "deleted": f"{place} deleted, ground truth keeps it",
        "kept": f"{place} kept, ground truth deletes it",
        "created": f"{place} created, ground truth does not",
        "missing": f"{place} not created, ground truth creates it",
        "order": f"{difference['table']}: the same rows, deleted or created in another order than in the ground truth",
    }
    if difference["kind"] != "changed":
        return sentences[difference["kind"]]
    mine, wanted = (_quoted(difference[side]) for side in ("policy", "truth"))
    return f"{place} {difference['column']}: {mine}, ground truth has {wanted}"


def _quoted(value):
    if value is None:
        return "missing"
    return f"“{value if len(value) <= SHOWN else value[: SHOWN - 1] + '…'}”"
