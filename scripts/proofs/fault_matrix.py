"""The faults, one line each: what is done to the running graph, for how long, and by whom it is undone.

A fault is injected while trials run and others wait. What our own supervisor undoes has no `lift`;
the rest is undone from outside, as its owner would: the endpoint is started again, the disk gets room.
Real processes, real signals, a real full disk; only the clock is moved inside the servers' Python.
"""

import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from proofs import observed_server
from proofs.rig import run_script
from servers import processes

STOPPED_S = 30
SHORT_S = 5
# Room of the small disk (in memory) that RUN_DIR is put on; a start asks for 0.2 GB of it.
DISK_MB = 512
SPARE_DESCRIPTORS = 4
AN_HOUR_S = 3600


class Site:
    """What a fault may touch: the graph, its policy endpoint, the clients, and the folder of the observers."""

    def __init__(self, graph, policy, load, observed):
        self.graph, self.policy, self.load, self.observed = graph, policy, load, observed

    def pid(self, name):
        """Process of a server, of Ray's head, of the supervisor or of the policy endpoint."""
        if name == "policy":
            return self.policy.process.pid
        words = {"ray": "gcs_server", "raylet": "raylet/raylet", "supervisor": processes.SUPERVISOR}
        if name not in words:
            return self.graph.pid(name)
        found = [p.pid for p in processes.ours(self.graph.settings, "gym") if words[name] in p.command.split(" --")[0]]
        assert found, f"no process of {name}"
        return found[0]


@dataclass(frozen=True)
class Fault:
    """One line of the matrix. `lasts_s` None: until the trials have ended."""

    name: str
    what: str
    inject: Callable
    lift: Callable = lambda site: None
    lasts_s: float | None = 0
    deadline_s: int = 120
    needs_small_disk: bool = False


def kill(name):
    return lambda site: os.kill(site.pid(name), signal.SIGKILL)


def stop(name):
    def inject(site):
        site.stopped = site.pid(name)
        os.kill(site.stopped, signal.SIGSTOP)

    return inject


def go_on(site):
    # The supervisor may have ended a server that did not answer for so long.
    with contextlib.suppress(ProcessLookupError):
        os.kill(site.stopped, signal.SIGCONT)


def kill_policy(site):
    site.policy.process.kill()
    site.policy.process.wait()


def kill_clients(site):
    site.killed = [client for client in site.load.clients if client.process.poll() is None]
    for client in site.killed:
        client.process.kill()
        client.process.wait()


def start_every_other_again(site):
    for client in site.killed[1::2]:
        client.start()
    for client in site.killed[::2]:
        client.killed = True


def start_graph_again(site):
    result = run_script("gym_up.py", site.graph.env)
    assert result.returncode == 0, result.stderr


def tell(mode):
    return lambda site: site.policy.tell(mode)


def fill_disk(site):
    assert site.graph.run_dir.is_mount(), "only a small disk of our own is filled"
    with contextlib.suppress(OSError), open(site.graph.run_dir / "filler", "wb", buffering=0) as filler:
        while True:
            filler.write(b"\0" * 4096)


def free_disk(site):
    (site.graph.run_dir / "filler").unlink()


def bound_descriptors(site):
    pid = site.pid("gateway")
    site.bound = pid, resource.prlimit(pid, resource.RLIMIT_NOFILE)
    allowed = len(os.listdir(f"/proc/{pid}/fd")) + SPARE_DESCRIPTORS
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (allowed, site.bound[1][1]))


def free_descriptors(site):
    # A Gateway that did not answer may have been ended; the next one has the limit of old.
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(site.bound[0], resource.RLIMIT_NOFILE, site.bound[1])


def move_clock(seconds):
    return lambda site: observed_server.set_clock(site.observed, seconds)


def mount_small_disk(path):
    """Put a small disk at `path`. Returns whether it could be."""
    path.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=700", "faults", str(path)]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0


def unmount(path):
    subprocess.run(["umount", "--lazy", str(path)], capture_output=True)


SERVERS = {
    "agent": "the agent",
    "resource": "the resource server",
    "gateway": "the Gateway",
    "head": "the head server",
    "ray": "NeMo Gym's Ray head (GCS)",
}


def _kills():
    faults = [Fault(f"kill-{name}", f"kill -9 of {what}", kill(name)) for name, what in SERVERS.items()]
    return [
        *faults,
        Fault("kill-raylet", "kill -9 of Ray's node (raylet)", kill("raylet")),
        Fault(
            "kill-clients",
            "kill -9 of the session clients, every other one launched again",
            kill_clients,
            start_every_other_again,
            1,
        ),
        Fault(
            "kill-policy",
            f"kill -9 of the policy endpoint, back after {SHORT_S} s",
            kill_policy,
            lambda site: site.policy.start(),
            SHORT_S,
        ),
        Fault(
            "kill-supervisor",
            f"kill -9 of the supervisor, `make gym-up` after {SHORT_S} s",
            kill("supervisor"),
            start_graph_again,
            SHORT_S,
        ),
    ]


def _stops():
    named = {**SERVERS, "policy": "the policy endpoint", "supervisor": "the supervisor"}
    return [
        Fault(f"stop-{name}", f"SIGSTOP of {what} for {STOPPED_S} s", stop(name), go_on, STOPPED_S)
        for name, what in named.items()
    ]


def _answers():
    kinds = {
        "500": "answers 500 for ever",
        "cut": "closes in the middle of an answer",
        "garbage": "sends garbage",
        "schema": "answers in a wrong schema",
        "error": "answers 200 with an error",
        "large": "answers with 50 MB",
    }
    slow = {"hang": "hangs", "drip": "sends one byte a second"}
    return [
        Fault(f"policy-{mode}", f"the policy endpoint {what}", tell(mode), tell("good"), None, deadline)
        for deadline, group in ((120, kinds), (20, slow))
        for mode, what in group.items()
    ]


def _limits():
    return [
        Fault(
            "disk-full",
            "the disk under the trial store is full for 15 s (ENOSPC)",
            fill_disk,
            free_disk,
            15,
            needs_small_disk=True,
        ),
        Fault(
            "descriptors",
            f"the Gateway may open {SPARE_DESCRIPTORS} descriptors more, for 15 s",
            bound_descriptors,
            free_descriptors,
            15,
        ),
        Fault(
            "clock-forward", "the servers' wall clock jumps 2 h forward", move_clock(2 * AN_HOUR_S), move_clock(0), None
        ),
        Fault("clock-back", "the servers' wall clock jumps 2 h back", move_clock(-2 * AN_HOUR_S), move_clock(0), None),
    ]


FAULTS = {fault.name: fault for fault in [*_kills(), *_stops(), *_answers(), *_limits()]}
