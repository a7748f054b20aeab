#!/usr/bin/env python3
"""Check one whole trial with a scripted policy: the second half of `make verify`.

Starts a model API for the time of one trial, asks the Gateway for that trial as a session
client does, and plays the policy: a search, a reply, a closing message. It passes only if the
row's prompt and tools reach the policy unchanged, each call holds the whole history before it
with the tools' outputs, the verifier gives 1.0, and the Gateway releases the trial. A few
seconds; no model and no trainer.

    make verify
    scripts/run.sh verify_trial --gateway-url http://10.0.0.4:29000 --callback-host 10.0.0.5
"""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

from common import terminal
from common.failure import Failure
from common.files import in_words
from common.settings import Settings, from_command_line
from gateway import launch, trial_request
from gateway.client import ClientError, Gateway, GaveUp, Trial
from inputs import rows
from policy import model_api
from servers.verifier import FOUND, REPLIED, REPLY, SEARCH, example_row

EXPECTED = "reward=1.0 tool_calls=2 tool_outputs=2 callbacks=3"
DEADLINE_S = 120
RELEASE_S = 10
OPTIONS = {
    "--gateway-url": {"dest": "NEMO_GYM_URL", "metavar": "URL", "help": "the same as --nemo-gym-url"},
    "--callback-host": {
        "default": "127.0.0.1", "metavar": "IP",
        "help": "address of this machine that the Gateway may call (default: 127.0.0.1, for a Gateway on this machine)",
    },
}  # fmt: skip


def main() -> None:
    names = ("NEMO_GYM_URL", "GYM_HOST", "GYM_BASE_PORT")
    settings, args = from_command_line(__doc__, *names, options=OPTIONS)
    gateway = Gateway(settings)
    before = active_trials(gateway)
    try:
        figures = judge(*play(settings, gateway, example_row(), args.callback_host))
    except ClientError as fault:
        raise Failure(f"{settings.gateway_url}: {fault}") from None
    wait_released(gateway, before)
    if figures != EXPECTED:
        raise Failure(f"trial at {settings.gateway_url}: {figures}, not {EXPECTED}")
    terminal.say(f"Workplace Assistant trial passed: {figures}")


class ScriptedPolicy:
    """Answers the trial's model calls from a script, and notes the first fault of them."""

    def __init__(self, row: rows.Row):
        self.row, self.inputs = row, []
        self.fault: str | None = None
        calls = [model_api.function_call(name, json.dumps(arguments)) for name, arguments in (SEARCH, REPLY)]
        self.answers = [*calls, model_api.message("I have replied to Carlos.")]
        self.outputs = [FOUND, REPLIED]

    def __call__(self, session: model_api.Session | None, body: dict[str, Any]) -> dict[str, Any]:
        turn, items = len(self.inputs), body["input"]
        if not self.fault:
            fault = self._first_fault(body) if turn == 0 else self._later_fault(turn, items)
            self.fault = fault and f"model call {turn + 1} {fault}"
        self.inputs.append(items)
        return model_api.answered([self.answers[min(turn, len(self.answers) - 1)]])

    def _first_fault(self, body: dict[str, Any]) -> str | None:
        params = self.row[rows.WRAPPER]
        if not all(map(_holds, body["input"], params["input"])) or len(body["input"]) != len(params["input"]):
            return "does not hold the row's prompt"
        if [tool["name"] for tool in body.get("tools", [])] != [tool["name"] for tool in params["tools"]]:
            return "does not offer the row's tools"
        return None

    def _later_fault(self, turn: int, items: list[dict[str, Any]]) -> str | None:
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


def _holds(item: dict[str, Any], fields: dict[str, Any]) -> bool:
    return all(item.get(key) == value for key, value in fields.items())


def play(
    settings: Settings, gateway: Gateway, row: rows.Row, host: str
) -> tuple[ScriptedPolicy, trial_request.Snapshot]:
    """Run the trial; returns the policy, which saw the calls, and the terminal snapshot."""
    policy = ScriptedPolicy(row)
    with in_words(f"--callback-host {host}", "; give an address of this machine"):
        server = model_api.ModelAPI(host, policy)
    task = launch.task_of(row)
    session = launch.session(secrets.token_hex(8), server.base_url, server.open(task).id, "verify", "eval")
    payload = trial_request.create_payload(settings, session, task)
    trial = Trial(gateway, payload | {"deadline_s": DEADLINE_S})
    try:
        return policy, trial.finish()
    except (KeyboardInterrupt, GaveUp):
        trial.abort()
        raise
    finally:
        server.stop()


def judge(policy: ScriptedPolicy, snapshot: trial_request.Snapshot) -> str:
    """The result line's figures. Raises Failure or ClientError with an earlier fault."""
    if policy.fault:
        raise Failure(f"{policy.fault} (trial {snapshot['status']}, error {json.dumps(snapshot.get('error'))})")
    result = trial_request.result_of(snapshot, snapshot.get("request_id"))
    if snapshot["status"] != "completed":
        raise Failure(f"trial ended {snapshot['status']}: {json.dumps(snapshot.get('error'))}")
    metrics = snapshot.get("metrics") or {}
    counts = " ".join(f"{name}={metrics.get(name)}" for name in ("tool_calls", "tool_outputs"))
    return f"reward={result['reward']} {counts} callbacks={len(policy.inputs)}"


def active_trials(gateway: Gateway) -> int:
    """How many trials a ready Gateway holds that have not ended. Raises Failure when it is not ready."""
    try:
        health = gateway.exchange("GET", "/readyz")
    except ClientError as fault:
        url = gateway.settings.gateway_url
        raise Failure(f"{url}: not ready: {fault}; `make gym-up` starts the servers") from None
    if not isinstance(health.get("active_trials"), int):
        raise Failure(f"{gateway.settings.gateway_url}/readyz: says nothing of active_trials")
    return health["active_trials"]


def wait_released(gateway: Gateway, before: int) -> None:
    """Wait until no more trials are active than the `before` that were not ours. Raises Failure."""
    end = time.monotonic() + RELEASE_S
    while (active := active_trials(gateway)) > before:
        if time.monotonic() > end:
            raise Failure(f"active_trials is {active} {RELEASE_S} s after the trial's end, and was {before} before it")
        time.sleep(0.1)


if __name__ == "__main__":
    terminal.run(main)
