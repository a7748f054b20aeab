#!/usr/bin/env python3
"""End everything this clone started on this machine: rehearsal jobs, both Rays, the graph.

Only processes that carry our mark, or descend from one that does, are signalled; a second
call finds nothing to do. Takes up to ten seconds. Trial records and logs stay under RUN_DIR.

  scripts/stop.py
"""

import shutil

import local
from gym_down import end_graph
from settings import from_command_line
from terminal import Failure, run, say


def forget_jobs(settings, dashboard_url):
    """Remove the records of jobs that ended with the Ray whose dashboard this was."""
    for record in (settings.RUN_DIR / "jobs").glob("*/dashboard"):
        if record.read_text().strip() == dashboard_url:
            shutil.rmtree(record.parent)


def check_released(settings):
    """Raise Failure if a process of ours is left. Sockets and shared memory go with their processes."""
    if left := local.ours(settings):
        raise Failure(f"process {left[0].pid} is still there: {left[0].command[:100]}; run: make stop")


def main():
    settings, _ = from_command_line(__doc__, "RUN_DIR", "GYM_BASE_PORT")
    rehearsal = local.PrivateRay(settings, "rehearsal")
    ended = rehearsal.stop() + end_graph(settings)
    forget_jobs(settings, rehearsal.dashboard_url)
    check_released(settings)
    say(f"Stopped: {ended} processes or containers ended, none left" if ended else "Stopped: nothing was running")


if __name__ == "__main__":
    run(main)
