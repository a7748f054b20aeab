#!/usr/bin/env -S python3 -B
"""Look for what would go wrong before it bites, and say what cures it: `make doctor`.

Every line is `ok`, `warn` or `fail`; in the last two, the text after the last semicolon says how to fix
it. `--json` gives the same as one object. With STAGE the checks of one target alone; `smoke` has those of
`train` if RAY_ADDRESS is set. Takes some seconds: all checks run at once, and one without an answer is
given up. Exit status 1 at a `fail`. It runs before this clone is set up, too, with any Python from 3.9 on.
It does not look at the nodes of a cluster (`make train` does), nor at rollouts.

Guarantees: nothing is started, written or ended; no line holds a secret; a finding is one line whatever
the names in it hold; a check that breaks does not stop the others.

    make doctor
    make doctor STAGE=train
    scripts/run.sh doctor --json
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from typing import Any

from checks import leftovers
from checks.probe import FAIL, OK, WARN, Case, Finding
from checks.registry import CHECKS, STAGES, Check, examine_all, shown
from common import settings as variables
from common import terminal
from common.failure import Failure
from servers import processes

OPTIONS = {
    "--json": {"action": "store_true", "help": "one JSON object on stdout"},
    "--leftovers": {
        "choices": leftovers.KINDS, "help": "check nothing; list what is left over, each ended by a NUL byte",
    },
}  # fmt: skip


def end_the_given_up() -> None:
    """End the processes of checks that were given up; nobody waits for them any more."""
    everyone = processes.processes()
    started = processes.with_descendants([os.getpid()], everyone) - {os.getpid()}
    with suppress(Failure, OSError):  # the kernel may hold one; the findings are said all the same
        processes.end([process for process in everyone if process.pid in started], grace_s=1)


def report(stage: str, results: list[tuple[Check, list[Finding]]], seconds: float) -> dict[str, Any]:
    """The findings as JSON takes them; the verdict is the worst of all."""
    lines = [{"check": check.name, **finding._asdict()} for check, findings in results for finding in findings]
    counts = {verdict: sum(line["verdict"] == verdict for line in lines) for verdict in (OK, WARN, FAIL)}
    worst = next((verdict for verdict in (FAIL, WARN) if counts[verdict]), OK)
    return {"verdict": worst, "stage": stage or "all", "counts": counts, "seconds": round(seconds, 2), "checks": lines}


def case_of(stage: str, settings: variables.Settings, faults: list[str]) -> Case:
    """The Case of a stage, with the variables that the stage itself sets."""
    if stage == "smoke" and settings.RAY_ADDRESS:
        smallest = {**variables.ONE_SAMPLE, "SPLIT": settings.SPLIT}
        settings = variables.load(smallest, refuse=lambda fault: None)  # it is among the faults already
    return Case(settings, stage, faults)


def main() -> None:
    faults: list[str] = []
    settings, args = variables.from_command_line(
        __doc__, "STAGE", options=OPTIONS, refuse=lambda fault: faults.append(str(fault))
    )
    if args.leftovers:
        _, look = leftovers.KINDS[args.leftovers]
        sys.stdout.buffer.write(b"".join(os.fsencode(path) + b"\0" for path in look()))
        return
    stage, began = settings.STAGE or "", time.monotonic()
    if stage and stage not in STAGES:
        raise Failure(f"STAGE={stage} is no stage with checks; choose one of {', '.join(STAGES)}")
    case = case_of(stage, settings, faults)
    checks = [check for check in CHECKS if check.belongs_to(case)]
    results = examine_all(checks, case)
    answer = report(stage, results, time.monotonic() - began)
    if args.json:
        terminal.say(json.dumps(answer, indent=1))
    else:
        for check, findings in results:
            for finding in findings:
                terminal.say(shown(check, finding))
        counts = ", ".join(f"{count} {verdict}" for verdict, count in answer["counts"].items())
        terminal.say(f"doctor: {counts} in {answer['seconds']} s")
    sys.stdout.flush()
    end_the_given_up()
    # Threads may still wait: an interpreter aborts if one holds a lock at its end.
    os._exit(1 if answer["verdict"] == FAIL else 0)


if __name__ == "__main__":
    terminal.run(main)
