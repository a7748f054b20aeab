"""What training needs: the trainer's checkout, budgets that agree, a cluster with free GPUs, one Ray a port.

Guarantees: the rules are those that `make train` applies before it submits (training/plan.py); here each is a line of
its own. They need the packages of the set-up, or the trainer's Python.
"""

from __future__ import annotations

import os
import re
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from checks.probe import Case, Finding, fail, failed, ok, ray_head, warn
from cluster import auth
from common import net
from common.failure import without_user
from common.net import ASK_TIMEOUT_S, ask
from common.settings import ROOT
from servers import private_ray, processes

if TYPE_CHECKING:
    from training.plan import Plan

NOT_ASKED = "not asked: RAY_ADDRESS is empty, rollouts are rehearsed on this machine"
GCS_PORT = re.compile(r"\S*gcs_server\s.*--gcs_server_port=(\d+)")
PIN = re.compile(r"^ray(?:\[\S+\])?==([\d.]+)", re.MULTILINE)


def _plan(case: Case, *looks: str) -> Plan:
    """A plan of the training after the named looks."""
    # Imported here, as others are below: the doctor starts without packages.
    from training.plan import Plan

    plan = Plan(case.settings)
    plan.look(*(getattr(plan, look) for look in looks))
    return plan


def _noted(plan: Plan, *beginnings: str) -> str:
    """The plan's lines with these beginnings, joined."""
    return "; ".join(line.strip() for line in plan.lines if line.strip().startswith(beginnings))


def checkout(case: Case) -> Finding | list[Finding]:
    """The trainer's checkout is there, and no variable is set that would mislead its entrypoint."""
    if not case.trains:
        return ok(NOT_ASKED)
    plan = _plan(case, "environment", "checkout")
    return [failed(fault) for fault in plan.faults] or ok(" ".join(line.strip() for line in plan.lines))


def budgets(case: Case) -> Finding | list[Finding]:
    """The inequalities between lengths, batches and times, for the rows that are there."""
    if not case.trains:
        return ok(NOT_ASKED)
    plan = _plan(case, "rows", "budgets")
    cure = f"set it so in {case.settings.TRAIN_ARGUMENTS} or .env"
    return [failed(fault, cure=cure) for fault in plan.faults] or ok(_noted(plan, "rollouts", "tokens"))


def gateways(case: Case) -> Finding | list[Finding]:
    """Every Gateway is ready, and all have the same environment."""
    if not case.trains:
        return ok(NOT_ASKED)
    if case.stage == "smoke" and case.gym_is_here and not case.gateway.status:
        return ok("not running; make smoke starts it")
    plan = _plan(case, "services")
    return [failed(fault) for fault in plan.faults] or ok(f"{len(plan.gateways)} ready, one environment")


def cluster(case: Case) -> Finding | list[Finding]:
    """The cluster's dashboard answers, its GPUs suffice, and nothing runs that the entrypoint would stop."""
    if not case.settings.RAY_ADDRESS:
        if case.stage == "train":
            return fail("RAY_ADDRESS is empty", "set it to the cluster's <head>:6379, or make ray-up starts one here")
        return ok(NOT_ASKED)
    plan = _plan(case, "rows", "budgets")
    plan.faults.clear()  # the check of the budgets reports them
    plan.look(lambda: plan.cluster(ASK_TIMEOUT_S, 0))
    cure = "set RAY_ADDRESS and RAY_DASHBOARD_ADDRESS"
    return [failed(fault, cure=cure) for fault in plan.faults] or ok(_noted(plan, "cluster", "GPUs"))


def ray_version(case: Case) -> Finding:
    """The cluster's Ray, as its dashboard reports it, against ours."""
    if not case.settings.RAY_ADDRESS:
        return ok(NOT_ASKED)
    from cluster import nodes

    answer = ask(f"{nodes.dashboard_url(case.settings)}/api/version", auth.headers())
    if answer.status in (401, 403):
        return failed(auth.refused(nodes.dashboard_url(case.settings), answer.status))
    version = answer.json()
    if not isinstance(version, dict) or not version.get("ray_version"):
        cure = "correct RAY_ADDRESS, RAY_DASHBOARD_ADDRESS or the proxy"
        return fail(f"{answer.url} {answer.told()}, not a dashboard's", cure)
    theirs, ours = str(version["ray_version"]), own_ray()
    what = f"the cluster has Ray {theirs}, here is {ours}"
    same = theirs.split(".")[:2] == ours.split(".")[:2]
    return ok(what) if same else warn(what, "run make train with the trainer's image's python3")


def own_ray() -> str:
    """The version of the Ray that is installed for this Python, otherwise of the locked one."""
    try:
        return metadata.version("ray")
    except metadata.PackageNotFoundError:
        return PIN.findall((ROOT / "scripts" / "requirements.txt").read_text(encoding="utf-8"))[0]


def second_ray(case: Case) -> Finding | list[Finding]:
    """No two Rays share a port, and the trainer's Ray is not the Gym's own, which its entrypoint would clear."""
    s, findings = case.settings, []
    host, port = ray_head(s)
    own = {private_ray.PrivateRay(s, role).port for role in ("gym", "rehearsal")}
    if host and port in own and net.is_here(host):
        what = f"RAY_ADDRESS={without_user(s.RAY_ADDRESS)} is this clone's private Ray"
        findings.append(fail(what, "set it to the trainer's, or unset it"))
    heads = gcs_ports()
    for number, pids in heads.items():
        if len(pids) > 1:
            what = f"{len(pids)} Rays have port {number}: processes {', '.join(map(str, pids))}"
            findings.append(fail(what, "end all but one"))
    return findings or ok(f"{len(heads)} Ray heads on this machine, each with a port of its own")


def gcs_ports() -> dict[int, list[int]]:
    """{port: [pids]} of the Ray heads in our network namespace."""
    ports, own = {}, _network("self")
    for process in processes.processes():
        if (match := GCS_PORT.match(process.command)) and _network(process.pid) == own:
            ports.setdefault(int(match[1]), []).append(process.pid)
    return ports


def _network(pid: int | str) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def container_host(case: Case, devices: Path = Path("/dev")) -> Finding:
    """What `make ray-up` needs on this machine, and its GPUs as far as the driver's files tell."""
    if case.stage != "ray-up":
        return ok("asked for make ray-up alone")
    from training import container

    existing = container.existing(container.engine())
    running = existing and existing.status == "running"
    if not running:
        container.check(case.settings)
    count = len(list(devices.glob("nvidia[0-9]*")))
    if count < container.GPUS:
        return fail(f"{count} NVIDIA GPUs here, {container.GPUS} are asked for", "take a machine with that many")
    return ok(f"{count} NVIDIA GPUs, {'the container runs' if running else 'ports free'}")
