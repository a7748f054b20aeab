"""Facts about raw task rows that need no run: calls, altered calls, steps, prompt size, twins.

Guarantees: pure functions, so that `make audit` and evaluations get the same figures. They know the Workplace
Assistant's tools by name and nothing of its data: the verifier decides whether a call changed something.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from inputs.rows import WRAPPER, Row
from policy.model_api import TURNS_WITH_CALLS

Calls = list[dict[str, Any]]
# The tools that change the state, and the argument that an audit alters: the id of an existing record, a
# stored text of a new one. The other tools only read.
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
# UTF-8 bytes of tool definitions and messages to one token. Qwen's vocabulary and chat template give 3.82 to
# 3.86 on 345 WorkBench prompts (4,198 to 4,323 tokens each), so that estimates are 0 to 2 % too high.
BYTES_PER_TOKEN = 3.8


def changing(calls: Calls) -> list[int]:
    """Positions of the calls whose tools change the state."""
    return [index for index, call in enumerate(calls) if call["name"] in ALTERED]


def altered_text(value: object) -> str:
    """Another text for an argument's value, which differs in more than letter case.

    The last digit of a text that ends in one (ids, dates, times, durations) is raised by one, 9 to 0;
    any other text gets one more word; any other value becomes a text.
    """
    if not isinstance(value, str):
        return "altered"
    if value[-1:] in set("0123456789"):
        return value[:-1] + str((int(value[-1]) + 1) % 10)
    return f"{value} altered"


def altered(calls: Calls, index: int) -> Calls:
    """The calls with one argument of call `index` and of its exact repeats altered (see ALTERED)."""
    call = calls[index]
    arguments = json.loads(call["arguments"])
    name = ALTERED[call["name"]]
    other = call | {"arguments": json.dumps(arguments | {name: altered_text(arguments.get(name))})}
    return [other if candidate == call else candidate for candidate in calls]


def without(calls: Calls, index: int) -> Calls:
    """The calls without call `index` and its exact repeats."""
    return [call for call in calls if call != calls[index]]


def fits_steps(row: Row) -> bool:
    """Whether the ground truth fits at one call a turn, with a turn left for the closing message.

    The share of rows that fit is an upper bound for policies of one call a turn, since they search too.
    """
    return len(row["ground_truth"]) <= TURNS_WITH_CALLS


def offered(row: Row) -> list[str]:
    """Names of the row's tools."""
    return [tool["name"] for tool in row[WRAPPER].get("tools") or []]


def not_offered(row: Row) -> list[str]:
    """Names of tools that the ground truth calls but the row does not offer, so that no policy can call them."""
    return sorted({call["name"] for call in row["ground_truth"]} - set(offered(row)))


def census(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """{tool: {"offered": rows that offer it, "rows": rows whose ground truth calls it, "calls": such calls}}."""
    offers = Counter(name for row in rows for name in set(offered(row)))
    calls = Counter(call["name"] for row in rows for call in row["ground_truth"])
    users = Counter(name for row in rows for name in {call["name"] for call in row["ground_truth"]})
    names = sorted(offers.keys() | calls.keys())
    return {name: {"offered": offers[name], "rows": users[name], "calls": calls[name]} for name in names}


def prompt_tokens(row: Row) -> int:
    """Estimated tokens of the first model call's prompt (see BYTES_PER_TOKEN)."""
    params = row[WRAPPER]
    texts = [json.dumps(params.get("tools") or [], ensure_ascii=False), params.get("instructions") or ""]
    texts += [text for _, text in messages(row)]
    return math.ceil(sum(len(text.encode("utf-8", "replace")) for text in texts) / BYTES_PER_TOKEN)


def messages(row: Row) -> list[tuple[str | None, str]]:
    """[(role, text)] of the row's prompt."""
    prompt = row[WRAPPER]["input"]
    if isinstance(prompt, str):
        return [("user", prompt)]
    return [(item.get("role"), _text(item.get("content"))) for item in prompt]


def _text(content):
    if isinstance(content, list):
        content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def question(row: Row) -> str:
    """The user's words without letter case, spaces and punctuation."""
    words = " ".join(text for role, text in messages(row) if role == "user")
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", words).casefold()))


def answer(row: Row) -> str:
    """The ground truth without letter case and the order of arguments."""
    return json.dumps(
        [[call["name"], json.loads(call["arguments"])] for call in row["ground_truth"]], sort_keys=True
    ).casefold()


def twins(places: Iterable[tuple[str, Row]]) -> list[tuple[str, str, bool]]:
    """Rows that ask the same. `places` is [(place, row)]; returns [(place, earlier place, same answer?)], in order.

    A row's earlier place is the first row with its question and answer, or the first with its question.
    """
    by_question: dict[str, str] = {}
    by_both: dict[tuple[str, str], str] = {}
    pairs = []
    for place, row in places:
        both = (question(row), answer(row))
        if both in by_both:
            pairs.append((place, by_both[both], True))
        elif both[0] in by_question:
            pairs.append((place, by_question[both[0]], False))
        by_question.setdefault(both[0], place)
        by_both.setdefault(both, place)
    return pairs
