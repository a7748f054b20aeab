#!/usr/bin/env python3
"""Start the trainer's container `relax-train` on this machine, with 8 GPUs, and a Ray head in it: `make ray-up`.

For a GPU machine without a platform's Ray; where one runs, set RAY_ADDRESS and leave this out. Guarantees:
a container of that name that is not ours is left alone and named; one of ours that runs is kept; a
start that fails leaves no container behind. The folders of this clone and of the variables are
mounted at the paths they have here. `make train` with RAY_ADDRESS=RELAX_HOST:6379 then works
within the container. Remove it with `docker rm -f relax-train`.

    make ray-up RELAX_HOST=10.0.0.5
"""

import socket

from docker.errors import DockerException, ImageNotFound, NotFound
from docker.types import DeviceRequest

from cluster import nodes
from common import settings as variables
from common import terminal
from common.terminal import Failure
from servers import container as docker_backend
from training import container as ray_container

NO_GPUS = "could not select device driver"
OPTIONS = ("RELAX_HOST", "RELAX_IMAGE", "RELAX_ROOT", "RAY_ADDRESS")


def check(settings):
    """Refuse what would start a second Ray, or one nobody could reach."""
    own = f"{settings.RELAX_HOST}:{ray_container.RAY_PORT}"
    if settings.RAY_ADDRESS not in (None, own):
        named = terminal.without_user(settings.RAY_ADDRESS)
        raise Failure(f"RAY_ADDRESS={named} names a Ray that runs already; unset it to start one here")
    if not settings.RELAX_HOST or settings.RELAX_HOST in nodes.LOOPBACK:
        raise Failure(
            "RELAX_HOST is empty or loopback; set it to this machine's address that the Gym's machine reaches"
        )
    for port in (ray_container.RAY_PORT, nodes.DASHBOARD_PORT):
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
        found = client.containers.get(ray_container.NAME)
    except NotFound:
        return None
    if ray_container.LABEL not in found.labels:
        raise Failure(f"container {ray_container.NAME} was not made by this repository; rename it, or remove it")
    return found


def start(client, settings):
    """Start the container and Ray in it; nothing is left of it where that fails."""
    gpus = DeviceRequest(count=-1, capabilities=[["gpu"]])
    try:
        client.images.get(settings.RELAX_IMAGE)
        container = client.containers.create(**ray_container.creation(settings, gpus))
    except ImageNotFound:
        raise Failure(f"{settings.RELAX_IMAGE} is not here; docker pull {settings.RELAX_IMAGE}") from None
    try:
        container.start()
        status, output = container.exec_run(ray_container.ray_start(settings))
        if status:
            raise Failure(f"Ray did not start in the container: {output.decode(errors='replace').strip()[-500:]}")
    except BaseException:
        container.remove(force=True)
        raise


def engine():
    """A client of the Docker engine. Raises Failure."""
    return docker_backend.connect(", or use a platform's Ray: set RAY_ADDRESS")


def main():
    settings, _ = variables.from_command_line(__doc__, *OPTIONS)
    # Imported here: the doctor knows every stage.
    import doctor

    doctor.at_start("ray-up", settings)
    client = engine()
    try:
        found = existing(client)
        if not (found and found.status == "running"):
            check(settings)
            if found:
                found.remove(force=True)
            with terminal.stage("trainer's container"):
                start(client, settings)
    except DockerException as error:
        cure = "; has this machine GPUs, and the NVIDIA container toolkit?" if NO_GPUS in str(error) else ""
        raise Failure(f"Docker: {_short(error)}{cure}") from None
    terminal.say(f"Trainer's Ray ready: make train RAY_ADDRESS={settings.RELAX_HOST}:{ray_container.RAY_PORT}")


if __name__ == "__main__":
    terminal.run(main)
