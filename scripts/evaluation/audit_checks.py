"""What the real verifier says of task rows: the ground truth replayed, nothing done, one argument altered.

Guarantees:
- A question is one POST to the resource server's /verify. It replays calls and ground truth on fresh state, so rows
  need no session and cannot affect each other.
- An alteration counts as accepted only if the altered call matters to the verifier: without it the ground truth earns
  0. Where no call matters, there is no alteration, and that is reported separately.
- An answer other than 0 and 1 is the row's fault; a verifier that cannot be reached ends the audit.

A ground truth that the tools refuse earns 1 all the same, since both sides refuse it. Such a row shows in what doing
nothing earns.
"""

import threading
from typing import Any, TypedDict

import requests

from common.failure import Failure
from inputs import row_facts
from inputs.rows import Row
from policy import model_api
from servers import verifier as verify
from servers.verifier import Unfit

Calls = list[dict[str, Any]]


class Alteration(TypedDict):
    """`outcome` is refused (right: the altered calls earn 0), accepted (wrong) or impossible."""

    outcome: str
    why: str


class Finding(TypedDict):
    """What the ground truth and doing nothing earn, 0 or 1; all three are None where the verifier gave no reward."""

    replayed: int | None
    nothing: int | None
    alteration: Alteration | None
    faults: list[str]


class Verifier:
    """The verifier of the resource server at `url`. Threads may share it."""

    def __init__(self, url: str) -> None:
        self.url, self._local = url, threading.local()

    def reward(self, row: Row, calls: Calls) -> int:
        """What calls, [{"name", "arguments"}], earn on a row: 0 or 1. Raises Unfit on any other answer, Failure."""
        items = [model_api.function_call(call["name"], call["arguments"]) for call in calls]
        answer = verify.post(self._client(), self.url, "verify", verify.verification(row, items))
        if answer.get("reward") not in (0, 1):
            raise Unfit(f"{self.url}/verify: gives the reward {answer.get('reward')!r}, neither 0 nor 1")
        return int(answer["reward"])

    def _client(self) -> requests.Session:
        if not hasattr(self._local, "client"):
            self._local.client = requests.Session()
            self._local.client.trust_env = False
        return self._local.client


def must_discriminate(verifier: Verifier) -> None:
    """Refuse a verifier that cannot tell right from wrong: its other answers would mean nothing. Raises Failure."""
    row = verify.example_row()
    truth = row["ground_truth"]
    rewards = [verifier.reward(row, calls) for calls in (truth, row_facts.altered(truth, 0))]
    if rewards != [1, 0]:
        raise Failure(f"{verifier.url}: the right and a wrong reply earn {rewards}, not [1, 0]; see `make verify`")


def check(verifier: Verifier, row: Row) -> Finding:
    """Ask all questions about a row. Raises Failure when the verifier cannot be reached."""
    truth = row["ground_truth"]
    faults = [f"the ground truth calls {name}, which the row does not offer" for name in row_facts.not_offered(row)]
    bare = without_tools(row)
    try:
        # The first question holds the whole row: the verifier must take it as it is.
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


def without_tools(row: Row) -> Row:
    """The row without its tools, which do not change a reward and take time to read."""
    return {**row, "responses_create_params": row["responses_create_params"] | {"tools": []}}


def alter(verifier: Verifier, row: Row, nothing: int) -> Alteration:
    """Alter an argument of the last call that matters. `nothing` is what doing nothing earns."""
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
