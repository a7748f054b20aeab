"""What can be said of task rows without running them: calls, altered calls, steps, prompt size, twins.

Pure functions on raw rows (rows.py); `make audit` and evaluations read the same figures from here.
They know the Workplace Assistant's tools by name and nothing of its data: whether a call
really changes something, the verifier tells (audit_checks.py).
"""

import json
import math
import re
import unicodedata
from collections import Counter

from inputs.rows import WRAPPER
from policy.model_api import TURNS_WITH_CALLS

# The tools that change the state, and the argument of each that an audit alters. For records that exist it
# is the id, so that another record is hit; for new ones a text that is stored. The other tools only read.
ALTERED = {
    "email_send_email": "body",
    "email_reply_email": "body",
    "email_forward_email": "recipient",
    "email_delete_email": "email_id",
    "calendar_create_event": "event_name",
    "calendar_update_event": "event_id",
    "calendar_delete_event": "event_id",
    "analytics_create_plot": "time_max",
    "project_management_create_task": "task_name",
    "project_management_update_task": "task_id",
    "project_management_delete_task": "task_id",
    "customer_relationship_manager_add_customer": "customer_name",
    "customer_relationship_manager_update_customer": "customer_id",
    "customer_relationship_manager_delete_customer": "customer_id",
}
# UTF-8 bytes of tool definitions and messages to one token. Counted with Qwen's vocabulary and chat template
# on 345 WorkBench prompts (4,198 to 4,323 tokens each): 3.82 to 3.86, so that the estimate is 0 to 2 % too high.
BYTES_PER_TOKEN = 3.8


def changing(calls):
    """Positions of the calls whose tools change the state."""
    return [index for index, call in enumerate(calls) if call["name"] in ALTERED]


def altered_text(value):
    """Another text for an argument's value, which differs in more than letter case.

    A text that ends in a digit (ids, dates, times, durations) gets the next digit there, 9 becomes
    0; any other text gets a word more; what is no text, or not there, becomes one.
    """
    if not isinstance(value, str):
        return "altered"
    if value[-1:] in set("0123456789"):
        return value[:-1] + str((int(value[-1]) + 1) % 10)
    return f"{value} altered"


def altered(calls, index):
    """The calls with one argument of call `index` altered (see ALTERED), in its exact repeats too."""
    call = calls[index]
    arguments = json.loads(call["arguments"])
    name = ALTERED[call["name"]]
    other = call | {"arguments": json.dumps(arguments | {name: altered_text(arguments.get(name))})}
    return [other if each == call else each for each in calls]


def without(calls, index):
    """The calls without call `index` and its exact repeats."""
    return [each for each in calls if each != calls[index]]


def fits_steps(row):
    """Whether the ground truth can be done one call a turn and leave a turn for the closing message.

    The share of rows that fit is a ceiling for policies of one call a turn: those must search, too.
    """
    return len(row["ground_truth"]) <= TURNS_WITH_CALLS


def offered(row):
    """Names of the row's tools."""
    return [tool["name"] for tool in row[WRAPPER].get("tools") or []]


def not_offered(row):
    """Names of tools that the ground truth calls and the row does not offer, which no policy can call."""
    return sorted({call["name"] for call in row["ground_truth"]} - set(offered(row)))


def census(rows):
    """{tool: {"offered": rows that offer it, "rows": rows whose ground truth calls it, "calls": such calls}}."""
    offers = Counter(name for row in rows for name in set(offered(row)))
    calls = Counter(call["name"] for row in rows for call in row["ground_truth"])
    users = Counter(name for row in rows for name in {call["name"] for call in row["ground_truth"]})
    names = sorted(offers.keys() | calls.keys())
    return {name: {"offered": offers[name], "rows": users[name], "calls": calls[name]} for name in names}


def prompt_tokens(row):
    """Estimated tokens of the first model call's prompt (see BYTES_PER_TOKEN)."""
    params = row[WRAPPER]
    texts = [json.dumps(params.get("tools") or [], ensure_ascii=False), params.get("instructions") or ""]
    texts += [text for _, text in messages(row)]
    return math.ceil(sum(len(text.encode("utf-8", "replace")) for text in texts) / BYTES_PER_TOKEN)


def messages(row):
    """[(role, text)] of the row's prompt."""
    prompt = row[WRAPPER]["input"]
    if isinstance(prompt, str):
        return [("user", prompt)]
    return [(item.get("role"), _text(item.get("content"))) for item in prompt]


def _text(content):
    if isinstance(content, list):
        content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def question(row):
    """What the row asks, less what does not matter: the user's words without case, spaces and punctuation."""
    words = " ".join(text for role, text in messages(row) if role == "user")
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", words).casefold()))


def answer(row):
    """What the row wants: its ground truth without letter case and the order of arguments."""
    return json.dumps(
        [[call["name"], json.loads(call["arguments"])] for call in row["ground_truth"]], sort_keys=True
    ).casefold()


def twins(places):
    """Rows that ask the same. `places` is [(place, row)]; returns [(place, earlier place, same answer?)], in order.

    Each row is held against the first one with its question, and against the first one with
    its question and its answer where that is another.
    """
    first, firsts, found = {}, {}, []
    for place, row in places:
        key = question(row)
        pair = (key, answer(row))
        if pair in firsts:
            found.append((place, firsts[pair], True))
        elif key in first:
            found.append((place, first[key], False))
        first.setdefault(key, place)
        firsts.setdefault(pair, place)
    return found
