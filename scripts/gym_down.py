#!/usr/bin/env python3
"""End the environment's servers, container or processes, and their Ray; a rehearsal cluster stays.

The supervisor is asked first, so that the Gateway can end its trials and clean up after them.
What is left after that is ended by signal. Trial records and logs stay under RUN_DIR.

    make gym-down
"""

from common.settings import from_command_line
from common.terminal import run, say
from servers.graph import end_graph


def main() -> None:
    settings, _ = from_command_line(__doc__, "RUN_DIR", "GYM_BASE_PORT")
    ended = end_graph(settings)
    say(f"Graph down: {ended} processes or containers ended" if ended else "Graph down: nothing was running")


if __name__ == "__main__":
    run(main)
