"""What any policy's pass rate stands between: rows that doing nothing solves, and rows that fit the agent's steps.

Guarantees: the floor is the real verifier's word on each row, or None where the resource server is
not on this machine or does not answer for all rows; it is never guessed. Both are of the rows
that are evaluated, each once. What the steps allow is said for policies of one call a turn.
"""

from concurrent.futures import ThreadPoolExecutor

from common.failure import Failure
from evaluation import audit_checks
from inputs import row_facts

AT_ONCE = 3


def bounds(settings, task_rows):
    """{"floor": {"rows", "share"} or None, "ceiling": {"rows", "share"}}."""
    fitting = sum(map(row_facts.fits_steps, task_rows))
    return {"floor": floor(settings, task_rows), "ceiling": share(fitting, task_rows)}


def floor(settings, task_rows):
    """Rows on which doing nothing earns 1, or None."""
    if settings.gateway_urls != [settings.local_url("gateway")]:
        return None
    verifier = audit_checks.Verifier(settings.local_url("resource"))
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            rewards = list(pool.map(lambda row: verifier.reward(audit_checks.without_tools(row), []), task_rows))
    except Failure:
        return None
    return share(sum(rewards), task_rows)


def share(count, task_rows):
    return {"rows": count, "share": count / len(task_rows)}
