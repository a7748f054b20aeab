#!/usr/bin/env python3
"""Start the environment's servers on this machine and wait until they are ready.

A graph of this clone that runs with the same variables, patches and code is kept; one that does
not match is replaced; nothing else is touched. Takes 25 to 60 s on two cores, a second when the
graph runs already. The servers stay up: end them with `make gym-down` or `make stop`.

  scripts/gym_up.py
  scripts/gym_up.py --gym-base-port 31000 --gym-ray-port 31090 --run-dir data/run2
"""

import hashlib
import json
import sys
import time

import local
from apply_patches import PATCHES, hash_files
from gym_down import end_graph
from settings import PORT_OFFSETS, ROOT, from_command_line
from terminal import Failure, run, say, stage

# What the servers read; another value of one needs another start.
GRAPH_VARIABLES = (
    "RUN_DIR", "GYM_BIND_HOST", "GYM_BASE_PORT", "GYM_RAY_PORT", "WORKPLACE_ASSISTANT_MAX_CONCURRENCY",
    "NEMO_GYM_CALLBACK_ALLOWED_NETWORKS", "GYM_SESSION_MAX_AGE_S", "GATEWAY_QUEUE_LIMIT", "GATEWAY_TOKEN",
    "GATEWAY_RETENTION_S", "GATEWAY_MAX_BODY_BYTES", "GATEWAY_MAX_ANSWER_BYTES", "GATEWAY_MAX_CALLS_PER_ANSWER",
    "GATEWAY_MODEL_TRIES", "GATEWAY_MODEL_BACKOFF_S", "GATEWAY_CLEANUP_TIMEOUT_S",
)  # fmt: skip
# A start takes half a minute of both cores; looking more often would only slow it down.
POLL_S = 0.5
# From GYM_BASE_PORT on, as env.example has it.
PORTS_TAKEN = 200
GRAPH_CODE = ("gateway/*.py", "supervise.py", "local.py", "settings.py", "rows.py", "requirements.txt")


def graph_fingerprint(settings):
    """Hash of what a running graph depends on: its variables, its code, the patches."""
    files = [path for pattern in GRAPH_CODE for path in (ROOT / "scripts").glob(pattern)]
    values = json.dumps([settings.texts[name] for name in GRAPH_VARIABLES])
    parts = [values, hash_files(ROOT, files), hash_files(PATCHES, PATCHES.glob("*.patch"))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def readiness(settings):
    """(ready, the Gateway's state as a dict, {} where nobody answers)."""
    status, body = local.get(f"{settings.local_url('gateway')}/readyz", timeout=2)
    try:
        state = json.loads(body) if status else {}
    except ValueError:
        state = {}
    return status == 200 and isinstance(state, dict) and state.get("ready") is True, state


def is_running(settings, fingerprint):
    """Whether our graph of this fingerprint is up and ready."""
    if not local.ours(settings, "gym"):
        return False
    ready, state = readiness(settings)
    return ready and state.get("config_fingerprint") == fingerprint


def check_ports(settings):
    """Every port of the graph is free, on the address it will be bound to."""
    base = settings.GYM_BASE_PORT
    if base <= settings.GYM_RAY_PORT < base + PORTS_TAKEN:
        raise Failure(
            f"GYM_RAY_PORT={settings.GYM_RAY_PORT} lies in the {PORTS_TAKEN} ports from GYM_BASE_PORT={base} that are "
            "the graph's own; choose another GYM_RAY_PORT"
        )
    graph = [settings.port(name) for name in PORT_OFFSETS]
    local.check_ports(graph, "GYM_BASE_PORT")
    local.check_ports([settings.port("gateway")], "GYM_BASE_PORT", settings.GYM_BIND_HOST)
    ray = local.PrivateRay(settings, "gym")
    local.check_ports([ray.port], "GYM_RAY_PORT")
    local.check_ports([port for port in ray.ports() if port != ray.port], "GYM_BASE_PORT")


def start(settings, fingerprint):
    """Start the supervisor in the background. Returns its Popen."""
    for log in graph_logs(settings):
        log.replace(log.with_suffix(".log.1"))
    environment = local.environment(settings, "gym") | settings.texts | {"WORKPLACE_FINGERPRINT": fingerprint}
    command = [sys.executable, str(ROOT / "scripts" / "supervise.py")]
    return local.spawn(command, supervisor_log(settings), environment, ROOT)


def graph_logs(settings):
    """Logs of the graph's own parts; those of jobs and of the rehearsal's Ray lie beside them."""
    names = ("supervisor", "ray-gym", "policy_model", "workplace_assistant", "workplace_assistant_simple_agent")
    return [path for name in names if (path := settings.RUN_DIR / "logs" / f"{name}.log").exists()]


def supervisor_log(settings):
    return settings.RUN_DIR / "logs" / "supervisor.log"


def wait_until_ready(settings, supervisor, current):
    """Wait for /readyz and the head server. Raises Failure with the end of the log that tells why."""
    deadline = time.monotonic() + settings.GYM_START_TIMEOUT_S
    while True:
        ready, state = readiness(settings)
        if ready and local.get(f"{settings.local_url('head')}/server_instances", 2)[0] == 200:
            return
        if supervisor.poll() is not None or time.monotonic() > deadline:
            raise Failure(f"the graph did not get ready; {why_not(settings)}")
        waiting = [name for name, server in state.get("servers", {}).items() if not server["up"]]
        current.detail(f"waiting for {', '.join(waiting) if state else 'Ray and the Gateway'}")
        time.sleep(POLL_S)


def why_not(settings):
    """The end of the log that most likely tells: of the part that wrote last, the supervisor's otherwise."""
    logs = [path for path in graph_logs(settings) if path != supervisor_log(settings)]
    told = [path for path in logs if b"Error" in path.read_bytes()[-20000:]]
    log = max(told or [supervisor_log(settings)], key=lambda p: p.stat().st_mtime)
    return f"the end of {log}:\n{local.tail(log)}"


def check_loopback(settings):
    """Only the Gateway may listen beyond loopback."""
    exposed = local.beyond_loopback(local.ours(settings, "gym"), allowed={settings.port("gateway")})
    if exposed:
        raise Failure(f"a server of the graph listens on {exposed[0][0]}:{exposed[0][1]}; only the Gateway may")


def main():
    settings, _ = from_command_line(
        __doc__, "RUN_DIR", "GYM_BACKEND", "GYM_BIND_HOST", "GYM_BASE_PORT", "GYM_RAY_PORT", "GYM_START_TIMEOUT_S",
        "WORKPLACE_ASSISTANT_MAX_CONCURRENCY", "NEMO_GYM_CALLBACK_ALLOWED_NETWORKS",
    )  # fmt: skip
    fingerprint = graph_fingerprint(settings)
    with stage("graph") as current:
        kept = is_running(settings, fingerprint)
        if not kept:
            end_graph(settings)
            check_ports(settings)
            supervisor = start(settings, fingerprint)
            try:
                wait_until_ready(settings, supervisor, current)
                check_loopback(settings)
            except BaseException:
                end_graph(settings)
                raise
        current.note = "kept, its fingerprint matches" if kept else "started"
    say(f"Graph ready: {settings.gateway_url} backend=local fingerprint={fingerprint} logs={settings.RUN_DIR / 'logs'}")


if __name__ == "__main__":
    run(main)
