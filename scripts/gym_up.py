#!/usr/bin/env python3
"""Start the environment's servers on this machine and wait until they are ready.

GYM_BACKEND says what runs them: a container, or local processes. A graph of this clone that runs
with the same variables, patches and code is kept; one that does not match is replaced, whichever
backend it has; nothing else is touched. Takes 25 to 60 s on two cores, a second when the graph
runs already. The servers stay up: end them with `make gym-down` or `make stop`. Until then a
container that fails is started again by the engine, five times at most; after a reboot it is not.

    make gym-up
    make gym-up GYM_BACKEND=local
    scripts/run.sh gym_up --gym-base-port 31000 --gym-ray-port 31200 --run-dir data/run2
"""

from checks import registry
from common.settings import from_command_line
from common.terminal import run, say, stage
from servers.graph import choose_backend, graph_fingerprint, is_running, only_start, replace_graph


def main() -> None:
    settings, _ = from_command_line(
        __doc__, "RUN_DIR", "GYM_BACKEND", "GYM_BIND_HOST", "GYM_BASE_PORT", "GYM_RAY_PORT", "GYM_REPLICAS",
        "GYM_START_TIMEOUT_S", "WORKPLACE_ASSISTANT_MAX_CONCURRENCY", "NEMO_GYM_CALLBACK_ALLOWED_NETWORKS",
        "NEMO_GYM_IMAGE", "GYM_CONTAINER",
    )  # fmt: skip
    registry.at_start("gym-up", settings)
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
