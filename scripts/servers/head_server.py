#!/usr/bin/env python3
"""NeMo Gym's launcher and head server, in a process of their own under the supervisor.

The launcher's start-up is as it is, but for one thing: the servers it wants are started by the
supervisor, so that they outlive this process. Each start is asked for in a file under
RUN_DIR/work/asked; an empty file `started` there says that all servers were seen to answer. Started
again after its death it finds them running, asks for the same, and serves on. It needs Ray for its
start only. Ends with a signal.

  PYTHONPATH=scripts python -m servers.head_server      (by the supervisor)
"""

import json
import os
import signal

from common.files import write_whole
from common.settings import from_command_line
from common.terminal import run
from servers import private_ray, supervise


class Asked:
    """Stands in for the process of a server that the supervisor owns."""

    pid = None

    def poll(self):
        return None


def ask(folder, command, directory, server_name="", **_):
    """Takes the place of NeMo Gym's `run_command`: leave the supervisor a note of what to start."""
    write_whole(
        folder / f"{server_name}.json", json.dumps({"command": command, "directory": str(directory.absolute())})
    )
    return Asked()


def start(graph):
    """NeMo Gym's start-up, its Ray left once it is over."""
    os.chdir(graph.work)
    # Imported here: the package takes its working folder when it is imported.
    import ray
    from nemo_gym.cli import env as launcher
    from nemo_gym.global_config import GlobalConfigDictParserConfig
    from omegaconf import OmegaConf

    launcher.run_command = lambda *arguments, **names: ask(graph.asked, *arguments, **names)
    config = GlobalConfigDictParserConfig(
        initial_global_config_dict=OmegaConf.create(graph.config()),
        skip_load_from_cli=True,
        skip_load_from_dotenv=True,
    )
    launcher.RunHelper().start(config)
    ray.shutdown()


def main():
    settings, _ = from_command_line(__doc__, "RUN_DIR", "GYM_BASE_PORT", "GYM_RAY_PORT")
    graph = supervise.Graph(settings, private_ray.PrivateRay(settings, "gym").address)
    start(graph)
    supervise.end_on_signals()  # again: Ray's client sets handlers of its own
    (graph.asked / supervise.STARTED).touch()
    while True:
        signal.pause()


if __name__ == "__main__":
    run(main)
