"""Following a Ray job to its end: its status, its log as it grows, and outages of the dashboard in between.

Guarantees: what became of a job is told by its status alone, read again until it is terminal, never
by the end of its log; waiting for a start, for a silent dashboard and for a job that Ray does not
find is bounded; each line of the log is shown once, in order.
"""

import time
from contextlib import suppress

from cluster import jobs
from cluster.jobs import TERMINAL, Unreachable
from cluster.log_tail import LogTail
from common.failure import Failure

# A dashboard that does not answer for this long is taken for gone.
SILENCE_S = 60
# Ray may not find a job for a moment while its head comes back.
GONE_S = 10
# A tail that says nothing for this long may be a dead connection.
QUIET_S = 60


def follow(job, pending_timeout_s, cpus, show, tell, silence_s=SILENCE_S):
    """Follow a submitted job to its terminal state: Ray's last record of it.

    `show(text)` gets what the job prints as it comes, whole lines; `tell(status)` is called at
    each look. Raises Failure when the job does not start in time (it is stopped first), the
    dashboard falls silent for `silence_s`, or Ray does not find the job any more.
    """
    log, submitted, heard = LogReader(job, show), time.monotonic(), time.monotonic()
    found = heard
    while True:
        try:
            info, heard = job.info(), time.monotonic()
        except Unreachable as silence:
            if time.monotonic() - heard > silence_s:
                raise Failure(f"{silence} for {silence_s} s; job {job.id} may still run: make stop ends it") from None
            info = {"status": "unknown"}
        else:
            # A log that cannot be had now does not hide the status.
            with suppress(Unreachable):
                log.read()
        tell(info.get("status", "gone"))
        found = time.monotonic() if info else found
        if time.monotonic() - found > GONE_S:
            raise Failure(f"{job.dashboard.url}: Ray no longer knows job {job.id}; was its cluster restarted?")
        if info.get("status") in TERMINAL:
            log.finish()
            return info
        if info.get("status") == "PENDING" and time.monotonic() - submitted > pending_timeout_s:
            _give_up(job, pending_timeout_s, cpus)
        time.sleep(jobs.POLL_S)


def _give_up(job, pending_timeout_s, cpus):
    free = job.dashboard.free()
    job.stop()
    raise Failure(
        f"job {job.id} did not start within {pending_timeout_s} s (JOB_PENDING_TIMEOUT_S) and was stopped; "
        f"it asked for {cpus:g} CPU, in use on the nodes: {free}"
    )


class LogReader:
    """Gives what a log has gained since the last look, in whole lines.

    It comes as it grows, by the dashboard's tail. The whole log is asked for where there is no tail (a tenth
    of the time at most), where that has been silent for long (its connection may be dead), and at the end.
    """

    def __init__(self, job, show):
        self.job, self.show = job, show
        self.tail, self.due, self.heard = None, 0.0, 0.0
        # Characters that were shown, and what came after the last whole line.
        self.shown, self.rest = 0, ""

    def read(self):
        """Show what has come. Raises Unreachable."""
        if self.tail:
            self._take_tail()
        elif time.monotonic() >= self.due:
            began = self.heard = time.monotonic()
            self._take_whole(self.job.logs())
            if tail := LogTail.open(self.job.dashboard.url, f"{self.job.path}/logs/tail", self.shown):
                self.tail, self.rest = tail, ""
            self.due = time.monotonic() + 9 * (time.monotonic() - began)

    def _take_tail(self):
        if text := self.tail.read():
            self.heard = time.monotonic()
            self.rest += text
            self._show(self.rest.rfind("\n") + 1)
        if self.tail.ended or time.monotonic() > self.heard + QUIET_S:
            self.tail.close()
            self.tail, self.rest = None, ""

    def finish(self):
        """Show the rest of the log of a job that is over, as far as the dashboard tells it."""
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
