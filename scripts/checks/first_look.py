#!/usr/bin/env python3
"""Refuse what a stage would refuse as it starts, before a set-up that takes a minute.

run.sh asks it with the name of the stage's script where this clone is not set up; any Python from 3.9 on
does. Looked at are the variables, whatever the stage, and its checks of the doctor's; what those
only warn of is left to the stage, which says it when it starts.
"""

from common import settings as variables
from common import terminal


def main():
    settings, args = variables.from_command_line(__doc__, configure=lambda parser: parser.add_argument("name"))
    # Imported here: it is worth nothing where a variable does not fit.
    from checks import registry

    registry.at_start(registry.stage_of(args.name), settings, tell=lambda line: None)


if __name__ == "__main__":
    terminal.run(main)
