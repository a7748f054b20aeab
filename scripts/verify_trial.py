#!/usr/bin/env python3
"""Check one whole trial with a scripted policy: the second half of `make verify`.

Starts a model API for the time of one trial, asks the Gateway for that trial as a session
client does, and plays the policy: a search, a reply, a closing message. Guarantees, when it
passes: the row's prompt and tools reached the policy unchanged, each call held the whole
history before it with the tools' outputs, the verifier gave 1.0, and the Gateway released
the trial. A few seconds; no model and no trainer.

    make verify
    scripts/run.sh verify_trial.py --gateway-url http://10.0.0.4:29000 --callback-host 10.0.0.5
"""

import json
import secrets
import time

from common import settings, terminal
from common.failure import Failure
from gateway import trial_request
from gateway.client import ClientError, Gateway, GaveUp, Trial
from inputs import rows
from policy import model_api
from servers.verifier import FOUND, REPLIED, REPLY, SEARCH, example_row

EXPECTED = "reward=1.0 tool_calls=2 tool_outputs=2 callbacks=3"
DEADLINE_S = 120
RELEASE_S = 10


def main():
    values, args = settings.from_command_line(
        __doc__, "NEMO_GYM_URL", "GYM_HOST", "GYM_BASE_PORT", configure=add_options
    )
    row, gateway = example_row(), Gateway(values)
    before = active_trials(gateway)
    try:
        policy, snapshot = play(values, gateway, row, args.callback_host)
        found = judge(policy, snapshot)
    except ClientError as fault:
        raise Failure(f"{values.gateway_url}: {fault}") from None
    wait_released(gateway, before)
    if found != EXPECTED:
        raise Failure(f"trial at {values.gateway_url}: {found}, not {EXPECTED}")
    terminal.say(f"Workplace Assistant trial passed: {found}")


def add_options(parser):
    parser.add_argument("--gateway-url", dest="NEMO_GYM_URL", metavar="URL", help="the same as --nemo-gym-url")
    parser.add_argument(
        "--callback-host",
        default="127.0.0.1",
        metavar="IP",
        help="address of this machine that the Gateway may call (default: 127.0.0.1, for a Gateway on this machine)",
    )


class ScriptedPolicy:
    """Answers the trial's model calls from a script, and notes the first thing that was wrong with them."""

    def __init__(self, row):
        self.row, self.inputs, self.fault = row, [], None
        calls = [model_api.function_call(name, json.dumps(arguments)) for name, arguments in (SEARCH, REPLY)]
        self.answers = [*calls, model_api.message("I have replied to Carlos.")]
        self.outputs = [FOUND, REPLIED]

    def __call__(self, session, body):
        turn, items = len(self.inputs), body["input"]
        if not self.fault:
            fault = self._first_fault(body) if turn == 0 else self._later_fault(turn, items)
            self.fault = fault and f"model call {turn + 1} {fault}"
        self.inputs.append(items)
        return model_api.answered([self.answers[min(turn, len(self.answers) - 1)]])

    def _first_fault(self, body):
        params = self.row[rows.WRAPPER]
        if not all(map(_holds, body["input"], params["input"])) or len(body["input"]) != len(params["input"]):
            return "does not hold the row's prompt"
        if [tool["name"] for tool in body.get("tools", [])] != [tool["name"] for tool in params["tools"]]:
            return "does not offer the row's tools"
        return None

    def _later_fault(self, turn, items):
        before = self.inputs[-1]
        if turn > len(self.outputs):
            return "came after the closing message"
        if items[: len(before)] != before:
            return "does not extend the history before it"
        call, new = self.answers[turn - 1], items[len(before) :]
        if len(new) != 2 or not _holds(new[0], {key: call[key] for key in ("call_id", "name", "arguments")}):
            return "does not hold the tool call that was answered"
        if new[1].get("call_id") != call["call_id"] or self.outputs[turn - 1] not in str(new[1].get("output")):
            return f"does not hold the output of {call['name']}"
        return None


def _holds(item, fields):
    return all(item.get(key) == value for key, value in fields.items())


def play(values, gateway, row, host):
    """Run the trial; returns the policy, for what it saw, and the terminal snapshot."""
    policy = ScriptedPolicy(row)
    try:
        server = model_api.ModelAPI(host, policy)
    except OSError as error:
        raise Failure(f"--callback-host {host}: {error.strerror}; give an address of this machine") from None
    relax = rows.to_relax(row)
    task = {"messages": relax["input"], "metadata": relax["metadata"]}
    payload = trial_request.create_payload(values, session_of(server, task), task)
    trial = Trial(gateway, payload | {"deadline_s": DEADLINE_S})
    try:
        return policy, trial.finish()
    except (KeyboardInterrupt, GaveUp):
        trial.abort()
        raise
    finally:
        server.stop()


def session_of(server, task):
    """What the trainer would put into the session client's variables."""
    return {
        "SESSION_IO_DIR": secrets.token_hex(8),
        "BASE_URL": server.base_url,
        "SESSION_ID": server.open(task).id,
        "ROLLOUT_MODE": "eval",
        "GROUP_ID": "verify",
    }


def judge(policy, snapshot):
    """The result line's figures. Raises Failure or ClientError with what was wrong before them."""
    if policy.fault:
        raise Failure(f"{policy.fault} (trial {snapshot['status']}, error {json.dumps(snapshot.get('error'))})")
    result = trial_request.result_of(snapshot, snapshot.get("request_id"))
    if snapshot["status"] != "completed":
        raise Failure(f"trial ended {snapshot['status']}: {json.dumps(snapshot.get('error'))}")
    metrics = snapshot.get("metrics") or {}
    counts = " ".join(f"{name}={metrics.get(name)}" for name in ("tool_calls", "tool_outputs"))
    return f"reward={result['reward']} {counts} callbacks={len(policy.inputs)}"


def active_trials(gateway):
    """How many trials a ready Gateway holds that have not ended. Raises Failure when it is not ready."""
    try:
        health = gateway.exchange("GET", "/readyz")
    except ClientError as fault:
        url = gateway.settings.gateway_url
        raise Failure(f"{url}: not ready: {fault}; `make gym-up` starts the servers") from None
    if not isinstance(health.get("active_trials"), int):
        raise Failure(f"{gateway.settings.gateway_url}/readyz: says nothing of active_trials")
    return health["active_trials"]


def wait_released(gateway, before):
    """Wait until no more trials are active than the `before` that were not ours. Raises Failure."""
    end = time.monotonic() + RELEASE_S
    while (active := active_trials(gateway)) > before:
        if time.monotonic() > end:
            raise Failure(f"active_trials is {active} {RELEASE_S} s after the trial's end, and was {before} before it")
        time.sleep(0.1)


if __name__ == "__main__":
    terminal.run(main)
