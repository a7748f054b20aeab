"""The faults of the matrix: what is done to the running graph, for how long, and how it is undone.

Guarantees:
- processes, signals and the full disk are real; only the clock is moved inside the servers' Python
- a fault without a `lift` is undone by our own supervisor; all others are undone as their owner would
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from proofs import observed_server
from proofs.fault_load import Client, Load, Policy
from proofs.rig import Graph, run_script
from servers import processes

STOPPED_S = 30
SHORT_S = 5
# Size of the small disk (in memory) that holds RUN_DIR; a start of the graph asks for 0.2 GB of it.
DISK_MB = 512
SPARE_DESCRIPTORS = 4


class Site:
    """What a fault may touch: the graph, its policy endpoint, the clients, the observers' folder.

    It also keeps what the fault needs to undo itself.
    """

    stopped: int
    bound: tuple[int, tuple[int, int]]
    killed: list[Client]

    def __init__(self, graph: Graph, policy: Policy, load: Load, observed: Path | None):
        self.graph, self.policy, self.load, self.observed = graph, policy, load, observed

    def pid(self, name: str) -> int:
        """The process of a server, of Ray's head, of the supervisor or of the policy endpoint."""
        if name == "policy":
            assert self.policy.process
            return self.policy.process.pid
        words = {"ray": "gcs_server", "raylet": "raylet/raylet", "supervisor": processes.SUPERVISOR}
        if name not in words:
            return self.graph.pid(name)
        pids = [p.pid for p in processes.ours(self.graph.settings, "gym") if words[name] in p.command.split(" --")[0]]
        assert pids, f"no process of {name}"
        return pids[0]


@dataclass(frozen=True)
class Fault:
    """One line of the matrix; with `lasts_s` None it lasts until the trials have ended."""

    name: str
    what: str
    inject: Callable[[Site], None]
    lift: Callable[[Site], None] = lambda site: None
    lasts_s: float | None = 0
    deadline_s: int = 120
    needs_small_disk: bool = False


def kill(name: str) -> Callable[[Site], None]:
    return lambda site: os.kill(site.pid(name), signal.SIGKILL)


def stop(name: str) -> Callable[[Site], None]:
    def inject(site: Site) -> None:
        site.stopped = site.pid(name)
        os.kill(site.stopped, signal.SIGSTOP)

    return inject


def go_on(site: Site) -> None:
    # By now the supervisor may have ended the server, which did not answer.
    with contextlib.suppress(ProcessLookupError):
        os.kill(site.stopped, signal.SIGCONT)


def kill_clients(site: Site) -> None:
    site.killed = list(filter(Client.runs, site.load.clients))
    for client in site.killed:
        client.kill()


def start_every_other_again(site: Site) -> None:
    for client in site.killed[1::2]:
        client.start()
    for client in site.killed[::2]:
        client.killed = True


def start_graph_again(site: Site) -> None:
    result = run_script("gym_up.py", site.graph.env)
    assert result.returncode == 0, result.stderr


def tell(mode: str) -> Callable[[Site], None]:
    return lambda site: site.policy.tell(mode)


def fill_disk(site: Site) -> None:
    assert site.graph.run_dir.is_mount(), "only a small disk of our own is filled"
    with contextlib.suppress(OSError), open(site.graph.run_dir / "filler", "wb", buffering=0) as filler:
        while True:
            filler.write(b"\0" * 4096)


def bound_descriptors(site: Site) -> None:
    pid = site.pid("gateway")
    site.bound = pid, resource.prlimit(pid, resource.RLIMIT_NOFILE)
    allowed = len(os.listdir(f"/proc/{pid}/fd")) + SPARE_DESCRIPTORS
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (allowed, site.bound[1][1]))


def free_descriptors(site: Site) -> None:
    # By now the supervisor may have replaced the Gateway, and the new one has the old limit.
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(site.bound[0], resource.RLIMIT_NOFILE, site.bound[1])


def move_clock(seconds: float) -> Callable[[Site], None]:
    def move(site: Site) -> None:
        assert site.observed, "only a graph of observed servers has a clock to move"
        observed_server.set_clock(site.observed, seconds)

    return move


def mount_small_disk(path: Path) -> bool:
    """Put a small disk at `path`: whether that worked."""
    path.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=700", "faults", str(path)]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0


def unmount(path: Path) -> None:
    subprocess.run(["umount", "--lazy", str(path)], capture_output=True)


SERVERS = {
    "agent": "the agent",
    "resource": "the resource server",
    "gateway": "the Gateway",
    "head": "the head server",
    "ray": "NeMo Gym's Ray head (GCS)",
}


STOPPABLE = {**SERVERS, "policy": "the policy endpoint", "supervisor": "the supervisor"}
# {mode: what the policy endpoint does, seconds that a trial may take}
ANSWERS = {
    "500": ("answers 500 for ever", 120),
    "cut": ("closes in the middle of an answer", 120),
    "garbage": ("sends garbage", 120),
    "schema": ("answers in a wrong schema", 120),
    "error": ("answers 200 with an error", 120),
    "large": ("answers with 50 MB", 120),
    "hang": ("hangs", 20),
    "drip": ("sends one byte a second", 20),
}
ALL = (
    *(Fault(f"kill-{name}", f"kill -9 of {what}", kill(name)) for name, what in SERVERS.items()),
    Fault("kill-raylet", "kill -9 of Ray's node (raylet)", kill("raylet")),
    Fault(
        "kill-clients", "kill -9 of the session clients, every other one launched again",
        kill_clients, start_every_other_again, 1,
    ),
    Fault(
        "kill-policy", f"kill -9 of the policy endpoint, back after {SHORT_S} s",
        lambda site: site.policy.end(), lambda site: site.policy.start(), SHORT_S,
    ),
    Fault(
        "kill-supervisor", f"kill -9 of the supervisor, `make gym-up` after {SHORT_S} s",
        kill("supervisor"), start_graph_again, SHORT_S,
    ),
    *(
        Fault(f"stop-{name}", f"SIGSTOP of {what} for {STOPPED_S} s", stop(name), go_on, STOPPED_S)
        for name, what in STOPPABLE.items()
    ),
    *(
        Fault(f"policy-{mode}", f"the policy endpoint {what}", tell(mode), tell("good"), None, deadline_s)
        for mode, (what, deadline_s) in ANSWERS.items()
    ),
    Fault(
        "disk-full", "the disk under the trial store is full for 15 s (ENOSPC)",
        fill_disk, lambda site: (site.graph.run_dir / "filler").unlink(), 15, needs_small_disk=True,
    ),
    Fault(
        "descriptors", f"the Gateway may open {SPARE_DESCRIPTORS} descriptors more, for 15 s",
        bound_descriptors, free_descriptors, 15,
    ),
    Fault("clock-forward", "the servers' wall clock jumps 2 h forward", move_clock(7200), move_clock(0), None),
    Fault("clock-back", "the servers' wall clock jumps 2 h back", move_clock(-7200), move_clock(0), None),
)  # fmt: skip
FAULTS = {fault.name: fault for fault in ALL}
