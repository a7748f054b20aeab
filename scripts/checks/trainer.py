"""What training needs: the trainer's checkout, budgets that agree, a cluster with free GPUs, one Ray a port.

The rules are those that `make train` applies itself before it submits (train_checks.py); here each
is a line of its own. Needs the packages of the set-up, or the trainer's Python.
"""

import os
import re
from importlib import metadata
from pathlib import Path

from checks.probe import fail, failed, ok, ray_head, warn
from common import net
from common.failure import without_user
from common.net import ASK_TIMEOUT_S, ask
from common.settings import ROOT
from servers import private_ray, processes

NOT_ASKED = "not asked: RAY_ADDRESS is empty, rollouts are rehearsed on this machine"
GCS_PORT = re.compile(r"\S*gcs_server\s.*--gcs_server_port=(\d+)")
PIN = re.compile(r"^ray(?:\[\S+\])?==([\d.]+)", re.MULTILINE)


def _plan(case, *looks):
    """A plan of train_checks after the named looks."""
    from training.plan import Plan

    plan = Plan(case.settings)
    plan.look(*(getattr(plan, look) for look in looks))
    return plan


def _verdict(plan, otherwise):
    return [failed(fault) for fault in plan.faults] or ok(otherwise)


def checkout(case):
    """The trainer's checkout is there, and no variable is set that would mislead its entrypoint."""
    if not case.trains:
        return ok(NOT_ASKED)
    plan = _plan(case, "environment", "checkout")
    return _verdict(plan, " ".join(line.strip() for line in plan.lines))


def budgets(case):
    """The inequalities between lengths, batches and times, for the rows that are there."""
    if not case.trains:
        return ok(NOT_ASKED)
    plan = _plan(case, "rows", "budgets")
    cured = [
        fault if "; " in fault else f"{fault}; set it so in {case.settings.TRAIN_ARGUMENTS} or .env"
        for fault in plan.faults
    ]
    said = [line.strip() for line in plan.lines if line.strip().startswith(("rollouts", "tokens"))]
    return [failed(fault) for fault in cured] or ok("; ".join(said))


def gateways(case):
    """Every Gateway is ready, and all have the same environment."""
    if not case.trains:
        return ok(NOT_ASKED)
    if case.stage == "smoke" and case.gym_is_here and not case.gateway.status:
        return ok("not running; make smoke starts it")
    plan = _plan(case, "services")
    return _verdict(plan, f"{len(plan.gateways)} ready, one environment")


def cluster(case):
    """The cluster's dashboard answers, its GPUs suffice, and nothing runs that the entrypoint would stop."""
    if not case.settings.RAY_ADDRESS:
        if case.stage == "train":
            return fail("RAY_ADDRESS is empty", "set it to the cluster's <head>:6379, or make ray-up starts one here")
        return ok(NOT_ASKED)
    plan = _plan(case, "rows", "budgets")
    plan.faults.clear()  # they are another check's
    plan.look(lambda: plan.cluster(ASK_TIMEOUT_S, 0))
    said = [line.strip() for line in plan.lines if line.strip().startswith(("cluster", "GPUs"))]
    return [
        failed(fault if "; " in fault else f"{fault}; set RAY_ADDRESS and RAY_DASHBOARD_ADDRESS")
        for fault in plan.faults
    ] or ok("; ".join(said))


def ray_version(case):
    """The cluster's Ray by its dashboard, against ours; whoever answers must be a dashboard."""
    if not case.settings.RAY_ADDRESS:
        return ok(NOT_ASKED)
    from cluster import nodes as ray_cluster

    url = f"{ray_cluster.dashboard_url(case.settings)}/api/version"
    answer = ask(url)
    told = answer.json()
    if not isinstance(told, dict) or not told.get("ray_version"):
        return fail(
            f"{url} {answer.told()}, not a dashboard's", "correct RAY_ADDRESS, RAY_DASHBOARD_ADDRESS or the proxy"
        )
    theirs, ours = str(told["ray_version"]), own_ray()
    if theirs.split(".")[:2] != ours.split(".")[:2]:
        return warn(
            f"the cluster has Ray {theirs}, here is {ours}", "run make train with the trainer's image's python3"
        )
    return ok(f"the cluster has Ray {theirs}, here is {ours}")


def own_ray():
    """The version of the Ray that is installed for this Python, else the locked one."""
    try:
        return metadata.version("ray")
    except metadata.PackageNotFoundError:
        return PIN.search((ROOT / "scripts" / "requirements.txt").read_text(encoding="utf-8"))[1]


def second_ray(case):
    """No two Rays on one port, and the trainer's is not the Gym's own, which its entrypoint would clear."""
    s, found = case.settings, []
    host, port = ray_head(s)
    own = {private_ray.PrivateRay(s, role).port for role in ("gym", "rehearsal")}
    if host and port in own and net.is_here(host):
        found.append(
            fail(
                f"RAY_ADDRESS={without_user(s.RAY_ADDRESS)} is this clone's private Ray",
                "set it to the trainer's, or unset it",
            )
        )
    heads = gcs_ports()
    for port, pids in heads.items():
        if len(pids) > 1:
            found.append(
                fail(f"{len(pids)} Rays have port {port}: processes {', '.join(map(str, pids))}", "end all but one")
            )
    return found or ok(f"{len(heads)} Ray heads on this machine, each with a port of its own")


def gcs_ports():
    """{port: [pids]} of the Ray heads that share our network."""
    found, own = {}, _network("self")
    for process in processes.processes():
        if (told := GCS_PORT.match(process.command)) and _network(process.pid) == own:
            found.setdefault(int(told[1]), []).append(process.pid)
    return found


def _network(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def container_host(case, devices=Path("/dev")):
    """What `make ray-up` asks of this machine, and GPUs as far as the driver's files tell."""
    if case.stage != "ray-up":
        return ok("asked for make ray-up alone")
    from training import container
    from training import container as training_container

    running = training_container.existing(training_container.engine())
    if not (running and running.status == "running"):
        training_container.check(case.settings)
    count = len(list(devices.glob("nvidia[0-9]*")))
    if count < container.GPUS:
        return fail(f"{count} NVIDIA GPUs here, {container.GPUS} are asked for", "take a machine with that many")
    return ok(f"{count} NVIDIA GPUs, {'the container runs' if running else 'ports free'}")
