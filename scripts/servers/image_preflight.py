#!/usr/bin/env python3
"""Check the image from within: the last step of `make image`, which runs it there.

Runs without network and on a read-only root, so that what passes here needs no installation at
run time and could do none. Checks the commit, the patches by their hashes, each server's Python
by importing the server with it, and the base image's own Python and Ray. Some seconds.

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
from servers import tree as gym_tree

SERVERS = ("resources_servers/workplace_assistant", "responses_api_agents/simple_agent")
IMPORTS = "import nemo_gym.cli.env, gateway.app, " + ", ".join(f"{name.replace('/', '.')}.app" for name in SERVERS)
SHOWN = ("nemo-gym", "pandas", "ray", "openai", "fastapi", "aiohttp")
BASE_PYTHON = "python3"
SERVE = "ray serve --help of the base"


def check_commit():
    found = os.environ.get("NEMO_GYM_COMMIT")
    if found != gym_tree.GYM_COMMIT:
        raise Failure(f"NEMO_GYM_COMMIT is {found}, not {gym_tree.GYM_COMMIT}")


def check_patches(tree):
    if gym_tree.tree_state(tree, gym_tree.read_sums()) != "patched":
        raise Failure(f"{tree} is not patched")


def check_closed(tree):
    """No package can be installed into the environment: nothing to do it with, and no place for it."""
    if find_spec("pip") or find_spec("uv"):
        raise Failure(f"{tree}/.venv holds an installer")
    if os.access(tree / ".venv", os.W_OK):
        raise Failure(f"{tree}/.venv can be written to; run the image with a read-only root")


def check_servers(tree):
    """Each server's Python is the one environment's, which `checks` then imports every server with."""
    for name in SERVERS:
        python = tree / name / ".venv/bin/python"
        if not os.access(python, os.X_OK) or not python.parent.samefile(tree / ".venv/bin"):
            raise Failure(f"{python} is not the Python of {tree}/.venv")


def checks(tree):
    """{what: (command, folder)} of what must run with status 0."""
    shared = str(tree / ".venv/bin/python")
    found = {"importing the servers": ([shared, "-c", IMPORTS], ROOT / "scripts")}
    base = shutil.which(BASE_PYTHON) or BASE_PYTHON
    if Path(base).is_relative_to(tree):
        raise Failure(f"{BASE_PYTHON} is {base}, not the base image's own")
    found["import of loguru and ray by the base's Python"] = ([base, "-c", "import loguru, ray"], "/")
    # The command is there where Ray Serve's own packages are; the trainer needs them, the graph does not.
    if has_ray_serve(base):
        found[SERVE] = (["ray", "serve", "--help"], "/")
    return found


def has_ray_serve(python):
    look = "import sys, importlib.util as u; sys.exit(not u.find_spec('starlette'))"
    return subprocess.run([python, "-c", look], check=False).returncode == 0


def run_all(commands):
    """Run the commands side by side. Raises Failure with the last line of the first that fails."""
    started = {}
    for what, (command, folder) in commands.items():
        try:
            started[what] = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        except OSError as error:
            raise Failure(f"{what}: {error}") from None
    for what, process in started.items():
        output, _ = process.communicate()
        if process.returncode:
            raise Failure(f"{what} failed: {(output.strip().splitlines() or ['no output'])[-1][:300]}")


def main():
    # Not the variables' parser: the image's own variables are not the user's.
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    tree = gym_tree.installed_tree()
    check_commit()
    check_patches(tree)
    check_closed(tree)
    check_servers(tree)
    commands = checks(tree)
    run_all(commands)
    if SERVE not in commands:
        say("Note: the base image has no Ray Serve (pip install 'ray[serve]'); the graph runs, a trainer would not")
    versions = " ".join(f"{name}={metadata.version(name)}" for name in SHOWN)
    patches = gym_tree.fingerprint(tree)["patches"]
    say(f"Image preflight passed: commit={gym_tree.GYM_COMMIT} patches={patches} {versions}")


if __name__ == "__main__":
    run(main)
