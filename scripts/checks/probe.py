"""What every check gets, and what it gives: a Case with the variables, Findings with a verdict.

Guarantees: a question to a server is sent once, past all proxies, without following redirects, and
waits a bounded time. Standard library only, like all checks until they need a package.
"""

import json
import os
import time
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from functools import cached_property
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from servers import processes

OK, WARN, FAIL = "ok", "warn", "fail"
ASK_TIMEOUT_S = 3
ANSWER_LIMIT_BYTES = 1 << 22
EXCERPT = 60


class Finding(NamedTuple):
    verdict: str
    what: str
    cure: str = ""


def ok(what):
    return Finding(OK, what)


def warn(what, cure):
    return Finding(WARN, what, cure)


def fail(what, cure):
    return Finding(FAIL, what, cure)


def failed(message, verdict=FAIL):
    """A Failure's message as a Finding: what follows its last semicolon is the cure."""
    what, semicolon, cure = " ".join(str(message).split()).rpartition("; ")
    return Finding(verdict, what, cure) if semicolon else Finding(verdict, cure, "see to what it names")


def temporary_folder():
    """Where programs put their temporary files; the library's own answer would write one there to find out."""
    return Path(os.environ.get("TMPDIR") or "/tmp")


def ray_head(settings):
    """(host, port) of RAY_ADDRESS, each None where it has none; whether it is fit is the cluster's check."""
    try:
        parts = urlsplit(f"//{settings.RAY_ADDRESS or ''}")
        return (parts.hostname, parts.port) if parts.netloc == settings.RAY_ADDRESS else (None, None)
    except ValueError:
        return None, None


class Case:
    """One look at this machine: the variables, the faults among them, the stage that is asked for ("" for all)."""

    def __init__(self, settings, stage="", faults=()):
        self.settings, self.stage, self.faults = settings, stage, list(faults)

    @property
    def trains(self):
        """Whether a cluster is to be trained on; without one, what only training needs may be absent."""
        return self.stage in ("train", "ray-up") or bool(self.settings.RAY_ADDRESS)

    @property
    def stages(self):
        """The stages that are run for the one that is asked for."""
        return {self.stage, "train"} if self.stage == "smoke" and self.settings.RAY_ADDRESS else {self.stage}

    @cached_property
    def gym_is_here(self):
        """Whether the Gateway's address is one of this machine's."""
        return processes.is_here(urlsplit(self.settings.gateway_urls[0]).hostname)

    @cached_property
    def ours(self):
        return processes.ours(self.settings)

    @cached_property
    def gateway(self):
        """The Gateway's answer to /readyz."""
        base = self.settings.local_url("gateway") if self.gym_is_here else self.settings.gateway_urls[0]
        return ask(f"{base}/readyz")


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
