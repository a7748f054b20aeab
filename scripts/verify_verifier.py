#!/usr/bin/env python3
"""Check the environment's verifier by hand-played actions: the first half of `make verify`.

Talks to the resource server alone, without agent, Gateway or model, in seconds. It plays the
first example row twice, each in a session of its own: a read-only search and then the right
reply must earn 1.0 (another way to the same state), a wrong reply 0.0, and neither session may
see the other's mail. A pass leaves no session behind: verifying a session ends it. It says
nothing of other rows or of the Gateway.

    make verify
    scripts/run.sh verify_verifier --resource-url http://127.0.0.1:29002
"""

import json
from collections.abc import Mapping
from typing import Any

import requests

from common import terminal
from common.failure import Failure
from common.settings import from_command_line
from inputs import rows
from policy import model_api
from servers.verifier import FOUND, REPLIED, REPLY, SEARCH, TEXT, example_row, post, verification

WRONG_REPLY = ("email_reply_email", {"email_id": "00000057", "body": "No, thank you."})
FIND_REPLY = ("email_search_emails", {"query": TEXT})
OPTIONS = {"--resource-url": {"metavar": "URL", "help": "the resource server (default: port GYM_BASE_PORT + 2)"}}
Call = tuple[str, dict[str, Any]]


def main() -> None:
    settings, args = from_command_line(__doc__, "GYM_BASE_PORT", options=OPTIONS)
    url = (args.resource_url or settings.local_url("resource")).rstrip("/")
    row = example_row()
    equivalent, incorrect = Episode(url, row), Episode(url, row)
    equivalent.act(SEARCH, FOUND)
    equivalent.act(REPLY, REPLIED)
    incorrect.act(WRONG_REPLY, REPLIED)
    equivalent.look(FIND_REPLY, 1)
    incorrect.look(FIND_REPLY, 0)
    rewards = f"equivalent_reward={equivalent.verify()} incorrect_reward={incorrect.verify()}"
    if rewards != "equivalent_reward=1.0 incorrect_reward=0.0":
        raise Failure(f"verifier contract broken at {url}: {rewards}, not 1.0 and 0.0")
    terminal.say(f"Workplace Assistant verifier contract passed: {rewards}")


class Episode:
    """One session of the resource server, played by hand; tool calls go into the transcript to verify."""

    def __init__(self, url: str, row: rows.Row):
        self.url, self.row, self.calls = url, row, []
        self.client = requests.Session()
        # Two programs of one machine need no proxy.
        self.client.trust_env = False
        self._post("seed_session", row)

    def act(self, call: Call, expected: str) -> None:
        """Call a tool as the policy would; `expected` must be in what it returns."""
        name, arguments = call
        output = json.dumps(self._post(name, arguments).get("output"))
        if expected not in output:
            raise Failure(f"{self.url}/{name}: {expected!r} is not in the output: {output[:300]}")
        self.calls.append(model_api.function_call(name, json.dumps(arguments)))

    def look(self, search: Call, expected: int) -> None:
        """Check how many mails a search finds in this session's state, outside the transcript."""
        output = self._post(*search).get("output")
        count = len(output["emails"]) if isinstance(output, dict) and "emails" in output else 0
        if count != expected:
            raise Failure(
                f"{self.url}: a session's state holds {count} replies instead of {expected}; states are mixed up"
            )

    def verify(self) -> float | None:
        """The reward of this session's calls."""
        return self._post("verify", verification(self.row, self.calls)).get("reward")

    def _post(self, route: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return post(self.client, self.url, route, body)


if __name__ == "__main__":
    terminal.run(main)
