"""Questions to HTTP servers, and which addresses are this machine's.

Guarantees:
- a question is sent once, past all proxies, follows no redirect and waits a bounded time
- whatever comes back is an Answer, never an exception
- standard library only, from Python 3.9 on
"""

from __future__ import annotations

import ipaddress
import json
import socket
import time
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any, NamedTuple

ASK_TIMEOUT_S = 3
READYZ_TIMEOUT_S = 5
ANSWER_LIMIT_BYTES = 1 << 22
EXCERPT = 60
# Host names that mean the machine itself.
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_loopback(text: str) -> bool:
    """Whether an IP address is loopback, mapped into IPv6 or not."""
    address = ipaddress.ip_address(text)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def addresses(host: str | None) -> list[str]:
    """The addresses of a host name or address; empty if it has none."""
    try:
        return sorted({str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(host, None)})
    except (OSError, UnicodeError):
        return []


def is_here(host: str | None) -> bool:
    """Whether one of a host's addresses is this machine's own."""
    for address in addresses(host):
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            try:
                probe.bind((address, 0))
            except OSError:
                continue
            return True
    return False


class Answer(NamedTuple):
    """An HTTP answer: status 0 with the reason as `text` if nobody answered; `skew_s` is None without a Date."""

    url: str
    status: int
    text: str
    skew_s: float | None = None

    def json(self) -> Any:
        """The body as parsed JSON; None if it is not JSON."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None

    def told(self) -> str:
        """The answer in a message: its status and beginning, or why there was none."""
        beginning = " ".join(self.text.split())[:EXCERPT]
        return f"answered {self.status}: {beginning!r}" if self.status else f"gives no answer ({beginning})"


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def ask(url: str, headers: dict[str, str] | None = None, timeout: float = ASK_TIMEOUT_S) -> Answer:
    """GET a page."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stay())
    sent = time.time()
    try:
        with opener.open(urllib.request.Request(url, headers=headers or {}), timeout=timeout) as reply:
            return _answer(url, reply, sent)
    except urllib.error.HTTPError as error:
        with error:
            return _answer(url, error, sent)
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        return Answer(url, 0, str(getattr(reason, "strerror", None) or reason or type(error).__name__))


def readyz(url: str, timeout: float = READYZ_TIMEOUT_S) -> tuple[bool, dict[str, Any]]:
    """Whether the Gateway at `url` is ready, and its answer; {} if no Gateway answers."""
    answer = ask(f"{url}/readyz", timeout=timeout)
    state = answer.json()
    state = state if isinstance(state, dict) else {}
    return answer.status == 200 and state.get("ready") is True, state


def _answer(url: str, reply: Any, sent: float) -> Answer:
    received = time.time()
    try:
        text = reply.read(ANSWER_LIMIT_BYTES).decode(errors="replace")
    except (OSError, HTTPException) as error:
        return Answer(url, 0, f"broke off: {type(error).__name__}")
    return Answer(url, reply.status, text, _skew(reply.headers.get("Date"), sent, received))


def _skew(date: str, sent: float, received: float) -> float | None:
    """Seconds by which the other clock is ahead of ours: the least that fits a Date of whole seconds."""
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return None
    return min(0.0, theirs + 1 - sent) + max(0.0, theirs - received)
