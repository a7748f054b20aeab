#!/usr/bin/env python3
"""Start the trainer's container `relax-train` on this machine, with 8 GPUs, and a Ray head in it: `make ray-up`.

For a GPU machine without a platform's Ray; if one runs, set RAY_ADDRESS and leave this out. The folders of
this clone and of the variables are mounted at the paths they have here. `make train` with
RAY_ADDRESS=RELAX_HOST:6379 then works within the container. Remove it with `docker rm -f relax-train`.

Guarantees: a container of that name that is not ours is left alone and named; ours is kept if it runs;
a start that fails leaves no container behind.

    make ray-up RELAX_HOST=10.0.0.5
"""

from docker.errors import DockerException

from checks import registry
from common import terminal
from common.failure import Failure
from common.settings import from_command_line
from training import container

OPTIONS = ("RELAX_HOST", "RELAX_IMAGE", "RELAX_ROOT", "RAY_ADDRESS")


def main() -> None:
    settings, _ = from_command_line(__doc__, *OPTIONS)
    registry.at_start("ray-up", settings)
    client = container.engine()
    try:
        ours = container.existing(client)
        if not (ours and ours.status == "running"):
            container.check(settings)
            if ours:
                ours.remove(force=True)
            with terminal.stage("trainer's container"):
                container.start(client, settings)
    except DockerException as error:
        cure = "; has this machine GPUs, and the NVIDIA container toolkit?" if container.NO_GPUS in str(error) else ""
        raise Failure(f"Docker: {container.short(error)}{cure}") from None
    terminal.say(f"Trainer's Ray ready: make train RAY_ADDRESS={settings.RELAX_HOST}:{container.RAY_PORT}")


if __name__ == "__main__":
    terminal.run(main)
