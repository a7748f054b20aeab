"""The doctor's checks, the stages each belongs to, and how they are run.

Guarantees: all checks run at once; one that breaks becomes a finding and stops no other; one that
gives no answer in time is given up and reported as such.
"""

import queue
import threading
import time
from typing import NamedTuple

from checks import files, graph, leftovers, machine, network, trainer
from checks import variables as named
from checks.probe import FAIL, OK, WARN, Case, Finding, failed, warn
from common import failure, terminal
from common.failure import Failure

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


def told(finding):
    """What was found and what cures it, in one line whatever the names in it hold."""
    return failure.one_line(f"{finding.what}; {finding.cure}" if finding.cure else finding.what)


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
