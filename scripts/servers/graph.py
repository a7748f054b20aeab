"""The environment's running servers as one thing: which backend runs them, whether the running ones are stale,
and how they are started, waited for and ended.

Guarantees:
- A running graph of this clone is kept if its variables, patches and code are still the same.
- A stale one is replaced, whichever backend runs it.
- A start that fails is undone.
- Nothing else is touched.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import files, net, program
from common.failure import Failure
from common.settings import ROOT, Settings, names_of, read_token
from servers import container, ports, private_ray, processes
from servers.tree import PATCHES, hash_files

if TYPE_CHECKING:
    from common.terminal import Stage

# What the servers read. A change of any but the start's patience makes a running graph stale.
GRAPH_VARIABLES = ["RUN_DIR", *names_of("Graph", "Gateway")]
NEEDS_NO_START = "GYM_START_TIMEOUT_S"
# The rooms that the graph's processes import.
GRAPH_ROOMS = ("common", "pages", "policy", "inputs", "servers", "gateway")
# Files of these rooms that no running graph depends on.
NO_CODE = (".pyc", ".md")
# From GYM_BASE_PORT on, as env.example says.
PORTS_TAKEN = 200
# A start keeps both cores busy for half a minute; polling more often would slow it down.
POLL_S = 0.5
SUPERVISOR_GRACE_S = 30


# --- what makes a running graph stale: its fingerprint -------------------------------------


def graph_code() -> str:
    """Hash of the code, pages, packages and patches that a graph is started from."""
    scripts = ROOT / "scripts"
    code = [path for room in GRAPH_ROOMS for path in (scripts / room).rglob("*.*") if path.suffix not in NO_CODE]
    parts = [hash_files(ROOT, [*code, scripts / "requirements.txt"]), hash_files(PATCHES, PATCHES.glob("*.patch"))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def graph_variables(settings: Settings) -> dict[str, str]:
    """{name: text} of what the servers read; the number of pairs is decided here, once for all of them."""
    return {name: settings.texts[name] for name in GRAPH_VARIABLES} | {"GYM_REPLICAS": str(settings.replicas)}


def graph_fingerprint(settings: Settings) -> str:
    """Hash of what a running graph depends on: its variables, its code, the patches. Raises Failure."""
    texts = graph_variables(settings) | {"GATEWAY_TOKEN": read_token(settings) or ""}
    values = json.dumps([text for name, text in texts.items() if name != NEEDS_NO_START])
    return hashlib.sha256(f"{values}\0{graph_code()}".encode()).hexdigest()[:16]


def is_running(graph: Graph, fingerprint: str) -> bool:
    """Whether our graph of this fingerprint is up and ready."""
    if not graph.runs(fingerprint):
        return False
    ready, state = readiness(graph.settings)
    return ready and state.get("config_fingerprint") == fingerprint


# --- which backend runs it -----------------------------------------------------------------


def choose_backend(settings: Settings) -> tuple[Graph, str]:
    """The graph to start, and the reason for the choice. Raises Failure if GYM_BACKEND=docker cannot be had."""
    if settings.GYM_BACKEND == "local":
        return LocalGraph(settings), "GYM_BACKEND=local"
    try:
        client = container.connect(", or set GYM_BACKEND=local")
        image = container.find_image(client, settings, graph_code())
    except Failure as failure:
        if settings.GYM_BACKEND == "docker":
            raise
        return LocalGraph(settings), f"GYM_BACKEND=auto: {str(failure).partition(';')[0]}"
    why = "GYM_BACKEND=docker" if settings.GYM_BACKEND == "docker" else "GYM_BACKEND=auto: engine and image are there"
    return container.DockerGraph(client, settings, image, graph_variables(settings), check_ports), why


class LocalGraph:
    """The graph as processes of this machine; container.DockerGraph is the same in a container."""

    name = "local"
    supervisor: subprocess.Popen[bytes]  # set by `start`

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def runs(self, fingerprint: str) -> bool:
        """Whether a supervised graph of ours runs; only its Gateway can tell its fingerprint."""
        return any(map(processes.is_supervisor, processes.ours(self.settings, "gym")))

    def check(self) -> None:
        """Raise Failure if it cannot be started."""
        check_ports(self.settings)

    def start(self, fingerprint: str) -> None:
        """Start the supervisor in the background."""
        environment = processes.environment(self.settings, "gym") | self.settings.texts | graph_variables(self.settings)
        environment["WORKPLACE_FINGERPRINT"] = fingerprint
        command = program.room(processes.SUPERVISOR)
        self.supervisor = processes.spawn(command, _supervisor_log(self.settings), environment, ROOT)

    def died(self) -> bool:
        return self.supervisor.poll() is not None

    def last_words(self) -> str:
        return _end_of(_supervisor_log(self.settings))

    def check_loopback(self) -> None:
        check_loopback(self.settings)

    def settle(self) -> None:
        """Nothing to do: nobody restarts the supervisor."""


if TYPE_CHECKING:
    Graph = LocalGraph | container.DockerGraph


# --- its ports -----------------------------------------------------------------------------


def refuse_overlap(settings: Settings) -> None:
    """Raise Failure if the Gym's Ray has one of the ports counted from GYM_BASE_PORT."""
    base = settings.GYM_BASE_PORT
    if base <= settings.GYM_RAY_PORT < base + PORTS_TAKEN:
        raise Failure(
            f"GYM_RAY_PORT={settings.GYM_RAY_PORT} lies in the {PORTS_TAKEN} ports from GYM_BASE_PORT={base} that are "
            "the graph's own; choose another GYM_RAY_PORT"
        )


def graph_ports(settings: Settings) -> list[tuple[list[int], str, str]]:
    """What the graph binds: [(ports, variable they follow from, address)]."""
    ray = private_ray.PrivateRay(settings, "gym")
    return [
        (list(settings.servers().values()), "GYM_BASE_PORT", "127.0.0.1"),
        ([settings.port("gateway")], "GYM_BASE_PORT", settings.GYM_BIND_HOST),
        ([ray.port], "GYM_RAY_PORT", "127.0.0.1"),
        ([port for port in ray.ports() if port != ray.port], "GYM_BASE_PORT", "127.0.0.1"),
    ]


def check_ports(settings: Settings) -> None:
    """Raise Failure for a port of the graph that cannot be bound on its address."""
    refuse_overlap(settings)
    for numbers, variable, host in graph_ports(settings):
        ports.check_ports(numbers, variable, host)


def check_loopback(settings: Settings) -> None:
    """Raise Failure if a server other than the Gateway listens beyond loopback."""
    exposed = ports.beyond_loopback(processes.ours(settings, "gym"), allowed={settings.port("gateway")})
    if exposed:
        raise Failure(f"a server of the graph listens on {exposed[0][0]}:{exposed[0][1]}; only the Gateway may")


# --- start ---------------------------------------------------------------------------------


@contextmanager
def only_start(settings: Settings, current: Stage) -> Iterator[None]:
    """Hold the right to start a graph in this RUN_DIR; a second start waits and then finds the first's graph."""
    settings.RUN_DIR.mkdir(parents=True, exist_ok=True)
    with open(settings.RUN_DIR / "starting.lock", "w") as lock:
        current.detail("waiting for another start in this RUN_DIR")
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def replace_graph(graph: Graph, fingerprint: str, current: Stage) -> str:
    """End the running graph, if any, start `graph` and wait for it. Returns how it went, for the stage's line."""
    replaced = end_graph(graph.settings)
    graph.check()
    for log in _logs(graph.settings):
        log.replace(log.with_suffix(".log.1"))
    try:
        graph.start(fingerprint)
        wait_until_ready(graph, current)
        graph.check_loopback()
        graph.settle()
    except BaseException:
        end_graph(graph.settings)
        raise
    return "started in place of one with other variables or code" if replaced else "started"


# --- wait ----------------------------------------------------------------------------------


def readiness(settings: Settings) -> tuple[bool, dict[str, Any]]:
    """(ready, the Gateway's state as a dict, {} if nobody answers)."""
    # With HOST_REPO_DIR the engine is another machine, with another address.
    url = settings.gateway_url if settings.HOST_REPO_DIR else settings.local_url("gateway")
    return net.readyz(url, timeout=2)


def wait_until_ready(graph: Graph, current: Stage) -> None:
    """Wait for every pair and the head server. Raises Failure with the end of the log that tells why."""
    settings = graph.settings
    deadline = time.monotonic() + settings.GYM_START_TIMEOUT_S
    while True:
        ready, state = readiness(settings)
        waiting = [name for name, server in state.get("servers", {}).items() if not server["up"]]
        if ready and not waiting and (settings.HOST_REPO_DIR or _head_answers(settings)):
            return
        if graph.died() or time.monotonic() > deadline:
            raise Failure(f"the graph did not get ready; {_why_not(graph)}")
        current.detail(f"waiting for {', '.join(waiting) if state else 'Ray and the Gateway'}")
        time.sleep(POLL_S)


def _head_answers(settings: Settings) -> bool:
    return net.ask(f"{settings.local_url('head')}/server_instances", timeout=2).status == 200


def _why_not(graph: Graph) -> str:
    """The end of the log that most likely tells: of the part that logged an error last, else the backend's own."""
    supervisors = _supervisor_log(graph.settings)
    parts = [log for log in _logs(graph.settings) if log != supervisors]
    with_errors = [log for log in parts if b"Error" in log.read_bytes()[-20000:]]
    return _end_of(max(with_errors, key=lambda log: log.stat().st_mtime)) if with_errors else graph.last_words()


def _end_of(log: Path) -> str:
    return f"the end of {log}:\n{files.tail(log)}"


def _logs(settings: Settings) -> list[Path]:
    """Logs of the graph's own parts; those of jobs and of the rehearsal's Ray lie beside them."""
    names = ("supervisor", "ray-gym", "head_server", "policy_model", "workplace_assistant*")
    return [log for name in names for log in sorted((settings.RUN_DIR / "logs").glob(f"{name}.log"))]


def _supervisor_log(settings: Settings) -> Path:
    return settings.RUN_DIR / "logs" / "supervisor.log"


# --- end -----------------------------------------------------------------------------------


def end_graph(settings: Settings) -> int:
    """End the graph of this RUN_DIR. Returns the number of its processes and containers."""
    return container.end_containers(settings) + _end_processes(settings)


def _end_processes(settings: Settings) -> int:
    running = processes.ours(settings, "gym")
    for process in filter(processes.is_supervisor, running):
        # The supervisor ends the Gateway first, which cleans up after its trials.
        os.kill(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + SUPERVISOR_GRACE_S
        while process.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
    private_ray.PrivateRay(settings, "gym").stop()
    return len(running)
