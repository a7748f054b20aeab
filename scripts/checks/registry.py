"""The doctor's checks, the stages that each belongs to, and how they run.

Guarantees: all checks run at once; a check that breaks becomes a finding and stops no other; a check that gives no
answer in time is given up and reported as such.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from checks import files, graph, leftovers, machine, network, trainer, variables
from checks.probe import FAIL, WARN, Case, Finding, failed, warn
from common import failure, terminal
from common.failure import Failure
from common.settings import Settings

# Few checks take a second; on a busy machine the search for a Python takes many.
LIMIT_S = 20
RUNS_GRAPH = ("gym-up", "smoke", "bench")
RUNS_JOBS = ("smoke", "train")
MEASURES = ("audit", "eval")
STAGES = (
    "setup", "data", "model", "image", "gym-up", "verify", "smoke", "relax", "ray-up", "train", "accept",
    *MEASURES, "bench",
)  # fmt: skip
# Scripts whose name differs from their stage's.
SCRIPTS = {
    "prepare_data": "data", "fetch_model": "model", "build_image": "image", "fetch_relax": "relax",
    "verify_verifier": "verify", "verify_trial": "verify",
}  # fmt: skip


class Check(NamedTuple):
    """`stages` it belongs to (empty: all of them); `starts` those that run it themselves as they start."""

    name: str
    look: Callable[[Case], Finding | list[Finding]]
    stages: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()

    def belongs_to(self, case: Case) -> bool:
        return not case.stage or not self.stages or not case.stages.isdisjoint(self.stages)


CHECKS = (
    Check("variables", variables.values),
    Check("misspelt variables", variables.misspelt, (), ("gym-up", "train", *MEASURES)),
    Check("secrets", variables.secrets, ("gym-up", "smoke", "train", "eval"), ("gym-up", "train", "eval")),
    Check("python", machine.python),
    Check("tools", machine.tools),
    Check("disk", machine.disk, (), ("data", "gym-up", "train", *MEASURES)),
    Check("memory", machine.memory, RUNS_GRAPH, ("gym-up",)),
    Check("open files", machine.open_files, RUNS_GRAPH, ("gym-up",)),
    Check("shared memory", machine.shared_memory, RUNS_GRAPH, ("gym-up",)),
    Check("ports", machine.ports, RUNS_GRAPH, ("gym-up", "smoke")),
    Check("proxies", variables.proxies, ("data", "model", "image", "relax", "eval", *RUNS_JOBS), ("image",)),
    Check("gateway address", network.gym_host, (*RUNS_GRAPH, "verify", "train", "accept", *MEASURES), ("gym-up",)),
    Check("callback networks", network.callbacks, (*RUNS_GRAPH, "train", "eval"), ("gym-up",)),
    Check("token", variables.token, (*RUNS_GRAPH, "train", *MEASURES), ("gym-up",)),
    Check("task rows", files.task_rows, ("data", *RUNS_JOBS, *MEASURES)),
    Check("model", files.model, ("model", "train")),
    Check("room for the model", files.room_for_model, ("model",), ("model",)),
    Check("docker", graph.engine, ("image", *RUNS_GRAPH)),
    Check("graph", graph.running, (*RUNS_GRAPH, "verify", "train", "accept", *MEASURES)),
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


def examine(check: Check, case: Case) -> list[Finding]:
    """The Findings of a check; whatever it raises becomes a Finding."""
    try:
        findings = check.look(case)
    except Failure as fault:
        findings = failed(fault)
    except ModuleNotFoundError as error:
        findings = warn(f"not looked at: it needs the package {error.name}", "make setup")
    except Exception as error:
        # The other checks must still report on an odd machine.
        what = f"not looked at: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
        findings = warn(what, "make setup; report it")
    return [findings] if isinstance(findings, Finding) else findings


def examine_all(checks: Sequence[Check], case: Case, limit_s: float = LIMIT_S) -> list[tuple[Check, list[Finding]]]:
    """Run the checks at once, each given up after `limit_s`: [(check, Findings)] in their order."""
    answers, results = queue.Queue(), {}
    for check in checks:
        # Daemons: a check that hangs in the system's resolver must not delay the end.
        threading.Thread(target=lambda c=check: answers.put((c, examine(c, case))), daemon=True).start()
    end = time.monotonic() + limit_s
    while len(results) < len(checks):
        try:
            check, findings = answers.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            break
        results[check] = findings
    silent = [warn(f"no answer within {limit_s} s", "see whether what it asks hangs; then again")]
    return [(check, results.get(check, silent)) for check in checks]


def sentence(finding: Finding) -> str:
    """What is wrong and how to fix it, in one line whatever the names in it hold."""
    return failure.one_line(f"{finding.what}; {finding.cure}" if finding.cure else finding.what)


def shown(check: Check, finding: Finding) -> str:
    return f"{finding.verdict:<5} {check.name + ':':<21}{sentence(finding)}"


def stage_of(script: str) -> str:
    """The stage that scripts/SCRIPT.py is; not in STAGES if that stage has no checks."""
    return SCRIPTS.get(script, script.replace("_", "-"))


def at_start(stage: str, settings: Settings, tell: Callable[[str], None] = terminal.say) -> None:
    """Run a stage's own quick checks as it starts and tell their warnings. Raises Failure where a check fails."""
    results = examine_all([check for check in CHECKS if stage in check.starts], Case(settings, stage))
    faults = []
    for check, findings in results:
        for finding in findings:
            if finding.verdict == WARN:
                tell(shown(check, finding))
            elif finding.verdict == FAIL:
                faults.append(f"{check.name}: {sentence(finding)}")
    if faults:
        raise Failure("\nerror: ".join(faults))
