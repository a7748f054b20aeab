"""Questions to servers and addresses of this machine.

Guarantees: a question is sent once, past all proxies, without following redirects, and waits a bounded
time; whatever comes back is an answer, never an exception. Standard library only.
"""

import ipaddress
import json
import socket
import time
import urllib.request
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import NamedTuple

ASK_TIMEOUT_S = 3
READYZ_TIMEOUT_S = 5
ANSWER_LIMIT_BYTES = 1 << 22
EXCERPT = 60


def _is_loopback(text):
    address = ipaddress.ip_address(text)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def addresses(host):
    """The addresses of a host name or address, as text; empty where it has none."""
    try:
        return sorted({str(found[4][0]).partition("%")[0] for found in socket.getaddrinfo(host, None)})
    except (OSError, UnicodeError):
        return []


def is_here(host):
    """Whether a host is this machine, by an address of its own."""
    for address in addresses(host):
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            try:
                probe.bind((address, 0))
            except OSError:
                continue
            return True
    return False


def get(url, timeout):
    """Status and body of a GET that no proxy sees; status 0 with the reason where nobody answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except (OSError, HTTPException) as error:  # the latter where what answers speaks no HTTP
        return 0, f"{type(error).__name__}: {error}".encode()


def readyz(url, timeout=READYZ_TIMEOUT_S):
    """What the Gateway at `url` says of itself: (whether it is ready, its answer, {} where no Gateway answers)."""
    status, body = get(f"{url}/readyz", timeout)
    try:
        state = json.loads(body) if status else {}
    except ValueError:
        state = {}
    state = state if isinstance(state, dict) else {}
    return status == 200 and state.get("ready") is True, state


class Answer(NamedTuple):
    """An HTTP answer: status 0 with the reason as `text` where nobody answers; `skew_s` None without a Date."""

    url: str
    status: int
    text: str
    skew_s: object = None

    def json(self):
        """The body as parsed JSON; None if it is none."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None

    def told(self):
        """What came, for a line: the reason there was no answer, or the beginning of one."""
        beginning = " ".join(self.text.split())[:EXCERPT]
        return f"answered {self.status}: {beginning!r}" if self.status else f"gives no answer ({beginning})"


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


def ask(url, headers=None, timeout=ASK_TIMEOUT_S):
    """GET a page past all proxies, redirects not followed: an Answer, whatever happens."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stay())
    began = time.time()
    try:
        with opener.open(urllib.request.Request(url, headers=headers or {}), timeout=timeout) as answer:
            return _answer(url, answer, began)
    except urllib.error.HTTPError as error:
        with error:
            return _answer(url, error, began)
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        return Answer(url, 0, str(getattr(reason, "strerror", None) or reason or type(error).__name__))


def _answer(url, answer, began):
    heard = time.time()
    try:
        text = answer.read(ANSWER_LIMIT_BYTES).decode(errors="replace")
    except (OSError, HTTPException) as error:
        return Answer(url, 0, f"broke off: {type(error).__name__}")
    return Answer(url, answer.status, text, _skew(answer.headers.get("Date"), began, heard))


def _skew(date, began, heard):
    """Seconds by which the other clock is ahead of ours, whose second may have been any part of the exchange."""
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return None
    return min(0.0, theirs + 1 - began) + max(0.0, theirs - heard)
