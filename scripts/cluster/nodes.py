"""A Ray cluster as its dashboard shows it: where it is, its nodes and GPUs, what runs on it.

Guarantees:
- it only reads, over HTTP, so that our Ray's version need not be the cluster's
- a loopback Gateway is refused for a cluster elsewhere, where each node would take the address for its own
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Any
from urllib.parse import urlsplit

from cluster.jobs import PASSING, Dashboard
from common.failure import Failure, without_user
from common.net import LOOPBACK
from common.settings import Settings

DASHBOARD_PORT = 8265
ALIVE_JOBS = ("PENDING", "RUNNING")
SHARE = re.compile(r"([\d.]+)/([\d.]+) (\w+)")


class Node:
    """One alive node: id, address, whether it is the head, its GPUs and how many are free, seconds behind."""

    def __init__(self, raylet: dict[str, Any], address: str, shares: dict[str, str]):
        self.id, self.address, self.is_head = raylet["nodeId"], address, bool(raylet.get("isHeadNode"))
        self.gpus = float(raylet.get("resourcesTotal", {}).get("GPU", 0))
        # The dashboard's text is like "0.0/8.0 GPU".
        in_use = SHARE.findall(shares.get(self.id, ""))
        self.free_gpus = self.gpus - sum(float(used) for used, _, name in in_use if name == "GPU")

    def __str__(self) -> str:
        return f"{self.address}{' (head)' if self.is_head else ''}: {self.free_gpus:g} of {self.gpus:g} GPUs free"


def head(settings: Settings) -> str:
    """Host of RAY_ADDRESS. Raises Failure if that is no <head>:<port>."""
    address = settings.RAY_ADDRESS
    try:
        parts = urlsplit(f"//{address}")
        if parts.hostname and parts.port and parts.netloc == address and not parts.username:
            return parts.hostname
    except ValueError:
        pass
    raise Failure(f"RAY_ADDRESS={without_user(address)} is not <head>:<port>; set it so, as 10.0.0.5:6379")


def dashboard_url(settings: Settings) -> str:
    """Dashboard of the cluster at RAY_ADDRESS. Raises Failure."""
    host = head(settings)
    shown = f"[{host}]" if ":" in host else host
    return settings.RAY_DASHBOARD_ADDRESS or f"http://{shown}:{DASHBOARD_PORT}"


def refuse_loopback_gateway(settings: Settings) -> None:
    """Raise Failure if a node of the cluster would take a Gateway's address for its own."""
    host = head(settings)
    for url in settings.gateway_urls:
        if host not in LOOPBACK and urlsplit(url).hostname in LOOPBACK:
            raise Failure(
                f"{url} means each node itself on the cluster at {host}; "
                "set GYM_HOST to an address of the Gym machine that all nodes reach"
            )


def nodes(dashboard: Dashboard) -> list[Node]:
    """The alive nodes, head first. Raises Failure if the dashboard does not list them."""
    status, answer = dashboard.ask("GET", "/nodes?view=summary")
    try:
        data = answer["data"]
        alive = [record for record in data["summary"] if record["raylet"].get("state", "ALIVE") == "ALIVE"]
        listed = [Node(record["raylet"], record["ip"], data["nodeLogicalResources"]) for record in alive]
    except (KeyError, TypeError, AttributeError):
        raise Failure(f"{dashboard.url}: answered {status} and told no nodes; is it Ray's dashboard?") from None
    return sorted(listed, key=lambda node: not node.is_head)


def live_jobs(dashboard: Dashboard) -> list[str]:
    """A line for each job that runs or waits, passing ones left out; the trainer's entrypoint would end these."""
    status, answer = dashboard.ask("GET", "/api/jobs/")
    if status != 200 or not isinstance(answer, list):
        raise Failure(f"{dashboard.url}/api/jobs/: answered {status}, no list of jobs")
    jobs = [job for job in answer if isinstance(job, dict) and PASSING not in (job.get("metadata") or {})]
    alive = [job for job in jobs if job.get("status") in ALIVE_JOBS]
    return [
        f"{job.get('submission_id') or job.get('job_id')} {job['status']}: {_program(job.get('entrypoint'))}"
        for job in alive
    ]


def _program(entrypoint):
    """A job's command up to its first option or variable, which may hold a secret."""
    return " ".join(takewhile(lambda word: word[0] != "-" and "=" not in word, str(entrypoint).split()))[:100]
