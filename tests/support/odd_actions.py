"""Strategies for tool calls of the Workplace Assistant, from the schemas of the example rows.

Arguments are drawn by what they are called: values that are in the databases, values that a
model might make up, and values of the wrong kind. `variants` makes a second sequence out of a
first one, so that the two often, but not always, lead to the same state.
"""

import csv
import json

from hypothesis import strategies as st

from servers.tree import WORKPLACE, installed_tree

FOLDER = installed_tree() / WORKPLACE
ODD = [0, 7, -1, 1.5, True, False, None, [], ["a"], {}, {"a": 1}, "", " ", "\x00", "a\x00", "\ud800", float("nan")]
PATTERNS = ["", ".", "^a", "s$", "a|e", "(", "[", "*", "a{2", "(?i)A", r"\d", r"\D+", "[A-Z]", "(a)(b)?", "ſ", "K", "İ"]
TIMES = ["2023-11-30", "2023-10-05 11:00:00", "2023-11-01T09:00:00Z", "2023-11-29 10:00:00+05:00", "30 Nov 2023"]
TIMES += ["2023", "2023-13-01", "tomorrow", "today", "NaT", "0001-01-01", "99999-01-01", "1", "-1", "11:30", "nan"]
PAGES = [1, 1, 2, 3, 0, -1, 100, 10**20, "2", 1.5, True, None, "x", [1], float("nan")]
FIELDS = {
    "email_get": ["email_id", "inbox/outbox", "sender/recipient", "subject", "sent_datetime", "body", "Body"],
    "calendar": ["event_id", "event_name", "participant_email", "event_start", "duration", "notes"],
    "project": ["task_id", "task_name", "assigned_to_email", "list_name", "due_date", "board", "status"],
    "customer": [
        "customer_id", "customer_name", "assigned_to_email", "customer_email", "customer_phone",
        "last_contact_date", "product_interest", "status", "notes", "follow_up_by", "board",
    ],
}  # fmt: skip
CHOICES = {
    "list_name": ["Backlog", "In Progress", "In Review", "Completed", "backlog", "review"],
    "board": ["Back end", "Front end", "Design", "design", "end"],
    "status": ["Qualified", "Won", "Lost", "Lead", "Proposal", "won", "o"],
    "product_interest": ["Software", "Hardware", "Services", "Consulting", "Training", "ware"],
    "plot_type": ["bar", "line", "scatter", "histogram", "pie"],
    "value_to_plot": ["total_visits", "session_duration_seconds", "user_engaged", "visits_direct", "visits"],
    "traffic_source": ["direct", "referral", "search engine", "social media", "Direct"],
    "duration": ["30", "60", "0", "-5", "1.5", "long", "１２", 30],
}


def schemas():
    """{tool: [argument names]} of the first example row."""
    with (FOLDER / "data" / "example.jsonl").open() as rows:
        tools = json.loads(rows.readline())["responses_create_params"]["tools"]
    return {tool["name"]: list(tool["parameters"]["properties"]) for tool in tools}


def column(name, *columns):
    with (FOLDER / "csv_data" / "processed" / name).open(newline="") as file:
        rows = list(csv.DictReader(file))
    return sorted({row[column] for row in rows for column in columns})


IDS = {
    "email_id": [*column("emails.csv", "email_id")[-6:], "501", "502"],
    "event_id": [*column("calendar_events.csv", "event_id")[-6:], "00000300", "00000301", "1234567", "abcdefgh"],
    "task_id": [*column("project_tasks.csv", "task_id")[-6:], "00000300", "00000301"],
    "customer_id": [*column("customer_relationship_manager_data.csv", "customer_id")[-6:], "00000200", "00000201"],
    "visitor_id": column("analytics_data.csv", "visitor_id")[:8],
}
EMAILS = column("project_tasks.csv", "assigned_to_email")
EMAILS += [EMAILS[0].upper(), "nobody@atlas.com", "a@b.co", "@", "no address", "atlas.com"]
WORDS = ["meeting", "Sam", "SYNC", "update on", "report project", "xyzzy", "Taylor", "luis", "nano", "design", "ß"]
TOOLS = schemas()
VERBS = {"create", "add", "send", "delete", "update", "reply", "forward"}
WRITES = [name for name in TOOLS if VERBS & set(name.split("_"))]


def values(tool, argument):
    """Values that may be given for an argument, right and wrong."""
    if argument == "field":
        return next(names for key, names in FIELDS.items() if key in tool)
    for known in (IDS, CHOICES):
        if argument in known:
            return known[argument]
    if argument in ("page", "page_size"):
        return PAGES
    if "email" in argument or argument == "recipient":
        return [*EMAILS, "ATLAS", "."]
    if "date" in argument or "time" in argument or argument in ("event_start", "follow_up_by"):
        return [*TIMES, "2023-11-22", "2023-12-01 23:59:00"]
    if argument == "new_value":
        return [*EMAILS[:3], *TIMES[:6], *WORDS, "Backlog", "Design", "Won", "Software", "45", "00000299", "2023-12-31"]
    return WORDS + PATTERNS if argument in ("query", "name", "task_name", "customer_name") else WORDS


@st.composite
def arguments(draw, tool):
    """Arguments of a tool as JSON text: some left out, some odd, seldom one too many."""
    given = {}
    kind = draw(st.integers(0, 9))
    for name in TOOLS[tool]:
        optional = name not in ("field", "new_value", "body", "subject", "recipient") and not name.endswith("_id")
        if draw(st.integers(0, 9)) < (4 if optional and tool not in WRITES else 1):
            continue
        odd = kind == 0 and draw(st.booleans())
        given[name] = draw(st.sampled_from(ODD if odd else values(tool, name)))
        if kind == 1 and isinstance(given[name], str) and draw(st.booleans()):
            given[name] = draw(st.text(max_size=8))
    if kind == 2 and draw(st.booleans()):
        given[draw(st.sampled_from(["extra", "self", "a\ud800"]))] = "x"
    return json.dumps(given)


@st.composite
def actions(draw):
    """One tool call: {"name", "arguments"}, mostly a right one."""
    kind = draw(st.integers(0, 29))
    if kind == 0:
        name = draw(st.sampled_from(["", "email", "verify", "calendar_create_event "]))
        return {"name": name, "arguments": "{}"}
    tool = draw(st.sampled_from(WRITES if kind % 2 else list(TOOLS)))
    if kind == 2:
        return {"name": tool, "arguments": draw(st.sampled_from(["", "{", "[]", "null", "3", '"text"']))}
    return {"name": tool, "arguments": draw(arguments(tool))}


sequences = st.lists(actions(), min_size=1, max_size=6)


@st.composite
def variants(draw, sequence):
    """A sequence near to another one: the same, in other case, one call less, more or elsewhere."""
    other = list(sequence)
    kind = draw(st.integers(0, 5))
    at = draw(st.integers(0, len(other) - 1))
    if kind == 1:
        other[at] = {**other[at], "arguments": other[at]["arguments"].swapcase()}
    elif kind == 2:
        del other[at]
    elif kind == 3:
        other.append(draw(actions()))
    elif kind == 4:
        other.insert(0, other.pop(at))
    elif kind == 5:
        other[at] = draw(actions())
    return other
