"""The ends of the logs of a job's workers, from Ray's dashboard; the job's own log may lack them.

Guarantees:
- it only reads, and never fails: a dashboard that does not answer gives nothing
- the number of lines is bounded, and errors come first
"""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import quote

from cluster import nodes
from cluster.jobs import Dashboard
from common.failure import Failure

FILES = 8
LINES = 12
TROUBLE = ("Traceback", "Error", "error", "Killed", "OutOfMemory", "SIG")


def worker_tails(dashboard: Dashboard, job_id: str | None) -> list[str]:
    """The path and last lines of each worker's log in which these tell of trouble."""
    shown = []
    with suppress(Failure):
        for node in nodes.nodes(dashboard):
            for name in _files(dashboard, node, job_id)[:FILES]:
                page = f"/api/v0/logs/file?node_id={node.id}&filename={quote(name)}&lines={LINES}"
                lines = [line for line in dashboard.text(page).splitlines() if line.strip()][-LINES:]
                if any(word in line for line in lines for word in TROUBLE):
                    shown.append(f"last lines of session_latest/logs/{name} on {node.address}:")
                    shown += [f"  | {line[:300]}" for line in lines]
    return shown


def _files(dashboard, node, job_id):
    """Names of the job's workers' logs on a node, error output first."""
    if not job_id:
        return []
    _, answer = dashboard.ask("GET", f"/api/v0/logs?node_id={node.id}&glob={quote(f'worker-*-{job_id}-*')}")
    try:
        names = [name for group in answer["data"]["result"].values() for name in group]
    except (KeyError, TypeError, AttributeError):
        return []
    return sorted(names, key=lambda name: not name.endswith(".err"))
