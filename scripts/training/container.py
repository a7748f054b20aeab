"""The trainer's container on this machine, `relax-train`: how to start it, and how to run within it.

Only builds the orders; ray_up.py gives them to the engine. The container is known by its name and
our label; a container of that name without the label is somebody else's.
"""

import shutil
import socket
import subprocess

from docker.errors import ImageNotFound, NotFound
from docker.types import DeviceRequest

from cluster import nodes
from common import failure
from common.failure import Failure
from common.settings import ROOT
from servers import container as docker_backend

NO_GPUS = "could not select device driver"

NAME = "relax-train"
LABEL = "workplace-assistant.trainer"
GPUS = 8
SHM = "128g"
RAY_PORT = 6379


def mounts(settings):
    """Folders the container sees, at the paths they have here: every node must see the same paths."""
    wanted = (ROOT, settings.RELAX_ROOT, settings.DATA_ROOT, settings.MODEL_DIR, settings.EXP_DIR, settings.RUN_DIR)
    folders = sorted({str(path.resolve()) for path in wanted})
    within = [path for path in folders if any(path.startswith(other + "/") for other in folders)]
    return {path: {"bind": path, "mode": "rw"} for path in folders if path not in within}


def creation(settings, device_request):
    """Arguments for the engine's `containers.create`: host network, all GPUs, 128 GB of shared memory."""
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


def ray_start(settings):
    """The command that starts Ray's head within the container, its dashboard on RELAX_HOST alone."""
    options = {
        "node-ip-address": settings.RELAX_HOST,
        "port": RAY_PORT,
        "dashboard-host": settings.RELAX_HOST,
        "dashboard-port": nodes.DASHBOARD_PORT,
        "num-gpus": GPUS,
    }
    return [
        "ray",
        "start",
        "--head",
        *(f"--{name}={value}" for name, value in options.items()),
        "--disable-usage-stats",
    ]


def is_ours(settings):
    """Whether RAY_ADDRESS is the Ray of our container, and the container runs."""
    own = f"{settings.RELAX_HOST}:{RAY_PORT}"
    if not settings.RELAX_HOST or own != settings.RAY_ADDRESS or not shutil.which("docker"):
        return False
    wanted = ["docker", "ps", "-q", "-f", f"name=^{NAME}$", "-f", f"label={LABEL}"]
    return bool(subprocess.run(wanted, capture_output=True, text=True).stdout.strip())


def inside(settings, command, environment):
    """`command` as it is, or within our container if RAY_ADDRESS is its Ray; values of variables stay out of it."""
    if not is_ours(settings):
        return command
    names = [name for name in [*settings.texts] if name in environment]
    given = [word for name in names for word in ("-e", name)]
    # The container's own Python with Ray submits; ours may not even start there.
    return ["docker", "exec", "-i", *given, "-e", "SUBMIT_PYTHON=python3", "-w", str(ROOT), NAME, *command]


def check(settings):
    """Refuse what would start a second Ray, or one nobody could reach."""
    own = f"{settings.RELAX_HOST}:{RAY_PORT}"
    if settings.RAY_ADDRESS not in (None, own):
        named = failure.without_user(settings.RAY_ADDRESS)
        raise Failure(f"RAY_ADDRESS={named} names a Ray that runs already; unset it to start one here")
    if not settings.RELAX_HOST or settings.RELAX_HOST in nodes.LOOPBACK:
        raise Failure(
            "RELAX_HOST is empty or loopback; set it to this machine's address that the Gym's machine reaches"
        )
    for port in (RAY_PORT, nodes.DASHBOARD_PORT):
        with socket.socket() as probe:
            probe.settimeout(2)
            if probe.connect_ex((settings.RELAX_HOST, port)) == 0:
                raise Failure(f"{settings.RELAX_HOST}:{port} is taken; is that a platform's Ray? Then set RAY_ADDRESS")


def _short(error):
    """The engine's own words, without the address they came from."""
    return " ".join(str(getattr(error, "explanation", None) or error).split())[:200]


def existing(client):
    """Our container, or None. Raises Failure if the name is somebody else's."""
    try:
        found = client.containers.get(NAME)
    except NotFound:
        return None
    if LABEL not in found.labels:
        raise Failure(f"container {NAME} was not made by this repository; rename it, or remove it")
    return found


def start(client, settings):
    """Start the container and Ray in it; nothing is left of it where that fails."""
    gpus = DeviceRequest(count=-1, capabilities=[["gpu"]])
    try:
        client.images.get(settings.RELAX_IMAGE)
        container = client.containers.create(**creation(settings, gpus))
    except ImageNotFound:
        raise Failure(f"{settings.RELAX_IMAGE} is not here; docker pull {settings.RELAX_IMAGE}") from None
    try:
        container.start()
        status, output = container.exec_run(ray_start(settings))
        if status:
            raise Failure(f"Ray did not start in the container: {output.decode(errors='replace').strip()[-500:]}")
    except BaseException:
        container.remove(force=True)
        raise


def engine():
    """A client of the Docker engine. Raises Failure."""
    return docker_backend.connect(", or use a platform's Ray: set RAY_ADDRESS")
