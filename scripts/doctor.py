#!/usr/bin/env python3
"""Look for what would go wrong before it bites, and say what cures it: `make doctor`.

Every line is `ok`, `warn` or `fail`, the latter two with what to do; `--json` gives the same as one
object. With STAGE the checks of one target alone; `smoke` has those of `train` where RAY_ADDRESS is set.
Takes some seconds: all checks run at once, and one that gets no answer is given up. Guarantees: nothing is
started, written or ended; a secret is in no line, a finding is one line whatever the names in it hold;
one check that breaks does not stop the others. Exit status 1 at a `fail`. It runs before
this clone is set up, too, with any Python from 3.9 on, and says what it could not look at. It judges
what can be seen from here: not the nodes of a cluster (`make train` looks at each), not rollouts.

    make doctor
    make doctor STAGE=train
    scripts/run.sh doctor --json
"""

import json
import os
import queue
import sys
import threading
import time
from contextlib import suppress
from typing import NamedTuple

sys.dont_write_bytecode = sys.dont_write_bytecode or __name__ == "__main__"

from checks import files, graph, leftovers, machine, network, trainer  # noqa: E402
from checks import variables as named  # noqa: E402
from checks.probe import (
    FAIL,
    OK,
    WARN,
    Case,
    Finding,
    failed,
    warn,  # noqa: E402
)
from common import settings as variables  # noqa: E402
from common import terminal  # noqa: E402
from common.terminal import Failure  # noqa: E402
from servers import processes  # noqa: E402 - byte code beside a module would be a change

# Few checks take a second; on a machine that is very busy the look for a Python takes many.
LIMIT_S = 20
RUNS_GRAPH = ("gym-up", "smoke", "bench")
RUNS_JOBS = ("smoke", "train")
MEASURES = ("audit", "eval")
STAGES = (
    "setup", "data", "model", "image", "gym-up", "verify", "smoke", "relax", "ray-up", "train", "accept",
    *MEASURES, "bench",
)  # fmt: skip
# Scripts with another name than their stage's.
SCRIPTS = {
    "prepare_data": "data", "fetch_model": "model", "build_image": "image", "fetch_relax": "relax",
    "verify_verifier": "verify", "verify_trial": "verify",
}  # fmt: skip


class Check(NamedTuple):
    """`stages` it belongs to (empty: all of them); `starts` those that make it themselves as they start."""

    name: str
    look: object
    stages: tuple = ()
    starts: tuple = ()

    def belongs_to(self, case):
        return not case.stage or not self.stages or not case.stages.isdisjoint(self.stages)


CHECKS = (
    Check("variables", named.values),
    Check("misspelt variables", named.misspelt, (), ("gym-up", "train", *MEASURES)),
    Check("secrets", named.secrets, ("gym-up", "smoke", "train", "eval"), ("gym-up", "train", "eval")),
    Check("python", machine.python),
    Check("tools", machine.tools),
    Check("disk", machine.disk, (), ("data", "gym-up", "train", *MEASURES)),
    Check("memory", machine.memory, RUNS_GRAPH, ("gym-up",)),
    Check("open files", machine.open_files, RUNS_GRAPH, ("gym-up",)),
    Check("shared memory", machine.shared_memory, RUNS_GRAPH, ("gym-up",)),
    Check("ports", machine.ports, RUNS_GRAPH, ("gym-up", "smoke")),
    Check("proxies", named.proxies, ("data", "model", "image", "relax", "eval", *RUNS_JOBS), ("image",)),
    Check("gateway address", network.gym_host, (*RUNS_GRAPH, "verify", "train", "accept", *MEASURES), ("gym-up",)),
    Check("callback networks", network.callbacks, (*RUNS_GRAPH, "train", "eval"), ("gym-up",)),
    Check("token", named.token, (*RUNS_GRAPH, "train", *MEASURES), ("gym-up",)),
    Check("task rows", files.task_rows, ("data", *RUNS_JOBS, *MEASURES)),
    Check("model", files.model, ("model", "train")),
    Check("room for the model", files.room_for_model, ("model",), ("model",)),
    Check("docker", graph.engine, ("image", *RUNS_GRAPH)),
    Check("graph", graph.graph, (*RUNS_GRAPH, "verify", "train", "accept", *MEASURES)),
    Check("head server", graph.head_server, (*RUNS_GRAPH, "verify")),
    Check("listeners", graph.exposed, (*RUNS_GRAPH, "verify")),
    Check("endpoint", network.endpoint, ("smoke", "eval"), ("smoke",)),
    Check("gateways", trainer.gateways, ("train",)),
    Check("clocks", network.clock, RUNS_JOBS, ("train",)),
    Check("trainer", trainer.checkout, ("train",)),
    Check("budgets", trainer.budgets, ("train",)),
    Check("cluster", trainer.cluster, ("train",)),
    Check("cluster's Ray", trainer.ray_version, ("train",)),
    Check("one Ray a port", trainer.second_ray, (*RUNS_JOBS, "ray-up"), ("train", "ray-up")),
    Check("GPU machine", trainer.container_host, ("ray-up",)),
    Check("leftover processes", leftovers.processes),
    Check("leftover records", leftovers.records),
    Check("leftover folders", leftovers.temporary),
    Check("leftover containers", leftovers.containers),
)


def examine(check, case):
    """The Findings of one check; whatever it raises becomes one."""
    try:
        found = check.look(case)
    except Failure as fault:
        return [failed(fault)]
    except ModuleNotFoundError as error:
        return [warn(f"not looked at: it needs the package {error.name}", "make setup")]
    except Exception as error:
        # A doctor that dies of one odd machine says nothing about the rest of it.
        return [
            warn(
                f"not looked at: {type(error).__name__}: {' '.join(str(error).split())[:160]}", "make setup; report it"
            )
        ]
    return [found] if isinstance(found, Finding) else found


def examine_all(checks, case, limit_s=LIMIT_S):
    """Make the checks at once, each given up after `limit_s`: [(check, Findings)] in their order."""
    answers, found = queue.Queue(), {}
    for check in checks:
        # Daemons: one that hangs in the system's resolver must not hold the end.
        threading.Thread(target=lambda c=check: answers.put((c, examine(c, case))), daemon=True).start()
    end = time.monotonic() + limit_s
    while len(found) < len(checks):
        try:
            check, findings = answers.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            break
        found[check] = findings
    silent = [warn(f"no answer within {limit_s} s", "see whether what it asks hangs; then again")]
    return [(check, found.get(check, silent)) for check in checks]


def end_the_given_up():
    """End what checks started and got no answer from; nobody waits for it any more."""
    everyone = processes.processes()
    started = processes.with_descendants([os.getpid()], everyone) - {os.getpid()}
    with suppress(Failure, OSError):  # one in the kernel's hands; the findings are told all the same
        processes.end([process for process in everyone if process.pid in started], grace_s=1)


def told(finding):
    """What was found and what cures it, in one line whatever the names in it hold."""
    return terminal.one_line(f"{finding.what}; {finding.cure}" if finding.cure else finding.what)


def shown(check, finding):
    return f"{finding.verdict:<5} {check.name + ':':<21}{told(finding)}"


def stage_of(script):
    """The stage that scripts/SCRIPT.py is; none of STAGES where it is none with checks."""
    return SCRIPTS.get(script, script.replace("_", "-"))


def at_start(stage, settings, tell=terminal.say):
    """Make a stage's own cheap checks as it starts: tell what they warn of. Raises Failure where one fails."""
    results = examine_all([check for check in CHECKS if stage in check.starts], Case(settings, stage))
    found = [(check, finding) for check, findings in results for finding in findings if finding.verdict != OK]
    for check, finding in found:
        if finding.verdict == WARN:
            tell(shown(check, finding))
    faults = [f"{check.name}: {told(finding)}" for check, finding in found if finding.verdict == FAIL]
    if faults:
        raise Failure("\nerror: ".join(faults))


def report(stage, results, seconds):
    """What was found, as JSON takes it; the verdict is the worst of all."""
    lines = [{"check": check.name, **finding._asdict()} for check, findings in results for finding in findings]
    counts = {verdict: sum(line["verdict"] == verdict for line in lines) for verdict in (OK, WARN, FAIL)}
    worst = next((verdict for verdict in (FAIL, WARN) if counts[verdict]), OK)
    return {"verdict": worst, "stage": stage or "all", "counts": counts, "seconds": round(seconds, 2), "checks": lines}


def chosen_stage(settings):
    if settings.STAGE and settings.STAGE not in STAGES:
        raise Failure(f"STAGE={settings.STAGE} is no stage with checks; choose one of {', '.join(STAGES)}")
    return settings.STAGE or ""


def case_of(stage, settings, faults):
    """The Case of a stage, with the variables that the stage itself sets."""
    if stage == "smoke" and settings.RAY_ADDRESS:
        one = variables.ONE_SAMPLE | {"SPLIT": settings.SPLIT}
        settings = variables.load(one, refuse=lambda fault: None)  # it is among the faults
    return Case(settings, stage, faults)


def add_options(parser):
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument(
        "--leftovers", choices=leftovers.KINDS, help="check nothing; list what is left over, each ended by a NUL byte"
    )


def main():
    faults = []
    settings, args = variables.from_command_line(
        __doc__, "STAGE", configure=add_options, refuse=lambda fault: faults.append(str(fault))
    )
    if args.leftovers:
        _, look = leftovers.KINDS[args.leftovers]
        sys.stdout.buffer.write(b"".join(os.fsencode(path) + b"\0" for path in look()))
        return
    stage, began = chosen_stage(settings), time.monotonic()
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
    # Past threads that still wait: interpreters abort where one holds a lock at the end.
    os._exit(1 if answer["verdict"] == FAIL else 0)


if __name__ == "__main__":
    terminal.run(main)
