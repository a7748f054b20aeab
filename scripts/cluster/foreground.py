"""A Ray job in the foreground: opened, followed, stopped by Ctrl-C or SIGTERM, and closed.

Guarantees:
- an interruption stops the job and confirms it; the exit status is then 128 + the signal
- a job that Ray never heard of is forgotten
- a job that failed is shown with Ray's reason and the end of its log
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cluster.jobs import Interrupted, Job, interrupt
from common import terminal
from common.failure import Failure

# What a driver asks of the cluster.
CPUS = 1
CPUS_OPTION = {"--cpus": {"type": float, "default": CPUS, "metavar": "N", "help": f"CPUs the driver asks for [{CPUS}]"}}
TAIL_LINES = 15
WIDTH = 300


def run(open_job: Callable[[], Job], work: Callable[[Job], int]) -> int:
    """Open a job and have `work` submit and follow it: the exit status. Raises Failure."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        job = open_job()
        try:
            return work(job)
        except (Failure, Interrupted) as end:
            if not job.submitted:
                job.ended = True
            elif isinstance(end, Interrupted):
                terminal.clear_line()
                job.stop_and_tell()
            raise
        finally:
            job.close()
    except Interrupted as interruption:
        return 128 + interruption.args[0]


def tell_failure(info: dict[str, Any], log: Path, more: Sequence[str] = ()) -> None:
    """Show on stderr why a job failed: Ray's reason, the last lines of its log, and `more`."""
    # Ray appends the log to its message.
    reason = str(info.get("message") or "").partition(", last available logs")[0].strip()
    lines = [f"  | {line[:WIDTH]}" for line in log.read_text(encoding="utf-8").splitlines()[-TAIL_LINES:]]
    print("\n".join([reason, f"last lines of {log}:", *lines, *more]), file=sys.stderr, flush=True)
