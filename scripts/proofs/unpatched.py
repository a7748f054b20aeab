"""The environment without a patch of ours, beside the patched one: for comparison, never for training.

`take_back` undoes patches on a copy of the installed tree. `overlay` makes a virtual environment
that has this clone's packages but, before them, such a copy: a graph started from its Python is
the same in everything else. It changes nothing in the clone's own environment.
"""

import os
import shutil
import subprocess
import sysconfig
import venv

from common.failure import Failure
from servers.tree import WORKPLACE, installed_tree


def take_back(patches, folder):
    """Copy the installed Workplace Assistant into `folder` and undo `patches` (the last one first) on it."""
    shutil.copytree(installed_tree() / WORKPLACE, folder / WORKPLACE, ignore=shutil.ignore_patterns("__pycache__"))
    # Outside any repository `git apply` takes paths as they are, whatever the clone ignores.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    for patch in reversed(patches):
        command = ["git", "apply", "--reverse", f"--include={WORKPLACE}/*", str(patch)]
        result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if result.returncode:
            raise Failure(f"{patch.name} is not in {installed_tree()}: {result.stderr.strip()}; run: make setup")


def overlay(patches, folder):
    """Make the virtual environment anew in `folder`; returns its Python."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.EnvBuilder(symlinks=True).create(folder)
    places = {"base": str(folder), "platbase": str(folder)}
    site = folder / sysconfig.get_path("purelib", vars=places).removeprefix(f"{folder}/")
    packages = sysconfig.get_path("purelib")
    (site / "clone.pth").write_text(f"{packages}\n")
    take_back(patches, site)
    # Ray is started by the path beside the interpreter.
    (folder / "bin" / "ray").symlink_to(f"{sysconfig.get_path('scripts')}/ray")
    return folder / "bin" / "python"
