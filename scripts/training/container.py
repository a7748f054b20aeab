"""The trainer's container on this machine, `relax-train`: how to start it, and how to run within it.

Only builds the orders; ray_up.py gives them to the engine. The container is known by its name and
our label; a container of that name without the label is somebody else's.
"""

import shutil
import subprocess

from cluster import nodes
from common.settings import ROOT

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
