#!/usr/bin/env python3
"""Check the image from within: the last step of `make image`, which runs it there.

It runs without network and on a read-only root: what passes here needs no installation at run time, and could do
none. It checks the commit, the patches by their hashes, each server's Python by importing the server with it, and the
base image's own Python and Ray. Takes some seconds.

  docker run --rm --read-only --network none --tmpfs /tmp IMAGE \
      env PYTHONPATH=/opt/relax-nemo-gym/scripts /opt/nemo-gym/.venv/bin/python -m servers.image_preflight
"""

import os
import shutil
import subprocess
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from common.failure import Failure
from common.settings import ROOT
from common.terminal import run, say
from servers import tree

SERVERS = ("resources_servers/workplace_assistant", "responses_api_agents/simple_agent")
IMPORTS = "import nemo_gym.cli.env, gateway.app, " + ", ".join(f"{name.replace('/', '.')}.app" for name in SERVERS)
SHOWN = ("nemo-gym", "pandas", "ray", "openai", "fastapi", "aiohttp")
BASE_PYTHON = "python3"
SERVE = "ray serve --help of the base"


def check_commit() -> None:
    commit = os.environ.get("NEMO_GYM_COMMIT")
    if commit != tree.GYM_COMMIT:
        raise Failure(f"NEMO_GYM_COMMIT is {commit}, not {tree.GYM_COMMIT}")


def check_patches(folder: Path) -> None:
    if tree.tree_state(folder, tree.read_sums()) != "patched":
        raise Failure(f"{folder} is not patched")


def check_closed(folder: Path) -> None:
    """No package can be installed into the environment: there is no installer, and no place to write to."""
    if find_spec("pip") or find_spec("uv"):
        raise Failure(f"{folder}/.venv holds an installer")
    if os.access(folder / ".venv", os.W_OK):
        raise Failure(f"{folder}/.venv can be written to; run the image with a read-only root")


def check_servers(folder: Path) -> None:
    """Each server's Python is the one environment's, with which `commands` then imports every server."""
    for name in SERVERS:
        python = folder / name / ".venv/bin/python"
        if not os.access(python, os.X_OK) or not python.parent.samefile(folder / ".venv/bin"):
            raise Failure(f"{python} is not the Python of {folder}/.venv")


def commands(folder: Path) -> dict[str, tuple[list[str], Path]]:
    """{what: (command, its folder)} of what must exit with status 0."""
    base = shutil.which(BASE_PYTHON) or BASE_PYTHON
    if Path(base).is_relative_to(folder):
        raise Failure(f"{BASE_PYTHON} is {base}, not the base image's own")
    wanted = {
        "importing the servers": ([str(folder / ".venv/bin/python"), "-c", IMPORTS], ROOT / "scripts"),
        "import of loguru and ray by the base's Python": ([base, "-c", "import loguru, ray"], Path("/")),
    }
    # The trainer needs Ray Serve, the graph does not: skip it in a base without Ray Serve's packages.
    probe = "import sys, importlib.util as u; sys.exit(not u.find_spec('starlette'))"
    if subprocess.run([base, "-c", probe], check=False).returncode == 0:
        wanted[SERVE] = (["ray", "serve", "--help"], Path("/"))
    return wanted


def run_all(wanted: dict[str, tuple[list[str], Path]]) -> None:
    """Run the commands side by side. Raises Failure with the last line of the first that fails."""
    started = {}
    for what, (command, folder) in wanted.items():
        try:
            started[what] = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True,
            )  # fmt: skip
        except OSError as error:
            raise Failure(f"{what}: {error}") from None
    for what, process in started.items():
        output, _ = process.communicate()
        if process.returncode:
            raise Failure(f"{what} failed: {(output.strip().splitlines() or ['no output'])[-1][:300]}")


def main() -> None:
    # The settings' parser would read the image's variables as if they were the user's.
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    folder = tree.installed_tree()
    check_commit()
    check_patches(folder)
    check_closed(folder)
    check_servers(folder)
    wanted = commands(folder)
    run_all(wanted)
    if SERVE not in wanted:
        say("Note: the base image has no Ray Serve (pip install 'ray[serve]'); the graph runs, a trainer would not")
    versions = " ".join(f"{name}={metadata.version(name)}" for name in SHOWN)
    patches = tree.fingerprint(folder)["patches"]
    say(f"Image preflight passed: commit={tree.GYM_COMMIT} patches={patches} {versions}")


if __name__ == "__main__":
    run(main)
