"""What the real verifier says of task rows: the ground truth replayed, nothing done, one argument altered.

Guarantees of `check`: each question is one POST to the resource server's /verify, which replays calls
and ground truth on fresh state, so that rows need no session and cannot meet; an alteration counts as
accepted only if the verifier itself holds the altered call to matter (the ground truth without it
earns 0). Where no call matters, there is no alteration, and that is said apart. An answer
that is neither 0 nor 1 is the row's fault; a verifier that cannot be reached ends the audit.

A replayed ground truth that the tools refuse earns 1 all the same, since both sides refuse it: such
rows are seen by what doing nothing earns.
"""

import threading

import requests

from common.failure import Failure
from inputs import row_facts, rows
from policy import model_api
from servers import verifier as servers_verifier
from servers.verifier import Unfit, verification


class Verifier:
    """The verifier of the resource server at `url`; may be asked by several threads."""

    def __init__(self, url):
        self.url, self._local = url, threading.local()

    def reward(self, row, calls):
        """What calls, [{"name", "arguments"}], earn on a row: 0 or 1. Raises Unfit on any other answer, Failure."""
        items = [model_api.function_call(call["name"], call["arguments"]) for call in calls]
        reward = servers_verifier.post(self._client(), self.url, "verify", verification(row, items)).get("reward")
        if reward not in (0, 1):
            raise Unfit(f"{self.url}/verify: gives the reward {reward!r}, neither 0 nor 1")
        return int(reward)

    def _client(self):
        if not hasattr(self._local, "client"):
            self._local.client = requests.Session()
            self._local.client.trust_env = False
        return self._local.client


def must_discriminate(verifier):
    """Refuse a verifier to which right and wrong are the same: whatever it says of rows would mean nothing."""
    row = servers_verifier.example_row()
    rewards = [
        verifier.reward(row, calls) for calls in (row["ground_truth"], row_facts.altered(row["ground_truth"], 0))
    ]
    if rewards != [1, 0]:
        raise Failure(f"{verifier.url}: the right and a wrong reply earn {rewards}, not [1, 0]; see `make verify`")


def check(verifier, row):
    """One row's findings: {"replayed", "nothing": 0 or 1, "alteration": {...}, "faults": [text]}.

    Raises Failure when the verifier cannot be reached.
    """
    truth, faults = row["ground_truth"], []
    faults += [f"the ground truth calls {name}, which the row does not offer" for name in row_facts.not_offered(row)]
    # Asked once with the whole row, to see that the verifier takes it as it is.
    bare = without_tools(row)
    try:
        replayed = verifier.reward(row, truth)
        nothing = verifier.reward(bare, []) if truth else replayed
        alteration = alter(verifier, bare, nothing)
    except Unfit as fault:
        return {"replayed": None, "nothing": None, "alteration": None, "faults": [*faults, str(fault)]}
    if replayed != 1:
        faults.append("the ground truth replayed earns 0")
    elif alteration["outcome"] == "accepted":
        faults.append(alteration["why"])
    return {"replayed": replayed, "nothing": nothing, "alteration": alteration, "faults": faults}


def without_tools(row):
    """The row for questions about rewards, in which its tools play no part; reading them takes time."""
    return row | {rows.WRAPPER: row[rows.WRAPPER] | {"tools": []}}


def alter(verifier, row, nothing):
    """Alter one argument of the last call that matters: {"outcome": "refused", "accepted" or "impossible", "why"}.

    "refused" is right: the altered calls earn 0. `nothing` is what doing nothing earns.
    """
    truth = row["ground_truth"]
    places = row_facts.changing(truth)
    for index in reversed(places):
        where = f"{truth[index]['name']}.{row_facts.ALTERED[truth[index]['name']]} of call {index + 1}"
        if verifier.reward(row, row_facts.altered(truth, index)) == 0:
            return {"outcome": "refused", "why": f"{where} altered earns 0"}
        if verifier.reward(row, row_facts.without(truth, index)) == 0:
            return {"outcome": "accepted", "why": f"{where} altered earns 1, although without the call it is 0"}
    if not places:
        return {"outcome": "impossible", "why": "no call that changes the state"}
    if nothing:
        return {"outcome": "impossible", "why": "its calls leave the state as it was"}
    return {"outcome": "accepted", "why": "no altered argument earns 0, although doing nothing does"}
