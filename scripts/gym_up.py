#!/usr/bin/env python3
"""Start the environment's servers on this machine and wait until they are ready.

GYM_BACKEND says what runs them: a container, or local processes. A graph of this clone that runs
with the same variables, patches and code is kept; one that does not match is replaced, whichever
backend it has; nothing else is touched. Takes 25 to 60 s on two cores, a second when the graph
runs already. The servers stay up: end them with `make gym-down` or `make stop`. Until then a
container that fails is started again by the engine, five times at most; after a reboot it is not.

  scripts/run.sh gym_up
  scripts/run.sh gym_up --gym-backend local
  scripts/run.sh gym_up --gym-base-port 31000 --gym-ray-port 31090 --run-dir data/run2
"""

import fcntl
import hashlib
import json
import sys
import time
from contextlib import contextmanager

from apply_patches import PATCHES, hash_files
from common.settings import ROOT, from_command_line
from common.terminal import Failure, run, say, stage
from gateway.client import ClientError, read_token
from gym_down import end_graph
from servers import container, processes

# What the servers read; another value of one needs another start.
GRAPH_VARIABLES = (
    "RUN_DIR", "GYM_BIND_HOST", "GYM_BASE_PORT", "GYM_RAY_PORT", "GYM_REPLICAS",
    "WORKPLACE_ASSISTANT_MAX_CONCURRENCY", "NEMO_GYM_CALLBACK_ALLOWED_NETWORKS", "GYM_SESSION_MAX_AGE_S",
    "GATEWAY_QUEUE_LIMIT", "GATEWAY_TOKEN",
    "GATEWAY_RETENTION_S", "GATEWAY_MAX_BODY_BYTES", "GATEWAY_MAX_ANSWER_BYTES", "GATEWAY_MAX_CALLS_PER_ANSWER",
    "GATEWAY_MODEL_TRIES", "GATEWAY_MODEL_BACKOFF_S", "GATEWAY_CLEANUP_TIMEOUT_S",
)  # fmt: skip
# A start takes half a minute of both cores; looking more often would only slow it down.
POLL_S = 0.5
# From GYM_BASE_PORT on, as env.example has it.
PORTS_TAKEN = 200
GRAPH_CODE = (
    "gateway/*.py", "gateway_client.py", "supervise.py", "head_server.py", "local.py", "settings.py", "rows.py",
    "requirements.txt",
)  # fmt: skip


def graph_code():
    """Hash of the code and patches that a running graph was started from."""
    files = [path for pattern in GRAPH_CODE for path in (ROOT / "scripts").glob(pattern)]
    parts = [hash_files(ROOT, files), hash_files(PATCHES, PATCHES.glob("*.patch"))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def graph_variables(settings):
    """{name: text} of what the servers read; the number of pairs is decided here, once for all of them."""
    return {name: settings.texts[name] for name in GRAPH_VARIABLES} | {"GYM_REPLICAS": str(settings.replicas)}


def graph_fingerprint(settings):
    """Hash of what a running graph depends on: its variables, its code, the patches. Raises Failure."""
    try:
        texts = graph_variables(settings) | {"GATEWAY_TOKEN": read_token(settings) or ""}
    except ClientError as error:
        raise Failure(error) from None
    values = json.dumps(list(texts.values()))
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
        return any("supervise.py" in process.command for process in processes.ours(self.settings, "gym"))

    def check(self):
        """What must hold before a start. Raises Failure."""
        check_ports(self.settings)

    def start(self, fingerprint):
        """Start the supervisor in the background."""
        environment = processes.environment(self.settings, "gym") | self.settings.texts | graph_variables(self.settings)
        environment["WORKPLACE_FINGERPRINT"] = fingerprint
        command = [sys.executable, str(ROOT / "scripts" / "supervise.py")]
        self.supervisor = processes.spawn(command, supervisor_log(self.settings), environment, ROOT)

    def died(self):
        return self.supervisor.poll() is not None

    def last_words(self):
        log = supervisor_log(self.settings)
        return f"the end of {log}:\n{processes.tail(log)}"

    def check_loopback(self):
        check_loopback(self.settings)

    def settle(self):
        """Nothing more to do: the supervisor has no one above it."""


def readiness(settings):
    """(ready, the Gateway's state as a dict, {} where nobody answers)."""
    status, body = processes.get(f"{gateway_url(settings)}/readyz", timeout=2)
    try:
        state = json.loads(body) if status else {}
    except ValueError:
        state = {}
    return status == 200 and isinstance(state, dict) and state.get("ready") is True, state


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
    ray = processes.PrivateRay(settings, "gym")
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
        processes.check_ports(ports, variable, host)


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
    return processes.get(f"{settings.local_url('head')}/server_instances", 2)[0] == 200


def why_not(graph):
    """The end of the log that most likely tells: of the part that wrote last, the supervisor's otherwise."""
    supervisors = supervisor_log(graph.settings)
    logs = [path for path in graph_logs(graph.settings) if path != supervisors]
    told = [path for path in logs if b"Error" in path.read_bytes()[-20000:]]
    if not told:
        return graph.last_words()
    log = max(told, key=lambda p: p.stat().st_mtime)
    return f"the end of {log}:\n{processes.tail(log)}"


def check_loopback(settings):
    """Only the Gateway may listen beyond loopback."""
    exposed = processes.beyond_loopback(processes.ours(settings, "gym"), allowed={settings.port("gateway")})
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


def main():
    settings, _ = from_command_line(
        __doc__, "RUN_DIR", "GYM_BACKEND", "GYM_BIND_HOST", "GYM_BASE_PORT", "GYM_RAY_PORT", "GYM_REPLICAS",
        "GYM_START_TIMEOUT_S", "WORKPLACE_ASSISTANT_MAX_CONCURRENCY", "NEMO_GYM_CALLBACK_ALLOWED_NETWORKS",
        "NEMO_GYM_IMAGE", "GYM_CONTAINER",
    )  # fmt: skip
    # Imported here: the doctor knows every stage.
    import doctor

    doctor.at_start("gym-up", settings)
    fingerprint = graph_fingerprint(settings)
    graph, why = choose_backend(settings)
    say(f"Backend: {graph.name} ({why})")
    with stage("graph") as current, only_start(settings, current):
        if is_running(graph, fingerprint):
            current.note = "kept, its fingerprint matches"
        else:
            current.note = replace_graph(graph, fingerprint, current)
    say(
        f"Graph ready: {settings.gateway_url} backend={graph.name} fingerprint={fingerprint} "
        f"logs={settings.RUN_DIR / 'logs'}"
    )


if __name__ == "__main__":
    run(main)
