#!/usr/bin/env python3
"""The agent command: one process a sample, from the trainer's variables to a reward.

Reads RELAX_INPUT_JSON, has the Gateway run it as one trial, and writes RELAX_OUTPUT_JSON.
Runs on a trainer's node, and lives as long as the trial (NEMO_GYM_DEADLINE_S at most, and a
little). With several Gateways (GYM_URLS) a hash of the session id chooses.

Guarantees:
- the output appears whole or not at all, and only with a finite reward of a completed or truncated trial;
- every other end is a non-zero exit and one line on stderr: the trainer drops the sample's group;
- the same launch always asks for the same trial, however often it sends the request;
- SIGTERM and SIGINT abort the trial first; a Gateway that restarts is waited for;
- the session id and the Gateway's token appear in no argument and no message.

Exit status: 0 reward written, 1 no reward, 2 unusable variables or input, 130/143 interrupted.
Standard library only and few imports: a rollout starts hundreds of these.

    python3 scripts/session_client.py        (with the RELAX_* variables set)
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from common import settings as variables
from common.failure import Failure, printable
from common.files import write_whole
from gateway.client import ClientError, Gateway, GaveUp, Trial, Unfit, refuse_constant
from gateway.trial_request import NAMES, create_payload, gateway_of, result_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gateway.trial_request import Session

RELAX_NAMES = ("INPUT_JSON", "OUTPUT_JSON", "SESSION_IO_DIR", "BASE_URL", "SESSION_ID", "ROLLOUT_MODE", "GROUP_ID")
# The trainer kills what is left of the process group 5 s after SIGTERM.
LAST_WORD_S = 3.5


class InputFault(ClientError):
    """The variables or the input file cannot be used."""

    exit_status = 2


class Interrupted(BaseException):
    """SIGTERM or SIGINT arrived."""


def read_session(environment: Mapping[str, str]) -> Session:
    """The trainer's RELAX_* variables without their prefix: {name: text}. Raises InputFault."""
    session: Any = {name: environment.get(f"RELAX_{name}", "") for name in RELAX_NAMES}
    for name, text in session.items():
        if not text:
            raise InputFault(f"RELAX_{name} is not set; the trainer sets it when it starts the agent command")
    if session["ROLLOUT_MODE"] not in ("train", "eval"):
        raise InputFault("RELAX_ROLLOUT_MODE is neither train nor eval")
    if not session["BASE_URL"].startswith(("http://", "https://")):
        raise InputFault("RELAX_BASE_URL is no http(s) URL")
    token = session["SESSION_ID"]
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InputFault("RELAX_SESSION_ID holds characters that cannot stand in a header")
    return session


def read_task(path: str) -> dict[str, Any]:
    """The session input {"messages": [...], "metadata": {...}}. Raises InputFault."""
    try:
        with open(path, encoding="utf-8") as file:
            task = json.load(file, parse_constant=refuse_constant)
        json.dumps(task, allow_nan=False)
    except OSError as error:
        raise InputFault(f"RELAX_INPUT_JSON: {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputFault(f"RELAX_INPUT_JSON: {path}: not JSON: {error}") from None
    if not isinstance(task, dict):
        raise InputFault(f"RELAX_INPUT_JSON: {path}: not an object")
    messages, metadata = task.get("messages"), task.get("metadata", {})
    if not isinstance(messages, list) or not messages:
        raise InputFault(f"RELAX_INPUT_JSON: {path}: messages is not a list with at least one message")
    if not isinstance(metadata, dict):
        raise InputFault(f"RELAX_INPUT_JSON: {path}: metadata is not an object")
    return {"messages": messages, "metadata": metadata}


def write_result(path: str, result: dict[str, Any]) -> None:
    """Put the result at `path`, whole or not at all. Raises ClientError."""
    try:
        write_whole(Path(path), json.dumps(result))
    except OSError as error:
        raise ClientError(f"RELAX_OUTPUT_JSON: {path}: {error.strerror}") from None


def _interrupt(signum: int, frame: Any) -> None:
    # The abort follows, and a second signal must not cut it short.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, lambda *_: os._exit(128 + signum))
    signal.setitimer(signal.ITIMER_REAL, LAST_WORD_S)
    raise Interrupted(signum)


def roll_out(settings: variables.Settings, session: Session) -> None:
    """Run the sample's trial and write its result. Aborts it when interrupted or out of patience."""
    task = read_task(session["INPUT_JSON"])
    payload = create_payload(settings, session, task)
    trial = Trial(Gateway(settings, gateway_of(settings.gateway_urls, session["SESSION_ID"])), payload)
    try:
        snapshot = trial.finish()
    except Unfit as fault:
        raise ClientError(f"{fault}, in the row of id {task['metadata'].get('id')}") from None
    except (Interrupted, GaveUp):
        trial.abort()
        raise
    write_result(session["OUTPUT_JSON"], result_of(snapshot, payload["request_id"]))


def complain(message: str, *secrets: str | None) -> None:
    """One line on stderr, without any of `secrets`."""
    for secret in filter(None, secrets):
        message = message.replace(secret, "***")
    print("session client: " + printable(" ".join(message.split())[:1000]), file=sys.stderr, flush=True)


def main() -> int:
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print((__doc__ or "").strip())
        return 0
    if sys.argv[1:]:
        print("session client: takes no arguments", file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    secrets = [os.environ.get("RELAX_SESSION_ID")]
    try:
        settings = variables.load(names=NAMES)
        secrets.append(settings.GATEWAY_TOKEN)
        roll_out(settings, read_session(os.environ))
    except Failure as fault:
        complain(str(fault), *secrets)
        return fault.exit_status
    except Interrupted as interruption:
        signum = interruption.args[0]
        complain(f"{signal.Signals(signum).name}: stopped; the trial was told to abort if it had begun", *secrets)
        return 128 + signum
    return 0


if __name__ == "__main__":
    sys.exit(main())
