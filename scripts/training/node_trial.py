"""Play one trial at each Gateway from the node that will serve the model, with a policy that does nothing.

node_check.py starts it on the cluster's head with its specification on stdin. A trial that ends well shows that
the callback address is allowed, and that the Gym's machine reaches it. It prints one line of JSON: [faults, notes].

    PYTHONPATH=scripts python3 -m training.node_trial ADDRESS <spec.json
"""

from __future__ import annotations

import json
import sys

from common import settings
from gateway import client, launch, trial_request
from inputs import rows
from policy import model_api
from training.node_check import Spec


def play_trials(spec: Spec, address: str) -> tuple[list[str], list[str]]:
    """Play a trial at each Gateway with the model served at `address`: (faults, notes)."""
    faults: list[str] = []
    notes: list[str] = []
    for gateway in spec["gateways"]:
        try:
            api = model_api.ModelAPI(address, model_api.noop, spec["api_port"])
        except OSError as error:
            notes.append(f"port {spec['api_port']} (RELAX_API_PORT) on {address}: {error.strerror}; tried another")
            api = model_api.ModelAPI(address, model_api.noop)
        try:
            fault = _play(spec, gateway["url"], api)
        finally:
            api.stop()
        faults += [fault] if fault else []
        notes += [] if fault else [f"a trial at {gateway['url']} called the model at {api.base_url}"]
    return faults, notes


def _play(spec: Spec, url: str, api: model_api.ModelAPI) -> str | None:
    values = settings.load(spec["variables"] | {"NEMO_GYM_URL": url}, names=trial_request.NAMES)
    session = api.open(launch.task_of(rows.read_rows(spec["rows"], 1)[0]))
    launched = launch.session(spec["probe"], api.base_url, session.id, "check", "eval")
    payload = trial_request.create_payload(values, launched, session.task)
    trial = client.Trial(client.Gateway(values, url), payload)
    try:
        snapshot = trial.finish()
    except client.ClientError as error:
        trial.abort()
        return f"{url}: {_explained(str(error), api)}"
    if session.turns and isinstance(snapshot.get("reward"), (int, float)):
        return None
    return f"{url}: the Gym's machine does not get to the model at {api.base_url}: {snapshot.get('error')}"


def _explained(text: str, api: model_api.ModelAPI) -> str:
    if "callback_not_allowed" not in text:
        return text
    host = str(api.server_address[0])
    return (
        f"its callback networks do not cover the trainer's address {host}; on the Gym's machine add "
        f"{host}/{128 if ':' in host else 32} to NEMO_GYM_CALLBACK_ALLOWED_NETWORKS, then make gym-up"
    )


if __name__ == "__main__":
    print(json.dumps(play_trials(json.load(sys.stdin), sys.argv[1])), flush=True)
