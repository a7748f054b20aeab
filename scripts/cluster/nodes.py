"""A Ray cluster as its dashboard tells it: where it is, its nodes and GPUs, what runs on it.

Guarantees: it only reads. Asked are the dashboard's own pages over HTTP, so the Ray in our
environment need not be the cluster's. A loopback Gateway is refused for a cluster elsewhere:
each of its nodes would take the address for itself.
"""

import re
from itertools import takewhile
from urllib.parse import urlsplit

from cluster.jobs import PASSING
from common.failure import Failure, without_user

LOOPBACK = ("127.0.0.1", "localhost", "::1")
DASHBOARD_PORT = 8265
ALIVE_JOBS = ("PENDING", "RUNNING")
SHARE = re.compile(r"([\d.]+)/([\d.]+) (\w+)")


class Node:
    """One alive node: id, address, whether it is the head, GPUs in all and free (those in use come in late)."""

    def __init__(self, raylet, address, shares):
        self.id, self.address, self.is_head = raylet["nodeId"], address, bool(raylet.get("isHeadNode"))
        self.gpus = float(raylet.get("resourcesTotal", {}).get("GPU", 0))
        self.free_gpus = self.gpus - _in_use(shares.get(self.id, ""), "GPU")

    def __str__(self):
        return f"{self.address}{' (head)' if self.is_head else ''}: {self.free_gpus:g} of {self.gpus:g} GPUs free"


def head(settings):
    """Host of RAY_ADDRESS. Raises Failure if that is no <head>:<port>."""
    try:
        parts = urlsplit(f"//{settings.RAY_ADDRESS}")
        fits = parts.hostname and parts.port and parts.netloc == settings.RAY_ADDRESS and not parts.username
    except ValueError:
        fits = False
    if not fits:
        raise Failure(
            f"RAY_ADDRESS={without_user(settings.RAY_ADDRESS)} is not <head>:<port>; set it so, as 10.0.0.5:6379"
        )
    return parts.hostname


def dashboard_url(settings):
    """Dashboard of the cluster at RAY_ADDRESS. Raises Failure."""
    host = head(settings)
    shown = f"[{host}]" if ":" in host else host
    return settings.RAY_DASHBOARD_ADDRESS or f"http://{shown}:{DASHBOARD_PORT}"


def refuse_loopback_gateway(settings):
    """Raise Failure if a node of the cluster would take a Gateway's address for its own."""
    host = head(settings)
    for url in settings.gateway_urls:
        if host not in LOOPBACK and urlsplit(url).hostname in LOOPBACK:
            raise Failure(
                f"{url} means each node itself on the cluster at {host}; "
                "set GYM_HOST to an address of the Gym machine that all nodes reach"
            )


def nodes(dashboard):
    """The alive nodes, head first. Raises Failure if the dashboard does not say."""
    status, answer = dashboard.ask("GET", "/nodes?view=summary")
    try:
        data = answer["data"]
        alive = [each for each in data["summary"] if each["raylet"].get("state", "ALIVE") == "ALIVE"]
        found = [Node(each["raylet"], each["ip"], data["nodeLogicalResources"]) for each in alive]
    except (KeyError, TypeError, AttributeError):
        raise Failure(f"{dashboard.url}: answered {status} and told no nodes; is it Ray's dashboard?") from None
    return sorted(found, key=lambda node: not node.is_head)


def _in_use(text, wanted):
    """How much of a resource is in use by the dashboard's words, "0.0/8.0 GPU"."""
    return sum(float(used) for used, _, name in SHARE.findall(text) if name == wanted)


def live_jobs(dashboard):
    """What runs or waits on the cluster, a line each, our own looks at nodes apart: the entrypoint would end it."""
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
    """The beginning of a job's command, up to its options and variables: they may hold a secret."""
    return " ".join(takewhile(lambda word: word[0] != "-" and "=" not in word, str(entrypoint).split()))[:100]
