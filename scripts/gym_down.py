#!/usr/bin/env python3
"""End the environment's servers, container or processes, and their Ray; a rehearsal cluster stays.

The supervisor is asked first, so that the Gateway can end its trials and clean up after them;
what is left after that is ended by signal. Trial records and logs stay under RUN_DIR.

  scripts/run.sh gym_down
"""

import os
import signal
import time

from common.settings import from_command_line
from common.terminal import run, say
from servers import container, processes

SUPERVISOR_GRACE_S = 30


def end_graph(settings):
    """End the graph of this RUN_DIR. Returns the number of processes and containers it had."""
    return container.end_containers(settings) + end_processes(settings)


def end_processes(settings):
    running = processes.ours(settings, "gym")
    for process in running:
        if "supervise.py" in process.command:
            os.kill(process.pid, signal.SIGTERM)
            wait_for(process)
    processes.PrivateRay(settings, "gym").stop()
    return len(running)


def wait_for(process):
    deadline = time.monotonic() + SUPERVISOR_GRACE_S
    while process.alive() and time.monotonic() < deadline:
        time.sleep(0.05)


def main():
    settings, _ = from_command_line(__doc__, "RUN_DIR", "GYM_BASE_PORT")
    ended = end_graph(settings)
    say(f"Graph down: {ended} processes or containers ended" if ended else "Graph down: nothing was running")


if __name__ == "__main__":
    run(main)
