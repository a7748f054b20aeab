#!/usr/bin/env python3
"""NeMo Gym's launcher and head server, in a process of their own under the supervisor.

Guarantees:
- The launcher's start-up is unchanged, but the supervisor starts the servers, so that they outlive this process.
- Each server is asked for by a file under RUN_DIR/work/asked; an empty file `started` there says that all answered.
- Started again after its death it finds the servers running, asks for the same ones, and serves on.
- It needs Ray for its start only, and ends with a signal.

  PYTHONPATH=scripts python -m servers.head_server      (by the supervisor)
"""

import json
import os
import signal
from pathlib import Path
from typing import Any

from common.files import write_whole
from common.settings import from_command_line
from common.terminal import run
from servers import private_ray, supervise


class SupervisedProcess:
    """Stands in for the process of a server that the supervisor owns."""

    pid = None

    def poll(self) -> None:
        return None


def ask(folder: Path, command: str, directory: Path, server_name: str = "", **_: Any) -> SupervisedProcess:
    """Take the place of NeMo Gym's `run_command`: leave the supervisor a note of what to start."""
    wanted = {"command": command, "directory": str(directory.absolute())}
    write_whole(folder / f"{server_name}.json", json.dumps(wanted))
    return SupervisedProcess()


def start(servers: supervise.Servers) -> None:
    """NeMo Gym's start-up; leaves Ray once it is over."""
    os.chdir(servers.work)
    # These imports come after chdir: the package takes the working folder of the moment it is imported.
    import ray
    from nemo_gym.cli import env as launcher
    from nemo_gym.global_config import GlobalConfigDictParserConfig
    from omegaconf import DictConfig

    launcher.run_command = lambda *arguments, **names: ask(servers.asked, *arguments, **names)
    config = GlobalConfigDictParserConfig(
        initial_global_config_dict=DictConfig(servers.config()),
        skip_load_from_cli=True,
        skip_load_from_dotenv=True,
    )
    launcher.RunHelper().start(config)
    ray.shutdown()


def main() -> None:
    settings, _ = from_command_line(__doc__, "RUN_DIR", "GYM_BASE_PORT", "GYM_RAY_PORT")
    servers = supervise.Servers(settings, private_ray.PrivateRay(settings, "gym").address)
    start(servers)
    supervise.end_on_signals()  # again: Ray's client sets handlers of its own
    (servers.asked / supervise.STARTED).touch()
    while True:
        signal.pause()


if __name__ == "__main__":
    run(main)
