#!/usr/bin/env python3
"""End what this clone started with this RUN_DIR: the jobs it submitted, both Rays, the graph.

Jobs are stopped first, wherever their cluster is, and each is confirmed to be over by its status.
A job that is not confirmed is named, the rest is stopped all the same, and the exit status says so.
Of processes on this machine, only those are signalled that carry our mark or descend from one that
does; a second call finds nothing to do. Takes some seconds, half a minute where the Gateway
cleans up after its trials, and a minute for a job that does not end. Trial records and logs stay under
RUN_DIR. The trainer's container of `make ray-up` stays: docker rm -f relax-train.

    make stop
"""

from shlex import quote

from cluster import jobs
from common.failure import Failure
from common.settings import Settings, from_command_line
from common.terminal import run, say
from servers import private_ray, processes
from servers.graph import end_graph


def forget_jobs(settings: Settings, dashboard_url: str) -> None:
    """Remove the records of jobs that ended with the Ray whose dashboard this was."""
    for job in jobs.open_jobs(settings.RUN_DIR):
        if job.dashboard.url == dashboard_url:
            job.ended = True
            job.close()


def stop_jobs(settings: Settings, own_dashboard: str) -> list[str]:
    """Stop the jobs on file and say their status: a line for each that still runs. Those on our own Ray end with it."""
    faults = []
    for job in jobs.open_jobs(settings.RUN_DIR):
        if job.dashboard.url == own_dashboard:
            continue
        try:
            say(f"job {job.id}: {job.stop() or 'unknown to Ray'}")
            job.close()
        except jobs.Unreachable as fault:
            forget = f"if that cluster is gone for good: rm -r {quote(str(job.folder))}"
            faults.append(f"job {job.id} may still run: {fault}; {forget}")
        except Failure as fault:
            faults.append(f"job {job.id} may still run: {fault}")
    return faults


def main() -> None:
    settings, _ = from_command_line(__doc__, "RUN_DIR", "GYM_BASE_PORT")
    rehearsal = private_ray.PrivateRay(settings, "rehearsal")
    faults = stop_jobs(settings, rehearsal.dashboard_url)
    ended = rehearsal.stop() + end_graph(settings)
    forget_jobs(settings, rehearsal.dashboard_url)
    # Sockets and shared memory go with their processes.
    if left := processes.ours(settings):
        raise Failure(f"{left[0]} is still there; run: make stop")
    say(f"Stopped: {ended} processes or containers ended, none left" if ended else "Stopped: nothing was running")
    if faults:
        raise Failure("\nerror: ".join(faults))


if __name__ == "__main__":
    run(main)
