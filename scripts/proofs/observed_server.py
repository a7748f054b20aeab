#!/usr/bin/env python3
"""Runs a server of the graph as it is, but for two things that the fault matrix needs; on loopback, for it alone.

The wall clock, as `time.time` shows it, is off by the seconds in OBSERVED/clock, read anew at each
call (the machine's own clock is left alone); and the resource server notes each session it is
seeded with in OBSERVED/seeds, a rollout id a line. Bash reads `hook` before it starts a server,
by way of BASH_ENV.

  scripts/observed_server.py app.py
"""

import os
import runpy
import shlex
import sys
import time
from pathlib import Path

OBSERVED = "WORKPLACE_OBSERVED"


def hook(folder):
    """Variables for a graph whose servers run observed; the files go into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "clock").write_text("0")
    (folder / "seeds").touch()
    program = shlex.quote(str(Path(__file__).resolve()))
    (folder / "hook").write_text(f'python() {{ command python {program} "$@"; }}\n')
    return {OBSERVED: str(folder), "BASH_ENV": str(folder / "hook")}


def set_clock(folder, seconds):
    """Put the servers' wall clock off by `seconds`."""
    beside = folder / "clock.part"
    beside.write_text(str(seconds))
    os.replace(beside, folder / "clock")


def seeds(folder):
    """{rollout id: times that it was seeded}"""
    found = {}
    for rollout_id in (folder / "seeds").read_text().splitlines():
        found[rollout_id] = found.get(rollout_id, 0) + 1
    return found


def skew(folder):
    true_time = time.time
    time.time = lambda: true_time() + float((folder / "clock").read_text())


def note_seeds(folder):
    from resources_servers.workplace_assistant.sessions import Sessions

    seeded = Sessions.open

    def observed(self, session_id, rollout_id, *rest):
        with open(folder / "seeds", "a") as notes:
            notes.write(f"{rollout_id}\n")
        return seeded(self, session_id, rollout_id, *rest)

    Sessions.open = observed


def main():
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if len(sys.argv) == 2 else 2
    folder, program = Path(os.environ[OBSERVED]), Path(sys.argv[1]).resolve()
    del sys.argv[0]
    sys.path[0] = str(program.parent)
    skew(folder)
    if program.parent.name == "workplace_assistant":
        note_seeds(folder)
    runpy.run_path(str(program), run_name="__main__")


if __name__ == "__main__":
    sys.exit(main())
