#!/usr/bin/env python3
"""Run a server of the fault matrix's graph with a movable clock and a record of its seeds.

Guarantees:
- `time.time` is off by the seconds in OBSERVED/clock, read at each call; the machine's clock is left alone
- the resource server appends the rollout id of each session that it is seeded with to OBSERVED/seeds
- all else of the server is as it is

Bash reads `hook` before it starts a server, because BASH_ENV names it:

  scripts/proofs/observed_server.py app.py
"""

from __future__ import annotations

import os
import runpy
import shlex
import sys
import time
from collections import Counter
from pathlib import Path

OBSERVED = "WORKPLACE_OBSERVED"


def hook(folder: Path) -> dict[str, str]:
    """Variables for a graph whose servers run observed, with their files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "clock").write_text("0")
    (folder / "seeds").touch()
    program = shlex.quote(str(Path(__file__).resolve()))
    (folder / "hook").write_text(f'python() {{ command python {program} "$@"; }}\n')
    return {OBSERVED: str(folder), "BASH_ENV": str(folder / "hook")}


def set_clock(folder: Path, seconds: float) -> None:
    """Put the servers' wall clock off by `seconds`."""
    beside = folder / "clock.part"
    beside.write_text(str(seconds))
    os.replace(beside, folder / "clock")


def seeds(folder: Path) -> dict[str, int]:
    """{rollout id: times that it was seeded}"""
    return dict(Counter((folder / "seeds").read_text().splitlines()))


def note_seeds(folder: Path) -> None:
    from resources_servers.workplace_assistant.sessions import Sessions

    seeded = Sessions.open

    def observed(self, session_id, rollout_id, tool_env):
        with open(folder / "seeds", "a") as notes:
            notes.write(f"{rollout_id}\n")
        return seeded(self, session_id, rollout_id, tool_env)

    Sessions.open = observed


def main() -> None:
    folder, program = Path(os.environ[OBSERVED]), Path(sys.argv[1]).resolve()
    del sys.argv[0]
    sys.path[0] = str(program.parent)
    true_time = time.time
    time.time = lambda: true_time() + float((folder / "clock").read_text())
    if program.parent.name == "workplace_assistant":
        note_seeds(folder)
    runpy.run_path(str(program), run_name="__main__")


if __name__ == "__main__":
    main()
