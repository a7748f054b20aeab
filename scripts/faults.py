#!/usr/bin/env python3
"""The fault matrix: what happens to 64 trials when something dies, hangs, lies or runs out, fault by fault.

Starts a graph and a policy endpoint of its own, on free ports and in a temporary folder, never a
user's. Injects each fault while the trials run through real session clients. Checks that each trial ends
once, in time, with its reward or with none and a code, never 0 for a fault. Reports what came back by
itself, in how many seconds, and what the user saw. Results go to DATA_ROOT/faults (matrix.json, and
matrix.md as a table); a fault that runs again replaces its line. On Linux; about half a minute a fault, a
minute to start, all faults in 20 minutes on 2 cores. The full disk needs root (a small disk is mounted).

    make faults
    scripts/run.sh faults --faults kill-agent,disk-full --fault-trials 16
    scripts/run.sh faults --list
    scripts/run.sh faults --publish      writes the results that are there into tests/MEASURED.md, runs nothing
"""

import json
import time
from pathlib import Path
from typing import Any

from common.failure import Failure
from common.files import write_whole
from common.git import commit
from common.settings import from_command_line
from common.terminal import run, say, stage
from proofs import fault_table
from proofs.fault_matrix import FAULTS, Fault
from proofs.fault_rig import fault_rig

OPTIONS = {
    "--list": {"action": "store_true", "help": "name the faults and run none"},
    "--publish": {"action": "store_true", "help": "write the results into tests/MEASURED.md and run none"},
}


def save(folder: Path, line: dict[str, Any]) -> None:
    """Put a fault's line among the results."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = fault_table.read(folder) | {line["name"]: line}
    write_whole(folder / "matrix.json", json.dumps({"format": 1, "faults": lines}, indent=1, sort_keys=True))
    write_whole(folder / "matrix.md", fault_table.markdown(lines))


def measure(faults: list[Fault], trials: int, results: Path) -> list[str]:
    """Run the faults. Returns the names of those that were not held."""
    failed = []
    with fault_rig() as rig:
        for fault in faults:
            known = {"name": fault.name, "what": fault.what, "date": time.strftime("%Y-%m-%d"), "commit": commit()}
            if fault.needs_small_disk and not rig.small_disk:
                save(results, known | {"not_run": "needs root, to mount a small disk"})
                say(f"[ -- ] {fault.name}: not run, it needs root to mount a small disk")
                continue
            with stage(fault.name) as current:
                line = rig.suffer(fault, trials)
                current.note = fault_table.summary(line)
            save(results, known | line)
            if not line["held"]:
                failed.append(fault.name)
                rig.keep_logs(results / "logs" / fault.name)
                say("       " + "\n       ".join(line["broken"]))
    return failed


def main() -> None:
    settings, args = from_command_line(__doc__, "DATA_ROOT", "FAULTS", "FAULT_TRIALS", options=OPTIONS)
    results = settings.DATA_ROOT / "faults"
    if args.list:
        return say("\n".join(f"{fault.name:<18} {fault.what}" for fault in FAULTS.values()))
    if args.publish:
        fault_table.publish(results)
        return say(f"tests/MEASURED.md holds the {len(FAULTS)} lines of {results / 'matrix.json'}")
    faults = [FAULTS[name] for name in settings.FAULTS or FAULTS]
    if failed := measure(faults, settings.FAULT_TRIALS, results):
        raise Failure(f"{len(failed)} of {len(faults)} faults not held: {', '.join(failed)}; logs: {results / 'logs'}")
    return say(f"Fault matrix held: faults={len(faults)} trials={settings.FAULT_TRIALS} table={results / 'matrix.md'}")


if __name__ == "__main__":
    run(main)
