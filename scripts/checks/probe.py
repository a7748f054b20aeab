"""What every check gets, and what it gives: a Case with the variables, Findings with a verdict.

Guarantees: a question to a server is sent once, past all proxies, without following redirects, and
waits a bounded time. Standard library only, like all checks until they need a package.
"""

import os
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from common import net
from common.net import ask
from servers import processes

OK, WARN, FAIL = "ok", "warn", "fail"


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
        return net.is_here(urlsplit(self.settings.gateway_urls[0]).hostname)

    @cached_property
    def ours(self):
        return processes.ours(self.settings)

    @cached_property
    def gateway(self):
        """The Gateway's answer to /readyz."""
        base = self.settings.local_url("gateway") if self.gym_is_here else self.settings.gateway_urls[0]
        return ask(f"{base}/readyz")
