"""What may become of one trial: a pure state machine, without tasks, clients or a clock of its own.

    queued --start--> running --settle--> (settled) --release--> completed | truncated | aborted | failed
       '----------------settle-----------^

Guarantees:
- The first outcome accepted by `settle` wins; nothing after it changes it.
- A trial is terminal only after `release`, which says whether the environment proved that the trial's state is gone.
  Without that proof the trial is failed, whatever had been settled.
- A terminal trial never changes.

Times are seconds of the caller's clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from gateway.trial_request import PROTOCOL

if TYPE_CHECKING:
    from gateway.trial_request import Snapshot


class Status(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass(frozen=True)
class Fault:
    """Why a trial ended as it did: a code of the protocol, the kind within it, and the cause in words."""

    code: str
    type: str | None = None
    cause: str | None = None

    def as_json(self) -> dict[str, str]:
        return {key: value for key, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Outcome:
    """How a trial ends. `reward` is a finite number or None; only a graded rollout has one, and its items."""

    status: Status
    reward: float | None = None
    metrics: dict = field(default_factory=dict)
    fault: Fault | None = None
    output: list | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.reward is not None and not math.isfinite(self.reward):
            raise ValueError("a reward is a finite number or None")


def aborted() -> Outcome:
    return Outcome(Status.ABORTED, fault=Fault("aborted"))


def failed(code: str, kind: str | None = None, cause: str | None = None) -> Outcome:
    return Outcome(Status.FAILED, fault=Fault(code, kind, cause))


class Trial:
    """One trial's state. Every method takes what it needs to know and answers at once."""

    def __init__(self, request_id: str, now: float, deadline_s: float, lease_s: float) -> None:
        self.request_id = request_id
        self.status = Status.QUEUED
        self.deadline = now + deadline_s
        self._lease_s = lease_s
        self._lease_ends = now + lease_s
        self.outcome: Outcome | None = None
        self.artifact_ref: str | None = None  # the path of its trajectory, if one is kept

    @property
    def settled(self) -> bool:
        return self.outcome is not None

    @property
    def terminal(self) -> bool:
        return self.status not in (Status.QUEUED, Status.RUNNING)

    def start(self) -> bool:
        """queued -> running. False if the trial was settled while it waited."""
        if self.settled or self.status is not Status.QUEUED:
            return False
        self.status = Status.RUNNING
        return True

    def renew(self, now: float) -> None:
        """Extend the lease by its length; without effect once settled."""
        if not self.settled:
            self._lease_ends = now + self._lease_s

    def excuse(self, seconds: float) -> None:
        """Extend the lease by a time in which no renewal could arrive."""
        self._lease_ends += seconds

    def due(self, now: float) -> Outcome | None:
        """The outcome that time alone gives the trial by `now`, or None."""
        if now < min(self.deadline, self._lease_ends):
            return None
        if self.deadline <= self._lease_ends:
            return Outcome(Status.TRUNCATED, fault=Fault("deadline_exceeded"))
        return Outcome(Status.ABORTED, fault=Fault("lease_expired"))

    def settle(self, outcome: Outcome) -> bool:
        """Accept `outcome` if it is the first. Returns whether it was."""
        if self.settled:
            return False
        self.outcome = outcome
        return True

    def release(self, unclean: Fault | None = None) -> None:
        """Make the settled trial terminal; `unclean` is the Fault of a clean-up that was not proved."""
        if self.outcome is None or self.terminal:
            raise RuntimeError("only a settled trial that is not terminal can be released")
        if unclean is not None:
            after = self.outcome.fault.code if self.outcome.fault else self.outcome.status.value
            cause = f"after {after}: {unclean.cause}" if unclean.cause else f"after {after}"
            self.outcome = failed(unclean.code, unclean.type, cause)
        self.status = self.outcome.status

    def snapshot(self) -> Snapshot:
        """The trial as the protocol shows it; nothing of the outcome before it is terminal."""
        shown = self.outcome if self.outcome and self.terminal else Outcome(self.status)
        return {
            "protocol_version": PROTOCOL,
            "request_id": self.request_id,
            "status": self.status.value,
            "reward": shown.reward,
            "metrics": shown.metrics,
            "artifact_ref": self.artifact_ref,
            "error": shown.fault.as_json() if shown.fault else None,
        }
