"""The request for a trial, and what its result gives the trainer.

Guarantees: a request id is stable for one launch, new for the next, and does not reveal the session id.
Standard library only: the session client starts with it.
"""

from __future__ import annotations

import hashlib
import sys

from common.settings import names_of
from gateway.client import ClientError

# Without importing typing, which would cost the session client a tenth of its start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, TypedDict

    from common.settings import Settings
    from gateway.client import Snapshot

    class Session(TypedDict):
        """A session as the trainer names it: its RELAX_* variables without their prefix."""

        INPUT_JSON: str
        OUTPUT_JSON: str
        SESSION_IO_DIR: str
        BASE_URL: str
        SESSION_ID: str
        ROLLOUT_MODE: str
        GROUP_ID: str


PROTOCOL = "relax-nemo-gym/v1"
REWARDED = ("completed", "truncated")
# Only these are read and checked: the process runs among a trainer's own variables.
NAMES = ["GYM_HOST", "GYM_BASE_PORT", "GATEWAY_TOKEN", *names_of("Session client")]
ATTEMPT = 1


def request_id(session: Session) -> str:
    """Stable for one launch, new for the next; does not reveal the session id."""
    launch = "\0".join((session["SESSION_IO_DIR"], session["SESSION_ID"], str(ATTEMPT)))
    return "relax-" + hashlib.sha256(launch.encode("utf-8", "surrogateescape")).hexdigest()


def gateway_of(urls: Sequence[str], session_id: str) -> str:
    """The Gateway of a session: always the same for one session, and about as many sessions for each Gateway."""
    return urls[int.from_bytes(hashlib.sha256(session_id.encode()).digest()[:8], "big") % len(urls)]


def create_payload(settings: Settings, session: Session, task: Mapping[str, Any]) -> dict[str, Any]:
    """The body of POST /v1/trials."""
    return {
        "protocol_version": PROTOCOL,
        "request_id": request_id(session),
        "session": {
            "session_id": session["SESSION_ID"],
            "group_id": session["GROUP_ID"],
            "rollout_mode": session["ROLLOUT_MODE"],
            "attempt": ATTEMPT,
        },
        "environment": {"name": settings.NEMO_GYM_ENVIRONMENT, "config": settings.NEMO_GYM_CONFIG, "task": task},
        "model_endpoint": {
            "base_url": session["BASE_URL"],
            "api_key": session["SESSION_ID"],
            "model": settings.NEMO_GYM_MODEL,
        },
        "generation": {"responses_create_params": {}, "sampling_params": {}},
        "interrupt_policy": settings.NEMO_GYM_INTERRUPT_POLICY,
        "deadline_s": settings.NEMO_GYM_DEADLINE_S,
        "lease_s": settings.NEMO_GYM_LEASE_S,
        "metadata": {},
    }


def result_of(snapshot: Snapshot, trial_id: str) -> dict[str, Any]:
    """What the trainer reads. Raises ClientError when the trial ended without a reward."""
    status, reward, error = snapshot["status"], snapshot.get("reward"), snapshot.get("error")
    number = isinstance(reward, (int, float)) and not isinstance(reward, bool) and abs(reward) <= sys.float_info.max
    if status not in REWARDED or not number:
        error = error if isinstance(error, dict) else {}
        cause = "".join(f", {key} {error[key]}" for key in ("type", "cause") if error.get(key))
        raise ClientError(f"trial {trial_id} ended {status} without a reward: {error.get('code')}{cause}")
    trial = {"request_id": trial_id, "status": status, "metrics": snapshot.get("metrics"), "error": error}
    return {"reward": reward, "metadata": {"nemo_gym": trial}}
