"""The client's side of the trial protocol: one Gateway, one trial, one time limit over both.

Guarantees:
- A request that may have been lost is sent again with the same bytes, so that nothing starts twice.
- Waits are bounded by the number of tries, by the start-up time while no Gateway has answered, and by the trial's
  deadline.
- The lease is renewed every third of it, also while polls fail.
- Proxy variables play no part, and redirects are not followed.
- Messages hold the Gateway's error, never a header.

It is one thread: a long poll ends before the next renewal is due. Standard library only, and few imports: the session
client starts with it.
"""

from __future__ import annotations

import http.client
import json
import random
import time
from contextlib import suppress
from urllib.parse import quote, urlsplit

from common.failure import Failure
from common.settings import Settings, read_token

# Without importing typing, which would cost the session client a tenth of its start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from http.client import HTTPConnection
    from typing import Any, TypedDict

    class Snapshot(TypedDict):
        """What the Gateway says of a trial: `status` one of queued, running, completed, truncated, aborted, failed."""

        protocol_version: str
        request_id: str
        status: str
        reward: float | None
        metrics: dict[str, Any]
        artifact_ref: str | None
        error: dict[str, Any] | None


ENDED = ("completed", "truncated", "aborted", "failed")
# After the trial's own deadline: the time the Gateway may need to clean up and answer.
GRACE_S = 30
BACKOFF_LIMIT_S = 5
ABORT_TIMEOUT_S = 2
# The shortest time between polls, for a Gateway that answers them at once.
POLL_PACE_S = 0.5
ANSWER_LIMIT_BYTES = 16 << 20
ABSENT = "; is the graph up (make gym-up) and NEMO_GYM_URL or GYM_HOST right?"
# Statuses that refuse the request itself, and the cure.
CURES = {413: "raise GATEWAY_MAX_BODY_BYTES where the Gateway runs, then make gym-up there", 422: "mend that field"}


class ClientError(Failure):
    """The Gateway did not do what it was asked for."""


class Refused(ClientError):
    """The Gateway gave an answer that another try would not change."""


class Unfit(Refused):
    """The Gateway does not take the request: it is too large, or a field that the message names is wrong."""


class Unavailable(ClientError):
    """No answer, or one that asks for another try; `retry_after` in seconds or None."""

    def __init__(self, message: str, answered: bool = False, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.answered, self.retry_after = answered, retry_after


class GaveUp(ClientError):
    """Tries, start-up time or deadline are used up; the trial may still run."""


class Gateway:
    """Requests to one Gateway, at `url` or the settings' URL, under one time limit."""

    def __init__(self, settings: Settings, url: str | None = None) -> None:
        self.settings = settings
        self.url = urlsplit(url or settings.gateway_url)
        self.headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close"}
        if token := read_token(settings):
            self.headers["Authorization"] = f"Bearer {token}"
        self.answered = False
        self.start = time.monotonic()
        self.end = self.start + settings.NEMO_GYM_DEADLINE_S + GRACE_S

    def exchange(self, method: str, path: str, body: bytes | None = None, timeout: float | None = None) -> Any:
        """Send one request once. Returns the parsed answer, {} for 204. Raises Unavailable or Refused."""
        connection = self._connection(timeout or self.settings.NEMO_GYM_REQUEST_TIMEOUT_S)
        try:
            connection.connect()
            # A Gateway that refuses a large body may close before all of it is sent; its answer tells the reason.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, quote(self.url.path, safe="/%:@") + path, body, self.headers)
            answer = connection.getresponse()
            text = answer.read(ANSWER_LIMIT_BYTES)
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise Unavailable(f"{type(error).__name__}: {error}") from None
        finally:
            connection.close()
        status = answer.status
        self.answered = self.answered or status < 500
        if status in (408, 429) or status >= 500:
            raise Unavailable(_explain(status, text), True, _retry_after(answer.getheader("Retry-After", "")))
        if cure := CURES.get(status):
            raise Unfit(f"{_explain(status, text)}; {cure}")
        if status >= 300:
            raise Refused(_explain(status, text))
        return {} if status == 204 else _parse_object(text)

    def _connection(self, timeout: float) -> HTTPConnection:
        kind = http.client.HTTPSConnection if self.url.scheme == "https" else http.client.HTTPConnection
        return kind(self.url.hostname or "", self.url.port, timeout=timeout)

    def insist(self, send: Callable[[], Any]) -> Any:
        """Call `send()` until it gives an answer; waits between tries. Raises Refused or GaveUp."""
        attempt = 1
        while True:
            try:
                return send()
            except Unavailable as fault:
                wait = self._pause(attempt) if fault.retry_after is None else fault.retry_after
                if attempt == self.settings.NEMO_GYM_MAX_RETRIES or time.monotonic() + wait > self._patience_ends():
                    message = f"{self.url.netloc} gave no usable answer ({attempt} tries): {fault}"
                    raise GaveUp(message + ("" if fault.answered else ABSENT)) from None
            time.sleep(wait)
            attempt += 1

    def _pause(self, attempt: int) -> float:
        """Seconds before the next try; random, since a batch of clients loses its Gateway at one moment."""
        backoff = self.settings.NEMO_GYM_RETRY_BACKOFF_S * 2 ** min(attempt - 1, 30)
        return min(backoff, BACKOFF_LIMIT_S) * random.uniform(0.5, 1)

    def _patience_ends(self) -> float:
        """When to stop trying: a Gateway that never answered gets less time than one that did."""
        return self.end if self.answered else min(self.end, self.start + self.settings.NEMO_GYM_STARTUP_TIMEOUT_S)


class Trial:
    """One trial at the Gateway: create it, keep its lease, wait for its end, or abort it."""

    def __init__(self, gateway: Gateway, payload: dict[str, Any]) -> None:
        self.gateway = gateway
        self.body = json.dumps(payload, allow_nan=False).encode()
        self.path = f"/v1/trials/{payload['request_id']}"
        self.renew_every = payload["lease_s"] / 3
        self.renewed = time.monotonic()
        request_timeout = gateway.settings.NEMO_GYM_REQUEST_TIMEOUT_S
        self.wait_s = max(0, int(min(60, self.renew_every - 0.5, request_timeout * 0.8)))

    def finish(self) -> Snapshot:
        """Create the trial and return its terminal snapshot. Raises ClientError."""
        snapshot = self.gateway.insist(lambda: self.gateway.exchange("POST", "/v1/trials", self.body))
        self.renewed = time.monotonic()
        while snapshot.get("status") not in ENDED:
            asked = time.monotonic()
            if asked > self.gateway.end:
                raise GaveUp(f"the trial is still {snapshot.get('status')!r} past its deadline")
            snapshot = self.gateway.insist(self._poll)
            if snapshot.get("status") not in ENDED:
                time.sleep(max(0, asked + POLL_PACE_S - time.monotonic()))
        return snapshot

    def _poll(self) -> Any:
        self._renew_if_due()
        return self.gateway.exchange("GET", f"{self.path}?wait_s={self.wait_s}")

    def _renew_if_due(self) -> None:
        if time.monotonic() + self.wait_s - self.renewed < self.renew_every:
            return
        try:
            self.gateway.exchange("POST", f"{self.path}/renew")
            self.renewed = time.monotonic()
        except ClientError:
            # The poll that follows shows the trial's state; the renewal is tried again after it.
            return

    def abort(self) -> None:
        """Ask once for the trial's end, without waiting for it."""
        try:
            self.gateway.exchange("POST", f"{self.path}/abort", timeout=ABORT_TIMEOUT_S)
        except ClientError:
            # Without renewals its lease ends the trial.
            return


def _retry_after(text: str) -> float | None:
    return float(text) if text.isdecimal() and len(text) < 7 else None


def _parse_object(text: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise Refused("the answer is no JSON object; does the URL lead to the Gateway?")
    return answer


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _explain(status: int, text: bytes) -> str:
    """The one line for an error answer: status, and the Gateway's code, field and message."""
    try:
        error = json.loads(text)["error"]
        parts = [error[key] for key in ("code", "field", "message") if error.get(key)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        parts = []
    return f"the Gateway answered {status}" + "".join(f" {part}" for part in parts)
