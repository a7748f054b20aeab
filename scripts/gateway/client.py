"""The client's side of the trial protocol: one Gateway, one trial, one time limit over both.

Guarantees: a request that may have been lost is sent again with the same bytes, so that
nothing starts twice; waits are bounded by the number of tries, by the start-up time while no
Gateway has answered, and by the trial's deadline; the lease is renewed every third of it, also
while polls fail; proxy variables play no part and redirects are not followed. Messages hold
what the Gateway said, never a header.

It is one thread: a long poll ends before the next renewal is due. Standard library only, and
few imports: the session client starts with it.
"""

import http.client
import json
import random
import time
from contextlib import suppress
from urllib.parse import quote, urlsplit

from common.failure import Failure
from common.settings import read_token

ENDED = ("completed", "truncated", "aborted", "failed")
# Beyond the trial's own deadline: what the Gateway may need to clean up and to say so.
GRACE_S = 30
BACKOFF_LIMIT_S = 5
ABORT_TIMEOUT_S = 2
# A Gateway that does not hold polls is asked no more often than this.
POLL_PACE_S = 0.5
ANSWER_LIMIT_BYTES = 16 << 20
# Answers that find fault with what was sent, and what to do about it.
CURES = {413: "raise GATEWAY_MAX_BODY_BYTES where the Gateway runs, then make gym-up there", 422: "mend that field"}


class ClientError(Failure):
    """The Gateway did not give what it was asked for."""


class Refused(ClientError):
    """The Gateway answered with something that another try would not change."""


class Unfit(Refused):
    """The Gateway does not take what it was sent: it is too large, or a field that the message names is wrong."""


class Unavailable(ClientError):
    """No answer, or one that asks for another try; `retry_after` in seconds or None."""

    def __init__(self, message, answered=False, retry_after=None):
        super().__init__(message)
        self.answered, self.retry_after = answered, retry_after


class GaveUp(ClientError):
    """Tries, start-up time or deadline are used up; the trial may still run."""


class Gateway:
    """Requests to one Gateway (that at `url`, or the settings') under one time limit. Proxy variables play no part."""

    def __init__(self, settings, url=None):
        self.settings = settings
        self.url = urlsplit(url or settings.gateway_url)
        self.headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close"}
        if token := read_token(settings):
            self.headers["Authorization"] = f"Bearer {token}"
        self.answered = False
        self.start = time.monotonic()
        self.end = self.start + settings.NEMO_GYM_DEADLINE_S + GRACE_S

    def exchange(self, method, path, body=None, timeout=None):
        """Send one request once. Returns the parsed answer, {} for 204. Raises Unavailable or Refused."""
        connection = self._connection(timeout or self.settings.NEMO_GYM_REQUEST_TIMEOUT_S)
        try:
            connection.connect()
            # A Gateway that refuses a large body may close before all of it is sent; its answer says why.
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
            raise Unavailable(_explain(status, text), True, _retry_after(answer.headers))
        if cure := CURES.get(status):
            raise Unfit(f"{_explain(status, text)}; {cure}")
        if status >= 300:
            raise Refused(_explain(status, text))
        return {} if status == 204 else _parse_object(text)

    def _connection(self, timeout):
        kind = http.client.HTTPSConnection if self.url.scheme == "https" else http.client.HTTPConnection
        return kind(self.url.hostname, self.url.port, timeout=timeout)

    def insist(self, send):
        """Call `send()` until it gives an answer; waits between tries. Raises Refused or GaveUp."""
        for attempt in range(1, self.settings.NEMO_GYM_MAX_RETRIES + 1):
            try:
                return send()
            except Unavailable as fault:
                last = fault
            wait = self._pause(attempt) if last.retry_after is None else last.retry_after
            if attempt == self.settings.NEMO_GYM_MAX_RETRIES or time.monotonic() + wait > self._patience_ends():
                break
            time.sleep(wait)
        hint = "" if last.answered else "; is the graph up (make gym-up) and NEMO_GYM_URL or GYM_HOST right?"
        raise GaveUp(f"{self.url.netloc} gave no usable answer ({attempt} tries): {last}{hint}")

    def _pause(self, attempt):
        """Seconds before the next try; spread, since a batch of clients loses its Gateway at one moment."""
        return min(
            self.settings.NEMO_GYM_RETRY_BACKOFF_S * 2 ** min(attempt - 1, 30), BACKOFF_LIMIT_S
        ) * random.uniform(0.5, 1)

    def _patience_ends(self):
        """When to stop trying: a Gateway that never answered gets less time than one that did."""
        return self.end if self.answered else min(self.end, self.start + self.settings.NEMO_GYM_STARTUP_TIMEOUT_S)


class Trial:
    """One trial at the Gateway: create it, keep its lease, wait for its end, or abort it."""

    def __init__(self, gateway, payload):
        self.gateway = gateway
        self.body = json.dumps(payload, allow_nan=False).encode()
        self.path = f"/v1/trials/{payload['request_id']}"
        self.renew_every = payload["lease_s"] / 3
        self.renewed = time.monotonic()
        request_timeout = gateway.settings.NEMO_GYM_REQUEST_TIMEOUT_S
        self.wait_s = max(0, int(min(60, self.renew_every - 0.5, request_timeout * 0.8)))

    def finish(self):
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

    def _poll(self):
        self._renew_if_due()
        return self.gateway.exchange("GET", f"{self.path}?wait_s={self.wait_s}")

    def _renew_if_due(self):
        if time.monotonic() + self.wait_s - self.renewed < self.renew_every:
            return
        try:
            self.gateway.exchange("POST", f"{self.path}/renew")
            self.renewed = time.monotonic()
        except ClientError:
            # The poll that follows tells what became of the trial; the renewal is tried again after it.
            return

    def abort(self):
        """Ask once for the trial's end; what comes of it is not waited for."""
        try:
            self.gateway.exchange("POST", f"{self.path}/abort", timeout=ABORT_TIMEOUT_S)
        except ClientError:
            # Nobody is left to tell: without renewals the lease ends the trial.
            return


def _retry_after(headers):
    text = headers.get("Retry-After", "")
    return float(text) if text.isdecimal() and len(text) < 7 else None


def _parse_object(text):
    try:
        answer = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise Refused("the answer is no JSON object; does the URL lead to the Gateway?")
    return answer


def refuse_constant(name):
    raise ValueError(f"{name} is no JSON number")


def _explain(status, text):
    """The one line for an error answer: status, and the Gateway's code, field and message."""
    try:
        error = json.loads(text)["error"]
        parts = [error[key] for key in ("code", "field", "message") if error.get(key)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        parts = []
    return f"the Gateway answered {status}" + "".join(f" {part}" for part in parts)
