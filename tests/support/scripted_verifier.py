"""A small verifier: it grades calls as the resource server does, on a state of its own, with faults on demand.

Deletions of ids of eight digits count once, in any order. Other calls that change the state count by their
arguments without letter case. All other calls change nothing. `faults` maps a row's id to "broken" (always 0),
"blind" (arguments do not matter), "odd" (a reward of 0.5) or an HTTP status.
"""

import json

from inputs.row_facts import ALTERED
from support.http_server import HttpServer


class ScriptedVerifier(HttpServer):
    """`asked` holds (row id, tools in the row, calls) of each question."""

    def __init__(self, **faults):
        super().__init__()
        self.faults, self.asked = {int(name.removeprefix("row_")): fault for name, fault in faults.items()}, []

    def answer(self, request):
        if request.path != "/verify":
            return 404, {}
        row = request.json()
        calls = [item for item in row["response"]["output"] if item["type"] == "function_call"]
        self.asked.append((row["id"], row["responses_create_params"]["tools"], calls))
        fault = self.faults.get(row["id"])
        if isinstance(fault, int):
            return fault, {"detail": "no"}
        states = [state(made, fault == "blind") for made in (calls, row["ground_truth"])]
        right = fault != "broken" and states[0] == states[1]
        return 200, {"reward": 0.5 if fault == "odd" else float(right)}


def state(calls, blind):
    deleted, changes = set(), []
    for call in calls:
        arguments = {name: str(value).casefold() for name, value in json.loads(call["arguments"]).items()}
        if call["name"].startswith("email_delete"):
            deleted |= {arguments["email_id"]} if len(arguments["email_id"]) == 8 else set()
        elif call["name"] in ALTERED:
            changes.append((call["name"], None if blind else sorted(arguments.items())))
    return deleted, changes
