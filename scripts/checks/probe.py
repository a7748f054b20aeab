"""What every check takes and returns: a Case with the variables, and Findings with a verdict.

Guarantees: a server is asked once, past all proxies, without following redirects, for a bounded time. Standard library
only, like all checks until they need a package.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from common import net
from common.net import ask
from common.settings import Settings
from servers import processes

OK, WARN, FAIL = "ok", "warn", "fail"


class Finding(NamedTuple):
    verdict: str
    what: str
    cure: str = ""


def ok(what: str) -> Finding:
    return Finding(OK, what)


def warn(what: str, cure: str) -> Finding:
    return Finding(WARN, what, cure)


def fail(what: str, cure: str) -> Finding:
    return Finding(FAIL, what, cure)


def failed(message: object, verdict: str = FAIL, cure: str = "see to what it names") -> Finding:
    """A Failure's message as a Finding: the text after its last semicolon is the cure, otherwise `cure`."""
    text = " ".join(str(message).split())
    what, semicolon, named = text.rpartition("; ")
    return Finding(verdict, what, named) if semicolon else Finding(verdict, text, cure)


def temporary_folder() -> Path:
    """The folder for temporary files; `tempfile` would write a file there to find out."""
    return Path(os.environ.get("TMPDIR") or "/tmp")


def ray_head(settings: Settings) -> tuple[str | None, int | None]:
    """(host, port) of RAY_ADDRESS, each None if absent; the check of the cluster judges whether they fit."""
    try:
        parts = urlsplit(f"//{settings.RAY_ADDRESS or ''}")
        return (parts.hostname, parts.port) if parts.netloc == settings.RAY_ADDRESS else (None, None)
    except ValueError:
        return None, None


class Case:
    """What the checks look at: the variables, the faults among them, the stage that was asked for ("" for all)."""

    def __init__(self, settings: Settings, stage: str = "", faults: Iterable[str] = ()) -> None:
        self.settings, self.stage, self.faults = settings, stage, list(faults)

    @property
    def trains(self) -> bool:
        """Whether there is a cluster to train on. Without one, what only training needs may be absent."""
        return self.stage in ("train", "ray-up") or bool(self.settings.RAY_ADDRESS)

    @property
    def stages(self) -> set[str]:
        """The stages that run for the stage that was asked for."""
        return {self.stage, "train"} if self.stage == "smoke" and self.settings.RAY_ADDRESS else {self.stage}

    @cached_property
    def gym_is_here(self) -> bool:
        """Whether the Gateway's address belongs to this machine."""
        return net.is_here(urlsplit(self.settings.gateway_urls[0]).hostname)

    @cached_property
    def ours(self) -> list[processes.Process]:
        return processes.ours(self.settings)

    @cached_property
    def gateway(self) -> net.Answer:
        """The Gateway's answer to /readyz."""
        base = self.settings.local_url("gateway") if self.gym_is_here else self.settings.gateway_urls[0]
        return ask(f"{base}/readyz")
