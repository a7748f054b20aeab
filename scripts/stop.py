#!/usr/bin/env python3
"""End everything this clone started on this machine: rehearsal jobs, both Rays, the graph.

Only processes that carry our mark, or descend from one that does, are signalled; a second
call finds nothing to do. Takes up to ten seconds. Trial records and logs stay under RUN_DIR.

  scripts/stop.py
"""

import local
from gym_down import end_graph
from settings import from_command_line
from terminal import Failure, run, say


def check_released(settings):
    """Raise Failure if a process of ours is left. Sockets and shared memory go with their processes."""
    if left := local.ours(settings):
        raise Failure(f"process {left[0].pid} is still there: {left[0].command[:100]}; run: make stop")


def main():
    settings, _ = from_command_line(__doc__, "RUN_DIR", "GYM_BASE_PORT")
    ended = local.PrivateRay(settings, "rehearsal").stop() + end_graph(settings)
    check_released(settings)
    say(f"Stopped: {ended} processes ended, none left" if ended else "Stopped: nothing was running")


if __name__ == "__main__":
    run(main)
