"""The trainer's container on this machine, `relax-train`: how to start it, and how to run a command in it.

Guarantees:
- the container is ours if it has its name and our label; one without the label is left alone
- a start that fails leaves no container behind
- no value of a variable stands in a command line
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from typing import Any

from docker.client import DockerClient
from docker.errors import ImageNotFound, NotFound
from docker.models.containers import Container
from docker.types import DeviceRequest

from cluster import nodes
from common.failure import Failure, without_user
from common.settings import ROOT, Settings
from servers.container import connect

NO_GPUS = "could not select device driver"
NAME = "relax-train"
LABEL = "workplace-assistant.trainer"
GPUS = 8
SHM = "128g"
RAY_PORT = 6379


def mounts(settings: Settings) -> dict[str, dict[str, str]]:
    """Folders of the container, at the paths they have here: every node must see the same paths."""
    wanted = (ROOT, settings.RELAX_ROOT, settings.DATA_ROOT, settings.MODEL_DIR, settings.EXP_DIR, settings.RUN_DIR)
    folders = sorted({str(path.resolve()) for path in wanted})
    within = [path for path in folders if any(path.startswith(other + "/") for other in folders)]
    return {path: {"bind": path, "mode": "rw"} for path in folders if path not in within}


def creation(settings: Settings, device_request: DeviceRequest) -> dict[str, Any]:
    """Arguments of the engine's `containers.create`: host network, all GPUs, 128 GB of shared memory."""
    return {
        "image": settings.RELAX_IMAGE,
        "command": ["bash"],
        "name": NAME,
        "labels": {LABEL: "1"},
        "tty": True,
        "stdin_open": True,
        "network_mode": "host",
        "shm_size": SHM,
        "device_requests": [device_request],
        "volumes": mounts(settings),
        "working_dir": str(ROOT),
    }


def ray_start(settings: Settings) -> list[str]:
    """The command that starts Ray's head in the container, with its dashboard on RELAX_HOST alone."""
    options = {
        "node-ip-address": settings.RELAX_HOST,
        "port": RAY_PORT,
        "dashboard-host": settings.RELAX_HOST,
        "dashboard-port": nodes.DASHBOARD_PORT,
        "num-gpus": GPUS,
    }
    flags = [f"--{name}={value}" for name, value in options.items()]
    return ["ray", "start", "--head", *flags, "--disable-usage-stats"]


def is_ours(settings: Settings) -> bool:
    """Whether RAY_ADDRESS is the Ray of our container, and the container runs."""
    own = f"{settings.RELAX_HOST}:{RAY_PORT}"
    if not settings.RELAX_HOST or own != settings.RAY_ADDRESS or not shutil.which("docker"):
        return False
    wanted = ["docker", "ps", "-q", "-f", f"name=^{NAME}$", "-f", f"label={LABEL}"]
    return bool(subprocess.run(wanted, capture_output=True, text=True).stdout.strip())


def inside(settings: Settings, command: list[str], environment: dict[str, str]) -> list[str]:
    """`command` as it is, or in our container if RAY_ADDRESS is its Ray."""
    if not is_ours(settings):
        return command
    given = [word for name in settings.texts if name in environment for word in ("-e", name)]
    # The container's own Python submits, because it has Ray; ours may not even start there.
    return ["docker", "exec", "-i", *given, "-e", "SUBMIT_PYTHON=python3", "-w", str(ROOT), NAME, *command]


def check(settings: Settings) -> None:
    """Refuse to start a second Ray, or one that nobody could reach. Raises Failure."""
    own = f"{settings.RELAX_HOST}:{RAY_PORT}"
    if settings.RAY_ADDRESS not in (None, own):
        shown = without_user(settings.RAY_ADDRESS)
        raise Failure(f"RAY_ADDRESS={shown} names a Ray that runs already; unset it to start one here")
    if not settings.RELAX_HOST or settings.RELAX_HOST in nodes.LOOPBACK:
        raise Failure(
            "RELAX_HOST is empty or loopback; set it to this machine's address that the Gym's machine reaches"
        )
    for port in (RAY_PORT, nodes.DASHBOARD_PORT):
        with socket.socket() as probe:
            probe.settimeout(2)
            if probe.connect_ex((settings.RELAX_HOST, port)) == 0:
                raise Failure(f"{settings.RELAX_HOST}:{port} is taken; is that a platform's Ray? Then set RAY_ADDRESS")


def short(error: Exception) -> str:
    """The engine's own words, without the address they came from."""
    return " ".join(str(getattr(error, "explanation", None) or error).split())[:200]


def existing(client: DockerClient) -> Container | None:
    """Our container, or None. Raises Failure if another container has its name."""
    try:
        container = client.containers.get(NAME)
    except NotFound:
        return None
    if LABEL not in container.labels:
        raise Failure(f"container {NAME} was not made by this repository; rename it, or remove it")
    return container


def start(client: DockerClient, settings: Settings) -> None:
    """Start the container, and Ray in it. Raises Failure."""
    gpus = DeviceRequest(count=-1, capabilities=[["gpu"]])
    try:
        client.images.get(settings.RELAX_IMAGE)
        container = client.containers.create(**creation(settings, gpus))
    except ImageNotFound:
        raise Failure(f"{settings.RELAX_IMAGE} is not here; docker pull {settings.RELAX_IMAGE}") from None
    try:
        container.start()
        status, output = container.exec_run(ray_start(settings))
        assert isinstance(output, bytes)
        if status:
            raise Failure(f"Ray did not start in the container: {output.decode(errors='replace').strip()[-500:]}")
    except BaseException:
        container.remove(force=True)
        raise


def engine() -> DockerClient:
    """A client of the Docker engine. Raises Failure."""
    return connect(", or use a platform's Ray: set RAY_ADDRESS")
