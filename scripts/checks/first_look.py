#!/usr/bin/env python3
"""Refuse what a stage would refuse as it starts, before a set-up that takes a minute.

run.sh starts it with the name of the stage's script where this clone is not set up. Guarantees: it runs with any Python
from 3.9 on, without packages; it checks the variables and what the stage itself checks at its start. Warnings are left
to the stage, which shows them when it starts.
"""

from __future__ import annotations

from checks import registry
from common import terminal
from common.settings import from_command_line


def main() -> None:
    settings, args = from_command_line(__doc__, options={"name": {}})
    registry.at_start(registry.stage_of(args.name), settings, tell=lambda line: None)


if __name__ == "__main__":
    terminal.run(main)
