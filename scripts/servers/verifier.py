"""The environment's verifier asked directly: what `/verify` takes, and the calls of the first example row."""

from collections.abc import Iterable
from typing import Any

import requests

from common.failure import Failure
from inputs import rows
from policy import model_api
from servers.tree import installed_tree

EXAMPLE = "resources_servers/workplace_assistant/data/example.jsonl"
TEXT = "Thanks for the update - I will get back to you tomorrow."
SEARCH = ("email_search_emails", {"query": "carlos Task Update on Develop prototype for report generation"})
REPLY = ("email_reply_email", {"email_id": "00000057", "body": TEXT})
FOUND, REPLIED = "00000057", "Email replied successfully."
TIMEOUT_S = 30


def example_row() -> rows.Row:
    """The first example row, "Reply to carlos's last email …", from the installed nemo-gym package."""
    return rows.read_rows(installed_tree() / EXAMPLE, 1)[0]


def verification(row: rows.Row, calls: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The body of `/verify`: the row, and a policy's answer with these function calls."""
    fields = {"parallel_tool_calls": False, "tool_choice": "auto", "tools": []}
    return row | {"response": model_api.answered([*calls, model_api.message("Done.")]) | fields}


class Unfit(Failure):
    """The resource server answered, but with no JSON object and status 200."""


def post(client: requests.Session, url: str, route: str, body: Any) -> dict[str, Any]:
    """Send JSON to a route of the resource server. Returns the parsed object. Raises Failure, Unfit if it answered."""
    try:
        answer = client.post(f"{url}/{route}", json=body, timeout=TIMEOUT_S, allow_redirects=False)
        content = answer.json() if answer.status_code == 200 else None
    except requests.ConnectionError:
        raise Failure(f"{url}: no resource server answers; `make gym-up` starts it") from None
    except (requests.RequestException, ValueError) as error:
        raise Failure(f"{url}/{route}: {type(error).__name__}: {str(error)[:200]}") from None
    if not isinstance(content, dict):
        raise Unfit(f"{url}/{route}: answered {answer.status_code} {answer.text[:300]!r}")
    return content
