"""The ends of a job's workers' logs, from Ray's dashboard: what the job's own log may not show.

A worker that dies takes its last words along unless somebody reads its files. Guarantees: it
only reads, it never fails (a dashboard that does not tell gives nothing), and shows a bounded
number of lines. The errors come first.
"""

from urllib.parse import quote

from cluster import nodes
from common.failure import Failure

FILES = 8
LINES = 12
TROUBLE = ("Traceback", "Error", "error", "Killed", "OutOfMemory", "SIG")


def worker_tails(dashboard, job_id):
    """Lines to show: the last ones of each log of the job's workers that tells of trouble, with its path."""
    shown = []
    try:
        for node in nodes.nodes(dashboard):
            for name in _files(dashboard, node, job_id)[:FILES]:
                lines = _last_lines(dashboard, node, name)
                if any(word in line for line in lines for word in TROUBLE):
                    shown += [
                        f"last lines of session_latest/logs/{name} on {node.address}:",
                        *(f"  | {line[:300]}" for line in lines),
                    ]
    except Failure:
        return shown
    return shown


def _files(dashboard, node, job_id):
    """Names of the job's workers' logs on a node, error output first."""
    if not job_id:
        return []
    _, answer = dashboard.ask("GET", f"/api/v0/logs?node_id={node.id}&glob={quote(f'worker-*-{job_id}-*')}")
    try:
        found = [name for names in answer["data"]["result"].values() for name in names]
    except (KeyError, TypeError, AttributeError):
        return []
    return sorted(found, key=lambda name: not name.endswith(".err"))


def _last_lines(dashboard, node, name):
    text = dashboard.text(f"/api/v0/logs/file?node_id={node.id}&filename={quote(name)}&lines={LINES}")
    return [line for line in text.splitlines() if line.strip()][-LINES:]
