"""The environment's running servers as one thing: which backend runs them, whether they are the wanted
ones, how they are started, waited for and ended.

Guarantees: a graph of this clone that runs with the same variables, patches and code is kept; one that does
not match is replaced, whichever backend it has; a start that fails is undone; nothing else is touched.
"""

import fcntl
import hashlib
import json
import os
import signal
import time
from contextlib import contextmanager

from common import files as common_files
from common import net, program
from common.failure import Failure
from common.settings import ROOT, names_of, read_token
from servers import container, private_ray, processes
from servers import ports as server_ports
from servers.tree import PATCHES, hash_files

# What the servers read. Another value of one needs another start, but for how long a start may take.
GRAPH_VARIABLES = ["RUN_DIR", *names_of("Graph", "Gateway")]
NEEDS_NO_START = "GYM_START_TIMEOUT_S"
# A start takes half a minute of both cores; looking more often would only slow it down.
POLL_S = 0.5
# From GYM_BASE_PORT on, as env.example has it.
PORTS_TAKEN = 200
# The rooms that the graph's processes import.
GRAPH_ROOMS = ("common", "pages", "inputs", "servers", "gateway")
# Files of these rooms that no running graph depends on.
NO_CODE = (".pyc", ".md")

SUPERVISOR_GRACE_S = 30


def end_graph(settings):
    """End the graph of this RUN_DIR. Returns the number of processes and containers it had."""
    return container.end_containers(settings) + end_processes(settings)


def end_processes(settings):
    running = processes.ours(settings, "gym")
    for process in running:
        if processes.is_supervisor(process):
            os.kill(process.pid, signal.SIGTERM)
            wait_for(process)
    private_ray.PrivateRay(settings, "gym").stop()
    return len(running)


def wait_for(process):
    deadline = time.monotonic() + SUPERVISOR_GRACE_S
    while process.alive() and time.monotonic() < deadline:
        time.sleep(0.05)


def graph_code():
    """Hash of the code, pages, packages and patches that a running graph was started from."""
    scripts = ROOT / "scripts"
    files = [path for room in GRAPH_ROOMS for path in (scripts / room).rglob("*.*") if path.suffix not in NO_CODE]
    parts = [hash_files(ROOT, [*files, scripts / "requirements.txt"]), hash_files(PATCHES, PATCHES.glob("*.patch"))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def graph_variables(settings):
    """{name: text} of what the servers read; the number of pairs is decided here, once for all of them."""
    return {name: settings.texts[name] for name in GRAPH_VARIABLES} | {"GYM_REPLICAS": str(settings.replicas)}


def graph_fingerprint(settings):
    """Hash of what a running graph depends on: its variables, its code, the patches. Raises Failure."""
    texts = graph_variables(settings) | {"GATEWAY_TOKEN": read_token(settings) or ""}
    values = json.dumps([text for name, text in texts.items() if name != NEEDS_NO_START])
    return hashlib.sha256(f"{values}\0{graph_code()}".encode()).hexdigest()[:16]


def choose_backend(settings):
    """The graph to start, and why that one. Raises Failure where GYM_BACKEND=docker cannot be had."""
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
    """The graph as processes of this machine. docker_backend.DockerGraph is the same in a container."""

    name = "local"

    def __init__(self, settings):
        self.settings, self.supervisor = settings, None

    def runs(self, fingerprint):
        """Whether a graph of ours runs and is watched over; which one, only its Gateway can say."""
        return any(map(processes.is_supervisor, processes.ours(self.settings, "gym")))

    def check(self):
        """What must hold before a start. Raises Failure."""
        check_ports(self.settings)

    def start(self, fingerprint):
        """Start the supervisor in the background."""
        environment = processes.environment(self.settings, "gym") | self.settings.texts | graph_variables(self.settings)
        environment["WORKPLACE_FINGERPRINT"] = fingerprint
        command = program.room(processes.SUPERVISOR)
        self.supervisor = processes.spawn(command, supervisor_log(self.settings), environment, ROOT)

    def died(self):
        return self.supervisor.poll() is not None

    def last_words(self):
        log = supervisor_log(self.settings)
        return f"the end of {log}:\n{common_files.tail(log)}"

    def check_loopback(self):
        check_loopback(self.settings)

    def settle(self):
        """Nothing more to do: the supervisor has no one above it."""


def readiness(settings):
    """(ready, the Gateway's state as a dict, {} where nobody answers)."""
    return net.readyz(gateway_url(settings), timeout=2)


def gateway_url(settings):
    # With HOST_REPO_DIR the engine is another machine as far as addresses go, too.
    return settings.gateway_url if settings.HOST_REPO_DIR else settings.local_url("gateway")


def is_running(graph, fingerprint):
    """Whether our graph of this fingerprint is up and ready."""
    if not graph.runs(fingerprint):
        return False
    ready, state = readiness(graph.settings)
    return ready and state.get("config_fingerprint") == fingerprint


def refuse_overlap(settings):
    """Raise Failure where the Gym's Ray has one of the ports counted from GYM_BASE_PORT."""
    base = settings.GYM_BASE_PORT
    if base <= settings.GYM_RAY_PORT < base + PORTS_TAKEN:
        raise Failure(
            f"GYM_RAY_PORT={settings.GYM_RAY_PORT} lies in the {PORTS_TAKEN} ports from GYM_BASE_PORT={base} that are "
            "the graph's own; choose another GYM_RAY_PORT"
        )


def graph_ports(settings):
    """What the graph binds: [(ports, variable they follow from, address)]."""
    ray = private_ray.PrivateRay(settings, "gym")
    return [
        (list(settings.servers().values()), "GYM_BASE_PORT", "127.0.0.1"),
        ([settings.port("gateway")], "GYM_BASE_PORT", settings.GYM_BIND_HOST),
        ([ray.port], "GYM_RAY_PORT", "127.0.0.1"),
        ([port for port in ray.ports() if port != ray.port], "GYM_BASE_PORT", "127.0.0.1"),
    ]


def check_ports(settings):
    """Every port of the graph is free, on the address it will be bound to."""
    refuse_overlap(settings)
    for ports, variable, host in graph_ports(settings):
        server_ports.check_ports(ports, variable, host)


def put_logs_aside(settings):
    for log in graph_logs(settings):
        log.replace(log.with_suffix(".log.1"))


def graph_logs(settings):
    """Logs of the graph's own parts; those of jobs and of the rehearsal's Ray lie beside them."""
    names = ("supervisor", "ray-gym", "head_server", "policy_model", "workplace_assistant*")
    return [path for name in names for path in sorted((settings.RUN_DIR / "logs").glob(f"{name}.log"))]


def supervisor_log(settings):
    return settings.RUN_DIR / "logs" / "supervisor.log"


def wait_until_ready(graph, current):
    """Wait for every pair and the head server. Raises Failure with the end of the log that tells why."""
    settings = graph.settings
    deadline = time.monotonic() + settings.GYM_START_TIMEOUT_S
    while True:
        ready, state = readiness(settings)
        waiting = [name for name, server in state.get("servers", {}).items() if not server["up"]]
        if ready and not waiting and (settings.HOST_REPO_DIR or head_answers(settings)):
            return
        if graph.died() or time.monotonic() > deadline:
            raise Failure(f"the graph did not get ready; {why_not(graph)}")
        current.detail(f"waiting for {', '.join(waiting) if state else 'Ray and the Gateway'}")
        time.sleep(POLL_S)


def head_answers(settings):
    return net.ask(f"{settings.local_url('head')}/server_instances", timeout=2).status == 200


def why_not(graph):
    """The end of the log that most likely tells: of the part that wrote last, the supervisor's otherwise."""
    supervisors = supervisor_log(graph.settings)
    logs = [path for path in graph_logs(graph.settings) if path != supervisors]
    told = [path for path in logs if b"Error" in path.read_bytes()[-20000:]]
    if not told:
        return graph.last_words()
    log = max(told, key=lambda p: p.stat().st_mtime)
    return f"the end of {log}:\n{common_files.tail(log)}"


def check_loopback(settings):
    """Only the Gateway may listen beyond loopback."""
    exposed = server_ports.beyond_loopback(processes.ours(settings, "gym"), allowed={settings.port("gateway")})
    if exposed:
        raise Failure(f"a server of the graph listens on {exposed[0][0]}:{exposed[0][1]}; only the Gateway may")


@contextmanager
def only_start(settings, current):
    """Hold the right to start a graph in this RUN_DIR; a second start waits and then finds the first's graph."""
    settings.RUN_DIR.mkdir(parents=True, exist_ok=True)
    with open(settings.RUN_DIR / "starting.lock", "w") as lock:
        current.detail("waiting for another start in this RUN_DIR")
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def replace_graph(graph, fingerprint, current):
    """End what runs of ours, start `graph`, and wait for it; a start that fails is undone. Returns how it went."""
    replaced = end_graph(graph.settings)
    graph.check()
    put_logs_aside(graph.settings)
    try:
        graph.start(fingerprint)
        wait_until_ready(graph, current)
        graph.check_loopback()
        graph.settle()
    except BaseException:
        end_graph(graph.settings)
        raise
    return "started in place of one with other variables or code" if replaced else "started"
