#!/usr/bin/env python3
"""End the environment's servers and their private Ray; a rehearsal cluster stays.

  scripts/gym_down.py
"""

from settings import from_command_line
from stop import stop_role
from terminal import run, say


def main():
    settings, _ = from_command_line(__doc__, "RUN_DIR", "GYM_BASE_PORT")
    ended = stop_role(settings, "gym")
    say(f"Graph down: {ended} processes ended" if ended else "Graph down: nothing was running")


if __name__ == "__main__":
    run(main)
