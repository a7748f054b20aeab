#!/usr/bin/env python3
"""Play one trial at each Gateway from the node that will serve the model, with a policy that does nothing.

node_check.py starts it on the cluster's head with its specification on stdin. It shows that the callback
address is allowed, and reached from the Gym's machine. One line of JSON: [faults, notes].

    PYTHONPATH=scripts python3 -m training.node_trial ADDRESS <spec.json
"""

import json
import sys

from common import settings
from gateway import client, trial_request
from inputs import rows
from policy import model_api


def play_trials(spec, address):
    """Play a trial at each Gateway with the model served at `address`: (faults, notes)."""
    faults, notes = [], []
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


def _play(spec, url, api):
    values = settings.load(spec["variables"] | {"NEMO_GYM_URL": url}, names=trial_request.NAMES)
    row = rows.to_relax(rows.read_rows(spec["rows"], 1)[0])
    prompt = row["input"] if isinstance(row["input"], list) else [{"role": "user", "content": row["input"]}]
    session = api.open({"messages": prompt, "metadata": row["metadata"]})
    identity = {"SESSION_IO_DIR": spec["probe"], "SESSION_ID": session.id, "GROUP_ID": "check"}
    payload = trial_request.create_payload(
        values, identity | {"ROLLOUT_MODE": "eval", "BASE_URL": api.base_url}, session.task
    )
    trial = client.Trial(client.Gateway(values, url), payload)
    try:
        snapshot = trial.finish()
    except client.ClientError as error:
        trial.abort()
        return f"{url}: {_explained(str(error), api)}"
    if session.turns and isinstance(snapshot.get("reward"), (int, float)):
        return None
    return f"{url}: the Gym's machine does not get to the model at {api.base_url}: {snapshot.get('error')}"


def _explained(text, api):
    if "callback_not_allowed" not in text:
        return text
    host = api.server_address[0]
    return (
        f"its callback networks do not cover the trainer's address {host}; on the Gym's machine add "
        f"{host}/{128 if ':' in host else 32} to NEMO_GYM_CALLBACK_ALLOWED_NETWORKS, then make gym-up"
    )


def main():
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if len(sys.argv) == 2 else 2
    print(json.dumps(play_trials(json.load(sys.stdin), sys.argv[1])), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
