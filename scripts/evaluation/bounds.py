"""The bounds of any policy's pass rate: rows that doing nothing solves, and rows that fit the agent's steps.

Guarantees:
- The floor is the real verifier's answer for each row. It is None where the resource server is not on this machine or
  does not answer for all rows; it is never guessed.
- Both bounds are of the rows that are evaluated, each counted once. The ceiling holds for policies of one call a turn.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from common.failure import Failure
from common.settings import Settings
from evaluation import audit_checks
from evaluation.audit_result import share
from inputs import row_facts
from inputs.rows import Row

AT_ONCE = 3


def bounds(settings: Settings, task_rows: Sequence[Row]) -> dict[str, Any]:
    """{"floor": {"rows", "share"} or None, "ceiling": {"rows", "share"}}; a share is of all rows, 0..1."""
    floor, verifier = None, audit_checks.Verifier(settings.local_url("resource"))
    if settings.gateway_urls == [settings.local_url("gateway")]:
        with suppress(Failure), ThreadPoolExecutor(AT_ONCE) as pool:
            rewards = pool.map(lambda row: verifier.reward(audit_checks.without_tools(row), []), task_rows)
            floor = share(list(rewards), bool)
    return {"floor": floor, "ceiling": share(task_rows, row_facts.fits_steps)}
