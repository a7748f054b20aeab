"""Following a Ray job to its end: its status, its log as it grows, and outages of the dashboard in between.

Guarantees:
- only a terminal status ends a job, never the end of its log
- each wait is bounded: for a start, for a silent dashboard, for a job that Ray does not find
- each line of the log is shown once, in order
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cluster import jobs
from cluster.jobs import TERMINAL, Job, Unreachable
from cluster.log_tail import LogTail
from common.failure import Failure

# A dashboard that is silent for this long counts as gone.
SILENCE_S = 60
# While its head comes back, Ray may not find a job for a moment.
GONE_S = 10
# The connection of a tail that is silent for this long may be dead.
QUIET_S = 60


Show = Callable[[str], object]


def follow(
    job: Job, pending_timeout_s: float, cpus: float, show: Show, tell: Show, silence_s: float = SILENCE_S
) -> dict[str, Any]:
    """Follow a submitted job to its terminal state; returns Ray's last record of it.

    `show(text)` gets the job's output as it comes, in whole lines; `tell(status)` gets each status
    that is read. Raises Failure when the job does not start in time (it is stopped first), the
    dashboard is silent for `silence_s`, or Ray no longer finds the job.
    """
    log, submitted = LogReader(job, show), time.monotonic()
    answered = known = submitted
    while True:
        try:
            info, answered = job.info(), time.monotonic()
        except Unreachable as silence:
            if time.monotonic() - answered > silence_s:
                raise Failure(f"{silence} for {silence_s} s; job {job.id} may still run: make stop ends it") from None
            info = {"status": "unknown"}
        else:
            # An unreadable log must not hide the status.
            with suppress(Unreachable):
                log.read()
        tell(info.get("status", "gone"))
        known = time.monotonic() if info else known
        if time.monotonic() - known > GONE_S:
            raise Failure(f"{job.dashboard.url}: Ray no longer knows job {job.id}; was its cluster restarted?")
        if info.get("status") in TERMINAL:
            log.finish()
            return info
        if info.get("status") == "PENDING" and time.monotonic() - submitted > pending_timeout_s:
            free = job.dashboard.free()
            job.stop()
            raise Failure(
                f"job {job.id} did not start within {pending_timeout_s} s (JOB_PENDING_TIMEOUT_S) and was stopped; "
                f"it asked for {cpus:g} CPU, in use on the nodes: {free}"
            )
        time.sleep(jobs.POLL_S)


class LogReader:
    """Shows what a log has gained since the last read, in whole lines.

    The dashboard's tail gives it. The whole log is fetched at the end, where there is no tail (for a
    tenth of the time at most), and where the tail has been silent for QUIET_S.
    """

    def __init__(self, job: Job, show: Show):
        self.job, self.show = job, show
        self.tail: LogTail | None = None
        self.whole_due = self.tail_heard = 0.0
        # How many characters were shown, and the text after the last whole line.
        self.shown, self.rest = 0, ""

    def read(self) -> None:
        """Show what has come. Raises Unreachable."""
        if self.tail:
            self._take_tail(self.tail)
        elif time.monotonic() >= self.whole_due:
            began = self.tail_heard = time.monotonic()
            self._take_whole(self.job.logs())
            if tail := LogTail.open(self.job.dashboard.url, f"{self.job.path}/logs/tail", self.shown):
                self.tail, self.rest = tail, ""
            self.whole_due = time.monotonic() + 9 * (time.monotonic() - began)

    def _take_tail(self, tail):
        if text := tail.read():
            self.tail_heard = time.monotonic()
            self.rest += text
            self._show(self.rest.rfind("\n") + 1)
        if tail.ended or time.monotonic() > self.tail_heard + QUIET_S:
            tail.close()
            self.tail, self.rest = None, ""

    def finish(self) -> None:
        """Show the rest of the log of a job that is over, as far as the dashboard has it."""
        if self.tail:
            self.tail.close()
        with suppress(Unreachable):
            self._take_whole(self.job.logs())
        self._show(len(self.rest))

    def _take_whole(self, text):
        self.rest = text[self.shown :]
        self._show(self.rest.rfind("\n") + 1)

    def _show(self, end):
        if end:
            self.show(self.rest[:end])
            self.shown, self.rest = self.shown + end, self.rest[end:]
